"""Sums of products as products of matrices, for the tiles of a GPU.

A kernel is one where its sum is of products of two elements and each of the two has an axis of the
kernel to itself: then every element is a factor of many cells, and a block of threads that works on
a tile of cells loads it once. Convolutions are, with the gradients for both operands, also those
whose windows are shifted by what a tensor says; so are matrix products.

What is decided is only what is a row, a column and a term; index maps stay as they are. A loop
whose bounds depend on the cell becomes one over the whole range, and its bounds the conditions
under which an element is present.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import ZERO, Kind, Poly, of_atom, symbol, symbol_atom
from opgen.algebra.prove import is_positive
from opgen.ir.context import facts_of
from opgen.ir.contraction import Contraction, Factor
from opgen.ir.convolution import Role
from opgen.ir.loop_parts import held
from opgen.ir.loops import (
    Accumulate,
    All,
    Always,
    Axis,
    Call,
    Define,
    For,
    If,
    Inside,
    Kernel,
    Load,
    Node,
    Program,
    Start,
    Store,
    Test,
    walk,
)
from opgen.ir.map_loops import symbols_of
from opgen.ir.notation import Access, Op, Reducer, substitute_access
from opgen.passes.convolution import convolution
from opgen.passes.cuda_phases import by_phase
from opgen.passes.product import Product, product_of


def with_contractions(threads: Program, program: Program, op: Op) -> Program:
    """The kernels of `threads`, with those of `program` that are products of matrices.

    `program` is what was scheduled of the op, and has one point for each cell; `threads` is the
    same, rewritten for threads.
    """
    found: dict[str, Contraction] = {}
    for kernel in program.kernels:
        product = transposed(kernel, program, op) or contraction(kernel, program)
        if product is not None:
            found[kernel.name] = by_phase(product, program.integers)
    kernels = (replace(each, contraction=found.get(each.name)) for each in threads.kernels)
    return replace(threads, kernels=tuple(kernels))


def contraction(kernel: Kernel, program: Program) -> Contraction | None:
    """The kernel as a product of matrices; None if it is none."""
    parts = _parts(kernel)
    if parts is None or not kernel.is_deterministic or _checks_indices(kernel):
        return None
    start, nest, tail = parts
    collected = _Collected(kernel.axes)
    term = collected.only_term(nest, start.accumulator)
    if term is None or not all(_is_element(load, program) for load in term):
        return None
    found = _arranged(kernel, collected, term, start, nest, tail)
    if found is None or not _are_known_before(found.terms, kernel):
        return None
    return found


def _are_known_before(terms: Sequence[Axis], kernel: Kernel) -> bool:
    """Whether numbers of terms are those of a call, and none of what a kernel begins with: a launch
    divides by them."""
    own = {each.name for each in kernel.prologue}
    return all(own.isdisjoint(each.extent.symbols) for each in terms)


def transposed(kernel: Kernel, program: Program, op: Op) -> Contraction | None:
    """The kernel of a transposed convolution, whatever the stride, as a product of matrices.

    A cell u of `image[n,c, i*stride - padding + k*dilation]` has a term for every k for which an i
    is left: (u + padding - k*dilation) / stride, if it is an integer inside of its range.
    """
    found, convolved, parts = product_of(op), convolution(op), _parts(kernel)
    if found is None or convolved is None or parts is None or len(program.kernels) != 1:
        return None
    start, nest, tail = parts
    if convolved.target is not Role.IMAGE or _checks_indices(kernel):
        return None
    (store,) = (node for node in tail if isinstance(node, Store))
    found = _without_single_values(found)
    result = _pixels(found, convolved.result)
    collected = _Collected(kernel.axes)
    extents = {axis.name: axis.extent for axis in kernel.axes}
    solved: dict[str, Poly] = {}
    steps: list[Poly] = []
    same: set[str] = set()  # iterators that are axes; others may have the name of an axis
    for index, stored in zip(found.target.indices, store.indices, strict=True):
        if index.value == stored:
            same |= index.value.symbols
            continue
        inner = [n for n in sorted(index.value.symbols & found.extents.keys()) if _uses(result, n)]
        if stored.symbol not in extents or len(inner) != 1:
            return None
        linear = index.value.linear_in(symbol_atom(inner[0]))
        if linear is None or not is_positive(linear[0], facts_of(op)):
            return None
        if inner[0] in linear[1].symbols:  # in a quotient
            return None
        step, distance = linear[0], stored - linear[1]
        value = distance // step
        collected.conditions += (Condition(value), Condition(found.extents[inner[0]] - 1 - value))
        if step != 1:
            collected.conditions.append(Condition(distance - value * step, Relation.EQ))
            steps.append(step)
        solved[inner[0]] = value
    for name, extent in found.extents.items():
        if name in extents and (name not in same or extents[name] != extent):
            return None
        if name not in extents and name not in solved:
            collected.terms.append(Axis(name, extent))
    if not solved:
        return None  # no pixel is moved: a plain product
    left, right = (
        Load(access.tensor, tuple(index.value.substitute(solved) for index in access.indices))
        for access in found.factors
    )
    if not all(_is_element(load, program) for load in (left, right)):
        return None
    arranged = _arranged(kernel, collected, (left, right), start, nest, tail)
    return None if arranged is None else replace(arranged, steps=tuple(steps))


def _without_single_values(found: Product) -> Product:
    """The sum without iterators of one value, which kernels do not have either."""
    values = {name: ZERO for name, extent in found.extents.items() if extent == 1}
    left, right = (substitute_access(factor, values) for factor in found.factors)
    extents = {name: each for name, each in found.extents.items() if name not in values}
    return Product(substitute_access(found.target, values), (left, right), extents)


def _pixels(found: Product, name: str) -> Access:
    """The factor whose pixels are to follow from those of the image: not the one with the taps.

    A sum over all pixels that asks of each for which tap it is, if for any, is the same, in a
    hundred times as many terms. By their indices alone the factors are alike; where the taps of one
    are of known numbers, as in kernels for one call, it is the other. Else it has that name.
    """
    own: list[list[str]] = [[], []]
    for index in found.target.indices:
        names = sorted(index.value.symbols & found.extents.keys())
        left, right = ([n for n in names if _uses(each, n)] for each in found.factors)
        if left and right and set(left).isdisjoint(right):
            own[0] += left
            own[1] += right
    known = [all(found.extents[n].is_constant for n in names) for names in own]
    if known[0] != known[1]:
        return found.factors[known.index(False)]
    return next(each for each in found.factors if each.tensor == name)


def _uses(access: Access, name: str) -> bool:
    """Whether an iterator stands in an access."""
    return any(name in index.value.symbols for index in access.indices)


def _is_element(load: Load, program: Program) -> bool:
    """Whether a load is of a floating-point tensor of the type that calls choose."""
    operand = program.stored(load.tensor)
    return operand is not None and operand.dtype.is_generic and not operand.optional


def _checks_indices(kernel: Kernel) -> bool:
    """Whether an index may be found outside at run time."""
    return any(
        isinstance(value, Inside) and value.fault is not None
        for node in walk(kernel.body)
        for value in held(node)
    )


def _parts(kernel: Kernel) -> tuple[Start, tuple[Node, ...], tuple[Node, ...]] | None:
    """The start of a sum, the one nest that adds to it in loops, and everything behind that."""
    match kernel.body:
        case (Start(reducer=Reducer.ADD, value=None) as start, *rest):
            pass
        case _:
            return None
    ends = [at for at, node in enumerate(rest) if isinstance(node, For | If)]
    if not ends or any(isinstance(node, Start | Accumulate) for node in rest[: ends[0] + 1]):
        return None
    nest, tail = tuple(rest[: ends[0] + 1]), tuple(rest[ends[0] + 1 :])
    defined = {node.name for node in nest if isinstance(node, Define)}
    stores = [node.tensor for node in tail if isinstance(node, Store)]
    if stores != [kernel.written] or any(isinstance(node, For | If) for node in tail):
        return None
    if defined & symbols_of(*tail):
        return None
    return start, nest, tail


@dataclass
class _Collected:
    """What stands around the term of a nest: loops in full, and conditions on cells and terms."""

    axes: tuple[Axis, ...]
    terms: list[Axis] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    values: dict[str, Poly] = field(default_factory=dict)

    @property
    def moving(self) -> frozenset[str]:
        """Axes and loops."""
        return frozenset(axis.name for axis in (*self.axes, *self.terms))

    def only_term(self, nodes: tuple[Node, ...], accumulator: str) -> tuple[Load, Load] | None:
        """The two elements whose products a nest adds up; None if it does anything else."""
        *definitions, last = nodes
        for node in definitions:
            if not isinstance(node, Define):
                return None
            self.values[node.name] = node.value.substitute(self.values)
        match last:
            case For() if not last.any_order:
                if not self._loop(last):
                    return None
                return self.only_term(last.body, accumulator)
            case If(conditions=conditions, body=body, test=test):
                self.conditions += (each.substitute(self.values) for each in conditions)
                return self.only_term(body, accumulator) if self._test(test) else None
            case Accumulate(
                reducer=Reducer.ADD,
                value=Call(primitive="mul", arguments=(Load() as left, Load() as right)),
                present=present,
            ) if last.accumulator == accumulator and self._test(present):
                return self._known(left), self._known(right)
            case _:
                return None

    def _known(self, load: Load) -> Load:
        return replace(load, indices=tuple(i.substitute(self.values) for i in load.indices))

    def _test(self, test: Test) -> bool:
        """Collect a test as conditions, if it is nothing else."""
        match test:
            case Always():
                return True
            case Inside(index=index, extent=extent, fault=None):
                index = index.substitute(self.values)
                self.conditions += (Condition(index), Condition(extent - 1 - index))
                return True
            case All(tests=tests):
                return all(map(self._test, tests))
            case _:
                return False

    def _loop(self, loop: For) -> bool:
        """Collect a loop over a range that is the same for all cells, if one is known."""
        lower = tuple(bound.substitute(self.values) for bound in loop.lower)
        upper = tuple(bound.substitute(self.values) for bound in loop.upper)
        moving = self.moving
        ends = [bound for bound in upper if _is_fixed(bound, moving)]
        ends += [most for most in (self._extreme(bound, True) for bound in upper) if most]
        least = [self._extreme(bound, False) for bound in lower]
        if not ends or not any(
            bound and bound.is_constant and bound.constant >= 0 for bound in least
        ):
            return False
        name = symbol(loop.name)
        self.conditions += (_at_least(name, bound) for bound in lower if bound != 0)
        self.conditions += (_at_most(name, bound) for bound in upper if bound != ends[0])
        self.terms.append(Axis(loop.name, ends[0] + 1))
        return True

    def _extreme(self, value: Poly, largest: bool) -> Poly | None:
        """The largest or the least value of a bound for any cell and term, by sizes alone."""
        known = {axis.name: axis.extent for axis in (*self.axes, *self.terms)}
        for atom in value.atoms():
            if known.keys().isdisjoint(of_atom(atom).symbols):
                continue
            linear = value.linear_in(atom)
            if linear is None or not linear[0].is_constant:
                return None
            is_largest = largest == (linear[0].constant > 0)
            found: Poly | None
            match atom.kind:
                case Kind.SYMBOL:
                    found = known[atom.name] - 1 if is_largest else ZERO
                case Kind.FLOOR_DIV if atom.args[1].is_constant and atom.args[1].constant > 0:
                    dividend = self._extreme(atom.args[0], is_largest)
                    found = None if dividend is None else dividend // atom.args[1]
                case _:
                    found = None
            if found is None:
                return None
            value = linear[0] * found + linear[1]
        return value if _is_fixed(value, self.moving) else None


def _is_fixed(value: Poly, moving: frozenset[str]) -> bool:
    """Whether a bound is a formula of sizes alone."""
    return value.symbols.isdisjoint(moving) and all(
        atom.kind in (Kind.SYMBOL, Kind.FLOOR_DIV) for atom in value.all_atoms()
    )


def _at_least(name: Poly, bound: Poly) -> Condition:
    """`name >= bound`; for a quotient, `name >= a // b + c`, as `(name - c + 1)*b > a`."""
    quotient = _quotient(bound)
    if quotient is None:
        return Condition(name - bound)
    a, b, rest = quotient
    return Condition((name - rest + 1) * b - a - 1)


def _at_most(name: Poly, bound: Poly) -> Condition:
    """`name <= bound`; for a quotient, `name <= a // b + c`, as `(name - c)*b <= a`."""
    quotient = _quotient(bound)
    if quotient is None:
        return Condition(bound - name)
    a, b, rest = quotient
    return Condition(a - (name - rest) * b)


def _quotient(bound: Poly) -> tuple[Poly, Poly, Poly] | None:
    """`a // b + rest` as (a, b, rest); divisors are positive wherever there is a term."""
    quotients = [atom for atom in bound.atoms() if atom.kind is Kind.FLOOR_DIV]
    if len(quotients) != 1:
        return None
    linear = bound.linear_in(quotients[0])
    if linear is None or linear[0] != 1:
        return None
    a, b = quotients[0].args
    return a, b, linear[1]


# ---------------------------------------------------------------------------- rows and columns
def _arranged(
    kernel: Kernel,
    collected: _Collected,
    term: tuple[Load, Load],
    start: Start,
    nest: tuple[Node, ...],
    tail: tuple[Node, ...],
) -> Contraction | None:
    """The sum with its axes shared out between two factors; None where one has none of its own."""
    used = [_symbols(load) for load in term]
    if kernel.axes and kernel.axes[-1].name in used[0] - used[1]:
        # What is consecutive in the result is a column.
        term, used = (term[1], term[0]), [used[1], used[0]]
    own = [used[0] - used[1], used[1] - used[0]]
    rows, columns = (tuple(axis for axis in kernel.axes if axis.name in mine) for mine in own)
    batch = tuple(axis for axis in kernel.axes if axis.name in used[0] & used[1])
    terms = tuple(collected.terms)
    are_all = len(rows) + len(columns) + len(batch) == len(kernel.axes)
    if not rows or not columns or not terms or not are_all:
        return None
    names = {axis.name for axis in (*batch, *terms)}
    allowed = [names | {axis.name for axis in axes} for axes in (rows, columns)]
    shared: list[list[Condition]] = [[], []]
    for condition in dict.fromkeys(collected.conditions):
        moving = condition.value.symbols & collected.moving
        may = [at for at in (1, 0) if moving <= allowed[at]]
        if not may:
            return None
        # A factor whose indices it keeps inside of a tensor asks for itself, before it is loaded.
        of_it = [at for at in may if moving & own[at]] or [at for at in may if moving & used[at]]
        for at in of_it or may[-1:]:
            shared[at].append(condition)
    left, right = (Factor(load, tuple(each)) for load, each in zip(term, shared, strict=True))
    return Contraction(start, batch, rows, columns, terms, left, right, nest, tail)


def _symbols(load: Load) -> frozenset[str]:
    return frozenset[str]().union(*(index.symbols for index in load.indices))
