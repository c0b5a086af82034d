"""Kernels with room for one planted bug, and how they are launched on odd shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opgen.testing.cuda_on_cpu import FindingKind, RawKernel, Report, aligned, empty

I = np.int32  # the type of C's int, where a call is to stay on one line

SCALE = r"""extern "C" __global__ void k(const float* x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.f * x[i];
}"""

TILE = r"""extern "C" __global__ void k(
    const float* __restrict__ x, float* __restrict__ y, int n, int m) {
    __shared__ float t[32][33];
    int c = blockIdx.x*32 + threadIdx.x, r = blockIdx.y*32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (r+j < n && c < m) t[threadIdx.y+j][threadIdx.x] = x[(r+j)*m + c];
    __syncthreads();
    c = blockIdx.y*32 + threadIdx.x; r = blockIdx.x*32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (r+j < m && c < n) y[(r+j)*n + c] = t[threadIdx.x][threadIdx.y+j];
}"""

ROTATE = r"""extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    float v = x[t];
    for (int pass = 0; pass < 3; pass++) {
        s[t] = v;
        __syncthreads();
        v = s[(t + 1) & 127];
        __syncthreads();  // before the next write
    }
    y[t] = v;
}"""

REDUCE = r"""extern "C" __global__ void k(
    const float* __restrict__ x, float* __restrict__ y, int n) {
    __shared__ float part[32];
    int t = threadIdx.x;
    float v = t < n ? x[t] : 0.f;
    for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
    if ((t & 31) == 0) part[t >> 5] = v;
    __syncthreads();
    if (t < 32) {
        v = t < (int)blockDim.x / 32 ? part[t] : 0.f;
        for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
        if (t == 0) y[0] = v;
    }
}"""

VECTOR = r"""extern "C" __global__ void k(
    const float* __restrict__ x, float* __restrict__ y, int n, int ld) {
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        *reinterpret_cast<float4*>(y + blockIdx.y*n + i)
            = *reinterpret_cast<const float4*>(x + blockIdx.y*ld + i);
}"""


def replaced(source: str, old: str, new: str) -> str:
    """The source with a bug in it."""
    assert source.count(old) == 1, (source.count(old), old)
    return source.replace(old, new)


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Values from 0 to 1."""
    return aligned(np.random.default_rng(seed).random(shape).astype(dtype))


def out(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array to write, of zeros."""
    made = empty(shape, dtype)
    made[...] = 0
    return made


def run(
    source: str,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[object],
    name: str = "k",
    **options: Any,
) -> Report:
    """One launch in checked mode."""
    return RawKernel(source, name)(grid, block, args, **options)


def transpose(source: str, n: int = 70, m: int = 90, **options: Any) -> tuple[Report, bool]:
    """TILE, and whether it transposed."""
    x, y = numbers(n, m), out(m, n)
    grid = ((m + 31) // 32, (n + 31) // 32)
    report = run(source, grid, (32, 8), (x, y, I(n), I(m)), outs=("y",), **options)
    return report, bool(np.array_equal(y, x.T))


def only(report: Report) -> FindingKind:
    """The only kind of finding there is."""
    (kind,) = report.kinds
    return kind
