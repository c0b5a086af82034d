"""Lines of C: continued where they are too long, and comments."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Final

from opgen.emit.templates import comment


def wrapped(pieces: Sequence[str], width: int = 92) -> list[str]:
    """Pieces separated by commas, in lines of about that width."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(piece) + 2 <= width:
            lines[-1] += f", {piece}"
        else:
            lines.append(piece)
    return lines


_WIDTH: Final = 100
_BREAK: Final = re.compile(r"(?<=[,;])\s|\s(?=([-+*?:<>=&|]{1,2})\s)")
_LOOSENESS: Final = {
    None: 0,
    "=": 1,
    "+=": 1,
    "?": 2,
    ":": 2,
    "||": 2,
    "&&": 3,
    "+": 5,
    "-": 5,
    "*": 6,
}


def broken(line: str) -> list[str]:
    """A line of C, continued on further lines where it is too long.

    It is broken after a comma or before an operator: where the fewest brackets are open, at the
    loosest operator, as far to the right as possible.
    """
    indent = len(line) - len(line.lstrip())
    continuation = " " * (indent + 8)
    lines = []
    while len(line) > _WIDTH:
        best: tuple[int, int, int] | None = None
        for match in _BREAK.finditer(line, len(continuation) + 20, _WIDTH + 1):
            place = (_depth(line, match.start()), _LOOSENESS.get(match[1], 4), -match.start())
            best = place if best is None else min(best, place)
        if best is None:
            break
        lines.append(line[: -best[2]])
        line = continuation + line[-best[2] + 1 :]
    return [*lines, line]


def _depth(line: str, place: int) -> int:
    head = line[:place]
    return sum(map(head.count, "([")) - sum(map(head.count, ")]"))


def spec_comment(text: str) -> list[str]:
    """A spec line for a comment."""
    return [
        part
        for line in comment(text)
        for part in textwrap.wrap(
            line,
            _WIDTH - 3,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
