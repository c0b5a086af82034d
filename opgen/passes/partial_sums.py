"""Sums and extremes of everything as those of parts.

A single cell that all points of a statement join, `y[] = sum(n,w) x[n,w]`, is one accumulator: no
vectors, one thread, and a float that stops growing at 2^24. As statements

    rows[n] += x[n,w]
    cells[i,j] += rows[4096*k + 1024*i + j]    where that is inside
    row[i] += cells[i,j]
    y[] += row[i]

there are several. The rows are those of the last iterator, or of the last two of many. Where there
is but one, it is what `cells` are sums of: neighbours in memory join neighbours.

This is for the CPU. Blocks of threads of a GPU share such a sum as it is, see `cuda_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import poly, symbol
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Boundary,
    Dim,
    Index,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    substitute_expression,
)
from opgen.ir.walk import is_checked
from opgen.passes.new_temporaries import all_names

_JOINED: Final = frozenset({Reducer.ADD, Reducer.MAX, Reducer.MIN})
"""How terms may be joined in parts."""

_ROWS: Final = 4
_ROW: Final = 1024
"""How many cells a single iterator's sum gets: rows for threads, and in each a stretch of lanes."""

_MANY: Final = 4
"""From how many iterators on rows are those of two."""


def with_partial_sums(op: Op) -> Op:
    """The op with temporaries for parts of what joins a single cell."""
    parts = _Parts(all_names(op))
    statements = [
        part
        for statement in op.statements
        for part in (parts.of(op, statement) if _is_single(op, statement) else (statement,))
    ]
    if not parts.temporaries:
        return op
    temporaries = (*op.temporaries, *parts.temporaries)
    return replace(op, temporaries=temporaries, statements=tuple(statements))


def _is_single(op: Op, statement: Statement) -> bool:
    """Whether all points of a statement join one cell, in any order."""
    target = statement.target
    return (
        statement.reducer in _JOINED
        and bool(statement.iterators)
        and all(each.boundary is Boundary.NONE for each in target.indices)
        and all(each.value == 0 for each in target.indices)
        and all(extent == 1 for extent in op.extents(target.tensor))
    )


@dataclass
class _Parts:
    """The temporaries that were made so far, and the names that are taken."""

    taken: set[str]
    temporaries: list[Tensor] = field(default_factory=list)

    def of(self, op: Op, statement: Statement) -> tuple[Statement, ...]:
        """The statement as several, each of which joins what the one before it has joined."""
        target = op.tensor(statement.target.tensor)
        assert isinstance(target, Tensor)
        iterators = statement.iterators
        kept = iterators[: -2 if len(iterators) >= _MANY else -1]
        if not kept:
            return (statement,) if is_checked(statement) else self.strided(statement, target)
        rows = self.temporary(target, "rows", kept)
        out = [replace(statement, target=rows)]
        if len(kept) > 1:
            fewer = self.temporary(target, "rows", kept[:1])
            out.append(Statement(fewer, statement.reducer, kept, (), Read(rows)))
            rows = fewer
        last = replace(statement, iterators=kept[:1], guards=(), body=Read(rows))
        return (*out, *self.strided(last, target))

    def strided(self, statement: Statement, target: Tensor) -> tuple[Statement, ...]:
        """The same of a statement with one iterator: neighbours join neighbours."""
        (whole,) = statement.iterators
        steps = (whole.extent + _ROWS * _ROW - 1) // (_ROWS * _ROW)
        row = Iterator(fresh_name(f"{whole.name}_row", self.taken), poly(_ROWS))
        column = Iterator(fresh_name(f"{whole.name}_column", self.taken), poly(_ROW))
        step = Iterator(fresh_name(f"{whole.name}_step", self.taken), steps)
        at = (symbol(step.name) * _ROWS + symbol(row.name)) * _ROW + symbol(column.name)
        values = {whole.name: at}
        inside = Condition(whole.extent - 1 - at)
        cells = self.temporary(target, "cells", (row, column))
        rows = self.temporary(target, "rows", (row,))
        first = replace(
            statement,
            target=cells,
            iterators=(row, column, step),
            guards=(*(guard.substitute(values) for guard in statement.guards), inside),
            body=substitute_expression(statement.body, values),
        )
        second = Statement(rows, statement.reducer, (row, column), (), Read(cells))
        third = replace(statement, iterators=(row,), guards=(), body=Read(rows))
        return first, second, third

    def temporary(self, target: Tensor, name: str, iterators: tuple[Iterator, ...]) -> Access:
        """A new one with a cell for each point of iterators, at that point."""
        dims = tuple(Dim(iterator.extent) for iterator in iterators)
        made = Tensor(fresh_name(f"{target.name}_{name}", self.taken), dims, target.dtype)
        self.temporaries.append(made)
        return Access(made.name, tuple(Index(symbol(each.name)) for each in iterators))
