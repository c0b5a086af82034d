"""Loops over what the equations leave open, with bounds as tight as can be told.

The bounds of a loop are the requirements in which its variable is the only unknown, and the
consequences of all requirements that remain when the other unknowns are eliminated by Fourier and
Motzkin's method (Schrijver, Theory of Linear and Integer Programming, 12.2). A bound that another
one is proved to dominate is left out, and a loop that can turn only once is none.
"""

from __future__ import annotations

import itertools
from typing import Final

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.fibre_system import GiveUp, System, length
from opgen.algebra.fibre_types import Loop
from opgen.algebra.poly import ZERO, Poly, select_zero, symbol

_PAIRS: Final = 6  # inequalities of each sign that one elimination combines
_INEQUALITIES: Final = 48  # an elimination that grows beyond this is stopped
_TERMS: Final = 12
_EXTRA_BOUNDS: Final = 3  # consequences kept beside the bounds that are needed
_EXTRA_LENGTH: Final = 36


def open_loops(system: System) -> None:
    """Loop over every unknown left, in order of iteration."""
    while system.unknowns:
        ordered = sorted(system.unknowns, key=lambda name: system.unknowns[name].order)
        for name in ordered:
            if _try_loop(system, name, enumerated=False):
                break
        else:
            raise GiveUp(f"{ordered[0]} has no bounds")


def open_loop(system: System, name: str, *, enumerated: bool) -> None:
    """Loop over one unknown, which is known from then on."""
    if not _try_loop(system, name, enumerated=enumerated):
        raise GiveUp(f"{name} has no bounds")


def settle(system: System) -> None:
    """Turn what is still required into conditions, unless it is proved."""
    left = list(dict.fromkeys(system.required))
    for value in tuple(left):
        if system.fragile:
            known = system.facts_for(value)  # the others may be evaluated too late to rely on
        else:
            others = [Condition(other) for other in left if other != value]
            known = system.facts.with_conditions(*others) if others else system.facts
        if system.nonnegative(value, known):
            left.remove(value)
    for value in left:
        system.assume(Condition(value))
    for value in system.unequal:
        if system.sign(value) is None:
            system.assume(Condition(value, Relation.NE))
    system.required, system.unequal = [], []


def _try_loop(system: System, name: str, *, enumerated: bool) -> bool:
    lower, upper, used = _bounds(system, name, system.required)
    consequences = _consequences(system, name)
    more_lower, more_upper, _ = _bounds(system, name, [*system.implied, *consequences])
    if not (lower or more_lower) or not (upper or more_upper):
        return False
    if lower and upper and system.divides:
        values = [*system.required, *consequences]
        more = _bounds_unless_zero(system, name, values, lower[0], upper[0])
        more_lower, more_upper = [*more_lower, *more[0]], [*more_upper, *more[1]]
    lows = _strongest(system, lower, more_lower, 1)
    highs = _strongest(system, upper, more_upper, -1)
    for low, high in itertools.product(lows, highs):
        if system.nonnegative(low - high):
            system.note("single", f"{name} = {low}")
            system.fix(name, low)  # every bound stays as a requirement
            return True
    system.required = [value for value in system.required if value not in used]
    system.open(Loop(name, lows, highs, enumerated))
    return True


def _bounds(
    system: System, name: str, inequalities: list[Poly]
) -> tuple[list[Poly], list[Poly], set[Poly]]:
    """Bounds from the inequalities whose only unknown is `name`, and which those are."""
    lower: list[Poly] = []
    upper: list[Poly] = []
    used: set[Poly] = set()
    for value in inequalities:
        if system.unknowns_of(value) != [name]:
            continue
        form = system.linear(value)
        if form.opaque:
            continue
        factor = form.factors[name]
        match system.sign(factor):
            case 1:  # f*v + r >= 0 : v >= ceil(-r / f) = (f - 1 - r) // f
                lower.append(system.quotient(factor - 1 - form.rest, factor))
            case -1:  # v <= floor(r / -f)
                upper.append(system.quotient(form.rest, -factor))
            case _:
                continue
        used.add(value)
    return lower, upper, used


