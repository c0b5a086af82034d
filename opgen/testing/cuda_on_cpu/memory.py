"""Arrays for launches: aligned as CUDA's allocators align, or larger than the machine's memory."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

_ALIGNMENT = 512
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def empty(shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """An array whose first element lies at a multiple of 512 bytes, as CuPy's and torch's do."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(kind).reshape(tuple(shape))


def aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy that is aligned as `empty` aligns."""
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def virtual(shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """Zeros that take memory only where they are touched, for sizes past any machine's memory.

    Launch a sample of the blocks (`blocks=`) over it. OSError if the system refuses the size.
    """
    kind = np.dtype(dtype)
    size = max(1, math.prod(shape) * kind.itemsize)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    memory = mmap.mmap(-1, size, flags=flags)
    return np.frombuffer(memory, kind, math.prod(shape)).reshape(tuple(shape))
