"""What is wrong with a token that cannot stand where it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lark import Token

from opgen.errors import Diagnostic, Label, Source, Span
from opgen.lang.context import ASSIGNMENTS, Context
from opgen.lang.habits import advice
from opgen.lang.layout import token_span

_NAMES: Final = {
    "NAME": "a name",
    "INT": "an integer",
    "FLOAT": "a number",
    "STRING": "a string",
    "_NEWLINE": "the end of the line",
    "$END": "the end of the file",
    "DOC": "a doc comment",
    "BOUNDARY": "a boundary mode",
    "COMPARISON": "a comparison",
}
_FEW: Final = 6


def unexpected_token(context: Context, spelled: Callable[[str], str]) -> Diagnostic:
    """The diagnostic of a token that cannot stand where it does."""
    token, source = context.token, context.source
    span = token_span(token)
    ends = token.type in ("_NEWLINE", "$END")
    if ends:
        stop = token_span(context.before[-1]).end if context.before else span.start
        rest = source.text[stop:]
        found = "the line ends" if rest.strip() else "the file ends"
        span = Span(stop, stop + 1)
    elif token.isalpha() and token.type not in _NAMES:
        found = f"the keyword '{token}' stands here"
    else:
        found = f"'{token}' stands here"
    labels = [Label(span)]
    opened = context.opened()
    apart = opened is not None and _line(source, opened) != _line(source, token)
    assigns = token.type in ASSIGNMENTS
    assigns = assigns and not any(t.type in ("OP", *ASSIGNMENTS) for t in context.before)
    if opened is not None and (ends or apart or assigns):
        labels.append(Label(token_span(opened), f"this '{opened[-1]}' is not closed"))
    words, edit = advice(context)
    wanted = _wanted(context.expected, spelled)
    notes = () if words else (_form(context),)
    headline = f"expected {wanted}, but {found}"
    return Diagnostic("syntax", headline, tuple(labels), notes, words, edit)


_FORMS: Final = {
    "OP": "an op begins like `op name(x[N,C], w: f32[C] = 1; r = 2) -> y[N]`",
    "WHERE": "conditions of a call are written like `where r >= 1, p >= 0`",
    "LET": "sizes are defined like `let V = W + 2*p, U = V//2`",
    "WITH": "aliases for the next statement are written like `with i = v - c*step`",
    "TMP": "temporaries are declared like `tmp g[N,V], s: int[]`",
    "CONST": "tables are written like `const k = [[1, 2], [3, 4]]`",
    "GRADIENT": "a hand-written gradient is named like `gradient x by op_of_this_file`",
}


def _form(context: Context) -> str:
    """An example of the clause at hand."""
    first = next((t.type for t in (*context.before, context.token) if t.type != "DOC"), "")
    return _FORMS.get(
        first, "a statement is written like `y[n] = sum(c) x[n,c] for n in N if n > 0`"
    )


def _line(source: Source, token: Token) -> int:
    return source.position(token_span(token).start)[0]


def _wanted(expected: frozenset[str], spelled: Callable[[str], str]) -> str:
    words = sorted({_NAMES.get(name) or f"'{spelled(name)}'" for name in expected})
    if len(words) <= _FEW:
        return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
    if "WHERE" in expected:
        return "a clause or a statement"
    if {"NAME", "INT"} <= expected:
        return "an expression"
    if "_NEWLINE" in expected:
        return "an operator or the end of the clause"
    return "an operator or a closing bracket"
