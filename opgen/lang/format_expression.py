"""The canonical text of expressions and indices, see `format`.

An index is printed tight where it is a factor, `(C-1)*step`, and spaced where it is a sum of its
own, `v - c*step`; the product of values is spaced, `x[i] * w[k]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, assert_never

from opgen.lang import syntax

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _POWER, _ATOM = range(8)
_PRECEDENCE: Final = {
    "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT, "**": _POWER,
}  # fmt: skip


def literal_text(value: int | float) -> str:
    """A number, with no zeros in front of its exponent."""
    return re.sub(r"e([-+])0+(\d)", r"e\1\2", repr(value))


def broken(expression: syntax.Expression, *, last: bool = True) -> list[str]:
    """The expression in pieces between which a line may end: before its outer operators.

    A line may not end between the head of a reduction and its term. `last`: nothing follows in its
    product.
    """
    match expression:
        case syntax.Binary(operator="+" | "-" as operator, left=left, right=right):
            return [*broken(left), f"{operator} {_at(right, _PRODUCT, last=True)}"]
        case syntax.Binary(operator="*" | "/" as operator, left=left, right=right) if not (
            _is_tight(left) and _is_tight(right)
        ):
            first = [_at(left, _PRODUCT)]
            if isinstance(left, syntax.Binary) and left.operator in ("*", "/"):
                first = broken(left, last=False)
            return [*first, f"{operator} {_factor(right, last=last and operator == '*')}"]
        case syntax.Call(function=function, arguments=arguments) if len(arguments) > 1:
            texts = [expression_text(argument) for argument in arguments]
            return [
                f"{function.text}({texts[0]},",
                *(f"{t}," for t in texts[1:-1]),
                f"{texts[-1]})",
            ]
        case syntax.Reduction():
            first_piece, *others = _broken_term(expression.body)
            return [f"{_head(expression)} {first_piece}", *others]
        case _:
            return [expression_text(expression)]


def _broken_term(body: syntax.Expression) -> list[str]:
    match body:
        case syntax.Binary(operator="*") | syntax.Reduction():
            return broken(body)
        case _:
            return [_body(body)]


def expression_text(expression: syntax.Expression) -> str:
    """All of an expression."""
    return _at(expression, _OR, last=True)


def _at(expression: syntax.Expression, level: int, *, last: bool = False) -> str:
    """Text that may stand where `level` is required; `last`: nothing follows in its product."""
    text, own = _text(expression)
    if isinstance(expression, syntax.Reduction) and last and level <= _POWER:
        return text
    if own >= level:
        return text
    if _is_short_sum(expression):
        text = text.replace(" ", "")
    return f"({text})"


def _text(expression: syntax.Expression) -> tuple[str, int]:
    """Text and precedence."""
    match expression:
        case syntax.Number(value=value):
            return literal_text(value), _ATOM
        case syntax.Infinity():
            return "inf", _ATOM
        case syntax.Truth(value=truth):
            return ("true" if truth else "false"), _ATOM
        case syntax.Text(value=text):
            return f'"{text}"', _ATOM
        case syntax.NameUse(name=name):
            return name, _ATOM
        case syntax.Subscript(name=name, indices=indices):
            return f"{name.text}[{_indices(indices)}]", _ATOM
        case syntax.Call(function=function, arguments=arguments):
            return f"{function.text}({', '.join(map(expression_text, arguments))})", _ATOM
        case syntax.Reduction(body=body):
            return f"{_head(expression)} {_body(body)}", _SUM
        case syntax.Unary(operand=operand):
            return f"-{_at(operand, _PRODUCT, last=True)}", _SUM
        case syntax.Binary():
            return _binary(expression)
        case syntax.Comparison(operands=operands, operators=operators):
            parts = [_at(operands[0], _SUM)]
            for operator, operand in zip(operators, operands[1:], strict=True):
                parts += [operator, _at(operand, _SUM)]
            return " ".join(parts), _COMPARE
        case syntax.Logical(operator="not", operands=operands):
            return f"not {_at(operands[0], _NOT)}", _NOT
        case syntax.Logical(operator=operator, operands=operands):
            level = _OR if operator == "or" else _AND
            return f" {operator} ".join(_at(o, level + 1) for o in operands), level
        case unexpected:
            assert_never(unexpected)


def _binary(expression: syntax.Binary) -> tuple[str, int]:
    operator, left, right = expression.operator, expression.left, expression.right
    level = _PRECEDENCE[operator]
    if level == _SUM:
        first = _at(left, _SUM)
        return f"{first} {operator} {_at(right, _PRODUCT, last=True)}", _SUM
    if level == _POWER:
        exponent = right
        sign = ""
        if isinstance(exponent, syntax.Unary):
            sign, exponent = "-", exponent.operand
        return f"{_at(left, _ATOM)}**{sign}{_at(exponent, _ATOM)}", _POWER
    second = _factor(right, last=operator == "*")
    gap = "" if _is_tight(left) and _is_tight(right) else " "
    own = _SUM if isinstance(right, syntax.Reduction) else _PRODUCT
    return f"{_at(left, _PRODUCT)}{gap}{operator}{gap}{second}", own


def _factor(right: syntax.Expression, *, last: bool) -> str:
    """What stands behind `*`, `/`, `//` or `%`; `last`: it is the last factor of its product."""
    if isinstance(right, syntax.Unary):
        return f"-{_at(right.operand, _POWER)}"
    return _at(right, _POWER, last=last)


def _is_tight(expression: syntax.Expression) -> bool:
    """Whether it is index arithmetic on names and integers, printed without spaces as a factor."""
    match expression:
        case syntax.Number() | syntax.NameUse():
            return True
        case syntax.Subscript(indices=(syntax.PlainIndex(value=syntax.Number(), boundary=""),)):
            return True  # an element of a tuple attribute
        case syntax.Unary(operand=operand):
            return _is_tight(operand)
        case syntax.Binary(left=left, right=right):
            return _is_tight(left) and _is_tight(right)
        case _:
            return False


def _is_short_sum(expression: syntax.Expression) -> bool:
    """`(C-1)` rather than `(C - 1)`."""
    match expression:
        case syntax.Binary(operator="+" | "-", left=left, right=right):
            return all(
                _is_tight(side) and not isinstance(side, syntax.Binary | syntax.Unary)
                for side in (left, right)
            )
        case _:
            return False


def _head(reduction: syntax.Reduction) -> str:
    plain = all(domain.extent is None for domain in reduction.domains)
    inside = ("," if plain else ", ").join(map(domain_text, reduction.domains))
    if reduction.condition is not None:
        inside += f" if {expression_text(reduction.condition)}"
    if reduction.position is not None:
        inside += f"; {expression_text(reduction.position)}"
    return f"{reduction.reducer.text}({inside})"


def _body(body: syntax.Expression) -> str:
    return (
        f"({expression_text(body)})"
        if isinstance(body, syntax.Unary)
        else _at(body, _PRODUCT, last=True)
    )


def domain_text(domain: syntax.Domain) -> str:
    """A variable, with what it goes through where that is given."""
    if domain.extent is None:
        return domain.name.text
    return f"{domain.name.text} in {_at(domain.extent, _SUM)}"


def composite_text(composite: syntax.Composite) -> str:
    """A dim that is made of parts, as `(H D)`."""
    parts = (
        part.text if isinstance(part, syntax.Name) else literal_text(part.value)
        for part in composite.parts
    )
    return f"({' '.join(parts)})"


def _indices(items: Sequence[syntax.IndexItem]) -> str:
    out, after_plain = "", True
    for item in items:
        text, plain = _index(item)
        if out:
            out += "," if plain and after_plain else ", "
        out, after_plain = out + text, plain
    return out


def _index(item: syntax.IndexItem) -> tuple[str, bool]:
    """Text of an index, and whether it is so short that no space is needed before it."""
    match item:
        case syntax.BatchDims():
            return "...", True
        case syntax.Composite():
            return composite_text(item), True
        case syntax.PlainIndex(value=value, boundary=boundary, fill=fill):
            text = expression_text(value)
            if boundary == "?(":
                assert fill is not None
                return f"{text} ?({expression_text(fill)})", False
            if boundary:
                return f"{text} {boundary}", False
            return text, isinstance(value, syntax.NameUse | syntax.Number)
        case unexpected:
            assert_never(unexpected)
