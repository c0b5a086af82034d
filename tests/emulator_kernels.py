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

SHIFT_SUM = r"""extern "C" __global__ void __launch_bounds__(256) k(
    const float* __restrict__ x, float* __restrict__ y, int C, int H, int W) {
    int j = blockIdx.x*32 + threadIdx.x, i = blockIdx.y*8 + threadIdx.y, c = blockIdx.z;
    if (i >= H || j >= W) return;
    const float* p = x + (long long)c*H*W;
    float s = 0;
    #pragma unroll
    for (int di = -1; di <= 1; di++)
        #pragma unroll
        for (int dj = -1; dj <= 1; dj++) {
            int a = i + di, b = j + dj;
            if (a >= 0 && a < H && b >= 0 && b < W) s += p[a*W + b];
        }
    y[(long long)c*H*W + i*W + j] = s;
}"""

# Each thread: 4 columns and 4 rows, with the sums of three rows; W is a multiple of 4.
SHIFT_SUM_VECTOR = r"""extern "C" __global__ void __launch_bounds__(256) k(
    const float* __restrict__ x, float* __restrict__ y, int C, int H, int W) {
    int j = (blockIdx.x*32 + threadIdx.x)*4, i0 = (blockIdx.y*8 + threadIdx.y)*4, c = blockIdx.z;
    if (j >= W || i0 >= H) return;
    const float* p = x + (long long)c*H*W;
    float* q = y + (long long)c*H*W;
    float4 h[3];
    auto row = [&](int i) -> float4 {
        if (i < 0 || i >= H) return make_float4(0, 0, 0, 0);
        const float* r = p + i*W + j;
        float4 v = *reinterpret_cast<const float4*>(r);
        float l = j > 0 ? r[-1] : 0.f, e = j + 4 < W ? r[4] : 0.f;
        return make_float4(l + v.x + v.y, v.x + v.y + v.z, v.y + v.z + v.w, v.z + v.w + e);
    };
    h[0] = row(i0 - 1);
    h[1] = row(i0);
    #pragma unroll
    for (int k = 0; k < 4; k++) {
        h[(k + 2) % 3] = row(i0 + k + 1);
        if (i0 + k < H) {
            float4 a = h[0], b = h[1], d = h[2];
            *reinterpret_cast<float4*>(q + (i0 + k)*W + j)
                = make_float4(a.x + b.x + d.x, a.y + b.y + d.y, a.z + b.z + d.z, a.w + b.w + d.w);
        }
    }
}"""

DEPTH_TO_SPACE = r"""extern "C" __global__ void __launch_bounds__(256) k(
    const float* __restrict__ x, float* __restrict__ y, int Co, int H, int W) {
    int o = blockIdx.x*256 + threadIdx.x;
    if (o >= Co*H*W*4) return;
    int ow = o%(2*W), oh = o/(2*W)%(2*H), c = o/(4*H*W);
    y[o] = x[(((oh & 1)*2 + (ow & 1))*Co + c)*H*W + (oh >> 1)*W + (ow >> 1)];
}"""

# Each thread: 4 elements of two planes become 8 of a row, in two stores 16 bytes apart.
DEPTH_TO_SPACE_VECTOR = r"""struct alignas(16) V { float v[4]; };
extern "C" __global__ void __launch_bounds__(256) k(
    const float* __restrict__ x, float* __restrict__ y, int Co, int H, int W) {
    int g = blockIdx.x*256 + threadIdx.x;
    if (g >= Co*H*W/4*2) return;
    int w = g%(W/4)*4, h = g/(W/4)%H, a = g/(W/4*H)%2, c = g/(W/4*H*2);
    V p = *(const V*)(x + ((a*2 + 0)*Co + c)*H*W + h*W + w);
    V q = *(const V*)(x + ((a*2 + 1)*Co + c)*H*W + h*W + w);
    V u = {{p.v[0], q.v[0], p.v[1], q.v[1]}}, v = {{p.v[2], q.v[2], p.v[3], q.v[3]}};
    float* o = y + (c*2*H + 2*h + a)*2*W + 2*w;
    *(V*)o = u;
    *(V*)(o + 4) = v;
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
