"""Where results lie in memory: elsewhere in every sample.

An allocator that is asked for the same sizes in turn settles in some order, and gives a call the
same memory in every round: memory that a cache still holds, or that shares its sets with the
inputs, or pages that are new each time. That is nobody's merit, stays for all rounds, and differs
from run to run: two ways to call the same convolution of PyTorch's library, in channels-last
format, were found between 0.95 and 1.01 of each other, with intervals of a hundredth. So a block of
another size is held during every sample, which moves what is allocated then, and intervals tell
what the place of a result is worth. After Curtsinger and Berger, "STABILIZER: statistically sound
performance evaluation" (ASPLOS 2013).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import torch

MOST: Final = 8 * 2**20
"""Bytes of the largest block, above those of a result of a layer of a usual net."""


def elsewhere() -> Callable[[], torch.Tensor]:
    """A function that takes a block of memory, of another size each time: the same ones each run.

    It is for the CPU: PyTorch's allocator for GPUs keeps what is freed for tensors of its size.
    """
    generator = random.Random(0)
    return lambda: torch.empty(generator.randint(1, MOST), dtype=torch.uint8)
