"""Parse tree to syntax tree: one method per grammar rule, bottom-up."""

from __future__ import annotations

import math
from typing import Any, Final

from lark import Token, Transformer, v_args
from lark.tree import Meta

from opgen.errors import Edit, Source, Span
from opgen.lang import syntax
from opgen.lang.layout import Refused, token_span

_MAX_INTEGER: Final = 2**31 - 1


def _meta_span(meta: Meta) -> Span:
    return Span(meta.start_pos, meta.end_pos) if not meta.empty else Span(0, 0)


def _name(token: Token) -> syntax.Name:
    return syntax.Name(str(token), token_span(token))


def _integer(token: Token) -> int:
    # Read by length first: int() of a very long literal is slow by design.
    if len(token.lstrip("0")) > 10 or int(token) > _MAX_INTEGER:
        raise Refused(
            "integer-too-large",
            f"{_short(token)} is too large: integers in a spec are at most {_MAX_INTEGER}",
            token_span(token),
            "pass a large number as an attribute",
        )
    return int(token)


def _short(token: Token) -> str:
    return str(token) if len(token) <= 24 else f"{token[:12]}...{token[-4:]}"


def _binary(meta: Meta, children: list[Any]) -> syntax.Binary:
    left, operator, right = children
    return syntax.Binary(str(operator), left, right, _meta_span(meta))


# A call of one of these with plain names as arguments can only be the head of a reduction.
_NEVER_FUNCTIONS: Final = ("sum", "prod", "mean", "argmax", "argmin")


