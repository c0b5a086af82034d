"""Wide windows on GPUs: how their loops are written, what is at the ends of images, what is read.

Small calls are given several rows for a thread, as large ones have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Accumulate, For, Kernel, walk
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.cuda_windows import PIECE
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.runtime import cuda_grid, special
from opgen.testing.cuda_on_cpu.emulated import emulated
from opgen.testing.cuda_on_cpu.traffic import movement


@cache
def conv() -> ModuleType:
    return opgen.load(SPECS / "conv.op")


@pytest.fixture(autouse=True)
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows for a thread as large calls have, and kernels of their own."""
    monkeypatch.setattr(cuda_grid, "LEAST_THREADS", 1)
    monkeypatch.setattr(special, "LARGE", 1)


# ---------------------------------------------------------------------------- loops
def window(taps: int, padding: int) -> Kernel:
    """The kernel of a depthwise convolution with a square filter of so many rows."""
    spec = f"""
op window(x[N,C,H,W], k[C,{taps},{taps}]) -> y[N,C,OH,OW]
  where H >= {taps}, W >= {taps}
  let OH = H + {2 * padding - taps + 1}, OW = W + {2 * padding - taps + 1}
  y[n,c,i,j] = sum(u in {taps}, v in {taps}) x[n,c, i + u - {padding} ?0, j + v - {padding} ?0]
      * k[c,u,v]
"""
    (op,) = read(Source(spec))
    (kernel,) = cuda_rows(schedule(op, gather(op)), facts_of(op)).kernels
    return kernel


def loops(kernel: Kernel) -> list[str]:
    """The names of the loops over terms."""
    assert kernel.group is not None
    found = (node.name for node in walk(kernel.body) if isinstance(node, For))
    return [name for name in found if name != kernel.group.axis.name]


def terms(kernel: Kernel) -> int:
    return sum(isinstance(node, Accumulate) for node in walk(kernel.body))


@pytest.mark.parametrize(
    ("taps", "names", "count"),
    [
        (3, [], 9),
        (5, [], 25),
        (7, [], 49),
        (8, ["u"], 8),
        (9, ["u", "v_piece"], PIECE),
        (31, ["u", "v_piece"], PIECE),
    ],
)
def test_what_is_written_out(taps: int, names: Sequence[str], count: int) -> None:
    """A thread has rows of the image, whatever is left in loops."""
    kernel = window(taps, taps // 2)
    assert kernel.group is not None
    assert kernel.row is not None
    assert (kernel.group.axis.name, kernel.row.axis.name) == ("i", "j")
    assert loops(kernel) == names
    assert terms(kernel) == count


# ---------------------------------------------------------------------------- results
CASES = [
    (taps, padding, (height, width))
    for taps, padding in ((5, 2), (5, 4), (7, 3), (8, 3), (9, 4), (12, 0), (17, 16), (31, 15))
    for height, width in ((20, 20), (13, 17), (32, 40))
]


def depthwise(
    taps: int, padding: int, size: tuple[int, int], dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Result and gradients of opgen's kernels, and PyTorch's; integers are exact."""
    generator = torch.Generator().manual_seed(taps)
    x = torch.randint(-3, 4, (2, 16, *size), generator=generator).to(dtype)
    weight = torch.randint(-3, 4, (16, 1, taps, taps), generator=generator).to(dtype)
    attributes = {"padding": padding, "groups": 16}
    tensors = x.requires_grad_(), weight.requires_grad_()
    theirs = F.conv2d(*tensors, **attributes)
    with emulated():
        ours = conv().conv2d(*tensors, **attributes)
    yield ours, theirs
    cotangent = torch.randint(-3, 4, theirs.shape, generator=generator).to(dtype)
    expected = torch.autograd.grad(theirs, tensors, cotangent)
    with emulated():
        found = torch.autograd.grad(ours, tensors, cotangent)
    yield from zip(found, expected, strict=True)


@pytest.mark.parametrize(
    ("taps", "padding", "size"),
    [case if case[0] in (7, 31) else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
@pytest.mark.sampled(8)
def test_results_and_gradients(taps: int, padding: int, size: tuple[int, int]) -> None:
    for ours, theirs in depthwise(taps, padding, size, torch.float32):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("taps", [7, 31])
def test_numbers_of_64_bits(taps: int) -> None:
    """Threads have other rows and stretches then."""
    for ours, theirs in depthwise(taps, taps // 2, (20, 20), torch.float64):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("taps", [7, 9])
def test_filters_that_are_not_finite(taps: int) -> None:
    """Zeros around an image are left out, not multiplied."""
    x, weight = torch.ones(1, 1, 20, 20), torch.zeros(1, 1, taps, taps)
    weight[0, 0, 0, 0] = torch.inf
    with emulated():
        y = conv().conv2d(x, weight, padding=taps // 2)
    expected = torch.zeros(1, 1, 20, 20)
    expected[..., taps // 2 :, taps // 2 :] = torch.inf
    torch.testing.assert_close(y, expected)


# ---------------------------------------------------------------------------- traffic
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("taps", "most"), [(5, 13), (7, 17), (9, 100), (31, 310)])
def test_what_is_read(taps: int, most: float) -> None:
    """Bytes that a result and a gradient ask the first cache for, for one of the image.

    Tap by tap they were 137, 267, 425 and 2192. Gradients of filters of up to 7 by 7 read each
    tensor once, see `cuda_sums`; tap by tap it was 157 times.
    """
    x = torch.rand(2, 16, 20, 20, generator=torch.Generator().manual_seed(0))
    weight = torch.rand(16, 1, taps, taps, generator=torch.Generator().manual_seed(1))
    with emulated(trace=True) as launches:
        y = conv().conv2d(x.requires_grad_(), weight, padding=taps // 2, groups=16)
        y.sum().backward()
    if taps <= 7:
        with emulated(trace=True) as sums:
            y = conv().conv2d(x.detach(), weight.requires_grad_(), padding=taps // 2, groups=16)
            y.sum().backward()
        launches.reports += sums.reports
    moved = [movement(report).first_cache for report in launches.reports]
    assert len(moved) >= 2
    assert max(moved) < most * x.nbytes
