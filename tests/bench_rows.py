"""Rows and results for tests of `opgen bench`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from opgen.bench import statistics
from opgen.bench.measure import Result
from opgen.bench.row import Contender, Row, Shape, Workload

CPU = torch.device("cpu")


def small(opgen: Callable[..., Tensor], *contenders: Contender, **others: object) -> Row:
    """A row of five numbers."""

    def make(shape: Shape, device: torch.device) -> Workload:
        x = torch.randn(shape, device=device)
        return Workload((x,), opgen, contenders, points=x.numel(), **others)  # type: ignore[arg-type]

    return Row("small", (5,), (5,), make, "test")


def double(x: Tensor) -> Tensor:
    return x * 2


def with_ratio(result: Result, median: float, low: float, high: float) -> Result:
    """The result with another ratio to its only contender."""
    ratio = statistics.Ratio(median, low, high)
    return dataclasses.replace(result, ratios=dict.fromkeys(result.ratios, ratio), noisy=False)


def to_tf32(x: Tensor, *, rounded: bool = True) -> Tensor:
    """Numbers with 10 bits of fraction, rounded or cut off: devices do both."""
    bits = x.contiguous().view(torch.int32) + (0x1000 if rounded else 0)
    return (bits & ~0x1FFF).view(torch.float32)
