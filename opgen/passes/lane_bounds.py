"""Conditions on one integer as bounds of it, and bounds of others over a stretch of it.

The integer is the *lane*: the position in a row that a kernel computes at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from opgen.algebra.facts import Facts
from opgen.algebra.poly import Atom, Kind, Poly, symbol
from opgen.algebra.prove import is_nonnegative, is_positive

Direction = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """`max(lower) <= lane <= min(upper)`."""

    lower: tuple[Poly, ...] = ()
    upper: tuple[Poly, ...] = ()

    def needed(self, extent: Poly, facts: Facts) -> LaneBounds:
        """Without bounds that every lane of `0 .. extent - 1` meets."""
        return LaneBounds(
            tuple(bound for bound in self.lower if not is_nonnegative(-bound, facts)),
            tuple(bound for bound in self.upper if not is_nonnegative(bound - extent + 1, facts)),
        )

    def joined(self, other: LaneBounds) -> LaneBounds:
        """Both."""
        return LaneBounds(
            tuple(dict.fromkeys((*self.lower, *other.lower))),
            tuple(dict.fromkeys((*self.upper, *other.upper))),
        )


def solve(value: Poly, lane: str, facts: Facts) -> LaneBounds | None:
    """`value >= 0` as bounds of the lane; None where that is no interval, or not seen to be one.

    a*lane + r >= 0       lane >= -(r // a)           for a > 0, else lane <= r // -a
    a*(n//d) + r >= 0     n >= -(r // a) * d          for a > 0, else n <= (r // -a) * d + d - 1
    a*min(p, q) + r >= 0  a*p + r >= 0 and a*q + r >= 0   for a > 0, and r - a*max(p, q) likewise
    """
    if lane not in value.symbols:
        return None
    (atom, *others) = _atoms_with(value, lane)
    if others:
        return None
    linear = value.linear_in(atom)
    if linear is None or lane in linear[0].symbols:
        return None
    factor, rest = linear
    if atom.kind in (Kind.MIN, Kind.MAX):
        if not factor.is_constant or (factor.constant > 0) != (atom.kind is Kind.MIN):
            return None
        return _all_of([factor * arg + rest for arg in atom.args], lane, facts)
    if is_positive(factor, facts):
        least, greatest = -(rest // factor), None
    elif is_positive(-factor, facts):
        least, greatest = None, rest // -factor
    else:
        return None
    if atom.kind is Kind.SYMBOL:
        if least is not None:
            return LaneBounds(lower=(least,))
        assert greatest is not None
        return LaneBounds(upper=(greatest,))
    if atom.kind is not Kind.FLOOR_DIV or not is_positive(atom.args[1], facts):
        return None
    numerator, divisor = atom.args
    if lane in divisor.symbols:
        return None
    if least is not None:
        return solve(numerator - least * divisor, lane, facts)
    assert greatest is not None
    return solve(greatest * divisor + divisor - 1 - numerator, lane, facts)


def _all_of(values: Sequence[Poly], lane: str, facts: Facts) -> LaneBounds | None:
    """Bounds for all of them."""
    bounds = LaneBounds()
    for value in values:
        if lane not in value.symbols and is_nonnegative(value, facts):
            continue
        found = solve(value, lane, facts)
        if found is None:
            return None
        bounds = bounds.joined(found)
    return bounds


def _atoms_with(value: Poly, lane: str) -> tuple[Atom, ...]:
    """The factors of terms that depend on the lane."""
    return tuple(atom for atom in value.atoms() if lane in atom.symbols)


def least_over(value: Poly, lane: str, first: str, last: str, facts: Facts) -> Poly | None:
    """A value that is at most `value` for every lane of `first .. last`, and reached; or None."""
    match _direction(value, lane, facts):
        case None:
            return None
        case -1:
            return value.substitute({lane: symbol(last)})
        case _:
            return value.substitute({lane: symbol(first)})


def greatest_over(value: Poly, lane: str, first: str, last: str, facts: Facts) -> Poly | None:
    """A value that is at least `value` for every lane of `first .. last`, and reached; or None."""
    return least_over(value, lane, last, first, facts)


def _direction(value: Poly, lane: str, facts: Facts) -> Direction | None:
    """1 where the value never falls as the lane grows, -1 where it never rises, 0 where neither."""
    found: set[Direction] = set()
    for monomial, coefficient in value.terms.items():
        moving = [atom for atom in monomial if lane in atom.symbols]
        if not moving:
            continue
        if len(moving) > 1:
            return None
        (atom,) = moving
        rest = list(monomial)
        rest.remove(atom)
        if any(not is_nonnegative(Poly({(factor,): 1}), facts) for factor in rest):
            return None
        own = _atom_direction(atom, lane, facts)
        if own is None:
            return None
        found.add(own if coefficient > 0 else _opposite(own))
    found.discard(0)
    match sorted(found):
        case []:
            return 0
        case [single]:
            return single
        case _:
            return None


def _opposite(value: Direction) -> Direction:
    return {-1: 1, 0: 0, 1: -1}[value]  # type: ignore[return-value]  # the values are literals


def _atom_direction(atom: Atom, lane: str, facts: Facts) -> Direction | None:
    match atom.kind:
        case Kind.SYMBOL:
            return 1
        case Kind.FLOOR_DIV if lane not in atom.args[1].symbols and is_positive(
            atom.args[1], facts
        ):
            return _direction(atom.args[0], lane, facts)
        case Kind.MIN | Kind.MAX:
            found = {_direction(arg, lane, facts) for arg in atom.args} - {0}
            return found.pop() if len(found) == 1 else None
        case _:
            return None
