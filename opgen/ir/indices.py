"""What an index looks like, and the cell that it stands for.

A bare iterator, or iterators as the digits of a mixed-radix number, are the indices that are in
range whatever the sizes are, and that tell their iterators apart: `x[n, c]` and `x[n, (g c)]`.
Nothing is proved here; the answer "no" only means "not plainly".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.poly import (
    ONE,
    ZERO,
    Kind,
    Poly,
    maximum,
    minimum,
    of_atom,
    symbol,
    symbol_atom,
)
from opgen.ir.notation import Access, Boundary, Index, Iterator

FOLDED: Final = (Boundary.CLAMP, Boundary.REFLECT, Boundary.SYMMETRIC, Boundary.WRAP)
"""The modes that bring an index inside; see `fold`."""

ANYWHERE: Final = (Boundary.CLAMP, Boundary.WRAP)
"""Those that do so wherever it is: a call whose tensor has no cell there is refused."""


def extents_of(iterators: Iterable[Iterator]) -> dict[str, Poly]:
    """The extent of each iterator by name."""
    return {iterator.name: iterator.extent for iterator in iterators}


def digits(value: Poly, extents: Mapping[str, Poly]) -> tuple[str, ...] | None:
    """The iterators whose mixed-radix number `value` is, most significant first, else None."""
    weights: dict[str, Poly] = {}
    rest = value
    for name in sorted(value.symbols & extents.keys()):
        split = rest.linear_in(symbol_atom(name))
        if split is None or not split[0].symbols.isdisjoint(extents):
            return None
        weights[name], rest = split
    if rest.terms:
        return None
    found: list[str] = []
    weight = ONE
    while weights:
        matching = [name for name, other in weights.items() if other == weight]
        if len(matching) != 1:
            return None
        del weights[matching[0]]
        found.append(matching[0])
        weight = weight * extents[matching[0]]
    return tuple(reversed(found))


def places(values: Sequence[Poly], extents: Sequence[Poly]) -> Iterable[tuple[int, int, Poly]]:
    """Neighbouring indices that are the digits of one number: where they begin and end, and that.

    Of `x[n, p // W, p % W]` these are 1, 3 and p: the place of the cell in dims that are one.
    """
    begin = 0
    while begin < len(values):
        found = _place(values, extents, begin)
        if found is not None:
            yield begin, *found
        begin = begin + 1 if found is None else found[0]


def _place(values: Sequence[Poly], extents: Sequence[Poly], begin: int) -> tuple[int, Poly] | None:
    """Where such indices end that begin there, and the number."""
    (atom, *others) = values[begin].atoms() or (None,)
    if atom is None or others or atom.kind is not Kind.FLOOR_DIV or values[begin] != of_atom(atom):
        return None
    number, divisor = atom.args
    for end in range(begin + 2, len(values) + 1):
        is_divisor = product(extents[begin + 1 : end]) == divisor
        if is_divisor and tuple(values[begin:end]) == digits_of(number, extents[begin:end]):
            return end, number
    return None


def digits_of(number: Poly, extents: Sequence[Poly]) -> tuple[Poly, ...]:
    """The indices of the cell at a place in dims of these extents.

    Where the place is outside, the first one is.
    """
    counts = [product(extents[at:]) for at in range(1, len(extents) + 1)]
    first, *others = (number // count for count in counts)
    return (first, *(each % extent for each, extent in zip(others, extents[1:], strict=True)))


def product(extents: Iterable[Poly]) -> Poly:
    """The product of extents; 1 for none."""
    result = ONE
    for extent in extents:
        result = result * extent
    return result


def position(names: Iterable[str], extents: Mapping[str, Poly]) -> Poly:
    """The row-major position of iterators within their box: the inverse of `digits`."""
    result = ZERO
    for name in names:
        result = result * extents[name] + symbol(name)
    return result


def index_conditions(index: Index, extent: Poly) -> tuple[Condition, ...]:
    """What an index must satisfy under its boundary mode, which moves it into a cell."""
    value = index.value
    match index.boundary:
        case Boundary.CLAMP | Boundary.WRAP:
            return (Condition(extent - 1),)
        case Boundary.REFLECT:
            return Condition(value + extent - 1), Condition(2 * extent - 2 - value)
        case Boundary.SYMMETRIC:
            return Condition(value + extent), Condition(2 * extent - 1 - value)
        case _:
            return Condition(value), Condition(extent - 1 - value)


def is_plainly_inside(value: Poly, extent: Poly, extents: Mapping[str, Poly]) -> bool:
    """Whether an index runs over exactly the dim, so that no proof is needed."""
    if value.is_constant and extent.is_constant:
        return 0 <= value.constant < extent.constant
    found = digits(value, extents)
    return found is not None and product(extents[name] for name in found) == extent


def covers_plainly(target: Access, dims: Iterable[Poly], extents: Mapping[str, Poly]) -> bool:
    """Whether a target runs over every cell of a tensor with these dims, each iterator once."""
    seen: set[str] = set()
    for index, dim in zip(target.indices, dims, strict=True):
        single = index.value.is_constant and dim == 1
        moving = index.value.symbols & extents.keys()
        plain = single or (moving and is_plainly_inside(index.value, dim, extents))
        if index.boundary is not Boundary.NONE or not plain or not moving.isdisjoint(seen):
            return False
        seen |= moving
    return True


def fixed_iterators(target: Access, extents: Mapping[str, Poly]) -> tuple[str, ...]:
    """The iterators that the written cell determines plainly, in order of the indices."""
    found: dict[str, None] = {}
    for index in target.indices:
        if index.boundary in (Boundary.NONE, Boundary.DROP):
            found.update(dict.fromkeys(digits(index.value, extents) or ()))
    return tuple(found)


def fold(index: Index, extent: Poly) -> Poly:
    """The index of the cell that an index stands for, inside the dimension where the mode says so.

    With m the distance from the lower mirror, both mirrors at once are min(m, mirror of m). Indices
    that a mode leaves out stay outside. Those that data decide may lie beyond what a mirror shows,
    which is for the call to find out: what the lower one throws past the upper one stays there.
    """
    value, is_checked = index.value, index.value.is_data_dependent
    match index.boundary:
        case Boundary.NONE | Boundary.ZERO | Boundary.FILL | Boundary.DROP:
            return value
        case Boundary.CLAMP:
            return minimum(maximum(value, 0), extent - 1)
        case Boundary.REFLECT if is_checked:
            return maximum(minimum(value, 2 * extent - 2 - value), -value)
        case Boundary.REFLECT:
            distance = maximum(value, -value)
            return minimum(distance, 2 * extent - 2 - distance)
        case Boundary.SYMMETRIC if is_checked:
            return maximum(minimum(value, 2 * extent - 1 - value), -value - 1)
        case Boundary.SYMMETRIC:
            distance = maximum(value, -value - 1)
            return minimum(distance, 2 * extent - 1 - distance)
        case Boundary.WRAP:
            return value % extent
        case unexpected:
            assert_never(unexpected)
