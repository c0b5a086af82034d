"""Memory of large results, kept for the next ones.

PyTorch's allocator for the CPU is that of the C library, which gives pieces of more than 32 MB back
to the system as soon as they are free, and makes each anew. New pages take several times longer
than writing them: without this, images of twice the size took 3.2 ms in place of 0.9 where they
have 34 MB, and 13 in place of 4.3 where they have 134. Smaller pieces come back, but from anywhere;
the one that was freed last is what the caches still hold.

So a result of 1 MB and more, of a call that was seen before, is made in memory of opgen's own, and
so are casts of inputs that large under autocast. When its last tensor is gone that memory is kept,
as PyTorch does on GPUs, until a tensor asks for it that fills at least eight ninths of it, or
nobody did for ten seconds, or too much is kept. At most `$OPGEN_KEPT_MEMORY` megabytes are: 1024
where it is not set, but no more than an eighth of the machine's memory, or of its container's; 0
for none, and PyTorch makes all results. Every process keeps its own, and looks at what is too old
when it frees a large result: one that makes no more of them has `release`.

Such tensors are as all others, but that `resize_` cannot make them larger, nor change the size of
their storage, which raises an error of PyTorch, as it does for tensors of NumPy's memory; and that
PyTorch's profiler does not count them. A call that Python runs in full, as the first of each kind,
has its result from PyTorch; so have all before PyTorch 2.11.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

_FUNCTIONS: Final = ("torch_from_blob", "aoti_torch_dtype_element_size")
"""Of LibTorch, the first since 2.11."""
_MEGABYTES: Final = 1024
_ENOUGH: Final = 2**40
"""Megabytes; more would not fit into the numbers of the library."""
_LEAST: Final = 1 << 20
"""Bytes of the smallest tensors in memory that is kept."""
_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where Linux says how much memory a container has."""
_DELETER: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_first: list[ctypes.CDLL] = []


def connect(library: ctypes.CDLL, libtorch: ctypes.CDLL, first: ctypes.CDLL) -> None:
    """Let the results of a copy of the library be made in memory that the first copy keeps.

    RuntimeError if `$OPGEN_KEPT_MEMORY` is no number.
    """
    most = _most()
    if not most or not all(hasattr(libtorch, each) for each in _FUNCTIONS):
        return
    if not _has_context(libtorch):
        return
    first.opgen_keep.restype = None
    first.opgen_keep.argtypes = [ctypes.c_int64]
    first.opgen_kept.restype = ctypes.c_int64
    first.opgen_take.restype = ctypes.c_void_p
    first.opgen_take.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]
    first.opgen_give.restype = None
    first.opgen_give.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    if not _first:
        _first.append(first)
        first.opgen_keep(most)
    functions = [getattr(libtorch, each) for each in _FUNCTIONS]
    functions += [first.opgen_take, first.opgen_give]
    addresses = [ctypes.cast(each, ctypes.c_void_p) for each in functions]
    library.opgen_connect_memory((ctypes.c_void_p * len(addresses))(*addresses))


def _has_context(libtorch: ctypes.CDLL) -> bool:
    """Whether `torch_from_blob` hands deleters what it was given for them.

    It did not in builds before the release of 2.11.
    """
    found: list[int | None] = []
    deleter = _DELETER(lambda _, context: found.append(context))
    cell, one, tensor = ctypes.c_int64(), ctypes.c_int64(1), ctypes.c_void_p()
    context = ctypes.addressof(one)
    failed = libtorch.torch_from_blob(
        *(ctypes.byref(cell), one, ctypes.byref(one), ctypes.byref(one), ctypes.c_int64(0)),
        *(libtorch.aoti_torch_dtype_uint8(), 0, -1, ctypes.byref(tensor), 0),
        *(None, ctypes.c_int64(0), deleter, ctypes.c_void_p(context)),
    )
    if not failed:
        libtorch.aoti_torch_delete_tensor_object(tensor)
    return found == [context]


def empty_strided(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor without values on the CPU, in memory that is kept where it is large."""
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    bytes_ = (reach + 1) * dtype.itemsize
    capacity = ctypes.c_int64()
    memory = None
    if _first and 0 not in shape and bytes_ >= _LEAST:
        memory = _first[0].opgen_take(bytes_, ctypes.byref(capacity))
    if memory is None:
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="cpu")
    buffer = (ctypes.c_char * bytes_).from_address(memory)
    # What tensors hold while the program ends is not to be freed under them.
    weakref.finalize(buffer, _first[0].opgen_give, memory, capacity.value).atexit = False
    storage = torch.frombuffer(buffer, dtype=dtype).untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)  # no view


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What `tensor.to(dtype)` is for a plain tensor on the CPU, in memory that is kept.

    It is for callers that know that no mode and no transform of PyTorch is active.
    """
    if tensor.dtype is dtype or tensor.numel() * dtype.itemsize < _LEAST or not _is_dense(tensor):
        return tensor.to(dtype)
    return empty_strided(tensor.shape, tensor.stride(), dtype).copy_(tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is consecutive in memory, so that its cast has the strides that it has."""
    if tensor.is_contiguous():
        return True
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def release() -> int:
    """Free all memory that is kept and not used; how many bytes that was."""
    if not _first:
        return 0
    kept = int(_first[0].opgen_kept())
    _first[0].opgen_keep(0)
    _first[0].opgen_keep(_most())
    return kept


def _most() -> int:
    """Bytes that may be kept."""
    chosen = os.environ.get("OPGEN_KEPT_MEMORY")
    if chosen is not None:
        if not chosen.isdecimal():
            raise RuntimeError(f"$OPGEN_KEPT_MEMORY must be a number of megabytes, got {chosen!r}")
        return min(int(chosen), _ENOUGH) << 20
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _MEGABYTES << 20
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is none
            machine = min(machine, int(limit.read_text(encoding="ascii")))
    return min(_MEGABYTES << 20, machine // 8)
