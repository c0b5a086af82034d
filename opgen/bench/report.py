"""The results in the terminal: a line each as they come, then what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from rich.text import Text

from opgen.bench.calls import OPGEN
from opgen.bench.growth import Growth
from opgen.bench.measure import COMPILED, COPY, FRESH_COPY, Result
from opgen.bench.row import Direction, text
from opgen.bench.run import Omitted, Outcome, Refused
from opgen.bench.statistics import Ratio, geometric_mean

NEAR: Final = 0.97
"""opgen keeps up if the median of the ratio is no less, and its interval reaches 1."""

BANDWIDTH: Final = 0.8
"""The part of the bandwidth of a copy that rows which only move data should reach."""


def name(result: Result) -> str:
    """The row, its shape if it is another, its direction, and marks: dispatched, disturbed."""
    backward = ", backward" if result.direction is Direction.BACKWARD else ""
    if result.shape != result.row.shape:
        backward = f" at {text(result.shape)}{backward}"
    marks = " (dispatched)" * result.dispatched + " (disturbed)" * result.noisy
    return f"{result.row.name}{backward}{marks}"


def milliseconds(seconds: float) -> str:
    """Three digits or more, as a table of many magnitudes needs."""
    value = seconds * 1e3
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def keeps_up(ratio: Ratio) -> bool:
    """Whether opgen is at least as fast as a contender, as far as the rounds can tell."""
    return ratio.median >= NEAR and ratio.high >= 1


def heading() -> str:
    """The line above `line`s; all times are milliseconds."""
    return (
        f"{'milliseconds':72} {'opgen':>8} {'best':>8} {'ratio':>8} {'95 %':>11} "
        f"{'limit':>8} {'':>6}  best by"
    )


def line(result: Result) -> Text:
    """One result; red where opgen is behind, green where it is ahead.

    Where opgen was timed alone it stands beside the limit, and what it is compared with is empty.
    """
    own, best, ratio = result.times[OPGEN], result.best, result.ratio
    theirs = "" if best is None else milliseconds(result.times[best])
    median, interval, style = f"{'':8}", "", ""
    if ratio is not None:
        median, interval = f"{ratio.median:>7.2f}x", f"{ratio.low:.2f}-{ratio.high:.2f}"
        style = "green" if ratio.low > 1 else "yellow" if keeps_up(ratio) else "red"
    limit = f"{milliseconds(result.limit):>8} {100 * result.limit / own:>4.0f} %"
    return Text.assemble(
        f"{name(result):72} {milliseconds(own):>8} {theirs:>8} ",
        (median, style),
        f" {interval:>11} {limit}  {best or ''}".rstrip(),
    )


def problem(outcome: Refused | Omitted) -> str:
    """Why a row is not in the table."""
    where = f"{outcome.row.name}, {outcome.direction.value}"
    match outcome:
        case Refused(reason=reason):
            return f"{where}: not reported: {reason}"
        case Omitted():
            return f"{where}: not measured: no time was left (--minutes)"
        case unexpected:
            assert_never(unexpected)


def recycled(result: Result) -> str:
    """A row with outputs recycled, beside `copy_` into the same memory."""
    own, copied = result.recycled[OPGEN], result.recycled[COPY]
    rivals = [n for n in result.recycled if n not in (OPGEN, COPY)]
    best = milliseconds(result.recycled[rivals[0]]) if rivals else ""
    return (
        f"{name(result):72} {milliseconds(own):>8} {best:>8} {'':>8} {'':>11} "
        f"{milliseconds(copied):>8} {100 * copied / own:>4.0f} %  of copy_"
    )


def summary(outcomes: Sequence[Outcome], compiled: frozenset[str]) -> Iterator[str]:
    """What the rows come to, and what was left out."""
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    yield _comparison(results)
    fresh = [r for r in results if r.row.moves]
    if fresh:
        reached = sum(result.copy_ratio.high >= 1 for result in fresh)
        yield f"{reached} of {len(fresh)} rows that only move data are as fast as {FRESH_COPY}"
    kept = [result.recycled for result in fresh if result.recycled]
    if kept:
        reached = sum(times[COPY] >= BANDWIDTH * times[OPGEN] for times in kept)
        yield (
            f"{reached} of {len(kept)} reach {100 * BANDWIDTH:.0f} % of the bandwidth of {COPY} "
            "with outputs recycled"
        )
    if any(result.noisy for result in results):
        noisy = sum(result.noisy for result in results)
        yield f"{noisy} rows were disturbed: other programs took the processor away meanwhile"
    for result in results:
        for contender, reason in result.failed.items():
            yield f"{name(result)}: {contender} did not run: {reason}"
        if result.copies:
            counts = ", ".join(f"{n} {count}" for n, count in result.copies.items())
            yield f"{name(result)}: copies of images within a call: {counts}"
    for row in dict.fromkeys(result.row for result in results):
        for reason in row.omitted:
            yield f"{row.name}: without {reason}"
    without = dict.fromkeys(r.row.name for r in results if r.row.name not in compiled)
    if without:
        yield f"{COMPILED} was not tried in: {'; '.join(without)}"


def _comparison(results: Sequence[Result]) -> str:
    """How opgen stands beside the best contenders, where there are any."""
    compared = [(r.ratio, r.dispatched) for r in results if r.ratio is not None]
    if not compared:
        alone = ", in which opgen was compared with nothing" if results else ""
        return f"{len(results)} rows{alone}"
    kept = sum(keeps_up(ratio) for ratio, _ in compared)
    text = f"{len(results)} rows; opgen keeps up in {kept}"
    own = [ratio.median for ratio, dispatched in compared if not dispatched]
    if own:
        text += (
            f"; geometric mean of the ratios of the {len(own)} that it computes itself: "
            f"{geometric_mean(own):.2f}"
        )
    return text


def growth_heading() -> str:
    """The line above `growth_line`s."""
    return (
        f"{'milliseconds at three sizes':72} {'opgen':>24} {'MB':>20} {'exponent':>9} "
        f"{'other':>6} {'peak MB':>8} {'other':>8}"
    )


def growth_line(found: Growth) -> str:
    """One row at three sizes: opgen's times, the exponents of both, the memory of both."""
    backward = ", backward" if found.direction is Direction.BACKWARD else ""
    times = " ".join(milliseconds(result.times[OPGEN]) for result in found.results)
    moved = " ".join(f"{result.moved / 1e6:.3g}" for result in found.results)
    own = found.exponents[OPGEN]
    others = [f"{value:.2f}" for name, value in found.exponents.items() if name != OPGEN]
    peaks = " ".join(f"{size / 1e6:>8.3g}" for size in found.peaks.values())
    return (
        f"{found.row.name + backward:72} {times:>24} {moved:>20} {own:>9.2f} "
        f"{others[0] if others else '':>6} {peaks}"
    ).rstrip()
