"""A sample of kernels of all kinds, forward and backward, for compute-sanitizer to look at.

    python tests/gpu_child.py DEVICE

The numbers are compared elsewhere; here every kernel has to run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

import opgen
from opgen.runtime import cuda_product

SPECS = Path(__file__).parent.parent / "specs"

Made = tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]


def sample() -> Iterator[Made]:
    """Calls, and the shapes of their tensors: rows, teams, and products of matrices by tiles."""
    conv = opgen.load(SPECS / "conv.op")
    shift = opgen.load(SPECS / "shift_sum.op")
    shuffle = opgen.load(SPECS / "depth_to_space.op")
    pool = opgen.load(SPECS / "pool.op")
    yield lambda x, w: conv.conv2d(x, w, padding=1), ((1, 17, 9, 11), (72, 17, 3, 3))
    yield lambda x, w: conv.conv2d(x, w, padding=1, groups=8), ((1, 8, 9, 11), (8, 1, 3, 3))
    yield lambda x: shift.shift_sum(x, step=2), ((3, 5, 9, 31),)
    yield lambda x: shuffle.depth_to_space(x, r=2), ((2, 12, 7, 16),)
    yield lambda x: pool.avg_pool2d(x, kernel_size=3, stride=2), ((2, 3, 13, 15),)


def main(device: str) -> int:
    """Run everything, products of small matrices by tiles too; gives the number of results."""
    with mock.patch.object(cuda_product, "BY_CELLS", math.inf):
        return run(device)


def run(device: str) -> int:
    """Run everything; gives how many results there were."""
    count = 0
    for call, shapes in sample():
        for dtype in (torch.float32, torch.bfloat16):
            tensors = [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]
            result = call(*tensors)
            result.backward(torch.ones_like(result))
            count += 1
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return count


if __name__ == "__main__":
    print(main(sys.argv[1]), "results")
