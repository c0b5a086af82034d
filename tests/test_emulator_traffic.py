"""Memory traffic: counts by hand for known kernels, and assertions that bad kernels fail."""

from __future__ import annotations

import numpy as np
import pytest

from emulator_kernels import (
    DEPTH_TO_SPACE,
    DEPTH_TO_SPACE_VECTOR,
    SCALE,
    SHIFT_SUM,
    SHIFT_SUM_VECTOR,
    TILE,
    I,
    numbers,
    out,
    replaced,
    run,
    transpose,
)
from opgen.testing.cuda_on_cpu import Report, Site
from opgen.testing.cuda_on_cpu.traffic import bank_conflicts, movement, shortfalls, widths


def site(report: Report, array: str, is_write: bool) -> Site:
    """The only access of its kind."""
    (found,) = [s for s in report.sites if (s.array, s.is_write) == (array, is_write)]
    return found


# ---------------------------------------------------------------------------- counts
def test_counts_of_a_map() -> None:
    """1000 floats by 32 warps: 31 of 4 sectors and one of a single sector."""
    x, y = numbers(1000), out(1000)
    report = run(SCALE, (4,), (256,), (x, y, I(1000)), trace=True).raise_if_errors()
    for array, is_write in (("x", False), ("y", True)):
        found = site(report, array, is_write)
        assert (found.requests, found.lanes, found.moved, found.ideal) == (32, 1000, 125, 125)
        assert found.place.line == 3
    traffic = report.traffic["x"]
    assert (traffic.read_sectors, traffic.read_block_sectors, traffic.read_unique_sectors) == (
        125,
        125,
        125,
    )
    assert traffic.read_lane_bytes == report.traffic["y"].write_lane_bytes == 4000
    assert movement(report).device == 8000
    assert shortfalls(report, 8000) == []


@pytest.mark.parametrize(
    ("index", "sectors"),
    [("i", 4), ("i + 1", 5), ("2 * i", 8), ("8 * i", 32), ("0", 1), ("i ^ 31", 4), ("i & 7", 1)],
)
def test_sectors_of_a_request(index: str, sectors: int) -> None:
    """Those of the lines that 32 lanes touch; which lane touches which does not matter."""
    source = replaced(SCALE, "x[i]", f"x[{index}]")
    report = run(source, (1,), (32,), (numbers(256), out(32), I(32)), trace=True)
    assert site(report.raise_if_errors(), "x", False).moved == sectors


def test_what_a_block_reads_twice() -> None:
    """Each of two blocks of two warps reads the same 32 floats."""
    source = replaced(SCALE, "x[i]", "x[threadIdx.x & 31]")
    report = run(source, (2,), (64,), (numbers(32), out(128), I(128)), trace=True)
    traffic = report.raise_if_errors().traffic["x"]
    assert traffic.read_sectors == 4 * 4
    assert traffic.read_block_sectors == 2 * 4
    assert traffic.read_unique_sectors == 4
    assert movement(report).first_cache == 32 * (16 + 16)
    assert movement(report).second_cache == 32 * (8 + 16)
    assert movement(report).device == 32 * (4 + 16)


def test_a_view_that_does_not_start_at_a_sector() -> None:
    x, y = numbers(33), out(32)
    report = run(SCALE, (1,), (32,), (x[1:], y, I(32)), trace=True).raise_if_errors()
    assert site(report, "x", False).moved == 5


@pytest.mark.parametrize(("columns", "ways"), [(33, 1), (32, 32), (34, 2), (36, 4)])
def test_bank_conflicts(columns: int, ways: int) -> None:
    """Lanes 32 rows apart: of c columns, gcd(c, 32) of them meet in one bank."""
    report, _ = transpose(replaced(TILE, "[33]", f"[{columns}]"), n=64, m=64, trace=True)
    report.raise_if_errors()
    assert bank_conflicts(report) == ways
    assert site(report, "shared", False).per_request == ways
    assert site(report, "shared", True).per_request == 1


