"""What is measured: a row of the table, its inputs, and those who compute it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

Shape = tuple[int, ...]
Function = Callable[..., Tensor]
Gradients = Callable[..., tuple[Tensor, ...]]


class Direction(Enum):
    """What of a row is timed."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True)
class Contender:
    """One way to compute what a row computes.

    `function` takes the inputs of the row. Its gradients are autograd's, unless `gradients` writes
    them out: from the cotangent and the inputs to the gradients of the row's `differentiable`.
    """

    name: str
    function: Function
    gradients: Gradients | None = None
    directions: frozenset[Direction] = frozenset(Direction)
    settings: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """Switches of PyTorch that hold while it runs, such as oneDNN off."""


@dataclass(frozen=True)
class Workload:
    """A row with its tensors: what `Row.make` builds, and what may be dropped after measuring.

    `points` counts the terms of all sums, or the cells written where nothing is summed: a cell of
    any result of `n` cells is then a sum of about `points / n` terms.
    """

    inputs: tuple[Tensor, ...]
    opgen: Function
    contenders: tuple[Contender, ...]
    points: int
    differentiable: tuple[int, ...] = (0,)
    """Positions of the inputs whose gradients are taken."""
    compiled: Function | None = None
    """What torch.compile is given; None where it is not tried."""
    depth: int = 1
    """How many sums follow each other, as the layers of a net."""
    contraction: bool = False
    """Whether the points are multiplications, which may be the limit, not only memory."""
    mixing: int = 1
    """How many cells a later cell depends on, as by the statistics of a batch norm."""
    combined: bool = False
    """Whether the form with opgen calls PyTorch's own convolutions or products beside it."""
    linear: bool = False
    """Whether gradients read the cotangent alone, not the inputs."""
    autocast: torch.dtype | None = None
    bent: bool = False
    """Whether gradients jump where a number crosses 0, as those of a net with ReLUs do. A number
    near 0 that is rounded to the other side changes whole terms of them, not their last bits."""

    def multiplications(self, direction: Direction) -> int:
        """How many there are: forward one for each point, backward one for each of its factors.

        A product of two tensors has two factors; a bias, or the layers of a net, are no further
        ones.
        """
        return self.points * (
            1 if direction is Direction.FORWARD else min(2, len(self.differentiable))
        )

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.inputs[0].device


@dataclass(frozen=True)
class Row:
    """One line of the table. `make` builds it for a shape of its main input and a device."""

    name: str
    shape: Shape
    tiny: Shape
    """A shape for which everything takes milliseconds: tests, and a check of the runner itself."""
    make: Callable[[Shape, torch.device], Workload]
    kind: str
    """The table it belongs to."""
    moves: bool = False
    """Whether it only moves data, so that copying is what it is measured by."""
    quick: bool = False
    """Whether `--quick` measures it."""
    brief: Shape | None = None
    """The shape in quick mode, where the full one takes too long."""
    on_gpu: Shape | None = None
    """The shape on a GPU, where that of the question takes too much of a CPU's time."""
    directions: tuple[Direction, ...] = tuple(Direction)
    traced: bool = False
    """Whether copies that change a layout are counted in it."""
    grows: bool = True
    """Whether it is measured at three sizes; one that is another row at a larger size is not."""
    omitted: tuple[str, ...] = ()
    """Contenders that the row does without, each with the reason."""

    def shape_for(self, device: torch.device, *, quick: bool) -> Shape:
        """The shape that a run measures."""
        if quick and self.brief is not None:
            return self.brief
        if device.type == "cuda" and self.on_gpu is not None:
            return self.on_gpu
        return self.shape


def text(shape: Shape) -> str:
    """As `[8,64,180,320]`."""
    return "[" + ",".join(map(str, shape)) + "]"


@contextlib.contextmanager
def autocast(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """Automatic mixed precision with a 16-bit type; nothing for None."""
    if dtype is None:
        yield
        return
    with torch.autocast(device.type, dtype):
        yield
