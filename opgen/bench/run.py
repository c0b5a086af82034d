"""A whole run: every row that was asked for, within the time that was given."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import torch

from opgen.bench import recycle
from opgen.bench.calls import OPGEN
from opgen.bench.faults import BenchError, DisagreementError
from opgen.bench.growth import Growth, Peaks, growth
from opgen.bench.measure import Measure, Result, measure, recycled
from opgen.bench.row import Direction, Row, Shape
from opgen.bench.timing import MOST_ROUNDS

_TIMED: Final = 0.35
"""The part of the time that goes into rounds; making tensors and kernels takes the rest."""
_MOST: Final = 4.0
"""Seconds after which more rounds of a row tell nothing new, unless it is close."""
_AGAIN: Final = 0.1
"""The part of the time that is kept for rows that other programs disturbed."""
_CLOSE_ROWS: Final = 0.1
"""The part of the time that is kept for rows where opgen and the best contender are close."""
_CLOSE: Final = 1.05
"""The larger of the two times over the smaller one, at most. Where they are so near each other, 25
rounds do not tell who is faster: two ways to call one convolution were up to 5 % apart."""
_TIMED_CLOSELY: Final = 0.7
"""What goes into rounds of that part of the time."""
_MOST_CLOSELY: Final = 20.0
"""Seconds of rounds that are enough for such a row,"""
_ROUNDS_CLOSELY: Final = 100
"""and how many rounds are."""
_RECYCLED: Final = 0.1
"""The part of the time that is kept for rows that only move data, with outputs recycled."""


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
    tiny: bool = False
    """Whether rows have shapes for which times mean nothing: the runner itself is tried."""

    @property
    def for_close_rows(self) -> float:
        """The part of the time for rows that are close; a quick run does without."""
        return 0.0 if self.quick or self.tiny else _CLOSE_ROWS

    @property
    def for_recycled_rows(self) -> float:
        """The part of the time for outputs recycled, which on a GPU they are in every call."""
        return _RECYCLED if self.device.type == "cpu" else 0.0

    def shape(self, row: Row) -> Shape:
        """The shape that is measured of a row."""
        return row.tiny if self.tiny else row.shape_for(self.device, quick=self.quick)

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


def _reason(error: Exception) -> str:
    """What went wrong: a contender disagrees, or there is not enough memory, or anything else."""
    return str(error) if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"


def by_turns(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The first row of every kind, then the second: each is there even if time runs out."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    rounds = itertools.zip_longest(*kinds.values())
    return tuple(row for turn in rounds for row in turn if row is not None)


def run(plan: Plan, measured: Measure = measure) -> Iterator[Outcome]:
    """Measure; the time that is left is shared out evenly among the rows that are left."""
    if plan.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    others = _AGAIN + plan.for_close_rows + plan.for_recycled_rows
    end = time.perf_counter() + 60 * plan.minutes * (1 - others)
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
                shape=plan.shape(row),
                compiled=row.name in plan.compiled,
                budget=0 if plan.tiny else min(_MOST, _TIMED * left / (len(todo) - at)),
            )
        except Exception as error:  # a run of many rows goes on, and says so in the end
            yield Refused(row, direction, _reason(error))
        gc.collect()


def run_again(
    plan: Plan, outcomes: Sequence[Outcome], measured: Measure = measure
) -> Iterator[Result]:
    """The rows that were disturbed, once more: those that were not this time.

    Which ones are measured again does not depend on who was faster. What comes at the end of the
    list may find no time.
    """
    noisy = [o for o in outcomes if isinstance(o, Result) and o.noisy]
    parts = plan.minutes * 60 * _AGAIN, _TIMED
    for _, found in _remeasured(plan, noisy, *parts, _MOST, MOST_ROUNDS, measured):
        yield found


def run_closely(
    plan: Plan, outcomes: Sequence[Outcome], measured: Measure = measure
) -> Iterator[Result]:
    """The rows where opgen and the best contender are close, once more, if in more rounds.

    Nor do these depend on who was faster. The short ones come first, and leave the rest their time.
    """
    close = [o for o in outcomes if isinstance(o, Result) and _is_close(o)]
    close.sort(key=lambda result: result.times[OPGEN])
    parts = plan.minutes * 60 * plan.for_close_rows, _TIMED_CLOSELY
    again = _remeasured(plan, close, *parts, _MOST_CLOSELY, _ROUNDS_CLOSELY, measured)
    for result, found in again:
        if result.noisy or found.rounds > result.rounds:
            yield found


def _is_close(result: Result) -> bool:
    return result.ratio is not None and 1 / _CLOSE <= result.ratio.median <= _CLOSE


def _remeasured(
    plan: Plan,
    results: Sequence[Result],
    seconds: float,
    timed: float,
    most: float,
    rounds: int,
    measured: Measure,
) -> Iterator[tuple[Result, Result]]:
    """Rows before and after they were measured once more, if they were not disturbed this time.

    Of the seconds `timed` goes into rounds, of which `most` seconds of a row or so many are enough.
    """
    end = time.perf_counter() + seconds
    for at, result in enumerate(results):
        left = end - time.perf_counter()
        if left <= 0:
            return
        try:
            found = measured(
                result.row,
                result.direction,
                plan.device,
                shape=result.shape,
                compiled=result.row.name in plan.compiled,
                budget=0 if plan.tiny else min(most, timed * left / (len(results) - at)),
                rounds=rounds,
            )
        except DisagreementError:
            raise
        except Exception:  # as where its process dies: the first figures, and all others, are kept
            continue
        if not found.noisy:
            yield result, found
        gc.collect()


def run_recycled(plan: Plan, outcomes: Sequence[Outcome]) -> Iterator[Result]:
    """The rows that only move data, once more, with outputs recycled; BenchError if none can be.

    On a GPU PyTorch's own allocator does so, and there is nothing more to measure.
    """
    moving = [o for o in outcomes if isinstance(o, Result) and o.row.moves]
    end = time.perf_counter() + 60 * plan.minutes * plan.for_recycled_rows
    for at, result in enumerate(moving):
        left = end - time.perf_counter()
        if left <= 0:
            return
        budget = 0 if plan.tiny else min(_MOST, _TIMED * left / (len(moving) - at))
        with recycle.freed_memory_kept():
            found = recycled(result, plan.device, budget)
            gc.collect()
        yield found


def run_growth(plan: Plan, measured: Measure = measure) -> Iterator[Growth | Refused | Omitted]:
    """Every row at three sizes, within the time."""
    end = time.perf_counter() + 60 * plan.minutes
    todo = [(row, direction) for row, direction in plan.measurements() if row.grows]
    peaks: Peaks = {}
    for at, (row, direction) in enumerate(todo):
        left = end - time.perf_counter()
        shape = plan.shape(row)
        budget = 0 if plan.tiny else min(_MOST, _TIMED * left / (len(todo) - at))
        if left <= 0:
            yield Omitted(row, direction)
            continue
        try:
            yield growth(row, direction, plan.device, shape, budget, peaks, measured)
        except Exception as error:  # as above
            yield Refused(row, direction, _reason(error))
        gc.collect()
