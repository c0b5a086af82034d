"""Pieces of Python source: strings that cannot break out, numbers, and brackets over lines.

The layout is the one that formatters of Python agree on: everything on one line if it fits, else
the content of the brackets on a line of its own, else an item a line with a trailing comma.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

WIDTH: Final = 100


# ---------------------------------------------------------------------------- strings
def string(text: str, indent: str = "") -> str:
    """A literal for text of several lines: triple-quoted where that is safe and exact.

    Otherwise one escaped literal for each line, in parentheses.
    """
    plain = text.replace("\n", "").isprintable()
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


def quoted(text: str) -> str:
    """A string literal with double quotes where that needs no escapes."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return repr(text)


def number_text(value: int | float) -> str:
    """A number; those that have no literal are made of text."""
    text = repr(value)
    return f'float("{text}")' if text.lstrip("-") in ("inf", "nan") else text


# ---------------------------------------------------------------------------- brackets
class Kind(Enum):
    """What brackets stand for."""

    CALL = "call"  # also the parameters of a definition
    TUPLE = "tuple"  # a single item needs a comma
    DICT = "dict"


@dataclass(frozen=True, slots=True)
class Group:
    """Items in brackets. `tall` asks for an item a line even where all would fit on one.

    A single item is no table, so it is set in one line all the same.
    """

    kind: Kind
    opening: str
    items: tuple[Node, ...]
    closing: str
    tall: bool = False

    @property
    def content(self) -> str:
        """The items on one line."""
        items = ", ".join(map(flat, self.items))
        return f"{items}," if self.kind is Kind.TUPLE and len(self.items) == 1 else items

    @property
    def flat(self) -> str:
        """All on one line."""
        return f"{self.opening}{self.content}{self.closing}"

    def behind(self, text: str) -> Group:
        """The group with text before its bracket."""
        return replace(self, opening=f"{text}{self.opening}")


@dataclass(frozen=True, slots=True)
class Chain:
    """Operands with an operator before each but the first, for the inside of brackets."""

    first: str | Group
    rest: tuple[tuple[str, str | Group], ...]

    @property
    def flat(self) -> str:
        """All on one line."""
        return flat(self.first) + "".join(f" {sign} {flat(item)}" for sign, item in self.rest)


Node = str | Group | Chain


def flat(node: Node) -> str:
    """A node on one line."""
    return node if isinstance(node, str) else node.flat


def call(function: str, positional: Sequence[Node], **named: Node | None) -> Group:
    """A call; arguments that are None are left out."""
    arguments = list(positional)
    for name, value in named.items():
        if isinstance(value, Group):
            arguments.append(value.behind(f"{name}="))
        elif value is not None:
            arguments.append(f"{name}={flat(value)}")
    return Group(Kind.CALL, f"{function}(", tuple(arguments), ")")


def dict_of(items: Mapping[str, Node], tall: bool = False) -> Group:
    """A dict display with strings for keys."""
    entries = tuple(
        value.behind(f"{quoted(key)}: ")
        if isinstance(value, Group)
        else f"{quoted(key)}: {flat(value)}"
        for key, value in items.items()
    )
    return Group(Kind.DICT, "{", entries, "}", tall)


def tuple_of(items: Sequence[Node], tall: bool = False) -> Group:
    """A tuple display."""
    return Group(Kind.TUPLE, "(", tuple(items), ")", tall)


def strings(items: Sequence[str]) -> Group:
    """A tuple of string literals."""
    return tuple_of([quoted(item) for item in items])


def layout(node: Node, indent: str = "", before: str = "", after: str = "") -> str:
    """The text of a node behind `before`, which starts at `indent`; `after` follows it."""
    if isinstance(node, str):
        return f"{indent}{before}{node}{after}"
    line = f"{indent}{before}{node.flat}{after}"
    if isinstance(node, Chain):
        if len(line) <= WIDTH:
            return line
        parts = [layout(node.first, indent, before)]
        parts += [layout(item, indent, f"{sign} ") for sign, item in node.rest]
        return "\n".join(parts) + after
    is_tall = node.tall and len(node.items) > (0 if node.kind is Kind.DICT else 1)
    if not is_tall and (len(line) <= WIDTH or not node.items):
        return line
    inner = f"{indent}    "
    head, tail = f"{indent}{before}{node.opening}", f"{indent}{node.closing}{after}"
    if not is_tall and node.kind is Kind.CALL and len(inner) + len(node.content) <= WIDTH:
        return f"{head}\n{inner}{node.content}\n{tail}"
    lines = "\n".join(layout(item, inner, after=",") for item in node.items)
    return f"{head}\n{lines}\n{tail}"
