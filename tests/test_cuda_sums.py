"""Sums over boxes on a GPU: which kernels are, that they are right however they are shared out."""

from __future__ import annotations

import itertools
import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.emit.cuda import cuda_text
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Kernel
from opgen.ir.sums import box_sum, serial_sum
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.gather import gather
from opgen.passes.own_targets import with_own_totals
from opgen.passes.schedule import schedule
from opgen.programs import for_cpu
from opgen.runtime import cuda_grid, prelude
from opgen.testing.cuda_on_cpu import KernelError
from opgen.testing.cuda_on_cpu.emulated import Emulation, emulated
from opgen.testing.cuda_on_cpu.launch import Order

SPEC = """
op total(x[N,M]) -> y[1]
  y[0] = sum(n,m) x[n,m]

op scaled(x[C,N]) -> y[C]
  y[c] = mean(n) x[c,n]

op biased(x[C,N], b[C], s[C]) -> y[C]
  y[c] = b[c] + s[c] * sum(n) x[c,n]

op taps(x[C,N,W], g[C,N,W]) -> y[C,3]
  y[c,k] = sum(n,w) x[c,n, w + k - 1 ?0] * g[c,n,w]

op many_taps(x[C,N,W], g[C,N,W]) -> y[C,25]
  y[c,k] = sum(n,w) x[c,n, w + k - 1 ?0] * g[c,n,w]

op row_of_taps(x[C,N,W], g[C,N,W]) -> y[C,49]
  y[c,k] = sum(n,w) x[c,n, w + k - 1 ?0] * g[c,n,w]

op taps_apart(x[C,N,W], g[C,N,W]) -> y[C,50]
  y[c,k] = sum(n,w) x[c,n, w + k - 1 ?0] * g[c,n,w]

op rows_apart(x[C,H,W], g[C,H,W]) -> y[C,9,11]
  y[c,k,l] = sum(h,w) x[c, h + k - 4 ?0, w + l - 5 ?0] * g[c,h,w]

op too_many_taps(x[C,N,W], g[C,N,W]) -> y[C,65]
  y[c,k] = sum(n,w) x[c,n, w + k - 1 ?0] * g[c,n,w]

op phases(x[N,C,(H 2),(W 2)]) -> y[(C 2 2)]
  y[(c a b)] = sum(n,h,w) x[n,c,(h a),(w b)]

op channels(x[N,H,W,C]) -> y[C]
  y[c] = sum(n,h,w) x[n,h,w,c]

op taps_across(x[N,H,W,C], g[N,H,W,C]) -> y[C,3,3]
  y[c,k,l] = sum(n,h,w) x[n, h+k-1 ?0, w+l-1 ?0, c] * g[n,h,w,c]

op columns(x[N,C]) -> y[C]
  y[c] = sum(n) x[n,c]

op masked(x[B,C,H,W], g[B,C,H,W]) -> y[H,W]
  y[h,w] = sum(b,c) x[b,c,h,w] * g[b,c,h,w]

op largest_columns(x[N,C]) -> y[C]
  y[c] = max(n) x[n,c]

op triangle(x[N,N]) -> y[N]
  y[n] = sum(m in N if m <= n) x[n,m]

op largest(x[N,M]) -> y[N]
  y[n] = max(m) x[n,m]

op place(x[N,M]) -> y: int[N]
  y[n] = argmax(m) x[n,m]

op extremes(x[B,H,W,C]) -> y[B,C], z[B,H,W]
  y[b,c] = max(h,w) x[b,h,w,c]
  z[b,h,w] = min(c) x[b,h,w,c]

op squares(x[B,H,W,C]) -> y[B,C]
  y[b,c] = sum(h,w) x[b,h,w,c]**2

op variation(x[N,C,H]) -> y[N]
  where H >= 1, C >= 1
  y[n] += abs(x[n,c,h+1] - x[n,c,h]) for n, c, h in H-1
  y[n] += abs(x[n,c+1,h] - x[n,c,h]) for n, c in C-1, h
"""
OPS = opgen.compile(SPEC)


