"""Planted bugs: each is found, named and placed; its good twin gives no finding."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from emulator_kernels import (
    REDUCE,
    ROTATE,
    SCALE,
    TILE,
    VECTOR,
    I,
    numbers,
    only,
    out,
    replaced,
    run,
    transpose,
)
from opgen.testing.cuda_on_cpu import FindingKind, KernelError, RawKernel, virtual

ORDERS = pytest.mark.parametrize("order", ["forward", "reverse", "random"])


def line_of(source: str, text: str) -> int:
    """The only line that holds a text."""
    (line,) = [at for at, line in enumerate(source.split("\n"), 1) if text in line]
    return line


# ---------------------------------------------------------------------------- global memory
@ORDERS
def test_good_kernel(order: str) -> None:
    x, y = numbers(1000), out(1000)
    report = run(SCALE, (4,), (256,), (x, y, I(1000)), outs=("y",), order=order)
    report.raise_if_errors()
    assert np.array_equal(y, 2 * x)
    assert report.accesses == 2000


def test_out_of_bounds_load() -> None:
    source = replaced(SCALE, "if (i < n) ", "")
    x, y = numbers(1000), out(1000)
    report = run(source, (4,), (256,), (x, y, I(1000)), outs=("y",))
    assert only(report) is FindingKind.OUT_OF_BOUNDS
    (finding,) = report.findings
    assert finding.place.line == 3
    assert finding.thread == (232, 0, 0)
    assert finding.block == (3, 0, 0)
    assert finding.access is not None
    assert (finding.access.array, finding.access.is_write, finding.access.offset) == (
        "x",
        False,
        4000,
    )
    with pytest.raises(KernelError) as caught:
        report.raise_if_errors()
    assert str(caught.value) == (
        "k:\n"
        "kernel.cu:3: out-of-bounds access: outside every array of the launch\n"
        "      y[i] = 2.f * x[i];\n"
        "  4-byte load from x at element 1000; it has elements 0 to 999\n"
        "  by thread (232,0,0) of block (3,0,0)\n"
        "  to do: test the index against the size before this access, or launch fewer threads"
    )


def test_out_of_bounds_store() -> None:
    source = replaced(SCALE, "y[i] = 2.f * x[i]", "y[i - 1] = 2.f * x[i]")
    x, y = numbers(1000), out(1000)
    report = run(source, (4,), (256,), (x, y, I(1000)))
    (finding,) = report.findings
    assert finding.kind is FindingKind.OUT_OF_BOUNDS
    assert finding.access is not None
    assert (finding.access.array, finding.access.is_write, finding.access.offset) == ("y", True, -4)


def test_a_vector_across_the_end() -> None:
    x, y = numbers(4, 64), out(4, 64)
    run(VECTOR, (1, 4), (32,), (x, y, I(64), I(64)), outs=("y",)).raise_if_errors()
    assert np.array_equal(x, y)
    report = run(VECTOR, (1, 1), (32,), (x[0, :62], y[0, :62], I(62), I(64)))
    assert only(report) is FindingKind.OUT_OF_BOUNDS


@pytest.mark.parametrize("plant", ["row stride", "view"])
def test_misaligned(plant: str) -> None:
    y = out(4, 64)
    x = numbers(4, 65) if plant == "row stride" else numbers(4 * 64 + 1)[1:]
    stride = 65 if plant == "row stride" else 64
    report = run(VECTOR, (1, 4), (32,), (x, y, I(64), I(stride)))
    assert only(report) is FindingKind.MISALIGNED
    (finding,) = report.findings
    assert finding.access is not None
    assert (finding.access.bytes, finding.place.line) == (16, 6)


def test_unwritten_output() -> None:
    source = replaced(SCALE, "i < n", "i < n - 1")
    x, y = numbers(1000), out(1000)
    report = run(source, (4,), (256,), (x, y, I(1000)), outs=("y",))
    assert only(report) is FindingKind.UNWRITTEN
    assert "1 of 1000 elements of y were never written, the first at 999" in str(report.findings[0])
    assert np.isnan(y[-1])  # poisoned


@ORDERS
def test_two_writers(order: str) -> None:
    source = replaced(SCALE, "y[i]", "y[i / 2 * 2]")
    report = run(source, (4,), (256,), (numbers(1000), out(1000), I(1000)), order=order)
    assert only(report) is FindingKind.GLOBAL_RACE
    (finding,) = report.findings
    assert finding.other_thread is not None
    assert abs(finding.thread[0] - finding.other_thread[0]) == 1


@ORDERS
def test_read_of_another_blocks_write(order: str) -> None:
    source = r"""extern "C" __global__ void k(float* y) {
        int i = blockIdx.x * 64 + threadIdx.x;
        y[i] = i;
        __syncthreads();
        y[i] += y[i ^ 1];
    }"""
    report = run(source, (2,), (64,), (out(128),), order=order)
    assert only(report) is FindingKind.GLOBAL_RACE  # both lanes of a pair read and write
    good = replaced(source, "y[i] += y[i ^ 1]", "float v = y[i ^ 1]; __syncthreads(); y[i] = v")
    y = out(128)
    run(good, (2,), (64,), (y,), order=order).raise_if_errors()
    assert np.array_equal(y, np.arange(128) ^ 1)
    across = replaced(good, "y[i ^ 1]", "y[i ^ 64]")
    assert only(run(across, (2,), (64,), (out(128),), order=order)) is FindingKind.GLOBAL_RACE


def test_a_reader_behind_another_reader() -> None:
    """A thread reads and writes an element that another thread has read before it."""
    source = r"""extern "C" __global__ void k(float* y) {
        int t = threadIdx.x;
        if (t < 2) { float v = y[0]; if (t == 1) y[0] = v + 1; else y[1] = v; }
    }"""
    assert only(run(source, (1,), (2,), (out(2),))) is FindingKind.GLOBAL_RACE
    good = replaced(source, "if (t == 1)", "__syncwarp(); if (t == 1)")
    run(good, (1,), (2,), (out(2),)).raise_if_errors()


def test_atomics() -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* y, int n) {
        int i = blockIdx.x * 256 + threadIdx.x;
        if (i < n) atomicAdd(y, x[i]);
    }"""
    x, y = numbers(1000), out(1)
    run(source, (4,), (256,), (x, y, I(1000))).raise_if_errors()
    assert y[0] == pytest.approx(x.astype(np.float64).sum(), rel=1e-5)
    bad = replaced(source, "atomicAdd(y, x[i])", "y[0] += x[i]")
    assert only(run(bad, (4,), (256,), (x, out(1), I(1000)))) is FindingKind.GLOBAL_RACE
    mixed = replaced(source, "atomicAdd(y, x[i])", "if (i) atomicAdd(y, x[i]); else y[0] = x[i]")
    assert only(run(mixed, (4,), (256,), (x, out(1), I(1000)))) is FindingKind.GLOBAL_RACE


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("atomicMax(y, t)", 63), ("atomicMin(y + 1, -t)", -63), ("atomicSub(y, 1)", -64),
        ("atomicOr(y, t)", 63), ("atomicXor(y, 1)", 0), ("atomicCAS(y, t, t + 1)", 64),
        ("atomicExch(y, 5)", 5), ("atomicInc((unsigned*)y, 6)", 1),
    ],
)  # fmt: skip
def test_every_atomic(statement: str, wanted: int) -> None:
    source = f'extern "C" __global__ void k(int* y) {{ int t = threadIdx.x; {statement}; }}'
    y = out(2, dtype=np.int32)
    run(source, (1,), (64,), (y,)).raise_if_errors()
    assert y[1 if "y + 1" in statement else 0] == wanted


