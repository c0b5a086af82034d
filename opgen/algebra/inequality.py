"""Equivalent forms of `P >= 0`: without floors where possible, and as tight as integers allow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from opgen.algebra.poly import Kind, Poly

_CLEARING_STEPS: Final = 16


def tightened(value: Poly) -> Poly:
    """`value >= 0` divided by the integer content of its non-constant part, exactly."""
    content = math.gcd(*(c for monomial, c in value.terms.items() if monomial))
    if content <= 1:
        return value
    return Poly({m: c // content for m, c in value.terms.items() if c // content})


def primitive(value: Poly) -> Poly:
    """`value >= 0` divided by the common divisor of all its coefficients.

    Over the reals it says less than `tightened`: 2*x - 3 >= 0 follows where x >= 3/2 is known, and
    x - 2 >= 0 does not.
    """
    content = math.gcd(*value.terms.values())
    if content <= 1:
        return value
    return Poly({m: c // content for m, c in value.terms.items()})


def cleared(value: Poly, divided: Callable[[Poly], Poly] = tightened) -> tuple[Poly, ...]:
    """Inequalities that together say `value >= 0`, with fewer floors, minima and maxima.

    `divided` is `tightened` for what is known, for it then says the most, and `primitive` for what
    is to be proved, which must not say more than it has to.

    x // y + d >= 0        x + y*d >= 0
    d - x // y >= 0        y*d + y - 1 - x >= 0
    c*min(x, ..) + d >= 0  c*x + d >= 0 and ..          c a positive integer
    d - c*max(x, ..) >= 0  d - c*x >= 0 and ..
    """
    pending, out = [divided(value)], dict[Poly, None]()
    for _ in range(_CLEARING_STEPS):
        if not pending:
            break
        claim = pending.pop()
        parts = _clear_one(claim)
        if parts is None:
            out[claim] = None
        else:
            pending.extend(divided(part) for part in reversed(parts))
    for claim in reversed(pending):
        out[claim] = None
    return tuple(out)


def _clear_one(value: Poly) -> tuple[Poly, ...] | None:
    for atom in value.atoms():
        if atom.kind not in (Kind.FLOOR_DIV, Kind.MIN, Kind.MAX):
            continue
        split = value.linear_in(atom)
        if split is None or not split[0].is_constant:
            continue
        factor, rest = split[0].constant, split[1]
        match atom.kind, factor:
            case Kind.FLOOR_DIV, 1:
                numerator, divisor = atom.args
                return (numerator + divisor * rest,)
            case Kind.FLOOR_DIV, -1:
                numerator, divisor = atom.args
                return (divisor * rest + divisor - 1 - numerator,)
            case (Kind.MIN, _) if factor > 0:
                pass
            case (Kind.MAX, _) if factor < 0:
                pass
            case _:
                continue
        if atom not in rest.all_atoms():  # else an argument is not what stands inside of others
            return tuple(factor * arg + rest for arg in atom.args)
    return None