def kernel(name: str) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel of an op, and the integers of its program."""
    (op,) = (op for op in read(Source(SPEC)) if op.name == name)
    program = cuda_rows(schedule(op, gather(op)), facts_of(op))
    (found,) = program.kernels
    return found, program.integers


# ---------------------------------------------------------------------------- which
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "sums", "box"),
    [
        ("total", 1, ["n", "m"]),
        ("scaled", 1, ["n"]),
        ("taps", 3, ["n", "w"]),
        ("many_taps", 25, ["n", "w"]),
        ("row_of_taps", 49, ["n", "w"]),
        ("taps_apart", 1, ["n", "w"]),
        ("rows_apart", 11, ["h", "w"]),
        ("phases", 1, ["n", "h", "w"]),
        ("channels", 1, ["n", "h", "w"]),
        ("taps_across", 9, ["n", "h", "w"]),
        ("largest", 1, ["m"]),
        ("squares", 1, ["h", "w"]),
    ],
)
def test_sums_over_boxes(name: str, sums: int, box: list[str]) -> None:
    found = box_sum(*kernel(name))
    assert found is not None
    assert len(found.starts) == len(found.stores) == sums
    assert [axis.name for axis in found.box] == box


@pytest.mark.parametrize("name", ["triangle", "place", "too_many_taps"])
def test_other_kernels(name: str) -> None:
    """Half of a box around a triangle would be left out; the first of several places is not found
    in any order; a thread each is enough where there are so many cells."""
    assert box_sum(*kernel(name)) is None


@pytest.mark.parametrize("name", ["columns", "masked"])
def test_serial_sums(name: str) -> None:
    found = serial_sum(*kernel(name))
    assert found is not None
    lengths = {"columns": ("N", "1"), "masked": ("B", "C")}
    assert (str(found.length), str(found.turn)) == lengths[name]


@pytest.mark.parametrize("name", ["largest_columns", "total", "triangle"])
def test_kernels_without_a_serial_sum(name: str) -> None:
    assert serial_sum(*kernel(name)) is None


# ---------------------------------------------------------------------------- what they give
def small_shares() -> mock._patch[int]:
    """Every thread of a block may have one point: small sums are split as long ones are."""
    return mock.patch.object(cuda_grid, "_FEWEST_ROUNDS", 1)


def split(launches: Emulation) -> set[str]:
    """The kernels that were launched again at once, to add up what blocks had."""
    names = [report.kernel for report in launches.reports]
    return {name for name, again in itertools.pairwise(names) if name == again}


def integers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed))


def correlation(x: torch.Tensor, g: torch.Tensor, count: int) -> torch.Tensor:
    """`taps` by slices of a padded copy."""
    padded = F.pad(x, (1, max(0, count - 2)))
    width = g.shape[-1]
    rows = [(padded[..., k : k + width] * g).sum((1, 2)) for k in range(count)]
    return torch.stack(rows, 1)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("threads", [1, 64, 256])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 17), (2, 8, 64), (70, 3, 9), (2, 0, 3), (3, 2, 0), (0, 3, 4)]
)
def test_every_term_is_added_once(shape: tuple[int, int, int], threads: int) -> None:
    """Integers are exact in any order; blocks are few, so they loop over cells."""
    x, g = integers(*shape, seed=0), integers(*shape, seed=1)
    with small_shares(), emulated(threads=threads, most_blocks=(2, 3, 1)) as launches:
        assert torch.equal(OPS.taps(x, g), correlation(x, g, 3))
        assert torch.equal(OPS.many_taps(x, g), correlation(x, g, 25))
        flat = x.flatten(1)
        assert torch.equal(OPS.total(flat), flat.sum().reshape(1))
    is_long = shape[1] * shape[2] >= 16 * threads
    assert not is_long or split(launches) == {"taps_y", "many_taps_y", "total_y"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 17), (1, 9, 64), (3, 2, 3), (2, 0, 3)])
def test_taps_of_large_windows(shape: tuple[int, int, int], threads: int) -> None:
    """Some in a pass of their own, for which the image begins and ends elsewhere."""
    x, g = integers(*shape, seed=0), integers(*shape, seed=1)
    padded = F.pad(x, (5, 5, 4, 4))
    channels, height, width = shape
    rows = [
        [(padded[:, k : k + height, at : at + width] * g).sum((1, 2)) for at in range(11)]
        for k in range(9)
    ]
    with small_shares(), emulated(threads=threads, most_blocks=(2, 3, 1)):
        assert torch.equal(OPS.row_of_taps(x, g), correlation(x, g, 49))
        assert torch.equal(OPS.taps_apart(x, g), correlation(x, g, 50))
        found = OPS.rows_apart(x, g)
    assert torch.equal(found, torch.stack([torch.stack(each, 1) for each in rows], 1))
    assert found.shape == (channels, 9, 11)


def test_what_is_stored_reads_tensors_that_no_term_does() -> None:
    x, b, s = integers(3, 900, seed=0), integers(3, seed=1), integers(3, seed=2)
    wanted = b + s * x.sum(1)
    assert torch.equal(OPS.biased(x, b, s), wanted)
    with small_shares(), emulated(threads=64) as launches:
        assert torch.equal(OPS.biased(x, b, s), wanted)
    assert split(launches) == {"biased_y"}


def few_terms() -> mock._patch[int]:
    """Every term of a serial sum may be another thread's."""
    return mock.patch.object(cuda_grid, "_FEWEST_TERMS", 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("blocks", [1, 65535])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (5, 3, 4, 6), (40, 2, 3, 33), (0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 4, 0)]
)
def test_every_turn_is_done_once(shape: tuple[int, ...], blocks: int) -> None:
    x, g = integers(*shape, seed=0), integers(*shape, seed=1)
    flat = x.flatten(1)
    most = (blocks, blocks, blocks)
    with few_terms(), emulated(threads=64, most_blocks=most) as launches:
        assert torch.equal(OPS.columns(flat), flat.sum(0))
        assert torch.equal(OPS.masked(x, g), (x * g).sum((0, 1)))
        assert torch.equal(OPS.columns(flat.T), flat.sum(1))
    assert split(launches) == ({"masked_y", "columns_y"} if min(shape) > 1 else set())


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_parts_of_serial_sums_are_added_in_order(order: Order) -> None:
    """As by hand: 4 parts of 3 turns each, in float32."""
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    with mock.patch.object(cuda_grid, "_FEWEST_TERMS", 3), emulated(order=order) as launches:
        got = OPS.columns(x)
    assert split(launches) == {"columns_y"}
    zero = torch.zeros(5)
    expected = sum((sum(part, zero) for part in x.split(3)), zero)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_more_accurate_than_one_after_the_other(dtype: torch.dtype) -> None:
    x = torch.randn(40, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    with emulated():
        got = OPS.total(x)
    exact = x.double().sum()
    # 256 threads add 3 stretches of 4 by 4 points, then come 5 rounds of a warp and 7 more warps.
    bound = (3 * 4 * 4 + 5 + 7) * 2.0**-24 * x.double().abs().sum()
    rounding = torch.finfo(dtype).eps * exact.abs()
    assert (got.double() - exact).abs() <= bound + rounding


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_means_of_parts(dtype: torch.dtype) -> None:
    """What is done to a sum is done once, not to every part."""
    x = torch.randn(3, 2000, generator=torch.Generator().manual_seed(0)).to(dtype)
    with small_shares(), emulated(threads=64) as launches:
        got = OPS.scaled(x)
    assert split(launches) == {"scaled_y"}
    exact = x.double().mean(1)
    # A thread adds at most 2000 terms, each rounded relative to the sum of magnitudes so far.
    wide = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    bound = 2001 * wide * x.double().abs().mean(1) + torch.finfo(dtype).eps * exact.abs()
    assert ((got.double() - exact).abs() <= bound).all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("shape", [(2, 6, 10, 3), (1, 9, 8, 40), (3, 4, 2, 33), (2, 1, 1, 5)])
def test_taps_of_neighbouring_cells(shape: tuple[int, ...], order: Order) -> None:
    """More sums than are added up together, of pixels inside of the image and at its ends."""
    x, g = (integers(*shape, seed=seed).double() for seed in (0, 1))
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    _, h, w, _ = shape
    windows = [
        (padded[:, k : k + h, i : i + w] * g).sum((0, 1, 2)) for k in range(3) for i in range(3)
    ]
    with small_shares(), emulated(order, threads=64):
        got = OPS.taps_across(x, g)
    assert torch.equal(got.flatten(1), torch.stack(windows, 1))


@pytest.mark.parametrize("shape", [(2, 3, 6, 10), (1, 5, 2, 40), (3, 1, 8, 2)])
def test_sums_over_pixels_of_few_cells(shape: tuple[int, ...]) -> None:
    """One thread for each cell would add up all pixels: they are shared out."""
    x = integers(*shape, seed=0).float()
    n, c, h, w = shape
    blocks = x.view(n, c, h // 2, 2, w // 2, 2).sum((0, 2, 4)).flatten()
    with small_shares(), emulated(threads=32):
        assert torch.equal(OPS.phases(x), blocks)
        assert torch.equal(OPS.channels(x), x.sum((0, 1, 2)))


def test_views_of_any_strides() -> None:
    base = integers(9, 6, 2 * 10, seed=0)
    g = integers(6, 9, 10, seed=1)
    for x in (base[..., ::2], base[..., 1:11], base[:, :, :10].flip(2)):
        x = x.movedim(0, 1)
        with small_shares(), emulated(threads=32):
            assert torch.equal(OPS.taps(x, g), correlation(x, g, 3))


def test_the_same_bits_whatever_runs_first() -> None:
    x = torch.randn(7, 900, generator=torch.Generator().manual_seed(0))
    with small_shares(), emulated(order="forward", threads=64) as launches:
        first = OPS.total(x)
    with small_shares(), emulated(order="reverse", threads=64):
        second = OPS.total(x)
    assert split(launches) == {"total_y"}
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "size", "shape"),
    [
        (2, 1, 1, 3, (3, 2, 9, 16)),
        pytest.param(1, 1, 1, 3, (2, 3, 8, 16), marks=pytest.mark.slow),
        pytest.param(1, 4, 2, 5, (1, 2, 11, 12), marks=pytest.mark.slow),
        pytest.param(1, 5, 1, 11, (2, 2, 9, 13), marks=pytest.mark.slow),
        pytest.param(2, 3, 2, 9, (1, 2, 17, 19), marks=pytest.mark.slow),
    ],
)
def test_gradients_of_filters(
    stride: int, padding: int, dilation: int, size: int, shape: tuple[int, ...]
) -> None:
    """Against PyTorch, in integers that float64 holds exactly."""
    conv = opgen.load(SPECS / "conv.op")
    channels = shape[1]
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": channels}
    x = integers(*shape, seed=0).double()
    weight = integers(channels, 1, size, size, seed=1).double().requires_grad_()
    y = F.conv2d(x, weight, **given)
    grad = integers(*y.shape, seed=2).double()
    (expected,) = torch.autograd.grad(y, weight, grad)
    with small_shares(), emulated(threads=32):
        (got,) = torch.autograd.grad(conv.conv2d(x, weight, **given), weight, grad)
    assert torch.equal(got, expected)


