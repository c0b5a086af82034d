"""What is wrong with text that is not a spec, and what was probably meant.

The parser says where it stopped and what it would have taken. A newcomer needs more: which habit of
another language led there. Each habit is one function below, from the tokens around the fault to a
piece of advice; the first one that recognises its habit speaks.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lark import Token

from opgen.errors import Diagnostic, Edit, Label, Source, Span
from opgen.lang import syntax
from opgen.lang.layout import CLOSING, OPENING, token_span

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
_CLAUSE_WORDS: Final = ("where", "let", "with", "tmp", "const", "gradient")
_OPERAND_ENDS: Final = ("NAME", "INT", "FLOAT", "RPAR", "RSQB")
_OPERAND_STARTS: Final = ("NAME", "INT", "FLOAT", "LPAR", "TRUE", "FALSE", "INF")
_MODES: Final = {
    "": "?0", "zero": "?0", "zeros": "?0", "constant": "?0", "edge": "?clamp", "clip": "?clamp",
    "replicate": "?clamp", "nearest": "?clamp", "border": "?clamp", "mirror": "?reflect",
    "reflection": "?reflect", "circular": "?wrap", "periodic": "?wrap", "cyclic": "?wrap",
    "skip": "?drop", "ignore": "?drop",
}  # fmt: skip
_AFTER_TERM: Final = frozenset(
    {"PLUS", "MINUS", "COMPARISON", "AND", "OR", "FOR", "IF", "COMMA", "SEMICOLON", "_NEWLINE"}
)
_ASSIGNMENTS: Final = ("EQUALS", "PLUS_EQUALS", "MAX_EQUALS", "MIN_EQUALS")
_KNOWN_MODES: Final = ("?0", "?clamp", "?reflect", "?symmetric", "?wrap", "?drop")

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


# ---------------------------------------------------------------------------- tokens
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
    signature = any(t.type == "OP" for t in context.before)
    if opened is not None and (ends or apart or (token.type in _ASSIGNMENTS and not signature)):
        labels.append(Label(token_span(opened), f"this '{opened[-1]}' is not closed"))
    advice, edit = next(filter(None, (habit(context) for habit in _HABITS)), ("", None))
    wanted = _wanted(context.expected, spelled)
    notes = () if advice else (_form(context),)
    headline = f"expected {wanted}, but {found}"
    return Diagnostic("syntax", headline, tuple(labels), notes, advice, edit)


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


# ---------------------------------------------------------------------------- habits
def _keyword(context: Context) -> Hint | None:
    token = context.token
    if token.type in _NAMES or not token.isalpha() or "NAME" not in context.expected:
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


def _attribute_starts(context: Context) -> Hint | None:
    """`op f(x[N]; r = 2; s = 1)` for a comma between attributes."""
    if context.token.type != "SEMICOLON" or "COMMA" not in context.expected:
        return None
    return "attributes are separated by commas", (token_span(context.token), ",")


def _statement_terminator(context: Context) -> Hint | None:
    if context.token.type != "SEMICOLON" or context.opened() is not None:
        return None
    return "a statement ends with its line, without `;`", (token_span(context.token), "")


def _arrow(context: Context) -> Hint | None:
    if context.expected != {"_ARROW"} or context.token.type != "NAME":
        return None
    start = token_span(context.token).start
    return "the outputs follow `->`", (Span(start, start), "-> ")


def _parentheses_for_index(context: Context) -> Hint | None:
    """`y(n) = ...` for `y[n] = ...`."""
    if context.token.type != "LPAR" or context.expected != {"LSQB"}:
        return None
    closing = _matching(context.after)
    edit = None
    if closing is not None:
        inside = context.source.text[token_span(context.token).end : token_span(closing).start]
        edit = (token_span(context.token).to(token_span(closing)), f"[{inside}]")
    return "tensors are indexed with square brackets", edit


def _matching(after: Sequence[Token]) -> Token | None:
    depth = 1
    for token in after:
        depth += (token.type in OPENING) - (token.type in CLOSING)
        if depth == 0:
            return token
    return None


def _clause_word(context: Context) -> Hint | None:
    """`wher r >= 1` for `where r >= 1`."""
    if len(context.before) != 1 or context.last != "NAME" or context.token.type != "NAME":
        return None
    word = context.before[0]
    close = difflib.get_close_matches(word.lower(), _CLAUSE_WORDS, 1)
    return (f"did you mean `{close[0]}`?", (token_span(word), close[0])) if close else None


def _other_assignment(context: Context) -> Hint | None:
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


def _conditional(context: Context) -> Hint | None:
    """`a if c else b` for `select(c, a, b)`."""
    if context.token != "else":
        return None
    advice = "a value is chosen by select(condition, value, otherwise)"
    types = [t.type for t in context.before]
    start = next((i for i, t in enumerate(types) if t in _ASSIGNMENTS), None)
    condition = max((i for i, t in enumerate(types) if t == "IF"), default=None)
    if start is None or condition is None or condition < start or not context.after:
        return advice, None
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
    return advice, edit


def _where_for_select(context: Context) -> Hint | None:
    """`where(c, a, b)` of NumPy and PyTorch."""
    called = bool(context.after) and context.after[0].type == "LPAR"
    if context.token.type != "WHERE" or not called or "NAME" not in context.expected:
        return None
    advice = "a value is chosen by select(condition, value, otherwise)"
    return advice, (token_span(context.token), "select")


def _slice(context: Context) -> Hint | None:
    """`x[:, c]`."""
    opened = context.opened()
    if context.token.type != "COLON" or opened is None or opened.type != "LSQB":
        return None
    return "there are no slices: name an iterator for every dim, x[n,c]", None


def _missing_comma(context: Context) -> Hint | None:
    opened = context.opened()
    if opened is None or opened.type != "LSQB" or not _juxtaposed(context):
        return None
    return "indices are separated by commas", (context.gap, ", ")


def _reduction_as_divisor(context: Context) -> Hint | None:
    """`a / sum(k) x[k]`."""
    if context.last != "RPAR" or not _juxtaposed(context):
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


def _missing_product(context: Context) -> Hint | None:
    if "STAR" not in context.expected or not _juxtaposed(context):
        return None
    return "a product is written with `*`", (context.gap, "*")


def _juxtaposed(context: Context) -> bool:
    """Whether two operands stand side by side on one line."""
    return (
        context.last in _OPERAND_ENDS
        and context.token.type in _OPERAND_STARTS
        and "\n" not in context.between
    )


def _bars(context: Context) -> Hint | None:
    """`a || b` for `a or b`."""
    if context.token.type != "VBAR":
        return None
    span = token_span(context.token)
    twice = context.source.text[span.end : span.end + 1] == "|"
    return "conditions are joined by `or`", (Span(span.start, span.end + twice), "or")


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
    _op_head,
    _stray_closing,
    _unclosed,
    _conditional,
    _where_for_select,
    _clause_word,
    _equals_for_comparison,
    _comparison_for_equals,
    _attribute_starts,
    _attribute_among_tensors,
    _statement_terminator,
    _arrow,
    _parentheses_for_index,
    _other_assignment,
    _slice,
    _missing_comma,
    _reduction_as_divisor,
    _missing_product,
    _bars,
    _keyword,
    _unfinished,
)


# ---------------------------------------------------------------------------- characters
def unexpected_character(source: Source, start: int) -> Diagnostic:
    """The diagnostic of a character that begins no token."""
    character = source.text[start]
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
        advice = "leading batch dims are written `...`, numbers like 0.5 or .5"
    if character.isalpha():
        advice = "names are made of the letters a to z and A to Z, digits and _"
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
    "{": ("brackets are ( ) and [ ]", None),
    "}": ("brackets are ( ) and [ ]", None),
    "\\": ("a line that ends with an operator or a comma goes on in the next one", ""),
    "“": ('strings are written with double quotes, "like this"', '"'),
    "”": ('strings are written with double quotes, "like this"', '"'),
    "@": ("a sum of products is written with sum(k) a[i,k] * b[k,j]", None),
}


def _quotes(source: Source, start: int) -> tuple[str, Edit | None]:
    if source.text[start] == '"':
        line = source.text.find("\n", start)
        end = len(source.text[: len(source.text) if line < 0 else line].rstrip())
        return "close the string with double quotes", (Span(end, end), '"')
    match = re.compile(r"'([^'\"\n]*)'").match(source.text, start)
    edit = None if match is None else (Span(*match.span()), f'"{match[1]}"')
    return 'strings are written with double quotes, "like this"', edit


def _unknown_boundary(source: Source, start: int) -> Diagnostic:
    match = re.compile(r"\?[ \t]*([-+]?[A-Za-z0-9_.]*)").match(source.text, start)
    assert match is not None
    word = match[1]
    number = re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+|inf)", word)
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
