"""`|` and `||`: a magnitude or a norm as on paper, or the `or` of another language."""

from __future__ import annotations

from opgen.errors import Edit, Span
from opgen.lang import syntax
from opgen.lang.context import Context, Hint
from opgen.lang.juxtaposition import OPERAND_ENDS
from opgen.lang.layout import CLOSING, OPENING, token_span


def norm(context: Context) -> Hint | None:
    """`||x||` where a value begins."""
    if not _opens(context) or not context.after or context.after[0].type != "VBAR":
        return None
    if token_span(context.after[0]).start != token_span(context.token).end:
        return None
    return "a norm is written sqrt(sum(k) x[k]**2), and a magnitude abs(x[n])", None


def magnitude(context: Context) -> Hint | None:
    """`|a - b|` for `abs(a - b)`."""
    if not _opens(context):
        return None
    edit = _as_calls(context)
    if edit is None and context.last in OPERAND_ENDS:
        return None
    return "a magnitude is written abs(x[n])", edit


def disjunction(context: Context) -> Hint | None:
    """`a || b` for `a or b`."""
    if context.token.type != "VBAR":
        return None
    span = token_span(context.token)
    twice = context.source.text[span.end : span.end + 1] == "|"
    return "conditions are joined by `or`", (Span(span.start, span.end + twice), "or")


def _opens(context: Context) -> bool:
    """Whether a bar stands where a value begins: after an operator, or the head of a reduction."""
    if context.token.type != "VBAR" or "NAME" not in context.expected:
        return False
    return context.last not in OPERAND_ENDS or _after_head(context)


def _after_head(context: Context) -> bool:
    depth = 0
    for at in range(len(context.before) - 1, 0, -1):
        token = context.before[at]
        depth += (token.type in CLOSING) - (token.type in OPENING)
        if depth == 0:
            return context.last == "RPAR" and context.before[at - 1] in syntax.REDUCERS
    return False


def _as_calls(context: Context) -> Edit | None:
    """All bars of the clause, from the one at hand on, as calls; None if they are no pairs."""
    start = stop = token_span(context.token).start
    text, previous = "", ""
    open_: list[int] = []  # the depth of brackets at which each magnitude begins
    depth = 0
    for token in (context.token, *context.after):
        if token.type != "VBAR":
            depth += (token.type in OPENING) - (token.type in CLOSING)
            previous = token.type
            continue
        closes = bool(open_) and open_[-1] == depth and previous in OPERAND_ENDS
        if not closes and previous in OPERAND_ENDS:
            return None
        span = token_span(token)
        text += context.source.text[stop : span.start] + (")" if closes else "abs(")
        stop = span.end
        if closes:
            open_.pop()
        else:
            open_.append(depth)
        previous = "RPAR" if closes else "LPAR"
    return None if open_ else (Span(start, stop), text)
