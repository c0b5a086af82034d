"""Between lexer and parser: which newlines end a clause, and how much text is too much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lark import Token
from lark.lark import PostLex

from opgen.errors import Diagnostic, Edit, Label, Span

_MAX_NESTING: Final = 40
_MAX_TOKENS: Final = 600


class Refused(Exception):  # noqa: N818  # carries a diagnostic; `parse` turns it into OpgenError
    """Text that is refused with one diagnostic."""

    def __init__(
        self, code: str, headline: str, span: Span, advice: str = "", edit: Edit | None = None
    ) -> None:
        super().__init__(headline)
        self.diagnostic = Diagnostic(code, headline, (Label(span),), help=advice, replacement=edit)


def token_span(token: Token) -> Span:
    """Where a token stands."""
    start = token.start_pos or 0
    return Span(start, token.end_pos if token.end_pos is not None else start)


OPENING: Final = frozenset({"LPAR", "LSQB", "_FILL_OPEN"})
CLOSING: Final = frozenset({"RPAR", "RSQB"})
_CLAUSES: Final = {"OP", "WHERE", "LET", "WITH", "TMP", "CONST", "GRADIENT"}
_CONTINUES_AFTER: Final = {
    "COMMA", "PLUS", "MINUS", "STAR", "SLASH", "DOUBLE_SLASH", "PERCENT", "_POWER", "COMPARISON",
    "EQUALS", "PLUS_EQUALS", "MAX_EQUALS", "MIN_EQUALS", "AND", "OR", "NOT", "FOR", "IF", "IN",
    "_ARROW", "WHERE", "LET", "WITH", "TMP", "CONST", "OP", "SEMICOLON", "COLON", "VBAR",
}  # fmt: skip
_CONTINUES_BEFORE: Final = {
    "PLUS", "MINUS", "STAR", "SLASH", "DOUBLE_SLASH", "PERCENT", "_POWER", "COMPARISON", "EQUALS",
    "PLUS_EQUALS", "MAX_EQUALS", "MIN_EQUALS", "AND", "OR", "FOR", "IF", "COMMA", "_ARROW",
    "SEMICOLON", "RPAR", "RSQB",
}  # fmt: skip


class Layout(PostLex):
    """Keeps a newline only where a clause ends; keeps doc comments only before an op."""

    always_accept = ()

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth = length = negations = 0
        newline: Token | None = None
        docs: list[Token] = []
        last: Token | None = None
        for token in stream:
            if token.type == "_NEWLINE":
                newline = newline or token
                continue
            if token.type == "DOC":
                docs.append(token)
                continue
            if newline is not None and token.type in _CLAUSES:
                depth = 0  # a bracket was left open: the fault is in that clause, not in this one
            if token.type in OPENING:
                depth += 1
            elif token.type in CLOSING:
                depth = max(0, depth - 1)
            if newline is not None and depth == 0 and last is not None:
                joined = last.type in _CONTINUES_AFTER or token.type in _CONTINUES_BEFORE
                if not joined and token.type not in CLOSING:
                    yield newline
                    length = 0
            newline = None
            if token.type == "OP":
                yield from docs
            docs = []
            length += 1
            negations = negations + 1 if token.type == "NOT" else 0
            if depth + negations > _MAX_NESTING:
                raise Refused(
                    "too-deep",
                    f"brackets are nested deeper than {_MAX_NESTING}",
                    token_span(token),
                    "name parts of the expression with `with` or a temporary",
                )
            if length > _MAX_TOKENS:
                raise Refused(
                    "too-long",
                    f"one clause has more than {_MAX_TOKENS} words",
                    token_span(token),
                    "name parts of it with `with` or a temporary",
                )
            yield token
            last = token
        if last is not None:
            yield Token.new_borrow_pos("_NEWLINE", "", last)
