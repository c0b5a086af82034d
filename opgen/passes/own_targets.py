"""Statements with targets that nothing else writes to.

Before:

    y[n] += sum(c, h, w) abs(x[n,c, h+1, w] - x[n,c,h,w])
    y[n] += sum(c, h, w) abs(x[n,c,h, w+1] - x[n,c,h,w])

After, of both:

    y_term[n] = sum(c, h, w) abs(x[n,c, h+1, w] - x[n,c,h,w])
    y_term_[n] = sum(c, h, w) abs(x[n,c,h, w+1] - x[n,c,h,w])
    y[n] += y_term[n]
    y[n] += y_term_[n]

A kernel of one sum can share it out among the threads of a GPU, where one of several has a thread
for each cell. The more memory is little where cells are few beside what they are sums of.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from opgen.algebra.poly import symbol
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Access,
    Boundary,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    reads,
)
from opgen.ir.notation import Iterator as Loop
from opgen.passes.new_temporaries import all_names


def with_own_totals(op: Op) -> Op:
    """The op where sums of tensors that have more dims than their targets have targets of their
    own."""
    targets = [each.target.tensor for each in op.statements]
    apart = [
        at
        for at, each in enumerate(op.statements)
        if targets.count(each.target.tensor) > 1 and _is_total(op, each)
    ]
    if not apart:
        return op
    found, positions = with_own_targets(op, apart)
    temporaries = (replace(each, stored=each.name in positions) for each in found.temporaries)
    return replace(found, temporaries=tuple(temporaries))


def _is_total(op: Op, statement: Statement) -> bool:
    """Whether each cell of the target is one sum, of cells that are many beside these."""
    target, indices = op.tensor(statement.target.tensor), statement.target.indices
    names = {index.value.symbol for index in indices if index.boundary is Boundary.NONE}
    return (
        isinstance(target, Tensor)
        and target.dtype.is_generic
        and statement.reducer is Reducer.ADD
        and not statement.guards
        and len(statement.iterators) > len(indices) == len(names)
        and None not in names
        and any(len(op.extents(each.tensor)) > len(indices) for each in reads(statement.body))
    )


def with_own_targets(op: Op, apart: Collection[int]) -> tuple[Op, dict[str, int]]:
    """The op where the statements `apart` have targets that nothing else writes to, and the names
    of these with the positions of their statements."""
    taken = all_names(op)
    targets = [each.target.tensor for each in op.statements]
    statements: list[Statement] = []
    more: list[Tensor] = []
    positions: dict[str, int] = {}
    for at, statement in enumerate(op.statements):
        name = statement.target.tensor
        if at not in apart or targets.count(name) == 1:
            positions |= {name: at} if at in apart else {}
            statements.append(statement)
            continue
        tensor = op.tensor(name)
        assert isinstance(tensor, Tensor)
        own = fresh_name(f"{name}_term", taken)
        positions[own] = at
        more.append(replace(tensor, name=own, default=None))
        statements.append(
            replace(statement, target=replace(statement.target, tensor=own), is_exclusive=True)
        )
        statements.append(_added(tensor, own, taken))
    temporaries = (*op.temporaries, *more)
    return replace(op, temporaries=temporaries, statements=tuple(statements)), positions


def _added(tensor: Tensor, term: str, taken: set[str]) -> Statement:
    """The statement that adds a tensor of the same shape, cell by cell."""
    names = [fresh_name(f"i{at}", {*taken}) for at in range(len(tensor.dims))]
    if tensor.batched:
        names[0] = BATCH_ITERATOR
    loops = tuple(Loop(each, dim.extent) for each, dim in zip(names, tensor.dims, strict=True))
    cell = tuple(Index(symbol(loop.name)) for loop in loops)
    body = Read(Access(term, cell))
    return Statement(Access(tensor.name, cell), Reducer.ADD, loops, (), body)
