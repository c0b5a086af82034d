"""Products as factors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from opgen.ir.notation import Apply, Constant, Expr


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a product, or what divides it."""

    value: Expr
    divides: bool = False


def factors_of(expr: Expr, *, divides: bool = False) -> tuple[bool, list[Factor]]:
    """Whether a product is negative, and its factors in their order."""
    match expr:
        case _ if divides:
            return False, [Factor(expr, divides)]
        case Apply(primitive="neg", arguments=(inner,)):
            negative, factors = factors_of(inner)
            return not negative, factors
        case Apply(primitive="mul", arguments=(left, Apply(primitive="div") as quotient)):
            one, first = factors_of(left)
            return one, [*first, Factor(quotient)]  # `left` may say whether its divisor is there
        case Apply(primitive="mul" | "div" as kind, arguments=(left, right)):
            one, first = factors_of(left)
            other, second = factors_of(right, divides=kind == "div")
            return one is not other, [*first, *second]
        case _:
            return False, [Factor(expr)]


def is_number(factor: Factor) -> bool:
    """Whether a factor is a number wherever what it reads is one."""
    if isinstance(factor.value, Constant):
        return math.isfinite(factor.value.value) and (factor.value.value != 0 or not factor.divides)
    return not factor.divides and not isinstance(factor.value, Apply)


def times(value: Expr, factors: Iterable[Factor], *, negative: bool = False) -> Expr:
    """A value times factors, one after the other."""
    found = reduce(_joined, factors, value)
    return Apply("neg", (found,)) if negative else found


def product_of(factors: Iterable[Factor], *, negative: bool = False) -> Expr:
    """The factors as one value; those that divide come last if the first one does."""
    found = [*factors]
    if found and found[0].divides:
        found.sort(key=lambda each: each.divides)
    if not found or found[0].divides:
        return times(Constant(1), found, negative=negative)
    return times(found[0].value, found[1:], negative=negative)


def _joined(value: Expr, factor: Factor) -> Expr:
    return Apply("div" if factor.divides else "mul", (value, factor.value))
