"""Writes that are clamped to a tensor as writes inside of it, and others to its ends.

`y[h + k - 1 ?clamp] += t` adds to cell u what reaches it, and to the first and the last cell also
what lies beyond them. In one nest of loops every cell asks whether it is at an end. As statements

    y[h + k - 1 ?drop] += t
    y[0] += t          if h + k - 1 < 0
    y[H - 1] += t      if h + k - 1 > H - 1

the inner cells have terms that are known beforehand, and those at the ends a few more. This is the
form of the adjoint of an image that is read beyond its border.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import ZERO
from opgen.ir.notation import Boundary, Index, Op, Reducer, Statement

_MOST_CLAMPED: Final = 2
"""The most dims of a statement: it becomes three for each of them."""

_Part = tuple[Index, tuple[Condition, ...]]


def unclamped(op: Op) -> Op:
    """The op with sums into clamped cells split; it has the same cells and terms."""
    parts = [part for statement in op.statements for part in _parts(op, statement)]
    return op if len(parts) == len(op.statements) else replace(op, statements=tuple(parts))


def _parts(op: Op, statement: Statement) -> Iterator[Statement]:
    target = statement.target
    clamped = [index for index in target.indices if index.boundary is Boundary.CLAMP]
    loads = any(index.value.is_data_dependent for index in clamped)
    if statement.reducer is not Reducer.ADD or loads or not 0 < len(clamped) <= _MOST_CLAMPED:
        yield statement
        return
    choices: list[tuple[_Part, ...]] = []
    for index, extent in zip(target.indices, op.extents(target.tensor), strict=True):
        value = index.value
        if index.boundary is not Boundary.CLAMP:
            choices.append(((index, ()),))
            continue
        choices.append(
            (
                (replace(index, boundary=Boundary.DROP), ()),
                (Index(ZERO), (Condition(-value - 1),)),
                (Index(extent - 1), (Condition(value - extent),)),
            )
        )
    for chosen in itertools.product(*choices):
        indices = tuple(index for index, _ in chosen)
        guards = tuple(guard for _, guards in chosen for guard in guards)
        yield replace(
            statement,
            target=replace(target, indices=indices),
            guards=(*statement.guards, *guards),
        )
