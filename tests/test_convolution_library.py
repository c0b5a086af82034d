"""Which convolutions PyTorch's library computes, and that it gives what it should."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import library_answers
import opgen
from catalogue import SPECS
from opgen.runtime import (
    compat,
)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every convolution called: whether the library computed it."""
    return library_answers.heard(monkeypatch)


# ---------------------------------------------------------------------------- who computes
conv = opgen.load(SPECS / "conv.op")
transpose = opgen.load(SPECS / "conv_transpose.op")
ONE_MORE = """op f(x[N,C,W], w[D,C,K]; s = 1, p = 0) -> y[N,D,V]
  where s >= 1, p >= 0
  let V = (W + 2*p - K)//s + 2
  y[n,o,v] = sum(c,k) x[n,c, v*s + k - p ?0] * w[o,c,k]
"""
GEOMETRIES = (
    {"padding": 1},
    {"padding": (0, 2), "stride": (2, 1)},
    {"padding": 2, "dilation": 2, "groups": 2},
    {"stride": 3},
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_the_library_gives_what_pytorch_gives(
    name: str, with_bias: bool, geometry: dict[str, int], channels_last: bool, answers: list[bool]
) -> None:
    module = conv if name == "conv2d" else transpose
    torch.manual_seed(0)
    x, w = torch.randn(2, 32, 12, 13), torch.randn(32, 32 // geometry.get("groups", 1), 3, 3)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    bias = torch.randn(32) if with_bias else None
    leaves = [x.requires_grad_(), w.requires_grad_()]
    got = getattr(module, name)(x, w, bias, **geometry)
    wanted = getattr(F, name)(x, w, bias, **geometry)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert got.stride() == wanted.stride()
    cotangent = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, cotangent),
        torch.autograd.grad(wanted, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    assert answers == [True, True, True]


def test_16_bits() -> None:
    x, w = torch.randn(2, 8, 9, 9).bfloat16(), torch.randn(8, 8, 3, 3).bfloat16()
    got = conv.conv2d(x, w, padding=1)
    wanted = F.conv2d(x.double(), w.double(), padding=1)
    torch.testing.assert_close(got.double(), wanted, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize(
    ("shape", "weight", "geometry"),
    [
        ((2, 32, 9, 9), (32, 1, 3, 3), {"groups": 32}),  # few channels
        ((0, 32, 9, 9), (32, 32, 3, 3), {}),
        ((2, 32, 9, 9), (32, 32, 0, 3), {}),
    ],
)
def test_what_generated_kernels_compute(
    shape: tuple[int, ...], weight: tuple[int, ...], geometry: dict[str, int], answers: list[bool]
) -> None:
    x, w = torch.randn(shape), torch.randn(weight)
    got = conv.conv2d(x, w, **geometry)
    assert answers == []
    if 0 not in weight:
        torch.testing.assert_close(got, F.conv2d(x, w, **geometry), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "groups", "geometry", "format_", "dtype", "asked"),
    [
        ((4, 8), 4, {"padding": 1}, torch.channels_last, torch.float32, 3),  # two for each
        ((4, 8), 4, {"padding": 1}, torch.contiguous_format, torch.float32, 0),
        ((4, 4), 4, {"padding": 1}, torch.channels_last, torch.float32, 0),
        ((4, 8), 4, {"stride": 2}, torch.channels_last, torch.float32, 1),  # the filter's gradient
        ((4, 4), 2, {"stride": 2}, torch.channels_last, torch.float32, 3),
        ((4, 4), 4, {"padding": 1}, torch.channels_last, torch.bfloat16, 0),
        ((4, 4), 2, {"padding": 1}, torch.channels_last, torch.bfloat16, 3),
        ((4, 4), 4, {"stride": 2}, torch.channels_last, torch.bfloat16, 0),
        pytest.param(
            *((1024, 1024), 1024, {}, torch.channels_last, torch.float32, 0), marks=pytest.mark.slow
        ),
        ((1024, 1024), 1024, {"stride": 2}, torch.channels_last, torch.float32, 0),
        ((4, 4), 4, {"padding": 1}, torch.contiguous_format, torch.bfloat16, 0),
        ((6, 6), 6, {"padding": 1}, torch.channels_last, torch.float32, 3),
        ((15, 15), 15, {"stride": 2}, torch.channels_last, torch.float32, 3),
        ((6, 6), 6, {"padding": 1}, torch.channels_last, torch.bfloat16, 3),
        ((6, 6), 6, {"padding": 1}, torch.contiguous_format, torch.float32, 0),
        ((6, 6), 6, {"dilation": 2}, torch.channels_last, torch.float32, 0),
        ((16, 16), 16, {"padding": 1}, torch.channels_last, torch.float32, 0),
    ],
)
@pytest.mark.sampled(6)
def test_fewer_channels_in_channels_last_format(
    channels: tuple[int, int],
    groups: int,
    geometry: dict[str, int],
    format_: torch.memory_format,
    dtype: torch.dtype,
    asked: int,
    answers: list[bool],
) -> None:
    """Forward, and both gradients: how many of the three the library computes."""
    inside, out = channels
    x = torch.randn(2, inside, 7, 7).to(dtype).contiguous(memory_format=format_)
    w = torch.randn(out, inside // groups, 3, 3).to(dtype)
    leaves = [x.requires_grad_(), w.requires_grad_()]
    got = conv.conv2d(x, w, groups=groups, **geometry)
    x64, w64 = (each.detach().double().requires_grad_() for each in leaves)
    wanted = F.conv2d(x64, w64, groups=groups, **geometry)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.1}
    torch.testing.assert_close(got.double(), wanted, **close)
    cotangent = torch.randn_like(got)
    mine = torch.autograd.grad(got, leaves, cotangent)
    theirs = torch.autograd.grad(wanted, (x64, w64), cotangent.double())
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, **close)
    assert answers == [True] * asked


@pytest.mark.parametrize(("width", "asked"), [(64, 0), (65, 3)])
def test_long_rows_of_single_channels_of_16_bits(
    width: int, asked: int, answers: list[bool]
) -> None:
    """For rows of known length there are kernels."""
    shape = (1, 16, 3, width)
    x = torch.randn(shape).bfloat16().contiguous(memory_format=torch.channels_last)
    leaves = [x.requires_grad_(), torch.randn(16, 1, 3, 3).bfloat16().requires_grad_()]
    y = conv.conv2d(*leaves, groups=16, padding=1)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    wanted = F.conv2d(*wide, groups=16, padding=1)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, leaves, cotangent))
    exact = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.02, atol=0.1)
    assert answers == [True] * asked


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("channels", "size", "asked"), [(1, 128, 0), (2, 80, 0), (2, 90, 3), (3, 72, 3), (5, 20, 0)]
)
def test_large_images_of_few_single_channels(
    channels: int, size: int, asked: int, answers: list[bool]
) -> None:
    """As those of pictures: a vector is neither a row nor a pixel of them."""
    torch.manual_seed(0)
    x = torch.randn(2, channels, size, size).contiguous(memory_format=torch.channels_last)
    leaves = [x.requires_grad_(), torch.randn(channels, 1, 3, 3).requires_grad_()]
    y = conv.conv2d(*leaves, groups=channels, padding=1)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    wanted = F.conv2d(*wide, groups=channels, padding=1)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, leaves, cotangent))
    exact = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-2)
    assert answers == [True] * asked


