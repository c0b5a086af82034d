"""Maps that read along one axis and write along another: tiles, their traffic, and their banks."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import opgen
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Kernel
from opgen.ir.transpose import transpose
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.runtime import cuda_grid, prelude
from opgen.testing.cuda_on_cpu import KernelError
from opgen.testing.cuda_on_cpu.emulated import emulated
from opgen.testing.cuda_on_cpu.traffic import bank_conflicts, movement, widths

SPEC = """
op permuted(x[N,C,H,W]) -> y[N,H,W,C]
  y[n,h,w,c] = x[n,c,h,w]

op turned(x[M,N], b[N]) -> y[N,M]
  y[n,m] = x[m,n] * 2 + b[n]

op patches(x[N,C,H,W]) -> y[N,(H W),(C 3 3)]
  y[n,(i j),(c k l)] = x[n,c, i + k - 1 ?0, j + l - 1 ?0]

op copied(x[M,N]) -> y[M,N]
  y[m,n] = x[m,n]

op outer(x[N], w[M]) -> y[N,M]
  y[n,m] = x[n] * w[m]

op symmetric(x[N,N]) -> y[N,N]
  y[n,m] = x[n,m] + x[m,n]

op formatted(first[N,H,W,C], x[N,C,H,W]) -> y[N,H,W,C]
  y[n,h,w,c] = x[n,c,h,w] + first[0,0,0,0]

op pixels(x[N,3,W]) -> y[N,W,3]
  y[n,w,c] = x[n,c,w]