# ---------------------------------------------------------------------------- shared memory
@pytest.mark.parametrize("barrier", [0, 1])
def test_a_missing_barrier_is_a_race(monkeypatch: pytest.MonkeyPatch, barrier: int) -> None:
    """Negative control: the emulator sees what teams do to shared memory."""
    begin = prelude.CUDA.index("void team_sums")
    head, rest = prelude.CUDA[:begin], prelude.CUDA[begin:]
    pieces = rest.split("__syncthreads();")
    broken = "__syncthreads();".join(pieces[: barrier + 1]) + "__syncthreads();".join(
        ["", *pieces[barrier + 1 :]]
    ).removeprefix("__syncthreads();")
    monkeypatch.setattr(prelude, "CUDA", head + broken)
    with emulated(most_blocks=(1, 1, 1)), pytest.raises(KernelError, match="race"):
        OPS.scaled(torch.ones(2, 3000))


@pytest.mark.parametrize("barrier", [0, 1])
def test_a_barrier_missing_across_is_a_race(monkeypatch: pytest.MonkeyPatch, barrier: int) -> None:
    """The same of threads that are neighbouring cells, of more sums than are added up together."""
    begin = prelude.CUDA.index("void sums_across")
    head, rest = prelude.CUDA[:begin], prelude.CUDA[begin:]
    first, *pieces = rest.split("__syncthreads();")
    pieces[barrier] = "\0" + pieces[barrier]
    broken = "__syncthreads();".join([first, *pieces]).replace("__syncthreads();\0", "")
    monkeypatch.setattr(prelude, "CUDA", head + broken)
    with emulated(most_blocks=(1, 1, 1)), pytest.raises(KernelError, match="race"):
        OPS.taps_across(torch.ones(2, 4, 4, 40), torch.ones(2, 4, 4, 40))


