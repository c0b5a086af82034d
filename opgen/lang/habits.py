"""What was probably meant by text that is not a spec.

The parser says where it stopped and what it would have taken. A newcomer needs more: which habit of
another language led there. Each habit is one function below, from the tokens around the fault to a
piece of advice; the first one that recognises its habit speaks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Final

from opgen.errors import Span
from opgen.lang import bars, conditionals, foreign, juxtaposition, syntax
from opgen.lang.context import WORDS, Context, Hint
from opgen.lang.layout import CLOSING, OPENING, token_span

_CLAUSE_WORDS: Final = ("where", "let", "with", "tmp", "const", "gradient")
_AFTER_TERM: Final = frozenset(
    {"PLUS", "MINUS", "COMPARISON", "AND", "OR", "FOR", "IF", "COMMA", "SEMICOLON", "_NEWLINE"}
)


def advice(context: Context) -> Hint:
    """Words for the one who wrote this, and an edit of the text; empty where no habit is known."""
    return next(filter(None, (habit(context) for habit in _HABITS)), ("", None))


# ---------------------------------------------------------------------------- habits
def _keyword(context: Context) -> Hint | None:
    token = context.token
    if token.type in WORDS or not token.isalpha() or "NAME" not in context.expected:
        return None
    return f"'{token}' is a keyword; a tensor, size or iterator needs another name", None


def _equals_for_comparison(context: Context) -> Hint | None:
    if context.token.type != "EQUALS":
        return None
    words = [t.type for t in context.before if t.type in ("WHERE", "IF", "LET", "WITH", "FOR")]
    if words and words[-1] in ("WHERE", "IF"):
        return "comparisons are written `==`", (token_span(context.token), "==")
    return None


def _comparison_for_equals(context: Context) -> Hint | None:
    if context.token != "==" or context.expected != {"EQUALS"}:
        return None
    return "a name is defined with `=`", (token_span(context.token), "=")


def _attribute_among_tensors(context: Context) -> Hint | None:
    """`op f(x[N], r = 2)` for `op f(x[N]; r = 2)`."""
    heads = [t.type for t in context.before]
    if not heads or heads[0] not in ("OP", "DOC") or "_ARROW" in heads or "SEMICOLON" in heads:
        return None
    if not context.expected <= {"COLON", "LSQB"}:
        return None
    advice = "a tensor has dims, x[N], or x[] for a single number; attributes follow `;`"
    commas = [t for t in context.before if t.type == "COMMA"]
    until = [t.type for t in context.after]
    mixed = "SEMICOLON" in until[: until.index("_ARROW")] if "_ARROW" in until else True
    opened = context.opened()
    if not commas or mixed or opened is None or context.token.type == "SEMICOLON":
        return advice, None
    return advice, (token_span(commas[-1]), ";")


def _dims_of_output(context: Context) -> Hint | None:
    """`op f(x[N]) -> y` for `op f(x[N]) -> y[]`."""
    heads = [t.type for t in context.before]
    if "_ARROW" not in heads or not context.expected <= {"COLON", "LSQB"}:
        return None
    name = context.before[-1]
    return f"an output has dims, such as {name}[N], or {name}[] for a single number", None


def _colon_after_signature(context: Context) -> Hint | None:
    """`op f(x[N]) -> y[N]:`, as a function begins in Python."""
    if context.token.type != "COLON" or "_ARROW" not in [t.type for t in context.before]:
        return None
    span = token_span(context.token)
    if context.source.text[span.end :].partition("\n")[0].strip():
        return None
    return "a signature ends with its line, without `:`", (span, "")


def _attribute_starts(context: Context) -> Hint | None:
    """`op f(x[N]; r = 2; s = 1)` for a comma between attributes, or `x[N;M]` between dims."""
    if context.token.type != "SEMICOLON" or "COMMA" not in context.expected:
        return None
    opened = context.opened()
    what = "dims" if opened is not None and opened.type == "LSQB" else "attributes"
    return f"{what} are separated by commas", (token_span(context.token), ",")


def _statement_terminator(context: Context) -> Hint | None:
    if context.token.type != "SEMICOLON" or context.opened() is not None:
        return None
    return "a statement ends with its line, without `;`", (token_span(context.token), "")


def _arrow(context: Context) -> Hint | None:
    """`op f(x[N]) y[N]`, or `=>` for `->`."""
    if context.expected != {"_ARROW"}:
        return None
    token, after = context.token, context.after
    if token.type == "EQUALS" and after and after[0] == ">":
        return "the outputs follow `->`", (token_span(token).to(token_span(after[0])), "->")
    if token.type != "NAME":
        return None
    start = token_span(context.token).start
    return "the outputs follow `->`", (Span(start, start), "-> ")


def _clause_word(context: Context) -> Hint | None:
    """`wher r >= 1` for `where r >= 1`."""
    if len(context.before) != 1 or context.last != "NAME" or context.token.type != "NAME":
        return None
    word = context.before[0]
    close = difflib.get_close_matches(word.lower(), _CLAUSE_WORDS, 1)
    return (f"did you mean `{close[0]}`?", (token_span(word), close[0])) if close else None


def _reduction_as_divisor(context: Context) -> Hint | None:
    """`a / sum(k) x[k]`."""
    if context.last != "RPAR" or not juxtaposition.found(context):
        return None
    start, depth = len(context.before), 0
    for token in reversed(context.before):
        start, depth = start - 1, depth + (token.type in CLOSING) - (token.type in OPENING)
        if depth == 0:
            break
    if start < 2 or context.before[start - 1] not in syntax.REDUCERS:
        return None
    operator = context.before[start - 2]
    if operator.type not in ("SLASH", "DOUBLE_SLASH", "PERCENT", "_POWER"):
        return None
    whole = Span(token_span(context.before[start - 1]).start, _end_of_term(context))
    text = context.source.text[whole.start : whole.end]
    return f"after `{operator}` a reduction stands in parentheses", (whole, f"({text})")


def _end_of_term(context: Context) -> int:
    """Where the product that begins with the token ends."""
    depth, end = 0, token_span(context.token).start
    for token in (context.token, *context.after):
        depth += (token.type in OPENING) - (token.type in CLOSING)
        if depth < 0 or (depth == 0 and token.type in _AFTER_TERM):
            break
        end = token_span(token).end
    return end


def _reduction_without_brackets(context: Context) -> Hint | None:
    """`max x[n,k]`, or `sum_k x[n,k]` as in LaTeX."""
    if context.last != "NAME" or context.token.type != "NAME" or not juxtaposition.found(context):
        return None
    word = context.before[-1]
    reducer, _, iterator = word.partition("_")
    if reducer not in syntax.REDUCERS:
        return None
    if iterator and re.search(rf"\b{word}\s*[=:,)\[]", context.source.text):
        return None  # it is declared as what it is
    is_index = iterator in (context.token, *context.after)
    edit = (token_span(word), f"{reducer}({iterator})") if is_index else None
    return f"a reduction names its iterators in brackets: {reducer}({iterator or 'k'}) ...", edit


def _unclosed(context: Context) -> Hint | None:
    ends = context.token.type in ("_NEWLINE", "$END")
    if context.opened() is None or not (ends or "\n" in context.between):
        return None
    end = token_span(context.before[-1]).end
    missing = "".join(_CLOSED_BY[opened.type] for opened in reversed(context.all_opened()))
    return f"close the bracket with '{missing[0]}'", (Span(end, end), missing)


_CLOSED_BY: Final = {"LPAR": ")", "_FILL_OPEN": ")", "LSQB": "]"}


def _op_head(context: Context) -> Hint | None:
    """`op (x[N])`, `op f x[N]`, or no `op` at all."""
    types = [t.type for t in context.before if t.type != "DOC"]
    if "OP" in context.expected:
        return "every clause belongs to an op, which begins with op name(x[N]) -> y[N]", None
    if types in (["OP"], ["OP", "NAME"]):
        return "an op begins with its name and its inputs in brackets: op name(x[N]) -> y[N]", None
    return None


def _stray_closing(context: Context) -> Hint | None:
    if context.token.type not in CLOSING or context.opened() is not None:
        return None
    return f"no bracket is open here: remove '{context.token}'", (token_span(context.token), "")


def _unfinished(context: Context) -> Hint | None:
    if context.token.type not in ("_NEWLINE", "$END") or not context.before:
        return None
    if context.last in ("NAME", "INT", "FLOAT", "RPAR", "RSQB", "STRING"):
        return None
    return f"write what follows '{context.before[-1]}', or remove it", None


_HABITS: Final[tuple[Callable[[Context], Hint | None], ...]] = (
    foreign.comment,
    foreign.statement_first,
    _op_head,
    _stray_closing,
    _unclosed,
    conditionals.in_parentheses,
    conditionals.conditional,
    conditionals.chosen_by_mark,
    foreign.where_for_select,
    foreign.where_after,
    foreign.truth,
    foreign.condition_of_a_call,
    foreign.returned,
    foreign.name_without_indices,
    foreign.generator,
    foreign.condition_after_colon,
    foreign.range_after_equals,
    foreign.comma_before_if,
    foreign.square_reduction,
    foreign.brackets_in_a_row,
    foreign.unpacked,
    foreign.number_for_table,
    foreign.call_of_nothing,
    foreign.condition_after_for,
    foreign.call_indexed,
    _clause_word,
    _equals_for_comparison,
    _comparison_for_equals,
    _attribute_starts,
    _attribute_among_tensors,
    _dims_of_output,
    _colon_after_signature,
    _statement_terminator,
    _arrow,
    foreign.parentheses_for_index,
    foreign.other_assignment,
    foreign.plus_after_equals,
    foreign.sign_after_sign,
    foreign.mode_behind_brackets,
    foreign.slice_,
    juxtaposition.in_brackets,
    juxtaposition.in_head,
    _reduction_as_divisor,
    _reduction_without_brackets,
    juxtaposition.of_values,
    bars.norm,
    bars.magnitude,
    bars.disjunction,
    _keyword,
    _unfinished,
)
