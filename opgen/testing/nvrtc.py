"""CUDA sources through NVIDIA's compiler, on machines without a GPU or a driver.

The library and the headers come from the packages nvidia-cuda-nvrtc and nvidia-cuda-runtime. The
assembler is asked for what every kernel needs, so a test can refuse one that spills registers.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opgen.runtime import cuda


class NvrtcError(RuntimeError):
    """A source was refused, or there is no compiler; the message is what NVRTC said."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What one thread of a kernel needs: registers, and bytes of memory where those run out."""

    name: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int

    @property
    def spills(self) -> bool:
        """Whether registers are kept in memory, or arrays of a thread are."""
        return bool(self.stack or self.spill_stores or self.spill_loads)


@dataclass(frozen=True, slots=True)
class Compilation:
    """What came of a source: what the compiler and its assembler said, and the machine code."""

    log: str
    kernels: tuple[KernelUse, ...]
    cubin: bytes


def compile_cuda(source: str, architecture: str, options: Sequence[str] = ()) -> Compilation:
    """Compile a source for an architecture such as `sm_90`, with the options of the runtime.

    NvrtcError if the source is refused.
    """
    library = _library()
    every = (
        *cuda.OPTIONS,
        f"--gpu-architecture={architecture}",
        "--ptxas-options=-v",
        f"--include-path={_headers()}",
        *options,
    )
    program = ctypes.c_void_p()
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None
        )
    )
    try:
        words = (ctypes.c_char_p * len(every))(*(option.encode() for option in every))
        status = library.nvrtcCompileProgram(program, len(every), words)
        said = _result(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        log = said.rstrip(b"\0").decode("utf-8", "replace")
        if status != 0:
            raise NvrtcError(f"{architecture}: {log.strip() or _message(status)}")
        cubin = _result(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    return Compilation(log, kernel_uses(log), cubin)


_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers",
    re.DOTALL,
)


def kernel_uses(log: str) -> tuple[KernelUse, ...]:
    """What the assembler reports of every kernel. NvrtcError if the report is not understood."""
    found = tuple(
        KernelUse(
            match["name"],
            int(match["registers"]),
            int(match["stack"]),
            int(match["stores"]),
            int(match["loads"]),
        )
        for match in _ENTRY.finditer(log)
    )
    if len(found) != log.count("Compiling entry function"):
        raise NvrtcError(f"the report of the assembler is not understood:\n{log}")
    return found


# ---------------------------------------------------------------------------- the library
@functools.cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(packaged("lib/libnvrtc.so.*")))
    except OSError as error:
        raise NvrtcError(f"NVRTC cannot be loaded: {error}") from error


@functools.cache
def _headers() -> Path:
    """The directory of cuda_fp16.h, which sources of half-precision numbers include."""
    return packaged("include/cuda_fp16.h").parent


def packaged(pattern: str) -> Path:
    """A file of NVIDIA's packages, NvrtcError if there is none.

    Their directories differ between versions of CUDA.
    """
    namespace = importlib.util.find_spec("nvidia")
    roots = (namespace.submodule_search_locations or []) if namespace is not None else []
    found = sorted(path for root in roots for path in Path(root).glob(f"*/{pattern}"))
    if not found:
        raise NvrtcError(f"there is no nvidia/*/{pattern}; pip install 'opgen[nvrtc]'")
    return found[-1]


def _check(status: int) -> None:
    if status != 0:
        raise NvrtcError(_message(status))


def _message(status: int) -> str:
    describe = _library().nvrtcGetErrorString
    describe.restype = ctypes.c_char_p
    text: bytes = describe(status)
    return text.decode()


def _result(
    measure: Callable[..., int], copy: Callable[..., int], program: ctypes.c_void_p
) -> bytes:
    """A result that is asked for in two steps, its size and its bytes."""
    size = ctypes.c_size_t()
    _check(measure(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(copy(program, buffer))
    return buffer.raw
