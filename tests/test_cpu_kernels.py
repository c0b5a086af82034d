"""CPU kernels: every element type, long rows, threads, forks, large tensors."""

from __future__ import annotations

import ctypes
import textwrap

import pytest
import torch

import forks
import opgen
from opgen.runtime import build, prelude, unrounded_source

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]

SUMS = opgen.compile(
    """
op row_sum(x[N,W]) -> y[N]
  y[n] = sum(w) x[n,w]

op row_product(a[N,W], b[N,W]) -> y[N]
  y[n] = sum(w) (a[n,w] - b[n,w]) * a[n,w]

op window_sum(x[N,W]) -> y[N,W]
  y[n,w] = sum(k in 3) x[n, w + k - 1 ?0]

op doubled(x[N,W]) -> y[N,(W 2)]
  y[n,(w i)] = x[n,w]

op largest(x[N,W]) -> y[N,W], at: i64[N,W]
  y[n,w] = max(k in 3) x[n, w + k - 1 ?0]
  at[n,w] = argmax(k in 3; k) x[n, w + k - 1 ?0]
""",
    "sums.op",
)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small integers: sums of them are exact in every type."""
    torch.manual_seed(sum(shape))
    return torch.randint(0, 4, shape).to(dtype)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS], ids=str)
@pytest.mark.parametrize("width", [0, 1, 7, 15, 16, 33, 64, 1025])
def test_sums_of_every_type_and_width(dtype: torch.dtype, width: int) -> None:
    """Whole vectors of terms, what is left of them, and stretches of a long row."""
    wide, narrow = numbers(torch.int64, 3, width), numbers(dtype, 3, width)
    other = numbers(torch.int64, 4, width)[:3]
    sums = wide.sum(1).to(dtype)
    assert torch.equal(SUMS.row_sum(narrow), sums)
    products = ((wide - other) * wide).sum(1).to(dtype)
    if dtype is not torch.bfloat16 or width < 64:  # sums beyond 256 are rounded in bfloat16
        assert torch.equal(SUMS.row_product(narrow, other.to(dtype)), products)
    padded = torch.nn.functional.pad(wide, (1, 1))
    windows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    assert torch.equal(SUMS.window_sum(narrow), windows.to(dtype))
    assert torch.equal(SUMS.doubled(narrow), narrow.repeat_interleave(2, 1))


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_strided_tensors_take_the_same_path_to_the_same_sums(dtype: torch.dtype) -> None:
    wide = numbers(torch.int64, 5, 40)
    for view in (
        wide.to(dtype).t().contiguous().t(),
        wide.repeat_interleave(2, 1).to(dtype)[:, ::2],
    ):
        assert view.stride(1) != 1
        assert torch.equal(SUMS.row_sum(view), wide.sum(1).to(dtype))
    expanded = numbers(dtype, 5, 1).expand(5, 40)
    assert torch.equal(SUMS.row_sum(expanded), (expanded[:, 0].long() * 40).to(dtype))


def test_argmax_along_a_row() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 2.0, float("nan"), 0.0]])
    y, at = SUMS.largest(x)
    wanted = torch.tensor([[3.0, 3.0, 2.0, float("nan"), float("nan"), float("nan")]])
    torch.testing.assert_close(y, wanted, equal_nan=True)
    assert at.tolist() == [[1, 0, 1, 2, 1, 0]]


# ---------------------------------------------------------------------------- threads
def test_threads_are_those_of_torch() -> None:
    """The weak symbols are found, so that a kernel is not silently serial."""
    source = """
int64_t threads(void) { return GOMP_parallel && omp_get_max_threads ? omp_get_max_threads() : 0; }
"""
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + source)
    library.threads.restype = ctypes.c_int64
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert library.threads() == count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    x = torch.randn(64, 700)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = SUMS.row_sum(x), SUMS.window_sum(x)
        torch.set_num_threads(threads)
        got = SUMS.row_sum(x), SUMS.window_sum(x)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, got, wanted))


COUNTS = """
static void count(int64_t begin, int64_t end, const struct call *call)
{
    int32_t *const visits = call->tensors[0];
    for (int64_t point = begin; point < end; point++)
        __atomic_fetch_add(&visits[point], 1, __ATOMIC_RELAXED);
}

