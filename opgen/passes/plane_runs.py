"""Vectors of a plane that repeat some rows on: a loop over them instead of one after the other.

Away from the first and last rows, the cells of an image have the same terms, of elements that are
as far away from those of the row before as the cells are. A small plane stays written out: what one
vector loads serves the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opgen.ir.plane import LANES, Cells, Joined, Picked, Run, Vector, sources

LONGEST_PERIOD: Final = 8
"""The most vectors after which others repeat them."""


def rolled(cells: Sequence[Cells]) -> tuple[Run, ...]:
    """The same vectors in the same order, with loops over those that repeat others."""
    runs: list[Run] = []
    at = 0
    while at < len(cells):
        found = [_run(cells, at, period) for period in range(1, LONGEST_PERIOD + 1)]
        best = max(found, key=lambda run: (run.count - 1) * len(run.cells))
        best = best if best.count > 1 else Run((cells[at],))
        runs.append(best)
        at += best.count * len(best.cells)
    return tuple(runs)


def _run(cells: Sequence[Cells], at: int, period: int) -> Run:
    """The longest loop over that many vectors, from one on; of one round if none repeats."""
    group = tuple(cells[at : at + period])
    count, step = 1, 0
    steps: dict[str, int] = {}
    while True:
        before = cells[at + (count - 1) * period : at + count * period]
        after = cells[at + count * period : at + (count + 1) * period]
        if len(after) < period or (count > 1 and after[0].first - before[0].first != step):
            break
        step = after[0].first - before[0].first
        if not all(_follows(*pair, step, steps) for pair in zip(before, after, strict=True)):
            break
        if not all(_is_inside(each, count, steps) for each in group):
            break
        count += 1
    return Run(group, count, step, tuple(sorted(steps.items()))) if count > 1 else Run(group)


def _follows(before: Cells, after: Cells, step: int, steps: dict[str, int]) -> bool:
    """Whether cells are those before, some steps on in every tensor; `steps` learns how many."""
    return (
        after.first - before.first == step
        and len(before.terms) == len(after.terms)
        and _repeats(before.value, after.value, steps)
        and all(
            one.present == other.present and _repeats(one.value, other.value, steps)
            for one, other in zip(before.terms, after.terms, strict=True)
        )
    )


def _repeats(before: Vector, after: Vector, steps: dict[str, int]) -> bool:
    match before, after:
        case Picked(), Picked():
            if (before.first, before.sizes) != (after.first, after.sizes):
                return False
            if before.size < LANES:
                return before.places == after.places
            step = after.places[0] - before.places[0]
            if steps.setdefault(before.first.tensor, step) != step:
                return False
            pairs = zip(before.places, after.places, strict=True)
            return all(other - one == step for one, other in pairs)
        case Joined(), Joined():
            return (
                before.primitive == after.primitive
                and len(before.arguments) == len(after.arguments)
                and all(
                    _repeats(one, other, steps)
                    for one, other in zip(before.arguments, after.arguments, strict=True)
                )
            )
        case _:
            return before == after


def _is_inside(cells: Cells, round_: int, steps: dict[str, int]) -> bool:
    """Whether the vectors that elements are picked out of are within their plane in that round."""
    for picked in cells.picked:
        if picked.size < LANES:
            continue
        shift = round_ * steps[picked.first.tensor]
        begins = [begin + shift for begin in sources(picked)]
        if min(begins) < 0 or max(begins) > picked.size - LANES:
            return False
    return True
