"""The results as a table in the terminal."""

from __future__ import annotations

from rich.text import Text

from opgen.bench.measure import COMPILED, OPGEN, Result
from opgen.bench.row import Direction

HEADINGS = (
    "row",
    "opgen",
    "best other",
    "by",
    "ratio",
    "95 %",
    "torch.compile",
    "limit",
    "of limit",
)


def cells(result: Result) -> tuple[str, ...]:
    """One line of the table, in the order of `HEADINGS`."""
    ratio, own = result.ratio, result.times[OPGEN]
    compiled = result.times.get(COMPILED)
    return (
        name(result),
        milliseconds(own),
        milliseconds(result.times[result.best]),
        result.best,
        f"{ratio.median:.2f}x",
        f"{ratio.low:.2f}-{ratio.high:.2f}",
        "" if compiled is None else milliseconds(compiled),
        milliseconds(result.limit),
        f"{100 * result.limit / own:.0f} %",
    )


def name(result: Result) -> str:
    """The row, its direction, and marks: dispatched, disturbed."""
    backward = ", backward" if result.direction is Direction.BACKWARD else ""
    marks = " (dispatched)" * result.dispatched + " (disturbed)" * result.noisy
    return f"{result.row.name}{backward}{marks}"


def milliseconds(seconds: float) -> str:
    """Three digits or more, as a table of many magnitudes needs."""
    value = seconds * 1e3
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def line(result: Result) -> Text:
    """One result for a pipe or while a run goes on; red where opgen is behind, green if ahead."""
    row, own, other, by, ratio, interval, _, limit, part = cells(result)
    style = "green" if result.ratio.low > 1 else "red" if result.ratio.high < 1 else "yellow"
    return Text.assemble(
        f"{row:68} {own:>8} {other:>8} ",
        (f"{ratio:>8}", style),
        f" {interval:>11} {limit:>8} {part:>6}  {by}",
    )


def heading() -> str:
    """The line above `line`s; all times are milliseconds."""
    return (
        f"{'milliseconds':68} {'opgen':>8} {'best':>8} {'ratio':>8} {'95 %':>11} "
        f"{'limit':>8} {'':>6}  best by"
    )
