"""Places of a convolution's results that show whether what it multiplies is finite."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import convolution_witness
from opgen.runtime.library import Case
from opgen.runtime.lookup_convolution_source import Convolved
from witness_calls import convolved, listening

LAST, PLANES = torch.channels_last, torch.contiguous_format


def case(
    image: int, result: int, taps: int, stride: int, padding: int, dilation: int, rank: int = 1
) -> Case:
    """One geometry for every dim."""
    batch, tensors = (1, 1), []
    for size in (result, image, taps):
        tensors.append(batch + (size,) * rank)
    y, x, w = tensors
    return Case(1, (stride,) * rank, (padding,) * rank, (dilation,) * rank, y, x, w, PLANES)


@pytest.mark.parametrize("rank", [1, 2])
def test_the_first_place_of_all_that_have_every_term(rank: int) -> None:
    """Against all of them, one by one."""
    found: set[bool] = set()
    for image, taps, stride, padding, dilation in itertools.product(
        range(1, 9), range(1, 6), (1, 2, 3), range(4), (1, 2)
    ):
        result = (image + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        if result < 1:
            continue

        terms = {
            (o, i, o * stride - padding + i * dilation)
            for o in range(result)
            for i in range(taps)
            if 0 <= o * stride - padding + i * dilation < image
        }

        def first(index: int, of: int, every: int, terms: Any = terms) -> tuple[int, ...] | None:
            """The first of `of` places that as many terms have as there are others."""
            met = [sum(term[index] == place for term in terms) for place in range(of)]
            return (met.index(every),) * rank if every in met else None

        geometry = case(image, result, taps, stride, padding, dilation, rank)
        pixel = convolution_witness.pixel_of_result(geometry)
        assert pixel == first(0, result, taps)
        assert convolution_witness.pixel_of_image(geometry) == (
            first(2, image, taps) if stride == 1 else None
        )
        found.add(pixel is None)
    assert found == {True, False}


@pytest.mark.parametrize("rank", [1, 2])
def test_the_tap_that_meets_all_pixels_of_both(rank: int) -> None:
    """Against all taps, one by one."""
    found: set[bool] = set()
    for image, taps, stride, padding, dilation in itertools.product(
        range(1, 9), range(1, 6), (1, 2, 3), range(5), (1, 2, 3)
    ):
        result = (image + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        if result < 1:
            continue

        def meets_all(tap: int, about: tuple[int, ...]) -> bool:
            result, image, stride, shift, dilation = about
            met = [o * stride - shift + tap * dilation for o in range(result)]
            return met == list(range(image))

        about = result, image, stride, padding, dilation
        all_met = [tap for tap in range(taps) if meets_all(tap, about)]
        tap = convolution_witness.tap_of_weight(
            case(image, result, taps, stride, padding, dilation, rank)
        )
        if stride == 1:
            assert [tap] == ([(each,) * rank for each in all_met] or [None])
        else:
            assert tap is None
        found.add(tap is None)
    assert found == {True, False}


def test_a_tap_of_other_dims() -> None:
    tensors = (1, 1, 7, 6), (1, 1, 7, 6), (1, 1, 5, 3)
    geometry = Case(1, (1, 1), (2, 2), (1, 2), *tensors, PLANES)
    assert convolution_witness.tap_of_weight(geometry) == (2, 1)
    one_strided = Case(1, (1, 2), (2, 2), (1, 2), *tensors, PLANES)
    assert convolution_witness.tap_of_weight(one_strided) is None


GEOMETRIES = [
    ((2, 16, 5, 6), (16, 16, 3, 3), 1, 1, 1, (True, True)),
    ((1, 32, 4, 7), (32, 16, 3, 3), 1, 1, 2, (True, True)),
    ((2, 16, 7, 6), (16, 16, 3, 3), 2, 1, 1, (True, False)),
    ((1, 16, 5, 5), (16, 16, 5, 3), 1, 2, 1, (True, True)),
    ((1, 16, 2, 2), (16, 16, 3, 3), 1, 1, 1, (False, False)),
]
"""Shapes of image and weight, stride, padding, groups; and whether there is a pixel of the result,
and one of the image's gradient, that have every term."""

CASES = [
    *((geometry, PLANES, torch.float32) for geometry in GEOMETRIES),
    (GEOMETRIES[0], LAST, torch.float32),
    (GEOMETRIES[0], LAST, torch.bfloat16),
    (GEOMETRIES[1], PLANES, torch.bfloat16),
]


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[Convolved]:
    return listening(monkeypatch)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("geometry", "format_", "dtype"), CASES)
