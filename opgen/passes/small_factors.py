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
from collections.abc import Sequence, Set
from dataclasses import replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import symbol
from opgen.algebra.prove import implies
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.indices import digits, extents_of
from opgen.ir.notation import (
    Access,
    Boundary,
    Constant,
    Expr,
    Parameter,
    Read,
    Reducer,
    Statement,
    Value,
    reads,
)
from opgen.passes.cells import (
    are_gone_along,
    cells_of,
    has_cells,
    in_steps,
    is_plain_sum,
    is_same_for,
    moving,
    names_of,
    some_of,
)
from opgen.passes.new_temporaries import NewTemporaries


def with_products_before(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that multiply factors of it first."""
    return in_steps(statement, lambda each: _step(each, made))


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
            _has_same_cells(at, other, factors, statement)
            # Else the product of the two is as large as what is summed.
            or (moving(large, names) < names and _is_same_for(factors[other].value, large, names))
        )
    ]
    for _, at, other in sorted(pairs):
        first = _multiplied(places[at], factors[other].value, statement, made)
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


def _has_same_cells(at: int, other: int, factors: Sequence[Factor], statement: Statement) -> bool:
    """Whether two factors read images through the same windows, nearly all cells of them.

    Nothing else may be outside, since no term would read them there.
    """
    one, two = factors[at].value, factors[other].value
    if not isinstance(one, Read) or not isinstance(two, Read):
        return False
    extents, indices = extents_of(statement.iterators), one.access.indices
    if indices != two.access.indices or not are_gone_along(one.access, statement):
        return False
    left = [a for p, f in enumerate(factors) if p not in (at, other) for a in reads(f.value)]
    beside = (index for access in (statement.target, *left) for index in access.indices)
    is_window = any(digits(index.value, extents) is None for index in indices)
    return is_window and all(index.boundary is Boundary.NONE for index in beside)


def _multiplied(
    large: Access, small: Expr, statement: Statement, made: NewTemporaries
) -> Statement | None:
    """What multiplies two factors, for each cell of the large one; None where an element of the
    small one might not be there."""
    cell, iterators = cells_of(large, names_of(statement), made)
    guards: tuple[Condition, ...] = ()
    if isinstance(small, Read) and small.access.indices == large.indices:
        small = Read(replace(small.access, indices=cell.indices))
        # Where there are no terms at all, what no term reads is in no gradient.
        known, facts = {e.name for e in iterators}, with_iterators(facts_of(made.op), iterators)
        rest = some_of(each for each in statement.iterators if each.name not in known)
        guards = tuple(each for each in rest if not implies(facts, each))
    body = product_of([Factor(Read(cell)), Factor(small)])
    draft = Statement(cell, Reducer.ASSIGN, iterators, (), body, is_exclusive=True)
    if not made.is_always_there(body, draft):
        return None
    target = made.cells(large.tensor, "scaled", [(e.extent, symbol(e.name)) for e in iterators])
    # A sum is 0 where a condition does not hold.
    reducer = Reducer.ADD if guards else Reducer.ASSIGN
    return replace(draft, target=target, reducer=reducer, guards=guards)