@pytest.mark.parametrize(("kind", "size"), [("float2", 8), ("float4", 16)])
def test_wide_accesses_of_shared_memory(kind: str, size: int) -> None:
    """Lanes side by side fill all banks: 2 wavefronts of 8 bytes a lane, 4 of 16."""
    source = f"""extern "C" __global__ void k(float* y) {{
        __shared__ {kind} s[32];
        int t = threadIdx.x;
        {kind} v = {{}};
        v.x = t;
        s[t] = v;
        __syncthreads();
        y[t] = s[31 - t].x;
    }}"""
    report = run(source, (1,), (32,), (out(32),), trace=True).raise_if_errors()
    assert site(report, "shared", True).moved == size // 4
    assert site(report, "shared", True).bytes == size


def test_helper_functions_are_counted_where_they_are_called() -> None:
    source = r"""
    __device__ __forceinline__ float twice(const float* p, int i) {
        return 2 * p[i];
    }
    extern "C" __global__ void k(const float* x, const float* w, float* y) {
        int i = threadIdx.x;
        y[i] = twice(x, i) + twice(w, i);
    }"""
    report = run(source, (1,), (32,), (numbers(32), numbers(32, seed=1), out(32)), trace=True)
    places = {s.array: str(s.place) for s in report.raise_if_errors().sites}
    assert places["x"] == places["w"] == "kernel.cu:3, called at kernel.cu:7"
    assert places["y"] == "kernel.cu:7"


# ---------------------------------------------------------------------------- assertions
def shift_sum(source: str, grid: tuple[int, int, int]) -> tuple[Report, int]:
    """A launch over 2 channels of 128 x 512, and the bytes that it must move."""
    x, y = numbers(2, 128, 512), out(2, 128, 512)
    args = (x, y, I(2), I(128), I(512))
    report = run(source, grid, (32, 8), args, trace=True, outs=("y",)).raise_if_errors()
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    wanted = sum(padded[:, a : a + 128, b : b + 512] for a in range(3) for b in range(3))
    assert np.allclose(y, wanted, atol=1e-5)
    return report, x.nbytes + y.nbytes


def depth_to_space(source: str, per_thread: int) -> tuple[Report, int]:
    """The same for 16 channels of 64 x 64."""
    x, y = numbers(16, 64, 64), out(4, 128, 128)
    grid = (x.size // per_thread // 256,)
    args = (x, y, I(4), I(64), I(64))
    report = run(source, grid, (256,), args, trace=True, outs=("y",)).raise_if_errors()
    wanted = x.reshape(2, 2, 4, 64, 64).transpose(2, 3, 0, 4, 1).reshape(4, 128, 128)
    assert np.array_equal(y, wanted)
    return report, x.nbytes + y.nbytes


def test_good_kernels_pass() -> None:
    report, ideal = shift_sum(SHIFT_SUM_VECTOR, (4, 4, 2))
    assert shortfalls(report, ideal, loads=0.2) == []  # one lane in 32 reads beyond its row
    assert widths(report) == {("x", False): {4, 16}, ("y", True): {16}}
    report, ideal = depth_to_space(DEPTH_TO_SPACE, 1)
    assert shortfalls(report, ideal) == []


def test_bad_kernels_fail() -> None:
    """Threads along columns instead of rows, and stores with gaps between the lanes."""
    bad = replaced(
        SHIFT_SUM,
        "j = blockIdx.x*32 + threadIdx.x, i = blockIdx.y*8 + threadIdx.y",
        "i = blockIdx.x*32 + threadIdx.x, j = blockIdx.y*8 + threadIdx.y",
    )
    report, ideal = shift_sum(bad, (4, 64, 2))
    found = shortfalls(report, ideal)
    assert any("the second cache moves" in each for each in found)
    assert any("4-byte store to y uses 32.0 sectors a request, 4.0 would do" in s for s in found)
    report, ideal = depth_to_space(DEPTH_TO_SPACE_VECTOR, 8)
    found = shortfalls(report, ideal)
    assert sum("16-byte store to y uses 32.0 sectors a request, 16.0" in s for s in found) == 2
    report, _ = transpose(replaced(TILE, "[33]", "[32]"), n=64, m=64, trace=True)
    found = shortfalls(report, 2 * 64 * 64 * 4)
    assert [each for each in found if "32.0 times the wavefronts: bank conflicts" in each]


def test_nothing_is_said_without_a_trace() -> None:
    report = run(SCALE, (1,), (32,), (numbers(32), out(32), I(32)))
    for ask in (movement, widths, bank_conflicts):
        with pytest.raises(ValueError, match="k was launched without trace=True"):
            ask(report)
