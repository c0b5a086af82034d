"""Random relations against brute force, and proof that the comparison notices faults.

Every relation is solved with symbolic sizes and attributes, then run at small ones.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

import relations as relations_module
from opgen.algebra import search
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.fibre import Fibre, Loop, solve
from opgen.algebra.inequality import cleared
from opgen.algebra.poly import Poly
from relations import (
    PARAMETERS,
    MismatchError,
    RandomRelation,
    check,
    compare,
    relations,
    seeded,
    small_sizes,
)

# Each of these must have been exercised this often per hundred relations.
LEAST_PER_HUNDRED = {
    # features of the relations
    "quotient or remainder": 15,
    "mixed radix": 10,
    "opaque": 8,
    "clamped target": 8,
    "wrapped target": 8,
    "load": 8,
    "phase": 2,
    "guard >=": 10,
    "guard of a read": 15,
    "guard ==": 5,
    "guard !=": 5,
    # rules of the solver
    "unit": 20,
    "split": 10,
    "divide": 8,
    "eliminate": 10,
    "residue": 3,
    "enumerate": 4,
    "digits": 15,
    "clamp": 6,
    "consistency": 8,
    "single": 3,
    # kinds of results
    "loop-free": 10,
    "ordered loops": 15,
}


def run(examples: int, *, derandomize: bool = True) -> Counter[str]:
    """Check that many relations and count what occurred."""
    seen: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        derandomize=derandomize,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(relations())
    def every_relation(relation: RandomRelation) -> None:
        seen.update(check(relation, trials=3, limit=250))

    every_relation()
    return seen


def judge(seen: Counter[str], examples: int) -> None:
    print(dict(seen))
    assert seen["relations"] >= examples
    assert seen["comparisons"] > 2 * seen["relations"]
    assert seen["points"] > 5 * seen["relations"]
    assert seen["fallback"] <= 0.05 * seen["relations"]
    rare = {
        feature: seen[feature]
        for feature, least in LEAST_PER_HUNDRED.items()
        if seen[feature] < least * seen["relations"] / 100
    }
    assert not rare, f"too few of {rare} in {seen['relations']} relations"


def test_solved_fibres_are_brute_force() -> None:
    judge(run(300), 300)


@pytest.mark.slow
def test_many_solved_fibres_are_brute_force() -> None:
    """The share of each feature is judged on repeatable examples: random ones may fall short."""
    judge(run(2000), 2000)


@pytest.mark.slow
def test_relations_of_the_profile_in_force_are_brute_force() -> None:
    """Other examples in every run under the profile "explore"."""
    run(settings().max_examples, derandomize=settings().derandomize)


# ---------------------------------------------------------------------------- negative controls
def without_equalities(fibre: Fibre) -> Fibre:
    return _without(fibre, Relation.EQ)


def without_inequalities(fibre: Fibre) -> Fibre:
    return _without(fibre, Relation.GE)


def without_unequalities(fibre: Fibre) -> Fibre:
    return _without(fibre, Relation.NE)


def _without(fibre: Fibre, relation: Relation) -> Fibre:
    steps = tuple(
        step
        for step in fibre.steps
        if not (isinstance(step, Condition) and step.relation is relation)
    )
    return replace(fibre, steps=steps)


def _loops_changed(fibre: Fibre, change: Callable[[Loop], Loop]) -> Fibre:
    return replace(
        fibre,
        steps=tuple(change(step) if isinstance(step, Loop) else step for step in fibre.steps),
    )


def one_turn_more(fibre: Fibre) -> Fibre:
    return _loops_changed(
        fibre, lambda loop: replace(loop, upper=tuple(bound + 1 for bound in loop.upper))
    )


def one_turn_less(fibre: Fibre) -> Fibre:
    return _loops_changed(
        fibre, lambda loop: replace(loop, lower=tuple(bound + 1 for bound in loop.lower))
    )


def one_bound_dropped(fibre: Fibre) -> Fibre:
    return _loops_changed(fibre, lambda loop: replace(loop, upper=loop.upper[:1]))


def backwards(fibre: Fibre) -> Fibre:
    """The same points in another order: caught only because fibres say that they are in order."""
    loops = list(reversed(fibre.loops))
    bounds = {name for loop in loops for b in (*loop.lower, *loop.upper) for name in b.symbols}
    if bounds & {loop.name for loop in loops}:
        return fibre
    steps = iter(loops)
    swapped = tuple(next(steps) if isinstance(step, Loop) else step for step in fibre.steps)
    known = {loop.name for loop in loops}
    movable = all(isinstance(s, Loop) or not _symbols(s) & known for s in fibre.steps)
    return replace(fibre, steps=swapped) if movable else fibre


def _symbols(step: object) -> frozenset[str]:
    value = getattr(step, "value", None)
    return value.symbols if isinstance(value, Poly) else frozenset()


CONTROLS = 60
"""Seeds of the relations that the negative controls run on."""


def caught(mutate: Callable[[Fibre], Fibre]) -> int:
    """How many of the fibres the comparison rejects after a change."""
    count = 0
    for seed in range(CONTROLS):
        relation = seeded(seed)
        fibre = mutate(solve(relation.problem, relation.facts))
        try:
            for trial in range(3):
                sizes = small_sizes(random.Random(3 * seed + trial))
                compare(relation.problem, fibre, sizes)
        except MismatchError:
            count += 1
    return count


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("mutate", "least"),
    [
        (without_equalities, 12),
        (without_inequalities, 14),
        (without_unequalities, 3),
        (one_turn_more, 18),
        (one_turn_less, 18),
        (one_bound_dropped, 8),
        (backwards, 3),
    ],
)
def test_a_broken_fibre_is_noticed(mutate: Callable[[Fibre], Fibre], least: int) -> None:
    assert caught(mutate) >= least


def test_the_controls_pass_unbroken() -> None:
    assert caught(lambda fibre: fibre) == 0


def test_an_unsound_prover_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Whatever sampling does not refute is no proof."""

    def believes(value: Poly, facts: Facts) -> bool:
        return not any(facts.refutes(facts.to_slack(claim)) for claim in cleared(value))

    monkeypatch.setattr(search, "proves", believes)
    monkeypatch.setattr(relations_module, "FACTS", Facts.of(PARAMETERS))  # without kept answers
    assert caught(lambda fibre: fibre) >= 3
