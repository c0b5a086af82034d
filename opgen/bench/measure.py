"""One row in one direction: checked, then timed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opgen.bench import agreement, compiler, limits, statistics, timing
from opgen.bench.row import Contender, Direction, Row, Shape, Workload, autocast
from opgen.bench.statistics import Ratio
from opgen.bench.trace import runs_contraction

OPGEN = "opgen"
COMPILED = "torch.compile"
COPY = "copy_"
FRESH_COPY = "empty + copy_"


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
    rounds: int
    repeated: int
    noisy: bool

    @property
    def best(self) -> str:
        """The fastest contender."""
        return min((n for n in self.times if n != OPGEN), key=self.times.__getitem__)

    @property
    def ratio(self) -> Ratio:
        """The best contender over opgen: above 1 opgen is faster."""
        return self.ratios[self.best]

    @property
    def bandwidth(self) -> float:
        """The part of the bandwidth of a copy that opgen reaches."""
        return self.copy[COPY] / self.times[OPGEN]


def measure(
    row: Row,
    direction: Direction,
    device: torch.device,
    *,
    shape: Shape | None = None,
    compiled: bool = False,
    budget: float = 2.0,
) -> Result:
    """Build a row, check that all agree, and time it for about `budget` seconds.

    `compiled` adds torch.compile. DisagreementError where a contender computes something else.
    """
    shape = row.shape if shape is None else shape
    torch.manual_seed(0)
    workload = row.make(shape, device)
    contenders = [Contender(OPGEN, workload.opgen)]
    contenders += [c for c in workload.contenders if direction in c.directions]
    if compiled and workload.compiled is not None:
        contenders.append(Contender(COMPILED, compiler.compiled(workload.compiled)))
    calls = calls_of(workload, contenders, direction)
    expected = calls[OPGEN]()
    for name, call in calls.items():
        if name != OPGEN:
            agreement.check(
                name, call(), expected, workload.points, workload.depth, workload.autocast
            )
    moved = limits.traffic(*_operands(workload, direction, expected))
    del expected
    dispatched = runs_contraction(calls[OPGEN])
    copies = limits.copies(moved, device)
    both = {**calls, COPY: copies.recycled, FRESH_COPY: copies.fresh}
    rounds = timing.in_turn(both, timing.clock_of(device), budget, {OPGEN})
    times = {name: statistics.median(rounds.seconds(name)) for name in both}
    limit = times[COPY]
    if workload.contraction:
        rate = limits.multiplications(device, workload.autocast or workload.inputs[0].dtype)
        limit = max(limit, workload.multiplications(direction) / rate)
    return Result(
        row=row,
        shape=shape,
        direction=direction,
        times={name: times[name] for name in calls},
        spreads={name: statistics.spread(rounds.seconds(name)) for name in calls},
        ratios={
            name: statistics.paired_ratio(*rounds.pairs(name, OPGEN))
            for name in calls
            if name != OPGEN
        },
        limit=limit,
        copy={name: times[name] for name in (COPY, FRESH_COPY)},
        copy_ratio=statistics.paired_ratio(*rounds.pairs(FRESH_COPY, OPGEN)),
        moved=moved,
        dispatched=dispatched,
        rounds=len(rounds.taken),
        repeated=rounds.repeated,
        noisy=rounds.noisy,
    )


def calls_of(
    workload: Workload, contenders: Sequence[Contender], direction: Direction
) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """What is timed, by name; the results are what contenders must agree on.

    Backward, the forward pass has run once, outside the timing, and what it kept is used again.
    """
    if direction is Direction.FORWARD:
        return {
            c.name: functools.partial(_forward, c, workload, workload.inputs) for c in contenders
        }
    cotangent: Tensor | None = None
    calls: dict[str, Callable[[], tuple[Tensor, ...]]] = {}
    for contender in contenders:
        if contender.gradients is not None:
            assert cotangent is not None, "opgen is the first, and has gradients"
            calls[contender.name] = functools.partial(_written, contender, workload, cotangent)
            continue
        leaves = list(workload.inputs)
        for at in workload.differentiable:
            leaves[at] = leaves[at].detach().requires_grad_()
        with torch.enable_grad():
            y = _run(contender, workload, leaves)
        if cotangent is None:
            cotangent = torch.randn_like(y, requires_grad=False)
        wanted = [leaves[at] for at in workload.differentiable]
        calls[contender.name] = functools.partial(
            _backward, contender, y, wanted, cotangent.to(y.dtype)
        )
    return calls


def _run(contender: Contender, workload: Workload, inputs: Sequence[Tensor]) -> Tensor:
    with contender.settings(), autocast(workload.device, workload.autocast):
        return contender.function(*inputs)


def _forward(
    contender: Contender, workload: Workload, inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return (_run(contender, workload, inputs),)


def _backward(
    contender: Contender, y: Tensor, wanted: Sequence[Tensor], cotangent: Tensor
) -> tuple[Tensor, ...]:
    with contender.settings():
        return torch.autograd.grad(y, wanted, cotangent, retain_graph=True)


def _written(contender: Contender, workload: Workload, cotangent: Tensor) -> tuple[Tensor, ...]:
    assert contender.gradients is not None
    with torch.no_grad(), contender.settings():
        return contender.gradients(cotangent, *workload.inputs)


def _operands(
    workload: Workload, direction: Direction, results: tuple[Tensor, ...]
) -> tuple[list[Tensor], list[Tensor]]:
    """What must be read, and what is written.

    A gradient reads its cotangent, which is like the output, and the inputs unless it is linear.
    """
    if direction is Direction.FORWARD:
        return list(workload.inputs), list(results)
    read = [] if workload.linear else list(workload.inputs)
    with torch.no_grad():
        y = _run(Contender(OPGEN, workload.opgen), workload, workload.inputs)
    return [*read, y], list(results)
