"""Convolutions of which a part shows whether numbers are finite: naive ones, and what is said of
those that are looked up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import lookup_convolution
from opgen.runtime.lookup_convolution_source import Convolved

LAST, PLANES = torch.channels_last, torch.contiguous_format


def listening(monkeypatch: pytest.MonkeyPatch) -> list[Convolved]:
    """What is said of convolutions that are entered in tables from now on."""
    heard = []
    described = lookup_convolution._described

    def heard_of(*arguments: Any) -> list[int]:
        found = described(*arguments)
        heard.append(Convolved(*found[: len(Convolved._fields)]))
        return found

    monkeypatch.setattr(lookup_convolution, "_described", heard_of)
    return heard


def convolved(
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: int | tuple[int, int],
    groups: int,
    dilation: int = 1,
) -> Tensor:
    """A convolution that has no terms for padding, in double precision, tap by tap."""
    above, before = (padding, padding) if isinstance(padding, int) else padding
    batch, _, *pixels = x.shape
    results, shared, *taps = weight.shape
    sizes = [
        (size + 2 * around - dilation * (tap - 1) - 1) // stride + 1
        for size, around, tap in zip(pixels, (above, before), taps, strict=True)
    ]
    y = torch.zeros(batch, groups, results // groups, *sizes, dtype=torch.float64)
    images = x.double().reshape(batch, groups, shared, *pixels)
    filters = weight.double().reshape(groups, results // groups, shared, *taps)
    for i, j in itertools.product(*map(range, taps)):
        for v, u in itertools.product(*map(range, sizes)):
            row = v * stride - above + i * dilation
            column = u * stride - before + j * dilation
            if 0 <= row < pixels[0] and 0 <= column < pixels[1]:
                pixel = images[..., row, column]
                y[..., v, u] += torch.einsum("bgc,gkc->bgk", pixel, filters[..., i, j])
    return y.reshape(batch, results, *sizes)


class Gradients:
    """Those of a convolution with two calls for finite numbers behind it: of image and weight,
    or of one of them."""

    def __init__(
        self,
        geometry: tuple[Any, ...],
        format_: torch.memory_format,
        dtype: torch.dtype,
        wanted: tuple[int, ...] = (0, 1),
    ) -> None:
        self.wanted = wanted
        shape, filter_shape, *self.geometry = geometry
        torch.manual_seed(0)
        self.conv = opgen.load(SPECS / "conv.op").conv2d
        self.weight = (torch.randn(filter_shape) / 8).to(dtype)
        self.image = torch.randn(shape).to(dtype).contiguous(memory_format=format_)
        like = self.naive(self.image, self.weight)
        self.cotangent = torch.randn(like.shape).to(dtype).contiguous(memory_format=format_)
        for _ in range(2):
            self.check(self.image, self.cotangent)

    def naive(self, image: Tensor, weight: Tensor) -> Tensor:
        stride, padding, dilation, groups = self.geometry
        return convolved(image, weight, stride, padding, groups, dilation)

    def check(
        self, image: Tensor, cotangent: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Those of opgen, which are those of the naive loops."""
        names = ("stride", "padding", "dilation", "groups")
        given = [each.detach() for each in (image, self.weight if weight is None else weight)]
        asked = [given[at].requires_grad_() for at in self.wanted]
        y = self.conv(*given, **dict(zip(names, self.geometry, strict=True)))
        got = torch.autograd.grad(y, asked, cotangent)
        exact = [each.detach().double().requires_grad_() for each in given]
        wanted = torch.autograd.grad(
            self.naive(*exact), [exact[at] for at in self.wanted], cotangent.double()
        )
        for one, other in zip(got, wanted, strict=True):
            in_type = other.to(one.dtype).double()  # large numbers are infinite in it
            torch.testing.assert_close(one.double(), in_type, rtol=0.02, atol=0.05, equal_nan=True)
        return got


def spoiled(tensor: Tensor) -> Iterator[Tensor]:
    """Copies with one number that is not finite: at corners, a border and within."""
    *_, height, width = tensor.shape
    pixels = (0, 0), (height - 1, width - 1), (height // 2, width - 1), (height // 2, width // 2)
    places = itertools.product(pixels, (0, tensor.shape[1] - 1))
    numbers = itertools.cycle((torch.inf, -torch.inf, torch.nan))
    for (pixel, channel), number in zip(places, numbers, strict=False):
        copy = tensor.clone()
        copy[-1, channel, pixel[0], pixel[1]] = number
        yield copy
