"""Factors that all terms of a sum of products share multiply the sum, once.

Before:

    y[i,j] = sum(d) q[i,d] * k[j,d] * rsqrt(D)

After:

    y_sums[i,j] = sum(d) q[i,d] * k[j,d]
    y[i,j] = y_sums[i,j] * rsqrt(D) if D >= 1

What is left is a product of two tensors, which kernels and libraries are fastest at, and a division
is one for a cell and not one for a term. So it is for a sum of one tensor that sizes divide, which
is then the form of a mean.

A sum of nothing is 0, whatever it would be multiplied with. Where conditions choose the terms there
may be none for some cell, and all stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Set
from dataclasses import dataclass, replace

from opgen.algebra.poly import symbol
from opgen.ir.factors import Factor, factors_of, is_number, product_of, times
from opgen.ir.indices import digits, extents_of
from opgen.ir.notation import (
    Boundary,
    Constant,
    Iterator,
    Read,
    Reducer,
    Statement,
    reads,
)
from opgen.ir.walk import expression_polynomials
from opgen.passes.cells import are_sizes, is_inside, is_plain_sum, some_of
from opgen.passes.new_temporaries import NewTemporaries


def with_factors_behind(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """A statement, or one that adds up products and one that multiplies the sums."""
    target = statement.target
    if not is_plain_sum(statement, made) or not _has_sums(statement, made):
        return (statement,)
    fixed = frozenset[str]().union(*(index.value.symbols for index in target.indices))
    own = tuple(each for each in statement.iterators if each.name in fixed)
    inner = tuple(each for each in statement.iterators if each.name not in fixed)
    found = _shared(statement, inner, made) if inner else None
    if found is None:
        return (statement,)
    total = made.cells(target.tensor, "sums", [(each.extent, symbol(each.name)) for each in own])
    writers = [each for each in made.op.statements if each.target.tensor == target.tensor]
    is_whole = statement.is_exclusive and len(writers) == 1
    # Without a term there may be no such cell, and no such number; kernels are faster unasked.
    is_free = is_inside(target, statement, made) and all(map(is_number, found.shared))
    return (
        replace(
            statement,
            target=total,
            iterators=(*own, *inner),
            body=product_of(found.others),
            is_exclusive=True,
        ),
        replace(
            statement,
            reducer=Reducer.ASSIGN if is_whole else Reducer.ADD,
            iterators=own,
            guards=() if is_free else some_of(inner),
            body=times(Read(total), found.shared, negative=found.negative),
        ),
    )


def _has_sums(statement: Statement, made: NewTemporaries) -> bool:
    """Whether the cells of a statement are as many as its sums, and these make a tensor.

    Not where iterators meet in an index of the target and are no digits of it, as where a window is
    scattered, nor where one has an extent that is that of no dim and may be less than nothing.
    """
    extents = extents_of(statement.iterators)
    for index in statement.target.indices:
        found = index.value.symbols & extents.keys()
        numbered = len(found) < 2 or digits(index.value, extents) is not None
        own = (each for each in statement.iterators if each.name in found)
        if index.value.is_data_dependent or not numbered or not are_sizes(own, made):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Shared:
    """The factors that terms do not share, and those that they do; whether terms are negative."""

    others: list[Factor]
    shared: list[Factor]
    negative: bool


def _shared(
    statement: Statement, inner: Collection[Iterator], made: NewTemporaries
) -> _Shared | None:
    """What terms share; None if that is nothing, or not worth a temporary.

    It is where two of the others read tensors, or where numbers divide what one of them reads.
    Tables are no tensors here.
    """
    names = {each.name for each in inner}
    tables = {table.name for table in made.op.tables}
    negative, factors = factors_of(statement.body)
    found = {at: each for at, each in enumerate(factors) if _fixed(each, statement, names, made)}
    read = [[access.tensor for access in reads(each.value)] for each in factors]
    moving = [at for at in range(len(read)) if at not in found and not tables.issuperset(read[at])]
    if len(moving) < 2:
        found = {at: each for at, each in found.items() if not read[at]}
        if not moving or not any(each.divides for each in found.values()):
            return None
    if not found and not negative:
        return None
    others = [each for at, each in enumerate(factors) if at not in found]
    return _Shared(others, [*found.values()], negative)


def _fixed(factor: Factor, statement: Statement, inner: Set[str], made: NewTemporaries) -> bool:
    """Whether a factor is the same for all terms, and there without them."""
    accesses = [*reads(factor.value)]
    indices = [index for access in accesses for index in access.indices]
    numbers = [*expression_polynomials(factor.value)]
    if any(each.is_data_dependent or not each.symbols.isdisjoint(inner) for each in numbers):
        return False
    if any(index.boundary is not Boundary.NONE for index in indices):
        return False
    if isinstance(factor.value, Constant) and not math.isfinite(factor.value.value):
        return False
    return not accesses or made.is_always_there(factor.value, statement)
