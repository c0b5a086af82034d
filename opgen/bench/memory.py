"""The most memory that forward and backward hold together."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from opgen.bench.row import Contender, Workload, autocast
from opgen.runtime import kept_memory

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"  # see "clear_refs" in the kernel's Documentation/filesystems/proc.rst


def peak(contender: Contender, workload: Workload) -> int | None:
    """Bytes above what is held before, for one forward and backward pass; None where unknown.

    What has no gradient has a forward pass only.

    On Linux it is what the process has resident, kernels' own scratch included; on a GPU what
    PyTorch's allocator gave out.
    """

    def passes() -> None:
        leaves = [x.detach() for x in workload.inputs]
        for at in workload.differentiable:
            leaves[at].requires_grad_()
        with contender.settings(), autocast(workload.device, workload.autocast):
            y = contender.function(*leaves)
            wanted = [leaves[at] for at in workload.differentiable]
            if wanted:
                torch.autograd.grad(y, wanted, torch.ones_like(y))

    passes()  # compiles, and makes what is kept for later calls
    gc.collect()
    return _on_gpu(passes, workload.inputs[0]) if workload.device.type == "cuda" else _here(passes)


def _on_gpu(passes: Callable[[], None], x: Tensor) -> int:
    torch.cuda.synchronize(x.device)
    before = torch.cuda.memory_allocated(x.device)
    torch.cuda.reset_peak_memory_stats(x.device)
    passes()
    torch.cuda.synchronize(x.device)
    return torch.cuda.max_memory_allocated(x.device) - before


def _here(passes: Callable[[], None]) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    kept_memory.release()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # what was freed and kept would hide what is allocated now
    try:
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return None  # a container may not allow it
    before = _resident("VmRSS")
    passes()
    return max(0, _resident("VmHWM") - before)


def _resident(what: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{_STATUS} has no {what}")
