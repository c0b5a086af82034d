"""Gradients of filters that show, at a tap, whether image and cotangent are finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import convolution_tiles, library, library_call
from opgen.runtime.lookup_convolution_source import Convolved
from witness_calls import LAST, PLANES, Gradients, convolved, listening, spoiled

IMAGES = [
    ((2, 16, 4, 5), (16, 16, 3, 3), 1, 1, 1, 1, True),
    ((1, 32, 4, 5), (64, 16, 3, 3), 1, 1, 1, 2, True),
    ((1, 16, 5, 4), (32, 16, 5, 3), 1, (2, 1), 1, 1, True),
    ((1, 16, 5, 5), (16, 16, 3, 3), 1, 2, 2, 1, True),
    ((1, 16, 4, 5), (16, 16, 3, 3), 1, 0, 1, 1, False),
    ((1, 16, 4, 5), (16, 16, 3, 3), 1, 2, 1, 1, False),
    ((1, 32, 5, 6), (32, 16, 3, 3), 2, 1, 1, 2, False),
]
"""Shapes of image and weight, stride, padding, dilation, groups; and whether there is a tap that
meets all pixels."""

IMAGE_CASES = [
    *((each, format_, torch.float32) for format_ in (PLANES, LAST) for each in IMAGES),
    *((each, LAST, torch.bfloat16) for each in IMAGES if each[4] == 1),
    *((each, PLANES, torch.bfloat16) for each in IMAGES[:2]),
]


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[Convolved]:
    return listening(monkeypatch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each time that Python was asked for both gradients: whether the library gave them."""
    heard = []
    both = library_call._both

    def heard_of(*arguments: Any) -> library_call.Pair | None:
        found = both(*arguments)
        heard.append(found is not None)
        return found

    monkeypatch.setattr(library_call, "_both", heard_of)
    return heard


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("geometry", "format_", "dtype"), IMAGE_CASES)
def test_a_tap_shows_whether_both_images_are_finite(
    geometry: tuple[Any, ...],
    format_: torch.memory_format,
    dtype: torch.dtype,
    entered: list[Convolved],
    asked: list[bool],
) -> None:
    """In calls that were seen before: Python is asked if a number is not finite, and only then.

    In 16 bits it is asked if the whole gradient says so.
    """
    found = Gradients(geometry[:-1], format_, dtype)
    shows = geometry[-1] and dtype == torch.float32
    assert entered[-1].shows_images == shows
    assert entered[-1].checks_gradient == (geometry[3] != 0 or dtype != torch.float32)
    assert asked == [True], "not looked up"
    for image in spoiled(found.image):
        asked.clear()
        found.check(image, found.cotangent)
        assert asked == [False] or not shows
    for cotangent in spoiled(found.cotangent):
        asked.clear()
        found.check(found.image, cotangent)
        assert asked == [False] or not shows
    asked.clear()
    found.check(found.image, found.cotangent)
    assert asked == []


@pytest.mark.parametrize("format_", [PLANES, LAST])
def test_gradients_that_overflow_at_other_taps_are_kept(
    format_: torch.memory_format, entered: list[Convolved], asked: list[bool]
) -> None:
    """Products of finite numbers, for which the first tap alone has a term."""
    found = Gradients(((1, 16, 6, 5), (16, 16, 3, 3), 1, 1, 1, 1), format_, torch.float32)
    assert entered[-1].shows_images
    asked.clear()
    image, cotangent = found.image.clone(), found.cotangent.clone()
    image[0, 3, 2, 2], cotangent[0, 5, 3, 3] = 1e30, 1e30
    *_, gradient = found.check(image, cotangent)
    assert gradient.isinf().nonzero().tolist() == [[5, 3, 0, 0]]
    assert asked == []


def test_gradients_of_pieces_show_every_image(
    monkeypatch: pytest.MonkeyPatch, entered: list[Convolved], asked: list[bool]
) -> None:
    monkeypatch.setattr(library, "_CACHED", 0)
    monkeypatch.setattr(library, "_OUTWEIGHS", 0)
    monkeypatch.setattr(convolution_tiles, "tiles_of", lambda case, call: None)
    found = Gradients(((10, 20, 7, 6), (20, 20, 3, 3), 1, 1, 1, 1), PLANES, torch.float32)
    assert entered[-1].shows_images and entered[-1].at_once == 4
    asked.clear()
    for at in (0, 5, 9):
        image, cotangent = found.image.clone(), found.cotangent.clone()
        image[at, 4, 6, 0], cotangent[9 - at, 6, 0, 5] = torch.inf, torch.nan
        found.check(image, found.cotangent)
        found.check(found.image, cotangent)
    assert asked == [False] * 6


def test_tiles_of_opgen_are_looked_at_as_a_whole(entered: list[Convolved]) -> None:
    """Where the processor has vectors for them."""
    Gradients(((2, 20, 7, 8), (20, 20, 3, 3), 1, 1, 1, 1), PLANES, torch.float32)
    about = entered[-1]
    assert about.checks_gradient and bool(about.shows_images) == (not about.tiles)


def test_gradients_of_few_numbers_are_looked_at_as_a_whole(entered: list[Convolved]) -> None:
    """A tap would have an eighteenth of them."""
    Gradients(((1, 64, 4, 5), (64, 4, 3, 3), 1, 1, 1, 16), LAST, torch.float32)
    about = entered[-1]
    assert about.checks_gradient and not about.tiles and not about.shows_images


def test_rows_of_one_dim(entered: list[Convolved], asked: list[bool]) -> None:
    conv = opgen.load(SPECS / "conv.op").conv1d
    torch.manual_seed(0)
    rows, filters = torch.randn(2, 64, 9), (torch.randn(64, 64, 3) / 8).requires_grad_()
    flowing = torch.randn(2, 64, 9)

    def check(image: Tensor, cotangent: Tensor) -> None:
        given = image.clone().requires_grad_(), filters
        got = torch.autograd.grad(conv(*given, padding=1), given, cotangent)
        x, w = (each.detach().double().requires_grad_() for each in given)
        y = convolved(x[:, :, None], w[:, :, None], 1, (0, 1), 1)[:, :, 0]
        for one, other in zip(got, torch.autograd.grad(y, (x, w), cotangent.double()), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3, equal_nan=True)

    for _ in range(2):
        check(rows, flowing)
    assert entered[-1].shows_images and asked == [True]
    for at in (0, 4, 8):
        image, cotangent = rows.clone(), flowing.clone()
        image[1, 63, at], cotangent[0, 63, at] = torch.inf, torch.nan
        check(image, flowing)
        check(rows, cotangent)
    assert asked == [True] + [False] * 6
