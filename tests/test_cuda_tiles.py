"""Several rows of cells for a thread: which, how many, and that they are right, against PyTorch."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from functools import cache
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.runtime import cuda, cuda_grid
from opgen.testing.cuda_on_cpu.emulated import Products, emulated

SPEC = """
op window(x[N,H,W]) -> y[N,H,W]
  y[n,h,w] = sum(k in 3) x[n, h + k - 1 ?0, w]

op spread(x[N,W]; C: size) -> y[N,C,W]
  y[n,c,w] = x[n,w]

op moved(x[N,H,W]) -> y[N,H,W]
  y[n,h,w] = 2*x[n,h,w]

op suffixes(x[N,H,W]) -> y[H,W]
  y[h,w] = sum(n in N if n >= h) x[n,h,w]
"""


def group(name: str) -> str | None:
    """The axis along which a thread of an op's kernel has several rows."""
    (op,) = (op for op in read(Source(SPEC)) if op.name == name)
    (kernel,) = cuda_rows(schedule(op, gather(op)), facts_of(op)).kernels
    return None if kernel.group is None else kernel.group.axis.name


def test_which_axis_has_several_rows() -> None:
    assert group("window") == "h"  # neighbours share two of three rows
    assert group("spread") == "c"  # all share one
    assert group("moved") == "h"  # none shares any: the last axis but one
    assert group("suffixes") is None  # each has other terms


@pytest.mark.parametrize(
    ("extents", "values", "rows"),
    [
        ((8, 64, 2**14), 8, 8),
        ((8, 64, 2**14), 9, 4),
        ((8, 60, 2**14), 8, 4),
        ((1, 8, 2**15), 8, 4),
        ((8, 62, 2**14), 8, 2),
        ((8, 63, 2**14), 8, 1),
        ((1, 4, 2**16), 8, 4),
        ((1, 4, 2**15), 8, 2),
        ((1, 4, 2**14), 8, 1),
        ((0, 4, 2**14), 8, 1),
        ((8, 64, 2**14), 32, 4),
        ((8, 64, 2**14), 33, 2),
        ((8, 64, 2**14), 65, 1),
    ],
)
def test_how_many_rows(extents: tuple[int, ...], values: int, rows: int) -> None:
    """As many as divide the axis, leave 2**16 threads, and have 128 values; 8 of them have 64."""
    assert cuda_grid.rows(extents, values) == rows


# ---------------------------------------------------------------------------- against PyTorch
@cache
def module(stem: str) -> ModuleType:
    return opgen.load(SPECS / f"{stem}.op")


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) - 0.5


Both = tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]

# The rows of the last image are cut off, clamped, doubled, or left out.
CASES: dict[str, Both] = {
    "depthwise": (
        lambda x, w: module("conv").conv2d(x, w, padding=1, groups=3),
        lambda x, w: F.conv2d(x, w, padding=1, groups=3),
        ((2, 3, 0, 8), (3, 1, 3, 3)),
    ),
    "steps of two": (
        lambda x, w: module("conv").conv2d(x, w, stride=2, padding=1, groups=2),
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=2),
        ((1, 4, 0, 16), (2, 2, 3, 3)),
    ),
    "transposed": (
        lambda x, w: module("conv_transpose").conv_transpose2d(
            x, w, stride=2, padding=1, output_padding=1
        ),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        ((1, 2, 0, 8), (2, 2, 3, 3)),
    ),
    "bilinear": (
        lambda x: module("upsample_bilinear").upsample_bilinear(x),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        ((2, 2, 0, 8),),
    ),
    "unfold": (
        lambda x: module("unfold").unfold(x, kernel_size=3, padding=1),
        lambda x: F.unfold(x, kernel_size=3, padding=1),
        ((1, 2, 0, 8),),
    ),
    "maximum": (
        lambda x: module("pool").max_pool2d(x, kernel_size=3, stride=1, padding=1)[0],
        lambda x: F.max_pool2d(x, kernel_size=3, stride=1, padding=1),
        ((2, 2, 0, 8),),
    ),
}


def rows_of(name: str, height: int) -> set[int]:
    """Compare a call and its gradients with PyTorch's; gives the rows that threads had."""
    ours, theirs, shapes = CASES[name]
    tensors = [random(*(height or 1 if size == 0 else size for size in shape)) for shape in shapes]
    chosen: set[int] = set()
    run = cuda.launch

    def launch(launched: cuda.Launched) -> None:
        text = "".join(launched.source)
        found = re.findall(r"^#define rows_of_\w+ (\d+)\n(?!#endif)", text, re.MULTILINE)
        chosen.update(map(int, found))
        run(launched)

    for tensor in tensors:
        tensor.requires_grad_()
    wanted = theirs(*tensors)
    with (
        emulated("random", threads=32, products=Products.NEVER),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(cuda, "launch", launch)
        found = ours(*tensors)
        weights = random(*wanted.shape)
        gradients = torch.autograd.grad(found, tensors, weights)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted, tensors, weights))
    return chosen


@pytest.mark.parametrize("name", ["depthwise", "unfold"])
def test_rows_that_are_shared(name: str) -> None:
    assert 4 in rows_of(name, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("height", [1, 4, 6, 7, 12])
def test_every_number_of_rows(name: str, height: int) -> None:
    rows_of(name, height)


# ---------------------------------------------------------------------------- what one row asks for
@pytest.mark.sampled(2)
@pytest.mark.parametrize("on_gpu", [False, True], ids=["cpu", "emulated"])
@pytest.mark.parametrize("way", ["max", "min"])
def test_rows_that_numbers_choose(way: str, on_gpu: bool) -> None:
    """Whether a place exists is asked of each row: threads with several of them do not ask once."""
    op = opgen.compile(
        f"op f(v[N,E], idx: int[N]; V: size) -> y[V,E]\n  y[idx[n],e] {way}= v[n,e]\n"
    ).f
    values, places = random(24, 8).requires_grad_(), torch.arange(24) * 7 % 6
    wanted = torch.full((6, 8), math.inf if way == "min" else -math.inf).scatter_reduce(
        0, places[:, None].expand(24, 8), values, f"a{way}"
    )
    device = emulated("random", threads=32) if on_gpu else contextlib.nullcontext()
    with device:
        found = op(values, places, V=6)
        (gradient,) = torch.autograd.grad(found.sum(), values)
        with pytest.raises(IndexError, match="index 6 is outside of dimension 0 of 'y'"):
            op(values, torch.arange(24) % 7, V=6)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.sum(), values)[0])