LAST = torch.channels_last


@pytest.mark.parametrize(
    ("shape", "window", "more", "format_", "dtype", "asked"),
    [
        ((8, 48, 64, 56), (3, 3), {}, LAST, torch.bfloat16, True),
        ((64, 128, 12, 12), (3, 3), {}, LAST, torch.bfloat16, True),
        ((8, 16, 320, 28), (3, 3), {"padding": 0}, LAST, torch.bfloat16, True),
        ((64, 128, 12, 11), (3, 3), {}, LAST, torch.bfloat16, False),
        pytest.param(
            *((32, 128, 16, 16), (3, 3), {}, LAST, torch.bfloat16, False), marks=pytest.mark.slow
        ),
        ((32, 128, 16, 17), (3, 3), {}, LAST, torch.bfloat16, True),
        ((8, 48, 48, 56), (3, 3), {}, LAST, torch.bfloat16, False),  # fewer cells
        ((24, 15, 64, 56), (3, 3), {}, LAST, torch.bfloat16, True),  # too few for a vector
        ((24, 15, 32, 28), (3, 3), {"dilation": 2}, LAST, torch.bfloat16, False),
        ((8, 48, 64, 56), (3, 2), {}, LAST, torch.bfloat16, False),
        pytest.param(
            *((8, 48, 64, 56), (3, 3), {"dilation": 2, "padding": 2}, LAST, torch.bfloat16, False),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *((8, 150, 64, 60), (3, 3), {"stride": 2}, LAST, torch.bfloat16, False),
            marks=pytest.mark.slow,
        ),
        ((8, 48, 64, 56), (3, 3), {}, LAST, torch.float16, False),
        ((8, 48, 64, 56), (3, 3), {}, LAST, torch.float32, False),
        ((8, 48, 64, 56), (3, 3), {}, torch.contiguous_format, torch.bfloat16, False),
    ],
)
@pytest.mark.sampled(6)
def test_single_channels_of_bfloat16_through_small_windows(
    shape: tuple[int, ...],
    window: tuple[int, int],
    more: dict[str, int],
    format_: torch.memory_format,
    dtype: torch.dtype,
    asked: bool,
    answers: list[bool],
) -> None:
    """Many cells in rows whose kernels have no pairs of vectors go to the library."""
    channels = shape[1]
    geometry = {"padding": 1, "groups": channels, **more}
    x = torch.randn(shape).to(dtype).contiguous(memory_format=format_)
    w = torch.randn(channels, 1, *window).to(dtype)
    got = conv.conv2d(x, w, **geometry)
    wanted = F.conv2d(x.float(), w.float(), **geometry)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.01, "atol": 0.02}
    torch.testing.assert_close(got.float(), wanted, **close)
    assert answers == [True] * asked


