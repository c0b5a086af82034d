"""Kernels that are launched as CuPy's are, and checked while they run."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from opgen.testing.cuda_on_cpu import compiler
from opgen.testing.cuda_on_cpu.arguments import Bound, bind, parameters_of
from opgen.testing.cuda_on_cpu.compiler import SHARED_CAPACITY
from opgen.testing.cuda_on_cpu.launch import ORDERS, Order, Run, Shape, Size, Target, launch
from opgen.testing.cuda_on_cpu.report import Report

Mode = Literal["check", "fast"]

_MOST_THREADS: Final = 1024
_MOST_BLOCK: Final = (1024, 1024, 64)
_MOST_GRID: Final = (2**31 - 1, 65535, 65535)
_DEFAULT_SHARED: Final = 48 * 1024

_GLOBAL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:void\s+)?'
    r"(\w+)\s*\("
)


class Kernel:
    """A kernel of a module; call it to launch it."""

    def __init__(self, module: Module, number: int) -> None:
        name, library = module.names[number], module.library
        entry = ctypes.cast(getattr(library, f"emu_entry_{number}"), ctypes.c_void_p)
        self.name: str = name
        self.max_dynamic_shared_size_bytes: int = _DEFAULT_SHARED
        """As of CuPy's kernels: set it to ask for more dynamic shared memory than 48 KB."""
        self.parameters = tuple(parameters_of(library, number, module.source, name))
        self._target = Target(name, module.source, library, entry, module.mode == "check")

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[object],
        shared_mem: int = 0,
        *,
        stream: object = None,
        outs: Collection[int | str] = (),
        written: Mapping[int | str, np.ndarray] | None = None,
        blocks: Sequence[int] | None = None,
        order: Order = "forward",
        seed: int = 0,
        trace: bool = False,
        strict_exit: bool = True,
        timeout: float = 20.0,
    ) -> Report:
        """Launch, with the arguments of cupy.RawKernel, and report what was found.

        `args`: NumPy arrays and CPU tensors for pointers; for values NumPy scalars of the
        parameter's own type, or Python's where it is long long, double or bool. `stream` is
        accepted and means nothing.

        `outs`: positions or names of arguments of which the launch must write every element; they
        are filled with NaN (all bits set) before. `written`: for an argument a bool array with an
        entry for each element, in the order of memory: which are written already; the launch adds
        to it, and a read of another element is reported.

        `blocks`: numbers of the only blocks to run (x fastest), for arrays that are too large to be
        covered; `outs` then only finds elements that are read before they are written. `order`: of
        the blocks, and of the threads of each. `trace`: count memory traffic. `strict_exit=False`
        allows threads to return before a barrier that others reach. `timeout`: seconds of computing
        after which the launch is given up.

        Raises TypeError for arguments that do not match the kernel, ValueError for a grid or block
        that no GPU takes. What the kernel does wrong is reported, not raised.
        """
        bound = bind(self.name, self.parameters, args)
        run = Run(outs, written or {}, blocks, order, seed, trace, strict_exit, timeout)
        return self.launch(grid, block, bound, shared_mem, run)

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        bound: Sequence[Bound],
        shared_mem: int,
        run: Run,
    ) -> Report:
        """As a call, of arguments that are bound already."""
        shape = Shape(
            self._size("grid", grid, _MOST_GRID),
            self._size("block", block, _MOST_BLOCK),
            shared_mem,
        )
        threads, total = math.prod(shape.block), math.prod(shape.grid)
        if threads > _MOST_THREADS:
            raise ValueError(
                f"{self.name}: a block of {threads} threads; a GPU takes {_MOST_THREADS}"
            )
        limit = min(self.max_dynamic_shared_size_bytes, SHARED_CAPACITY)
        if not 0 <= shared_mem <= limit:
            raise ValueError(
                f"{self.name}: shared_mem is {shared_mem}, expected 0 to {limit}; more than "
                f"{_DEFAULT_SHARED} bytes need kernel.max_dynamic_shared_size_bytes to be set, to "
                f"{SHARED_CAPACITY} at most"
            )
        if run.trace and not self._target.is_checked:
            raise ValueError(f"{self.name}: memory is traced in mode 'check' only")
        if run.order not in ORDERS:
            raise ValueError(f"order is {run.order!r}, expected one of {sorted(ORDERS)}")
        if not all(0 <= number < total for number in run.blocks or ()):
            raise ValueError(f"{self.name}: blocks names numbers outside 0 to {total - 1}")
        return launch(self._target, shape, bound, run)

    def _size(self, what: str, given: Sequence[int], most: Size) -> Size:
        if not 1 <= len(given) <= 3:
            raise ValueError(f"{self.name}: the {what} has 1 to 3 dimensions, got {given}")
        x, y, z = (*map(int, given), 1, 1)[:3]
        if not all(1 <= n <= limit for n, limit in zip((x, y, z), most, strict=True)):
            raise ValueError(
                f"{self.name}: the {what} is {(x, y, z)}, expected 1 to {most} in every dimension"
            )
        return x, y, z


class Module:
    """The kernels of one source, as cupy.RawModule has them.

    `names`: of the kernels, or name expressions of templates such as "copy<float, 4>"; all kernels
    that are declared extern "C" if left out. `options`: of NVRTC; macros and include paths count.
    `mode`: "check", or "fast" for the numbers alone, in which only hangs and crashes are found.
    """

    def __init__(
        self,
        code: str,
        names: Sequence[str] | None = None,
        *,
        options: Sequence[str] = (),
        mode: Mode = "check",
    ) -> None:
        found = tuple(dict.fromkeys(_GLOBAL.findall(code))) if names is None else tuple(names)
        if not found:
            raise ValueError('the source declares no kernel `extern "C" __global__ void name(`')
        self.source, self.names, self.mode = code, found, mode
        self.library = compiler.library(code, found, mode, tuple(options))
        self._kernels = [Kernel(self, number) for number in range(len(found))]

    def get_function(self, name: str) -> Kernel:
        """A kernel by its name. KeyError if there is none."""
        if name not in self.names:
            raise KeyError(f"no kernel {name!r}; there are {', '.join(self.names)}")
        return self._kernels[self.names.index(name)]


def RawKernel(  # noqa: N802  # CuPy's name
    code: str, name: str, options: Sequence[str] = (), *, mode: Mode = "check"
) -> Kernel:
    """One kernel of a source, as cupy.RawKernel takes it; see `Kernel` and `Module`.

    EmulatorError if g++ is missing or refuses the source.
    """
    return Module(code, (name,), options=options, mode=mode).get_function(name)
