"""Calls timed in turn, and the statistics of what was measured."""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter
from collections.abc import Callable

import pytest

from opgen.bench import placement, statistics, timing
from opgen.bench.calls import OPGEN
from opgen.bench.timing import Sample


def test_medians_and_spreads_by_hand() -> None:
    assert statistics.median([3, 1, 2]) == 2
    assert statistics.median([4, 1, 2, 3]) == 2.5
    # The quartiles of 1, 2, 3, 4, 5 are 2 and 4.
    assert statistics.spread([5, 1, 4, 2, 3]) == pytest.approx((4 - 2) / 3)
    assert statistics.spread([7]) == 0


def test_ratios_are_paired() -> None:
    """Each round twice as slow as the one before: pairs are alike all the same."""
    below = [1.0, 2.0, 4.0, 8.0, 16.0]
    ratio = statistics.paired_ratio([3 * t for t in below], below)
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((3, 3, 3))


def test_interval_holds_the_median_and_narrows() -> None:
    few = statistics.paired_ratio([1.0, 1.1, 0.9, 1.05, 0.95], [1.0] * 5)
    many = statistics.paired_ratio([1.0, 1.1, 0.9, 1.05, 0.95] * 8, [1.0] * 40)
    for ratio in (few, many):
        assert 0.9 <= ratio.low <= ratio.median == 1.0 <= ratio.high <= 1.1
    assert many.high - many.low < few.high - few.low
    # With one round in five late, the bootstrap's interval still reaches it: 5 draws have three or
    # more late rounds with probability 0.058 > 0.025.
    assert statistics.paired_ratio([1.0, 1.0, 1.0, 1.0, 9.0], [1.0] * 5).high == 9
    assert statistics.paired_ratio([1.0] * 19 + [9.0], [1.0] * 20).high == 1


def test_intervals_start_alike() -> None:
    once, again = (statistics.paired_ratio([1.0, 2.0, 4.0], [1.0] * 3) for _ in range(2))
    assert once == again


def test_a_ratio_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        statistics.paired_ratio([], [])


def test_means_and_exponents_by_hand() -> None:
    assert statistics.geometric_mean([1, 4, 2]) == pytest.approx(2)
    assert math.isnan(statistics.geometric_mean([]))
    assert statistics.exponent([1, 2, 4], [5, 10, 20]) == pytest.approx(1)
    assert statistics.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert statistics.exponent([1, 10], [7, 7]) == pytest.approx(0)
    with pytest.raises(ValueError, match="two sizes"):
        statistics.exponent([2, 2], [1, 1])


# ---------------------------------------------------------------------------- timing
class Script:
    """A clock that tells what was written down for each call."""

    def __init__(self, samples: dict[str, list[Sample]]) -> None:
        self.samples = {name: list(found) for name, found in samples.items()}
        self.order: list[str] = []

    def calls(self) -> dict[str, Callable[[], object]]:
        return {name: lambda name=name: name for name in self.samples}  # type: ignore[misc]

    def __call__(self, call: Callable[[], object], repeats: int) -> Sample:
        name = str(call())
        self.order.append(name)
        found = self.samples[name]
        return found.pop(0) if len(found) > 1 else found[0]