# ---------------------------------------------------------------------------- grids
@pytest.mark.parametrize(
    ("cells", "turns", "terms", "splits"),
    [
        ((256, 64), 16, 28, 7),  # 448 terms, 64 for each at least
        ((256, 64), 16, 1000, 16),  # all turns: there might be 16 times as many threads
        ((2**18,), 1000, 1000, 1),  # threads enough
        ((1,), 10**6, 1, 512),  # the most
        ((8,), 0, 5, 1),
    ],
)
def test_splits_of_serial_sums(cells: tuple[int, ...], turns: int, terms: int, splits: int) -> None:
    assert cuda_grid.serial_splits(cells, turns, terms) == splits


@pytest.mark.parametrize(
    ("cells", "box", "threads", "blocks", "splits"),
    [
        ((), (1000, 1000), (256, 1, 1), 1, 435),  # 9 rounds of 256 points each: 8 are not enough
        ((32,), (64, 28, 28), (256, 1, 1), 32, 22),
        ((5,), (1, 20), (16, 1, 8), 1, 1),
        ((1000,), (3,), (2, 1, 64), 16, 1),
        ((9,), (0, 4), (1, 1, 32), 1, 1),
        ((4096,), (100000,), (256, 1, 1), 4096, 1),  # blocks enough
    ],
)
def test_shapes_of_grids(
    cells: tuple[int, ...],
    box: tuple[int, ...],
    threads: cuda_grid.Size,
    blocks: int,
    splits: int,
) -> None:
    grid = cuda_grid.sum_grid(cells, box)
    assert grid is not None
    assert (grid.threads, grid.blocks) == (threads, (blocks, splits, 1))
    assert grid.splits == splits
    points = torch.Size(box).numel()
    assert points <= grid.share * grid.splits and (grid.splits - 1) * grid.share < max(1, points)
    assert cuda_grid.sum_grid((0, *cells), box) is None


