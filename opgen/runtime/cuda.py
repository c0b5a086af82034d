"""CUDA source to launches on torch's current stream, through CuPy.

CuPy is imported when the first CUDA tensor arrives, and only then. Tensors are passed by address;
outputs are allocated by torch, so nothing of CuPy's memory is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, assert_never, cast

import torch

from opgen.runtime import cache
from opgen.runtime.record import record

OPTIONS = ("-std=c++17", "--fmad=false")
"""How sources are compiled."""


@record
class Memory:
    """A pointer: the address of a tensor.

    It is that of an operand of the call, by name, or of memory that the launches share.
    """

    name: str | None
    tensor: torch.Tensor


@record
class Number:
    """A float attribute of the call."""

    name: str
    value: float


Argument = int | Memory | Number
"""An argument of 64 bits. Where it comes from is told, so that a call like another one can be
launched with its own tensors and numbers, see `lookup_launch`."""

Source = tuple[str, ...]
"""A source in parts: long ones that stay the same objects, whose hashes Python keeps, and short
ones.
They are put together when they are compiled, not in every call."""


@record
class KernelLaunch:
    """One kernel on a grid: blocks, threads of a block, arguments.

    The tensors among these live until it is launched: whoever gets their memory next is behind it
    on the stream.
    """

    kernel: str
    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    arguments: tuple[Argument, ...]


@record
class Launched:
    """What a call is compiled from, and its launches in order.

    `copies` are inputs that were copied for it, in the layout that its kernels take. Calls like it
    are launched alike where it is `lasting`: by settings of PyTorch, which may be others by then,
    some are less exact. In `fault` kernels record an index that was outside, if some may be.
    """

    source: Source
    device: torch.device
    launches: Sequence[KernelLaunch]
    copies: Mapping[str, torch.Tensor]
    lasting: bool = True
    fault: torch.Tensor | None = None


class CudaError(RuntimeError):
    """CUDA kernels cannot be compiled or loaded on this machine."""


class _Function(Protocol):
    ptr: int


class _Kernel(Protocol):
    kernel: _Function

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple[int | float, ...],
        *,
        stream: object,
    ) -> None: ...


class _Module(Protocol):
    def get_function(self, name: str) -> _Kernel: ...


class _Compiler(Protocol):
    def compile_using_nvrtc(
        self, source: str, options: tuple[str, ...], arch: str, filename: str
    ) -> tuple[bytes | str, object]: ...


class _Nvrtc(Protocol):
    def getVersion(self) -> tuple[int, int]: ...  # noqa: N802


class _Cuda(Protocol):
    compiler: _Compiler
    nvrtc: _Nvrtc


class _CuPy(Protocol):
    """The part of CuPy that is used."""

    cuda: _Cuda

    def RawModule(self, *, path: str) -> _Module: ...  # noqa: N802


def computes(device: torch.device) -> bool:
    """Whether calls on a device run CUDA kernels."""
    return device.type == "cuda"


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a device, the current one if it has no number."""
    return _capability(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _capability(index: int) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(index)
    return major, minor


def _cupy() -> _CuPy:
    try:
        return cast(_CuPy, importlib.import_module("cupy"))
    except Exception as error:  # a CuPy for another NumPy or CUDA fails in many ways
        extra = "cuda12" if (torch.version.cuda or "").startswith("12.") else "cuda13"
        raise CudaError(
            "CUDA kernels are compiled and launched by CuPy, which cannot be imported "
            f"({str(error).strip()}); install it with: pip install 'opgen[{extra}]'"
        ) from error


def is_capturing() -> bool:
    """Whether launches are being recorded into a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@functools.cache
def _kernel(source: Source, name: str, device: int) -> _Kernel:
    """A compiled kernel. CuPy loads a module for the current device, hence `device` in the key."""
    if is_capturing():
        raise CudaError(
            f"the kernel {name} is not compiled yet for CUDA device {device}, which cannot be done "
            "while a CUDA graph is captured; make the same call, with the same shapes, types and "
            "memory formats, once before the capture"
        )
    try:
        return _module(source, device).get_function(name)
    except CudaError:
        raise
    except Exception as error:  # of CuPy, NVRTC or the driver, each with its own types
        raise CudaError(
            f"CuPy cannot compile and load the kernel {name} for CUDA device {device}: "
            f"{type(error).__name__}: {str(error).strip()}"
        ) from error


@functools.cache
def _module(source: Source, device: int) -> _Module:
    return _loaded(_cupy(), "".join(source), device)


def _loaded(cupy: _CuPy, source: str, device: int) -> _Module:
    """A source as a module of the current device.

    `cupy.RawModule` would compile it with `-ftz=true` whatever the options are, and so lose numbers
    below 1e-38; hence its compiler is asked, and the result kept on disk.
    """
    major, minor = _capability(device)
    architecture = f"{major}{minor}"
    parts = (source, *OPTIONS, architecture, repr(cupy.cuda.nvrtc.getVersion()))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    found = cache.find_file(cache.directory(), key, ".cubin")
    if found is None:
        code, _ = cupy.cuda.compiler.compile_using_nvrtc(
            source, OPTIONS, architecture, "kernels.cu"
        )
        found = _kept(code.encode() if isinstance(code, str) else code, key)
    module = cupy.RawModule(path=str(found))
    # It stays loaded until the process has ended: its functions are known outside of Python, and
    # when Python unloads what is left, CuPy is gone already and complains.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    return module


def _kept(code: bytes, key: str) -> Path:
    """Machine code as a file, in the cache where there is room."""
    for place in (cache.directory(), cache.private_directory()):
        with contextlib.suppress(OSError), cache.scratch(place, key) as scratch:
            built = scratch / "kernels.cubin"
            built.write_bytes(code)
            return cache.add(built, place, key)
    raise CudaError("there is no directory that compiled kernels can be written to")


class _Stream:
    """What CuPy needs of a stream: its address."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def launch(launched: Launched) -> None:
    """Launch kernels on the current stream of a device. CudaError without CuPy."""
    index = _index(launched.device)
    with torch.cuda.device(index):
        stream = _Stream(torch.cuda.current_stream(index).cuda_stream)
        for each in launched.launches:
            kernel = _kernel(launched.source, each.kernel, index)
            kernel(each.blocks, each.threads, tuple(map(_value, each.arguments)), stream=stream)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _value(argument: Argument) -> int | float:
    match argument:
        case Memory(tensor=tensor):
            return tensor.data_ptr()
        case Number(value=value):
            return value
        case int(value):
            return value
        case unexpected:
            assert_never(unexpected)


def function(source: Source, name: str, device: torch.device) -> int:
    """The driver's handle of a kernel that was launched before; it stays valid."""
    return _kernel(source, name, _index(device)).kernel.ptr
