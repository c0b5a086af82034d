"""A whole run: every row that was asked for, within the time that was given."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from opgen.bench.faults import DisagreementError
from opgen.bench.measure import Result, measure
from opgen.bench.row import Direction, Row


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and how long."""

    rows: tuple[Row, ...]
    directions: tuple[Direction, ...]
    device: torch.device
    minutes: float
    compiled: frozenset[str] = frozenset()
    """Names of the rows in which torch.compile takes part."""
    quick: bool = False

    def measurements(self) -> list[tuple[Row, Direction]]:
        """Every row in every direction that it has."""
        return [
            (row, direction)
            for row in self.rows
            for direction in self.directions
            if direction in row.directions
        ]


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that is not reported, and why."""

    row: Row
    direction: Direction
    reason: str


@dataclass(frozen=True, slots=True)
class Omitted:
    """A row for which no time was left."""

    row: Row
    direction: Direction


Outcome = Result | Refused | Omitted


def chosen(rows: Sequence[Row], pattern: str) -> tuple[Row, ...]:
    """The rows whose name contains a text, or matches it as `*` and `?` do; all for ''."""
    return tuple(row for row in rows if pattern in row.name or fnmatchcase(row.name, pattern))


def run(plan: Plan, measured: Callable[..., Result] = measure) -> Iterator[Outcome]:
    """Measure; the time that is left is shared out evenly among the rows that are left."""
    end = time.perf_counter() + 60 * plan.minutes
    todo = plan.measurements()
    for at, (row, direction) in enumerate(todo):
        left = end - time.perf_counter()
        if left <= 0:
            yield Omitted(row, direction)
            continue
        try:
            yield measured(
                row,
                direction,
                plan.device,
                shape=row.shape_for(quick=plan.quick),
                compiled=row.name in plan.compiled,
                budget=min(_MOST, _PART * left / (len(todo) - at)),
            )
        except DisagreementError as error:
            yield Refused(row, direction, str(error))
        gc.collect()


_PART = 0.4
"""The rest goes into making tensors, compiling and checking."""
_MOST = 4.0
"""Seconds after which more rounds of a row tell nothing new."""
