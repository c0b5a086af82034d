"""Value expressions to notation.

Two worlds meet here: an *index* is an integer polynomial, a *value* is an expression tree. An
expression built of integers, sizes, attributes and iterators only is an index wherever it stands,
so `2*h + 1` is canonical in a value as well; everything else is a value.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final, assert_never

from opgen.errors import Edit, Span
from opgen.ir.build import of_polynomial
from opgen.ir.notation import (
    Apply,
    AttributeType,
    Constant,
    Expr,
    Parameter,
    Read,
)
from opgen.ir.primitives import PRIMITIVES, Precedence
from opgen.lang import syntax
from opgen.lang.access_faults import count
from opgen.lang.conditions import compare_choice
from opgen.lang.environment import Environment, Fault, closest
from opgen.lang.indices import MAX_EXPONENT, index_polynomial, integer_name, read_access
from opgen.lang.integer_operators import refuse_reals
from opgen.lang.ranges import free_names
from opgen.lang.scope import Scope

_FUNCTIONS: Final = {
    row.symbol: row for row in PRIMITIVES.values() if row.precedence is Precedence.PRIMARY
}
_OPERATORS: Final = {
    row.symbol: row.name
    for row in PRIMITIVES.values()
    if row.arity == 2 and row.precedence is not Precedence.PRIMARY
}


def is_index_like(expression: syntax.Expression, scope: Scope) -> bool:
    """Whether an expression is made of integers, sizes, attributes and iterators alone."""
    match expression:
        case syntax.Number(value=value):
            return isinstance(value, int)
        case syntax.NameUse(name=name):
            return name in scope.iterators or scope.environment.is_integer(name)
        case syntax.Subscript(name=name):
            return name.text in scope.environment.attributes
        case syntax.Unary(operand=operand):
            return is_index_like(operand, scope)
        case syntax.Binary(operator=operator, left=left, right=right):
            if operator == "/" or not is_index_like(left, scope):
                return False
            if operator == "**":
                match right:
                    case syntax.Number(value=int() as exponent):
                        return 0 <= exponent <= MAX_EXPONENT
                    case _:
                        return False
            return is_index_like(right, scope)
        case syntax.Call(function=function, arguments=arguments):
            return function.text in ("min", "max") and all(
                is_index_like(argument, scope) for argument in arguments
            )
        case _:
            return False


def value_expression(expression: syntax.Expression, scope: Scope) -> Expr:
    """A value as notation. Reductions go through `scope.reduce`."""
    if is_index_like(expression, scope):
        return of_polynomial(index_polynomial(expression, scope))
    match expression:
        case syntax.Number(value=value):
            return Constant(value)
        case syntax.Infinity():
            return Constant(float("inf"))
        case syntax.Truth(value=truth):
            return Constant(int(truth))
        case syntax.Text(span=span):
            raise Fault(
                "string-as-value",
                "a string is no value",
                span,
                notes=("strings are the values of choice attributes, and are only compared",),
                advice="write a number",
            )
        case syntax.NameUse(name=name, span=span):
            attribute = scope.environment.attributes.get(name)
            if attribute is not None and attribute.type is AttributeType.FLOAT:
                return Parameter(name)
            return of_polynomial(integer_name(name, span, scope))  # raises the fault that fits
        case syntax.Subscript():
            return Read(read_access(expression, scope))
        case syntax.Unary(operand=operand):
            argument = value_expression(operand, scope)
            if isinstance(argument, Constant):
                return Constant(-argument.value)
            return Apply("neg", (argument,))
        case syntax.Binary(operator="//" | "%"):
            refuse_reals(expression, scope)
            return of_polynomial(index_polynomial(expression, scope))
        case syntax.Binary(operator=operator, left=left, right=right):
            arguments = (value_expression(left, scope), value_expression(right, scope))
            return Apply(_OPERATORS[operator], arguments)
        case syntax.Comparison(operands=operands, operators=operators):
            return _value_comparison(operands, operators, scope)
        case syntax.Logical(operator=operator, operands=operands):
            result = value_expression(operands[0], scope)
            if operator == "not":
                return Apply("not", (result,))
            for operand in operands[1:]:
                result = Apply(_OPERATORS[operator], (result, value_expression(operand, scope)))
            return result
        case syntax.Call():
            return _value_call(expression, scope)
        case syntax.Reduction():
            assert scope.reduce is not None
            return scope.reduce(expression, scope)
        case unexpected:
            assert_never(unexpected)


def _value_comparison(
    operands: tuple[syntax.Expression, ...], operators: tuple[str, ...], scope: Scope
) -> Expr:
    result: Expr | None = None
    for left, operator, right in zip(operands[:-1], operators, operands[1:], strict=True):
        if isinstance(left, syntax.Text) or isinstance(right, syntax.Text):
            condition = compare_choice(left, operator, right, scope)
            arguments: tuple[Expr, Expr] = (of_polynomial(condition.value), Constant(0))
            step: Expr = Apply(_OPERATORS[operator], arguments)
        else:
            arguments = (value_expression(left, scope), value_expression(right, scope))
            step = Apply(_OPERATORS[operator], arguments)
        result = step if result is None else Apply("and", (result, step))
    assert result is not None
    return result


def refuse_bare_reduction(
    expression: syntax.Call, iterators: Iterable[str], environment: Environment
) -> None:
    """Raises Fault if this call is a reduction that lacks its term: `sum(x[n,c])`."""
    name, arguments = expression.function.text, expression.arguments
    if name not in syntax.REDUCERS or (name in ("min", "max") and len(arguments) >= 2):
        return
    edit: Edit | None = None
    names: list[str] = []
    if len(arguments) == 1:  # of none, see `lang.tree`
        (term,) = arguments
        found = (free for free, _ in free_names(term, environment))
        names = [free for free in dict.fromkeys(found) if free not in iterators]
        text = environment.text(environment.enclosed(term.span))
        if isinstance(term, syntax.Unary | syntax.Comparison | syntax.Logical) or (
            isinstance(term, syntax.Binary) and term.operator in ("+", "-")
        ):
            text = f"({text})"
        edit = (expression.span, f"{name}({','.join(names)}) {text}") if names else None
        if not names and name in ("min", "max"):
            raise Fault(
                "wrong-arity",
                f"`{name}` compares two values or more, but was given 1",
                expression.span,
                advice=f"write {name}(a, b), or {name}(k) x[k] for all values of an iterator",
            )
    raise Fault(
        "reduction-without-term",
        f"`{name}(...)` names what is reduced, and the term follows after it",
        expression.span,
        advice=f"write the iterators in the brackets: {name}({','.join(names) or 'k'}) ...",
        replacement=edit,
    )


_OTHER_NAMES: Final = {
    "where": "select", "maximum": "max", "minimum": "min", "fmax": "max", "fmin": "min",
    "fabs": "abs", "absolute": "abs", "ln": "log", "logistic": "sigmoid", "swish": "silu",
    "heaviside": "select",
}  # fmt: skip


def _unknown_function(expression: syntax.Call, scope: Scope) -> Fault:
    environment, name = scope.environment, expression.function.text
    if name in environment.tensors:
        start, end = expression.function.span.end, expression.span.end
        inside = environment.text(Span(start + 1, end - 1))
        return Fault(
            "tensor-called",
            f"'{name}' is a tensor, and is read with square brackets",
            expression.span,
            (environment.declared_at[name], "declared here"),
            advice=f"write {name}[{inside}]",
            replacement=(Span(start, end), f"[{inside}]"),
        )
    if name == "pow" and len(expression.arguments) == 2:
        base, exponent = (_as_operand(argument, environment) for argument in expression.arguments)
        return Fault(
            "unknown-function",
            "there is no function 'pow'",
            expression.function.span,
            advice="powers are written `**`",
            replacement=(expression.span, f"{base}**{exponent}"),
        )
    if name in environment.ops and name not in _OTHER_NAMES:
        return Fault(
            "op-called",
            f"'{name}' is an op, and a formula does not call ops",
            expression.function.span,
            advice="write its formula here, or call one op after the other in Python",
        )
    meant = _OTHER_NAMES.get(name) or closest(name, _FUNCTIONS)
    return Fault(
        "unknown-function",
        f"there is no function '{name}'",
        expression.function.span,
        notes=("the functions are " + ", ".join(sorted(_FUNCTIONS)),),
        advice=f"did you mean '{meant}'?" if meant else "build it from these",
        replacement=(expression.function.span, meant) if meant else None,
    )


def _as_operand(expression: syntax.Expression, environment: Environment) -> str:
    text = environment.text(environment.enclosed(expression.span))
    atoms = syntax.Number | syntax.NameUse | syntax.Subscript | syntax.Call
    return text if isinstance(expression, atoms) else f"({text})"


def _value_call(expression: syntax.Call, scope: Scope) -> Expr:
    name, arguments = expression.function.text, expression.arguments
    refuse_bare_reduction(expression, scope.iterators, scope.environment)
    if name not in _FUNCTIONS:
        raise _unknown_function(expression, scope)
    row = _FUNCTIONS[name]
    arity = row.arity
    if name in ("min", "max"):  # of two or more, as in indices
        values = [value_expression(argument, scope) for argument in arguments]
        return functools.reduce(lambda a, b: Apply(name, (a, b)), values)
    if len(arguments) != arity:
        raise Fault(
            "wrong-arity",
            f"'{name}' takes {count(arity, 'argument')}, but was given {len(arguments)}",
            expression.span,
            advice="write select(condition, value, otherwise)"
            if name == "select"
            else f"write {name}({', '.join('abc'[:arity])})",
        )
    return Apply(row.name, tuple(value_expression(argument, scope) for argument in arguments))
