"""Windows over whole planes in shared memory: which kernels, which launches, what they move."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import ModuleType
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.slab import Slab, slab
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.runtime import cuda, cuda_grid
from opgen.runtime.record import replaced
from opgen.testing.cuda_on_cpu import KernelError
from opgen.testing.cuda_on_cpu.emulated import emulated
from opgen.testing.cuda_on_cpu.traffic import bank_conflicts, movement, widths

SPEC = """
op window(x[N,C,H,W], w[C,3]) -> y[N,C,H,W]
  y[n,c,h,j] = sum(k in 3) x[n,c, h + k - 1 ?0, j] * w[c,k]

op map(x[N,H,W], z[N,H,W]) -> y[N,H,W]
  y[n,h,w] = x[n,h,w] + z[n,h,w]

op steps(x[N,H,W]) -> y[N,I,W]
  let I = H // 2
  y[n,i,w] = x[n, 2*i, w] + x[n, 2*i + 1, w]

op half(x[N,H,W]) -> y[N,H,W]
  y[n,h,w] = x[n,h,w] + x[n, h + 1 ?0, w] if h > w

op parts(x[N,H,W]) -> y[N,2,H,W]
  y[n,0,h,w] = x[n,h,w] + x[n, h + 1 ?0, w]
  y[n,1,h,w] = x[n,h,w] - x[n, h + 1 ?0, w]

op turned(x[N,C,H,W]) -> y[C,N,H,W]
  y[c,n,h,w] = x[n,c,h,w] + x[n,c, h + 1 ?0, w]

op long(x[N,H,W]) -> y[N,H,W]
  y[n,h,w] = sum(k in H) x[n,k,w] * x[n,h,w]
