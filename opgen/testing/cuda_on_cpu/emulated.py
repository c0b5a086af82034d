"""Generated ops through the emulator: on CPU tensors they run the CUDA kernels that a GPU would.

Everything up to CuPy is the way of a call on CUDA tensors, `opgen.runtime.cuda` included, with its
grids and arguments. In CuPy's place stands the emulator, and every finding is an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import assert_never
from unittest import mock

import numpy as np
import torch

from opgen.runtime import (
    cuda,
    cuda_call,
    cuda_grid,
    cuda_operands,
    cuda_product,
    evaluation,
    library_cuda,
    lookup_library,
)
from opgen.testing.cuda_on_cpu.arguments import (
    Bound,
    Memory,
    Parameter,
    Role,
    memory_of,
    packed,
    pointer,
)
from opgen.testing.cuda_on_cpu.kernel import Kernel, Module
from opgen.testing.cuda_on_cpu.launch import Order, Run, Size
from opgen.testing.cuda_on_cpu.report import KernelError, Report

_FAULT = "fault"
"""The parameter of kernels that check indices: three integers that say which was outside."""
_FAULT_BYTES = 24
ROOM = 2**20
"""What kernels may access of a tensor whose size is not known, in bytes."""


_Patch = tuple[ModuleType, str, object]
"""A name of a module, and what takes its place."""


class Products(Enum):
    """Which kernels run as products of matrices, of those that can."""

    CHOSEN = "those that a launch would choose"
    ALWAYS = "all"
    NEVER = "none"

    def limits(self) -> list[_Patch]:
        """The limits of the choice that make it so."""
        match self:
            case Products.CHOSEN:
                return []
            case Products.ALWAYS:
                names = ("LEAST_TERMS", "LEAST_SIDE")
                least = [(cuda_product, name, 0) for name in names]
                return [*least, (cuda_product, "BY_CELLS", math.inf)]
            case Products.NEVER:
                return [(cuda_product, "LEAST_TERMS", math.inf)]
            case unexpected:
                assert_never(unexpected)


@dataclass
class Emulation:
    """How launches run within `emulated`, and what came of them."""

    order: Order = "forward"
    trace: bool = False
    reports: list[Report] = field(default_factory=list)
    functions: dict[int, _Function] = field(default_factory=dict)
    """Kernels by the numbers that stand for the driver's handles."""

    @property
    def kernels(self) -> set[str]:
        """The names of the kernels that ran."""
        return {report.kernel for report in self.reports}


@contextlib.contextmanager
def emulated(
    order: Order = "forward",
    *,
    trace: bool = False,
    threads: int = cuda_grid.THREADS,
    products: Products = Products.CHOSEN,
    most_blocks: tuple[int, int, int] = cuda_grid.MOST_BLOCKS,
) -> Iterator[Emulation]:
    """Within this block, ops on CPU tensors run their CUDA kernels in the emulator.

    Raises KernelError for what a kernel does wrong, and where no kernel writes an element of an
    output. `threads` of a block and `most_blocks` along x, y and z: fewer than usual, so that small
    calls have several blocks, and loops over what a grid leaves out. `products` says which kernels
    run as products of matrices, where they can. Launches of other threads of the process must not
    run at the same time.
    """
    emulation = Emulation(order, trace)
    running: list[_Call] = []

    @contextlib.contextmanager
    def device(_index: int) -> Iterator[None]:
        yield

    stream = type("Stream", (), {"cuda_stream": 0})
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "device", device),
            (cuda, "capability", lambda device: (9, 0)),
            (cuda, "computes", lambda device: True),
            (torch.cuda, "current_stream", lambda index: stream),
            (cuda, "_loaded", lambda cupy, source, device: cupy.RawModule(code=source)),
            (library_cuda, "settings", lambda: None),
            (cuda_grid, "THREADS", threads),
            (cuda_grid, "MOST_BLOCKS", most_blocks),
            (cuda_grid, "LEAST_THREADS", 1),
            *_watched(running),
            *products.limits(),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        stack.enter_context(_imported(_cupy(emulation, running)))
        stack.enter_context(lookup_library.suspended())
        stack.callback(_forget_kernels)
        _forget_kernels()
        yield emulation