def test_write_through_const() -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        ((float*)x)[0] = 1;
        y[0] = 2;
    }"""
    assert only(run(source, (1,), (1,), (numbers(4), out(1)))) is FindingKind.CONST_WRITE
    good = replaced(source, "((float*)x)[0]", "y[0]")
    run(good, (1,), (1,), (numbers(4), out(1))).raise_if_errors()


def test_elements_written_by_launches_before() -> None:
    x, y, z = numbers(100), out(100), out(100)
    written = np.zeros(100, bool)
    half = replaced(SCALE, "i < n", "i >= 50 && i < n")
    run(SCALE, (1,), (256,), (x, y, I(50)), written={"y": written}).raise_if_errors()
    assert written.tolist() == [True] * 50 + [False] * 50
    report = run(SCALE, (1,), (256,), (y, z, I(100)), written={"x": written})
    assert only(report) is FindingKind.UNINITIALISED_READ
    run(half, (1,), (256,), (x, y, I(100)), written={"y": written}).raise_if_errors()
    run(SCALE, (1,), (256,), (y, z, I(100)), written={"x": written}).raise_if_errors()
    assert np.array_equal(z, 4 * x)


# ---------------------------------------------------------------------------- shared memory
@ORDERS
def test_tile(order: str) -> None:
    report, right = transpose(TILE, order=order)
    report.raise_if_errors()
    assert right
    assert report.static_shared == 32 * 33 * 4


@ORDERS
def test_missing_barrier(order: str) -> None:
    report, _ = transpose(replaced(TILE, "__syncthreads();", ""), order=order)
    assert FindingKind.SHARED_RACE in report.kinds
    assert report.kinds <= {FindingKind.SHARED_RACE, FindingKind.UNINITIALISED_READ}


def test_a_race_that_gives_right_numbers() -> None:
    """Threads that run in order read what was written: found by the barriers that are missing."""
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float s[64];
        int t = threadIdx.x;
        s[t] = x[t];
        y[t] = s[t & ~1];
    }"""
    x, y = numbers(64), out(64)
    report = run(source, (1,), (64,), (x, y))
    assert np.array_equal(y, x[np.arange(64) & ~1])
    assert only(report) is FindingKind.SHARED_RACE
    assert report.findings[0].place.line == 5
    assert report.findings[0].other_place is not None
    assert report.findings[0].other_place.line == 4