"""


def found(name: str) -> Slab | None:
    (op,) = (op for op in read(Source(SPEC)) if op.name == name)
    program = cuda_rows(schedule(op, gather(op)), facts_of(op))
    return slab(program.kernels[0], program)


def test_which_kernels_read_planes() -> None:
    assert found("window") == Slab(("x",), "y")
    assert found("map") is None, "elements are read once"
    assert found("steps") is None, "rows two apart"
    assert found("half") == Slab(("x",), "y"), "cells without terms are stored, too"
    assert found("parts") is None, "another kernel stores other cells"
    assert found("turned") is None, "other planes"
    assert found("long") is None, "a long sum"


# ---------------------------------------------------------------------------- which launches
@pytest.mark.parametrize(
    ("shape", "size", "planes"),
    [
        ((4, 32, 7, 7), 4, 36),  # of 196 bytes: four are a multiple of 16
        ((4, 32, 7, 7), 2, 32),
        ((4, 32, 9, 9), 4, 28),
        ((4, 32, 14, 14), 2, 18),
        ((4, 32, 14, 14), 4, 18),
        ((4, 32, 9, 8), 4, None),  # rows of whole accesses
        ((4, 32, 9, 12), 2, 28),
        ((4, 32, 9, 24), 2, None),  # long rows
        ((4, 32, 999, 9), 8, None),  # large planes
        ((4, 32, 9, 4), 2, 28),
        ((4, 32, 9, 1), 4, None),
        ((4, 0, 9, 9), 4, None),
        ((4, 32, 0, 9), 4, None),
    ],
)
def test_planes_of_a_block(
    shape: tuple[int, ...], size: int, planes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_grid, "LEAST_THREADS", 1)
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[size]
    x, y = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
    lanes = math.gcd(shape[-1], 16 // size)
    got = cuda_grid.slab(shape, (x, y), lanes)
    assert (got and got.planes) == planes
    if got is not None:
        own = math.prod(shape[-2:]) * size
        assert got.planes * own % 16 == 0
        assert 2 * got.planes * own <= 48 * 1024
        assert got.grid.blocks == (-(-4 * 32 // got.planes), 1, 1)
        assert got.grid.threads == (min(256, got.planes * shape[-2]), 1, 1)


def test_other_tensors_are_read_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (4, 32, 9, 9)
    x = torch.empty(shape)
    assert cuda_grid.slab(shape, (x, x), 1) is None, "too few threads"
    monkeypatch.setattr(cuda_grid, "LEAST_THREADS", 1)
    assert cuda_grid.slab(shape, (x, x), 1) is not None
    assert cuda_grid.slab(shape, (x, torch.empty(4, 32, 9, 10)[..., :9]), 1) is None
    assert cuda_grid.slab(shape, (x, x.transpose(0, 1)), 1) is None
    moved = torch.empty(x.numel() + 1)[1:].view(shape)
    assert cuda_grid.slab(shape, (x, moved), 1) is None, "begins at no multiple of 16 bytes"
    wide = torch.empty(4, 32, 9, 16)
    assert cuda_grid.slab(shape, (x, wide), 1) is None, "its rows begin in two banks"


# ---------------------------------------------------------------------------- what they give
@cache
def module(stem: str) -> ModuleType:
    return opgen.load(SPECS / f"{stem}.op")


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)))
    return (made - 0.5).to(dtype)


Both = tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]

OPS: dict[str, Both] = {
    "depthwise": (
        lambda x, w: module("conv").conv2d(x, w, padding=1, groups=len(w)),
        lambda x, w: F.conv2d(x, w, padding=1, groups=len(w)),
    ),
    "narrower": (
        lambda x, w: module("conv").conv2d(x, w, groups=len(w)),
        lambda x, w: F.conv2d(x, w, groups=len(w)),
    ),
    "wider": (
        lambda x, w: module("conv").conv2d(x, w, padding=2, groups=len(w)),
        lambda x, w: F.conv2d(x, w, padding=2, groups=len(w)),
    ),
    "maximum": (
        lambda x, w: module("pool").max_pool2d(x, kernel_size=3, stride=1, padding=1)[0],
        lambda x, w: F.max_pool2d(x, kernel_size=3, stride=1, padding=1),
    ),
}


def compared(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """A call and its gradient for the image, against PyTorch; within `emulated`."""
    own, other = OPS[name]
    x = random(*shape, dtype=dtype).requires_grad_()
    w = random(shape[1], 1, 3, 3, dtype=dtype)
    y, wanted = own(x, w), other(x, w)
    torch.testing.assert_close(y, wanted)
    grad_y = random(*y.shape, dtype=dtype)
    (got,), (expected,) = (torch.autograd.grad(each, x, grad_y) for each in (y, wanted))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "name",
    ["depthwise", *(pytest.param(n, marks=pytest.mark.slow) for n in OPS if n != "depthwise")],
)
def test_planes_of_every_kind(name: str) -> None:
    """Also where the last block has a part of its planes, and blocks have several turns."""
    with emulated():
        compared(name, (2, 25, 7, 7))
    with emulated("random", threads=4, most_blocks=(2, 1, 1)):
        compared(name, (1, 11, 5, 9))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_elements_of_other_sizes(dtype: torch.dtype) -> None:
    with emulated("reverse"):
        compared("depthwise", (1, 35, 9, 9), dtype)


@pytest.mark.parametrize(
    ("side", "dtype"),
    [(7, torch.float32), (9, torch.bfloat16), (14, torch.bfloat16)],
    ids=str,
)
def test_planes_are_moved_16_bytes_at_a_time(side: int, dtype: torch.dtype) -> None:
    x, w = random(2, 24, side, side, dtype=dtype), random(24, 1, 3, 3, dtype=dtype)
    with emulated(trace=True) as launches:
        OPS["depthwise"][0](x, w)
    (report,) = launches.reports
    found = widths(report)
    assert found["x", False] == found["y", True] == {16}
    moved = movement(report)
    assert moved.second_cache <= 1.15 * moved.device
    assert bank_conflicts(report) <= 2


def test_rows_of_single_elements_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without planes in shared memory."""
    monkeypatch.setattr(cuda_grid, "slab", lambda *given: None)
    with emulated(trace=True) as launches:
        OPS["depthwise"][0](random(2, 24, 7, 7), random(24, 1, 3, 3))
    assert widths(launches.reports[0])["x", False] == {4}


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_barrier_is_a_race(missing: int) -> None:
    """Negative control: before the cells are computed, and before they are copied back."""
    launch = cuda.launch

    def broken(launched: cuda.Launched) -> None:
        text = "".join(launched.source)
        begin = text.index("#if planes_of_")
        first, *rest = text[begin:].split("__syncthreads();", missing)
        parts = [first, *rest]
        kept = "__syncthreads();".join(parts[:-1])
        launch(replaced(launched, source=(text[:begin] + kept + parts[-1],)))

    with (
        emulated(),
        mock.patch.object(cuda, "launch", broken),
        pytest.raises(KernelError, match=r"race|uninitiali"),
    ):
        OPS["depthwise"][0](random(1, 8, 7, 7), random(8, 1, 3, 3))
