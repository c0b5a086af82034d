"""Forms of other languages, and what stands for them in a spec.

Each function takes the place where the parser stopped and gives advice if it recognises its form.
"""

from __future__ import annotations

import re
from typing import Final

from opgen.errors import Edit, Source, Span
from opgen.lang import conditionals, syntax
from opgen.lang.context import ASSIGNMENTS, Context, Hint, matching
from opgen.lang.layout import token_span

COMMENT: Final = "a comment begins with `#`"
_CONDITIONS_OF_A_CALL = ("require", "requires", "assert", "assume", "check", "ensure", "given")


def parentheses_for_index(context: Context) -> Hint | None:
    """`y(n) = ...` for `y[n] = ...`."""
    if context.token.type != "LPAR" or context.expected != {"LSQB"}:
        return None
    closing = matching(context.after)
    edit = None
    if closing is not None:
        inside = context.source.text[token_span(context.token).end : token_span(closing).start]
        edit = (token_span(context.token).to(token_span(closing)), f"[{inside}]")
    return "tensors are indexed with square brackets", edit


def other_assignment(context: Context) -> Hint | None:
    """`y[n] -= x[n]`."""
    token, after = context.token, context.after
    if "PLUS_EQUALS" not in context.expected or not after or after[0].type != "EQUALS":
        return None
    advice = "statements assign with `=`, `+=`, `max=` or `min=`"
    if token.type != "MINUS":
        return advice, None
    value = list(after[1:])
    stop = next((i for i, t in enumerate(value) if t.type in ("FOR", "IF")), len(value))
    if not value[:stop]:
        return advice, None
    whole = token_span(value[0]).to(token_span(value[stop - 1]))
    text = context.source.text[whole.start : whole.end]
    sum_ = any(t.type in ("PLUS", "MINUS") for t in value[:stop])
    negated = f"-({text})" if sum_ else f"-{text}"
    return advice + "; subtract by adding the negative", (
        token_span(token).to(whole),
        f"+= {negated}",
    )


def plus_after_equals(context: Context) -> Hint | None:
    """`y[n] =+ x[n]` for `y[n] += x[n]`."""
    if context.token.type != "PLUS" or context.last != "EQUALS" or context.between:
        return None
    whole = token_span(context.before[-1]).to(token_span(context.token))
    return "what is added up is assigned with `+=`", (whole, "+=")


def sign_after_sign(context: Context) -> Hint | None:
    """`x[i + -1]` for `x[i - 1]`, as programs that write specs put it."""
    if context.token.type != "MINUS" or context.last not in ("PLUS", "MINUS"):
        return None
    ends = ("NAME", "INT", "FLOAT", "RPAR", "RSQB")
    if len(context.before) < 2 or context.before[-2].type not in ends:
        return None
    sign = "-" if context.last == "PLUS" else "+"
    whole = token_span(context.before[-1]).to(token_span(context.token))
    return f"of two signs one is written, here `{sign}`", (whole, sign + context.between)


def mode_behind_brackets(context: Context) -> Hint | None:
    """`x[i - 1]?0` for `x[i - 1 ?0]`."""
    if context.token.type != "BOUNDARY" or context.last != "RSQB":
        return None
    whole = token_span(context.before[-1]).to(token_span(context.token))
    return "a mode belongs to an index, and stands behind it", (whole, f" {context.token}]")


def comment(context: Context) -> Hint | None:
    """`// words` for `# words`, on a line of its own or behind what is complete."""
    begins = not context.before or "\n" in context.between
    if context.token.type == "DOUBLE_SLASH" and (begins or "_NEWLINE" in context.expected):
        return COMMENT, (token_span(context.token), "#")
    edit = words_after_slashes(context.source, token_span(context.token).start)
    return None if edit is None else (COMMENT, edit)


_WORDS: Final = re.compile(r"//[ \t]*([A-Za-z]\w+)(?:[ \t]+(?!(?:for|if)\b)[A-Za-z]|[:;'\"!?])")