void visit(void *visits, int64_t points, int64_t work)
{
    const struct call call = {&visits, 0, 0, 0, 0};
    in_parallel(count, &call, points, work);
}
"""


@pytest.mark.parametrize("come", ["all", "one"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 65])
def test_every_point_is_taken_once(threads: int, come: str) -> None:
    """Whatever the number of points, of threads, and of those among them that come at all."""
    source = prelude.C + prelude.bindings("f32", "f32", {}) + COUNTS
    if come == "one":
        calls = "GOMP_parallel(take_chunks, &all, threads, 0)"
        assert source.count(calls) == 1
        source = source.replace(calls, "take_chunks(&all)")
    library = build.library(source)
    library.visit.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for points in (0, 1, 2, 3, 5, 63, 64, 65, 127, 1000, 100_003):
            for work in (1, 1000, 100_000):
                visits = torch.zeros(points + 1, dtype=torch.int32)
                library.visit(visits.data_ptr(), points, work)
                assert visits[:points].eq(1).all() and visits[points] == 0, (points, work)
    finally:
        torch.set_num_threads(before)


MEETS = """
#include <time.h>
static void meet(int64_t begin, int64_t end, const struct call *call)
{
    int32_t *const counts = call->tensors[0];
    const time_t start = time(NULL);
    for (int64_t point = begin; point < end; point++) {
        __atomic_fetch_add(&counts[0], 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&counts[0], __ATOMIC_SEQ_CST) < 2)
            if (time(NULL) > start + 20) return;
        __atomic_fetch_add(&counts[1], 1, __ATOMIC_SEQ_CST);
    }
}

void run_meetings(void *counts, int64_t work)
{
    const struct call call = {&counts, 0, 0, 0, 0};
    in_parallel(meet, &call, 2, work);
}
"""


def test_two_large_points_run_at_once() -> None:
    """Each waits until the other one has begun, which it never does on the same thread."""
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + MEETS)
    library.run_meetings.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        counts = torch.zeros(2, dtype=torch.int32)
        library.run_meetings(counts.data_ptr(), 1_000_000)
    finally:
        torch.set_num_threads(before)
    assert counts.tolist() == [2, 2]


def test_a_forked_child_does_not_hang() -> None:
    """Its parent has used the threads, which the child does not have."""
    assert _passes_in_child("f")


def test_a_kernel_that_a_forked_child_is_the_first_to_call_does_not_hang() -> None:
    """Its library is loaded in the child, after the parent has used the threads."""
    assert _passes_in_child("g")


def _passes_in_child(name: str) -> bool:
    """Whether an op gives what it should in a forked child whose parent has called `f`."""
    script = """
    import os, signal, sys, torch, opgen
    ops = opgen.compile(
        "op f(x[N,W]) -> y[N]\\n  y[n] = sum(w) x[n,w]\\n"
        "op g(x[N,W]) -> y[N]\\n  y[n] = 500*max(w) x[n,w]"
    )
    x, op = torch.ones(500, 500), getattr(ops, sys.argv[1])
    torch.set_num_threads(2)
    assert ops.f(x).eq(500).all()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if op(x).eq(500).all() else 1)
    _, status = os.waitpid(child, 0)
    assert op(x).eq(500).all()
    sys.exit(status != 0)
    """
    return forks.run(textwrap.dedent(script), name).returncode == 0


# ---------------------------------------------------------------------------- size
def test_offsets_beyond_32_bits() -> None:
    """Five gigabytes of address space, of which a few pages are touched."""
    ops = opgen.compile(FAR)
    x = torch.empty(5 * 2**30, dtype=torch.uint8)
    places = torch.arange(5) * 2**30
    x[places] = torch.arange(1, 6, dtype=torch.uint8)
    assert ops.far(x, step=2**30).tolist() == [1, 2, 3, 4, 5]
    wide = x.view(5, 2**30)
    assert ops.corner(wide[:, :2]).tolist() == [1, 2, 3, 4, 5]


FAR = """
op far(x[N]; step = 1) -> y[M]
  where step >= 1
  let M = (N - 1)//step + 1
  y[m] = x[m*step]

op corner(x[N,W]) -> y[N]
  y[n] = sum(k in 1) x[n, k ?0]
