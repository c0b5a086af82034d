"""Values chosen by a condition as other languages write them; a spec has `select`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lark import Token

from opgen.errors import Edit, Source, Span
from opgen.lang.context import ASSIGNMENTS, Context, Hint
from opgen.lang.layout import CLOSING, OPENING, token_span

ADVICE: Final = "a value is chosen by select(condition, value, otherwise)"


def conditional(context: Context) -> Hint | None:
    """`a if c else b` for `select(c, a, b)`."""
    if context.token != "else":
        return None
    types = [t.type for t in context.before]
    start = next((i for i, t in enumerate(types) if t in ASSIGNMENTS), None)
    condition = max((i for i, t in enumerate(types) if t == "IF"), default=None)
    if start is None or condition is None or condition < start or not context.after:
        return ADVICE, None
    text = context.source.text
    value = text[
        token_span(context.before[start]).end : token_span(context.before[condition]).start
    ]
    test = text[token_span(context.before[condition]).end : token_span(context.token).start]
    end = token_span(context.after[-1]).end
    otherwise = text[token_span(context.token).end : end]
    edit = (
        Span(token_span(context.before[start]).end, end),
        f" select({test.strip()}, {value.strip()}, {otherwise.strip()})",
    )
    return ADVICE, edit


def in_parentheses(context: Context) -> Hint | None:
    """`(a if c else b)`, `f(a if c else b)`, or `(a if c)` without what it is otherwise."""
    opened = context.opened()
    if opened is None or opened.type != "LPAR":
        return None
    begins = context.token.type == "IF" and "RPAR" in context.expected
    if context.token != "else" and (not begins or context.reduction() is not None):
        return None
    tokens = (*context.before, context.token, *context.after)
    bracket = next(at for at, token in enumerate(context.before) if token is opened)
    start, end = _argument(tokens, bracket, len(context.before))
    tests = [at for at in range(start, end) if tokens[at].type == "IF"]
    elses = [at for at in range(start, end) if tokens[at] == "else"]
    if not elses:
        return f"{ADVICE}; say what it is otherwise", None
    whole = all((len(tests) == 1, len(elses) == 1, end < len(tokens), tokens[end - 1] != "else"))
    if not whole or not start < tests[0] < elses[0] - 1:
        return ADVICE, None
    between = [
        context.text(token_span(tokens[one]).start, token_span(tokens[two]).end)
        for one, two in (
            (tests[0] + 1, elses[0] - 1),
            (start, tests[0] - 1),
            (elses[0] + 1, end - 1),
        )
    ]
    # Parentheses that hold nothing else are those of the call now.
    groups = bracket == 0 or tokens[bracket - 1].type != "NAME"
    alone = groups and start == bracket + 1 and tokens[end].type == "RPAR"
    first, last = (bracket, end) if alone else (start, end - 1)
    span = token_span(tokens[first]).to(token_span(tokens[last]))
    return ADVICE, (span, f"select({', '.join(between)})")


def _argument(tokens: Sequence[Token], bracket: int, at: int) -> tuple[int, int]:
    """The first and one past the last token of the argument of a bracket in which one stands."""
    start, depth = bracket + 1, 0
    for place in range(bracket + 1, len(tokens)):
        token = tokens[place]
        if depth == 0 and (token.type in CLOSING or token.type in ("COMMA", "SEMICOLON")):
            if place > at:
                return start, place
            start = place + 1
        depth += (token.type in OPENING) - (token.type in CLOSING)
    return start, len(tokens)


def chosen_by_mark(context: Context) -> Hint | None:
    """`c ?0 : b`, where the mark and what follows it are read as a boundary mode."""
    if context.token.type not in ("BOUNDARY", "_FILL_OPEN"):
        return None
    return ternary(context.source, token_span(context.token).start)


def ternary(source: Source, mark: int) -> Hint | None:
    """`c ? a : b` for `select(c, a, b)`, from the place of the question mark."""
    line = Span(source.text.rfind("\n", 0, mark) + 1, len(source.text))
    ends = [at for at in (source.text.find(c, mark) for c in "\n#") if at >= 0]
    line = Span(line.start, min(ends, default=line.end))
    colon = _forward(source.text, mark + 1, line.end, ":")
    if colon is None or source.text[colon] != ":":
        return None
    stop = _forward(source.text, colon + 1, line.end, ",")
    end = line.end if stop is None else stop
    start = _back(source.text, mark, line.start)
    return ADVICE, _selected(source.text, start, mark, colon, end)


def _selected(text: str, start: int, mark: int, colon: int, end: int) -> Edit | None:
    parts = [text[start:mark].strip(), text[mark + 1 : colon].strip(), text[colon + 1 : end]]
    parts[2] = parts[2].strip()
    several = any("?" in part or " if " in part or " for " in part for part in parts)
    if several or not all(parts):
        return None
    first = start + len(text[start:mark]) - len(text[start:mark].lstrip())
    last = colon + 1 + len(text[colon + 1 : end].rstrip())
    call = f"select({', '.join(parts)})"
    before = text[first - 2 : first - 1]
    if text[first - 1] == "(" and text[last : last + 1] == ")" and not before.isalnum():
        return Span(first - 1, last + 1), call  # these parentheses held nothing else
    return Span(first, last), call


def _forward(text: str, start: int, end: int, wanted: str) -> int | None:
    """The next character of this kind, or the closing bracket before it."""
    depth = 0
    for at in range(start, end):
        if depth == 0 and text[at] in f"{wanted})]":
            return at
        depth += (text[at] in "([") - (text[at] in ")]")
    return None


def _back(text: str, end: int, start: int) -> int:
    """Where the value begins that ends here: after a bracket, a comma or an assignment."""
    depth = 0
    for at in range(end - 1, start - 1, -1):
        assigns = text[at] == "=" and text[at - 1] not in "=<>!" and text[at + 1] != "="
        if depth == 0 and (text[at] in "([," or assigns):
            return at + 1
        depth += (text[at] in ")]") - (text[at] in "([")
    return start
