"""Small constructors of expressions.

Those for the table of partials fold literal zeros and ones. `0 * x` becomes 0 although x may be
infinite or NaN. That is right in a partial derivative, where the 0 says that nothing depends, and
would be wrong for a product that a user wrote.
"""

from __future__ import annotations

from typing import Final

from opgen.algebra.poly import Poly
from opgen.ir.notation import Apply, Constant, Expr, Value

ZERO: Final = Constant(0)
ONE: Final = Constant(1)


def literal(expr: Expr) -> int | float | None:
    """The number of a literal, else None."""
    return expr.value if isinstance(expr, Constant) else None


def of_polynomial(value: Poly) -> Expr:
    """An integer polynomial as a number; a constant one is a literal."""
    return Constant(value.constant) if value.is_constant else Value(value)


def apply(name: str, *arguments: Expr) -> Apply:
    """A primitive applied to arguments, nothing folded."""
    return Apply(name, arguments)


def add(a: Expr, b: Expr) -> Expr:
    """a + b without a literal 0."""
    if literal(a) == 0:
        return b
    return a if literal(b) == 0 else apply("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    """a - b without a literal 0."""
    if literal(a) == 0:
        return neg(b)
    return a if literal(b) == 0 else apply("sub", a, b)


def neg(a: Expr) -> Expr:
    """-a; a literal is negated and two signs cancel."""
    match a:
        case Constant(value=value):
            return Constant(-value) if value else a
        case Apply(primitive="neg", arguments=(inner,)):
            return inner
        case _:
            return apply("neg", a)


def mul(a: Expr, b: Expr) -> Expr:
    """a * b without literal factors 0, 1 and -1."""
    for factor, other in ((a, b), (b, a)):
        match literal(factor):
            case 0:
                return ZERO
            case 1:
                return other
            case -1:
                return neg(other)
            case _:
                pass
    return apply("mul", a, b)


def div(a: Expr, b: Expr) -> Expr:
    """a / b without a literal numerator 0 or denominator 1."""
    return a if literal(a) == 0 or literal(b) == 1 else apply("div", a, b)


def power(a: Expr, b: Expr) -> Expr:
    """a ** b without literal exponents 0 and 1."""
    match literal(b):
        case 0:
            return ONE
        case 1:
            return a
        case _:
            return apply("pow", a, b)


def select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """`a` where the condition holds, else `b`; equal branches need no condition."""
    return a if a == b else apply("select", condition, a, b)


def mask(condition: Expr) -> tuple[Expr, Expr]:
    """1 and 0 where the condition holds, 0 and 1 elsewhere."""
    return select(condition, ONE, ZERO), select(condition, ZERO, ONE)