def words_after_slashes(source: Source, at: int) -> Edit | None:
    """The `#` for a `//` before a place, where words follow that were never heard of before."""
    start = source.text.rfind("\n", 0, at) + 1
    end = source.text.find("\n", at)
    line = source.text[start : len(source.text) if end < 0 else end]
    found = _WORDS.search(line)
    if found is None or found.start() > at - start or "#" in line[: found.start()]:
        return None
    before = line[: found.start()]
    inside = before.count("(") + before.count("[") > before.count(")") + before.count("]")
    if inside or re.search(rf"\b{found[1]}\b", source.text[: start + found.start()]):
        return None
    return Span(start + found.start(), start + found.start() + 2), "#"


def where_for_select(context: Context) -> Hint | None:
    """`where(c, a, b)` of NumPy and PyTorch."""
    called = bool(context.after) and context.after[0].type == "LPAR"
    if context.token.type != "WHERE" or not called or "NAME" not in context.expected:
        return None
    return conditionals.ADVICE, (token_span(context.token), "select")


def where_after(context: Context) -> Hint | None:
    """`y[n] = x[n] where n > 2`, or `op f(x[N]) -> y[N] where N > 2` on one line."""
    if context.token.type != "WHERE" or "_NEWLINE" not in context.expected:
        return None
    assignment = next((t for t in context.before if t.type in ASSIGNMENTS), None)
    if assignment is None or context.before[0].type != "NAME":
        word = Span(context.gap.start, token_span(context.token).end)
        return "`where` begins a line of its own", (word, "\n  where")
    advice = (
        "a condition of a statement follows `if`; one that every call must meet is a line of its "
        "own that begins with `where`"
    )
    target = context.before[: context.before.index(assignment)]
    iterators = {str(token) for token in target[1:] if token.type == "NAME"}
    if iterators.isdisjoint(context.after) or "IF" in [t.type for t in context.before]:
        return advice, None
    return advice, (token_span(context.token), "if")


def truth(context: Context) -> Hint | None:
    """`; flag = True` for `; flag = true`, and defaults that are `None`."""
    if context.token not in ("True", "False", "None") or context.last != "EQUALS":
        return None
    is_attribute = "TRUE" in context.expected
    if context.token != "None" and is_attribute:
        return "truth is written `true` or `false`", (
            token_span(context.token),
            str(context.token).lower(),
        )
    if is_attribute:
        name = context.before[-2]
        return f"an attribute without a default is declared with its type, {name}: int", None
    if "INT" not in context.expected:
        return None
    return (
        "the default of an input is a number: an input left out is a tensor filled with it",
        None,
    )


def slice_(context: Context) -> Hint | None:
    """`x[:, c]`."""
    opened = context.opened()
    if context.token.type != "COLON" or opened is None or opened.type != "LSQB":
        return None
    return "there are no slices: name an iterator for every dim, x[n,c]", None


def statement_first(context: Context) -> Hint | None:
    """`for n in N: y[n] = x[n]`, or `if r > 1: ...`, before what they belong to."""
    heads = [t.type for t in context.before if t.type != "DOC"]
    if context.token.type not in ("FOR", "IF") or heads[:1] != ["OP"]:
        return None
    return "`for` and `if` follow a statement: y[n] = x[n] for n in N if n > 0", None


def condition_of_a_call(context: Context) -> Hint | None:
    """`require r >= 1` for `where r >= 1`."""
    if len(context.before) != 1 or context.before[0].lower() not in _CONDITIONS_OF_A_CALL:
        return None
    advice = "conditions of a call are written with `where`"
    if any(token.type == "STRING" for token in context.after):
        return f"{advice}, and the message says which does not hold", None
    return advice, (token_span(context.before[0]), "where")


def returned(context: Context) -> Hint | None:
    """`return x[n]`."""
    if len(context.before) != 1 or context.before[0] != "return":
        return None
    return "an output is written by its name and indices: y[n] = ...", None


def name_without_indices(context: Context) -> Hint | None:
    """`y = x` for `y[n] = x[n]`, or `V = W - k` for `let V = W - k`."""
    if len(context.before) != 1 or context.token.type != "EQUALS":
        return None
    if context.last != "NAME" or context.expected != {"LSQB"}:
        return None
    name = context.before[0]
    start = token_span(name).start
    return (
        f"a size is defined with `let {name} = ...`, and a tensor written with its indices, y[n]",
        (Span(start, start), "let ") if name[0].isupper() else None,
    )


