"""Expressions whose values a temporary holds are read from it.

    p[b,d]       = exp(x[b,d] - peak[b])
    ...
    grad_x[b,d]  = exp(x[b,d] - peak[b]) * grad_p[b,d]
                 = p[b,d] * grad_p[b,d]

The derivative of an exponential is itself, that of a quotient has the quotient in it. The numbers
are the same, and exponentials are most of what a gradient of a softmax computes.

A temporary that fewer than two statements read is left alone: its values may never be in memory, as
kernels of one cell each become one (`passes.fuse`).

Before: an op. After: an op with the same value in every cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from opgen.ir.indices import extents_of
from opgen.ir.notation import (
    Apply,
    Boundary,
    Expr,
    Op,
    Read,
    Reducer,
    Statement,
    map_expression,
    reads,
)
from opgen.ir.primitives import PRIMITIVES
from opgen.ir.walk import literals, nodes

_READERS: Final = 2
"""How many statements read a temporary that is in memory for certain."""


def with_known_values(op: Op) -> Op:
    """The op with reads of temporaries in place of expressions that are computed already."""
    found = {value.expression: value for value in _known_values(op)}
    if not found:
        return op
    known: dict[Expr, _KnownValue] = {}
    statements = []
    for statement in op.statements:
        statements.append(_with_reads(statement, known))
        if statement.body in found and found[statement.body].statement is statement:
            known[statement.body] = found[statement.body]
    return replace(op, statements=tuple(statements))


@dataclass(frozen=True, slots=True)
class _KnownValue:
    """What a temporary holds in every cell, as the statement that writes it says."""

    statement: Statement

    @property
    def expression(self) -> Expr:
        """The value, in terms of the statement's iterators."""
        return self.statement.body

    def holds_in(self, other: Statement) -> bool:
        """Whether the cell is written at every point of another statement."""
        own, theirs = extents_of(self.statement.iterators), extents_of(other.iterators)
        return own.items() <= theirs.items() and {*self.statement.guards} <= {*other.guards}


def _known_values(op: Op) -> Iterator[_KnownValue]:
    """Temporaries in memory that hold what is worth to be read."""
    writers = Counter(statement.target.tensor for statement in op.statements)
    readers = Counter(
        name
        for statement in op.statements
        for name in {access.tensor for access in reads(statement.body)}
    )
    temporaries = {tensor.name for tensor in op.temporaries if tensor.dtype.is_generic}
    for statement in op.statements:
        name = statement.target.tensor
        if (
            name in temporaries
            and writers[name] == 1
            and readers[name] >= _READERS
            and statement.reducer is Reducer.ASSIGN
            and all(index.boundary is Boundary.NONE for index in statement.target.indices)
            and _is_worth_it(statement.body)
        ):
            yield _KnownValue(statement)


def _is_worth_it(body: Expr) -> bool:
    """Whether a value takes more than sums and products, and is never absent."""
    functions = (node.primitive for node in nodes(body) if isinstance(node, Apply))
    indices = (index for access in reads(body) for index in access.indices)
    return any(PRIMITIVES[name].needs_float for name in functions) and not any(
        index.boundary is Boundary.ZERO for index in indices
    )


def _with_reads(statement: Statement, known: dict[Expr, _KnownValue]) -> Statement:
    def read(expr: Expr) -> Expr | None:
        value = known.get(expr)
        if value is None or literals(expr) != literals(value.expression):
            return None
        return Read(value.statement.target) if value.holds_in(statement) else None

    return replace(statement, body=map_expression(statement.body, read))