# ---------------------------------------------------------------------------- maxima and minima
def images(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (10 * made).to(dtype)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 70, 5), (1, 40, 9, 33), (3, 2, 2, 300)])
def test_extremes(shape: tuple[int, ...], dtype: torch.dtype, order: Order) -> None:
    """However their terms are shared out among threads and blocks."""
    x = images(*shape, dtype=dtype)
    rows = x.flatten(0, 2)
    for threads in (64, 256):
        with small_shares(), emulated(order=order, threads=threads):
            y, z = OPS.extremes(x)
            largest = OPS.largest(rows)
        assert torch.equal(y, x.amax((1, 2)))
        assert torch.equal(z, x.amin(3))
        assert torch.equal(largest, rows.amax(1))


def test_blocks_share_an_extreme() -> None:
    x = images(1, 60, 50, 3, dtype=torch.float32)
    with small_shares(), emulated() as launches:
        y, _ = OPS.extremes(x)
        largest = OPS.largest(x.view(1, -1))
    assert split(launches) == {"extremes_y", "largest_y"}
    assert torch.equal(y, x.amax((1, 2)))
    assert torch.equal(largest, x.max()[None])


@pytest.mark.parametrize("place", [0, 77, 299])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_extremes_of_what_is_not_finite(number: float, place: int) -> None:
    """One that is no number is the result, wherever it is."""
    x = images(2, 300, dtype=torch.float32)
    x[1, place] = number
    for count in (64, 256):
        with small_shares(), emulated(threads=count):
            found = OPS.largest(x)
        torch.testing.assert_close(found, x.amax(1), equal_nan=True, rtol=0, atol=0)
    with emulated():
        found = OPS.largest(torch.full((3, 40), number))
    torch.testing.assert_close(found, torch.full((3,), number), equal_nan=True)


def test_an_extreme_that_forgets_what_is_no_number_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: parts are joined as if all were numbers."""
    broken = prelude.CUDA.replace("part > total || part != part", "part > total")
    assert broken != prelude.CUDA
    monkeypatch.setattr(prelude, "CUDA", broken)
    x = images(1, 300, dtype=torch.float32)
    x[0, 77] = math.nan
    with small_shares(), emulated():
        assert not opgen.compile(SPEC.replace("largest(", "larger(")).larger(x).isnan().all()


# ---------------------------------------------------------------------------- sums of their own
@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 50), (1, 70, 9), (5, 1, 4)])
def test_sums_into_one_tensor(shape: tuple[int, ...]) -> None:
    """Each has a kernel that shares it out, where one for both has a thread for each cell."""
    x = integers(*shape, seed=0).double()
    with small_shares(), emulated() as launches:
        found = OPS.variation(x)
    wanted = x.diff(dim=2).abs().sum((1, 2)) + x.diff(dim=1).abs().sum((1, 2))
    assert torch.equal(found, wanted)
    assert launches.kernels == {"variation_y", "variation_y_term", "variation_y_term_"}


def test_which_sums_have_targets_of_their_own() -> None:
    (op,) = (op for op in read(Source(SPEC)) if op.name == "variation")
    assert not any(each.stored for each in for_cpu(op).temporaries), "a CPU has one kernel"
    assert [each.name for each in with_own_totals(op).temporaries] == ["y_term", "y_term_"]
    others = """
