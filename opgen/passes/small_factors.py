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

from collections.abc import Set
from dataclasses import replace

from opgen.algebra.poly import symbol
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.notation import Access, Op, Read, Reducer, Statement
from opgen.passes.cells import cells_of, has_cells, is_same_for, moving, names_of
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
    names = names_of(statement)
    pairs = [
        (len(moving(large, names)), at, other)
        for at, large in places.items()
        for other, small in places.items()
        if at != other and made.is_generic(large)
        # Else the product of the two is as large as what is summed.
        if moving(large, names) < names and has_cells(large, names, made)
        if is_same_for(small, large, names)
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


def _multiplied(
    large: Access, small: Access, names: Set[str], made: NewTemporaries
) -> Statement | None:
    """What multiplies two factors, for each cell of the large one; None where an element of the
    small one might not be there."""
    cell, iterators = cells_of(large, names, made)
    body = product_of([Factor(Read(cell)), Factor(Read(small))])
    draft = Statement(cell, Reducer.ASSIGN, iterators, (), body, is_exclusive=True)
    if not made.is_always_there(body, draft):
        return None
    target = made.cells(large.tensor, "scaled", [(e.extent, symbol(e.name)) for e in iterators])
    return replace(draft, target=target)
