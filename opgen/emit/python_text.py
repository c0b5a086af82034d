"""Pieces of Python source: strings that cannot break out, and calls over several lines."""

from __future__ import annotations

from collections.abc import Sequence


def string(text: str, indent: str = "") -> str:
    """A literal for text of several lines: triple-quoted where that is safe and exact.

    Otherwise one escaped literal for each line, in parentheses.
    """
    plain = all(character == "\n" or character.isprintable() for character in text)
    if plain and "\\" not in text and '"""' not in text and not text.endswith('"'):
        return f'"""{text}"""'
    lines = text.splitlines(keepends=True) or [""]
    body = "\n".join(f"{indent}    {line!r}" for line in lines)
    return f"(\n{body}\n{indent})"


def docstring(text: str, indent: str) -> str:
    """A docstring for an indented body."""
    lines = [line.rstrip() for line in text.splitlines()]
    if len(lines) > 1:
        lines.append("")
    joined = "\n".join(f"{indent}{line}" if line and at else line for at, line in enumerate(lines))
    if len(lines) > 1:
        joined += indent
    return indent + string(joined, indent)


def tuple_of(items: Sequence[str]) -> str:
    """A tuple display."""
    return f"({', '.join(items)},)" if len(items) == 1 else f"({', '.join(items)})"


def tuple_of_strings(items: Sequence[str]) -> str:
    """A tuple of string literals."""
    return tuple_of([quoted(item) for item in items])


def tall(items: Sequence[str], indent: str) -> str:
    """A tuple with an item on each line."""
    if not items:
        return "()"
    body = "\n".join(f"{indent}    {item}," for item in items)
    return f"(\n{body}\n{indent})"


def quoted(text: str) -> str:
    """A string literal with double quotes where that needs no escapes."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return repr(text)
