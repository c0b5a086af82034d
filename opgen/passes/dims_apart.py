"""Sums up to a cell in several dims, one dim after the other.

Before: `y[h,w] = sum(i in H, j in W if i <= h and j <= w) x[i,j]` has all terms above and to the
left of a cell. After:

    rows[i,w] = sum(j in W if j <= w) x[i,j]
    y[h,w]    = sum(i in H if i <= h) rows[i,w]

each of which takes as long as there are cells, see `passes.running_totals`. This is for the CPU.

Before: an op. After: an op with the same values but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import symbol
from opgen.ir.indices import covers_plainly, extents_of
from opgen.ir.notation import BATCH_ITERATOR, Op, Read, Reducer, Statement, reads
from opgen.ir.walk import expression_polynomials, loads, polynomials, symbols_as_read, symbols_of
from opgen.passes.new_temporaries import NewTemporaries
from opgen.passes.up_to import each_up_to

_JOINED: Final = frozenset({Reducer.ADD, Reducer.MULTIPLY, Reducer.MAX, Reducer.MIN})


def with_dims_apart(op: Op) -> Op:
    """The op with a temporary for all but one of the dims of such a sum."""
    made = NewTemporaries.of(op)
    return made.op_with(part for each in op.statements for part in _parts(each, made))


def _parts(statement: Statement, made: NewTemporaries) -> Iterable[Statement]:
    """The statement, or those that go along its dims one by one, the last one first."""
    bounds = each_up_to(statement)
    body = {*symbols_of(expression_polynomials(statement.body))}
    used = (statement.target, *reads(statement.body))
    if (
        len(bounds) < 2
        or statement.reducer not in _JOINED
        or not all(map(made.is_generic, used))
        or any(any(loads(value)) for value in polynomials(statement))
        or not covers_plainly(
            statement.target,
            made.extents(statement.target.tensor),
            extents_of(statement.iterators),
        )
        or not body.isdisjoint(each.cell for each in bounds)
    ):
        yield statement
        return
    *others, last = sorted(bounds, key=lambda each: _place(statement, each.cell))
    rest = {each.cell for each in others}
    moving = {each.moving.name for each in others}
    fixed = {*symbols_of(index.value for index in statement.target.indices)}
    kept = [
        each for each in statement.iterators if each.name in moving or (each.name in fixed - rest)
    ]
    order = [BATCH_ITERATOR, *symbols_as_read(statement.body)]
    order = [last.cell if name == last.moving.name else name for name in order]
    kept.sort(key=lambda each: order.index(each.name) if each.name in order else len(order))
    cells = [(each.extent, symbol(each.name)) for each in kept]
    rows = made.cells(statement.target.tensor, "rows", cells)
    inner = [e for e in statement.iterators if e.name not in fixed | moving]
    yield replace(
        statement,
        target=rows,
        iterators=(*kept, *inner),
        guards=(last.guard,),
        is_exclusive=True,
    )
    outer = replace(
        statement,
        iterators=tuple(each for each in statement.iterators if each not in inner),
        guards=tuple(each.guard for each in others),
        body=Read(rows),
    )
    yield from _parts(outer, made)


def _place(statement: Statement, name: str) -> int:
    return [each.name for each in statement.iterators].index(name)
