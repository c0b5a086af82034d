"""The cells of a tensor that the terms of a sum read, and what else is the same for a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import ONE, Poly, symbol
from opgen.algebra.prove import implies
from opgen.ir.context import facts_of
from opgen.ir.indices import digits, extents_of, is_plainly_inside, product
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Index,
    Iterator,
    Read,
    Reducer,
    Statement,
    Table,
    reads,
)
from opgen.passes.new_temporaries import NewTemporaries

_FEW: Final = 8
"""Up to so many terms, or cells that a factor is multiplied for, no product is worth a copy of it:
those of rotations are not."""


def names_of(statement: Statement) -> frozenset[str]:
    """The iterators of a statement."""
    return frozenset(each.name for each in statement.iterators)


def in_steps(
    statement: Statement, step: Callable[[Statement], tuple[Statement, Statement] | None]
) -> tuple[Statement, ...]:
    """What a step computes before a statement, again and again, and what is left of it then."""
    before: list[Statement] = []
    while (found := step(statement)) is not None:
        first, statement = found
        before.append(first)
    return (*before, statement)


def in_order_of(target: Access, iterators: Iterable[Iterator]) -> tuple[Iterator, ...]:
    """The iterators with those of a target first, as its indices have them."""
    numbers = [index.value.symbols for index in target.indices]

    def place(each: Iterator) -> int:
        return next((at for at, names in enumerate(numbers) if each.name in names), len(numbers))

    return tuple(sorted(iterators, key=place))


def is_plain_sum(statement: Statement, made: NewTemporaries) -> bool:
    """Whether a statement adds up terms for every point of its box, in floating numbers.

    A sum of integers wraps around, and where a call makes them floats it does so in all tensors.
    """
    tensors = (made.tensor(access.tensor) for access in reads(statement.body))
    is_real = all(isinstance(t, Table) or not t.dtype.is_integer for t in tensors)
    is_adding = statement.reducer is Reducer.ADD and not statement.guards
    return is_adding and is_real and made.is_generic(statement.target)


def is_inside(access: Access, statement: Statement, made: NewTemporaries) -> bool:
    """Whether an access goes through whole dims, in which there is nothing to prove."""
    extents = extents_of(statement.iterators)
    pairs = zip(access.indices, made.extents(access.tensor), strict=True)
    return all(is_plainly_inside(index.value, extent, extents) for index, extent in pairs)


def are_sizes(iterators: Iterable[Iterator], made: NewTemporaries) -> bool:
    """Whether each goes through a dim, or a size, or what is one: none through less than nothing,
    which a dim of a temporary cannot be."""
    op = made.op
    known = {dim.extent for each in (*op.inputs, *op.outputs) for dim in each.dims}
    known |= {symbol(name) for name in op.sizes}
    others = {each.extent for each in iterators} - known
    return all(implies(facts_of(op), Condition(each)) for each in others)


def two_factors(statement: Statement, made: NewTemporaries) -> tuple[Access, Access] | None:
    """What a sum of products of two tensors reads, where it writes to a third one."""
    match statement.body:
        case Apply(primitive="mul", arguments=(Read(access=left), Read(access=right))):
            apart = len({left.tensor, right.tensor, statement.target.tensor}) == 3
            return (left, right) if apart and is_plain_sum(statement, made) else None
        case _:
            return None


def is_dense(image: Access, weight: Access, result: Access, names: Set[str]) -> bool:
    """Whether channels of an image are summed, for channels of the result; windows aside, which
    have no part in these `names` of iterators."""
    into, over, out = (moving(each, names) for each in (image, weight, result))
    return not (into & over <= out or over & out <= into)


def is_multiplied_again(image: Access, weight: Access, statement: Statement) -> bool:
    """Whether each cell of an image is a factor of many terms, for many cells of the result, which
    the weight has and the image has not: as in a product of matrices."""
    names, extents = names_of(statement), extents_of(statement.iterators)
    if not is_dense(image, weight, statement.target, names):
        return False
    into, over, out = (moving(each, names) for each in (image, weight, statement.target))
    summed, again = ((into & over) - out, (over & out) - into)
    return all(are_many(extents[name] for name in some) for some in (summed, again))


def are_many(extents: Iterable[Poly]) -> bool:
    """Whether iterators of these extents go through enough points for a copy of a factor."""
    counts = [*extents]
    return not all(each.is_constant for each in counts) or product(counts).constant > _FEW


def taps_of(image: Access, weight: Access, result: Access, statement: Statement) -> Set[str]:
    """The iterators that number a filter's dims and slide along an image, but not the result."""
    extents = extents_of(statement.iterators)
    values = (i.value for i in image.indices if digits(i.value, extents) is None)
    windows = (value.symbols & extents.keys() for value in values)
    sliding = frozenset[str]().union(*(each for each in windows if len(each) == 2))
    return {*plain_dims(weight, extents.keys()).values()} & sliding - moving(result, extents.keys())


