"""A third factor of a sum of products multiplies another one first, where it can for each cell.

Before:

    y[b,o,h,v] = sum(c,i,j) x[b,c, h + i - 1 ?0, v + j - 1 ?0] * s[b,c] * w[o,c,i,j]

After:

    x_scaled[b,c,h,w] = x[b,c,h,w] * s[b,c]
    y[b,o,h,v] = sum(c,i,j) x_scaled[b,c, h + i - 1 ?0, v + j - 1 ?0] * w[o,c,i,j]

Another image that is read through the same windows multiplies it so, too, as in the covariance of
two images. What is left is a product of two tensors, a convolution here, and so are the gradients,
of which those of three factors are sums over all of their points that no kernel is fast at. Of two
tensors and a number, which `common_factors` leaves where terms are scattered, the number goes this
way.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace

from opgen.algebra.poly import symbol
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.indices import digits, extents_of
from opgen.ir.notation import (
    Access,
    Constant,
    Expr,
    Parameter,
    Read,
    Reducer,
    Statement,
    Value,
)
from opgen.passes.cells import (
    cells_of,
    has_cells,
    is_plain_sum,
    is_same_for,
    moving,
    names_of,
)
from opgen.passes.new_temporaries import NewTemporaries


def with_products_before(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that multiply factors of it first."""
    before: list[Statement] = []
    while (found := _step(statement, made)) is not None:
        first, statement = found
        before.append(first)
    return (*before, statement)


def _step(statement: Statement, made: NewTemporaries) -> tuple[Statement, Statement] | None:
    """The product of two factors, and the statement with that in their place."""
    negative, factors = factors_of(statement.body)
    names, tables = names_of(statement), {table.name for table in made.op.tables}
    above = [at for at, each in enumerate(factors) if not each.divides]
    places = {at: value.access for at in above if isinstance(value := factors[at].value, Read)}
    tensors = [at for at, access in places.items() if access.tensor not in tables]
    if not is_plain_sum(statement, made) or len(tensors) < 2:
        return None
    small = places.keys() if len(places) > 2 else set(above) - places.keys()
    pairs = [
        (len(moving(large, names)), at, other)
        for at, large in places.items()
        if made.is_generic(large) and has_cells(large, statement, made)
        for other in small
        if other != at
        and (
            _has_same_cells(factors[other].value, large, statement)
            # Else the product of the two is as large as what is summed.
            or (moving(large, names) < names and _is_same_for(factors[other].value, large, names))
        )
    ]
    for _, at, other in sorted(pairs):
        first = _multiplied(places[at], factors[other].value, names, made)
        if first is None:
            continue
        read = Factor(Read(replace(places[at], tensor=first.target.tensor)))
        left = [read if place == at else each for place, each in enumerate(factors)]
        del left[other]
        return first, replace(statement, body=product_of(left, negative=negative))
    return None


def _is_same_for(value: Expr, access: Access, names: Set[str]) -> bool:
    """Whether a factor is the same wherever an access reads the same cell; of those that read
    nothing, whether it is the same for all terms."""
    match value:
        case Read(access=small):
            return is_same_for(small, access, names)
        case Constant(value=number):
            return math.isfinite(number)
        case Parameter():
            return True
        case Value(value=index):
            return not index.is_data_dependent and index.symbols.isdisjoint(names)
        case _:
            return False


def _has_same_cells(value: Expr, access: Access, statement: Statement) -> bool:
    """Whether a factor reads another image through the same windows."""
    if not isinstance(value, Read) or value.access.indices != access.indices:
        return False
    extents = extents_of(statement.iterators)
    return any(digits(index.value, extents) is None for index in access.indices)


def _multiplied(
    large: Access, small: Expr, names: Set[str], made: NewTemporaries
) -> Statement | None:
    """What multiplies two factors, for each cell of the large one; None where an element of the
    small one might not be there."""
    cell, iterators = cells_of(large, names, made)
    if isinstance(small, Read) and small.access.indices == large.indices:
        small = Read(replace(small.access, indices=cell.indices))
    body = product_of([Factor(Read(cell)), Factor(small)])
    draft = Statement(cell, Reducer.ASSIGN, iterators, (), body, is_exclusive=True)
    if not made.is_always_there(body, draft):
        return None
    target = made.cells(large.tensor, "scaled", [(e.extent, symbol(e.name)) for e in iterators])
    return replace(draft, target=target)