@pytest.mark.parametrize(("width", "asked"), [(64, 0), (70, 1)])
def test_steps_of_single_channels_of_16_bits(width: int, asked: int, answers: list[bool]) -> None:
    """The result of long rows: the library takes ten times as long as kernels for gradients."""
    x = torch.randn(1, 16, 6, width).bfloat16().contiguous(memory_format=LAST).requires_grad_()
    w = torch.randn(16, 1, 5, 5).bfloat16().requires_grad_()
    y = conv.conv2d(x, w, padding=2, stride=2, groups=16)
    wide = [each.detach().double().requires_grad_() for each in (x, w)]
    wanted = F.conv2d(*wide, padding=2, stride=2, groups=16)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, (x, w), cotangent))
    exact = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.02, atol=0.2)
    assert answers == [True] * asked


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("image", "weight", "stride", "padding", "asked"),
    [
        ((2, 3, 8, 1), (4, 3, 5, 3), 3, 2, False),  # the first and the last column of the filter
        ((2, 3, 2, 1), (4, 3, 3, 3), 2, 1, False),
        ((1, 3, 8, 2), (4, 3, 5, 3), 3, 2, False),
        ((2, 3, 8, 3), (4, 3, 3, 3), 1, 1, True),
        ((2, 8, 8, 5), (4, 8, 5, 5), 2, 2, True),
    ],
)
def test_taps_that_meet_no_pixel_have_no_gradient(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int,
    padding: int,
    asked: bool,
    answers: list[bool],
) -> None:
    """In 16 bits the library leaves theirs as memory was."""
    torch.manual_seed(0)
    x = torch.randn(image).bfloat16().contiguous(memory_format=LAST)
    w = torch.randn(weight).bfloat16().requires_grad_()
    y = conv.conv2d(x, w, stride=stride, padding=padding)
    cotangent = torch.randn_like(y)
    wide = w.detach().double().requires_grad_()
    wanted = F.conv2d(x.double(), wide, stride=stride, padding=padding)
    (exact,) = torch.autograd.grad(wanted, wide, cotangent.double())
    answers.clear()
    for _ in range(10):
        memory = [torch.full((1 << size,), 1e30) for size in range(4, 12)]
        del memory
        (found,) = torch.autograd.grad(y, w, cotangent, retain_graph=True)
        torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.1)
    assert bool(answers) == asked


