"""CUDA kernels on the CPU: the very same source, compiled by g++ behind a small header.

The threads of a launch run one after the other, so this checks what a kernel computes and that it
compiles as C++; it does not find races. `patched` sends the launches of a block of code here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from opgen.runtime import build, cuda, cuda_grid, evaluation, lookup

_HEADER = r"""
#define OPGEN_HOST
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
namespace {
struct Index { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
Index threadIdx, blockIdx, blockDim, gridDim;
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint64_t(a) * b >> 32; }
inline unsigned long long atomicCAS(unsigned long long *cell, unsigned long long expected,
                                    unsigned long long value)
{
    const unsigned long long found = *cell;
    if (found == expected) *cell = value;
    return found;
}
template <class T> void atomicAdd(T *cell, T value) { *cell += value; }
inline float rsqrt(float value) { return 1.0f / std::sqrt(value); }
inline double rsqrt(double value) { return 1.0 / std::sqrt(value); }
using std::exp; using std::expm1; using std::log; using std::log1p; using std::sqrt; using std::pow;
using std::sin; using std::cos; using std::tan; using std::tanh; using std::erf; using std::fabs;
using std::floor; using std::ceil; using std::rint;
// No _Float16 in g++ 12: arithmetic on doubles, which hold every f16 and every tie exactly.
struct f16 { uint16_t bits; };
double f16_to_double(f16 value) {
    const int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
    const double sign = value.bits >> 15 ? -1.0 : 1.0;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(fraction, -24);
    return sign * std::ldexp(1024 + fraction, exponent - 25);
}
f16 f16_from_double(double value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (value != value) return {uint16_t(sign | 0x7e00)};
    if (size >= 65520.0) return {uint16_t(sign | 0x7c00)};
    if (size < std::ldexp(1.0, -14)) return {uint16_t(sign | int(std::rint(std::ldexp(size, 24))))};
    int exponent = std::ilogb(size);
    // A fraction of 1024 carries into the exponent, which is the right result.
    const int fraction = int(std::rint(std::ldexp(size, 10 - exponent))) - 1024;
    return {uint16_t(sign | (((exponent + 15) << 10) + fraction))};
}
#define from_f16(cell) ((real)f16_to_double(cell))
#define to_f16(value) (f16_from_double(value))
template <class A> A word(int64_t bits) {
    A value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
template <class... A, std::size_t... I>
void launch(void (*kernel)(A...), const int64_t *grid, const int64_t *words,
            std::index_sequence<I...>) {
    static_assert((... && (sizeof(A) == 8)), "arguments are pointers, long long or double");
    gridDim = {unsigned(grid[0]), unsigned(grid[1]), unsigned(grid[2])};
    blockDim = {unsigned(grid[3]), unsigned(grid[4]), unsigned(grid[5])};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
        for (threadIdx.z = 0; threadIdx.z < blockDim.z; threadIdx.z++)
        for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
            kernel(word<A>(words[I])...);
}
template <class... A>
void launch(void (*kernel)(A...), const int64_t *grid, const int64_t *words) {
    launch(kernel, grid, words, std::index_sequence_for<A...>());
}
}
"""

_KERNEL = re.compile(r"extern \"C\" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(")
_FLAGS = ("-O0", "-shared", "-fPIC", "-std=c++17", "-fwrapv", "-ffp-contract=off", "-w")


class HostBuildError(RuntimeError):
    """g++ refused a CUDA source."""


def launch(source: str, device: torch.device, launches: Sequence[cuda.KernelLaunch]) -> None:
    """As `opgen.runtime.cuda.launch`, on tensors of the CPU."""
    library = _library(source)
    for each in launches:
        words = [_word(argument) for argument in each.arguments]
        grid = (*each.blocks, *each.threads)
        function = getattr(library, f"opgen_launch_{each.kernel}")
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        function((ctypes.c_int64 * len(grid))(*grid), (ctypes.c_int64 * len(words))(*words))


def _word(argument: cuda.Argument) -> int:
    """The 64 bits that CuPy passes: Python integers as long long, floats as double."""
    packed = struct.pack("d" if isinstance(argument, float) else "q", argument)
    word: int = struct.unpack("q", packed)[0]
    return word


@functools.cache
def _library(source: str) -> ctypes.CDLL:
    stubs = "".join(
        f'extern "C" void opgen_launch_{name}(const int64_t *grid, const int64_t *words)\n'
        f"{{ launch({name}, grid, words); }}\n"
        for name in _KERNEL.findall(source)
    )
    text = f"{_HEADER}\n{source}\n{stubs}"
    key = hashlib.sha256("\0".join((*_FLAGS, text)).encode()).hexdigest()[:32]
    target = build.cache_directory() / f"host-{key}.so"
    if not target.exists():
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise HostBuildError("no C++ compiler was found: install g++ or clang++")
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            file, built = Path(scratch) / "kernel.cpp", Path(scratch) / "kernel.so"
            file.write_text(text, encoding="utf-8")
            command = [compiler, *_FLAGS, "-o", str(built), str(file)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise HostBuildError(result.stderr)
            built.replace(target)
    return ctypes.CDLL(str(target))


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Within this block, ops on CPU tensors run their CUDA kernels."""
    before = cuda.launch, evaluation.run_on_cpu, cuda_grid.THREADS, cuda_grid.MOST_BLOCKS
    cuda.launch = launch
    evaluation.run_on_cpu = evaluation.run_on_cuda
    # Small tests then have several blocks, partial ones, and loops over what a grid leaves out.
    cuda_grid.THREADS, cuda_grid.MOST_BLOCKS = 4, (3, 2, 2)
    try:
        with lookup.suspended():
            yield
    finally:
        cuda.launch, evaluation.run_on_cpu, cuda_grid.THREADS, cuda_grid.MOST_BLOCKS = before
