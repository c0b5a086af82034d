"""Diagnostics as data: where, what, why, and what to write instead.

A `Diagnostic` is a value; `render` is the only place that turns one into text. The checker
collects every fault of a file and raises a single `OpgenError`. Faults of opgen itself are never
diagnostics: they are plain `AssertionError`s.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final


class NotTextError(ValueError):
    """A spec file is not UTF-8 text."""


_WIDTH: Final = 120  # longer source lines are cut to the part around the caret


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one spec file and the name it is shown under."""

    text: str
    name: str = "<spec>"

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Source:
        """A spec file, under the name it is shown with; OSError, or NotTextError."""
        try:
            return cls(Path(path).read_text(encoding="utf-8"), os.fspath(path))
        except UnicodeDecodeError as error:
            raise NotTextError(
                f"{os.fspath(path)} is not UTF-8 text: {error.reason} at byte {error.start}; "
                "save it in that encoding"
            ) from error

    def position(self, offset: int) -> tuple[int, int]:
        """One-based line and column of a character offset."""
        offset = min(offset, len(self.text))
        line = self.text.count("\n", 0, offset) + 1
        column = offset - (self.text.rfind("\n", 0, offset) + 1) + 1
        return line, column

    def line(self, number: int) -> str:
        """The text of a one-based line, without its line break."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if number <= len(lines) else ""

    def edited(self, edit: Edit) -> Source:
        """The source with one edit made."""
        span, text = edit
        return Source(self.text[: span.start] + text + self.text[span.end :], self.name)


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range of character offsets into a `Source`."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The smallest span that covers both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


Edit = tuple[Span, str]
"""The new text for a span."""


@dataclass(frozen=True, slots=True)
class Label:
    """A caret under part of the source, with a few words beside it."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault: `headline` says what, `labels` show where, `notes` say why, `help` what to write.

    `code` is a stable, short, hyphenated name such as ``index-out-of-range``. `replacement` is the
    `help` as an edit, so that a test can apply it and check the result; `alternatives` are edits to
    try where it does not do (see `lang.read`).
    """

    code: str
    headline: str
    labels: tuple[Label, ...]
    notes: tuple[str, ...] = ()
    help: str = ""
    replacement: Edit | None = None
    alternatives: tuple[Edit, ...] = ()


def render(diagnostic: Diagnostic, source: Source) -> str:
    """The diagnostic as plain text: carets under the lines it speaks of, and the line to write."""
    out = [f"error[{diagnostic.code}]: {diagnostic.headline}"]
    for label in diagnostic.labels:
        out.extend(_pointed(label, source))
    out.extend(f"  note: {note}" for note in diagnostic.notes)
    if diagnostic.help:
        out.append(f"  help: {diagnostic.help}")
    if diagnostic.replacement is not None:
        out.extend(_suggested(diagnostic.replacement, source))
    return "\n".join(out)


def _pointed(label: Label, source: Source) -> list[str]:
    """Where a label stands: the position, the line, and the caret."""
    line, column = source.position(label.span.start)
    text = source.line(line)
    width = max(1, min(label.span.end - label.span.start, len(text) - column + 1))
    first = max(0, column - 1 - _WIDTH // 2) if len(text) > _WIDTH else 0
    shown = text[first : first + _WIDTH]
    # Tabs are kept so that the caret stands under its column whatever the tab width.
    before = text[first : column - 1]
    indent = "".join("\t" if character == "\t" else " " for character in before)
    carets = "^" * min(width, len(shown) - len(before) + 1)
    gutter = " " * len(str(line))
    return [
        f"{gutter}--> {source.name}:{line}:{column}",
        f"{line} | {shown}",
        f"{gutter} | {indent}{carets} {label.text}".rstrip(),
    ]


def _suggested(edit: Edit, source: Source) -> list[str]:
    """The lines as they read after an edit, or whole lines that it removes."""
    span, text = edit
    removed = source.text[span.start : span.end]
    if not text and removed.endswith("\n") and source.position(span.start)[1] == 1:
        first, _ = source.position(span.start)
        lines = removed.removesuffix("\n").split("\n")
        return [f"{first + at} - {line}"[:_WIDTH].rstrip() for at, line in enumerate(lines)]
    result = source.edited(edit)
    first, _ = result.position(span.start)
    last, _ = result.position(span.start + len(text.rstrip()))
    return [f"{at} + {result.line(at)}"[:_WIDTH].rstrip() for at in range(first, last + 1)]


@dataclass
class OpgenError(Exception):
    """One or more diagnostics about one source; its text is all of them, rendered."""

    diagnostics: Sequence[Diagnostic]
    source: Source = field(default_factory=lambda: Source(""))

    def __str__(self) -> str:
        ordered = sorted(
            self.diagnostics, key=lambda d: (d.labels[0].span.start if d.labels else 0, d.code)
        )
        return "\n\n".join(render(diagnostic, self.source) for diagnostic in ordered)
