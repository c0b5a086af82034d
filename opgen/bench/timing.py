"""Calls timed in turn, so that all meet the same machine; disturbed rounds are run again."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import torch

Call = Callable[[], object]

SAMPLE: Final = 2e-3
"""Seconds that a sample takes at least: shorter calls are repeated within it."""
SHORT: Final = 0.1
SHORT_CALLS: Final = 3
"""Calls of less than so many seconds are made so often again to find out how long they take."""
SLOW: Final = 5.0
"""A contender so many times slower than the fastest one is not worth more than a few rounds."""
FEW_ROUNDS: Final = 3
VERY_SLOW: Final = 20.0
"""So many times slower, and one round tells enough."""
LONG: Final = 2.0
"""Seconds of a call of a slow contender that are not worth another one."""
LEAST_ROUNDS: Final = 5
MOST_ROUNDS: Final = 25
MOST_REPEATS: Final = 1000
OUTLIER: Final = 1.15
"""A sample is an outlier if it took so many times the median of its contender."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The seconds of one call, and how often the system took the processor away meanwhile."""

    seconds: float
    switches: int = 0


class Clock(Protocol):
    """Times a call."""

    def __call__(self, call: Call, repeats: int) -> Sample:
        """The mean of some calls."""
        ...


def on_cpu(call: Call, repeats: int) -> Sample:
    """By the wall clock, with the involuntary context switches of all threads of the process."""
    before = _switches()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    seconds = (time.perf_counter() - start) / repeats
    return Sample(seconds, _switches() - before)


def on_one_thread(call: Call, repeats: int) -> Sample:
    """By the processor time of the process, which other processes cannot take away.

    Only for one thread: the time of several would be added up.
    """
    start = time.process_time()
    for _ in range(repeats):
        call()
    return Sample((time.process_time() - start) / repeats)


def _switches() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def on_gpu(call: Call, repeats: int) -> Sample:
    """By events on the current stream: what the host does meanwhile does not count."""
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return Sample(start.elapsed_time(end) * 1e-3 / repeats)


def clock_of(device: torch.device) -> Clock:
    """The clock for a device, and for the threads that PyTorch has now."""
    if device.type == "cuda":
        return on_gpu
    return on_one_thread if torch.get_num_threads() == 1 else on_cpu


