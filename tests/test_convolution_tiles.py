"""Convolutions of few channels by tiles: numbers, memory and threads."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from guarded_memory import before_a_page
from opgen.runtime import (
    build,
    convolution_lanes_result,
    convolution_lanes_weight,
    convolution_pixels_result,
    convolution_pixels_weight,
    convolution_planes_result,
    convolution_planes_weight,
    convolution_tiles,
    convolution_tiles_source,
)
from opgen.runtime.convolution_tiles import Target, Tiles, VectorLayout
from opgen.runtime.convolution_tiles_source import Tiled
from tile_calls import (
    EVERY,
    HAS_VECTORS,
    check,
    check_calls,
    exact,
    forgotten_plans,
    leaf,
    listening,
)

CONV = opgen.load(SPECS / "conv.op")
TRANSPOSED = opgen.load(SPECS / "conv_transpose.op")

FORMATS = {
    VectorLayout.PLANES: torch.contiguous_format,
    VectorLayout.PIXELS: torch.channels_last,
    VectorLayout.LANES: torch.channels_last,
}
IN_LANES = ((1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (4, 4))
"""Channels and results of groups of which a vector has several."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    with forgotten_plans():
        yield


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    return listening(monkeypatch)


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> set[VectorLayout]:
    """Those of the plans that are made."""
    found: set[VectorLayout] = set()
    tiles_of = convolution_tiles.tiles_of

    def listening(*arguments: Any) -> Tiles | None:
        made = tiles_of(*arguments)
        found.update(() if made is None else (made.layout,))
        return made

    monkeypatch.setattr(convolution_tiles, "tiles_of", listening)
    return found


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles wherever they can be, however small and slow."""
    monkeypatch.setattr(convolution_tiles, "_is_worth", lambda about, target, layout: True)


# ---------------------------------------------------------------------------- numbers
@pytest.mark.parametrize("layout", VectorLayout)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sampled(12)
def test_random_geometries(
    seed: int, layout: VectorLayout, always: None, heard: list[Target], layouts: set[VectorLayout]
) -> None:
    """Result and gradients are those of PyTorch in float64: in Python, and looked up."""
    torch.manual_seed(seed)
    draw, format_ = random.Random(seed), FORMATS[layout]
    for _ in range(10):
        heard.clear()
        groups = draw.choice((1, 1, 2, 3))
        inner, outer = draw.randint(8, 20), draw.randint(8, 20)
        if layout is VectorLayout.LANES:
            groups = draw.randint(2, 21)
            inner, outer = draw.choice(IN_LANES)
        taps = draw.randint(1, 4), draw.randint(1, 5)
        dilation = draw.randint(1, 3), draw.randint(1, 3)
        reach = [step * (count - 1) for step, count in zip(dilation, taps, strict=True)]
        padding = tuple(draw.randint(0, most) for most in reach)
        size = [
            draw.randint(max(1, least + 1 - 2 * around), least + more)
            for least, around, more in zip(reach, padding, (20, 70), strict=True)
        ]
        x = leaf(draw.randint(1, 4), groups * inner, *size, format_=format_)
        weight = leaf(groups * outer, inner, *taps)
        bias = leaf(groups * outer) if draw.random() < 0.5 else None
        leaves = [x, weight] if bias is None else [x, weight, bias]
        about: dict[str, Any] = {"padding": padding, "dilation": dilation, "groups": groups}
        check_calls(CONV.conv2d, F.conv2d, leaves, format_, **about)
        assert set(heard) == EVERY, (x.shape, weight.shape, about)
    assert layout in layouts or not HAS_VECTORS


@pytest.mark.parametrize("layout", VectorLayout)
def test_transposed_convolutions(layout: VectorLayout, always: None, heard: list[Target]) -> None:
    """A public op of its own, with a bias, whose weight has channels of the image first."""
    torch.manual_seed(0)
    format_, (outer, inner) = FORMATS[layout], (2, 4) if layout is VectorLayout.LANES else (9, 10)
    several = (2, 9) if layout is VectorLayout.LANES else (1, 2)
    for groups, taps, padding, dilation in itertools.product(several, (1, 2, 3), (0, 1), (1, 2)):
        if padding > dilation * (taps - 1):
            continue
        heard.clear()
        x = leaf(2, outer * groups, 8, 11, format_=format_)
        weight = leaf(outer * groups, inner, taps, taps)
        leaves = [x, weight, leaf(inner * groups)]
        about: dict[str, Any] = {"padding": padding, "dilation": dilation, "groups": groups}
        check_calls(TRANSPOSED.conv_transpose2d, F.conv_transpose2d, leaves, format_, **about)
        assert set(heard) == EVERY


@pytest.mark.parametrize("layout", VectorLayout)
def test_second_derivatives(layout: VectorLayout, always: None, heard: list[Target]) -> None:
    torch.manual_seed(0)
    format_ = FORMATS[layout]
    groups, inner, outer = (9, 2, 2) if layout is VectorLayout.LANES else (1, 10, 12)
    x = leaf(2, groups * inner, 7, 9, format_=format_)
    weight = leaf(groups * outer, inner, 3, 3)

    def twice(conv: Callable[..., Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
        y = conv(*leaves, padding=1, groups=groups)
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), leaves)

    wanted = twice(F.conv2d, *exact(x, weight))
    for _ in range(2):
        for got, expected in zip(twice(CONV.conv2d, x, weight), wanted, strict=True):
            check(got, expected, format_)
    assert set(heard) == EVERY


def test_tensors_with_other_strides(always: None, heard: list[Target]) -> None:
    """Weights may have any; views that negate have other numbers in memory."""
    torch.manual_seed(0)
    x = torch.randn(2, 10, 9, 8)
    for weight in (
        torch.randn(10, 12, 3, 3).transpose(0, 1),
        torch.randn(12, 10, 3, 3).flip(2, 3).transpose(2, 3),
        torch.randn(12, 1, 3, 3).expand(12, 10, 3, 3),
        torch.randn(12, 10, 3, 3, dtype=torch.complex64).conj().imag,
        torch.randn(12, 10, 3, 3).contiguous(memory_format=torch.channels_last),
    ):
        heard.clear()
        for _ in range(2):
            check(CONV.conv2d(x, weight, padding=1), F.conv2d(*exact(x, weight), padding=1))
        assert heard[:1] == [Target.RESULT] * HAS_VECTORS
    heard.clear()
    weight = torch.randn(12, 10, 3, 3)
    for image in (x.transpose(2, 3), x[..., 1:], torch.randn(2, 10, 1, 8).expand(2, 10, 9, 8)):
        check(CONV.conv2d(image, weight, padding=1), F.conv2d(*exact(image, weight), padding=1))
    bias = torch.randn(1).expand(12)
    check(CONV.conv2d(x, weight, bias, padding=1), F.conv2d(*exact(x, weight, bias), padding=1))
    assert not heard


@pytest.mark.parametrize("channels", [4, 10])
def test_weights_with_other_strides_in_channels_last_format(
    channels: int, always: None, heard: list[Target]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5 * channels, 9, 8).contiguous(memory_format=torch.channels_last)
    results, taps = 5 * channels, torch.randn(5 * channels, channels, 3, 3)
    for weight in (
        torch.randn(channels, results, 3, 3).transpose(0, 1),
        taps.flip(2, 3).transpose(2, 3),
        taps[:, :1].expand(results, channels, 3, 3),
        taps[:1].expand(results, channels, 3, 3),
        taps.contiguous(memory_format=torch.channels_last),
    ):
        heard.clear()
        for _ in range(2):
            got = CONV.conv2d(x, weight, padding=1, groups=5)
            wanted = F.conv2d(*exact(x, weight), padding=1, groups=5)
            check(got, wanted, torch.channels_last)
        assert heard[:1] == [Target.RESULT] * HAS_VECTORS


@pytest.mark.parametrize("format_", dict.fromkeys(FORMATS.values()), ids=str)
def test_views_that_negate_after_others(
    format_: torch.memory_format, always: None, heard: list[Target]
) -> None:
    """Copies of them lie otherwise than the call that is known."""
    torch.manual_seed(0)
    x = torch.randn(2, 10, 9, 8).contiguous(memory_format=format_)
    numbers = torch.randn(12, 10, 3, 3, dtype=torch.complex64)
    wide = torch.randn(12, 20, 3, 3)
    for weight, negative in (
        (numbers.imag, numbers.conj().imag),
        (wide[:, 5:15], torch._neg_view(wide)[:, 5:15]),
        (wide[:, :1].expand(12, 10, 3, 3), torch._neg_view(wide[:, :1]).expand(12, 10, 3, 3)),
    ):
        for given in (weight, weight, negative, negative, weight):
            leaf = x.clone().requires_grad_()
            y, wide_leaves = CONV.conv2d(leaf, given, padding=1), exact(x, given)
            wanted = F.conv2d(*wide_leaves, padding=1)
            check(y, wanted, format_)
            (got,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
            check(got, torch.autograd.grad(wanted.sum(), wide_leaves[:1])[0], format_)
    assert set(heard) == EVERY - {Target.WEIGHT}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", VectorLayout)
@pytest.mark.parametrize(("number", "width"), [(float("inf"), 5), (float("nan"), 6)])
def test_what_is_not_finite_meets_no_padding(
    number: float, width: int, layout: VectorLayout, always: None, heard: list[Target]
) -> None:
    """There are no terms outside of the image: each cell and tap alone, by a loop over terms."""
    torch.manual_seed(0)
    format_, channels = FORMATS[layout], 4 if layout is VectorLayout.LANES else 8
    for of_image, padding in itertools.product((True, False), (0, 1)):
        x, weight = torch.randn(1, channels, 4, width), torch.randn(channels, channels, 3, 3)
        (x if of_image else weight)[0, 0, 0, 0] = number
        x = x.contiguous(memory_format=format_)
        x.requires_grad_(), weight.requires_grad_()
        y = CONV.conv2d(x, weight, padding=padding)
        cotangent = torch.randn(y.shape).contiguous(memory_format=format_)
        found = (y, *torch.autograd.grad(y, (x, weight), cotangent))
        wanted = terms(x.detach(), weight.detach(), cotangent, padding)
        for got, expected in zip(found, wanted, strict=True):
            assert torch.equal(got.isfinite(), expected.isfinite())
            finite = expected.isfinite()
            torch.testing.assert_close(got.double()[finite], expected[finite], rtol=0, atol=1e-4)
    assert set(heard) == EVERY


def terms(x: Tensor, weight: Tensor, cotangent: Tensor, padding: int) -> tuple[Tensor, ...]:
    """Result and gradients of one image, term by term."""
    (_, _, height, width), (_, _, rows, columns) = x.shape, weight.shape
    y = torch.zeros(cotangent.shape, dtype=torch.float64)
    of_x, of_weight = (torch.zeros(each.shape, dtype=torch.float64) for each in (x, weight))
    x, weight, cotangent = x.double(), weight.double(), cotangent.double()
    for i, j, k, m in itertools.product(*map(range, (*y.shape[2:], rows, columns))):
        h, w = i + k - padding, j + m - padding
        if 0 <= h < height and 0 <= w < width:
            taps, pixels, given = weight[:, :, k, m], x[0, :, h, w], cotangent[0, :, i, j]
            y[0, :, i, j] += (taps * pixels).sum(1)
            of_x[0, :, h, w] += (taps * given[:, None]).sum(0)
            of_weight[:, :, k, m] += given[:, None] * pixels
    return y, of_x, of_weight


def test_what_other_tensors_and_windows_take(heard: list[Target], always: None) -> None:
    """Other types, formats and strides go to the library, and are right there."""
    torch.manual_seed(0)
    x, weight = torch.randn(2, 10, 12, 12), torch.randn(12, 10, 3, 3)
    for dtype in (torch.float64, torch.bfloat16):
        got = CONV.conv2d(x.to(dtype), weight.to(dtype))
        wanted = F.conv2d(x.to(dtype), weight.to(dtype))
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=5e-2)
    torch.testing.assert_close(CONV.conv2d(x, weight, stride=2), F.conv2d(x, weight, stride=2))
    row, taps = x[:, :, 0].contiguous(), weight[:, :, 0].contiguous()
    torch.testing.assert_close(CONV.conv1d(row, taps), F.conv1d(row, taps))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(CONV.conv2d(x, weight), F.conv2d(x, weight), rtol=0, atol=0.2)
    assert not heard


# ---------------------------------------------------------------------------- memory and threads
PARTS = {
    VectorLayout.PLANES: (convolution_planes_result.RESULT, convolution_planes_weight.WEIGHT),
    VectorLayout.PIXELS: (convolution_pixels_result.RESULT, convolution_pixels_weight.WEIGHT),
    VectorLayout.LANES: (convolution_lanes_result.RESULT, convolution_lanes_weight.WEIGHT),
}
NAMES = {
    VectorLayout.PLANES: ("opgen_plane_tiles", "opgen_plane_weight_tiles"),
    VectorLayout.PIXELS: ("opgen_pixel_tiles", "opgen_pixel_weight_tiles"),
    VectorLayout.LANES: ("opgen_lane_tiles", "opgen_lane_weight_tiles"),
}


ORDERS = {
    torch.contiguous_format: ((0, 1, 2, 3), (0, 1, 2, 3)),
    torch.channels_last: ((0, 2, 3, 1), (0, 3, 1, 2)),
}
"""Of the dims in memory, and back."""


def compiled(layout: VectorLayout, numbers: int) -> list[Any]:
    """Both functions with strips of about so many numbers."""
    before = convolution_tiles_source.STRIP_NUMBERS
    try:
        convolution_tiles_source.STRIP_NUMBERS = numbers  # type: ignore[misc]
        sources = map(convolution_tiles_source.source, PARTS[layout])
    finally:
        convolution_tiles_source.STRIP_NUMBERS = before  # type: ignore[misc]
    pairs = zip(map(build.library, sources), NAMES[layout], strict=True)
    found = [getattr(library, name) for library, name in pairs]
    for each in found:
        each.restype, each.argtypes = ctypes.c_int64, [ctypes.c_void_p] * 5
    return found


def tiled(x: Tensor, weight: Tensor, padding: int, groups: int) -> Any:
    """The integers of a call."""
    (images, _, height, width), (outer, inner, rows, columns) = x.shape, weight.shape
    steps = weight.stride()
    about = Tiled(
        *(images, groups, inner, outer // groups, height, width, rows, columns),
        *(padding, padding, 1, 1, 0, outer // groups * steps[0], *steps),
    )
    return (ctypes.c_int64 * len(about))(*about)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", VectorLayout)
@pytest.mark.parametrize("numbers", [64, 1024, 2**16])
def test_nothing_outside_of_tensors_is_touched(numbers: int, layout: VectorLayout) -> None:
    """It ends where memory does; strips of one row, of some, and whole images."""
    torch.manual_seed(0)
    if convolution_tiles.function(Target.RESULT) is None:
        assert not HAS_VECTORS
        return
    results, weights = compiled(layout, numbers)
    format_, several = FORMATS[layout], (1, 2, 3)
    channels = itertools.product((1, 3), (1, 2, 3, 5, 9))
    if layout is VectorLayout.PIXELS:
        channels = itertools.chain(channels, ((8, 8), (16, 17), (18, 16), (33, 8)))
    if layout is VectorLayout.LANES:
        channels, several = iter(IN_LANES), (1, 5, 8, 17)
    for groups, (inner, outer), width, padding in itertools.product(
        several, channels, (3, 16, 33), (0, 2)
    ):
        x = torch.randn(2, groups * inner, 5, width)
        weight = torch.randn(groups * outer, inner, *((3, 3) if padding else (4, 3)))
        bias = torch.randn(groups * outer)
        wide = exact(x, weight, bias)
        wanted = F.conv2d(*wide, padding=padding, groups=groups)
        cotangent = torch.randn(wanted.shape)
        (of_weight,) = torch.autograd.grad(wanted, wide[1:2], cotangent.double())
        about = tiled(x, weight, padding, groups)
        order, back = ORDERS[format_]
        images = [each.permute(order) for each in (x, wanted.float(), cotangent)]
        kept = [before_a_page(each) for each in (*images, weight, weight, bias)]
        image, y, given, factor, gradient, more = (each for each, _ in kept)
        assert results(image.data_ptr(), factor.data_ptr(), more.data_ptr(), y.data_ptr(), about)
        assert weights(image.data_ptr(), given.data_ptr(), None, gradient.data_ptr(), about)
        check(y.permute(back), wanted, format_)
        check(gradient, of_weight)


@pytest.mark.parametrize("layout", VectorLayout)
def test_threads_do_not_change_the_bits(
    layout: VectorLayout, always: None, heard: list[Target]
) -> None:
    torch.manual_seed(0)
    format_ = FORMATS[layout]
    groups, inner, outer = (10, 1, 2) if layout is VectorLayout.LANES else (1, 10, 15)
    x = leaf(5, groups * inner, 40, 50, format_=format_)
    weight = leaf(groups * outer, inner, 3, 3)
    cotangent = torch.randn(5, groups * outer, 40, 50).contiguous(memory_format=format_)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            y = CONV.conv2d(x, weight, padding=1, groups=groups)
            found.append((y, *torch.autograd.grad(y, (x, weight), cotangent)))
    finally:
        torch.set_num_threads(before)
    for some in found[1:]:
        for one, other in zip(found[0], some, strict=True):
            assert torch.equal(one, other) or not HAS_VECTORS
    assert set(heard) == EVERY


@pytest.mark.parametrize("layout", VectorLayout)
def test_a_forked_child_does_not_hang(layout: VectorLayout, always: None) -> None:
    """Its parent has used the threads, which the child does not have."""
    channels = 4 if layout is VectorLayout.LANES else 10
    x, weight = torch.ones(4, channels, 60, 60), torch.ones(channels, channels, 3, 3)
    x = x.contiguous(memory_format=FORMATS[layout])

    def is_right() -> bool:
        """Of a few cells: for many PyTorch would ask for its threads, which is what hangs."""
        return bool(CONV.conv2d(x, weight)[-1, -1, -5:, -5:].eq(9 * channels).all())

    assert is_right()
    if not HAS_VECTORS:
        return  # the library's threads hang
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if is_right() else 1)
    assert os.waitpid(child, 0)[1] == 0
