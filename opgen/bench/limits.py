"""What the machine can do, measured in the same process: copying, and multiplying matrices."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from opgen.bench.timing import Call, clock_of


def cells(tensor: Tensor) -> int:
    """The different cells of memory that a tensor reads: an expanded dim counts once."""
    return functools.reduce(
        lambda n, dim: n * (dim[0] if dim[1] else min(1, dim[0])),
        zip(tensor.shape, tensor.stride(), strict=True),
        1,
    )


def traffic(read: Iterable[Tensor], written: Iterable[Tensor]) -> int:
    """The bytes of every input once and of every output once."""
    return sum(cells(t) * t.element_size() for t in (*read, *written))


@dataclass(frozen=True)
class Copies:
    """Copying as many bytes as a row moves, half of them read and half written."""

    recycled: Call
    """`copy_` into the same memory every time."""
    fresh: Call
    """`torch.empty` and `copy_`: what an op with an output of its own can reach."""


def copies(moved: int, device: torch.device) -> Copies:
    """Both kinds, of plain float32 tensors."""
    source = torch.ones(max(1, moved // 8), device=device)
    target = torch.empty_like(source).copy_(source)
    return Copies(lambda: target.copy_(source), lambda: torch.empty_like(source).copy_(source))


@functools.cache
def multiplications(device: torch.device, dtype: torch.dtype) -> float:
    """Multiplications and additions a second, in pairs, of the best of some matrix products."""
    size = 8192 if device.type == "cuda" else 1536
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    clock, end = clock_of(device), time.perf_counter() + 0.5
    torch.mm(a, b)
    best = clock(lambda: torch.mm(a, b), 1).seconds
    while time.perf_counter() < end:
        best = min(best, clock(lambda: torch.mm(a, b), 1).seconds)
    return size**3 / best
