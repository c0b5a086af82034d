"""Factors that all terms of a sum of products share multiply the sum, once.

Before:

    y[i,j] = sum(d) q[i,d] * k[j,d] * rsqrt(D)

After:

    y_sums[i,j] = sum(d) q[i,d] * k[j,d]
    y[i,j] = y_sums[i,j] * rsqrt(max(D, 1))

What is left is a product of two tensors, which kernels and libraries are fastest at, and a division
is one for a cell and not one for a term. So it is for a sum of one tensor that sizes divide, which
is then the form of a mean.

A sum of nothing is 0, also one without terms because a size is 0. Where a factor divides by sizes,
or is a function of them, these count as 1 then: there is no term, or no cell, that is divided.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Set
from dataclasses import dataclass, replace
from typing import assert_never

from opgen.algebra.atom import Kind
from opgen.algebra.poly import Poly, maximum, symbol
from opgen.ir.factors import Factor, factors_of, product_of, times
from opgen.ir.indices import digits, extents_of
from opgen.ir.notation import (
    Apply,
    Boundary,
    Constant,
    Expr,
    Iterator,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Value,
    reads,
)
from opgen.passes.new_temporaries import NewTemporaries


def with_common_factors(op: Op) -> Op:
    """The op with temporaries for sums of products without the factors that their terms share.

    One with hand-written gradients stays as it is: these are of what is written.
    """
    if op.gradients:
        return op
    made = NewTemporaries.of(op)
    return made.op_with([part for each in op.statements for part in _split(each, made)])


def _split(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """A statement, or one that adds up products and one that multiplies the sums."""
    target = statement.target
    if statement.reducer is not Reducer.ADD or not made.is_generic(target):
        return (statement,)
    if _is_scattered(statement):
        return (statement,)  # with more sums than cells
    fixed = frozenset[str]().union(*(index.value.symbols for index in target.indices))
    own = tuple(each for each in statement.iterators if each.name in fixed)
    inner = tuple(each for each in statement.iterators if each.name not in fixed)
    found = _shared(statement, inner, made) if inner else None
    if found is None:
        return (statement,)
    names = {each.name for each in inner}
    guards = tuple(each for each in statement.guards if each.value.symbols.isdisjoint(names))
    total = made.cells(target.tensor, "sums", [(each.extent, symbol(each.name)) for each in own])
    writers = [each for each in made.op.statements if each.target.tensor == target.tensor]
    is_whole = statement.is_exclusive and len(writers) == 1
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
            guards=guards,
            body=times(Read(total), found.shared, negative=found.negative),
        ),
    )


def _is_scattered(statement: Statement) -> bool:
    """Whether iterators meet in an index of the target, and are no digits of it."""
    extents = extents_of(statement.iterators)
    return any(
        len(index.value.symbols & extents.keys()) > 1 and digits(index.value, extents) is None
        for index in statement.target.indices
    )


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
    fixed = {at: _fixed(each, statement, names, made) for at, each in enumerate(factors)}
    found = {at: each for at, each in fixed.items() if each is not None}
    read = [[access.tensor for access in reads(each.value)] for each in factors]
    moving = [at for at in fixed if at not in found and not tables.issuperset(read[at])]
    if len(moving) < 2:
        found = {at: each for at, each in found.items() if not read[at]}
        if not moving or not any(each.divides for each in found.values()):
            return None
    if not found and not negative:
        return None
    others = [each for at, each in enumerate(factors) if at not in found]
    return _Shared(others, [*found.values()], negative)


def _fixed(
    factor: Factor, statement: Statement, inner: Set[str], made: NewTemporaries
) -> Factor | None:
    """The factor as it may stand at the sum; None where it differs from term to term, or where it
    may have no value though there is no term."""
    if isinstance(factor.value, Value) and not factor.divides:
        return factor if _stays(factor.value.value, inner) else None
    extents = [each.extent.symbol for each in statement.iterators]
    found = _at_least_one(factor.value, inner, {each for each in extents if each is not None})
    is_read = any(True for _ in reads(factor.value))
    if found is None or (is_read and not made.is_always_there(factor.value, statement)):
        return None
    return replace(factor, value=found)


def _stays(value: Poly, inner: Set[str]) -> bool:
    """Whether an integer is the same for all terms, and not read from a tensor."""
    return not value.is_data_dependent and value.symbols.isdisjoint(inner)


def _at_least_one(expr: Expr, inner: Set[str], sizes: Set[str]) -> Expr | None:
    """A value in which a product of sizes counts as 1 where one of them is 0; None if it has other
    integers, or differs from term to term."""
    match expr:
        case Constant(value=number):
            return expr if number and math.isfinite(number) else None
        case Parameter():
            return expr
        case Value(value=value):
            terms = [*value.terms.items()]
            is_product = len(terms) == 1 and terms[0][1] > 0 and value.symbols <= sizes
            is_plain = all(atom.kind is Kind.SYMBOL for atom in value.all_atoms())
            return Value(maximum(value, 1)) if is_product and is_plain else None
        case Apply(arguments=arguments):
            found = [_at_least_one(each, inner, sizes) for each in arguments]
            if any(each is None for each in found):
                return None
            return replace(expr, arguments=tuple(each for each in found if each is not None))
        case Read(access=access):
            is_fixed = all(
                index.boundary is Boundary.NONE and _stays(index.value, inner)
                for index in access.indices
            )
            return expr if is_fixed else None
        case unexpected:
            assert_never(unexpected)
