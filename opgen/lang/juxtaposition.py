"""Two operands side by side: a product on paper, but in a spec something stands between them."""

from __future__ import annotations

import re
from typing import Final

from opgen.errors import Edit, Span
from opgen.lang.context import Context, Hint, matching
from opgen.lang.layout import CLOSING, OPENING, token_span

OPERAND_ENDS: Final = ("NAME", "INT", "FLOAT", "RPAR", "RSQB")
_OPERAND_STARTS: Final = ("NAME", "INT", "FLOAT", "LPAR", "TRUE", "FALSE", "INF")
_PRODUCT: Final = "a product is written with `*`"


def found(context: Context) -> bool:
    """Whether two operands stand side by side on one line."""
    return (
        context.last in OPERAND_ENDS
        and context.token.type in _OPERAND_STARTS
        and "\n" not in context.between
    )


def of_values(context: Context) -> Hint | None:
    """`2x[n]` for `2*x[n]`."""
    if "STAR" not in context.expected or not found(context):
        return None
    return _PRODUCT, _with_stars(context)


def in_head(context: Context) -> Hint | None:
    """`sum(h w) x[h,w]` for `sum(h,w) x[h,w]`."""
    opened, closing = context.reduction(), matching(context.after)
    if opened is None or closing is None or not found(context):
        return None
    tokens = (*context.before, context.token, *context.after)
    first = next(at for at, token in enumerate(tokens) if token is opened) + 1
    last = next(at for at, token in enumerate(tokens) if token is closing)
    is_head = last + 1 < len(tokens) and tokens[last + 1].type in _OPERAND_STARTS
    if not is_head or {token.type for token in tokens[first:last]} - {"NAME", "COMMA"}:
        return None  # in a range or a condition something else may be missing
    names = ",".join(str(token) for token in tokens[first:last] if token.type == "NAME")
    inside = Span(token_span(opened).end, token_span(closing).start)
    return "the iterators of a reduction are separated by commas", (inside, names)


def in_brackets(context: Context) -> Hint | None:
    """`x[2m]` for `x[2*m]`, `x[n 1]` for `x[(n 1)]`, or `x[n k]` for `x[n,k]`."""
    opened = context.opened()
    if opened is None or opened.type != "LSQB" or not found(context):
        return None
    if context.last in ("INT", "FLOAT") and context.token.type in ("NAME", "LPAR"):
        return _PRODUCT, _with_stars(context)
    if any(token.type == "OP" for token in context.before) and context.last == "NAME":
        advice = "dims are separated by commas; the parts of one dim stand in parentheses, (C r)"
        return advice, (context.gap, ", ")
    dims, axis = _declared_dims(context), _axis(context)
    parts = dims[axis].strip("()").split() if axis < len(dims) and dims[axis][0] == "(" else []
    index = _index(context)
    if len(parts) > 1 and len(context.source.text[index.start : index.end].split()) == len(parts):
        text = context.source.text[index.start : index.end]
        declared = f"({' '.join(parts)})"
        return f"the index of the dim {declared} stands in parentheses", (index, f"({text})")
    if len(dims) == axis + 1 and context.token.type == "NAME":
        return _PRODUCT, _with_stars(context)  # there is no dim for one more index
    return "indices are separated by commas", (context.gap, ", ")


def _with_stars(context: Context) -> Edit:
    """A `*` here and wherever a name follows a number like that in the rest of the clause."""
    start = stop = context.gap.start
    text, previous = "", context.before[-1]
    for token in (context.token, *context.after):
        gap = Span(token_span(previous).end, token_span(token).start)
        product = previous.type in ("INT", "FLOAT") and token.type in ("NAME", "LPAR")
        if token is context.token or (product and gap.start == gap.end):
            text += context.source.text[stop : gap.start] + "*"
            stop = gap.end
        previous = token
    return Span(start, stop), text


def _axis(context: Context) -> int:
    """How many indices stand before the one at hand."""
    count = depth = 0
    for token in reversed(context.before):
        depth += (token.type in CLOSING) - (token.type in OPENING)
        if depth < 0:
            break
        count += depth == 0 and token.type == "COMMA"
    return count


def _index(context: Context) -> Span:
    """The index at hand, without a boundary mode."""
    start, end, depth = context.gap.start, token_span(context.token).end, 0
    for token in reversed(context.before):
        depth += (token.type in CLOSING) - (token.type in OPENING)
        if depth < 0 or (depth == 0 and token.type == "COMMA"):
            break
        start = token_span(token).start
    depth = 0
    for token in (context.token, *context.after):
        depth += (token.type in OPENING) - (token.type in CLOSING)
        if depth < 0 or (depth == 0 and token.type in ("COMMA", "BOUNDARY")):
            break
        end = token_span(token).end
    return Span(start, end)


def _declared_dims(context: Context) -> list[str]:
    """The dims with which the tensor at hand is declared, as they are written; none if unknown."""
    name = context.owner()
    if name is None:
        return []
    text = context.source.text[: token_span(context.before[0]).start]
    signature = text[max((match.start() for match in re.finditer(r"\bop\b", text)), default=0) :]
    declared = re.search(rf"\b{re.escape(name)}\s*(?::\s*\w+\s*)?\[([^\]]*)\]", signature)
    return [dim.strip() or " " for dim in declared[1].split(",")] if declared else []
