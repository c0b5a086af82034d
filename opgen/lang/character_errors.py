"""What is wrong with a character that begins no token."""

from __future__ import annotations

import difflib
import re
import unicodedata
from typing import Final

from opgen.errors import Diagnostic, Edit, Label, Source, Span
from opgen.lang import conditionals, foreign, letters

_MODES: Final = {
    "": "?0", "zero": "?0", "zeros": "?0", "constant": "?0", "edge": "?clamp", "clip": "?clamp",
    "replicate": "?clamp", "nearest": "?clamp", "border": "?clamp", "mirror": "?reflect",
    "reflection": "?reflect", "circular": "?wrap", "periodic": "?wrap", "cyclic": "?wrap",
    "skip": "?drop", "ignore": "?drop",
}  # fmt: skip
_KNOWN_MODES: Final = ("?0", "?clamp", "?reflect", "?symmetric", "?wrap", "?drop")


def unexpected_character(source: Source, start: int) -> Diagnostic:
    """The diagnostic of a character that begins no token."""
    character = source.text[start]
    if character == "?" and (hint := conditionals.ternary(source, start)) is not None:
        return Diagnostic(
            "unknown-character",
            "a value is not chosen by `?` and `:`",
            (Label(Span(start, start + 1)),),
            (),
            *hint,
        )
    if character == "?":
        return _unknown_boundary(source, start)
    end = start + len(source.text[start:]) - len(source.text[start:].lstrip(character))
    span = Span(start, end)
    shown = source.text[start:end]
    spelled = f"'{shown}'" if shown.isprintable() and character != "'" else repr(shown)
    advice, text = _CHARACTERS.get(character, ("remove it; a comment begins with '#'", ""))
    if character in "'\"":
        advice, edit = _quotes(source, start)
        span = edit[0] if edit is not None and character == "'" else Span(start, start + 1)
    else:
        edit = None if text is None else (span, text)
    if character == ".":
        advice, edit = _dots(source, start, end)
    if character.isalpha() and (character not in _CHARACTERS or source.text[end:][:1] == "["):
        advice, edit = letters.spelled_out(source, start)
    words = foreign.words_after_slashes(source, start)
    if words is not None:
        advice, edit = foreign.COMMENT, words
    if not character.isascii():
        spelled += f" ({unicodedata.name(character, 'unnamed').lower()})"
    headline = f"a spec does not contain {spelled}"
    if character == '"':
        headline = "this string does not end on its line"
    return Diagnostic("unknown-character", headline, (Label(span),), (), advice, edit)


_CHARACTERS: Final = {
    "^": ("powers are written `**`", "**"),
    "&": ("conditions are joined by `and`", "and"),
    "!": ("a condition is negated by `not`", "not "),
    "−": ("subtraction is written `-`", "-"),
    "–": ("subtraction is written `-`", "-"),
    "×": ("a product is written with `*`", "*"),
    "·": ("a product is written with `*`", "*"),
    "÷": ("division is written `/`", "/"),
    "≤": ("write `<=`", "<="),
    "≥": ("write `>=`", ">="),
    "≠": ("write `!=`", "!="),
    "²": ("powers are written `**`", "**2"),
    "³": ("powers are written `**`", "**3"),
    "→": ("write `->`", "->"),
    "∑": ("a sum is written sum(k) x[k]", "sum"),
    "Σ": ("a sum is written sum(k) x[k]", "sum"),
    "∏": ("a product over k is written prod(k) x[k]", "prod"),
    "Π": ("a product over k is written prod(k) x[k]", "prod"),
    "{": ("brackets are ( ) and [ ]", None),
    "}": ("brackets are ( ) and [ ]", None),
    "\\": ("a line that ends with an operator or a comma goes on in the next one", ""),
    "“": ('strings are written with double quotes, "like this"', '"'),
    "”": ('strings are written with double quotes, "like this"', '"'),
    "@": ("a sum of products is written with sum(k) a[i,k] * b[k,j]", None),
}


def _dots(source: Source, start: int, end: int) -> tuple[str, Edit | None]:
    """`k in 0..K`, `x[n].exp()`, `torch.exp(x[n])`."""
    range_ = re.search(r"(\w+)\.?$", source.text[:start])
    if source.text[start - 1] == "." or end - start == 2:  # `0.` is a number
        edit = (Span(range_.start(), end), "") if range_ is not None and range_[1] == "0" else None
        return "the range of an iterator is its extent: `k in K` runs from 0 up to K", edit
    if re.match(r"(shape|size)\b", source.text[end:]):
        return "the extent of a dim is the size in its declaration, such as N of x[N]", None
    if source.text[end : end + 1].isidentifier():
        module = re.search(r"[A-Za-z_][\w.]*$", source.text[:start])
        edit = None if module is None else (Span(module.start(), end), "")
        return "functions stand before what they take, without a module: exp(x[n])", edit
    return "leading batch dims are written `...`, numbers like 0.5 or .5", (Span(start, end), "")


def _quotes(source: Source, start: int) -> tuple[str, Edit | None]:
    if source.text[start] == '"':
        line = source.text.find("\n", start)
        end = len(source.text[: len(source.text) if line < 0 else line].rstrip())
        return "close the string with double quotes", (Span(end, end), '"')
    match = re.compile(r"'([^'\"\n]*)'").match(source.text, start)
    edit = None if match is None else (Span(*match.span()), f'"{match[1]}"')
    return 'strings are written with double quotes, "like this"', edit


def _unknown_boundary(source: Source, start: int) -> Diagnostic:
    word_ = r"[-+]?(?:[0-9.]+[eE][-+]?[0-9]+|[A-Za-z0-9_.]*)"
    match = re.compile(rf"\?[ \t]*({word_})").match(source.text, start)
    assert match is not None
    word = match[1]
    number = re.fullmatch(r"[-+]?((\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|inf)", word)
    meant = f"?({word})" if number else _MODES.get(word.lower())
    if meant is None:
        close = difflib.get_close_matches(f"?{word}", _KNOWN_MODES, 1)
        meant = close[0] if close else None
    span = Span(*match.span())
    return Diagnostic(
        "unknown-boundary",
        f"there is no boundary mode `{match[0]}`" if word else "`?` without a boundary mode",
        (Label(span),),
        ("the modes are ?0 ?(value) ?clamp ?reflect ?symmetric ?wrap, and ?drop on writes",),
        "" if meant is None else f"write `{meant}`",
        None if meant is None else (span, meant),
    )
