"""A picture of a run: how many times faster than the best other form opgen is, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final
from xml.sax.saxutils import escape

from opgen.bench.document import Document
from opgen.bench.tables import TITLES

_WIDTH, _LEFT, _LINE, _TOP = 760, 260, 26, 48
Across = Callable[[float], float]
"""Where a ratio lies."""
_COLOURS: Final = {"forward": "#1f77b4", "backward": "#d95f02"}
_TICKS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


def svg(found: Document) -> str:
    """One line for each kind of row and direction, one dot for each row; hollow if dispatched."""
    lines = [
        (kind, direction, dots)
        for kind in TITLES
        for direction in _COLOURS
        if (dots := _dots(found, kind, direction))
    ]
    ratios = [ratio for *_, dots in lines for ratio, _, _ in dots] or [1.0]
    low = min(0.5, 0.9 * min(ratios))
    high = max(2.0, 1.1 * max(ratios))

    def across(ratio: float) -> float:
        part = math.log(ratio / low) / math.log(high / low)
        return round(_LEFT + part * (_WIDTH - _LEFT - 20), 1)

    height = _TOP + _LINE * len(lines) + 16
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{_LEFT}" y="16">times as fast as the best other form</text>',
            *_ticks(across, low, high, height),
            *(part for at, line in enumerate(lines) for part in _row(at, *line, across)),
            "</svg>\n",
        ]
    )


Dot = tuple[float, bool, str]


def _dots(found: Document, kind: str, direction: str) -> list[Dot]:
    return [
        (row["ratio"][row["best"]]["median"], row["dispatched"], row["name"])
        for row in found["rows"]
        if (row["kind"], row["direction"]) == (kind, direction) and row["best"] is not None
    ]


def _ticks(across: Across, low: float, high: float, height: int) -> Iterator[str]:
    for tick in _TICKS:
        if low <= tick <= high:
            x, shade = across(tick), "#333" if tick == 1 else "#ddd"
            yield f'<line x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{height - 8}" stroke="{shade}"/>'
            yield f'<text x="{x}" y="{_TOP - 14}" text-anchor="middle">{tick:g}</text>'


def _row(at: int, kind: str, direction: str, dots: list[Dot], across: Across) -> Iterator[str]:
    y, colour = _TOP + _LINE * at + _LINE // 2, _COLOURS[direction]
    label = f"{TITLES[kind]}, {direction}"
    yield f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(label)}</text>'
    for ratio, dispatched, name in dots:
        fill = "white" if dispatched else colour
        yield (
            f'<circle cx="{across(ratio)}" cy="{y}" r="4" fill="{fill}" fill-opacity="0.6" '
            f'stroke="{colour}"><title>{escape(name)}: {ratio:.2f}</title></circle>'
        )
