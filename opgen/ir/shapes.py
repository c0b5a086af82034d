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

from collections.abc import Iterable
from dataclasses import dataclass

from opgen.algebra.poly import Poly, symbol_atom
from opgen.ir.notation import Attribute, Constraint, Let, Tensor


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
    """The `extent` of an output, written in its dim, must be at least 0."""

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


def may_be_negative(extent: Poly) -> bool:
    """Whether an extent is less than 0 for some sizes, as `L - K + 1` is.

    A `let` in it is looked at where it is defined.
    """
    return any(factor < 0 for factor in extent.terms.values())


def solve_order(
    inputs: Iterable[Tensor],
    attributes: Iterable[Attribute],
    sizes: Iterable[str],
    lets: Iterable[Let],
    constraints: Iterable[Constraint],
    outputs: Iterable[Tensor] = (),
) -> ShapePlan:
    """Plan the solution of `sizes` from the dims of `inputs`; sizes are solved in plan order.

    Constraints are checked as soon as their symbols are known, so that the message about a bad
    attribute comes before one about a shape it spoils. Optional inputs are used last: an absent one
    determines nothing.
    """
    unknown = dict.fromkeys(sizes)
    known = {name for attribute in attributes for name in attribute.symbols}
    pending_lets = list(lets)
    pending_constraints = list(constraints)
    required = [tensor for tensor in inputs if tensor.default is None]
    extents = {
        name for tensor in (*inputs, *outputs) for dim in tensor.dims for name in dim.extent.symbols
    }
    dims = [
        (tensor.name, axis, dim.extent)
        for tensor in required
        for axis, dim in enumerate(tensor.dims)
    ]
    steps: list[Step] = []

    def settle() -> None:
        """Evaluate every let and constraint whose symbols have become known."""
        progress = True
        while progress:
            progress = False
            for constraint in list(pending_constraints):
                if constraint.condition.value.symbols <= known:
                    steps.append(CheckConstraint(constraint))
                    pending_constraints.remove(constraint)
            for let in list(pending_lets):
                if let.value.symbols <= known:
                    steps.append(DefineSize(let, let.name in extents))
                    known.add(let.name)
                    pending_lets.remove(let)
                    progress = True

    settle()
    progress = True
    while progress:
        progress = False
        for entry in list(dims):
            tensor, axis, extent = entry
            open_symbols = [name for name in sorted(extent.symbols) if name not in known]
            if not open_symbols:
                steps.append(CheckDim(tensor, axis, extent))
                dims.remove(entry)
                progress = True
            elif len(open_symbols) == 1 and open_symbols[0] in unknown:
                size = open_symbols[0]
                linear = extent.linear_in(symbol_atom(size))
                if linear is None or size in linear[0].symbols | linear[1].symbols:
                    continue
                steps.append(SolveSize(size, tensor, axis, extent, *linear))
                known.add(size)
                dims.remove(entry)
                settle()
                progress = True
    steps.extend(
        CheckDim(tensor.name, axis, dim.extent)
        for tensor in inputs
        if tensor.default is not None
        for axis, dim in enumerate(tensor.dims)
    )
    steps.extend(
        CheckExtent(tensor.name, axis, dim.extent)
        for tensor in outputs
        for axis, dim in enumerate(tensor.dims)
        if may_be_negative(dim.extent) and dim.extent.symbols <= known
    )
    undetermined = tuple(
        (
            size,
            tuple((tensor, axis) for tensor, axis, extent in dims if size in extent.symbols),
        )
        for size in unknown
        if size not in known
    )
    return ShapePlan(tuple(steps), undetermined)
