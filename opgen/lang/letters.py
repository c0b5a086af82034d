"""Letters that are none of a name: how they are spelled out in the letters a to z."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from opgen.errors import Edit, Source, Span

_WORD: Final = re.compile(r"\w+")
_WORDS: Final = re.compile(r'#[^\n]*|"[^"\n]*"|\w+')  # those in comments and strings are no names
_OP: Final = re.compile(r"^[ \t]*op\b", re.MULTILINE)
_GREEK: Final = re.compile(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)")
_NUMBERS: Final = {"π": "3.141592653589793", "τ": "6.283185307179586"}


def spelled_out(source: Source, start: int) -> tuple[str, Edit | None]:
    """What to write for the word in which a letter stands, and an edit where that is Greek.

    It spells out all Greek of the op, but no name that would then mean something else there.
    """
    advice = "names are made of the letters a to z and A to Z, digits and _"
    word = next(match[0] for match in _WORD.finditer(source.text) if start < match.end())
    op = _op_around(source.text, start)
    names = _names(source.text[op.start : op.end])
    if word not in names:
        return advice, None
    found = [match for match in _WORDS.finditer(source.text, op.start, op.end) if match[0] in names]
    changed = Span(found[0].start(), found[-1].end())
    text = _WORDS.sub(lambda m: names.get(m[0], m[0]), source.text[changed.start : changed.end])
    if word in _NUMBERS and names[word] == _NUMBERS[word]:
        return f"write the number, {names[word]}", (changed, text)
    return f"{advice}: write {names[word]}", (changed, text)


def _names(op: str) -> dict[str, str]:
    """What to write for the Greek words of an op."""
    first: dict[str, int] = {}
    for match in _WORDS.finditer(op):
        first.setdefault(match[0], match.start())
    body = op.find("\n", max(op.find("->"), 0))
    names: dict[str, str] = {}
    for word, at in first.items():
        name = None if word.isascii() or word[0] in '#"' else _name(word)
        is_declared = at < body
        if name is None:
            continue
        if word in _NUMBERS and not is_declared:
            names[word] = _NUMBERS[word]
        elif name not in first or (not is_declared and first[name] < body):
            names[word] = name
    return names


def _name(word: str) -> str | None:
    """A word in ASCII, with the names of Greek letters; None if it holds others."""
    parts: list[str] = []
    for letter in word:
        plain = unicodedata.normalize("NFKC", letter)  # one alpha for its forms in mathematics
        greek = _GREEK.fullmatch(unicodedata.name(plain, "")) if len(plain) == 1 else None
        if not letter.isascii() and greek is None:
            return None
        parts.append(letter if greek is None else _cased(greek))
    joined = ""
    for before, part in zip(["", *parts], parts, strict=False):
        apart = before[-1:].isalpha() and part[0].isalpha() and (len(before) > 1 or len(part) > 1)
        joined += f"_{part}" if apart else part
    return joined


def _cased(greek: re.Match[str]) -> str:
    return greek[2].capitalize() if greek[1] == "CAPITAL" else greek[2].lower()


def _op_around(text: str, at: int) -> Span:
    """From the op before a place to the next one."""
    starts = [match.start() for match in _OP.finditer(text)]
    before = [start for start in starts if start <= at]
    after = [start for start in starts if start > at]
    return Span(before[-1] if before else 0, after[0] if after else len(text))
