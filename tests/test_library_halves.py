"""Convolutions of 16 bits where PyTorch's library is not right, beside sums over single taps.

It multiplies channels in pairs, and of an odd number the last one's partner is a number of another
pixel or group, times zero: NaN where that is infinite. Gradients of dilated filters read memory
that nobody wrote.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen

SPECS = Path(__file__).parent.parent / "specs"
CALLS = 3  # the first is checked in full, the second planned, and the third looked up


@pytest.fixture(autouse=True)
def general_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library is not asked for needs no kernels of its own here."""
    monkeypatch.setattr("opgen.runtime.special.MOST", 0)


def convolution() -> Any:
    return opgen.load(SPECS / "conv.op").conv2d


def reached(size: int, tap: int, padding: int, dilation: int) -> tuple[slice, slice]:
    """The pixels of the result, and those of the image, that a tap brings together.

    Both have the same size.
    """
    moved = tap * dilation - padding
    first, last = max(0, -moved), min(size, size - moved)
    return slice(first, last), slice(first + moved, last + moved)


def by_taps(
    image: Tensor, weight: Tensor, cotangent: Tensor, padding: int, dilation: int, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The result and both gradients: every product where it belongs, and no others."""
    image, weight, cotangent = image.double(), weight.double(), cotangent.double()
    results = (torch.zeros_like(cotangent), torch.zeros_like(image), torch.zeros_like(weight))
    outputs, inputs, *taps = weight.shape
    for row, column in itertools.product(*map(range, taps)):
        at_rows, of_rows = reached(image.shape[2], row, padding, dilation)
        at_columns, of_columns = reached(image.shape[3], column, padding, dilation)
        for output, within in itertools.product(range(outputs), range(inputs)):
            source = output // (outputs // groups) * inputs + within
            pixels = image[:, source, of_rows, of_columns]
            given = cotangent[:, output, at_rows, at_columns]
            tap = weight[output, within, row, column]
            results[0][:, output, at_rows, at_columns] += pixels * tap
            results[1][:, source, of_rows, of_columns] += given * tap
            results[2][output, within, row, column] += (pixels * given).sum()
    return results


def assert_right(found: Tensor, wanted: Tensor) -> None:
    """Finite numbers are near, and the others are where they have to be."""
    is_finite = wanted.isfinite()
    assert torch.equal(found.isfinite(), is_finite)
    torch.testing.assert_close(
        found[is_finite].double(), wanted[is_finite], rtol=2e-2, atol=2e-2 * len(wanted) ** 0.5
    )


def check(
    image: Tensor, weight: Tensor, cotangent: Tensor, padding: int, dilation: int, groups: int
) -> None:
    conv2d = convolution()
    wanted = by_taps(image, weight, cotangent, padding, dilation, groups)
    for _ in range(CALLS):
        leaves = image.detach().requires_grad_(), weight.detach().requires_grad_()
        result = conv2d(*leaves, padding=padding, dilation=dilation, groups=groups)
        found = (result, *torch.autograd.grad(result, leaves, cotangent))
        for one, other in zip(found, wanted, strict=True):
            assert_right(one.detach(), other)


@pytest.mark.parametrize(
    ("is_last", "value"),
    [(False, float("inf")), (True, float("nan"))],
    ids=["infinity", "nan, channels_last"],
)
@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(3, 16, 1), (16, 3, 1), (6, 10, 2), (1, 8, 1)]
)
@pytest.mark.sampled(4)
def test_infinity_stays_where_it_is(
    channels: int, outputs: int, groups: int, is_last: bool, value: float
) -> None:
    torch.manual_seed(0)
    format_ = torch.channels_last if is_last else torch.contiguous_format
    image = torch.randn(1, channels, 7, 8).bfloat16().contiguous(memory_format=format_)
    weight = torch.randn(outputs, channels // groups, 3, 3).bfloat16()
    cotangent = torch.randn(1, outputs, 7, 8).bfloat16().contiguous(memory_format=format_)
    for at in ((0, 0, 0, 0), (0, channels - 1, 6, 3), (0, channels // 2, 3, 7)):
        spoiled = image.clone()
        spoiled[at] = value
        check(spoiled, weight, cotangent, 1, 1, groups)
    for at in ((0, 0, 0, 0), (0, outputs - 1, 6, 3)):
        spoiled = cotangent.clone()
        spoiled[at] = value
        check(image, weight, spoiled, 1, 1, groups)


@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
def test_gradients_of_dilated_filters(is_last: bool) -> None:
    torch.manual_seed(0)
    format_ = torch.channels_last if is_last else torch.contiguous_format
    image = torch.randn(1, 12, 24, 33).bfloat16().contiguous(memory_format=format_)
    weight = torch.randn(12, 4, 3, 3).bfloat16().contiguous(memory_format=torch.channels_last)
    cotangent = torch.randn(1, 12, 24, 33).bfloat16().contiguous(memory_format=format_)
    check(image, weight, cotangent, 2, 2, 3)