def test_numbers_that_are_not_finite_meet_no_zero_of_the_padding(
    geometry: tuple[Any, ...],
    format_: torch.memory_format,
    dtype: torch.dtype,
    entered: list[Convolved],
) -> None:
    """Each tap of a first and a last channel in turn, in calls that were seen before."""
    shape, filter_shape, stride, padding, groups, shows = geometry
    conv = opgen.load(SPECS / "conv.op").conv2d
    more = {"stride": stride, "padding": padding, "groups": groups}
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype).contiguous(memory_format=format_)
    weight = (torch.randn(filter_shape) / 8).to(dtype)
    for _ in range(3):
        conv(x, weight, **more)
    assert len(entered) == 1, "not looked up"
    assert entered[0].shows_weight == shows[0]
    channels = (0, 0), (filter_shape[0] - 1, filter_shape[1] - 1)
    taps = list(itertools.product(*map(range, filter_shape[2:])))
    numbers = itertools.cycle((torch.inf, -torch.inf, torch.nan))
    for channel, tap, number in zip(itertools.cycle(channels), taps, numbers, strict=False):
        spoiled = weight.clone()
        spoiled[(*channel, *tap)] = number
        got, wanted = (
            conv(x, spoiled, **more).double(),
            convolved(x, spoiled, stride, padding, groups),
        )
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("geometry", "format_", "dtype"), CASES)
def test_gradients_of_numbers_that_are_not_finite(
    geometry: tuple[Any, ...],
    format_: torch.memory_format,
    dtype: torch.dtype,
    entered: list[Convolved],
) -> None:
    """A number of the weight, or of the cotangent, at the borders and within."""
    shape, filter_shape, stride, padding, groups, shows = geometry
    conv = opgen.load(SPECS / "conv.op").conv2d
    more = {"stride": stride, "padding": padding, "groups": groups}
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype).contiguous(memory_format=format_).requires_grad_()
    weight = (torch.randn(filter_shape) / 8).to(dtype).requires_grad_()

    def gradients(weight: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
        y = conv(x, weight, **more)
        return torch.autograd.grad(y, (x, weight), cotangent.to(dtype))

    like = convolved(x.detach(), weight.detach(), stride, padding, groups)
    cotangent = torch.randn(like.shape)
    for _ in range(3):
        gradients(weight, cotangent)
    assert entered[-1].shows_weight == shows[1]

    def expected(weight: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
        leaves = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
        y = convolved(*leaves, stride, padding, groups)
        return torch.autograd.grad(y, leaves, cotangent.to(dtype).double())

    def check(weight: Tensor, cotangent: Tensor) -> None:
        pairs = zip(gradients(weight, cotangent), expected(weight, cotangent), strict=True)
        for got, wanted in pairs:
            torch.testing.assert_close(got.double(), wanted, rtol=0.02, atol=0.05, equal_nan=True)

    last = tuple(size - 1 for size in like.shape)
    middle = tuple(size // 2 for size in like.shape)
    for place in ((0, 0, 0, 0), last, middle, (0, last[1], 0, last[3])):
        spoiled = cotangent.clone()
        spoiled[place] = torch.inf
        check(weight, spoiled)
    for tap in ((0, 0, 0, 0), (0, 0, 1, 1), (0, 0, filter_shape[2] - 1, filter_shape[3] - 1)):
        other = weight.detach().clone()
        other[tap] = torch.inf
        check(other.requires_grad_(), cotangent)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("spec", "shape", "filter_shape", "stride"),
    [("conv_transpose", (1, 4, 1, 9), (4, 4, 2, 2), 2), ("conv", (1, 16, 5, 5), (16, 16, 3, 3), 1)],
)
def test_images_that_are_not_finite_meet_no_zeros_of_blocks(
    spec: str,
    shape: tuple[int, ...],
    filter_shape: tuple[int, ...],
    stride: int,
    dtype: torch.dtype,
) -> None:
    """In 16 bits the library gives NaN for the filter's gradient where the sum is infinite."""
    name = f"{spec}2d"
    ours, theirs = getattr(opgen.load(SPECS / f"{spec}.op"), name), getattr(F, name)
    weight = torch.ones(filter_shape, dtype=dtype, requires_grad=True)
    for _ in range(3):
        for place in (0, -1):
            x = torch.ones(shape, dtype=dtype)
            x.view(-1)[place] = torch.inf
            x.requires_grad_()
            y = ours(x, weight, stride=stride)
            _, got = torch.autograd.grad(y, (x, weight), torch.ones_like(y))
            exact = theirs(x.double(), weight.double(), stride=stride)
            (wanted,) = torch.autograd.grad(exact, weight, torch.ones_like(exact))
            torch.testing.assert_close(got, wanted)
