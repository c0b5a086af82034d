"""What a call costs besides its kernel: `depth_to_space` beside PyTorch's own `F.pixel_shuffle`.

    python benchmarks/overhead.py

Both are timed in one process, on one thread and a tensor of 16 elements, the least of many rounds.
The exit status is 1 if a call costs more than twice PyTorch's, or 1.6 times with its gradient.
"""

from __future__ import annotations

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
    return failed


if __name__ == "__main__":
    sys.exit(main())
