"""Kernels with one token changed: what the emulator's checks and the numbers together must notice.

A mutant is told by its changed line. Those that nothing can notice, since they are the same program
to every launch or differ in what no caller sees, stand in `EQUIVALENT` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator_kernels import (
    DEPTH_TO_SPACE,
    DEPTH_TO_SPACE_VECTOR,
    REDUCE,
    SHIFT_SUM,
    SHIFT_SUM_VECTOR,
    TILE,
    I,
    numbers,
    out,
)
from opgen.testing.cuda_on_cpu import Kernel, Report

Outcome = tuple[Report, bool]
"""Of a launch: the report, and whether the numbers are right."""

BLUR = r"""
#define TX 32
#define TY 8
#define R 2
extern "C" __global__ void __launch_bounds__(256) k(
    const float* __restrict__ x, float* __restrict__ y, int h, int w) {
    __shared__ float a[TY*4 + 4][TX + 4];
    __shared__ float b[TY*4][TX + 4];
    int x0 = blockIdx.x*TX, y0 = blockIdx.y*TY*4;
    int t = threadIdx.y*TX + threadIdx.x;
    for (int i = t; i < (TY*4 + 4)*(TX + 4); i += TX*TY) {
        int r = i/(TX + 4), c = i%(TX + 4);
        int yy = min(max(y0 + r - R, 0), h - 1), xx = min(max(x0 + c - R, 0), w - 1);
        a[r][c] = x[yy*w + xx];
    }
    __syncthreads();  // all rows are there
    for (int i = t; i < TY*4*(TX + 4); i += TX*TY) {
        int r = i/(TX + 4), c = i%(TX + 4);
        float s = 0;
        #pragma unroll
        for (int k = 0; k < 5; k++) s += a[r + k][c];
        b[r][c] = s;
    }
    __syncthreads();  // all columns are there
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        int r = threadIdx.y + j*TY;
        float s = 0;
        #pragma unroll
        for (int k = 0; k < 5; k++) s += b[r][threadIdx.x + k];
        int yy = y0 + r, xx = x0 + threadIdx.x;
        if (yy < h && xx < w) y[yy*w + xx] = s*(1.f/25);
    }
}"""


# Kernels as opgen prints them. They stay as they are here when opgen learns to print others: it is
# the emulator that is tested.
PRINTED = r"""
typedef float T;
typedef int index_t;
#define EACH(dimension, name, extent) \
    for (index_t name = blockIdx.dimension * (index_t)blockDim.dimension + threadIdx.dimension; \
         name < (extent); name += gridDim.dimension * (index_t)blockDim.dimension)
