"""The kernels of the research's workloads as calls launch them, and what a thread of them executes.

    python tests/seed_kernels.py [NAME...]

prints for every kernel, forward and backward: instructions that an inner thread executes for one
element it stores, or of a sum for one element of its largest operand; the goal; bytes that reach
the second cache for one that is needed; registers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from unittest import mock

import torch

import opgen
from catalogue import SPECS
from opgen.runtime import cuda, cuda_grid, evaluation, library, lookup_library
from opgen.testing import nvrtc, sass
from opgen.testing.cuda_on_cpu import Report
from opgen.testing.cuda_on_cpu.emulated import emulated
from opgen.testing.cuda_on_cpu.traffic import movement
from opgen.testing.sass_thread import executed

ARCHITECTURE = "sm_90"


@cache
def module(stem: str) -> ModuleType:
    return opgen.load(SPECS / f"{stem}.op")


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)))


@dataclass(frozen=True)
class Workload:
    """A call on tensors of these shapes; `goal` is instructions for an element of the result.

    It is 1.5 times what kernels written by hand take, those of shift_sum for 8 channels.
    """

    call: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    goal: float


WORKLOADS = {
    "shift_sum": Workload(
        lambda x: module("shift_sum").shift_sum(x, step=2), ((1, 8, 16, 256),), 1.5 * 8.2 * 8
    ),
    "depth_to_space": Workload(
        lambda x: module("depth_to_space").depth_to_space(x, r=2), ((1, 32, 16, 256),), 1.5 * 2.6
    ),
    "depthwise": Workload(
        lambda x, w: module("conv").conv2d(x, w, padding=1, groups=8),
        ((1, 8, 32, 256), (8, 1, 3, 3)),
        1.5 * 16.8,
    ),
    "transposed": Workload(
        lambda x, w: module("conv_transpose").conv_transpose2d(x, w, stride=2, groups=8),
        ((1, 8, 16, 256), (8, 1, 2, 2)),
        1.5 * 2.9,
    ),
    "bilinear": Workload(
        lambda x: module("upsample_bilinear").upsample_bilinear(x), ((1, 4, 32, 256),), 1.5 * 6.6
    ),
    "unfold": Workload(
        lambda x: module("unfold").unfold(x, kernel_size=3, padding=1), ((1, 4, 32, 256),), 1.5**2
    ),
}


Launched = tuple[str, cuda.KernelLaunch]
"""A source, and a launch of one of its kernels."""


def launched(workload: Workload, dtype: torch.dtype, backward: bool = False) -> list[Launched]:
    """What a call would launch, with as many rows for a thread as a large one; nothing is run.

    With `backward` what its gradients for all tensors would.
    """
    found: list[Launched] = []

    def noting(launched: cuda.Launched) -> None:
        found.extend(("".join(launched.source), each) for each in launched.launches)

    with (
        mock.patch.object(cuda, "launch", noting),
        mock.patch.object(cuda, "capability", return_value=(9, 0)),
        mock.patch.object(evaluation, "run_on_cpu", evaluation.run_on_cuda),
        mock.patch.object(library, "case_of", return_value=None),
        mock.patch.object(cuda_grid, "LEAST_THREADS", 1),
        lookup_library.suspended(),
    ):
        tensors = [random(*shape).to(dtype).requires_grad_() for shape in workload.shapes]
        result = workload.call(*tensors)
        if backward:
            found.clear()
            result.backward(torch.ones_like(result))
    return found


def traced(workload: Workload, dtype: torch.dtype) -> Iterator[tuple[Launched, Report]]:
    """What a call and its gradients for all tensors launch, and what the emulator sees of it."""
    found: list[Launched] = []
    run = cuda.launch

    def noting(launched: cuda.Launched) -> None:
        found.extend(("".join(launched.source), each) for each in launched.launches)
        run(launched)

    tensors = [random(*shape).to(dtype).requires_grad_() for shape in workload.shapes]
    with emulated(trace=True) as launches, mock.patch.object(cuda, "launch", noting):
        result = workload.call(*tensors)
        result.backward(torch.ones_like(result))
    return zip(found, launches.reports, strict=True)


@dataclass(frozen=True)
class Measured:
    """What an inner thread of a kernel executes."""

    kernel: str
    instructions: int
    stored: float  # elements
    registers: int
    spills: bool

    @property
    def for_an_output(self) -> float:
        return self.instructions / self.stored


def measured(found: Launched, itemsize: int, terms: int = 0) -> Measured:
    """The kernel compiled, and the thread in the middle of the block in the middle followed.

    A thread that stores nothing adds up its part of the `terms` of a sum.
    """
    source, launch = found
    compiled = nvrtc.compile_cuda(source, ARCHITECTURE)
    code = sass.disassemble(compiled.cubin)[launch.kernel]
    x, y, z = (count // 2 for count in launch.blocks)
    a, b, c = (count // 2 for count in launch.threads)
    way = executed(code, launch, (x, y, z), (a, b, c))
    stored = sum(sass.width(each.opcode) for each in way if each.opcode.startswith("STG"))
    (use,) = (each for each in compiled.kernels if each.name == launch.kernel)
    return Measured(
        launch.kernel,
        len(way),
        stored / itemsize or terms / math.prod((*launch.blocks, *launch.threads)),
        use.registers,
        use.spills,
    )


def table(names: Iterable[str]) -> Iterator[str]:
    """The lines of the table."""
    yield f"{'kernel':42} {'type':8} {'instructions':>12} {'goal':>6} {'L2':>5} {'registers':>9}"
    for workload in map(WORKLOADS.__getitem__, names):
        for dtype in (torch.float32, torch.bfloat16):
            kind = str(dtype).removeprefix("torch.")
            for number, (found, report) in enumerate(traced(workload, dtype)):
                sectors = max(each.read_unique_sectors for each in report.traffic.values())
                line = measured(found, dtype.itemsize, 32 * sectors // dtype.itemsize)
                moved = movement(report)
                goal = f"{workload.goal:.1f}" if number == 0 else ""
                yield (
                    f"{line.kernel:42} {kind:8} {line.for_an_output:12.1f} {goal:>6} "
                    f"{moved.second_cache / moved.device:5.2f} {line.registers:9}"
                )


if __name__ == "__main__":
    for text in table(sys.argv[1:] or list(WORKLOADS)):
        print(text, flush=True)