def some_of(iterators: Iterable[Iterator]) -> tuple[Condition, ...]:
    """That none of them has nothing to go through."""
    found = dict.fromkeys(each.extent for each in iterators)
    conditions = [Condition(extent - 1) for extent in found]
    return tuple(each for each in conditions if not each.value.is_constant or not each.holds({}))


def moving(access: Access, names: Set[str]) -> Set[str]:
    """The iterators that an access differs with."""
    return frozenset[str]().union(*(index.value.symbols for index in access.indices)) & names


def plain_dims(access: Access, names: Set[str]) -> dict[int, str]:
    """The dims that an iterator numbers by itself, and no other dim."""
    found = {
        axis: index.value.symbol
        for axis, index in enumerate(access.indices)
        if index.boundary is Boundary.NONE and index.value.symbol in names
    }
    once = Counter(found.values())
    return {axis: name for axis, name in found.items() if name is not None and once[name] == 1}


def has_cells(access: Access, statement: Statement, made: NewTemporaries) -> bool:
    """Whether all cells of the tensor, or nearly all, are read, and each for many terms.

    Nothing else is, but what is outside. An index goes through its dim, as an iterator, digits or a
    window do, which has as many places as there are cells; one that is fixed, goes by steps or is
    cut off does not.
    """
    extents, is_window = extents_of(statement.iterators), False
    for index, extent in zip(access.indices, made.extents(access.tensor), strict=True):
        if index.value.is_data_dependent or index.boundary is Boundary.FILL:
            return False
        found = index.value.symbols & extents.keys()
        numbered = digits(index.value, extents)
        if len(found) > 1 and numbered is None:
            if not reaches_through(index.value, extent, extents, made):
                return False
            is_window = True
        elif extent != product(extents[name] for name in numbered or ()):
            return False
    return is_window or moving(access, extents.keys()) < extents.keys()


def reaches_through(
    value: Poly, extent: Poly, extents: Mapping[str, Poly], made: NewTemporaries
) -> bool:
    """Whether a window goes about as far as its dim does; whether it is so for steps that are
    attributes is not known."""
    steps = steps_of(value, extents)
    if steps is None:
        return True
    reach = sum((abs(step) * (extents[name] - 1) for name, step in steps.items()), ONE)
    return implies(facts_of(made.op), Condition(reach + sum(map(abs, steps.values())) - extent))


def steps_of(value: Poly, names: Iterable[str]) -> dict[str, int] | None:
    """How far an index goes for a step of each of its iterators; None where that is no number."""
    steps = {name: value.step_in(name) for name in names if name in value.symbols}
    found = {name: step for name, step in steps.items() if step is not None}
    return found if len(found) == len(steps) else None


def are_gone_along(access: Access, statement: Statement) -> bool:
    """Whether windows leave no gaps between them, and no two dims go together: then nearly all
    cells are read where windows go as far as their dims."""
    extents, names = extents_of(statement.iterators), names_of(statement)
    counts = [len(index.value.symbols & names) for index in access.indices]
    if sum(counts) > len(moving(access, names)):
        return False
    for index in access.indices:
        if digits(index.value, extents) is not None:
            continue
        steps = steps_of(index.value, extents)
        if steps is None:
            return False
        covered = [
            e.constant for n, e in extents.items() if abs(steps.get(n, 0)) == 1 and e.is_constant
        ]
        ones = sum(abs(step) == 1 for step in steps.values())
        most = max(map(abs, steps.values()), default=1)
        if ones == 0 or (most > 1 and most > max(covered, default=1)):
            return False
    return True


def is_same_for(small: Access, large: Access, names: Set[str]) -> bool:
    """Whether what one access reads is the same wherever the other one reads the same cell."""
    return moving(small, names) <= {*plain_dims(large, names).values()} and all(
        index.boundary is Boundary.NONE and not index.value.is_data_dependent
        for index in small.indices
    )


def cells_of(
    access: Access, names: Set[str], made: NewTemporaries
) -> tuple[Access, tuple[Iterator, ...]]:
    """The access at each cell of its tensor, and the iterators that number these: those of the
    statement where they number a dim by themselves."""
    taken, plain = {*made.taken, *names}, plain_dims(access, names)
    iterators = tuple(
        Iterator(plain[axis] if axis in plain else fresh_name(f"i{axis}", taken), extent)
        for axis, extent in enumerate(made.extents(access.tensor))
    )
    return Access(access.tensor, tuple(Index(symbol(e.name)) for e in iterators)), iterators