def _bounds_unless_zero(
    system: System, name: str, inequalities: list[Poly], least: Poly, greatest: Poly
) -> tuple[list[Poly], list[Poly]]:
    """Bounds from inequalities in which the factor of `name` may be 0, but has a known sign else.

    Where it is 0 an inequality says nothing of `name`, and `least` and `greatest` hold. Such bounds
    differ from cell to cell: without a division, a row of cells takes less time for all points, of
    which each has some neighbours.
    """
    lower: list[Poly] = []
    upper: list[Poly] = []
    for value in inequalities:
        if system.unknowns_of(value) != [name]:
            continue
        form = system.linear(value)
        if form.opaque or system.sign(form.factors[name]) is not None:
            continue
        factor = form.factors[name]
        if system.nonnegative(factor):
            bound = system.quotient(factor - 1 - form.rest, factor)
            lower.append(select_zero(factor, least, bound))
        elif system.nonnegative(-factor):
            bound = system.quotient(form.rest, -factor)
            upper.append(select_zero(factor, greatest, bound))
    return lower, upper


def _strongest(
    system: System, needed: list[Poly], helpful: list[Poly], direction: int
) -> tuple[Poly, ...]:
    """The bounds that none of the others dominates; of the merely helpful ones a few short ones."""
    candidates = list(dict.fromkeys(needed))
    extra = sorted(
        (bound for bound in dict.fromkeys(helpful) if bound not in candidates),
        key=lambda bound: (length(bound), str(bound)),
    )
    room = _EXTRA_BOUNDS
    for bound in extra:
        if candidates and (room == 0 or length(bound) > _EXTRA_LENGTH):
            break
        if not any(system.nonnegative((other - bound) * direction) for other in candidates):
            candidates.append(bound)
            room -= 1
    kept: list[Poly] = []
    for k, bound in enumerate(candidates):
        rivals = kept + candidates[k + 1 :]
        if not any(system.nonnegative((other - bound) * direction) for other in rivals):
            kept.append(bound)
    return tuple(kept)


def _consequences(system: System, name: str) -> list[Poly]:
    """Inequalities on `name` alone that follow from those with other unknowns."""
    current = [
        value
        for value in (*system.required, *system.implied)
        if system.unknowns_of(value) and not system.linear(value).opaque
    ]
    linked = _linked(system, name, current)
    others = linked - {name}
    for other in sorted(others, key=lambda n: (system.rank(n, ZERO), system.unknowns[n].order)):
        positive: list[tuple[Poly, Poly]] = []
        negative: list[tuple[Poly, Poly]] = []
        rest: list[Poly] = []
        for value in current:
            form = system.linear(value)
            factor = form.factors.get(other)
            if factor is None:
                rest.append(value)
                continue
            remaining = value - factor * symbol(other)
            match system.sign(factor):
                case 1:
                    positive.append((factor, remaining))
                case -1:
                    negative.append((-factor, remaining))
                case _:
                    continue
        combined = dict.fromkeys(rest)
        for (a, r), (b, s) in itertools.product(positive[:_PAIRS], negative[:_PAIRS]):
            value = b * r + a * s
            if len(value.terms) <= _TERMS and system.unknowns_of(value):
                combined[value] = None
        current = list(combined)
        if len(current) > _INEQUALITIES:
            break
    return [value for value in current if system.unknowns_of(value) == [name]]


def _linked(system: System, name: str, inequalities: list[Poly]) -> set[str]:
    """The unknowns connected with `name` through inequalities."""
    linked, grew = {name}, True
    while grew:
        grew = False
        for value in inequalities:
            members = set(system.unknowns_of(value))
            if members & linked and not members <= linked:
                linked |= members
                grew = True
    return linked