"""
OPS = opgen.compile(SPEC)


def kernel(name: str) -> Kernel:
    (op,) = (op for op in read(Source(SPEC)) if op.name == name)
    (found,) = cuda_rows(schedule(op, gather(op)), facts_of(op)).kernels
    return found


# ---------------------------------------------------------------------------- which
@pytest.mark.parametrize(
    ("name", "outer", "across", "along"),
    [
        ("permuted", "nh", "c", "w"),
        ("turned", "", "m", "n"),
        ("patches", "ni", "ckl", "j"),
    ],
)
def test_transpositions(name: str, outer: str, across: str, along: str) -> None:
    found = transpose(kernel(name))
    assert found is not None
    assert "".join(axis.name for axis in found.outer) == outer
    assert "".join(axis.name for axis in found.across) == across
    assert found.along.name == along


@pytest.mark.parametrize("name", ["copied", "outer", "symmetric", "pixels"])
def test_other_maps(name: str) -> None:
    """Rows of the result are as good where nothing is far apart along them, or much is not; and
    three cells are no row."""
    assert transpose(kernel(name)) is None


# ---------------------------------------------------------------------------- what they give
def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(0, 99, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


SHAPES = [
    (1, 1, 1, 1),
    (2, 64, 2, 64),  # whole tiles
    (1, 33, 3, 35),  # a part of one at each end
    (1, 40, 2, 136),
    (2, 3, 5, 70),  # few channels
    (1, 70, 7, 7),  # small planes
    (0, 3, 4, 5),
    (2, 3, 4, 0),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [64, 256])
def test_every_cell_is_moved(shape: tuple[int, ...], threads: int) -> None:
    x = numbers(*shape)
    with emulated(threads=threads, most_blocks=(2, 1, 3)):
        assert torch.equal(OPS.permuted(x), x.permute(0, 2, 3, 1))
        flat = x.flatten(1).T
        b = numbers(flat.shape[1])
        assert torch.equal(OPS.turned(flat, b), (flat * 2 + b).T)
        if min(shape):
            unfolded = F.unfold(x, 3, padding=1).transpose(1, 2)
            assert torch.equal(OPS.patches(x), unfolded)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8, torch.int64])
def test_elements_of_every_size(dtype: torch.dtype) -> None:
    for shape in SHAPES[1:5]:
        x = numbers(*shape, dtype=dtype)
        with emulated(order="reverse"):
            assert torch.equal(OPS.permuted(x), x.permute(0, 2, 3, 1))


def test_views_of_any_strides() -> None:
    base = numbers(3, 66, 3, 2 * 64)
    views = (base[..., ::2], base[:, 1:65, :, 3:67], base.movedim(1, 3), base.flip(3)[..., :64])
    for x in views:
        with emulated():
            assert torch.equal(OPS.permuted(x), x.permute(0, 2, 3, 1))


def test_results_of_any_strides() -> None:
    """It has the format of the first image, and its rows are not consecutive."""
    first, x = numbers(1, 6, 7, 3), numbers(1, 3, 6, 7)
    with emulated():
        y = OPS.formatted(first.contiguous(memory_format=torch.channels_last), x)
    assert y.stride(-1) != 1
    assert torch.equal(y, x.permute(0, 2, 3, 1) + first[0, 0, 0, 0])


# ---------------------------------------------------------------------------- traffic
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8], ids=str
)
def test_both_sides_are_16_bytes_wide(dtype: torch.dtype) -> None:
    x = numbers(1, 64, 2, 128, dtype=dtype)
    with emulated(trace=True) as launches:
        OPS.permuted(x)
    (report,) = launches.reports
    found = widths(report)
    assert set(found["x", False]) == set(found["y", True]) == {16}
    assert movement(report).second_cache == movement(report).device
    assert bank_conflicts(report) <= 2


@pytest.mark.parametrize("shape", [(1, 3, 8, 64), (1, 64, 8, 8), (1, 40, 2, 40), (1, 4, 4, 4)])
def test_narrow_tiles_have_few_conflicts(shape: tuple[int, ...]) -> None:
    with emulated(trace=True) as launches:
        OPS.permuted(numbers(*shape))
    (report,) = launches.reports
    assert bank_conflicts(report) <= 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 4, 2, 64), (1, 8, 2, 14), (1, 40, 1, 40)])
def test_patches_have_few_conflicts(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with emulated(trace=True) as launches:
        OPS.patches(numbers(*shape, dtype=dtype))
    (report,) = launches.reports
    assert bank_conflicts(report) <= 2


def test_rows_that_begin_in_one_bank_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    broken = prelude.CUDA.replace("ACROSS + APART * OF_BANK", "ACROSS")
    assert broken != prelude.CUDA
    monkeypatch.setattr(prelude, "CUDA", broken)
    with emulated(trace=True) as launches:
        OPS.permuted(numbers(1, 64, 2, 64))
    assert bank_conflicts(launches.reports[0]) > 2


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""])
def test_a_missing_barrier_is_a_race(barrier: str) -> None:
    """Negative control: without barriers a tile is stored before it is whole."""
    operation = OPS.FAMILY.operations["permuted"]
    source = operation.cuda.source
    assert source.count("__syncthreads();") >= 2
    broken = mock.Mock(wraps=operation.cuda)
    broken.source = source.replace("__syncthreads();", barrier)
    broken.launches = operation.cuda.launches
    broken.orders, broken.chains = {}, ()
    x = numbers(1, 64, 2, 64)
    with mock.patch("opgen.runtime.special.cuda_of", return_value=broken), emulated():
        if barrier:
            OPS.permuted(x)
        else:
            with pytest.raises(KernelError, match="race"):
                OPS.permuted(x)


@pytest.mark.parametrize(
    ("width", "length", "size", "tile"),
    [
        (64, 64, 4, (32, 32, 4)),
        (64, 64, 2, (64, 64, 4)),
        (16, 1000, 4, (32, 32, 4)),
        (3, 1000, 4, (4, 256, 1)),
        (1000, 7, 4, (128, 8, 1)),
        (5, 5, 4, (8, 8, 1)),
    ],
)
def test_shapes_of_tiles(width: int, length: int, size: int, tile: tuple[int, int, int]) -> None:
    found = cuda_grid.Tiles.of(width, length, size, 4)
    assert (found.across, found.along, found.lanes) == tile
    grid = found.grid((5,), (width,), length)
    assert grid is not None
    assert math.prod(grid.threads) <= cuda_grid.THREADS
    assert grid.blocks == (-(-length // tile[1]), -(-width // tile[0]), 5)
    assert found.grid((0,), (width,), length) is None
