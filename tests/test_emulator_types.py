"""Numbers of 16 bits bit for bit against NumPy and PyTorch; products of matrices by a warp."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from emulator_kernels import I, numbers, only, out, replaced, run
from opgen.testing.cuda_on_cpu import FindingKind, Module, RawKernel, empty

CONVERSIONS = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void widen(const __half* h, const __nv_bfloat16* b, float* fh, float* fb) {
    int i = blockIdx.x * 256 + threadIdx.x;
    fh[i] = __half2float(h[i]);
    fb[i] = __bfloat162float(b[i]);
}
extern "C" __global__ void narrow(const float* f, __half* h, __nv_bfloat16* b, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) {
        h[i] = __float2half_rn(f[i]);
        b[i] = __float2bfloat16_rn(f[i]);
    }
}
extern "C" __global__ void narrow_doubles(const double* d, __half* h, __nv_bfloat16* b, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) {
        h[i] = __half(d[i]);
        b[i] = __nv_bfloat16(d[i]);
    }
}
"""


@pytest.fixture(scope="module")
def conversions() -> Module:
    return Module(CONVERSIONS, mode="fast")


def widened_by_numpy(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return bits.view(np.float16).astype(np.float32), (bits.astype(np.uint32) << 16).view(np.float32)


def test_every_number_of_16_bits(conversions: Module) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    half, brain = out(65536), out(65536)
    conversions.get_function("widen")(
        (256,), (256,), (bits.view(np.float16), bits, half, brain)
    ).raise_if_errors()
    for got, wanted in zip((half, brain), widened_by_numpy(bits), strict=True):
        assert np.array_equal(got, wanted, equal_nan=True)
        assert np.array_equal(np.signbit(got), np.signbit(wanted))


def test_rounding_of_floats(conversions: Module) -> None:
    """Random bits, all 16-bit numbers, and the ties between neighbours."""
    bits = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    floats = bits.view(np.float32).copy()
    half, brain = widened_by_numpy(np.arange(65536, dtype=np.uint16))
    with np.errstate(all="ignore"):
        for at, values in enumerate((half, brain)):
            floats[at * 131072 : at * 131072 + 65536] = values
            ties = (values + np.roll(values, 1)) / 2
            floats[at * 131072 + 65536 : (at + 1) * 131072] = ties
        wanted = floats.astype(np.float16)
    got, got_brain = empty(floats.shape, np.float16), empty(floats.shape, np.uint16)
    count = I(floats.size)
    conversions.get_function("narrow")(
        (-(-floats.size // 256),), (256,), (floats, got, got_brain, count)
    ).raise_if_errors()
    assert np.array_equal(got, wanted, equal_nan=True)
    torchs = torch.from_numpy(floats).bfloat16().view(torch.int16).numpy().view(np.uint16)
    numbers_ = ~np.isnan(floats)
    assert np.array_equal(got_brain[numbers_], torchs[numbers_])
    assert ((got_brain[~numbers_] & 0x7FFF) > 0x7F80).all()


def test_doubles_are_rounded_once(conversions: Module) -> None:
    """Just above a tie, where a float on the way would be the tie."""
    doubles = np.array([1 + 2**-11 + 2**-40, 1 + 2**-11 - 2**-40, 1 + 2**-9 + 2**-45, -1 - 2**-9])
    half, brain = empty(doubles.shape, np.float16), empty(doubles.shape, np.uint16)
    conversions.get_function("narrow_doubles")(
        (1,), (256,), (doubles, half, brain, I(4))
    ).raise_if_errors()
    assert half.tolist() == [1 + 2**-10, 1.0, 1 + 2**-9, -1 - 2**-9]
    wide = (brain.astype(np.uint32) << 16).view(np.float32)
    assert wide.tolist() == [1.0, 1.0, 1.0, -1.0]


ARITHMETIC = r"""
#include <cuda_fp16.h>
extern "C" __global__ void k(const half2* x, const half2* y, half2* z, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) z[i] = EXPRESSION;
}"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("expression", "exact"),
    [
        ("x[i] + y[i]", lambda x, y: x + y),
        ("__hmul2(x[i], y[i])", lambda x, y: x * y),
        ("__hfma2(x[i], y[i], x[i])", lambda x, y: x * y + x),
        ("__hmax2(x[i], y[i])", max),
        ("__floats2half2_rn(__low2float(x[i]), __high2float(x[i]))", lambda x, y: x),
        ("__halves2half2(__habs(x[i].x), __hneg(__hneg(__habs(x[i].y))))", lambda x, y: abs(x)),
    ],
)
def test_arithmetic_of_pairs(expression: str, exact: object) -> None:
    """Each operation is the exact result, rounded once to nearest."""
    generator = np.random.default_rng(1)
    x, y = (generator.normal(size=512).astype(np.float16) for _ in range(2))
    z = empty((512,), np.float16)
    source = ARITHMETIC.replace("EXPRESSION", expression)
    run(source, (1,), (256,), (x, y, z, I(256)), outs=("z",)).raise_if_errors()
    for got, a, b in zip(z, x, y, strict=True):
        assert callable(exact)
        wanted = exact(Fraction(float(a)), Fraction(float(b)))
        below, above = (
            np.nextafter(got, -np.inf, dtype=np.float16),
            np.nextafter(got, np.inf, dtype=np.float16),
        )
        error = abs(Fraction(float(got)) - wanted)
        assert error <= abs(Fraction(float(below)) - wanted)
        assert error <= abs(Fraction(float(above)) - wanted)


def test_wide_loads_of_halves() -> None:
    source = r"""#include <cuda_fp16.h>
    extern "C" __global__ void k(const half* __restrict__ x, half* __restrict__ y) {
        int t = threadIdx.x;
        uint4 v = *(const uint4*)(x + 8*t);
        half2* h = (half2*)&v;
        for (int i = 0; i < 4; i++) h[i] = __hmul2(h[i], __float2half2_rn(2.f));
        *(uint4*)(y + 8*t) = v;
    }"""
    x, y = numbers(256, dtype=np.float16), empty((256,), np.float16)
    report = run(source, (1,), (32,), (x, y), trace=True, outs=("y",)).raise_if_errors()
    assert np.array_equal(y, 2 * x)
    assert [(s.bytes, s.requests) for s in report.sites] == [(16, 1), (16, 1)]


def test_brain_floats_are_tensors() -> None:
    source = r"""#include <cuda_bf16.h>
    extern "C" __global__ void k(const __nv_bfloat16* x, __nv_bfloat16* y) {
        int t = threadIdx.x;
        y[t] = x[t] * x[t] + __float2bfloat16(1.f);
    }"""
    x = torch.rand(64).bfloat16()
    y = torch.empty_like(x)
    run(source, (1,), (64,), (x, y), outs=("y",)).raise_if_errors()
    assert torch.equal(y, x * x + 1)
    with pytest.raises(TypeError, match=r"const __nv_bfloat16 \*, got an array of torch.float16"):
        run(source, (1,), (64,), (x.half(), y))


# ---------------------------------------------------------------------------- matrices
WMMA = r"""#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(
    const half* __restrict__ A, const half* __restrict__ B, float* __restrict__ C, int K) {
    __shared__ half sa[16*24], sb[16*24];
    int t = threadIdx.x;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.f);
    for (int k = 0; k < K; k += 16) {
        for (int i = t; i < 256; i += 32) {
            sa[i/16*24 + (i & 15)] = A[(blockIdx.y*16 + i/16)*K + k + (i & 15)];
            sb[i/16*24 + (i & 15)] = B[(blockIdx.x*16 + i/16)*K + k + (i & 15)];
        }
        __syncthreads();
        wmma::load_matrix_sync(a, sa, 24);
        wmma::load_matrix_sync(b, sb, 24);
        wmma::mma_sync(c, a, b, c);
        __syncthreads();  // before the next tile
    }
    for (int i = 0; i < c.num_elements; i++) c.x[i] *= 2.f;
    float* tile = C + blockIdx.y*16*gridDim.x*16 + blockIdx.x*16;
    wmma::store_matrix_sync(tile, c, gridDim.x*16, wmma::mem_row_major);
}"""


def matrices(rows: int, columns: int, inner: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, the transpose of B, and their product in double precision."""
    a, b = numbers(rows, inner, dtype=np.float16), numbers(columns, inner, dtype=np.float16, seed=1)
    return a, b, a.astype(np.float64) @ b.astype(np.float64).T


def test_wmma() -> None:
    a, b, wanted = matrices(32, 48, 64)
    c = out(32, 48)
    run(WMMA, (3, 2), (32,), (a, b, c, I(64)), outs=("C",)).raise_if_errors()
    assert np.allclose(c, 2 * wanted, rtol=64 * np.finfo(np.float32).eps)
    short = replaced(WMMA, "mma_sync(c, a, b, c)", "mma_sync(c, a, b, b)")
    with pytest.raises(RuntimeError, match="mma_sync"):
        RawKernel(short, "k")


MMA = r"""#include <cuda_fp16.h>
#ifdef OPGEN_HOST_EMU
#include <mma.h>
__device__ void multiply(float* d, const unsigned* a, const unsigned* b) {
    emu_mma_16816<__half>(d, a, b, d);
}
#else
__device__ void multiply(float* d, const unsigned* a, const unsigned* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
// A by rows, 16 x K; B as its transpose, N x K.
extern "C" __global__ void k(const half* A, const half* B, float* C, int K, int N) {
    int lane = threadIdx.x, group = lane >> 2, member = lane & 3;
    float d[4] = {0, 0, 0, 0};
    for (int k = 0; k < K; k += 16) {
        const half* pa = A + group*K + k + 2*member;
        const half* pb = B + (blockIdx.x*8 + group)*K + k + 2*member;
        unsigned a[4] = {*(const unsigned*)pa, *(const unsigned*)(pa + 8*K),
                         *(const unsigned*)(pa + 8), *(const unsigned*)(pa + 8*K + 8)};
        unsigned b[2] = {*(const unsigned*)pb, *(const unsigned*)(pb + 8)};
        multiply(d, a, b);
    }
    *(float2*)(C + group*N + blockIdx.x*8 + 2*member) = make_float2(d[0], d[1]);
    *(float2*)(C + (group + 8)*N + blockIdx.x*8 + 2*member) = make_float2(d[2], d[3]);
}"""


def test_the_twin_of_mma_sync() -> None:
    a, b, wanted = matrices(16, 24, 64)
    c = out(16, 24)
    run(MMA, (3,), (32,), (a, b, c, I(64), I(24)), outs=("C",)).raise_if_errors()
    assert np.allclose(c, wanted, rtol=64 * np.finfo(np.float32).eps)
    swapped = replaced(MMA, "*(const unsigned*)(pa + 8*K),", "*(const unsigned*)(pa + 8),")
    run(swapped, (3,), (32,), (a, b, c, I(64), I(24))).raise_if_errors()
    assert not np.allclose(c, wanted, rtol=1e-2)


def test_mma_sync_needs_the_whole_warp() -> None:
    a, b, _ = matrices(16, 24, 64)
    bad = replaced(MMA, "multiply(d, a, b);\n    }", "if (lane < 31) multiply(d, a, b);\n    }")
    report = run(bad, (3,), (32,), (a, b, out(16, 24), I(64), I(24)))
    assert only(report) is FindingKind.DEADLOCK


LOADS = r"""#include <mma.h>
extern "C" __global__ void k(const unsigned short* x, unsigned* y) {
    __shared__ __align__(16) unsigned short s[32][8];
    int lane = threadIdx.x;
    for (int i = 0; i < 8; i++) s[lane][i] = x[8*lane + i];
    __syncwarp();
    unsigned r[4];
    emu_ldmatrix<4, TRANSPOSED>(r, s[lane]);
    for (int m = 0; m < 4; m++) y[4*lane + m] = r[m];
}"""


@pytest.mark.parametrize("transposed", [False, True])
def test_the_twin_of_ldmatrix(transposed: bool) -> None:
    """Lane l holds two elements of row l / 4 of every matrix, or of its column."""
    x, y = np.arange(256, dtype=np.uint16), out(32, 4, dtype=np.uint32)
    source = LOADS.replace("TRANSPOSED", str(transposed).lower())
    report = run(source, (1,), (32,), (x, y), outs=("y",), trace=True).raise_if_errors()
    matrices_ = x.reshape(4, 8, 8).swapaxes(1, 2) if transposed else x.reshape(4, 8, 8)
    pairs = matrices_.astype(np.uint32).reshape(4, 32, 2)
    assert np.array_equal(y.T, pairs[..., 0] | pairs[..., 1] << 16)
    assert {s.bytes for s in report.sites if s.is_shared and not s.is_write} == {16}
    early = replaced(source, "__syncwarp();", "")
    assert FindingKind.SHARED_RACE not in run(early, (1,), (32,), (x, y)).kinds  # own rows only
    other = replaced(early, "(r, s[lane])", "(r, s[lane ^ 1])")
    assert run(other, (1,), (32,), (x, y)).kinds >= {FindingKind.SHARED_RACE}


PIPELINE = r"""#include <cuda_pipeline.h>
extern "C" __global__ void k(const float* x, float* y, int tiles) {
    __shared__ float s[2][64];
    int t = threadIdx.x;
    float total = 0;
    __pipeline_memcpy_async(&s[0][t], x + t, 4);
    __pipeline_commit();
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles)
            __pipeline_memcpy_async(&s[(tile + 1) & 1][t], x + (tile + 1)*64 + t, 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        total += s[tile & 1][63 - t];
        __syncthreads();  // before the buffer is filled again
    }
    y[t] = total;
}"""


def test_a_pipeline_of_two_buffers() -> None:
    x, y = numbers(5, 64), out(64)
    run(PIPELINE, (1,), (64,), (x, y, I(5)), outs=("y",)).raise_if_errors()
    assert np.allclose(y, x.sum(0)[::-1], rtol=1e-6)
    early = replaced(PIPELINE, "wait_prior(1)", "wait_prior(2)")
    report = run(early, (1,), (64,), (x, y, I(5)))
    assert FindingKind.SHARED_RACE in report.kinds
    unordered = replaced(PIPELINE, "__syncthreads();  // before", "// before")
    report = run(unordered, (1,), (64,), (x, y, I(5)))
    assert FindingKind.SHARED_RACE in report.kinds
