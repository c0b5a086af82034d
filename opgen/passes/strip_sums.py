"""Sums of rows that lie one behind the other as sums of those of strips of them.

Cells that all rows add to, `b[d] = sum(n) x[n,d]`, are a point for each few of them, which takes a
narrow column of all rows: few points, and no thread reads the rows that it has in its caches. As
statements

    b_strips[s,d] = sum(i in 32) x[32*s + i,d]    where that is inside
    b[d] = sum(s) b_strips[s,d]

there are as many points as strips, each of which goes through its rows as they lie in memory. On
two threads such sums take 0.5 to 0.8 of the time, and the gradients of a bias or of a layer norm's
weights, with all else that they are, 0.75 to 0.9; one thread alone takes 0.65 to 1.2 of the time.
Strips of sequences are of four neighbours, as they may be short: of two, 3000 sequences of 3 rows
took 1.4 times as long as without. Those of images are a piece of a few lines:

    b_strips[n,s,u,c] = sum(i in 8, j in 64) x[n,8*s + i,64*u + j,c]    where that is inside
    b[c] = sum(n,s,u) b_strips[n,s,u,c]

Strips are of constant length: with 16 of them, however many rows, sums took up to 1.3 times as
long. Longer ones are as good for large tensors, but of 64 rows the gradient of a layer norm has too
few points.

This is for the CPU: a GPU has threads for the terms of a cell. Images in channels-last format have
their channels last once dims are in the order of memory; kernels for these have memory of their own
for what they strip, see `emit.c_entry`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import poly, symbol
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Boundary,
    DType,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    reads,
    substitute_expression,
)
from opgen.ir.walk import is_checked
from opgen.passes.new_temporaries import NewTemporaries

_ROWS: Final = (32,)
_SEQUENCES: Final = (4, 16)
_IMAGES: Final = (8, 64)
"""How long strips of rows are, of neighbouring sequences, and of an image, or of a volume's plane:
of its lines, and along these. The lines are written out, so that a strip of an image is one sum,
which `passes.sums_of_parts` makes no parts of: 512 terms are as many as a part has there."""

_ROUNDED: Final = (DType.F16, DType.BF16)
"""Types that would round the sum of each strip."""


def with_strip_sums(op: Op, tensors: Collection[str] | None = None) -> Op:
    """The op with temporaries for the sums of strips; only of these tensors, if any are given."""
    temporaries = NewTemporaries.of(op)
    statements: list[Statement] = []
    for statement in op.statements:
        lines = _lines(op, statement, tensors)
        statements += _in_strips(temporaries, statement, lines) if lines else (statement,)
    return temporaries.op_with(statements)


def _lines(op: Op, statement: Statement, tensors: Collection[str] | None) -> list[Iterator]:
    """The iterators over rows of which all add to the same cells, slowest first; empty for others.

    A row has the cells as its last dim. Iterators of known extent are windows, and inside of rows.
    """
    target = op.tensor(statement.target.tensor)
    assert isinstance(target, Tensor)
    if statement.reducer is not Reducer.ADD or target.dtype in _ROUNDED or is_checked(statement):
        return []
    match statement.target.indices:
        case [cells] if cells.boundary is Boundary.NONE:
            cell = cells.value.symbol
        case _:
            return []
    carried = {each.name for each in op.temporaries if each.carried}
    if not carried.isdisjoint(access.tensor for access in reads(statement.body)):
        return []  # totals of a row come one after the other, without these
    long = {each.name: each for each in statement.iterators if not each.extent.is_constant}
    if long.pop(cell or "", None) is None:
        return []
    for access in reads(statement.body):
        if len(access.indices) < 2 or (tensors is not None and access.tensor not in tensors):
            continue
        *outer, last = (index.value.symbol or "" for index in access.indices)
        if last == cell and outer[0] in long:
            return [long[name] for name in dict.fromkeys(outer) if name in long]
    return []


def _in_strips(
    temporaries: NewTemporaries, statement: Statement, lines: list[Iterator]
) -> tuple[Statement, Statement]:
    """A sum over lines as the sum of those of their strips."""
    (index,) = statement.target.indices
    (cells,) = (each for each in statement.iterators if each.name == index.value.symbol)
    strips, parts, values, inside = [], {}, {}, []
    for line, length in zip(lines, _lengths(len(lines)), strict=True):
        if length == 1:
            strips.append(line)
            continue
        name = fresh_name(f"{line.name}_strip", temporaries.taken)
        strips.append(Iterator(name, (line.extent + length - 1) // length))
        name = fresh_name(f"{line.name}_part", temporaries.taken)
        parts[line.name] = Iterator(name, poly(length))
        values[line.name] = symbol(strips[-1].name) * length + symbol(name)
        inside.append(Condition(line.extent - 1 - values[line.name]))
    kept = (*strips, cells)
    places = ((each.extent, symbol(each.name)) for each in kept)
    sums = temporaries.cells(statement.target.tensor, "strips", places)
    guards = (each.substitute(values) for each in statement.guards)
    inner = (parts.get(each.name, each) for each in statement.iterators if each not in kept)
    of_strips = replace(
        statement,
        target=sums,
        iterators=(*kept, *inner),
        guards=(*guards, *inside),
        body=substitute_expression(statement.body, values),
        is_exclusive=True,
    )
    # What is proved of the cells that statements write holds for these as well.
    joined = {each.name for each in statement.iterators} - {cells.name}
    of_cells = tuple(
        each
        for each in statement.guards
        if each.value.symbols.isdisjoint(joined) and not each.value.is_data_dependent
    )
    last = replace(statement, iterators=(cells, *strips), guards=of_cells, body=Read(sums))
    return of_strips, last


def _lengths(lines: int) -> tuple[int, ...]:
    """How long a strip is along each of so many iterators."""
    match lines:
        case 1:
            return _ROWS
        case 2:
            return _SEQUENCES
        case _:
            return (*(1 for _ in range(lines - len(_IMAGES))), *_IMAGES)
