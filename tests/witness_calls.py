"""Convolutions of which a part shows whether numbers are finite: naive ones, and what is said of
those that are looked up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from opgen.runtime import lookup_convolution
from opgen.runtime.lookup_convolution_source import Convolved


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
