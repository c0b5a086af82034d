"""CUDA C++ kernels on the CPU, every access checked: a GPU is not needed, only g++.

For kernels of your own, as CuPy takes them:

    from opgen.testing.cuda_on_cpu import RawKernel

    kernel = RawKernel(source, "scale")
    report = kernel((4,), (256,), (x, y, numpy.int32(n)), outs=("y",))
    report.raise_if_errors()

The very same text that NVRTC compiles runs here, its threads one after the other. Reported are,
each with its line of the source, thread, block and what to do: accesses outside arrays or
misaligned; races between barriers in shared memory, and between threads and blocks in global
memory; missing, divergent and unreached barriers; wrong masks of warp operations and lanes that
never come; uninitialised reads; outputs never written; writes through const; integer overflow;
asynchronous copies that nobody waits for; arguments that do not match the parameters; hangs and
crashes. Races are decided by barriers, not by luck: one run in one order finds them.

With `trace=True` a report counts what the memory of a GPU would be asked for; see `traffic`.

What it cannot say: anything of time; whether inline PTX does what its twin between
`#ifdef OPGEN_HOST_EMU` and `#else` does; anything of clusters, TMA, mbarriers, wgmma, cooperative
groups and named barriers, which do not compile here. Floating-point functions are those of the
host, so compare numbers with a tolerance. __syncwarp of some lanes counts as one of the whole warp,
and __device__ variables are not checked for races.
"""

from __future__ import annotations

from opgen.testing.cuda_on_cpu.compiler import EmulatorError
from opgen.testing.cuda_on_cpu.kernel import Kernel, Module, RawKernel
from opgen.testing.cuda_on_cpu.memory import aligned, empty, virtual
from opgen.testing.cuda_on_cpu.report import (
    Finding,
    FindingKind,
    KernelError,
    Report,
    Site,
    Traffic,
)

__all__ = [
    "EmulatorError",
    "Finding",
    "FindingKind",
    "Kernel",
    "KernelError",
    "Module",
    "RawKernel",
    "Report",
    "Site",
    "Traffic",
    "aligned",
    "empty",
    "virtual",
]
