"""CUDA source to launches on torch's current stream, through CuPy.

CuPy is imported when the first CUDA tensor arrives, and only then. Tensors are passed by address;
outputs are allocated by torch, so nothing of CuPy's memory is used.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch

OPTIONS = ("-std=c++17", "--fmad=false")
"""How sources are compiled."""

Argument = int | float


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel on a grid: blocks, threads of a block, arguments of 64 bits each."""

    kernel: str
    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    arguments: tuple[Argument, ...]


class CudaError(RuntimeError):
    """CUDA kernels cannot be compiled or loaded on this machine."""


class _Kernel(Protocol):
    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple[Argument, ...],
        *,
        stream: object,
    ) -> None: ...


class _Module(Protocol):
    def get_function(self, name: str) -> _Kernel: ...


class _CuPy(Protocol):
    """The part of CuPy that is used."""

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> _Module: ...  # noqa: N802


def _cupy() -> _CuPy:
    try:
        return cast(_CuPy, importlib.import_module("cupy"))
    except Exception as error:  # a CuPy for another NumPy or CUDA fails in many ways
        extra = "cuda12" if (torch.version.cuda or "").startswith("12.") else "cuda13"
        raise CudaError(
            "CUDA kernels are compiled and launched by CuPy, which cannot be imported "
            f"({str(error).strip()}); install it with: pip install 'opgen[{extra}]'"
        ) from error


@functools.cache
def _kernel(source: str, name: str, device: int) -> _Kernel:
    """A compiled kernel. CuPy loads a module for the current device, hence `device` in the key."""
    module = _module(source, device)
    try:
        return module.get_function(name)
    except Exception as error:  # of CuPy, NVRTC or the driver, each with its own types
        raise CudaError(
            f"CuPy cannot compile and load the kernel {name} for CUDA device {device}: "
            f"{type(error).__name__}: {str(error).strip()}"
        ) from error


@functools.cache
def _module(source: str, device: int) -> _Module:
    return _cupy().RawModule(code=source, options=OPTIONS)


class _Stream:
    """What CuPy needs of a stream: its address."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def launch(source: str, device: torch.device, launches: Sequence[KernelLaunch]) -> None:
    """Launch kernels of a source in order. CudaError without CuPy."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.device(index):
        stream = _Stream(torch.cuda.current_stream(index).cuda_stream)
        for each in launches:
            kernel = _kernel(source, each.kernel, index)
            kernel(each.blocks, each.threads, each.arguments, stream=stream)