def _watched(running: list[_Call]) -> list[_Patch]:
    """Functions of the runtime that tell the call at hand what memory launches work on."""

    run_on_cuda = evaluation.run_on_cuda

    def run(call: evaluation.Call, operands: Mapping[str, torch.Tensor]) -> cuda.Launched:
        running.append(_Call.of(call, operands))
        try:
            launched = run_on_cuda(call, operands)
            running[-1].check_written()
        finally:
            running.pop()
        return launched

    def empty_parts(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        found = torch.empty(count, dtype=dtype, device=device)
        if found.numel():
            running[-1].add(f"parts {len(running[-1].memories)}", found)
        return found

    partial_sums = cuda_product.partial_sums

    def workspace(plan: cuda_product.Plan, real: str, place: torch.device) -> torch.Tensor | None:
        found = partial_sums(plan, real, place)
        if found is not None:
            running[-1].add(f"partial sums {len(running[-1].memories)}", found)
        return found

    copied = cuda_operands.copies

    def copies(
        operands: Mapping[str, torch.Tensor],
        inputs: Iterable[str],
        axes: Sequence[int],
        walked: Mapping[str, int],
    ) -> dict[str, torch.Tensor]:
        found = copied(operands, inputs, axes, walked)
        for name, tensor in found.items():
            own = f"copy of {name}, {len(running[-1].memories)}"
            running[-1].memories[own] = memory_of(own, tensor)
        return found

    return [
        (evaluation, "run_on_cuda", run),
        (cuda_call, "empty_parts", empty_parts),
        (cuda_operands, "copies", copies),
        (cuda_product, "partial_sums", workspace),
    ]


@contextlib.contextmanager
def _imported(module: ModuleType) -> Iterator[None]:
    """The module under its name.

    Others that are imported meanwhile stay: torch has some that cannot be imported twice.
    """
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before


def _forget_kernels() -> None:
    cuda._kernel.cache_clear()
    cuda._module.cache_clear()


# ---------------------------------------------------------------------------- CuPy's place
def _cupy(emulation: Emulation, running: list[_Call]) -> ModuleType:
    """What `opgen.runtime.cuda` asks of CuPy."""

    class RawModule:
        def __init__(self, *, code: str) -> None:
            self._module = Module(code, options=cuda.OPTIONS)

        def get_function(self, name: str) -> _Function:
            return _Function(self._module.get_function(name), emulation, running)

    found = ModuleType("cupy")
    found.RawModule = RawModule  # type: ignore[attr-defined]
    return found


class _Function:
    """A kernel that takes addresses, as CuPy's do."""

    def __init__(self, kernel: Kernel, emulation: Emulation, running: list[_Call]) -> None:
        self._kernel, self._emulation, self._running = kernel, emulation, running
        self.ptr = len(emulation.functions) + 1
        emulation.functions[self.ptr] = self

    @property
    def kernel(self) -> _Function:
        """As of CuPy's kernels: what has the handle."""
        return self

    def launch(self, grid: Size, block: Size, pointers: Sequence[int]) -> None:
        """As the driver does it: arguments are where these point, 64 bits each.

        Nothing says how large their tensors are: up to `ROOM` bytes of each may be accessed, as far
        as there is no other one.
        """
        words = [ctypes.c_int64.from_address(each).value for each in pointers]
        parameters = self._kernel.parameters
        addresses = [w for w, p in zip(words, parameters, strict=True) if p.role is not Role.VALUE]
        bound = []
        for parameter, word, at in zip(parameters, words, pointers, strict=True):
            if parameter.role is Role.VALUE:
                value = ctypes.c_double.from_address(at).value if parameter.code == "d" else word
                bound.append(Bound(parameter, packed(parameter.name, parameter, value), None))
            else:
                room = min([ROOM, *(each - word for each in addresses if each > word)])
                memory = Memory(parameter.name, word, word, room, parameter.bytes, None)
                bound.append(Bound(parameter, pointer(word), memory))
        run = Run(order=self._emulation.order, trace=self._emulation.trace)
        report = self._kernel.launch(grid, block, bound, 0, run)
        self._emulation.reports.append(report)
        report.raise_if_errors()

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """As of CuPy's kernels."""
        return self._kernel.max_dynamic_shared_size_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        self._kernel.max_dynamic_shared_size_bytes = value

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple[object, ...],
        *,
        shared_mem: int = 0,
        stream: object = None,
    ) -> None:
        kernel, call = self._kernel, self._running[-1]
        if len(arguments) != len(kernel.parameters):
            raise TypeError(
                f"{kernel.name} takes {len(kernel.parameters)} arguments, got {len(arguments)}"
            )
        bound = [
            call.bind(kernel.name, parameter, value)
            for parameter, value in zip(kernel.parameters, arguments, strict=True)
        ]
        run = Run(
            written=call.written_of(bound),
            order=self._emulation.order,
            trace=self._emulation.trace,
        )
        report = kernel.launch(grid, block, bound, shared_mem, run)
        self._emulation.reports.append(report)
        report.raise_if_errors()


