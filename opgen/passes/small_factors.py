"""A third factor of a sum of products multiplies another one first, where it can for each cell.

Before:

    y[b,o,h,v] = sum(c,i,j) x[b,c, h + i - 1 ?0, v + j - 1 ?0] * s[b,c] * w[o,c,i,j]

After:

    x_scaled[b,c,h,w] = x[b,c,h,w] * s[b,c]
    y[b,o,h,v] = sum(c,i,j) x_scaled[b,c, h + i - 1 ?0, v + j - 1 ?0] * w[o,c,i,j]

What is left is a product of two tensors, a convolution here, and so are the gradients, of which
those of three factors are sums over all of their points that no kernel is fast at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import replace

from opgen.algebra.poly import symbol
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Boundary,
    Index,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
)
from opgen.passes.new_temporaries import NewTemporaries


def with_small_factors(op: Op) -> Op:
    """The op with temporaries for products of two of three factors.

    One with hand-written gradients stays as it is: these are of what is written.
    """
    if op.gradients:
        return op
    made = NewTemporaries.of(op)
    return made.op_with([part for each in op.statements for part in _folded(each, made)])


def _folded(statement: Statement, made: NewTemporaries) -> list[Statement]:
    """The statement, behind those that multiply factors of it first."""
    before: list[Statement] = []
    while (found := _step(statement, made)) is not None:
        first, statement = found
        before.append(first)
    return [*before, statement]


def _step(statement: Statement, made: NewTemporaries) -> tuple[Statement, Statement] | None:
    """The product of two factors, and the statement with that in their place."""
    negative, factors = factors_of(statement.body)
    places = {
        at: each.value.access
        for at, each in enumerate(factors)
        if isinstance(each.value, Read) and not each.divides
    }
    if statement.reducer is not Reducer.ADD or len(places) < 3:
        return None
    names = frozenset(each.name for each in statement.iterators)
    pairs = [
        (len(_moving(large, names)), at, other)
        for at, large in places.items()
        for other, small in places.items()
        if at != other and made.is_generic(large) and _fits(small, large, names)
    ]
    for _, at, other in sorted(pairs):
        first = _multiplied(places[at], places[other], names, made)
        if first is None:
            continue
        read = Factor(Read(replace(places[at], tensor=first.target.tensor)))
        left = [read if place == at else each for place, each in enumerate(factors)]
        del left[other]
        return first, replace(statement, body=product_of(left, negative=negative))
    return None


def _moving(access: Access, names: Set[str]) -> Set[str]:
    """The iterators that an access differs with."""
    return frozenset[str]().union(*(index.value.symbols for index in access.indices)) & names


def _plain(access: Access, names: Set[str]) -> dict[int, str]:
    """The dims that an iterator numbers by itself, and no other dim."""
    found = {
        axis: index.value.symbol
        for axis, index in enumerate(access.indices)
        if index.boundary is Boundary.NONE and index.value.symbol in names
    }
    once = Counter(found.values())
    return {axis: name for axis, name in found.items() if name is not None and once[name] == 1}


def _fits(small: Access, large: Access, names: Set[str]) -> bool:
    """Whether each cell of the large one has an element of the small one, and is part of several
    terms: else their product is as large as what is summed."""
    indices = (*small.indices, *large.indices)
    is_fixed = not any(index.value.is_data_dependent for index in indices)
    is_plain = all(index.boundary is Boundary.NONE for index in small.indices)
    has_fill = any(index.boundary is Boundary.FILL for index in large.indices)  # which is no cell
    if not is_fixed or not is_plain or has_fill:
        return False
    return (
        _moving(small, names) <= {*_plain(large, names).values()} and _moving(large, names) < names
    )


def _multiplied(
    large: Access, small: Access, names: Set[str], made: NewTemporaries
) -> Statement | None:
    """What multiplies two factors, for each cell of the large one; None where an element of the
    small one might not be there."""
    taken, plain = {*made.taken, *names}, _plain(large, names)
    extents = made.extents(large.tensor)
    iterators = tuple(
        Iterator(plain[axis] if axis in plain else fresh_name(f"i{axis}", taken), extent)
        for axis, extent in enumerate(extents)
    )
    cell = Access(large.tensor, tuple(Index(symbol(each.name)) for each in iterators))
    body = product_of([Factor(Read(cell)), Factor(Read(small))])
    draft = Statement(cell, Reducer.ASSIGN, iterators, (), body, is_exclusive=True)
    if not made.is_always_there(body, draft):
        return None
    target = made.cells(large.tensor, "scaled", [(e.extent, symbol(e.name)) for e in iterators])
    return replace(draft, target=target)