@ORDERS
def test_write_after_read(order: str) -> None:
    x, y = numbers(128), out(128)
    run(ROTATE, (1,), (128,), (x, y), order=order).raise_if_errors()
    assert np.array_equal(y, np.roll(x, -3))
    bad = replaced(ROTATE, "__syncthreads();  // before the next write", "")
    report = run(bad, (1,), (128,), (x, y), order=order)
    assert FindingKind.SHARED_RACE in report.kinds


def test_uninitialised_shared_memory() -> None:
    report, _ = transpose(replaced(TILE, "if (r+j < n && c < m) t", "if (r+j < n-1 && c < m) t"))
    assert only(report) is FindingKind.UNINITIALISED_READ
    assert report.findings[0].place.line == line_of(TILE, "= t[threadIdx.x]")


def test_static_shared_overrun() -> None:
    report, _ = transpose(replaced(TILE, "t[32][33]", "t[32][31]"))
    assert FindingKind.UNDEFINED_BEHAVIOUR in report.kinds


def test_dynamic_shared_memory_too_small() -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        extern __shared__ float s[];
        int t = threadIdx.x;
        s[t] = x[t];
        __syncthreads();
        y[t] = s[t ^ 1];
    }"""
    x, y = numbers(64), out(64)
    run(source, (1,), (64,), (x, y), shared_mem=256).raise_if_errors()
    assert np.array_equal(y, x[np.arange(64) ^ 1])
    report = run(source, (1,), (64,), (x, y), shared_mem=252)
    assert only(report) is FindingKind.OUT_OF_BOUNDS
    assert "dynamic shared memory has 252 bytes" in str(report.findings[0])


def test_misaligned_shared_memory() -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        extern __shared__ float s[];
        int t = threadIdx.x;
        *(float4*)(s + 4*t) = *(const float4*)(x + 4*t);
        __syncthreads();
        *(float4*)(y + 4*t) = *(float4*)(s + 4*(31 - t));
    }"""
    x, y = numbers(128), out(128)
    run(source, (1,), (32,), (x, y), shared_mem=1024).raise_if_errors()
    bad = replaced(source, "(float4*)(s + 4*t)", "(float4*)(s + 4*t + 1)")
    assert only(run(bad, (1,), (32,), (x, y), shared_mem=1024)) is FindingKind.MISALIGNED


