"""Every divisor is positive, or a launch check says so.

A quotient has a value only where its divisor is positive, so whatever is known of a quotient also
says that its divisor is positive. A proof of just that must not rest on it: `let M = N//s` does not
make `s` positive. So it uses no quotient whose divisor is still open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Kind, Poly, poly
from opgen.algebra.prove import implies
from opgen.errors import Span
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.notation import Op, Statement
from opgen.lang.environment import Divisor, Fault, Place
from opgen.lang.obligations import Obligations


def in_signature(obligations: Obligations, op: Op, divisors: Iterable[Divisor]) -> frozenset[Poly]:
    """Proves or checks the divisors of dims, lets and conditions of a call; tells which they are.

    They are taken in the order they stand in, so that one may rest on another.
    """
    settled: set[Poly] = set()
    for divisor in divisors:
        known = replace(op, constraints=(*op.constraints, *obligations.launch_checks))
        facts = facts_of(known, partial(_divides_only_by, settled))
        _positive(obligations, divisor, facts)
        settled.add(divisor.value)
    return frozenset(settled)


def in_statement(
    obligations: Obligations,
    statement: Statement,
    divisors: Iterable[Divisor],
    settled: frozenset[Poly],
) -> None:
    """Proves or checks the divisors of a statement, given those of the signature.

    A divisor rests on what is tested before it is evaluated. All extents are evaluated before any
    iterator has a value, and all guards at every point of the box.
    """
    own = set(settled)
    for divisor in divisors:
        facts = obligations.facts
        for iterator in statement.iterators:
            if divisor.place is not Place.EXTENT and _divides_only_by(own, iterator.extent):
                facts = with_iterators(facts, (iterator,))
            else:
                facts = facts.with_bounds(iterator.name, poly(0), None)
        if divisor.place is Place.BODY:
            guards = (g for g in statement.guards if _divides_only_by(own, g.value))
            facts = facts.with_conditions(*guards)
        _positive(obligations, divisor, facts)
        own.add(divisor.value)


def _divides_only_by(settled: Collection[Poly], value: Poly) -> bool:
    return all(
        atom.args[1].is_constant or atom.args[1] in settled
        for atom in value.all_atoms()
        if atom.kind is Kind.FLOOR_DIV
    )


def _positive(obligations: Obligations, divisor: Divisor, facts: Facts) -> None:
    """Proves that a divisor is positive, leaves it to a launch check, or reports it."""
    positive = Condition(divisor.value - 1)
    if implies(facts, positive):
        return
    known = obligations.environment.expand_lets(positive.value)
    if obligations.is_launch_condition(positive) and not known.is_constant:  # else no call meets it
        obligations.launch_check(positive, f"the divisor {divisor.value} must be positive")
        return
    span = divisor.span
    source = obligations.environment.source.text
    text = source[span.start : span.end]
    if source[span.start - 1 : span.start] + source[span.end : span.end + 1] == "()":
        span = Span(span.start - 1, span.end + 1)
    obligations.faults.append(
        Fault(
            "divisor-not-positive",
            f"the divisor {divisor.value} is not always positive",
            divisor.span,
            notes=(
                *obligations.smallest(positive, facts, (("the divisor", divisor.value),)),
                "`//` and `%` are floor operations, defined for positive divisors",
            ),
            advice=f"make it at least 1, such as max({text}, 1)"
            + (f" or {text} + 1" if text.isidentifier() else ""),
            alternatives=((span, f"max({text}, 1)"), (span, f"({text} + 1)")),
        )
    )
