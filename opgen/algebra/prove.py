"""Questions about polynomials: is it nonnegative, positive, zero? What is its floor quotient?

"No" always means "not proved". The search itself is in `search`; answers are kept in the `Facts`
they rest on.
"""

from __future__ import annotations

from collections.abc import Sequence

from opgen.algebra import search
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.counterexample import counterexample
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, common_factor, exact_quotient, split_quotient
from opgen.algebra.poly import floor_div as plain_floor_div

__all__ = [
    "all_nonnegative",
    "counterexample",
    "floor_div",
    "implies",
    "is_nonnegative",
    "is_positive",
    "is_zero",
    "sign",
]


def is_nonnegative(value: Poly, facts: Facts) -> bool:
    """Whether `value >= 0` was proved. False means not proved, not that it is false."""
    if value.is_constant:
        return value.constant >= 0
    known = facts.memo.get(value)
    if known is None:
        known = facts.memo[value] = search.proves(value, facts)
    return known


def all_nonnegative(values: Sequence[Poly], facts: Facts) -> bool:
    """Whether every value was proved nonnegative; refutes all before it proves any."""
    if any(facts.refutes(facts.to_slack(value)) for value in values):
        return False
    return all(is_nonnegative(value, facts) for value in values)


def is_positive(value: Poly, facts: Facts) -> bool:
    """Whether `value >= 1` was proved."""
    return is_nonnegative(value - 1, facts)


def is_zero(value: Poly, facts: Facts) -> bool:
    """Whether `value == 0` was proved."""
    if value.is_constant:
        return value.constant == 0
    return is_nonnegative(value, facts) and is_nonnegative(-value, facts)


def sign(value: Poly, facts: Facts) -> int | None:
    """1, 0 or -1 where the sign was proved to be that everywhere, else None."""
    if is_positive(value, facts):
        return 1
    if is_positive(-value, facts):
        return -1
    return 0 if is_zero(value, facts) else None


def implies(facts: Facts, condition: Condition) -> bool:
    """Whether the condition was proved to hold wherever the facts do."""
    match condition.relation:
        case Relation.GE:
            return is_nonnegative(condition.value, facts)
        case Relation.EQ:
            return is_zero(condition.value, facts)
        case Relation.NE:
            return sign(condition.value, facts) in (1, -1)


def floor_div(a: Poly, b: Poly, facts: Facts) -> Poly:
    """Floor of a / b for positive b, simplified with what is known of the ranges.

    After `a = b*q + r` by division of polynomials:

        0 <= r < b                          q
        -b <= r < 0                         q - 1
        r = g*z + low, g | b, 0 <= low < g  q + z // (b/g)
        r = g*z, g | b, 0 < g               q + z // (b/g)
    """
    quotient, rest = split_quotient(a, b)
    if not b.terms:
        return plain_floor_div(a, b)
    if not rest.terms or (rest.is_constant and b.is_constant):
        return quotient
    if all_nonnegative((rest, b - 1 - rest), facts):
        return quotient
    if all_nonnegative((-rest - 1, rest + b), facts):
        return quotient - 1
    shared = common_factor((rest, b))
    if not shared.is_constant and is_positive(shared, facts):
        smaller_rest, smaller_b = exact_quotient(rest, shared), exact_quotient(b, shared)
        assert smaller_rest is not None and smaller_b is not None
        return quotient + floor_div(smaller_rest, smaller_b, facts)
    factors = dict.fromkeys(
        common_factor((Poly({monomial: abs(coefficient)}), b))
        for monomial, coefficient in rest.terms.items()
        if monomial
    )
    # The largest divisor first: it leaves the smallest quotient.
    for factor in sorted(factors, key=lambda f: (-sum(map(len, f.terms)), -f.constant, str(f))):
        if factor == 1:
            continue
        high, low = split_quotient(rest, factor)
        if not low.terms or not high.terms:
            continue
        smaller = exact_quotient(b, factor)
        if smaller is not None and all_nonnegative((low, factor - 1 - low), facts):
            return quotient + floor_div(high, smaller, facts)
    return plain_floor_div(a, b)
