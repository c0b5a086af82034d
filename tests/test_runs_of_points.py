"""Points of which little is computed: those along the last axis are a loop of their own in C."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import opgen
from opgen.on_demand import special_source

TEXT = """
op gate(x: float[N,C,H,W], g: float[N,C]) -> y[N,C,H,W]
  y[n,c,h,w] = x[n,c,h,w] * g[n,c]
op slope(x: float[N,C,H,W], a: float[C]) -> y[N,C,H,W]
  y[n,c,h,w] = select(x[n,c,h,w] > 0, x[n,c,h,w], a[c] * x[n,c,h,w])
op near(x: float[N,C,H,W]) -> y[N,C,H,W]
  y[n,c,h,w] = max(x[n,c,h,w], x[n,c,h,w+1 ?clamp])
op blocks(x[N,2,W]) -> y[N,2,W]
  y[n,i,w] = x[n,1-i,w]
op total(x: float[N,C,H,W]; size = 3) -> y[N,C,H,W]
  where size >= 1
  y[n,c,h,w] = sum(k in size) x[n,c, h + k ?0, w] * x[n,c,h,w]
op scaled(x: float[N], g: float[1]) -> y[N]
  y[n] = x[n] * g[0]
"""


def near(x: Tensor) -> Tensor:
    return torch.maximum(x, torch.cat([x[..., 1:], x[..., -1:]], -1))


SHAPES = [(2, 64, 9, 11), (3, 5, 1, 7), (1, 1030, 3, 5), (2, 2051, 1, 1), (1, 3, 6, 1500)]
"""The last ones have channels, or rows, that are several stretches."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_cell_is_computed(
    shape: tuple[int, ...], format_: torch.memory_format, threads: int
) -> None:
    ops = opgen.compile(TEXT)
    torch.manual_seed(0)
    x = torch.randn(shape).contiguous(memory_format=format_).requires_grad_()
    g, a = torch.randn(shape[:2]), torch.randn(shape[1])
    pairs = [
        (ops.gate(x, g), x * g[:, :, None, None]),
        (ops.slope(x, a), torch.where(x > 0, x, a[:, None, None] * x)),
        (ops.near(x), near(x)),
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for found, wanted in pairs:
            assert torch.equal(found, wanted)
            seed = torch.randn_like(wanted)
            ours, theirs = (torch.autograd.grad(y, x, seed)[0] for y in (found, wanted))
            assert (ours - theirs).abs().max() < 1e-5
    finally:
        torch.set_num_threads(before)


def runs(name: str, layout: int) -> bool:
    """Whether kernels, for images of a known size, have such a loop."""
    sizes = {} if name == "blocks" else {"H": 9, "W": 11}
    text = special_source(TEXT, "<spec>", (name,), sizes, layout)
    return re.search(r"for \(const int64_t \w+ = (\w+); \1 < ", text) is not None


def test_which_points_go_in_runs() -> None:
    assert runs("gate", 0b101)
    assert runs("slope", 0b101)
    assert not runs("slope", 0)  # the rows of a plane are a loop already
    assert not runs("total", 0b11)  # loops of its own
    assert not runs("scaled", 0)  # a single axis
    assert not runs("blocks", 0)  # two rows