@v_args(meta=True)
class TreeBuilder(Transformer[Token, Any]):
    """Bottom-up: one method per grammar rule; children are built nodes, tokens or None."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._text = source.text

    def start(self, meta: Meta, children: list[Any]) -> syntax.File:
        return syntax.File(tuple(children))

    def op(self, meta: Meta, children: list[Any]) -> syntax.Definition:
        docs = [child for child in children if isinstance(child, Token) and child.type == "DOC"]
        name, inputs, attributes, outputs, *clauses = children[len(docs) :]
        return syntax.Definition(
            _name(name),
            "\n".join(doc[2:].strip() for doc in docs),
            inputs or (),
            attributes or (),
            outputs,
            tuple(clauses),
            token_span(name),
        )

    # ------------------------------------------------------------ signature
    def tensors(self, meta: Meta, children: list[Any]) -> tuple[syntax.TensorDeclaration, ...]:
        return tuple(children)

    def tensor(self, meta: Meta, children: list[Any]) -> syntax.TensorDeclaration:
        nograd, name, dtype, dims, default = children
        return syntax.TensorDeclaration(
            _name(name),
            None if dtype is None else _name(dtype),
            dims or (),
            None if default is None else float(default.value),
            nograd is not None,
            _meta_span(meta),
            None if default is None else default.span,
        )

    def dims(self, meta: Meta, children: list[Any]) -> tuple[syntax.DimItem, ...]:
        return tuple(
            syntax.BatchDims(token_span(child)) if isinstance(child, Token) else child
            for child in children
        )

    def composite(self, meta: Meta, children: list[Token]) -> syntax.Composite:
        parts = tuple(
            syntax.Number(_integer(part), token_span(part)) if part.type == "INT" else _name(part)
            for part in children
        )
        return syntax.Composite(parts, _meta_span(meta))

    def attributes(
        self, meta: Meta, children: list[Any]
    ) -> tuple[syntax.AttributeDeclaration, ...]:
        return tuple(children)

    def attribute(self, meta: Meta, children: list[Any]) -> syntax.AttributeDeclaration:
        name, type_, default = children
        choices: tuple[str, ...] = ()
        value: int | float | bool | tuple[int | float, ...] | None = None
        match default:
            case ("choices", *strings):
                choices = tuple(strings)
            case ("tuple", *numbers):
                value = tuple(numbers)
            case Token(type="TRUE" | "FALSE"):
                value = default.type == "TRUE"
            case syntax.Number():
                value = default.value
        type_name, length = type_ if type_ is not None else (None, None)
        span = _meta_span(meta)
        return syntax.AttributeDeclaration(
            _name(name), type_name, length, value, choices, span, self._default_span(span)
        )

    def _default_span(self, declaration: Span) -> Span | None:
        """What stands after the `=` of a declaration."""
        text = self._text[declaration.start : declaration.end]
        before, _, default = text.partition("=")
        start = declaration.start + len(before) + 1 + len(default) - len(default.lstrip())
        return Span(start, declaration.end) if default else None

    def attribute_type(self, meta: Meta, children: list[Any]) -> tuple[syntax.Name, int | None]:
        name, length = children
        return _name(name), None if length is None else _integer(length)

    def choices(self, meta: Meta, children: list[Token]) -> tuple[str, ...]:
        return ("choices", *(str(child)[1:-1] for child in children))

    def int_tuple(self, meta: Meta, children: list[syntax.Number]) -> tuple[object, ...]:
        return ("tuple", *(child.value for child in children))

    def negative_number(self, meta: Meta, children: list[syntax.Number]) -> syntax.Number:
        return syntax.Number(-children[0].value, _meta_span(meta))

    # ------------------------------------------------------------ clauses
    def where(self, meta: Meta, children: list[Any]) -> syntax.Where:
        return syntax.Where(tuple(children), _meta_span(meta))

    def let(self, meta: Meta, children: list[Any]) -> syntax.Let:
        return syntax.Let(tuple(children), _meta_span(meta))

    def with_(self, meta: Meta, children: list[Any]) -> syntax.With:
        return syntax.With(tuple(children), _meta_span(meta))

    def binding(self, meta: Meta, children: list[Any]) -> syntax.Binding:
        return syntax.Binding(_name(children[0]), children[1], _meta_span(meta))

    def const(self, meta: Meta, children: list[Any]) -> syntax.Const:
        return syntax.Const(_name(children[0]), children[1], _meta_span(meta))

    def table(self, meta: Meta, children: list[Any]) -> syntax.Table:
        return tuple(
            child.value if isinstance(child, syntax.Number) else child for child in children
        )

    def temporaries(self, meta: Meta, children: list[Any]) -> syntax.Temporaries:
        return syntax.Temporaries(children[0], _meta_span(meta))

    def gradient(self, meta: Meta, children: list[Token]) -> syntax.GradientBy:
        return syntax.GradientBy(_name(children[0]), _name(children[1]), _meta_span(meta))

    def statement(self, meta: Meta, children: list[Any]) -> syntax.Statement:
        target, operator, value, domains, condition = children
        end = condition or (domains[-1] if domains else value)
        return syntax.Statement(
            target, str(operator), value, domains or (), condition, target.span.to(end.span)
        )

    def for_(self, meta: Meta, children: list[Any]) -> tuple[syntax.Domain, ...]:
        return tuple(children)

    def if_(self, meta: Meta, children: list[Any]) -> syntax.Expression:
        expression: syntax.Expression = children[0]
        return expression

    def domain(self, meta: Meta, children: list[Any]) -> syntax.Domain:
        return syntax.Domain(_name(children[0]), children[1], _meta_span(meta))

    # ------------------------------------------------------------ accesses
    def access(self, meta: Meta, children: list[Any]) -> syntax.Subscript:
        return syntax.Subscript(_name(children[0]), children[1] or (), _meta_span(meta))

    def indices(self, meta: Meta, children: list[Any]) -> tuple[syntax.IndexItem, ...]:
        return tuple(
            syntax.BatchDims(token_span(child)) if isinstance(child, Token) else child
            for child in children
        )

    def index(self, meta: Meta, children: list[Any]) -> syntax.PlainIndex:
        value, boundary = children
        spelling, fill = boundary if boundary is not None else ("", None)
        return syntax.PlainIndex(value, spelling, fill, _meta_span(meta))

    def composite_index(self, meta: Meta, children: list[Any]) -> syntax.Composite:
        composite: syntax.Composite = children[0]
        return composite

    def boundary(self, meta: Meta, children: list[Any]) -> tuple[str, syntax.Expression | None]:
        (child,) = children
        return (str(child), None) if isinstance(child, Token) else ("?(", child)

    # ------------------------------------------------------------ expressions
    def disjunction(self, meta: Meta, children: list[Any]) -> syntax.Logical:
        return syntax.Logical("or", tuple(children), _meta_span(meta))

    def conjunction(self, meta: Meta, children: list[Any]) -> syntax.Logical:
        return syntax.Logical("and", tuple(children), _meta_span(meta))

    def logical_not(self, meta: Meta, children: list[Any]) -> syntax.Logical:
        return syntax.Logical("not", tuple(children), _meta_span(meta))

    def comparison(self, meta: Meta, children: list[Any]) -> syntax.Comparison:
        return syntax.Comparison(
            tuple(children[0::2]), tuple(str(child) for child in children[1::2]), _meta_span(meta)
        )

    def sum(self, meta: Meta, children: list[Any]) -> syntax.Expression:
        return _binary(meta, children)

    def product(self, meta: Meta, children: list[Any]) -> syntax.Expression:
        return _binary(meta, children)

    def power(self, meta: Meta, children: list[Any]) -> syntax.Binary:
        return syntax.Binary("**", children[0], children[1], _meta_span(meta))

    def negative(self, meta: Meta, children: list[Any]) -> syntax.Unary:
        return syntax.Unary(children[0], _meta_span(meta))

    def name(self, meta: Meta, children: list[Token]) -> syntax.NameUse:
        return syntax.NameUse(str(children[0]), token_span(children[0]))

    def call(self, meta: Meta, children: list[Any]) -> syntax.Call:
        function, (items, condition, position) = children
        names = all(isinstance(value, syntax.NameUse) for value, _ in items)
        extents = any(extent is not None for _, extent in items)
        reduces = function in syntax.REDUCERS and (len(items) == 1 or function in _NEVER_FUNCTIONS)
        if extents or condition is not None or position is not None or (names and reduces):
            first = items[0][0]
            iterator = first.name if isinstance(first, syntax.NameUse) else "k"
            raise self._without_term(function, _meta_span(meta), names, iterator)
        arguments = tuple(value for value, _ in items)
        return syntax.Call(_name(function), arguments, _meta_span(meta))

    def _without_term(self, function: Token, span: Span, names: bool, iterator: str) -> Refused:
        """The fault of a reduction's head with nothing to reduce after it."""
        head = " ".join(self._text[span.start : span.end].split())
        sign = self._text[span.end :].lstrip()[:1]
        if names and sign in ("-", "+"):
            return Refused(
                "reduction-without-term",
                f"the term of `{function}(...)` cannot start with '{sign}'",
                span,
                f"write the sign first, or the term in brackets: {head} ({sign}x[{iterator}])",
                self._sign_first(span, sign),
            )
        return Refused(
            "reduction-without-term",
            f"`{function}(...)` names what is reduced, but no term follows",
            span,
            f"write the term after it: {head} x[{iterator}]",
        )

    def _sign_first(self, head: Span, sign: str) -> Edit | None:
        """`a + sum(c) -x` as `a - sum(c) x`."""
        before = self._text[: head.start].rstrip()
        own = "" if sign == "+" else "-"
        after = self._text.index(sign, head.end) + 1
        after += len(self._text[after:]) - len(self._text[after:].lstrip(" "))
        head_text = self._text[head.start : head.end]
        if before[-1:] in ("=", "(", ","):
            return Span(head.start, after), f"{own}{head_text} "
        if before[-1:] in ("+", "-"):
            merged = "-" if (before[-1] == "-") != (sign == "-") else "+"
            return Span(len(before) - 1, after), f"{merged} {head_text} "
        return None

    def reduction(self, meta: Meta, children: list[Any]) -> syntax.Reduction:
        reducer, (items, condition, position), body = children
        domains = []
        for value, extent in items:
            if not isinstance(value, syntax.NameUse):
                raise self._no_iterator(reducer, value, body)
            name = syntax.Name(value.name, value.span)
            span = value.span if extent is None else value.span.to(extent.span)
            domains.append(syntax.Domain(name, extent, span))
        span = _meta_span(meta)
        return syntax.Reduction(
            _name(reducer),
            tuple(domains),
            condition,
            position,
            body,
            Span(span.start, self._text.rindex(")", span.start, body.span.start) + 1),
            span,
        )

    @staticmethod
    def _no_iterator(reducer: Token, value: syntax.Expression, body: syntax.Expression) -> Refused:
        if reducer in syntax.REDUCERS and isinstance(value, syntax.Comparison):
            return Refused(
                "bad-domain",
                f"`{reducer}(...)` before a term names iterators, and this is a condition",
                value.span,
                f"write an iterator with its extent as {reducer}(k in K), and a condition after "
                f"all of them: {reducer}(k in K if k < n)",
            )
        if reducer in syntax.REDUCERS and reducer not in ("max", "min"):
            return Refused(
                "bad-domain",
                f"`{reducer}(...)` before a term reduces over iterators, and this is none",
                value.span,
                f"name the iterator, {reducer}(k) or {reducer}(k in K), and compute in the term",
            )
        return Refused(
            "missing-operator",
            f"an operator is missing between `{reducer}(...)` and what follows",
            Span(body.span.start, body.span.start + 1),
            "a product is written with `*`",
            (Span(body.span.start, body.span.start), "* "),
        )

    def items(self, meta: Meta, children: list[Any]) -> tuple[list[Any], Any, Any]:
        *items, condition, position = children
        return items, condition, position

    def item(self, meta: Meta, children: list[Any]) -> tuple[Any, Any]:
        return children[0], children[1]

    def number(self, meta: Meta, children: list[Token]) -> syntax.Number:
        (token,) = children
        if token.type == "INT":
            return syntax.Number(_integer(token), token_span(token))
        value = float(token)
        if math.isinf(value):
            raise Refused(
                "number-too-large",
                f"{_short(token)} is larger than any float64",
                token_span(token),
                "infinity is written `inf`",
                (token_span(token), "inf"),
            )
        return syntax.Number(value, token_span(token))

    def literal(self, meta: Meta, children: list[Token]) -> syntax.Expression:
        (token,) = children
        span = token_span(token)
        match token.type:
            case "STRING":
                return syntax.Text(str(token)[1:-1], span)
            case "INF":
                return syntax.Infinity(span)
            case _:
                return syntax.Truth(token.type == "TRUE", span)


# `with`, `for` and `if` are Python keywords, so their methods carry another name.
for _rule in ("with", "for", "if"):
    setattr(TreeBuilder, _rule, getattr(TreeBuilder, f"{_rule}_"))
