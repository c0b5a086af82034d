"""Sums of deviations from a mean, which are zero.

    total[b]    = sum(d) x[b,d]
    mu[b]       = total[b] / D
    square[b]   = sum(d) (x[b,d] - mu[b])**2
    grad_mu[b] += -2 * (x[b,d] - mu[b]) * grad_square[b]  for d

The last statement adds `-2 * grad_square[b] * sum(d) (x[b,d] - mu[b])`, and the sum is zero by what
`mu` is: a variance does not depend on the mean that it is taken around. What would be added is what
rounding made of it; and without it, nothing else that flows back to the mean waits for the
gradient of the variance, so that one pass over a row is enough for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from opgen.algebra.poly import Poly, symbol
from opgen.ir.indices import covers_plainly, extents_of, product
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Op,
    Read,
    Reducer,
    Statement,
    reads,
    substitute_expression,
)
from opgen.ir.walk import access_polynomials, expression_polynomials
from opgen.passes.simplify import integer_polynomial


def adds_zero(op: Op, statement: Statement) -> bool:
    """Whether all that a statement adds to a cell are deviations from a mean, times one number.

    Statements of `op` compute the mean.
    """
    if statement.reducer is not Reducer.ADD or statement.guards:
        return False
    fixed = frozenset[str]().union(*(v.symbols for v in access_polynomials(statement.target)))
    box = {n: extent for n, extent in extents_of(statement.iterators).items() if n not in fixed}
    moving = [factor for factor in _factors(statement.body) if _moves(factor, box)]
    match moving:
        case [Apply(primitive="sub", arguments=(first, second))]:
            return any(
                isinstance(mean, Read) and _is_mean(op, mean.access, value, box)
                for value, mean in ((first, second), (second, first))
            )
        case _:
            return False


def _factors(expr: Expr) -> Iterator[Expr]:
    """What the value is a product and quotient of, but for its sign."""
    match expr:
        case Apply(primitive="neg", arguments=(inner,)):
            yield from _factors(inner)
        case Apply(primitive="mul", arguments=(left, right)):
            yield from _factors(left)
            yield from _factors(right)
        case Apply(primitive="div", arguments=(dividend, divisor)):
            yield from _factors(dividend)
            yield Apply("div", (Constant(1), divisor))
        case _:
            yield expr


def _moves(expr: Expr, box: dict[str, Poly]) -> bool:
    return any(not value.symbols.isdisjoint(box) for value in expression_polynomials(expr))


def _is_mean(op: Op, mean: Access, value: Expr, box: dict[str, Poly]) -> bool:
    """Whether a cell is the mean of a value over all points of a box."""
    if _moves(Read(mean), box) or not _is_plain(mean):
        return False
    if not all(map(_is_plain, reads(value))):
        return False
    match _body_at(op, mean, Reducer.ASSIGN):
        case Apply(primitive="div", arguments=(Read(access=total), count)), summed if not summed:
            is_count = integer_polynomial(count) == product(box.values())
            return is_count and _is_total(op, total, value, box)
        case _:
            return False


def _is_total(op: Op, total: Access, value: Expr, box: dict[str, Poly]) -> bool:
    """Whether a cell is the sum of a value over all points of a box."""
    if not _is_plain(total):
        return False
    found = _body_at(op, total, Reducer.ADD)
    if found is None:
        return False
    body, summed = found
    return any(
        [box[name] for name in names] == list(summed.values())
        and value == substitute_expression(body, dict(zip(summed, map(symbol, names), strict=True)))
        for names in permutations(box, len(summed))
        if len(names) == len(box)
    )


def _body_at(op: Op, cell: Access, reducer: Reducer) -> tuple[Expr, dict[str, Poly]] | None:
    """What the only statement that writes a tensor computes for a cell of it: the body, and the
    extents of the iterators that are not the cell's. None where it is not as simple as that."""
    writers = [each for each in op.statements if each.target.tensor == cell.tensor]
    if len(writers) != 1 or writers[0].reducer is not reducer or writers[0].guards:
        return None
    (writer,) = writers
    box = extents_of(writer.iterators)
    if not covers_plainly(writer.target, op.extents(cell.tensor), box):
        return None
    values: dict[str, Poly] = {}
    for own, wanted in zip(writer.target.indices, cell.indices, strict=True):
        if own.value.symbol in box:
            values[own.value.symbol] = wanted.value
        elif not own.value.is_constant:
            return None
    # New names: a cell's indices may be made of iterators with those of the writer.
    summed = {f"summed {name}": extent for name, extent in box.items() if name not in values}
    values |= {name.removeprefix("summed "): symbol(name) for name in summed}
    return substitute_expression(writer.body, values), summed


def _is_plain(access: Access) -> bool:
    return all(index.boundary is Boundary.NONE for index in access.indices)
