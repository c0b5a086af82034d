"""How sizes follow from shapes and attributes: the static plan of the call-time shape solver.

One equation, one unknown, exact division, and never a guess: `solve_order` walks over the declared
dims, solves each dim that is linear in exactly one unknown size, evaluates every `let` as soon as
its operands are known, and turns what is left into checks. The order depends on the declaration
only, so the same plan serves every call, also one with symbolic integers, and `emit` prints it as
straight-line Python.

Sizes that no dim determines are `undetermined`: the checker reports them in a spec, and
differentiation turns them into attributes of the derived op (adjoint shapes are never re-inferred).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from opgen.algebra.condition import Relation
from opgen.algebra.poly import Atom, Kind, Poly, of_atom, symbol_atom
from opgen.ir.notation import Attribute, AttributeType, Constraint, Let, Tensor


@dataclass(frozen=True, slots=True)
class SolveSize:
    """`size = (shape[tensor][axis] - rest) / factor`, exact and at least 0."""

    size: str
    tensor: str
    axis: int
    extent: Poly
    factor: Poly
    rest: Poly


@dataclass(frozen=True, slots=True)
class DefineSize:
    """A `let`, evaluated; negative values are refused where it is an extent of a tensor."""

    let: Let
    is_extent: bool


@dataclass(frozen=True, slots=True)
class CheckDim:
    """`shape[tensor][axis]` must equal `extent`, all of whose symbols are known."""

    tensor: str
    axis: int
    extent: Poly


@dataclass(frozen=True, slots=True)
class CheckExtent:
    """The `extent` of a tensor that no call brings, written in its dim, must be at least 0."""

    tensor: str
    axis: int
    extent: Poly


@dataclass(frozen=True, slots=True)
class CheckConstraint:
    """A `where` clause or a launch check left open by a proof."""

    constraint: Constraint


Step = SolveSize | DefineSize | CheckDim | CheckExtent | CheckConstraint


@dataclass(frozen=True, slots=True)
class ShapePlan:
    """Steps in order. `undetermined` pairs a size with the dims (tensor, axis) that mention it."""

    steps: tuple[Step, ...]
    undetermined: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


def may_be_negative(extent: Poly, signed: Collection[str] = ()) -> bool:
    """Whether an extent may be less than 0, as `L - K + 1` is for some sizes.

    So may it be where a symbol in it is `signed`. Any other is taken to be at least 0: a `let` is
    looked at where it is defined.
    """
    return any(factor < 0 for factor in extent.terms.values()) or any(
        _atom_may_be_negative(atom, signed) for atom in extent.atoms()
    )


def _atom_may_be_negative(atom: Atom, signed: Collection[str]) -> bool:
    """Divisors are positive wherever a value is looked at, so they leave the sign alone."""
    match atom.kind:
        case Kind.SYMBOL:
            return atom.name in signed
        case Kind.MAX:
            return all(may_be_negative(arg, signed) for arg in atom.args)
        case _:
            return any(may_be_negative(arg, signed) for arg in atom.args)


def _signed(
    attributes: Iterable[Attribute], lets: Iterable[Let], constraints: Iterable[Constraint]
) -> frozenset[str]:
    """The attributes that may be negative, and the lets that may be; both by what is plain."""
    bounded = {
        atom.name
        for constraint in constraints
        if constraint.condition.relation is not Relation.NE
        for value in (constraint.condition.value,)
        if value.constant <= 0 and len(value.terms) <= 2 and len(value.atoms()) == 1
        for atom in value.atoms()
        if atom.kind is Kind.SYMBOL and value - value.constant == of_atom(atom)
    }
    signed = {
        name
        for attribute in attributes
        if attribute.type is AttributeType.INT
        for name in attribute.symbols
        if name not in bounded
    }
    for let in lets:
        if let.name not in bounded and may_be_negative(let.value, signed):
            signed.add(let.name)
    return frozenset(signed)


def solve_order(
    inputs: Iterable[Tensor],
    attributes: Iterable[Attribute],
    sizes: Iterable[str],
    lets: Iterable[Let],
    constraints: Iterable[Constraint],
    outputs: Iterable[Tensor] = (),
    temporaries: Iterable[Tensor] = (),
) -> ShapePlan:
    """Plan the solution of `sizes` from the dims of `inputs`; sizes are solved in plan order.

    Constraints are checked as soon as their symbols are known, so that the message about a bad
    attribute comes before one about a shape it spoils. Optional inputs are used last: an absent one
    determines nothing, and its dims are checked like those of an output. `temporaries` are those
    that a call allocates.
    """
    inputs, outputs, unknown = tuple(inputs), tuple(outputs), dict.fromkeys(sizes)
    attributes, lets, constraints = tuple(attributes), tuple(lets), tuple(constraints)
    search = _Search(
        unknown=frozenset(unknown),
        known={name for attribute in attributes for name in attribute.symbols},
        lets=list(lets),
        constraints=list(constraints),
        dims=[dim for tensor in inputs if tensor.default is None for dim in _dims(tensor)],
        extents=frozenset[str]().union(
            *(extent.symbols for tensor in (*inputs, *outputs) for *_, extent in _dims(tensor))
        ),
    )
    search.settle()
    search.solve()
    optional = [dim for tensor in inputs if tensor.default is not None for dim in _dims(tensor)]
    made = (dim for tensor in (*outputs, *temporaries) for dim in _dims(tensor))
    # A let in an extent of an input or output is refused where it is defined.
    signed = _signed(attributes, lets, constraints) - ({let.name for let in lets} & search.extents)
    steps = (
        *search.steps,
        *(CheckDim(*dim) for dim in optional),
        *(
            CheckExtent(tensor, axis, extent)
            for tensor, axis, extent in (*optional, *made)
            if may_be_negative(extent, signed) and extent.symbols <= search.known
        ),
    )
    undetermined = tuple(
        (
            size,
            tuple((tensor, axis) for tensor, axis, extent in search.dims if size in extent.symbols),
        )
        for size in unknown
        if size not in search.known
    )
    return ShapePlan(steps, undetermined)


_Dim = tuple[str, int, Poly]
"""A tensor, the number of one of its dims, and the extent of that."""


def _dims(tensor: Tensor) -> Iterator[_Dim]:
    return ((tensor.name, axis, dim.extent) for axis, dim in enumerate(tensor.dims))


@dataclass
class _Search:
    """What is known so far, and what is left to do."""

    unknown: frozenset[str]
    known: set[str]
    lets: list[Let]
    constraints: list[Constraint]
    dims: list[_Dim]
    extents: frozenset[str]  # the symbols of all extents
    steps: list[Step] = field(default_factory=list)

    def settle(self) -> None:
        """Evaluate every let and constraint whose symbols have become known."""
        progress = True
        while progress:
            progress = False
            for constraint in list(self.constraints):
                if constraint.condition.value.symbols <= self.known:
                    self.steps.append(CheckConstraint(constraint))
                    self.constraints.remove(constraint)
            for let in list(self.lets):
                if let.value.symbols <= self.known:
                    self.steps.append(DefineSize(let, let.name in self.extents))
                    self.known.add(let.name)
                    self.lets.remove(let)
                    progress = True

    def solve(self) -> None:
        """Solve or check every dim that becomes known; the others are left."""
        progress = True
        while progress:
            progress = False
            for dim in list(self.dims):
                step = self.step(*dim)
                if step is None:
                    continue
                self.steps.append(step)
                self.dims.remove(dim)
                progress = True
                if isinstance(step, SolveSize):
                    self.known.add(step.size)
                    self.settle()

    def step(self, tensor: str, axis: int, extent: Poly) -> CheckDim | SolveSize | None:
        """What a dim is good for now; None where it has several unknown sizes, or is not linear."""
        open_symbols = sorted(extent.symbols - self.known)
        if not open_symbols:
            return CheckDim(tensor, axis, extent)
        size = open_symbols[0]
        if len(open_symbols) > 1 or size not in self.unknown:
            return None
        linear = extent.linear_in(symbol_atom(size))
        if linear is None or size in linear[0].symbols | linear[1].symbols:
            return None
        return SolveSize(size, tensor, axis, extent, *linear)
