"""Kernels that are launched as CuPy's are, and checked while they run."""

from __future__ import annotations

import ctypes
import math
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from opgen.testing.cuda_on_cpu import abi, compiler
from opgen.testing.cuda_on_cpu.arguments import Bound, Memory, Role, bind, parameters_of
from opgen.testing.cuda_on_cpu.compiler import SHARED_CAPACITY, EmulatorError
from opgen.testing.cuda_on_cpu.memory import virtual
from opgen.testing.cuda_on_cpu.report import Report
from opgen.testing.cuda_on_cpu.results import Raw, report_of

Mode = Literal["check", "fast"]
Order = Literal["forward", "reverse", "random"]

_ORDERS: Final = {"forward": 0, "reverse": 1, "random": 2}
_MOST_THREADS: Final = 1024
_MOST_BLOCK: Final = (1024, 1024, 64)
_MOST_GRID: Final = (2**31 - 1, 65535, 65535)
_DEFAULT_SHARED: Final = 48 * 1024
_FINDINGS: Final = 64
_SITES: Final = 4096

_ONE_LAUNCH = threading.Lock()  # the run time has one state

_GLOBAL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:void\s+)?'
    r"(\w+)\s*\("
)


class Kernel:
    """A kernel of a module; call it to launch it."""

    def __init__(self, module: Module, number: int) -> None:
        self.name: str = module.names[number]
        self.max_dynamic_shared_size_bytes: int = _DEFAULT_SHARED
        """As of CuPy's kernels: set it to ask for more dynamic shared memory than 48 KB."""
        self._module = module
        self._entry = ctypes.cast(getattr(module.library, f"emu_entry_{number}"), ctypes.c_void_p)
        self.parameters = tuple(parameters_of(module.library, number, module.source, self.name))

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
        return self.launch(
            grid, block, bind(self.name, self.parameters, args), shared_mem, outs=outs,
            written=written, blocks=blocks, order=order, seed=seed, trace=trace,
            strict_exit=strict_exit, timeout=timeout,
        )  # fmt: skip

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        bound: Sequence[Bound],
        shared_mem: int = 0,
        *,
        outs: Collection[int | str] = (),
        written: Mapping[int | str, np.ndarray] | None = None,
        blocks: Sequence[int] | None = None,
        order: Order = "forward",
        seed: int = 0,
        trace: bool = False,
        strict_exit: bool = True,
        timeout: float = 20.0,
    ) -> Report:
        """As a call, of arguments that are bound already."""
        grid3, block3 = self._checked_shape(grid, block, shared_mem)
        if trace and self._module.mode != "check":
            raise ValueError("memory is traced in mode 'check' only")
        if order not in _ORDERS:
            raise ValueError(f"order is {order!r}, expected one of {sorted(_ORDERS)}")
        total = math.prod(grid3)
        if blocks is not None and not all(0 <= number < total for number in blocks):
            raise ValueError(f"blocks names numbers outside 0 to {total - 1}")
        memories = _memories(bound)
        maps = self._maps(memories, outs, written or {}, poison=blocks is None)
        arrays = (abi.Array * max(1, len(memories)))(
            *(
                abi.Array(memory.low, memory.extent, _address(maps.get(at)), cell, is_const)
                for at, (memory, cell, is_const, _) in enumerate(memories)
            )
        )
        sample = None if blocks is None else (ctypes.c_uint64 * max(1, len(blocks)))(*blocks)
        raw = Raw(_FINDINGS, _SITES if trace else 0, len(memories))
        with _ONE_LAUNCH:
            library = self._module.library
            library.emu_storage()
            dynamic = _dynamic_shared(library)
            if shared_mem > 0 and dynamic is None:
                dynamic = 0  # memory that the kernel has no name for
            request = abi.Launch(
                entry=self._entry,
                arguments=(ctypes.c_void_p * max(1, len(bound)))(
                    *(ctypes.addressof(each.value) for each in bound)
                ),
                grid=(ctypes.c_uint32 * 3)(*grid3),
                block=(ctypes.c_uint32 * 3)(*block3),
                blocks=sample,
                block_count=0 if blocks is None else len(blocks),
                dynamic_shared=dynamic,
                dynamic_bytes=shared_mem,
                dynamic_capacity=SHARED_CAPACITY,
                arrays=arrays,
                array_count=len(memories),
                options=abi.Options(
                    check=self._module.mode == "check",
                    trace=trace,
                    order=_ORDERS[order],
                    seed=seed & 0xFFFFFFFF,
                    strict_exit=strict_exit,
                    timeout_ms=max(1, int(timeout * 1000)),
                ),
            )
            start = time.perf_counter()
            status = compiler.runtime().emu_launch(ctypes.byref(request), ctypes.byref(raw.outcome))
            seconds = time.perf_counter() - start
        if status != 0:
            raise EmulatorError(
                f"{self.name}: the system has no room to remember what is read and written of "
                f"{sum(memory.extent for memory, *_ in memories)} bytes"
            )
        demanded = {at for at in maps if self._is_named(memories[at][3], outs)}
        return report_of(
            raw, self.name, self._module.source, self._module.library._name,
            [memory for memory, *_ in memories],
            {} if blocks is not None else {at: maps[at] for at in demanded},
            trace=trace, seconds=seconds,
        )  # fmt: skip

    def _checked_shape(
        self, grid: Sequence[int], block: Sequence[int], shared_mem: int
    ) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        shapes = []
        for what, given, most in (("grid", grid, _MOST_GRID), ("block", block, _MOST_BLOCK)):
            if not 1 <= len(given) <= 3:
                raise ValueError(f"{self.name}: the {what} has 1 to 3 dimensions, got {given}")
            x, y, z = (*map(int, given), 1, 1)[:3]
            if not all(1 <= n <= limit for n, limit in zip((x, y, z), most, strict=True)):
                raise ValueError(
                    f"{self.name}: the {what} is {(x, y, z)}, expected 1 to {most} in every "
                    "dimension"
                )
            shapes.append((x, y, z))
        if math.prod(shapes[1]) > _MOST_THREADS:
            raise ValueError(
                f"{self.name}: a block of {math.prod(shapes[1])} threads; a GPU takes "
                f"{_MOST_THREADS}"
            )
        limit = min(self.max_dynamic_shared_size_bytes, SHARED_CAPACITY)
        if not 0 <= shared_mem <= limit:
            raise ValueError(
                f"{self.name}: shared_mem is {shared_mem}, expected 0 to {limit}; more than "
                f"{_DEFAULT_SHARED} bytes need kernel.max_dynamic_shared_size_bytes to be set, to "
                f"{SHARED_CAPACITY} at most"
            )
        return shapes[0], shapes[1]

    # ------------------------------------------------------------------------ written elements
    def _maps(
        self,
        memories: Sequence[tuple[Memory, int, bool, tuple[int, ...]]],
        outs: Collection[int | str],
        written: Mapping[int | str, np.ndarray],
        *,
        poison: bool,
    ) -> dict[int, np.ndarray]:
        """For the memory of `outs` and `written`, which cells are written."""
        known = {*range(len(self.parameters)), *(each.name for each in self.parameters)}
        for named in (*outs, *written):
            if named not in known:
                raise ValueError(f"{self.name} has no argument {named!r}")
        maps: dict[int, np.ndarray] = {}
        for at, (memory, cell, is_const, positions) in enumerate(memories):
            given = [written[key] for key in written if self._is_named(positions, (key,))]
            count = -(-memory.extent // (1 << cell))
            if given:
                maps[at] = given[0]
                if given[0].dtype != np.bool_ or given[0].shape != (count,):
                    raise ValueError(
                        f"{self.name}: `written` for {memory.name} is {given[0].dtype} of shape "
                        f"{given[0].shape}, expected bool of shape {(count,)}"
                    )
            elif self._is_named(positions, outs):
                if is_const:
                    raise ValueError(f"{self.name}: {memory.name} is const, and no output")
                maps[at] = virtual((count,), np.bool_)
                if poison:
                    ctypes.memset(memory.low, 0xFF, memory.extent)
        return maps

    def _is_named(self, positions: Sequence[int], named: Collection[int | str]) -> bool:
        return any(at in named or self.parameters[at].name in named for at in positions)


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


def _memories(bound: Sequence[Bound]) -> list[tuple[Memory, int, bool, tuple[int, ...]]]:
    """Every distinct memory: the cells it is tracked in, whether const, the positions it has."""
    found: list[tuple[Memory, int, bool, tuple[int, ...]]] = []
    for position, each in enumerate(bound):
        memory = each.memory
        if memory is None or memory.extent == 0:
            continue
        pointee = each.parameter.bytes
        cell = min(memory.cell, pointee & -pointee if pointee else 16, 16).bit_length() - 1
        is_const = each.parameter.role is Role.CONST_POINTER
        for at, (known, cell_before, const_before, positions) in enumerate(found):
            if (known.low, known.extent) == (memory.low, memory.extent):
                found[at] = (
                    known,
                    min(cell, cell_before),
                    is_const and const_before,
                    (*positions, position),
                )
                break
        else:
            found.append((memory, cell, is_const, (position,)))
    return found


def _address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def _dynamic_shared(library: ctypes.CDLL) -> int | None:
    try:
        tell = library.emu_dynamic
    except AttributeError:  # the source has no `extern __shared__`
        return None
    tell.restype = ctypes.c_void_p
    found: int | None = tell()
    return found
