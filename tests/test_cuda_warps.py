"""Loops that leave the row: the threads of a warp read one row of a tensor side by side."""

from __future__ import annotations

import pytest
import torch

import opgen
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import For, Kernel, Row, walk
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.testing.cuda_on_cpu.emulated import emulated

SPEC = """
op shifted(x[B,C,H,W]; step = 1) -> y[B,H,V]
  where step >= 0
  let V = W + (C-1)*step
  y[b,h,v] = sum(c) x[b,c,h, v - c*step ?0]

op by_two(x[B,C,H,W]) -> y[B,H,V]
  let V = W + (C-1)*2
  y[b,h,v] = sum(c) x[b,c,h, v - 2*c ?0]

op window(x[N,W], k[L]) -> y[N,W]
  y[n,w] = sum(l) x[n, w + l - 2 ?0] * k[l]
"""


def kernel_of(name: str) -> Kernel:
    (op,) = (op for op in read(Source(SPEC)) if op.name == name)
    (kernel,) = cuda_rows(schedule(op, gather(op)), facts_of(op)).kernels
    return kernel


def shifted(x: torch.Tensor, step: int) -> torch.Tensor:
    """As PyTorch users write it."""
    batch, channels, height, width = x.shape
    y = x.new_zeros(batch, height, width + (channels - 1) * step)
    for c in range(channels):
        y[..., c * step : c * step + width] += x[:, c]
    return y


def ends_of(kernel: Kernel, loop: str) -> frozenset[str]:
    """What the ends of a loop depend on."""
    (node,) = (each for each in walk(kernel.body) if isinstance(each, For) and each.name == loop)
    return frozenset[str]().union(*(bound.symbols for bound in (*node.lower, *node.upper)))


def row_of(kernel: Kernel) -> Row:
    assert kernel.row is not None
    return kernel.row


def test_which_loops_have_the_ends_of_a_warp() -> None:
    """Not that over a window, whose turns are neighbours in memory."""
    kernel = kernel_of("by_two")
    assert row_of(kernel).around == ("v_warp_first", "v_warp_last")
    assert ends_of(kernel, "c") == {"C", "W", "v_warp_first", "v_warp_last"}
    kernel = kernel_of("window")
    assert row_of(kernel).around is None
    assert ends_of(kernel, "l") == {"L", "W", "w_first", "w_last"}


@pytest.mark.parametrize("step", [0, 1, 2, 3, 40])
@pytest.mark.parametrize("shape", [(2, 40, 3, 5), (1, 70, 8, 64), (1, 3, 2, 200), (1, 1, 1, 1)])
@pytest.mark.sampled(12)
def test_every_channel_is_added_once(shape: tuple[int, int, int, int], step: int) -> None:
    """Integers are exact; with few threads a block and few blocks, too."""
    ops = opgen.compile(SPEC)
    x = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(0))
    for blocks in (None, (1, 1, 1)):
        limits = {} if blocks is None else {"threads": 48, "most_blocks": blocks}
        with emulated(**limits):
            assert torch.equal(ops.shifted(x, step=step), shifted(x, step))
        with emulated(**limits):
            assert torch.equal(ops.shifted(x.float(), step=step), shifted(x.float(), step))
