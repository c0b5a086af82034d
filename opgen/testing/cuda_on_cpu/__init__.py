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

The headers cuda_fp16.h, cuda_bf16.h, cuda_pipeline.h and mma.h (nvcuda::wmma) are there. Inline
PTX needs a twin, between `#ifdef OPGEN_HOST_EMU` and `#else`. For some there are functions:

    emu_cp_async(destination, source, bytes, source_bytes)   cp.async, the rest filled with zeros
    emu_cp_commit(), emu_cp_wait(pending)                    cp.async.commit_group, .wait_group
    emu_mma_16816<__half>(d, a, b, c)                        mma.sync.m16n8k16 (#include <mma.h>)
    emu_ldmatrix<4, false>(registers, row)                   ldmatrix.x4, or .x4.trans

What it cannot say: anything of time; whether PTX does what its twin does; anything of clusters,
TMA, mbarriers, wgmma, cooperative groups and named barriers, which do not compile here.
Floating-point functions are those of the host, so compare numbers with a tolerance. __syncwarp of
some lanes counts as one of the whole warp, and __device__ variables are not checked for races.
Tested with g++ 12, on Linux and x86-64.
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