static __device__ __forceinline__ bool inside(index_t index, index_t extent)
{
    return 0 <= index && index < extent;
}
"""

PRINTED_SHIFT_SUM = (
    PRINTED
    + r"""extern "C" __global__ void __launch_bounds__(256, 1) k(
    const T *__restrict__ x, int64_t x_s0, int64_t x_s1, int64_t x_s2,
    T *__restrict__ y, int64_t y_s0, int64_t y_s1,
    int64_t B, int64_t C, int64_t W, int64_t V, int64_t step)
{
    EACH(y, b, B) {
        EACH(x, v, V) {
            float total = 0;
            for (index_t c = 0; c < C; c++) {
                if (v >= c * step && c * step + W > v) {
                    total += x[b * x_s0 + c * x_s1 + (v - c * step) * x_s2];
                }
            }
            y[b * y_s0 + v * y_s1] = total;
        }
    }
}"""
).replace("int64_t", "long long")

PRINTED_UNFOLD = (
    PRINTED
    + r"""extern "C" __global__ void __launch_bounds__(256, 1) k(
    const T *__restrict__ x, int64_t x_s0, int64_t x_s1,
    T *__restrict__ y, int64_t y_s0, int64_t y_s1, int64_t y_s2,
    int64_t C, int64_t W, int64_t K, int64_t OW, int64_t dilation, int64_t padding,
    int64_t stride)
{
    EACH(y, outer, C * K) {
        const index_t c = outer / K;
        const index_t k = outer - c * K;
        EACH(x, j, OW) {
            y[c * y_s0 + k * y_s1 + j * y_s2]
                    = inside(dilation * k + j * stride - padding, W)
                    ? x[c * x_s0 + (dilation * k + j * stride - padding) * x_s1] : 0;
        }
    }
}"""
).replace("int64_t", "long long")


# ---------------------------------------------------------------------------- launches
def blur(kernel: Kernel, **options: Any) -> Iterator[Outcome]:
    for h, w in ((70, 45), (32, 32)):
        x, y = numbers(h, w), out(h, w)
        grid = (-(-w // 32), -(-h // 32))
        report = kernel(grid, (32, 8), (x, y, I(h), I(w)), outs=("y",), **options)
        padded = np.pad(x, 2, mode="edge")
        wanted = sum(padded[i : i + h, j : j + w] for i in range(5) for j in range(5)) / 25
        yield report, np.allclose(y, wanted, atol=1e-5)


def tile(kernel: Kernel, **options: Any) -> Iterator[Outcome]:
    for n, m in ((70, 90), (32, 33)):
        x, y = numbers(n, m), out(m, n)
        grid = (-(-m // 32), -(-n // 32))
        report = kernel(grid, (32, 8), (x, y, I(n), I(m)), outs=("y",), **options)
        yield report, np.array_equal(y, x.T)


def reduce(kernel: Kernel, **options: Any) -> Iterator[Outcome]:
    for n in (200, 256, 1):
        x, y = numbers(n), out(1)
        report = kernel((1,), (256,), (x, y, I(n)), outs=("y",), **options)
        yield report, abs(float(y[0]) - float(x.astype(np.float64).sum())) < 1e-3


def shift_sum(across: int, along: int) -> Callable[..., Iterator[Outcome]]:
    """Launches of a kernel whose blocks cover so many columns and rows."""

    def launches(kernel: Kernel, **options: Any) -> Iterator[Outcome]:
        for c, h, w in ((2, 37, 68), (1, 33, 132), (2, 1, 4)):
            x, y = numbers(c, h, w), out(c, h, w)
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
            wanted = sum(padded[:, a : a + h, b : b + w] for a in range(3) for b in range(3))
            grid = (-(-w // across), -(-h // along), c)
            report = kernel(grid, (32, 8), (x, y, I(c), I(h), I(w)), outs=("y",), **options)
            yield report, np.allclose(y, wanted, atol=1e-5)

    return launches


def depth_to_space(per_thread: int) -> Callable[..., Iterator[Outcome]]:
    """Launches of a kernel whose threads write so many elements."""

    def launches(kernel: Kernel, **options: Any) -> Iterator[Outcome]:
        for c, h, w in ((2, 5, 12), (1, 3, 4), (3, 16, 32)):
            x, y = numbers(4 * c, h, w), out(c, 2 * h, 2 * w)
            wanted = x.reshape(2, 2, c, h, w).transpose(2, 3, 0, 4, 1).reshape(c, 2 * h, 2 * w)
            grid = (-(-x.size // per_thread // 256),)
            report = kernel(grid, (256,), (x, y, I(c), I(h), I(w)), outs=("y",), **options)
            yield report, np.array_equal(y, wanted)

    return launches


def strides(array: np.ndarray) -> list[int]:
    """In elements, as printed kernels take them."""
    return [stride // array.itemsize for stride in array.strides]


def printed_shift_sum(kernel: Kernel, **options: Any) -> Iterator[Outcome]:
    for b, c, w, step in ((2, 3, 7, 2), (3, 4, 5, 0), (1, 1, 9, 1)):
        x, y = numbers(b, c, w), out(b, w + (c - 1) * step)
        wanted = np.zeros(y.shape, np.float64)
        for channel in range(c):
            wanted[:, channel * step : channel * step + w] += x[:, channel]
        args = (x, *strides(x), y, *strides(y), b, c, w, y.shape[1], step)
        # Fewer threads than there are points: they come round again.
        report = kernel((1, 1), (4, 2), args, outs=("y",), **options)
        yield report, np.allclose(y, wanted, atol=1e-5)


def printed_unfold(kernel: Kernel, **options: Any) -> Iterator[Outcome]:
    for c, w, k, dilation, padding, stride in ((2, 9, 3, 2, 1, 1), (3, 5, 2, 1, 2, 3)):
        windows = (w + 2 * padding - dilation * (k - 1) - 1) // stride + 1
        x, y = numbers(c, w), out(c, k, windows)
        padded = np.pad(x, ((0, 0), (padding, padding)))
        starts = np.arange(k)[:, None] * dilation + np.arange(windows)[None] * stride
        args = (x, *strides(x), y, *strides(y), c, w, k, windows, dilation, padding, stride)
        report = kernel((2, 2), (2, 2), args, outs=("y",), **options)
        yield report, np.array_equal(y, padded[:, starts])


@dataclass(frozen=True)
class Subject:
    """A kernel `k`, and launches of it on odd shapes."""

    source: str
    launches: Callable[..., Iterator[Outcome]]


SUBJECTS = {
    "blur": Subject(BLUR, blur),
    "transpose": Subject(TILE, tile),
    "reduce": Subject(REDUCE, reduce),
    "shift_sum": Subject(SHIFT_SUM, shift_sum(32, 8)),
    "shift_sum_vector": Subject(SHIFT_SUM_VECTOR, shift_sum(128, 32)),
    "depth_to_space": Subject(DEPTH_TO_SPACE, depth_to_space(1)),
    "depth_to_space_vector": Subject(DEPTH_TO_SPACE_VECTOR, depth_to_space(8)),
    "printed_shift_sum": Subject(PRINTED_SHIFT_SUM, printed_shift_sum),
    "printed_unfold": Subject(PRINTED_UNFOLD, printed_unfold),
}


# ---------------------------------------------------------------------------- mutants
_CONDITION = r"if \([^()]*(?:\([^()]*\)[^()]*)*\)\s*(?=[ysq*]\[?)"
RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"__syncthreads\(\);", ""),
    (r"(?<![<])<(?![<=a-z])", "<="),
    (r">=", ">"),
    (r"&&", "||"),
    (r"(?<![\w.\]\)])(\d+)(?![\w.])", lambda found: str(int(found[1]) + 1)),
    (r"(?<![+=])\+(?![+=])", "-"),
    (r"(?<=[\w)\]])(?<!float)(?<!T) ?\* ?(?=[\w(])", " + "),
    (r"threadIdx\.x", "threadIdx.y"),
    (r"blockIdx\.x", "blockIdx.y"),
    (r"(?<=[\w\)\]]) ?- ?(?=[\w\(])", "+"),
    (r"\+=", "="),
    (r"0xffffffffu", "0x0000ffffu"),
    (_CONDITION, ""),
)


@dataclass(frozen=True)
class Mutant:
    """A source with one token changed, and the line that changed."""

    line: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant by every rule, once."""
    start = source.index("__global__")
    seen = {source}
    for pattern, replacement in RULES:
        for found in re.finditer(pattern, source):
            begin = source.rfind("\n", 0, found.start()) + 1
            before = source[begin : found.start()]
            if found.start() < start or "//" in before or "#" in before or "__launch" in before:
                continue
            new = replacement if isinstance(replacement, str) else replacement(found)
            mutated = source[: found.start()] + new + source[found.end() :]
            if mutated in seen:
                continue
            seen.add(mutated)
            yield Mutant(mutated[begin : mutated.find("\n", begin)].strip(), mutated)
