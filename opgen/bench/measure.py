"""One row in one direction: checked, then timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from opgen.bench import (
    agreement,
    compiler,
    limits,
    placement,
    precision,
    recycle,
    replays,
    statistics,
    timing,
)
from opgen.bench.calls import OPGEN, calls_of, result_like, surroundings
from opgen.bench.row import Contender, Direction, Row, Shape, Workload
from opgen.bench.statistics import Ratio
from opgen.bench.trace import COPY_OP, runs_contraction, traced
from opgen.runtime import lookup_library

COMPILED = "torch.compile"
COPY = "copy_"
FRESH_COPY = "empty + copy_"
_REPLAYED = 0.5
"""The time of replays, beside that of calls from Python."""


@dataclass(frozen=True)
class Result:
    """The figures of a row in one direction, in seconds and bytes."""

    row: Row
    shape: Shape
    direction: Direction
    times: Mapping[str, float]
    """The median of opgen and of every contender."""
    spreads: Mapping[str, float]
    ratios: Mapping[str, Ratio]
    """Every contender over opgen, in pairs."""
    limit: float
    """The least time: of copying the bytes, or of the multiplications where that is more."""
    copy: Mapping[str, float]
    """Copying as many bytes: recycled, and into fresh memory."""
    copy_ratio: Ratio
    """`empty` and `copy_` of as many bytes, over opgen."""
    moved: int
    dispatched: bool
    """Whether a library's convolution or product runs in opgen's call."""
    rounds: int
    repeated: int
    noisy: bool
    failed: Mapping[str, str] = field(default_factory=dict)
    """Contenders that could not run, with the reason."""
    copies: Mapping[str, int] = field(default_factory=dict)
    """How many copies of tensors as large as the first input PyTorch runs within opgen's form: not
    those of filters; traced rows only."""
    device: Mapping[str, float] = field(default_factory=dict)
    """What a GPU alone takes, see `replays`; without calls that it cannot replay."""
    recycled: Mapping[str, float] = field(default_factory=dict)
    """Of rows that only move data: opgen, the best contender, and `copy_`, into memory that is
    there already. Empty where it was not measured."""

    @property
    def best(self) -> str | None:
        """The fastest contender; None where opgen was timed alone."""
        others = [name for name in self.times if name != OPGEN]
        return min(others, key=self.times.__getitem__, default=None)

    @property
    def ratio(self) -> Ratio | None:
        """The best contender over opgen: above 1 opgen is faster; None where there is none."""
        return None if self.best is None else self.ratios[self.best]

    @property
    def bandwidth(self) -> float:
        """The part of the bandwidth of a copy that opgen reaches."""
        return self.copy[COPY] / self.times[OPGEN]


Measure = Callable[..., Result]
"""`measure`, or what takes its place."""


def measure(
    row: Row,
    direction: Direction,
    device: torch.device,
    *,
    shape: Shape | None = None,
    compiled: bool = False,
    only: str | None = None,
    budget: float = 2.0,
    rounds: int = timing.MOST_ROUNDS,
) -> Result:
    """Build a row, check that all agree, and time it for about `budget` seconds.

    So many `rounds` are enough. `compiled` adds torch.compile; `only` leaves out all contenders but
    one. DisagreementError where a contender computes something else.
    """
    shape = row.shape if shape is None else shape
    torch.manual_seed(0)
    workload = row.make(shape, device)
    contenders = [Contender(OPGEN, workload.opgen)]
    contenders += [c for c in _contenders(workload, direction) if only in (None, c.name)]
    calls = calls_of(workload, contenders, direction)
    for _ in range(2 * row.traced):
        calls[OPGEN]()  # first calls go other ways
    expected, ops = traced(calls[OPGEN], workload.inputs[0].numel())
    copied = {OPGEN: ops[COPY_OP]}
    with lookup_library.suspended():  # a call that is looked up has no events of the library's ops
        _, in_full = traced(calls[OPGEN])
    failed = {}
    if compiled and workload.compiled is not None and len(contenders) > 1:
        try:
            calls[COMPILED] = _compiled_call(workload, contenders[0], direction)
        except Exception as error:  # whatever its compilers raise: the others are still measured
            failed[COMPILED] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    _check_agreement(workload, calls, expected)
    moved = limits.traffic(*_operands(workload, direction, expected))
    del expected
    dispatched = workload.combined or runs_contraction(in_full)
    copies = limits.copies(moved, device)
    both = {**calls, COPY: copies.recycled, FRESH_COPY: copies.fresh}
    held = placement.elsewhere() if device.type == "cpu" else object
    with surroundings(workload, direction):
        found = timing.in_turn(
            both, timing.clock_of(device), budget, {OPGEN}, {COPY, FRESH_COPY}, held, rounds
        )
        times = {name: statistics.median(found.seconds(name)) for name in both}
        device_times = {}
        if device.type == "cuda":
            device_times = replays.device_times(
                {**calls, COPY: copies.recycled}, times, budget * _REPLAYED, {COPY}
            )
    return Result(
        row=row,
        shape=shape,
        direction=direction,
        times={name: times[name] for name in calls},
        spreads={name: statistics.spread(found.seconds(name)) for name in calls},
        ratios={
            name: statistics.paired_ratio(*found.pairs(name, OPGEN))
            for name in calls
            if name != OPGEN
        },
        limit=max(times[COPY], _multiplying(workload, direction, device)),
        copy={name: times[name] for name in (COPY, FRESH_COPY)},
        copy_ratio=statistics.paired_ratio(*found.pairs(FRESH_COPY, OPGEN)),
        moved=moved,
        dispatched=dispatched,
        rounds=len(found.taken),
        repeated=found.repeated,
        noisy=found.noisy,
        failed=failed,
        copies=copied if row.traced else {},
        device=device_times,
    )


_Call = Callable[[], tuple[Tensor, ...]]


def _compiled_call(workload: Workload, opgen: Contender, direction: Direction) -> _Call:
    """What torch.compile makes of a workload, called once; whatever its compilers raise."""
    assert workload.compiled is not None
    made = Contender(COMPILED, compiler.compiled(workload.compiled, workload.device))
    call = calls_of(workload, [opgen, made], direction)[COMPILED]
    call()
    return call


def _check_agreement(
    workload: Workload, calls: Mapping[str, _Call], expected: tuple[Tensor, ...]
) -> None:
    """Call all contenders; DisagreementError where one computes something else than opgen.

    Where TF32 is allowed, any row may have a contender that multiplies matrices.
    """
    points = workload.points * workload.mixing
    factors = precision.of_factors(workload.device)
    about = points, workload.depth, workload.autocast
    for name, call in calls.items():
        if name != OPGEN:
            agreement.check(name, call(), expected, *about, factors)


def _multiplying(workload: Workload, direction: Direction, device: torch.device) -> float:
    """The seconds that the multiplications of a contraction take at least; 0 for other rows."""
    if not workload.contraction:
        return 0.0
    rate = limits.multiplications(device, workload.autocast or workload.inputs[0].dtype)
    return workload.multiplications(direction) / rate


def _contenders(workload: Workload, direction: Direction) -> list[Contender]:
    """Those of a direction: bent gradients in TF32 cannot be told from wrong ones."""
    is_rounded = precision.of_factors(workload.device) is not None
    if workload.bent and direction is Direction.BACKWARD and is_rounded:
        return []
    return [each for each in workload.contenders if direction in each.directions]


def recycled(result: Result, device: torch.device, budget: float) -> Result:
    """The same row once more, where freed memory is kept: opgen, its best rival, and `copy_`."""
    torch.manual_seed(0)
    workload = result.row.make(result.shape, device)
    known = {c.name: c for c in workload.contenders}
    contenders = [Contender(OPGEN, workload.opgen)]
    if result.best in known:
        contenders.append(known[result.best])
    calls: dict[str, timing.Call] = {}
    calls.update(calls_of(workload, contenders, result.direction))
    calls[COPY] = limits.copies(result.moved, device).recycled
    recycle.settle(calls.values())
    with surroundings(workload, result.direction):
        rounds = timing.in_turn(calls, timing.clock_of(device), budget, {OPGEN}, {COPY})
    times = {name: statistics.median(rounds.seconds(name)) for name in calls}
    return replace(result, recycled=times)


def _operands(
    workload: Workload, direction: Direction, results: tuple[Tensor, ...]
) -> tuple[list[Tensor], list[Tensor]]:
    """What must be read, and what is written.

    A gradient reads its cotangent, which is like the output, and the inputs unless it is linear.
    """
    if direction is Direction.FORWARD:
        return list(workload.inputs), list(results)
    read = [] if workload.linear else list(workload.inputs)
    return [*read, result_like(workload)], list(results)