@dataclass(frozen=True)
class _Call:
    """The memory of one call of an op."""

    name: str
    memories: dict[str, Memory]
    """Of every operand that is not empty, and of what launches hold."""
    written: dict[int, np.ndarray]
    """Of what kernels make, workspaces included, by address: which elements one has written."""
    outputs: tuple[str, ...]

    @staticmethod
    def of(call: evaluation.Call, operands: Mapping[str, torch.Tensor]) -> _Call:
        """For the operands of a call; what the op makes is filled with NaN (all bits set)."""
        operation = call.operation
        names = [each.name for each in operation.outputs]
        made = {*names, *(each.name for each in operation.temporaries)}
        full = {name: tensor for name, tensor in operands.items() if tensor.numel()}
        outputs = tuple(name for name in names if name in full)
        call_ = _Call(operation.name, {}, {}, outputs)
        for name, tensor in full.items():
            if name in made:
                call_.add(name, tensor)
            else:
                call_.memories[name] = memory_of(name, tensor)
        return call_

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Something that kernels make, filled with NaN."""
        memory = self.memories[name] = memory_of(name, tensor)
        ctypes.memset(memory.low, 0xFF, memory.extent)
        self.written[memory.low] = np.zeros(memory.extent // memory.itemsize, np.bool_)

    def bind(self, kernel: str, parameter: Parameter, value: object) -> Bound:
        """An argument as CuPy is given it: an address for a pointer, else a number."""
        what = f"{parameter.name} of {kernel}"
        if parameter.role is Role.VALUE:
            return Bound(parameter, packed(what, parameter, value), None)
        if not isinstance(value, int):
            raise TypeError(f"{what} is {parameter.text}, got {type(value).__name__}")
        return Bound(parameter, pointer(value), self._memory(parameter.name, value))

    def _memory(self, name: str, address: int) -> Memory | None:
        """What lies at an address: nothing that may be accessed if no operand does."""
        if name == _FAULT:
            return Memory(_FAULT, address, address, _FAULT_BYTES, 8, None)
        named = self.memories.get(name)
        if named is not None and named.address == address:
            return named
        found = [each for each in self.memories.values() if each.address == address]
        return max(found, key=lambda each: each.extent, default=None)

    def written_of(self, bound: list[Bound]) -> dict[int | str, np.ndarray]:
        """By the position of an argument, which elements of its memory are written."""
        return {
            position: self.written[each.memory.low]
            for position, each in enumerate(bound)
            if each.memory is not None and each.memory.low in self.written
        }

    def check_written(self) -> None:
        """KernelError if there are elements of an output that no kernel wrote."""
        for name in self.outputs:
            cells = self.written[self.memories[name].low]
            if not cells.all():
                raise KernelError(
                    f"{self.name}: {int((~cells).sum())} of {cells.size} elements of {name} are "
                    f"written by no kernel, the first at {int(cells.argmin())}"
                )