def test_rounds_turn() -> None:
    clock = Script({"a": [Sample(1.0)], "b": [Sample(1.0)], "c": [Sample(1.0)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0)
    turns = [tuple(clock.order[at : at + 3]) for at in range(3, 12, 3)]
    assert len(set(turns)) == 3 and all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(rounds.taken) == timing.FEW_ROUNDS and not rounds.noisy


def test_every_sample_holds_a_block_of_its_own() -> None:
    """It is held while the clock runs, and let go before the next one is taken."""
    alive: list[weakref.ref[set[int]]] = []
    during: list[int] = []

    def held() -> object:
        assert not any(block() for block in alive)
        block = {len(alive)}
        alive.append(weakref.ref(block))
        return block

    clock = Script({"a": [Sample(1e-3)], "b": [Sample(1.0)]})

    def watched(call: Callable[[], object], repeats: int) -> Sample:
        during.append(sum(block() is not None for block in alive))
        return clock(call, repeats)

    rounds = timing.in_turn(clock.calls(), watched, budget=0, held=held)
    assert len(alive) == sum(len(taken) for taken in rounds.taken)
    assert during[-len(alive) :] == [1] * len(alive)


def test_blocks_are_of_many_sizes_the_same_in_every_run() -> None:
    first, second = (placement.elsewhere() for _ in range(2))
    sizes, again = ([block().numel() for _ in range(50)] for block in (first, second))
    assert sizes == again and len(set(sizes)) == 50
    assert 0 < min(sizes) < placement.MOST / 4 < 3 * placement.MOST / 4 < max(sizes)
    assert max(sizes) <= placement.MOST


@pytest.mark.parametrize("count", range(2, 9))
def test_no_call_always_follows_the_same_one(count: int) -> None:
    orders = timing.orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    after = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(after) == count * (count - 1) and len(set(after.values())) == 1


def test_slow_contenders_are_timed_less_often() -> None:
    times = {"a": 0.01, "slow": 0.1, "slower": 1.0, OPGEN: 1.0}
    clock = Script({name: [Sample(seconds)] for name, seconds in times.items()})
    rounds = timing.in_turn(clock.calls(), clock, budget=0.4, always={OPGEN})
    assert len(rounds.seconds("a")) > timing.FEW_ROUNDS
    assert len(rounds.seconds("slow")) == timing.FEW_ROUNDS
    assert len(rounds.seconds("slower")) == 1
    assert len(rounds.seconds(OPGEN)) == len(rounds.seconds("a"))
    above, below = rounds.pairs("slow", "a")
    assert len(above) == len(below) == timing.FEW_ROUNDS


def test_a_late_first_call_is_not_a_slow_contender() -> None:
    clock = Script({"a": [Sample(0.01)], "late": [Sample(1.0), Sample(0.01)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0)
    assert len(rounds.seconds("late")) == len(rounds.seconds("a")) > 1


def test_a_late_first_call_is_repeated_within_a_sample_like_others() -> None:
    clock = Script({"a": [Sample(1e-4)], "late": [Sample(3e-3)] * 2 + [Sample(1e-4)]})
    repeats: list[int] = []

    def counted(call: Callable[[], object], times: int) -> Sample:
        repeats.append(times)
        return clock(call, times)

    timing.in_turn(clock.calls(), counted, budget=0)
    before = 2 * (1 + timing.SHORT_CALLS)
    assert set(repeats[:before]) == {1}
    assert set(repeats[before:]) == {round(timing.SAMPLE / 1e-4)}


def test_a_slow_call_of_seconds_is_not_made_again() -> None:
    clock = Script({OPGEN: [Sample(0.1)], "a": [Sample(0.2)], "long": [Sample(3.0), Sample(9.0)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=1, always={OPGEN})
    assert rounds.seconds("long") == [3.0]
    assert rounds.pairs("long", OPGEN) == ([3.0], [0.1])
    assert len(rounds.seconds("a")) >= timing.LEAST_ROUNDS


def test_the_best_rival_is_not_slow_beside_opgen() -> None:
    clock = Script({OPGEN: [Sample(0.001)], "best": [Sample(0.1)], "other": [Sample(0.2)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=1, always={OPGEN})
    assert len(rounds.seconds("best")) == len(rounds.seconds(OPGEN)) > timing.FEW_ROUNDS


def test_slowness_is_reconsidered() -> None:
    """Late twice before the rounds begin, and as fast as the other in the first one."""
    late = [Sample(1.0), Sample(1.0), Sample(0.01)]
    clock = Script({"a": [Sample(0.01)], "late": late})
    rounds = timing.in_turn(clock.calls(), clock, budget=0)
    assert len(rounds.seconds("late")) > timing.FEW_ROUNDS


def test_a_copy_makes_nobody_slow() -> None:
    clock = Script({"copy_": [Sample(1e-3)], "a": [Sample(0.1)], "b": [Sample(0.1)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0.5, references={"copy_"})
    assert len(rounds.seconds("b")) == len(rounds.seconds("copy_")) > timing.FEW_ROUNDS


def test_disturbed_rounds_are_run_again() -> None:
    calm, late = Sample(0.01), Sample(0.05, switches=3)
    before = 1 + timing.SHORT_CALLS
    clock = Script({"a": [calm] * (before + 2) + [late] + [calm], "b": [calm]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0.05)
    assert rounds.repeated == 1 and not rounds.noisy
    assert set(rounds.seconds("a")) == {0.01}


def test_interrupted_calls_that_are_in_time_count() -> None:
    clock = Script({"a": [Sample(0.01, switches=2)], "b": [Sample(0.01)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0.05)
    assert rounds.repeated == 0 and not rounds.noisy


def test_what_is_always_disturbed_is_marked() -> None:
    samples = [Sample(0.01), Sample(0.05, switches=1)] * 40
    clock = Script({"a": samples, "b": list(reversed(samples))})
    assert timing.in_turn(clock.calls(), clock, budget=0).noisy


def test_clocks_tell_seconds() -> None:
    def work() -> None:
        sum(range(200_000))

    by_wall, by_processor = timing.on_cpu(work, 3).seconds, timing.on_one_thread(work, 3).seconds
    assert 1e-4 < by_processor < 1
    assert by_wall > 0.5 * by_processor
