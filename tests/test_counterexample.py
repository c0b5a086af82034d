"""Counterexamples are right, small, and found quickly; where a condition holds there is none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings

from opgen.algebra import counterexample as module
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol
from opgen.algebra.prove import counterexample
from test_prove import (
    CONV,
    FALSE,
    MUST_PROVE,
    PAD,
    SHIFT,
    SHUFFLE,
    Claim,
    claims,
    facts,
    grid,
)

INDICES = list("bchijkuvwxygo")
H, K, W, C, V, S = map(symbol, "HKWCVS")
c, d, h, i, k, p, r, s, v, w = map(symbol, "cdhikprsvw")
step = symbol("step")


@pytest.mark.parametrize(
    ("violated", "known", "expected"),
    [
        # One padded cell is enough for the first window to start outside.
        (
            Condition(i * s - p + k * d),
            CONV,
            {"H": 1, "K": 1, "s": 1, "p": 1, "d": 1, "OH": 3, "i": 0, "k": 0},
        ),
        # ... and for the last one to end outside: the smallest shape, then the first such index.
        (
            Condition(H - 1 - (i * s - p + k * d)),
            CONV,
            {"H": 1, "K": 1, "s": 1, "p": 1, "d": 1, "OH": 3, "i": 2, "k": 0},
        ),
        (
            Condition(V - 2 - (w + c * step)),
            SHIFT,
            {"W": 1, "C": 1, "step": 0, "V": 1, "w": 0, "c": 0},
        ),
        (
            Condition(W - 1 - (w + c * step)),
            SHIFT,
            {"W": 1, "C": 2, "step": 1, "V": 2, "w": 0, "c": 1},
        ),
        (Condition(v - p), PAD, {"W": 2, "p": 1, "V": 4, "v": 0}),
        (Condition(C - 1 - i), SHUFFLE, {"H": 1, "C": 1, "r": 2, "c": 0, "i": 1, "j": 0, "h": 0}),
        (Condition(h - 1, Relation.EQ), SHUFFLE, {"H": 1, "C": 1, "r": 1, "h": 0}),
        (Condition(h, Relation.NE), SHUFFLE, {"H": 1, "C": 1, "r": 1, "h": 0}),
        (Condition(5 - S), facts("", "S"), {"S": 6}),
        (Condition(S + 3), facts("", "S"), {"S": -4}),
        # Only empty shapes break this one.
        (Condition(H - 1), facts("H"), {"H": 0}),
    ],
    ids=lambda value: str(value) if not isinstance(value, Facts) else "",
)
def test_the_smallest_example_is_found(
    violated: Condition, known: Facts, expected: dict[str, int]
) -> None:
    found = counterexample(violated, known, INDICES)
    assert found is not None
    assert {name: found[name] for name in expected} == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("value", "known"), [pytest.param(v, f, id=name) for name, v, f in MUST_PROVE]
)
def test_what_is_true_has_no_example(value: Poly, known: Facts) -> None:
    assert counterexample(Condition(value), known, INDICES) is None


@pytest.mark.parametrize(
    ("value", "known"),
    [pytest.param(v, f, id=name) for name, v, f in FALSE if "loaded" not in name],
)
def test_what_is_false_has_one(value: Poly, known: Facts) -> None:
    found = counterexample(Condition(value), known, INDICES)
    assert found is not None
    assert value.evaluate(found) < 0
    assert all(condition.holds(found) for condition in known.conditions)
    assert set(known.symbols) <= found.keys()


@settings(max_examples=40)
@given(claims())
def test_examples_are_right_and_missed_only_beyond_the_grid(claim: Claim) -> None:
    violated = Condition(claim.value)
    found = counterexample(violated, claim.known, ["x", "y"])
    if found is not None:
        assert not violated.holds(found)
        assert all(condition.holds(found) for condition in claim.known.conditions)
    else:
        assert all(violated.holds(point) for point in grid(claim))


def test_constraints_between_sizes_are_respected() -> None:
    known = Facts.of(
        [("H", 0), ("W", 0)], constraints=[Condition(H - 3 * W, Relation.EQ), Condition(W - 2)]
    )
    assert counterexample(Condition(poly(5) - W), known, []) == {"H": 18, "W": 6}


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effort is a count; a hopeless search ends, and ends at the same place everywhere."""
    effort: list[int] = []
    original = module._Search.fails

    def fails(self: module._Search, *args: object) -> bool:
        effort.append(1)
        return original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(module._Search, "fails", fails)
    start = time.process_time()
    assert counterexample(Condition(H * K + 7 - H), CONV, INDICES) is None
    assert len(effort) <= 2 * (module._EFFORT + 1)
    assert time.process_time() - start < 5


def test_a_bound_without_a_value_is_no_bound() -> None:
    """Where the divisor of a bound is 0, it limits no index and ends no search."""
    known = facts("H", "S", box=(("h", H),)).with_conditions(Condition(h - H // S))
    assert counterexample(Condition(h - 1 - S), known, ["h"]) is not None
