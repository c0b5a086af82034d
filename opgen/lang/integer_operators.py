"""`//` and `%` in a value, of something else than integers: what was probably meant."""

from __future__ import annotations

from typing import Final

from opgen.errors import Edit, Span
from opgen.ir.notation import AttributeType, DType, Table
from opgen.ir.primitives import PRIMITIVES, Precedence
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault
from opgen.lang.indices import MAX_EXPONENT
from opgen.lang.scope import Scope

_FUNCTIONS: Final = {
    row.symbol: row for row in PRIMITIVES.values() if row.precedence is Precedence.PRIMARY
}

Found = tuple[syntax.Expression, bool]
"""An operand that is no integer of an index, and whether it is real for certain."""


def refuse_reals(expression: syntax.Binary, scope: Scope) -> None:
    """Raises Fault if an operand of `//` or `%` is, or may be, a real number."""
    found = [*_reals(expression.left, scope), *_reals(expression.right, scope)]
    if not found:
        return
    certain = [operand for operand, is_real in found if is_real]
    operand = certain[0] if certain else found[0][0]
    environment, operator = scope.environment, expression.operator
    written = "floor(a / b)" if operator == "//" else "a - b*floor(a / b)"
    raise Fault(
        "real-operand",
        f"`{operator}` takes integers, and {_described(operand, bool(certain), environment)}",
        environment.enclosed(operand.span),
        *_declaration(operand, environment),
        advice=f"for reals write {written}"
        + ("" if certain else f"; for integers {_for_integers(operand)}"),
        replacement=_with_floor(expression, environment) if certain else None,
    )


def _reals(expression: syntax.Expression, scope: Scope) -> list[Found]:
    """The parts of an operand that are no integers of an index."""
    environment = scope.environment
    match expression:
        case syntax.Number(value=float()) | syntax.Infinity():
            return [(expression, True)]
        case syntax.NameUse(name=name):
            attribute = environment.attributes.get(name)
            if attribute is None or attribute.type is not AttributeType.FLOAT:
                return []
            return [(expression, True)]
        case syntax.Subscript(name=name):
            tensor = environment.tensors.get(name.text)
            if tensor is None:
                return []
            if isinstance(tensor, Table):
                return [] if tensor.integer else [(expression, True)]
            is_real = tensor.dtype is not DType.SAME
            return [] if tensor.dtype.is_integer else [(expression, is_real)]
        case syntax.Reduction(reducer=reducer):
            return [(expression, reducer.text == "mean")] if _is_reducer(reducer) else []
        case syntax.Comparison() | syntax.Logical():
            return [(expression, False)]
        case syntax.Call(function=function, arguments=arguments):
            if function.text in ("min", "max"):
                return [found for argument in arguments for found in _reals(argument, scope)]
            row = _FUNCTIONS.get(function.text)
            return [] if row is None else [(expression, row.needs_float)]
        case syntax.Unary(operand=operand):
            return _reals(operand, scope)
        case syntax.Binary(operator="/"):
            return [(expression, True)]
        case syntax.Binary(operator="**", left=left, right=right):
            match right:
                case syntax.Number(value=int() as exponent) if 0 <= exponent <= MAX_EXPONENT:
                    return _reals(left, scope)
                case _:
                    return [(expression, True)]
        case syntax.Binary(left=left, right=right):
            return [*_reals(left, scope), *_reals(right, scope)]
        case _:
            return []


def _is_reducer(name: syntax.Name) -> bool:
    return name.text in syntax.REDUCERS


def _described(operand: syntax.Expression, is_real: bool, environment: Environment) -> str:
    match operand:
        case syntax.Subscript(name=name):
            return f"'{name.text}' {'holds' if is_real else 'may hold'} reals"
        case syntax.NameUse(name=name):
            return f"'{name}' is a float attribute"
        case syntax.Call(function=name) | syntax.Reduction(reducer=name):
            return f"`{name.text}` {'gives reals' if is_real else 'may give reals'}"
        case syntax.Comparison() | syntax.Logical():
            return "a condition is none of them"
        case _:
            return f"{environment.text(environment.enclosed(operand.span))} is real"


def _declaration(
    operand: syntax.Expression, environment: Environment
) -> tuple[tuple[Span, str], ...]:
    match operand:
        case syntax.Subscript(name=syntax.Name(text=name)) | syntax.NameUse(name=name):
            at = environment.declared_at.get(name)
            return () if at is None else ((at, "declared here"),)
        case _:
            return ()


def _for_integers(operand: syntax.Expression) -> str:
    if isinstance(operand, syntax.Subscript):
        return f"declare it so, {operand.name.text}: int"
    return "write it to a temporary first, such as tmp t: int[...]"


def _with_floor(expression: syntax.Binary, environment: Environment) -> Edit:
    """`a // b` as `floor(a / b)`, and `a % b` as `(a - b*floor(a / b))`."""
    text, whole = environment.source.text, environment.enclosed(expression.span)
    operator = text.index(expression.operator, expression.left.span.end)
    left = text[whole.start : operator].strip()
    right = text[operator + len(expression.operator) : whole.end].strip()
    quotient = f"floor({left} / {right})"
    if expression.operator == "//":
        return whole, quotient
    factor = f"({right})" if isinstance(expression.right, syntax.Unary) else right
    before = text[: whole.start].rstrip(" \t")[-1:]
    after = text[whole.end :].lstrip(" \t")[:1]
    remainder = f"{left} - {factor}*{quotient}"
    alone = before in ("=", "(", ",") and after in ("", "\n", "\r", ")", ",")
    return whole, remainder if alone else f"({remainder})"
