"""How cost grows: a row at three sizes, and the memory of a training step at the largest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from opgen.bench import statistics
from opgen.bench.calls import OPGEN
from opgen.bench.faults import BenchError
from opgen.bench.measure import Measure, Result, measure
from opgen.bench.memory import peak
from opgen.bench.row import Contender, Direction, Row, Shape

PARTS: Final = (4, 2, 1)
"""The sizes, as divisors of the full one."""


@dataclass(frozen=True)
class Growth:
    """One row in one direction at three sizes."""

    row: Row
    direction: Direction
    results: tuple[Result, ...]
    """Smallest first."""
    exponents: Mapping[str, float]
    """Of opgen and of the contender that is best at the smallest size, if there is one: the slope
    of the logarithm of the time over that of the bytes."""
    peaks: Mapping[str, int]
    """Bytes of forward and backward at the full size; empty where they cannot be told."""


def grown(row: Row, shape: Shape) -> tuple[Shape, ...]:
    """Three shapes, smallest first: the batch grows, or the largest dim where it is small.

    BenchError where no dim is large enough to be divided by four.
    """
    largest = max(range(len(shape)), key=lambda at: shape[at])
    at = 0 if shape[0] >= PARTS[0] else largest
    if shape[at] < PARTS[0]:
        raise BenchError(f"{row.name}: no dim of {list(shape)} can be divided by {PARTS[0]}")
    return tuple((*shape[:at], shape[at] // part, *shape[at + 1 :]) for part in PARTS)


Peaks = dict[tuple[str, str], int | None]
"""Bytes by row and contender: the same whichever direction is timed."""


def growth(
    row: Row,
    direction: Direction,
    device: torch.device,
    shape: Shape,
    budget: float,
    known: Peaks | None = None,
    measured: Measure = measure,
) -> Growth:
    """Measure a row at three sizes; DisagreementError as for `measure`.

    At the smallest one with all contenders, then with the best of them: some of the others take
    minutes at the full size. Memory that is `known` is not measured again, and what is measured is
    added to it.
    """
    smallest, *larger = grown(row, shape)
    budget /= len(PARTS)
    first = measured(row, direction, device, shape=smallest, budget=budget)
    results = (
        first,
        *(
            measured(row, direction, device, shape=size, only=first.best, budget=budget)
            for size in larger
        ),
    )
    full = results[-1]
    moved = [result.moved for result in results]
    exponents = {
        name: statistics.exponent(moved, [result.times[name] for result in results])
        for name in _names(full)
    }
    return Growth(row, direction, results, exponents, _peaks(full, device, known))


def _names(result: Result) -> tuple[str, ...]:
    """opgen, and the best contender if there is one."""
    return (OPGEN,) if result.best is None else (OPGEN, result.best)


def _peaks(full: Result, device: torch.device, known: Peaks | None) -> dict[str, int]:
    """Of opgen, and of the best contender as autograd differentiates it."""
    known = {} if known is None else known
    names = _names(full)
    missing = [name for name in names if (full.row.name, name) not in known]
    if missing:
        workload = full.row.make(full.shape, device)
        contenders = (Contender(OPGEN, workload.opgen), *workload.contenders)
        for contender in contenders:
            if contender.name in missing:
                known[full.row.name, contender.name] = peak(contender, workload)
    found = {name: known[full.row.name, name] for name in names}
    return {name: size for name, size in found.items() if size is not None}
