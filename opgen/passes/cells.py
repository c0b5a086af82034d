"""The cells of a tensor that the terms of a sum read, and what else is the same for a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from opgen.algebra.poly import symbol
from opgen.ir.names import fresh_name
from opgen.ir.notation import Access, Boundary, Index, Iterator, Statement
from opgen.passes.new_temporaries import NewTemporaries


def names_of(statement: Statement) -> frozenset[str]:
    """The iterators of a statement."""
    return frozenset(each.name for each in statement.iterators)


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


def has_cells(access: Access, names: Set[str], made: NewTemporaries) -> bool:
    """Whether all that it reads is a cell of the tensor or nothing, and one cell for many terms.

    Not where it is one row of the tensor alone, or its diagonal.
    """
    pairs = zip(access.indices, made.extents(access.tensor), strict=True)
    moved = [index for index, extent in pairs if extent != 1]
    for index in access.indices:
        if index.value.is_data_dependent or index.boundary is Boundary.FILL:
            return False
    if any(index.value.symbols.isdisjoint(names) for index in moved):
        return False
    found = moving(access, names)
    is_window = len(plain_dims(access, names)) < len(moved)
    return len(found) >= len(moved) and (is_window or found < names)


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
