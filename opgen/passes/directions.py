"""Sums up to a cell, and sums from it on, in kernels of their own.

Before:

    t1[n,i] = sum(j in I if j <= i) x[n,j]
    t2[n,i] = sum(j in I if j >= i) x[n,j]
    y[n,i] = t1[n,i] + t2[n,i]

One kernel would compute both of a cell, and then the cell. But the first is quick for cells from
the first to the last one, and the second for the opposite order, see `passes.running_totals`.
After: where an op has both, what goes forwards is in memory, and what goes backwards reads it. A
statement that adds to what others write as well gets a temporary for that.

This is for the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from dataclasses import replace
from typing import Final

from opgen.ir.indices import covers_plainly, extents_of
from opgen.ir.notation import Op, Read, Reducer, Statement, Tensor
from opgen.ir.walk import expression_polynomials, loads, polynomials
from opgen.passes.new_temporaries import NewTemporaries
from opgen.passes.up_to import up_to

_JOINED: Final = frozenset({Reducer.ADD, Reducer.MULTIPLY, Reducer.MAX, Reducer.MIN})


def with_directions_apart(op: Op) -> Op:
    """The op with sums that go forwards in memory, if others go backwards."""
    forwards = {each: _is_forwards(each) for each in op.statements}
    if not {True, False} <= {*forwards.values()}:
        return op
    made = NewTemporaries.of(op)
    targets = [each.target.tensor for each in op.statements]
    outputs = {each.name for each in op.outputs}
    stored: set[str] = set()
    statements: list[Statement] = []
    for each in op.statements:
        name = each.target.tensor
        if not forwards[each]:
            statements.append(each)
        elif targets.count(name) > 1:
            statements += _in_two(each, made)
        else:
            stored |= {name} - outputs
            statements.append(each)
    temporaries = tuple(
        replace(each, stored=True) if each.name in stored else each for each in op.temporaries
    )
    return replace(op, temporaries=(*temporaries, *made.made), statements=tuple(statements))


def _in_two(statement: Statement, made: NewTemporaries) -> Iterable[Statement]:
    """The statement by way of a temporary."""
    target = statement.target
    extents = extents_of(statement.iterators)
    tensor = made.tensor(target.tensor)
    if (
        not isinstance(tensor, Tensor)
        or not tensor.dtype.is_generic
        or statement.reducer is not Reducer.ADD
        or not covers_plainly(target, made.extents(target.tensor), extents)
    ):
        yield statement
        return
    places = zip(
        made.extents(target.tensor), (index.value for index in target.indices), strict=True
    )
    total = made.cells(target.tensor, "forwards", places, stored=True)
    fixed = frozenset[str]().union(*(index.value.symbols for index in target.indices))
    cells = tuple(each for each in statement.iterators if each.name in fixed)
    yield replace(statement, target=total, is_exclusive=True)
    yield replace(statement, iterators=cells, guards=(), body=Read(total))


def _is_forwards(statement: Statement) -> bool | None:
    """Whether cells have the terms up to their own; None where they have others."""
    found = up_to(statement)
    if found is None or statement.reducer not in _JOINED:
        return None
    if any(any(loads(value)) for value in polynomials(statement)):
        return None
    if any(found.cell in value.symbols for value in expression_polynomials(statement.body)):
        return None
    return found.is_prefix