def generator(context: Context) -> Hint | None:
    """`sum(x[k] for k in K)` for `sum(k in K) x[k]`."""
    opened, closing = context.reduction(), matching(context.after)
    if context.token.type != "FOR" or opened is None:
        return None
    advice = "a reduction names its iterators before the term: sum(k in K) x[k]"
    if closing is None:
        return advice, None
    value = context.text(token_span(opened).end, token_span(context.token).start)
    iterators = context.text(token_span(context.token).end, token_span(closing).start)
    whole = Span(token_span(opened).start, token_span(closing).end)
    return advice, (whole, f"({iterators}) ({value})")


def condition_after_colon(context: Context) -> Hint | None:
    """`sum(k: k <= n) x[k]` for `sum(k if k <= n) x[k]`."""
    if context.token.type != "COLON" or context.reduction() is None:
        return None
    return "a condition of a reduction follows `if`", (token_span(context.token), " if")


def range_after_equals(context: Context) -> Hint | None:
    """`sum(k = 0..K)` for `sum(k in K)`."""
    if context.token.type != "EQUALS" or context.reduction() is None:
        return None
    return "the range of an iterator is its extent: `k in K` runs from 0 up to K", None


def comma_before_if(context: Context) -> Hint | None:
    """`sum(k, if k < n)` for `sum(k if k < n)`."""
    if context.token.type != "IF" or context.last != "COMMA" or context.reduction() is None:
        return None
    comma = token_span(context.before[-1])
    return "a condition follows the iterators without a comma", (comma, "")


def square_reduction(context: Context) -> Hint | None:
    """`sum[k] x[k]` for `sum(k) x[k]`."""
    types = [t.type for t in context.before]
    if context.last != "RSQB" or context.token.type != "NAME" or "LSQB" not in types:
        return None
    at = len(types) - 1 - types[::-1].index("LSQB")
    if at == 0 or context.before[at - 1] not in syntax.REDUCERS:
        return None
    first, last = token_span(context.before[at]), token_span(context.before[-1])
    inside = context.text(first.end, last.start)
    return "a reduction stands in round brackets", (first.to(last), f"({inside})")


def brackets_in_a_row(context: Context) -> Hint | None:
    """`x[n][k]` for `x[n,k]`."""
    if context.token.type != "LSQB" or context.last != "RSQB":
        return None
    whole = token_span(context.before[-1]).to(token_span(context.token))
    return "one pair of brackets holds all indices, x[n,k]", (whole, ", ")


def call_of_nothing(context: Context) -> Hint | None:
    """`rand()`, as of libraries that draw numbers or make tensors."""
    function = context.owner()
    if context.token.type != "RPAR" or context.last != "LPAR" or function is None:
        return None
    if function.type != "NAME" or function in syntax.REDUCERS:
        return None
    advice = (
        "a function has an argument, as exp(x[n]); what changes without one, such as random "
        "numbers, is an input of the op"
    )
    return advice, None


def condition_after_for(context: Context) -> Hint | None:
    """`sum(k) x[k] for k <= n` for `sum(k if k <= n) x[k]`."""
    is_range = len(context.before) > 1 and context.before[-2].type == "FOR"
    if context.token.type != "COMPARISON" or not is_range:
        return None
    return (
        "`for` gives a range, `for k in K`; a condition follows `if`, that of a reduction in its "
        "brackets: sum(k if k <= n)",
        None,
    )


def call_indexed(context: Context) -> Hint | None:
    """`f(x)[i]`, as if an op were a function."""
    if context.token.type != "LSQB" or context.last != "RPAR":
        return None
    return (
        "brackets follow a tensor's name: write the formula of what is called here, or call one op "
        "after the other in Python",
        None,
    )


def number_for_table(context: Context) -> Hint | None:
    """`const s = 0.5`."""
    types = [token.type for token in context.before]
    if types != ["CONST", "NAME", "EQUALS"] or context.token.type not in ("INT", "FLOAT"):
        return None
    name, number = context.before[1], context.token
    return (
        f"a table is a list, [1, 2]; one number is written where it is used, {number}, or is an "
        f"attribute, `; {name} = {number}`",
        None,
    )


def unpacked(context: Context) -> Hint | None:
    """`with (a, b) = r`, or `let (a, b) = r`."""
    if context.last not in ("WITH", "LET") or context.token.type != "LPAR":
        return None
    return "a definition has one name; the elements of a tuple are r[0] and r[1]", None
