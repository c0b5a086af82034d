"""Guards and `where` clauses to conditions on polynomials."""

from __future__ import annotations

from dataclasses import replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import symbol
from opgen.errors import Edit
from opgen.ir.notation import AttributeType, DType, Tensor
from opgen.lang import syntax
from opgen.lang.environment import Fault, Place, closest
from opgen.lang.index_faults import float_tensor
from opgen.lang.indices import index_polynomial
from opgen.lang.scope import Scope


def conditions(expression: syntax.Expression, scope: Scope) -> tuple[Condition, ...]:
    """A guard as a conjunction of conditions on polynomials. Raises Fault on `or`."""
    scope = replace(scope, place=Place.GUARD)
    match expression:
        case syntax.Logical(operator="and", operands=operands):
            return tuple(c for operand in operands for c in conditions(operand, scope))
        case syntax.Logical(operator="not", operands=(syntax.NameUse() as flag,)) if _is_bool(
            flag, scope
        ):
            return (Condition(symbol(flag.name), Relation.EQ),)
        case syntax.Logical(operator="not", operands=(syntax.Subscript() as cell,)) if (
            _is_bool_tensor(cell.name.text, scope)
        ):
            return (Condition(index_polynomial(cell, scope), Relation.EQ),)
        case syntax.NameUse() if _is_bool(expression, scope):
            return (Condition(symbol(expression.name) - 1, Relation.EQ),)
        case syntax.Logical(operator=operator, span=span):
            raise Fault(
                "condition-not-conjunction",
                f"`{operator}` cannot stand in this condition",
                span,
                notes=("a condition is a list of comparisons joined by `and`",),
                advice="write one statement per case, or use select(...) in the value"
                if scope.iterators
                else "write the comparison that holds in all cases",
            )
        case syntax.Comparison(operands=operands, operators=operators):
            return tuple(
                _compare(left, operator, right, scope)
                for left, operator, right in zip(
                    operands[:-1], operators, operands[1:], strict=True
                )
            )
        case syntax.Subscript(name=name) if _is_bool_tensor(name.text, scope):
            return (Condition(index_polynomial(expression, scope), Relation.NE),)
        case syntax.Subscript(name=name) if (tensor := _values(name.text, scope)) is not None:
            raise float_tensor(tensor, expression.span, replace(scope, guard=True))
        case _:
            raise Fault(
                "not-a-condition",
                "expected a condition, and this is a number",
                expression.span,
                notes=("a condition is a comparison of indices, or a bool attribute or tensor",),
                advice=f"compare it, such as {scope.environment.text(expression.span)} != 0",
                replacement=(expression.span, f"{scope.environment.text(expression.span)} != 0"),
            )


def _is_bool(expression: syntax.NameUse, scope: Scope) -> bool:
    attribute = scope.environment.attributes.get(expression.name)
    return attribute is not None and attribute.type is AttributeType.BOOL


def _is_bool_tensor(name: str, scope: Scope) -> bool:
    tensor = scope.environment.tensors.get(name)
    return isinstance(tensor, Tensor) and tensor.dtype is DType.BOOL


def _values(name: str, scope: Scope) -> Tensor | None:
    """The tensor of that name if it holds no integers."""
    tensor = scope.environment.tensors.get(name)
    return tensor if isinstance(tensor, Tensor) and not tensor.dtype.is_integer else None


def _compare(
    left: syntax.Expression, operator: str, right: syntax.Expression, scope: Scope
) -> Condition:
    if isinstance(left, syntax.Text) or isinstance(right, syntax.Text):
        return compare_choice(left, operator, right, scope)
    scope = replace(scope, guard=True)
    a, b = index_polynomial(left, scope), index_polynomial(right, scope)
    match operator:
        case "<":
            return Condition(b - a - 1)
        case "<=":
            return Condition(b - a)
        case ">":
            return Condition(a - b - 1)
        case ">=":
            return Condition(a - b)
        case "==":
            return Condition(a - b, Relation.EQ)
        case "!=":
            return Condition(a - b, Relation.NE)
    raise AssertionError(operator)


def compare_choice(
    left: syntax.Expression, operator: str, right: syntax.Expression, scope: Scope
) -> Condition:
    """A choice attribute compared with one of its strings, as a condition on its position."""
    name, text = (right, left) if isinstance(left, syntax.Text) else (left, right)
    span = left.span.to(right.span)
    known = name.name if isinstance(name, syntax.NameUse) else ""
    attribute = scope.environment.attributes.get(known)
    if attribute is None or attribute.type is not AttributeType.CHOICE:
        raise Fault(
            "string-comparison",
            "a string is compared with something that is no choice attribute",
            span,
            advice='declare a choice, such as mode = "a" | "b", and compare that',
            consequence=known in scope.environment.failed,
        )
    assert isinstance(text, syntax.Text)
    if text.value not in attribute.choices:
        raise Fault(
            "unknown-choice",
            f"'{attribute.name}' is never \"{text.value}\"",
            (text.span, ""),
            (scope.environment.declared_at[attribute.name], "its values are declared here"),
            advice="write one of " + ", ".join(f'"{c}"' for c in attribute.choices),
            alternatives=_likely_choices(text, attribute.choices),
        )
    if operator not in ("==", "!="):
        raise Fault(
            "string-comparison",
            f"strings have no order, so `{operator}` does not compare them",
            span,
            advice="compare with `==` or `!=`",
        )
    position = attribute.choices.index(text.value)
    relation = Relation.EQ if operator == "==" else Relation.NE
    return Condition(symbol(attribute.name) - position, relation)


def _likely_choices(text: syntax.Text, choices: tuple[str, ...]) -> list[Edit]:
    close = closest(text.value, choices)
    likely = [close] if close is not None else list(choices)
    return [(text.span, f'"{choice}"') for choice in likely]