Taken = dict[str, Sample]
"""The samples of one round; contenders that were left out are absent."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """All rounds that count."""

    taken: tuple[Taken, ...]
    repeated: int = 0
    """How many rounds were disturbed and run again."""
    noisy: bool = False
    """Whether disturbed rounds are among them, since too few others were found."""

    def seconds(self, name: str) -> list[float]:
        """The samples of a contender."""
        return [taken[name].seconds for taken in self.taken if name in taken]

    def pairs(self, above: str, below: str) -> tuple[list[float], list[float]]:
        """The samples of two contenders in the rounds that have both."""
        both = [taken for taken in self.taken if above in taken and below in taken]
        return [t[above].seconds for t in both], [t[below].seconds for t in both]


def orders(count: int) -> tuple[tuple[int, ...], ...]:
    """Orders of so many calls, in which each follows every other one equally often.

    A call meets in the caches what the one before it left there, so none may have the same one
    before it in every round (Williams, Experimental designs balanced for the estimation of residual
    effects of treatments, Australian Journal of Scientific Research A 2, 1949).
    """
    first = [(at + 1) // 2 if at % 2 else -(at // 2) for at in range(count)]
    found: list[tuple[int, ...]] = []
    for shift in range(count):
        order = tuple((each + shift) % count for each in first)
        found += (order,) if count % 2 == 0 else (order, order[::-1])
    return tuple(found)


def in_turn(
    calls: Mapping[str, Call],
    clock: Clock,
    budget: float,
    always: Collection[str] = (),
    references: Collection[str] = (),
    held: Callable[[], object] = object,
    most: int = MOST_ROUNDS,
) -> Rounds:
    """Time calls round by round, in the `orders` of so many, for about `budget` seconds.

    At least five rounds are run, three where five would take several budgets, and at most `most`;
    as many again, for as long again, in place of disturbed ones. Contenders that are slow beside
    the fastest one take part in few rounds; `always`, who they are compared with, and `references`,
    such as a copy, take part in all. Every call has been made before: the first one is not like the
    others. What `held` gives is kept for the time of a sample, and there is another one for the
    next.
    """
    return _Turns(dict(calls), clock, frozenset(always), frozenset(references), held).run(
        budget, most
    )


class _Turns:
    """The state of `in_turn`."""

    def __init__(
        self,
        calls: dict[str, Call],
        clock: Clock,
        always: frozenset[str],
        references: frozenset[str],
        held: Callable[[], object],
    ) -> None:
        self.calls, self.clock, self.names = calls, clock, list(calls)
        self.held = held
        self.orders = orders(len(calls))
        self.rivals = [name for name in self.names if name not in always | references]
        first = {name: clock(call, 1) for name, call in calls.items()}
        self.once = {name: sample.seconds for name, sample in first.items()}
        # One call among others may have met new pages or a processor asleep, and how long a call
        # takes says whether it is repeated within a sample.
        for _ in range(SHORT_CALLS):
            for name, call in calls.items():
                if self.once[name] < SHORT:
                    self.once[name] = min(self.once[name], clock(call, 1).seconds)
        fastest = min((self.once[name] for name in self.rivals), default=math.inf)
        self.most: dict[str, int] = {}
        """In how many rounds slow contenders take part."""
        self.long: Taken = {}
        """Samples of those that take part in one round, and are not called again for it."""
        for name in self.rivals:
            if self.once[name] > max(LONG, SLOW * fastest):
                self.most[name], self.long[name] = 1, first[name]
                continue
            if self.once[name] > SLOW * fastest:
                # Perhaps it was only disturbed.
                self.once[name] = min(self.once[name], clock(calls[name], 1).seconds)
            if self.once[name] > SLOW * fastest:
                self.most[name] = 1 if self.once[name] > VERY_SLOW * fastest else FEW_ROUNDS
        self.rounds: list[Taken] = []

    def run(self, budget: float, most: int) -> Rounds:
        """The rounds, with disturbed ones replaced."""
        start = time.perf_counter()
        least = LEAST_ROUNDS if LEAST_ROUNDS * self._round_time() < 3 * budget else FEW_ROUNDS
        while len(self.rounds) < least or (
            len(self.rounds) < most and time.perf_counter() < start + budget
        ):
            self._round()
        if self._reconsidered():
            for _ in range(least):
                self._round()
        wanted = len(self.rounds)
        while (
            len(self._calm()) < wanted
            and len(self.rounds) < 2 * wanted
            and time.perf_counter() < start + 2 * budget
        ):
            self._round()
        calm = self._calm()
        if len(calm) < min(wanted, LEAST_ROUNDS) or set().union(*calm) != set(self.names):
            return Rounds(tuple(self.rounds), noisy=True)
        return Rounds(tuple(calm), repeated=len(self.rounds) - len(calm))

    def _reconsidered(self) -> bool:
        """Whether some contender was taken to be slow, and is not, by the rounds it was in."""
        usual = self._usual()
        fastest = min((usual[name] for name in self.rivals), default=math.inf)
        found = [name for name in self.most if usual[name] <= SLOW * fastest]
        for name in found:
            del self.most[name]
        return bool(found)

    def _usual(self) -> dict[str, float]:
        return {
            name: statistics.median(t[name].seconds for t in self.rounds if name in t)
            for name in self.names
        }

    def _round_time(self) -> float:
        return sum(taken for name, taken in self.once.items() if name not in self.most)

    def _round(self) -> None:
        order = self.orders[len(self.rounds) % len(self.orders)]
        taken: Taken = {}
        for name in (self.names[at] for at in order):
            if len(self.rounds) >= self.most.get(name, math.inf):
                continue
            if name in self.long:
                taken[name] = self.long[name]
                continue
            taken[name] = self._sample(name)
        self.rounds.append(taken)

    def _sample(self, name: str) -> Sample:
        once, call = self.once[name], self.calls[name]
        repeats = max(1, min(MOST_REPEATS, round(SAMPLE / max(once, 1e-9))))
        held = self.held()
        if once < SAMPLE:
            # The one before left its own data in the caches, and it takes some calls until they
            # hold this one's. A slow contender needs as long as a fast one.
            for _ in range(repeats):
                call()
        sample = self.clock(call, repeats)
        del held
        return sample

    def _calm(self) -> list[Taken]:
        """Rounds in which no call was both interrupted and late."""
        usual = self._usual()
        return [
            taken
            for taken in self.rounds
            if not any(
                sample.switches and sample.seconds > OUTLIER * usual[name]
                for name, sample in taken.items()
            )
        ]
