"""Memory traffic of generated kernels: what reaches the second cache, and how wide accesses are.

Bounds are of what the second cache moves, as a multiple of what the device's memory must: 1.15, and
1.35 where blocks read the same halo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType

import pytest
import torch

import opgen
from catalogue import SPECS
from opgen.testing.cuda_on_cpu import Report
from opgen.testing.cuda_on_cpu.emulated import emulated
from opgen.testing.cuda_on_cpu.traffic import bank_conflicts, movement, widths

PLAIN, HALO = 1.15, 1.35


@cache
def module(stem: str) -> ModuleType:
    return opgen.load(SPECS / f"{stem}.op")


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)))


def traced(call: Callable[[], torch.Tensor]) -> list[Report]:
    """The launches of a call in the emulator, which give what the CPU gives."""
    with emulated(trace=True) as launches:
        got = call()
    torch.testing.assert_close(got, call())
    return launches.reports


def gradient(call: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> torch.Tensor:
    """The gradient for a tensor of that shape, where that of the result is random."""
    x = random(*shape).requires_grad_()
    y = call(x)
    return torch.autograd.grad(y, x, random(*y.shape))[0]


def filter_gradient(
    x: torch.Tensor, filters: torch.Tensor, stem: str = "conv", **given: int
) -> torch.Tensor:
    """The gradient for the filters of a depthwise convolution."""
    filters = filters.requires_grad_()
    y = getattr(module(stem), f"{stem}2d")(x, filters, groups=len(filters), **given)
    return torch.autograd.grad(y, filters, random(*y.shape))[0]


MASKED = opgen.compile(
    "op masked(x[B,C,H,W], mask[H,W]) -> y[B,C,H,W]\n  y[b,c,h,w] = x[b,c,h,w] * mask[h,w]"
)


def mask_gradient(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The gradient for a mask that all images and channels share."""
    y = MASKED.masked(x, mask.requires_grad_())
    return torch.autograd.grad(y, mask, random(*y.shape))[0]


def second_cache(report: Report) -> float:
    """Bytes that reach the second cache, for one of the device's memory."""
    moved = movement(report)
    return moved.second_cache / moved.device


CASES: dict[str, tuple[Callable[[], torch.Tensor], float]] = {
    "shift_sum": (
        lambda: module("shift_sum").shift_sum(random(1, 8, 16, 256), step=2),
        PLAIN,
    ),
    "depth_to_space": (
        lambda: module("depth_to_space").depth_to_space(random(1, 16, 16, 128), r=2),
        PLAIN,
    ),
    "nearest": (
        lambda: module("upsample_nearest").upsample_nearest(random(1, 4, 32, 128)),
        PLAIN,
    ),
    "bilinear": (
        lambda: module("upsample_bilinear").upsample_bilinear(random(1, 4, 32, 128)),
        HALO,
    ),
    "depthwise": (
        lambda: module("conv").conv2d(
            random(1, 8, 32, 128), random(8, 1, 3, 3), padding=1, groups=8
        ),
        HALO,
    ),
    "transposed": (
        lambda: module("conv_transpose").conv_transpose2d(
            random(1, 8, 16, 128), random(8, 1, 2, 2), stride=2, groups=8
        ),
        PLAIN,
    ),
    "unfold": (
        lambda: module("unfold").unfold(random(1, 4, 32, 128), kernel_size=3, padding=1),
        HALO,
    ),
    "depthwise filter backward": (
        lambda: filter_gradient(random(1, 8, 32, 128), random(8, 1, 3, 3), padding=1),
        HALO,
    ),
    "transposed filter backward": (
        lambda: filter_gradient(
            random(1, 8, 16, 128), random(8, 1, 2, 2), "conv_transpose", stride=2
        ),
        PLAIN,
    ),
    "mask backward": (lambda: mask_gradient(random(8, 16, 8, 32), random(8, 32)), PLAIN),
    "bilinear backward": (
        lambda: gradient(module("upsample_bilinear").upsample_bilinear, 1, 4, 32, 128),
        HALO,
    ),
    "shift_sum backward": (
        lambda: gradient(lambda x: module("shift_sum").shift_sum(x, step=2), 1, 8, 16, 256),
        PLAIN,
    ),
    "depth_to_space backward": (
        lambda: gradient(lambda x: module("depth_to_space").depth_to_space(x, r=2), 1, 16, 16, 128),
        PLAIN,
    ),
}


OFTEN = ("shift_sum", "depth_to_space", "depthwise", "unfold", "transposed filter backward")


def marked(names: Iterable[str]) -> list[object]:
    """The cases of a test; those that others stand for are slow."""
    return [
        pytest.param(name, marks=() if name in OFTEN else (pytest.mark.slow,)) for name in names
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", marked(CASES))
def test_little_more_than_needed_is_moved(name: str) -> None:
    call, bound = CASES[name]
    for report in traced(call):
        assert second_cache(report) <= bound, (report.kernel, second_cache(report))
        assert bank_conflicts(report) <= 2


@pytest.mark.parametrize("name", marked(n for n in CASES if not n.startswith("shift_sum")))
def test_one_side_is_16_bytes_wide(name: str) -> None:
    for report in traced(CASES[name][0]):
        assert any(16 in found for found in widths(report).values()), report.kernel


def test_halos_of_small_blocks_are_noticed() -> None:
    """Negative control: blocks of one thread read what their neighbours do once more."""
    call, bound = CASES["depthwise"]
    with emulated(trace=True, threads=1) as launches:
        call()
    (report,) = launches.reports
    assert second_cache(report) > 1.5 * bound