@ORDERS
def test_missing_syncwarp(order: str) -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float s[32];
        int t = threadIdx.x;
        s[t] = x[t];
        __syncwarp();
        y[t] = s[t ^ 1];
    }"""
    x, y = numbers(32), out(32)
    run(source, (1,), (32,), (x, y), order=order).raise_if_errors()
    report = run(replaced(source, "__syncwarp();", ""), (1,), (32,), (x, y), order=order)
    assert FindingKind.SHARED_RACE in report.kinds
    # Of another warp: a barrier of the warp is not enough.
    wide = source.replace("s[32]", "s[64]").replace("t ^ 1", "t ^ 32")
    report = run(wide, (1,), (64,), (numbers(64), out(64)), order=order)
    assert FindingKind.SHARED_RACE in report.kinds


# ---------------------------------------------------------------------------- barriers, warps
def test_early_return() -> None:
    loop = "for (int j = 0; j < 32; j += 8)\n        if (r+j < n"
    report, _ = transpose(replaced(TILE, loop, f"if (c >= m || r >= n) return;\n    {loop}"))
    assert only(report) is FindingKind.DIVERGENT_BARRIER
    assert "returned before this barrier" in str(report.findings[0])


def test_early_return_may_be_allowed() -> None:
    source = r"""extern "C" __global__ void k(float* y, int n) {
        int t = threadIdx.x;
        if (t >= n) return;
        y[t] = 1;
        __syncthreads();
        y[t] += y[t ^ 1] * 0;
    }"""
    source = replaced(source, "y[t] += y[t ^ 1] * 0", "y[t] += 1")
    y = out(64)
    assert only(run(source, (1,), (64,), (y, I(40)))) is FindingKind.DIVERGENT_BARRIER
    run(source, (1,), (64,), (y, I(40)), strict_exit=False).raise_if_errors()
    run(source, (1,), (64,), (y, I(64))).raise_if_errors()


def test_divergent_barrier() -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float s[64];
        int t = threadIdx.x;
        if (t < 32) {
            s[t] = x[t];
            __syncthreads();  // first
            y[t] = s[t ^ 1];
        } else {
            s[t] = x[t] + 1;
            __syncthreads();  // second
            y[t] = s[t ^ 1];
        }
    }"""
    report = run(source, (1,), (64,), (numbers(64), out(64)))
    assert only(report) is FindingKind.DIVERGENT_BARRIER
    (finding,) = report.findings
    assert finding.other_place is not None
    assert {finding.place.line, finding.other_place.line} == {
        line_of(source, "first"),
        line_of(source, "second"),
    }


def test_barriers_that_vote() -> None:
    source = r"""extern "C" __global__ void k(int* y) {
        int t = threadIdx.x;
        int some = __syncthreads_count(t < 5), all = __syncthreads_and(t < 64);
        int any = __syncthreads_or(t == 7), none = __syncthreads_or(t > 99);
        y[t] = some * 1000 + all * 100 + any * 10 + none;
    }"""
    y = out(64, dtype=np.int32)
    run(source, (1,), (64,), (y,)).raise_if_errors()
    assert set(y.tolist()) == {5110}


@ORDERS
def test_shuffles(order: str) -> None:
    for n in (200, 256, 1):
        x, y = numbers(n), out(1)
        run(REDUCE, (1,), (256,), (x, y, I(n)), outs=("y",), order=order).raise_if_errors()
        assert y[0] == pytest.approx(x.astype(np.float64).sum(), rel=1e-5)