op as_many_dims(x[N,C], k[C,C]) -> y[N,C]
  y[n,c] += sum(d) x[n,d] * k[d,c]
  y[n,c] += x[n,c]

op alone(x[N,C], b[N]) -> y[N]
  y[n] = b[n] + sum(c) x[n,c]

op with_a_condition(x[N,C], b[N]) -> y[N]
  y[n] += x[n,c] for n, c if c <= n
  y[n] += b[n]
"""
    for each in read(Source(others)):
        assert with_own_totals(each) == each, each.name


# ---------------------------------------------------------------------------- powers
@pytest.mark.sampled(2)
@pytest.mark.parametrize("exponent", [-4, -2, -1, 1, 2, 3, 4])
def test_whole_powers_are_products(exponent: int) -> None:
    text = f"op f(x[N]) -> y[N]\n  y[n] = x[n]**({exponent})\n"
    x = torch.tensor([1.5, -2.0, 0.0, 3.0, math.inf, math.nan])
    with emulated():
        found = opgen.compile(text).f(x)
    torch.testing.assert_close(found, x**exponent, equal_nan=True)
    (op,) = read(Source(text))
    kernels = cuda_text(cuda_rows(schedule(op, gather(op)), facts_of(op)))
    assert f"whole_power<{exponent}>(" in kernels or exponent == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("exponent", ["inf", "-inf", "0.5", "5", "0"])
def test_other_powers(exponent: str) -> None:
    text = f"op f(x[N]) -> y[N]\n  y[n] = x[n]**({exponent})\n"
    x = torch.tensor([0.5, 1.0, 2.0])
    with emulated():
        found = opgen.compile(text).f(x)
    torch.testing.assert_close(found, x ** float(exponent))


def test_a_module_of_which_only_a_gpu_has_temporaries() -> None:
    """It imports what describes them."""
    text = SPEC[SPEC.index("op variation(") :]
    x = integers(2, 3, 9, seed=0).double()
    wanted = x.diff(dim=2).abs().sum((1, 2)) + x.diff(dim=1).abs().sum((1, 2))
    module = opgen.compile(text)
    assert all(each.gpu_only for each in module.FAMILY.operations["variation"].temporaries)
    assert torch.equal(module.variation(x), wanted)
    with emulated():
        assert torch.equal(module.variation(x), wanted)


# ---------------------------------------------------------------------------- parts of dims
GROUPS = """
op means(x: float[N,H,W,(G C)], m[N,G]) -> y[N,G]
  y[n,g] = sum(h,w,c) (x[n,h,w,(g c)] - m[n,g])**2

op pixels(x: float[N,(H A),(W B)], m[N,H,W]) -> y[N,H,W]
  y[n,h,w] = sum(a,b) x[n,(h a),(w b)] * m[n,h,w]
"""


def of_groups(name: str) -> tuple[Kernel, tuple[str, ...]]:
    (op,) = (op for op in read(Source(GROUPS)) if op.name == name)
    program = cuda_rows(schedule(op, gather(op)), facts_of(op))
    (found,) = program.kernels
    return found, program.integers


def test_groups_of_channels_share_nothing_with_their_neighbours() -> None:
    """What is read of a group lies side by side, of neighbouring groups it does not, though their
    means do; parts of dims by themselves are few."""
    found = box_sum(*of_groups("means"))
    assert found is not None
    assert [axis.name for axis in found.box] == ["h", "w", "c"]
    assert box_sum(*of_groups("pixels")) is None


@pytest.mark.parametrize("shape", [(2, 5, 7, 3, 4), (1, 8, 8, 2, 16), (3, 1, 2, 5, 1)])
def test_sums_of_groups_of_channels(shape: tuple[int, ...]) -> None:
    images, height, width, groups, channels = shape
    x = integers(images, height, width, groups * channels, seed=0).double()
    m = integers(images, groups, seed=1).double()
    with small_shares(), emulated(threads=64):
        found = opgen.compile(GROUPS).means(x, m)
    apart = x.view(images, height, width, groups, channels) - m[:, None, None, :, None]
    assert torch.equal(found, apart.square().sum((1, 2, 4)))
