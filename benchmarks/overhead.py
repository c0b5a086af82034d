"""What a call costs besides its kernel: `depth_to_space` beside PyTorch's own `F.pixel_shuffle`.

    python benchmarks/overhead.py

Both are timed in one process, on one thread and a tensor of 16 elements, the least of many rounds.
The exit status is 1 if a call costs more than twice PyTorch's, or 1.6 times with its gradient.

Between the layers of a net other kernels have emptied the caches of all that a call looks at. So
the last lines are single calls after a tensor larger than any cache was written: the median of
these, also of `F.conv2d` and opgen's, which calls the same library for these channels.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import opgen

SPECS = Path(__file__).parent.parent / "specs"
LARGER_THAN_CACHES: Final = 192 << 20
"""Bytes."""
LIMITS: Final = {"forward": 2.0, "forward and backward": 1.6}


def compare(rounds: int = 40) -> dict[str, tuple[float, float]]:
    """Microseconds of PyTorch and of opgen for every kind of call, the least of many rounds."""
    torch.set_num_threads(1)
    depth_to_space = opgen.load(SPECS / "depth_to_space.op").depth_to_space
    x = torch.randn(1, 4, 2, 2)
    leaf = x.clone().requires_grad_()
    gradient = torch.randn(1, 1, 4, 4)

    def theirs(x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, 2)

    def ours(x: Tensor) -> Tensor:
        result: Tensor = depth_to_space(x, r=2)
        return result

    def backward(function: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(leaf), leaf, gradient)

    return {
        "forward": _least((lambda: theirs(x), lambda: ours(x)), 1000, rounds),
        "forward and backward": _least((backward(theirs), backward(ours)), 300, rounds),
    }


def compare_in_emptied_caches(rounds: int = 100) -> dict[str, tuple[float, float]]:
    """Microseconds of PyTorch and of opgen for single calls, the median of many."""
    torch.set_num_threads(1)
    depth_to_space = opgen.load(SPECS / "depth_to_space.op").depth_to_space
    conv2d = opgen.load(SPECS / "conv.op").conv2d
    x, image, weight = (
        torch.randn(1, 4, 2, 2),
        torch.randn(1, 256, 4, 4),
        torch.randn(256, 64, 3, 3),
    )
    return {
        "alone, forward": _medians(
            (lambda: F.pixel_shuffle(x, 2), lambda: depth_to_space(x, r=2)), rounds
        ),
        "alone, convolution": _medians(
            (
                lambda: F.conv2d(image, weight, padding=1, groups=4),
                lambda: conv2d(image, weight, padding=1, groups=4),
            ),
            rounds,
        ),
    }


def _medians(
    functions: tuple[Callable[[], object], Callable[[], object]], rounds: int
) -> tuple[float, float]:
    """Those of single calls, each after all caches were filled with something else."""
    filling = torch.zeros(LARGER_THAN_CACHES // 4)
    seconds: tuple[list[float], list[float]] = ([], [])
    for function in 2 * functions:
        function()
    for _ in range(rounds):
        for function, found in zip(functions, seconds, strict=True):
            filling.add_(1)
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds[0]), 1e6 * statistics.median(seconds[1])


def _least(
    functions: tuple[Callable[[], object], Callable[[], object]], calls: int, rounds: int
) -> tuple[float, float]:
    """The least time of one call of each; they take turns, so that both meet the same machine."""
    least = [float("inf")] * 2
    for _ in range(rounds):
        for at, function in enumerate(functions):
            start = time.perf_counter()
            for _ in range(calls):
                function()
            least[at] = min(least[at], (time.perf_counter() - start) / calls)
    return 1e6 * least[0], 1e6 * least[1]


def main() -> int:
    """Print the table."""
    failed = 0
    for kind, (theirs, ours) in compare().items():
        ratio, limit = ours / theirs, LIMITS[kind]
        failed |= ratio > limit
        print(f"{kind:22} PyTorch {theirs:6.2f} us  opgen {ours:6.2f} us  {ratio:.2f}x of {limit}x")
    for kind, (theirs, ours) in compare_in_emptied_caches().items():
        more = f"{ours - theirs:.0f} us more, in emptied caches"
        print(f"{kind:22} PyTorch {theirs:6.1f} us  opgen {ours:6.1f} us  {more}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
