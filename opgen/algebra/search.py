"""The search for a proof that a polynomial is nonnegative: sound, incomplete, bounded by a count.

A claim `P >= 0` is refuted at sample points, or reduced to claims whose truth implies it, until one
is plain: in slack form (see `facts`) every coefficient is nonnegative and every factor is. What
stands in the way is a *bad* term: a negative one, or one with a factor of unknown sign. It has to
be cancelled by something known, so one bad term is picked and each way to cancel it is a new claim:

    known inequality F >= 0       k*P - m*F         m a product of nonnegative factors
    c*(x // y) + d                c*(x - y + 1) + y*d  for c > 0,   c*x + y*d  for c < 0
    c*min(x, ..) + d, c > 0       every c*x + d     likewise max with c < 0
    select(t == 0, x, y)          x where t == 0, and y where t != 0
    c*v + d, F = h - v >= 0       P + c*F           c < 0 of several terms; likewise v - l

This is the Positivstellensatz search of Handelman and Krivine, led by the goal instead of by a
linear program. The most promising claim is taken first, and every new claim is tested at the sample
points, which stops nearly all wrong turns at once.

An answer depends on the facts and the claim only, never on what was asked before.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Final

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.inequality import cleared, primitive, tightened
from opgen.algebra.poly import Atom, Kind, Monomial, Poly, of_atom, rebuild

_STEPS: Final = 12  # claims examined per question
_BLIND_STEPS: Final = 3  # the same where no sample point is left
_NESTED_STEPS: Final = 6  # the same for the sign of an atom inside a question
_FACTOR_STEPS: Final = 2  # the same for the sign of a factor of several terms
_FACTOR_TERMS: Final = 6
_CASES: Final = 6  # case distinctions per question
_CASE_STEPS: Final = 8  # claims examined for each of them
_TERMS: Final = 28  # longer claims are given up
_DEGREE: Final = 9


def proves(value: Poly, facts: Facts) -> bool:
    """Whether `value >= 0` was proved."""
    return _Search(facts, _Fuel(_STEPS, _CASES), nested=False).decide(value)


class _Fuel:
    """What is left for one question; its parts share it."""

    __slots__ = ("cases", "steps")

    def __init__(self, steps: int, cases: int) -> None:
        self.steps = steps
        self.cases = cases

    def take(self) -> bool:
        self.steps -= 1
        return self.steps >= 0

    def take_case(self) -> bool:
        """A distinction of cases; it brings steps of its own."""
        self.cases -= 1
        self.steps += _CASE_STEPS if self.cases >= 0 else 0
        return self.cases >= 0


class _Search:
    """One question. A nested one, about the sign of a factor, asks no further ones."""

    __slots__ = ("facts", "fuel", "nested")

    def __init__(self, facts: Facts, fuel: _Fuel, *, nested: bool) -> None:
        self.facts = facts
        self.fuel = fuel
        self.nested = nested

    def decide(self, value: Poly) -> bool:
        """Prove a value that is not in slack form."""
        return all(self.prove(self.facts.to_slack(claim)) for claim in cleared(value, primitive))

    def prove(self, goal: Poly) -> bool:
        """Best-first search from one claim in slack form."""
        if self.is_plain(tightened(goal)):
            return True
        if goal.is_constant or self.facts.refutes(goal):
            return False
        if not self.facts.samples.alive:  # nothing would stop a wrong turn
            self.fuel.steps = min(self.fuel.steps, _BLIND_STEPS)
        tickets = itertools.count()
        queue = [(self.badness(form), next(tickets), form) for form in _forms(goal)]
        seen = set(_forms(goal))
        while queue and self.fuel.take():
            _, _, claim = heapq.heappop(queue)
            parts = self.parts(claim)
            if parts is not None:
                if self.fuel.take_case() and all(self.on(facts).prove(p) for p, facts in parts):
                    return True
                continue
            for child in itertools.chain.from_iterable(map(_forms, self.reductions(claim))):
                if child in seen:
                    continue
                seen.add(child)
                if self.is_plain(child):
                    return True
                if child.is_constant or len(child.terms) > _TERMS or self.facts.refutes(child):
                    continue
                if max(map(len, child.terms)) <= _DEGREE:
                    heapq.heappush(queue, (self.badness(child), next(tickets), child))
        return False

    def on(self, facts: Facts) -> _Search:
        """The same question where more is known."""
        if facts is self.facts:
            return self
        return _Search(facts, self.fuel, nested=self.nested)

    # ------------------------------------------------------------------ what is plain
    def is_plain(self, claim: Poly) -> bool:
        return all(
            coefficient >= 0 and self.all_nonnegative(monomial)
            for monomial, coefficient in claim.terms.items()
        )

    def all_nonnegative(self, monomial: Monomial) -> bool:
        return all(self.is_nonnegative(atom) for atom in monomial)

    def is_nonnegative(self, atom: Atom) -> bool:
        """Whether a factor of a claim in slack form is never negative."""
        match atom.kind:
            case Kind.SYMBOL:
                return atom.name in self.facts.floors
            case Kind.GCD | Kind.MODULAR_INVERSE:
                return True
            case Kind.LOAD:
                return False
            case _:
                memo = self.facts.nested_memo if self.nested else self.facts.factor_memo
                known = memo.get(atom)
                if known is None:
                    known = memo[atom] = self.is_nonnegative_atom(atom)
                return known

    def is_nonnegative_atom(self, atom: Atom) -> bool:
        match atom.kind:
            case Kind.FLOOR_DIV:
                return self.easily(atom.args[0])
            case Kind.MAX:
                return any(map(self.easily, atom.args))
            case Kind.SELECT_ZERO:
                return all(map(self.easily, atom.args[1:]))
            case _:
                return all(map(self.easily, atom.args))

    def easily(self, value: Poly) -> bool:
        if self.nested:
            return self.is_plain(self.facts.to_slack(value))
        return _Search(self.facts, _Fuel(_NESTED_STEPS, 0), nested=True).decide(value)

    def bad_terms(self, claim: Poly) -> list[tuple[Monomial, int]]:
        return [
            (monomial, coefficient)
            for monomial, coefficient in claim.terms.items()
            if coefficient < 0 or not self.all_nonnegative(monomial)
        ]

    def badness(self, claim: Poly) -> tuple[int, int]:
        return sum(1 + len(monomial) for monomial, _ in self.bad_terms(claim)), len(claim.terms)

    # ------------------------------------------------------------------ all of several
    def parts(self, claim: Poly) -> list[tuple[Poly, Facts]] | None:
        """Claims that together are equivalent to this one, each with what holds in its case."""
        facts = self.facts
        for atom in claim.atoms():
            if atom.kind not in (Kind.MIN, Kind.MAX, Kind.SELECT_ZERO):
                continue
            split = claim.linear_in(atom)
            if split is None:
                continue
            factor, rest = split
            if atom.kind is Kind.SELECT_ZERO:
                return _select_cases(factor, atom, rest, facts)
            if atom in rest.all_atoms():  # an argument alone is not what stands inside of others
                return _extreme_cases(factor, atom, rest, facts)
            claims = [factor * facts.to_slack(arg) + rest for arg in atom.args]
            if self.is_plain(factor if atom.kind is Kind.MIN else -factor):
                return [(part, facts) for part in claims]
            if all(facts.refutes(part) for part in claims):
                return _extreme_cases(factor, atom, rest, facts)  # no argument alone suffices
        return None

    # ------------------------------------------------------------------ one of several
    def reductions(self, claim: Poly) -> Iterator[Poly]:
        """Claims each of which implies this one, by cancelling one bad term."""
        # The highest degree first: nothing of lower degree can cancel it.
        monomial, coefficient = min(
            self.bad_terms(claim), key=lambda term: (-len(term[0]), [a.key for a in term[0]])
        )
        for atom in dict.fromkeys(monomial):
            if atom.kind is Kind.FLOOR_DIV:
                yield from self.without_floor(claim, atom)
        meanings = [known for atom in claim.atoms() for known in self.meanings(atom)]
        for divisor in _sub_monomials(monomial):
            if not divisor and monomial:
                continue
            multiplier = _quotient(monomial, divisor)
            if not self.all_nonnegative(multiplier):
                continue
            known = list(self.facts.index.get(divisor, ()))
            known += [(value, value.terms[divisor]) for value in meanings if divisor in value.terms]
            for inequality, strength in known:
                if (strength > 0) == (coefficient > 0):
                    yield _cancelled(claim, coefficient, multiplier, inequality, strength)
        yield from self.by_sign_of_factor(claim, monomial)

    def meanings(self, atom: Atom) -> Iterator[Poly]:
        """What the meaning of an atom says about it, in slack form."""
        if atom.kind is Kind.SYMBOL:
            return
        own = of_atom(atom)
        args = tuple(self.facts.to_slack(arg) for arg in atom.args)
        match atom.kind:
            case Kind.FLOOR_DIV:
                numerator, divisor = args
                yield numerator - divisor * own
                yield divisor * own + divisor - 1 - numerator
            case Kind.MIN:
                yield from (arg - own for arg in args)
            case Kind.MAX:
                yield from (own - arg for arg in args)
            case Kind.GCD:
                yield own - 1
                yield from (arg - own for arg in args)
            case Kind.MODULAR_INVERSE:
                yield args[1] - 1 - own
            case Kind.SELECT_ZERO | Kind.LOAD:
                return

    def without_floor(self, claim: Poly, atom: Atom) -> Iterator[Poly]:
        split = claim.linear_in(atom)
        if split is None:
            return
        factor, rest = split
        numerator, divisor = (self.facts.to_slack(arg) for arg in atom.args)
        if factor == 1:
            yield numerator + divisor * rest
        elif factor == -1:
            yield divisor * rest + divisor - 1 - numerator
        elif self.is_plain(factor):
            yield factor * (numerator - divisor + 1) + divisor * rest
        elif self.is_plain(-factor):
            yield factor * numerator + divisor * rest

    def by_sign_of_factor(self, claim: Poly, monomial: Monomial) -> Iterator[Poly]:
        """Bounds of a symbol whose factor has several terms but one sign."""
        for atom in dict.fromkeys(monomial):
            split = claim.linear_in(atom) if atom.kind is Kind.SYMBOL else None
            if split is None or len(split[0].terms) < 2:
                continue
            for inequality, strength in self.facts.index.get((atom,), ()):
                if strength not in (1, -1):
                    continue
                factor = split[0] * strength
                if self.is_plain(factor) or self.is_nonnegative_factor(factor):
                    yield claim - factor * inequality

    def is_nonnegative_factor(self, factor: Poly) -> bool:
        if self.nested or len(factor.terms) > _FACTOR_TERMS:
            return False
        memo = self.facts.sign_memo
        known = memo.get(factor)
        if known is None:
            question = _Search(self.facts, _Fuel(_FACTOR_STEPS, 0), nested=True)
            known = memo[factor] = question.prove(factor)
        return known


def _forms(claim: Poly) -> tuple[Poly, ...]:
    """Claims that say the same of integers: the shortest, and that which says less of reals."""
    return tuple(dict.fromkeys((tightened(claim), primitive(claim))))


# ---------------------------------------------------------------------------- cases
def _select_cases(factor: Poly, atom: Atom, rest: Poly, facts: Facts) -> list[tuple[Poly, Facts]]:
    test, if_zero, otherwise = atom.args
    return [
        _case(factor, atom, chosen, rest, facts, (Condition(test, relation),))
        for relation, chosen in ((Relation.EQ, if_zero), (Relation.NE, otherwise))
    ]


def _extreme_cases(factor: Poly, atom: Atom, rest: Poly, facts: Facts) -> list[tuple[Poly, Facts]]:
    """One case per argument of a minimum or maximum: that it is the one, wherever it stands."""
    direction = 1 if atom.kind is Kind.MAX else -1
    return [
        _case(
            factor,
            atom,
            chosen,
            rest,
            facts,
            tuple(Condition(direction * (chosen - other)) for other in atom.args),
        )
        for chosen in atom.args
    ]


def _with(value: Poly, atom: Atom, meaning: Poly) -> Poly:
    """The value with a meaning for an atom, also where it stands inside of others."""

    def change(each: Atom) -> Poly:
        if each == atom:
            return meaning
        return rebuild(each, tuple(_with(arg, atom, meaning) for arg in each.args))

    return value.map_atoms(change)


def _case(
    factor: Poly, atom: Atom, chosen: Poly, rest: Poly, facts: Facts, assumed: tuple[Condition, ...]
) -> tuple[Poly, Facts]:
    """`factor * atom + rest` where the atom is `chosen`, and what is known there."""
    knowledge = facts.with_conditions(*assumed)
    value = facts.from_slack(factor * facts.to_slack(chosen) + rest)
    # Arguments of atoms have no slack form: only here do all symbols mean the same.
    return knowledge.to_slack(_with(value, atom, chosen)), knowledge


# ---------------------------------------------------------------------------- monomials
def _cancelled(
    claim: Poly, coefficient: int, multiplier: Monomial, inequality: Poly, strength: int
) -> Poly:
    shared = math.gcd(coefficient, strength)
    scale, amount = abs(strength) // shared, abs(coefficient) // shared
    return scale * claim - Poly({multiplier: amount}) * inequality


def _sub_monomials(monomial: Monomial) -> Iterator[Monomial]:
    """Every product of some of the factors, the largest first, each once."""
    seen: set[Monomial] = set()
    for size in range(len(monomial), -1, -1):
        for chosen in itertools.combinations(monomial, size):
            if chosen not in seen:
                seen.add(chosen)
                yield chosen


def _quotient(monomial: Monomial, divisor: Monomial) -> Monomial:
    rest = list(monomial)
    for atom in divisor:
        rest.remove(atom)
    return tuple(rest)
