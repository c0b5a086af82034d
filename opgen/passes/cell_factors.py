"""Factors that are functions of one cell are computed for each cell, not for each term.

Before:

    y[b,o,h,v] = sum(c,i,j) relu(x[b,c, h + i - 1 ?0, v + j - 1 ?0]) * w[o,c,i,j]

After:

    x_cells[b,c,i2,i3] = relu(x[b,c,i2,i3])
    y[b,o,h,v] = sum(c,i,j) x_cells[b,c, h + i - 1 ?0, v + j - 1 ?0] * w[o,c,i,j]

What is left is a product of two tensors, a convolution here, and a function is computed once where
it was once for every result that reads it.

Where `?0` reads nothing a function has its value at 0, and a term with an absent factor is absent:
only functions that are 0 there go this way. Cells that no term reads have the gradient 0, which
meets the slope of the function all the same: where there may be some, that must be a number. If it
need not be, nothing is computed where there are no terms at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from opgen.algebra.poly import Poly, symbol
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.indices import digits, extents_of
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Read,
    Reducer,
    Statement,
    Value,
    map_expression,
    reads,
)
from opgen.passes.cells import (
    cells_of,
    has_cells,
    is_plain_sum,
    is_same_for,
    names_of,
    plain_dims,
    some_of,
)
from opgen.passes.new_temporaries import NewTemporaries

_TAME: Final = frozenset(
    ("add", "sub", "neg", "max", "min", "abs", "relu", "sigmoid", "tanh", "silu", "sin", "cos")
)
"""Functions whose slopes are numbers, whatever number they are of; see `is_tame` for others."""

_ZERO_AT_ZERO: Final = frozenset({"neg", "abs", "relu", "tanh", "silu", "sin", "sqrt"})


def with_cells_before(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that compute factors of it that are functions of a cell."""
    negative, factors = factors_of(statement.body)
    tables = {table.name for table in made.op.tables}
    read = [each for each in factors if not tables.issuperset(a.tensor for a in reads(each.value))]
    if not is_plain_sum(statement, made) or len(read) < 2:
        return (statement,)
    before: list[Statement] = []
    left: list[Factor] = []
    for factor in factors:
        found = None if factor.divides else _computed(factor.value, statement, made)
        if found is None:
            left.append(factor)
            continue
        first, access = found
        before.append(first)
        left.append(Factor(Read(access)))
    if not before:
        return (statement,)
    return (*before, replace(statement, body=product_of(left, negative=negative)))


def _computed(
    value: Expr, statement: Statement, made: NewTemporaries
) -> tuple[Statement, Access] | None:
    """What computes a factor for each cell of a tensor, and the access that reads it; None for what
    is read as it is, or is no function of one cell."""
    if isinstance(value, Read):
        return None
    names = names_of(statement)
    tables = {table.name for table in made.op.tables}
    for access in reads(value):
        if access.tensor in tables:
            continue
        others = [each for each in reads(value) if not _is_same(each, access)]
        symbols = frozenset[str]().union(*(v.symbols for v in _numbers(value)))
        if (
            has_cells(access, statement, made)
            and all(is_same_for(each, access, names) for each in others)
            and symbols & names <= {*plain_dims(access, names).values()}
            and _is_zero_outside(value, access)
            and (_is_covered(access, statement) or (not others and is_tame(value)))
        ):
            return _of_cells(value, access, statement, made)
    return None


def _of_cells(
    value: Expr, access: Access, statement: Statement, made: NewTemporaries
) -> tuple[Statement, Access] | None:
    cell, iterators = cells_of(access, names_of(statement), made)

    def change(node: Expr) -> Expr | None:
        is_cell = isinstance(node, Read) and _is_same(node.access, access)
        return Read(cell) if is_cell else None

    body = map_expression(value, change)
    known = {each.name for each in iterators}
    others = [each for each in statement.iterators if each.name not in known]
    guards = () if is_tame(value) else some_of(others)
    draft = Statement(cell, Reducer.ASSIGN, iterators, guards, body, is_exclusive=True)
    if not made.is_always_there(body, draft):
        return None
    near = statement.target.tensor
    target = made.cells(near, "cells", [(each.extent, symbol(each.name)) for each in iterators])
    return replace(draft, target=target), replace(access, tensor=target.tensor)


def _is_same(one: Access, other: Access) -> bool:
    return one.tensor == other.tensor and one.indices == other.indices


def _numbers(value: Expr) -> list[Poly]:
    """The integers in a value that are no indices."""
    match value:
        case Value(value=number):
            return [number]
        case Apply(arguments=arguments):
            return [number for each in arguments for number in _numbers(each)]
        case _:
            return []


def _is_covered(access: Access, statement: Statement) -> bool:
    """Whether terms read all cells, where they are any: no index is a window, and nothing else is
    absent."""
    extents = extents_of(statement.iterators)
    is_window = any(digits(index.value, extents) is None for index in access.indices)
    others = [each for each in reads(statement.body) if not _is_same(each, access)]
    modes = [index.boundary for each in (statement.target, *others) for index in each.indices]
    modes += [index.boundary for index in access.indices]
    return not is_window and all(mode is Boundary.NONE for mode in modes)


def is_tame(value: Expr) -> bool:
    """Whether a function has slopes that are numbers, whatever number it is of."""
    match value:
        case Apply(primitive="pow", arguments=(base, Constant(value=1 | 2))):
            return is_tame(base)
        case Apply(primitive="mul", arguments=arguments):
            read = [each for each in arguments if any(True for _ in reads(each))]
            return len(read) < 2 and all(map(is_tame, arguments))
        case Apply(primitive=primitive, arguments=arguments):
            return primitive in _TAME and all(map(is_tame, arguments))
        case _:
            return True


def _is_zero_outside(value: Expr, access: Access) -> bool:
    """Whether a function of a cell is 0 where nothing is read, if that may be."""
    if all(index.boundary is not Boundary.ZERO for index in access.indices):
        return True
    match value:
        case Read(access=found):
            return _is_same(found, access)
        case Constant(value=number):
            return number == 0
        case Apply(primitive="add" | "sub" | "max" | "min", arguments=arguments):
            return all(_is_zero_outside(each, access) for each in arguments)
        case Apply(primitive=primitive, arguments=(argument,)) if primitive in _ZERO_AT_ZERO:
            return _is_zero_outside(argument, access)
        case Apply(primitive="pow", arguments=(base, Constant(value=exponent))):
            return exponent > 0 and _is_zero_outside(base, access)
        case _:
            return False
