"""Memory beside pages that may not be read: who reads on ends the process."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor


def before_a_page(tensor: Tensor) -> tuple[Tensor, mmap.mmap]:
    """A copy whose last element is the last one before memory that may not be read."""
    page = mmap.PAGESIZE
    size = tensor.numel() * tensor.element_size()
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + page)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(whole.data_ptr() + room, page, 0) == 0
    copy = whole[room - size : room].view(tensor.dtype).view(tensor.shape)
    copy.copy_(tensor)
    return copy, memory