def test_filters_of_single_channels_that_are_not_finite_stay_here(answers: list[bool]) -> None:
    """The zeros of padding are no terms, and meet no infinity."""
    x = torch.randn(8, 48, 64, 56).bfloat16().contiguous(memory_format=LAST)
    w = torch.randn(48, 1, 3, 3).bfloat16()
    w[5, 0, 0, 0] = torch.inf
    y = conv.conv2d(x, w, padding=1, groups=48)
    assert answers and not any(answers)
    assert y[:, 5, 0].isfinite().all()
    assert y[:, 5, 1:, 1:].isinf().all()


@pytest.mark.parametrize(
    ("channels", "width", "stride", "asked"),
    [
        (16, 65, 1, True),
        (16, 64, 1, False),  # kernels are made for rows of this length
        (15, 65, 1, True),  # too few for a vector
        (1, 65, 1, False),
        (16, 65, 2, True),
        (16, 65, 3, False),
    ],
)
def test_filters_of_long_rows_of_single_channels(
    channels: int, width: int, stride: int, asked: bool, answers: list[bool]
) -> None:
    x = torch.randn(1, channels, 3, width).contiguous(memory_format=torch.channels_last)
    w = torch.randn(channels, 1, 3, 3, requires_grad=True)
    y = conv.conv2d(x, w, groups=channels, padding=1, stride=stride)
    w64 = w.detach().double().requires_grad_()
    wanted = F.conv2d(x.double(), w64, groups=channels, padding=1, stride=stride)
    cotangent = torch.randn_like(y)
    (own,) = torch.autograd.grad(y, w, cotangent)
    (exact,) = torch.autograd.grad(wanted, w64, cotangent.double())
    torch.testing.assert_close(own.double(), exact, rtol=1e-4, atol=1e-4)
    assert answers == [True, True] * asked  # the result and the filter


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("channels", "width", "geometry", "format_", "asked"),
    [
        (16, 65, {}, torch.channels_last, 2),
        (16, 70, {"stride": 2}, torch.channels_last, 2),
        (16, 64, {}, torch.channels_last, 0),
        (15, 65, {}, torch.channels_last, 3),  # too few for a vector: the filter's as well
        (15, 65, {"dilation": 2}, torch.channels_last, 0),
        (16, 65, {"stride": 3}, torch.channels_last, 0),
        (16, 65, {"dilation": 2}, torch.channels_last, 0),
        (16, 65, {}, torch.contiguous_format, 0),
    ],
)
def test_long_rows_of_single_channels(
    channels: int,
    width: int,
    geometry: dict[str, int],
    format_: torch.memory_format,
    asked: int,
    answers: list[bool],
) -> None:
    """Result and image, through windows of 5 by 5."""
    x = torch.randn(2, channels, 9, width).contiguous(memory_format=format_).requires_grad_()
    w = torch.randn(channels, 1, 5, 5, requires_grad=True)
    y = conv.conv2d(x, w, groups=channels, padding=2, **geometry)
    wide = [each.detach().double().requires_grad_() for each in (x, w)]
    wanted = F.conv2d(*wide, groups=channels, padding=2, **geometry)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, (x, w), cotangent))
    exact = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    assert answers == [True] * asked