def test_warp_functions_agree_with_numpy() -> None:
    source = r"""extern "C" __global__ void k(const int* x, int* y) {
        int t = threadIdx.x;
        const unsigned m = 0xffffffffu;
        y[t] = __shfl_sync(m, x[t], 5, 8);
        y[32 + t] = __shfl_up_sync(m, x[t], 3);
        y[64 + t] = __shfl_down_sync(m, x[t], 3, 16);
        y[96 + t] = __shfl_xor_sync(m, x[t], 9);
        y[128 + t] = (int)__ballot_sync(m, x[t] & 1);
        y[160 + t] = __reduce_add_sync(m, x[t]);
        y[192 + t] = __any_sync(m, x[t] > 1000) * 10 + __all_sync(m, x[t] < 1000);
    }"""
    x = np.random.default_rng(0).integers(0, 1000, 32).astype(np.int32)
    y = out(7, 32, dtype=np.int32)
    run(source, (1,), (32,), (x, y)).raise_if_errors()
    t = np.arange(32)
    assert np.array_equal(y[0], x[t // 8 * 8 + 5])
    assert np.array_equal(y[1], np.where(t < 3, x, np.roll(x, 3)))
    assert np.array_equal(y[2], np.where(t % 16 > 12, x, np.roll(x, -3)))
    assert np.array_equal(y[3], x[t ^ 9])
    assert set(y[4].astype(np.uint32).tolist()) == {sum(int(v & 1) << i for i, v in enumerate(x))}
    assert set(y[5].tolist()) == {int(x.sum())}
    assert set(y[6].tolist()) == {1}


def test_shuffle_after_some_lanes_returned() -> None:
    bad = replaced(REDUCE, "float v = t < n", "if (t >= n) return;\n    float v = t < n")
    report = run(bad, (1,), (256,), (numbers(200), out(1), I(200)))
    assert only(report) is FindingKind.DEADLOCK
    assert "have returned" in str(report.findings[0])


def test_shuffle_in_a_branch() -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        int t = threadIdx.x;
        float v = x[t];
        if (t < 16) v += __shfl_xor_sync(0xffffffffu, v, 1);
        __syncthreads();
        y[t] = v;
    }"""
    x, y = numbers(32), out(32)
    assert only(run(source, (1,), (32,), (x, y))) is FindingKind.DEADLOCK
    good = replaced(source, "0xffffffffu", "0xffffu")
    run(good, (1,), (32,), (x, y)).raise_if_errors()
    outside = replaced(source, "0xffffffffu, v, 1", "0xffffu, v, 16")
    assert only(run(outside, (1,), (32,), (x, y))) is FindingKind.WARP_OPERATION
    absent = replaced(source, "0xffffffffu", "0xffff0000u")
    assert only(run(absent, (1,), (32,), (x, y))) is FindingKind.WARP_OPERATION


# ---------------------------------------------------------------------------- cp.async
COPY = r"""extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float4 s[64];
    int t = threadIdx.x;
    emu_cp_async(&s[t], x + 4*t, 16, 16);
    emu_cp_commit();
    emu_cp_wait(0);
    __syncthreads();
    *reinterpret_cast<float4*>(y + 4*t) = s[t ^ 1];
}"""


def test_asynchronous_copies() -> None:
    x, y = numbers(256), out(256)
    run(COPY, (1,), (64,), (x, y), outs=("y",)).raise_if_errors()
    assert np.array_equal(y.reshape(-1, 4), x.reshape(-1, 4)[np.arange(64) ^ 1])
    report = run(replaced(COPY, "emu_cp_wait(0);", ""), (1,), (64,), (x, y))
    assert report.kinds == {FindingKind.SHARED_RACE, FindingKind.UNFINISHED_COPY}
    assert "an asynchronous copy to it is under way" in str(report.findings[0])
    report = run(replaced(COPY, "emu_cp_wait(0);", "emu_cp_wait(1);"), (1,), (64,), (x, y))
    assert FindingKind.SHARED_RACE in report.kinds
    report = run(replaced(COPY, "__syncthreads();", ""), (1,), (64,), (x, y))
    assert FindingKind.SHARED_RACE in report.kinds
    twice = "emu_cp_async(&s[t], x + 4*t, 16, 16);"
    report = run(replaced(COPY, twice, twice * 2), (1,), (64,), (x, y))
    assert only(report) is FindingKind.SHARED_RACE
    report = run(replaced(COPY, "x + 4*t", "x + 4*t + 1"), (1,), (64,), (x, y))
    assert only(report) is FindingKind.MISALIGNED
    report = run(replaced(COPY, "x + 4*t", "x + 4*t + 4"), (1,), (64,), (x, y))
    assert only(report) is FindingKind.OUT_OF_BOUNDS


def test_an_asynchronous_copy_fills_with_zeros() -> None:
    source = replaced(COPY, "x + 4*t, 16, 16", "x + 4*t, 16, t == 63 ? 8 : 16")
    x, y = numbers(254), out(256)
    run(source, (1,), (64,), (x, y), outs=("y",)).raise_if_errors()
    assert y.reshape(-1, 4)[62].tolist() == [*x[252:254].tolist(), 0, 0]


# ---------------------------------------------------------------------------- integers
BIG = r"""extern "C" __global__ void k(
    const unsigned char* __restrict__ x, unsigned char* __restrict__ y, int h, int w) {
    int i = blockIdx.x*256 + threadIdx.x;
    for (int r = 0; r < h; r += h/4) {
        int o = r*w + i;
        if (i < w) y[o] = x[o];
    }
}"""


def test_offsets_past_32_bits() -> None:
    """4.6e9 elements of virtual memory, two blocks."""
    h, w = 70_000, 65_536
    x, y = virtual((h, w), np.uint8), virtual((h, w), np.uint8)
    options = {"blocks": [0, 255], "outs": ("y",)}
    report = run(BIG, (256,), (256,), (x, y, I(h), I(w)), **options)
    assert FindingKind.UNDEFINED_BEHAVIOUR in report.kinds
    assert "overflow" in str(report.findings[0])
    assert report.findings[0].place.line == line_of(BIG, "r*w + i")
    good = replaced(BIG, "int o = r*w + i", "long long o = (long long)r*w + i")
    run(good, (256,), (256,), (x, y, I(h), I(w)), **options).raise_if_errors()


@pytest.mark.parametrize("mode", ["check", "fast"])
def test_division_by_zero(mode: str) -> None:
    source = 'extern "C" __global__ void k(int* y, int n) { y[0] = 7 / n; }'
    y = out(1, dtype=np.int32)
    kernel = RawKernel(source, "k", mode=mode)  # type: ignore[arg-type]
    kernel((1,), (1,), (y, I(2))).raise_if_errors()
    assert y[0] == 3
    report = kernel((1,), (1,), (y, I(0)))
    assert only(report) in (FindingKind.UNDEFINED_BEHAVIOUR, FindingKind.FAULT)
    assert "division by zero" in str(report.findings[0])
    assert report.aborted


def test_shift_by_all_bits() -> None:
    source = 'extern "C" __global__ void k(int* y, int n) { y[0] = (-1) << n; }'
    y = out(1, dtype=np.int32)
    run(source, (1,), (1,), (y, I(4))).raise_if_errors()
    assert y[0] == -16
    assert only(run(source, (1,), (1,), (y, I(32)))) is FindingKind.UNDEFINED_BEHAVIOUR


# ---------------------------------------------------------------------------- hangs and crashes
LOOPS = {
    "registers": "volatile int z = n; while (z) {} y[0] = 1;",
    "memory": "while (((volatile float*)y)[1] == 0.f) {} y[0] = n;",
    "warp": "while (__ballot_sync(0x3u, n)) {} y[0] = 1;",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["check", "fast"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_does_not_end(mode: str, loop: str) -> None:
    source = f'extern "C" __global__ void k(float* y, int n) {{ {LOOPS[loop]} }}'
    kernel = RawKernel(source, "k", mode=mode)  # type: ignore[arg-type]
    start = time.process_time()
    report = kernel((1,), (2,), (out(4), I(1)), timeout=0.2)
    assert time.process_time() - start < 2
    assert FindingKind.TIMEOUT in report.kinds
    assert report.aborted


def test_a_wait_for_a_block_that_comes_later() -> None:
    source = r"""extern "C" __global__ void k(int* flag) {
        if (blockIdx.x == 0) while (atomicAdd(flag, 0) == 0) {}
        else atomicExch(flag, 1);
    }"""
    report = run(source, (2,), (1,), (out(1, dtype=np.int32),), timeout=0.2)
    assert only(report) is FindingKind.TIMEOUT
    run(source, (2,), (1,), (out(1, dtype=np.int32),), order="reverse").raise_if_errors()


def test_a_crash_is_a_finding() -> None:
    source = 'extern "C" __global__ void k(float* y, long long n) { y[n * threadIdx.x] = 1; }'
    kernel = RawKernel(source, "k", mode="fast")
    report = kernel((1,), (2,), (out(4), 1 << 45))
    assert only(report) is FindingKind.FAULT
    kernel((1,), (2,), (out(4), 1)).raise_if_errors()


def test_local_memory() -> None:
    source = r"""__device__ int deep(int n) {
        volatile int a[1000];
        a[n % 1000] = n;
        return n ? deep(n - 1) + a[n % 1000] : 0;
    }
    extern "C" __global__ void k(int* y, int n) { y[0] = deep(n); }"""
    y = out(1, dtype=np.int32)
    run(source, (1,), (1,), (y, I(10))).raise_if_errors()
    assert y[0] == 55
    assert only(run(source, (1,), (1,), (y, I(1000)))) is FindingKind.STACK_OVERFLOW


def test_trap_and_assert() -> None:
    source = r"""#include <assert.h>
    extern "C" __global__ void k(int n) { assert(n > 0); if (n == 2) __trap(); }"""
    run(source, (1,), (1,), (I(1),)).raise_if_errors()
    for n, said in ((0, "assert(n > 0)"), (2, "__trap()")):
        report = run(source, (1,), (1,), (I(n),))
        assert only(report) is FindingKind.TRAP
        assert said in str(report.findings[0])


def test_a_launch_after_a_failed_one() -> None:
    """Nothing of an abandoned launch reaches the next."""
    x, y = numbers(128), out(128)
    run(replaced(ROTATE, "v = s[(t + 1) & 127];", "if (t > 5) __trap();"), (1,), (128,), (x, y))
    run(ROTATE, (1,), (128,), (x, y)).raise_if_errors()
    assert np.array_equal(y, np.roll(x, -3))
    assert not math.isnan(float(y.sum()))
