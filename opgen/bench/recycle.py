"""Outputs recycled: memory that was freed is given out again, instead of fresh pages.

opgen's functions make their outputs themselves, as PyTorch's do, so that neither can be given one.
Instead the allocator is told to keep what is freed: then every call, of opgen and of PyTorch alike,
writes into memory that is there already. `copy_` into the same target is what compares with it.
On a GPU PyTorch's allocator always does this.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Collection
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


_MOST_CALLS: Final = 20
_FEW_PAGES: Final = 64
"""Of a round in which nothing large was new."""


def settle(calls: Collection[Callable[[], object]]) -> None:
    """Make all calls in turn until they bring no new pages: pieces of memory find their places."""
    for _ in range(_MOST_CALLS):
        before = _pages()
        for call in calls:
            call()
        if _pages() - before < _FEW_PAGES:
            return


def _pages() -> int:
    """How many pages this process has been given so far; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
