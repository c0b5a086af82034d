"""Outputs recycled: memory that was freed is given out again, instead of fresh pages.

opgen's functions make their outputs themselves, as PyTorch's do, so that neither can be given one.
Instead the allocator is told to keep what is freed: then every call, of opgen and of PyTorch alike,
writes into memory that is there already. `copy_` into the same target is what compares with it.
On a GPU PyTorch's allocator always does this.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
_NEVER: Final = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library to return nothing to the system, from now on; whether it will.

    It cannot be undone: what is measured afterwards is measured like this.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False  # another C library than glibc
    # Large blocks from the heap, which then never shrinks, rather than from mmap.
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
