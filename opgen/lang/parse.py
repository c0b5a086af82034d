"""Spec text to syntax tree, or an `OpgenError` that says what was expected.

The parser is LALR(1), built once per process. Newlines are significant only where a clause may end:
`lang.layout` removes the others between lexer and parser, and refuses text whose nesting or length
the later, recursive stages could not take. After a fault the clause that holds it is blanked out
and the text is parsed again, so that one run shows the faults of all clauses.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Final

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedToken, VisitError

from opgen import resources
from opgen.errors import Diagnostic, OpgenError, Source, Span
from opgen.lang import syntax
from opgen.lang.character_errors import unexpected_character
from opgen.lang.context import Context
from opgen.lang.layout import Layout, Refused, token_span
from opgen.lang.syntax_errors import unexpected_token
from opgen.lang.tree import TreeBuilder

_MAX_FAULTS: Final = 20


def parse(source: Source) -> syntax.File:
    """The tree of a spec. Raises OpgenError on text that is not a spec."""
    file, faults = parse_readable(source)
    if faults:
        raise OpgenError(faults, source)
    return file


def parse_readable(source: Source) -> tuple[syntax.File, tuple[Diagnostic, ...]]:
    """The ops whose signature can be read, marked where they are damaged, and the faults."""
    faults: list[Diagnostic] = []
    damages: list[tuple[int, tuple[str, ...]]] = []  # where clauses were lost, with their names
    remaining = source
    while len(faults) < _MAX_FAULTS:
        try:
            file: syntax.File = TreeBuilder(remaining).transform(_parser().parse(remaining.text))
        except (UnexpectedToken, UnexpectedCharacters, VisitError, Refused) as error:
            fault = _diagnosed(error, remaining)
            faults.append(fault)
            offset = fault.labels[0].span.start
            span, whole = _surroundings(remaining, offset)
            lost = remaining.text[span.start : span.end]
            if not whole:
                damages.append((offset, tuple(_DEFINED.findall(lost))))
            remaining = remaining.edited((span, _blank(lost)))
            continue
        return _marked(file, damages), tuple(faults)
    return syntax.File(()), tuple(faults)


# What a clause may define: a statement its target, a `let`, `with`, `tmp` or `const` its names.
_DEFINED: Final = re.compile(r"([A-Za-z_]\w*)\s*(?=[\[=:])")


def _marked(file: syntax.File, damages: list[tuple[int, tuple[str, ...]]]) -> syntax.File:
    """The file with the damages noted in the ops they belong to."""
    definitions = list(file.definitions)
    for offset, names in damages:
        before = [i for i, d in enumerate(definitions) if d.span.start <= offset]
        if before:
            hurt = definitions[before[-1]]
            definitions[before[-1]] = replace(hurt, damaged=True, lost=(*hurt.lost, *names))
    return syntax.File(tuple(definitions))


def _diagnosed(error: Exception, source: Source) -> Diagnostic:
    match error:
        case UnexpectedToken(token=token):
            before, after = _clause_around(token, source.text)
            expected = frozenset(error.accepts or error.expected)
            return unexpected_token(Context(source, token, before, after, expected), _spelled)
        case UnexpectedCharacters(pos_in_stream=offset):
            return unexpected_character(source, offset or 0)
        case VisitError(orig_exc=Refused() as refused):
            return refused.diagnostic
        case Refused():
            return error.diagnostic
        case _:
            raise error


def _spelled(terminal: str) -> str:
    return str(_parser().get_terminal(terminal).pattern.value)


# ---------------------------------------------------------------------------- clauses
Tokens = tuple[Token, ...]


def _clauses(text: str) -> list[Tokens]:
    """The tokens of every clause, without the newlines that end them."""
    while True:
        try:
            # Lark.lex would build and check a new lexer at each call.
            parsing = _parser().parse_interactive(text)
            stream = parsing.lexer_thread.lex(parsing.parser_state)  # type: ignore[no-untyped-call]
            tokens: list[Token] = list(stream)
        except UnexpectedCharacters as error:
            at = error.pos_in_stream or 0
            text = text[:at] + " " + text[at + 1 :]
        except Refused:
            return []
        else:
            break
    clauses: list[Tokens] = []
    clause: list[Token] = []
    for token in tokens:
        if token.type != "_NEWLINE":
            clause.append(token)
        elif clause:
            clauses.append(tuple(clause))
            clause = []
    return clauses


def _clause_around(token: Token, text: str) -> tuple[Tokens, Tokens]:
    """The tokens of the same clause before and after one; a newline belongs to what it ends."""
    offset = token_span(token).start
    if token.type in ("_NEWLINE", "$END"):
        # The newline at the end of the file stands where the last token does.
        ended = [c for c in _clauses(text) if token_span(c[0]).start <= offset]
        return (ended[-1] if ended else ()), ()
    for clause in _clauses(text):
        starts = [token_span(t).start for t in clause]
        if offset in starts:
            at = starts.index(offset)
            return clause[:at], clause[at + 1 :]
    return (), ()


def _surroundings(source: Source, offset: int) -> tuple[Span, bool]:
    """The clause around an offset, or the whole op if that is its signature; and which it is."""
    clauses = _clauses(source.text)
    inside = [i for i, clause in enumerate(clauses) if token_span(clause[0]).start <= offset]
    if not inside:
        first = token_span(clauses[0][0]).start if clauses else len(source.text)
        return Span(0, first), True
    first = last = inside[-1]
    whole = any(token.type == "OP" for token in clauses[first])
    while whole and last + 1 < len(clauses) and all(t.type != "OP" for t in clauses[last + 1]):
        last += 1
    end = len(source.text)
    if last + 1 < len(clauses):
        end = token_span(clauses[last + 1][0]).start
    return Span(token_span(clauses[first][0]).start, end), whole


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


@functools.cache
def _parser() -> Lark:
    return Lark(
        resources.GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        strict=True,
        propagate_positions=True,
        maybe_placeholders=True,
        postlex=Layout(),
    )
