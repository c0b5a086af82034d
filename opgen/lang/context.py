"""Where the parser stopped, and what stands around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lark import Token

from opgen.errors import Edit, Source, Span
from opgen.lang import syntax
from opgen.lang.layout import CLOSING, OPENING, token_span

WORDS = frozenset(
    ("NAME", "INT", "FLOAT", "STRING", "DOC", "BOUNDARY", "COMPARISON", "_NEWLINE", "$END")
)
"""The tokens that stand for many texts; others are keywords, brackets and operators."""

ASSIGNMENTS = ("EQUALS", "PLUS_EQUALS", "MAX_EQUALS", "MIN_EQUALS")

Hint = tuple[str, Edit | None]


@dataclass(frozen=True, slots=True)
class Context:
    """Where the parser stopped: its token, what stands around it in the clause, what would do."""

    source: Source
    token: Token
    before: tuple[Token, ...]
    after: tuple[Token, ...]
    expected: frozenset[str]

    @property
    def last(self) -> str:
        """The type of the token before."""
        return self.before[-1].type if self.before else ""

    @property
    def gap(self) -> Span:
        """Between the token before and this one."""
        return Span(token_span(self.before[-1]).end, token_span(self.token).start)

    @property
    def between(self) -> str:
        """The text between the token before and this one."""
        return self.source.text[self.gap.start : self.gap.end]

    def all_opened(self) -> list[Token]:
        """The brackets that are still open, the innermost last."""
        open_: list[Token] = []
        for token in self.before:
            if token.type in OPENING:
                open_.append(token)
            elif token.type in CLOSING and open_:
                open_.pop()
        return open_

    def opened(self) -> Token | None:
        """The innermost bracket that is still open."""
        return next(reversed(self.all_opened()), None)

    def owner(self) -> Token | None:
        """The token before the innermost open bracket, such as the tensor whose index it holds."""
        opened = self.opened()
        at = next((i for i, token in enumerate(self.before) if token is opened), 0)
        return self.before[at - 1] if at else None

    def reduction(self) -> Token | None:
        """The bracket that is open and belongs to a reduction, as in `sum(`."""
        opened = self.opened()
        if opened is None or opened.type != "LPAR":
            return None
        return opened if self.owner() in syntax.REDUCERS else None

    def text(self, start: int, stop: int) -> str:
        """The text between two positions, without blanks around it."""
        return self.source.text[start:stop].strip()


def matching(after: Sequence[Token]) -> Token | None:
    """The token that closes a bracket behind which `after` stands."""
    depth = 1
    for token in after:
        depth += (token.type in OPENING) - (token.type in CLOSING)
        if depth == 0:
            return token
    return None