"""


CONVERSIONS = """
void widen(const T *from, float *to, int64_t count)
{
    for (int64_t at = 0; at < count; at += LANES) {
        const wide_lanes found = lanes_from_T(from + at);
        for (int lane = 0; lane < LANES; lane++) to[at + lane] = found[lane];
    }
}
void narrow(const float *from, T *to, int64_t count)
{
    for (int64_t at = 0; at < count; at += LANES) {
        wide_lanes values;
        for (int lane = 0; lane < LANES; lane++) values[lane] = from[at + lane];
        lanes_to_T(to + at, values);
    }
}
"""


@pytest.mark.parametrize("real", ["f32", "f64"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_vectors_of_16_bit_numbers_are_converted_as_in_pytorch(
    dtype: torch.dtype, real: str
) -> None:
    """All of them, and float32 numbers on both sides of, and between, any two of them."""
    shared = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    library = build.library(prelude.C + prelude.bindings(shared, real, {}) + CONVERSIONS)
    if not hasattr(library, "widen"):
        pytest.fail("the conversions were not compiled")
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = torch.empty(2**16)
    library.widen(*map(ctypes.c_void_p, (every.data_ptr(), wide.data_ptr())), ctypes.c_int64(2**16))
    torch.testing.assert_close(wide, every.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(wide.signbit(), every.float().signbit())
    near = [wide]
    for step in (1, -1, 2**11, 2**12 - 1, 2**12, 2**12 + 1, 2**15 - 1, 2**15, 2**15 + 1):
        near.append((wide.view(torch.int32) + step).view(torch.float32))
    values = torch.cat([*near, -torch.cat(near)])
    found = torch.empty_like(values, dtype=dtype)
    count = ctypes.c_int64(len(values))
    library.narrow(*map(ctypes.c_void_p, (values.data_ptr(), found.data_ptr())), count)
    torch.testing.assert_close(found, values.to(dtype), rtol=0, atol=0, equal_nan=True)
    other = torch.nextafter(found, torch.full_like(found, torch.inf))
    assert not torch.equal(other, values.to(dtype))


ALONE = """
void narrow_alone(const float *from, T *to, int64_t count)
{
    for (int64_t at = 0; at < count; at += LANES)
        lanes_to_T_alone(to + at, *(const wide_lanes *)(from + at));
}
void round_alone(const float *from, float *to, int64_t count)
{
    for (int64_t at = 0; at < count; at += LANES)
        lanes_to_unrounded_alone(to + at, lanes_from_unrounded_alone(from + at));
}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("flags", ["-O1", "-O1 -mno-avx512vnni", "-O1 -mno-avx512f"])
def test_numbers_are_rounded_to_bfloat16_as_in_pytorch(
    flags: str, flushes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All upper halves of words with lower halves that decide; with subnormals flushed, too."""
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    source = prelude.C + prelude.bindings("bf16", "f32", {}) + unrounded_source.unrounded() + ALONE
    library = build.library(source)
    upper = torch.arange(2**16, dtype=torch.int64)[:, None] << 16
    lower = torch.tensor([0, 1, 0x33, 0x3FFF, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xCAFE, 0xFFFF])
    bits = upper | lower
    values = (bits - (bits >> 31 << 32)).to(torch.int32).view(torch.float32).flatten()
    wanted = values.to(torch.bfloat16)
    narrow, rounded = torch.zeros_like(wanted), torch.zeros_like(values)
    count = ctypes.c_int64(len(values))
    torch.set_flush_denormal(flushes)
    try:
        for function, found in ((library.narrow_alone, narrow), (library.round_alone, rounded)):
            function(*map(ctypes.c_void_p, (values.data_ptr(), found.data_ptr())), count)
    finally:
        torch.set_flush_denormal(False)
    is_nan = values.isnan()
    assert torch.equal(narrow.isnan(), is_nan)
    assert torch.equal(rounded.isnan(), is_nan)
    own, other = narrow.view(torch.int16), wanted.view(torch.int16)
    assert torch.equal(own[~is_nan], other[~is_nan])
    own, other = rounded.view(torch.int32), wanted.float().view(torch.int32)
    assert torch.equal(own[~is_nan], other[~is_nan])