@pytest.mark.sampled(8)
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "window", "stride", "asked"),
    [(16, 10, 1, 2), (16, 9, 1, 0), (15, 10, 1, 0), (16, 10, 2, 0)],  # all but the filter's
)
def test_wide_windows_of_single_channels(
    channels: int,
    window: int,
    stride: int,
    asked: int,
    format_: torch.memory_format,
    answers: list[bool],
) -> None:
    if channels < 16 and format_ == LAST:
        asked = 3  # too few for a vector
    x = torch.randn(2, channels, 12, 13).contiguous(memory_format=format_)
    w = torch.randn(channels, 1, window, window) / window
    leaves = [x.requires_grad_(), w.requires_grad_()]
    geometry = {"padding": 5, "groups": channels, "stride": stride}
    got, wanted = (each(x, w, **geometry) for each in (conv.conv2d, F.conv2d))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert got.is_contiguous(memory_format=format_)
    cotangent = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, cotangent),
        torch.autograd.grad(wanted, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    assert answers == [True] * asked


@pytest.mark.parametrize("has_kernels", [False, True])
def test_float16_only_where_the_library_has_kernels_for_it(
    has_kernels: bool, answers: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "library_has_float16", lambda: has_kernels)
    size = 9 + has_kernels  # calls like an earlier one are known
    x, w = torch.randn(2, 8, size, size).half(), torch.randn(8, 8, 3, 3).half()
    got = conv.conv2d(x, w, padding=1)
    torch.testing.assert_close(
        got.double(), F.conv2d(x.double(), w.double(), padding=1), rtol=2**-9, atol=2**-6
    )
    assert answers == [True] * has_kernels


def test_double_precision_is_not_the_library_s(answers: list[bool]) -> None:
    x, w = torch.randn(1, 16, 5, 5).double(), torch.randn(16, 16, 3, 3).double()
    torch.testing.assert_close(conv.conv2d(x, w), F.conv2d(x, w))
    assert answers == []


def test_sizes_that_the_library_would_find_otherwise(answers: list[bool]) -> None:
    """One column more than a convolution has: it sees padding alone."""
    module = opgen.compile(ONE_MORE)
    x, w = torch.randn(1, 16, 9), torch.randn(16, 16, 3)
    got = module.f(x, w)
    assert answers == []
    torch.testing.assert_close(got, F.conv1d(F.pad(x, (0, 1)), w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels_last", [False, True])
def test_windows_in_the_padding_alone_are_not_the_library_s(
    channels_last: bool, answers: list[bool]
) -> None:
    """For the one in channels-last format PyTorch 2.13 ends the process."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(1, 32, 6, 1, generator=generator)
    weight, bias = (torch.randn(size, generator=generator) for size in ((16, 16, 1, 1), (16,)))
    given = (x, weight, bias)
    if channels_last:
        given = (x.contiguous(memory_format=torch.channels_last), weight, bias)
    call: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
    wanted = F.conv2d(x.double(), weight.double(), bias.double(), **call)
    torch.testing.assert_close(conv.conv2d(*given, **call).double(), wanted, rtol=1e-4, atol=1e-4)
    assert answers == []


def test_padding_has_no_terms_even_beside_infinity(answers: list[bool]) -> None:
    x, w = torch.ones(1, 16, 4, 5), torch.ones(16, 16, 3, 3)  # a shape that no other test looks up
    w[0, 0, 0, 0] = float("inf")
    got = conv.conv2d(x, w, padding=1)
    assert answers == [False]
    assert not got.isnan().any()
    assert not conv.conv2d(x, w).isnan().any()
    assert answers == [False, True]
    x.requires_grad_()
    cotangent = torch.ones_like(got)
    cotangent[0, 0, 0, 0] = float("inf")
    w = torch.ones(16, 16, 3, 3, requires_grad=True)
    conv.conv2d(x, w, padding=1).backward(cotangent)
    # The first tap never meets the first cell: it lies beside the padding there.
    assert w.grad is not None
    assert w.grad[0, :, 0, 0].isfinite().all()
    assert not w.grad[0, :, 1, 1].isfinite().any()
    assert answers[2:] == [True, True, False]
