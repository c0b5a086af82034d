"""Convolutions like an earlier one, and both of their gradients at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import library_answers
import opgen
from catalogue import SPECS
from opgen.runtime import (
    convolution_tiles,
    library_call,
    library_gradients,
)
from opgen.runtime.arrangement import Arrangement


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every convolution called: whether the library computed it."""
    return library_answers.heard(monkeypatch)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    library_answers.keep_in_python(monkeypatch)


# ---------------------------------------------------------------------------- calls that are known
def test_calls_like_an_earlier_one_are_known(answers: list[bool]) -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x, weight = torch.randn(2, 64, 7, 6), torch.randn(64, 64, 3, 3)
    spoiled = weight.clone()
    spoiled[0, 0, 0, 0] = float("inf")
    images = (x, x.contiguous(memory_format=torch.channels_last), x.flip(0), x.double().float())
    for image in images:
        for padding in (1, (2, 0), 1):
            torch.testing.assert_close(
                conv(image, weight, padding=padding),
                F.conv2d(image, weight, padding=padding),
                rtol=1e-4,
                atol=1e-4,
            )
    assert answers == [True] * 12
    known = conv(x, spoiled, padding=1)
    assert answers[12:] == [False, False], "asked as a known call, and as a new one"
    assert not known.isnan().any(), "a zero of the padding has no term"


@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["conv", "conv_transpose", "unfold_conv"])
def test_both_gradients_of_a_known_call_are_one(
    name: str, format_: torch.memory_format, in_python: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, bool]] = []
    gradients = library_call.gradients

    def listening(*arguments: Any) -> library_call.Pair:
        asked.append(arguments[-1])
        return gradients(*arguments)

    monkeypatch.setattr(library_call, "gradients", listening)
    ops = opgen.load(SPECS / f"{name}.op")
    own = ops.unfold_conv if name == "unfold_conv" else getattr(ops, f"{name}2d")
    torchs = F.conv_transpose2d if name == "conv_transpose" else F.conv2d
    torch.manual_seed(0)
    x = torch.randn(2, 64, 6, 9).to(memory_format=format_).requires_grad_()
    weight = torch.randn(64, 64, 3, 3).to(memory_format=format_).requires_grad_()
    cotangent = torch.randn(2, 64, 6, 9).to(memory_format=format_)
    for known in (False, True, True):
        asked.clear()
        got = torch.autograd.grad(own(x, weight, padding=1), (x, weight), cotangent)
        expected = torch.autograd.grad(torchs(x, weight, padding=1), (x, weight), cotangent)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
            assert one.stride() == other.stride()
        # The gradient of the image of a transposed convolution is a convolution forward.
        alone = [(False, True)] if name == "conv_transpose" else [(True, False), (False, True)]
        assert asked == ([(True, True)] if known and name != "conv_transpose" else alone)
    asked.clear()
    (alone,) = torch.autograd.grad(own(x.detach(), weight, padding=1), weight, cotangent)
    assert asked == [(False, True)]
    torch.testing.assert_close(alone, expected[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("inside", "out", "window", "stride", "is_copied"),
    [
        (10, 15, 3, 1, True),
        (24, 40, 3, 1, True),
        (16, 15, 3, 1, False),  # these fill blocks
        (8, 15, 3, 1, False),
        (25, 15, 3, 1, False),
        (10, 41, 3, 1, False),
        (10, 15, 2, 1, False),
        (10, 15, 3, 2, False),
    ],
)
def test_both_gradients_of_few_channels_go_through_channels_last(
    inside: int,
    out: int,
    window: int,
    stride: int,
    is_copied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[torch.Tensor, torch.Tensor]] = []
    gradients = library_call.gradients

    def listening(*arguments: Any) -> library_call.Pair:
        asked.append(arguments[1:3])
        return gradients(*arguments)

    monkeypatch.setattr(convolution_tiles, "tiles_of", lambda case, call: None)
    own = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(2, inside, 6, 7).requires_grad_()
    weight = torch.randn(out, inside, window, window).requires_grad_()
    expected = F.conv2d(x, weight, padding=1, stride=stride)
    cotangent = torch.randn_like(expected)
    torch.autograd.grad(own(x, weight, padding=1, stride=stride), (x, weight), cotangent)
    for module in (library_call, library_gradients):
        monkeypatch.setattr(module, "gradients", listening)
    result = own(x, weight, padding=1, stride=stride)
    for got, wanted in zip(
        torch.autograd.grad(result, (x, weight), cotangent),
        torch.autograd.grad(expected, (x, weight), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)
        assert got.is_contiguous(), "as the op promises"
    (images,) = asked
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in images) is (
        is_copied
    )


def test_both_gradients_are_computed_apart_beside_infinity() -> None:
    """The library would multiply it with the zeros of the padding."""
    conv = opgen.load(SPECS / "conv.op").conv2d
    x = torch.ones(1, 64, 4, 4, requires_grad=True)
    weight = torch.ones(64, 64, 3, 3)
    spoiled = weight.clone()
    spoiled[0, 0, 0, 0] = float("inf")
    plain = torch.ones(1, 64, 4, 4)
    other = plain.clone()
    other[0, 0, 0, 0] = float("inf")
    for filter_, cotangent in [(weight, plain)] * 2 + [(spoiled, plain), (weight, other)]:
        w = filter_.clone().requires_grad_()
        got = torch.autograd.grad(conv(x, w, padding=1), (x, w), cotangent)
        assert not any(each.isnan().any() for each in got)
    assert got[1][0, :, 0, 0].isfinite().all(), "this tap never meets the first cell"
    assert not got[1][0, :, 1, 1].isfinite().any()


def test_what_differs_in_anything_is_another_call() -> None:
    x, weight = torch.randn(2, 64, 6, 9), torch.randn(64, 64, 3, 3)
    key, numbers = library_call.key_of, (1, 1, 1, 1, 1, 1, 1)
    others = [
        key((x, weight, torch.zeros(64)), numbers),
        key((x.double(), weight, None), numbers),
        key((x[:1], weight, None), numbers),
        key((x.mT, weight, None), numbers),
        key((x.to(memory_format=torch.channels_last), weight, None), numbers),
        key((x.to("meta"), weight, None), numbers),
        key((x, weight, None), (1, 1, 0, 0, 1, 1, 1)),
    ]
    own = key((x, weight, None), numbers)
    assert own == key((x + 1, weight + 1, None), numbers)
    assert len({own, *others}) == 8


@pytest.mark.parametrize("block", [2, 4])
@pytest.mark.parametrize("channels", [3, 16])
def test_short_inner_dims_are_copied_slice_by_slice(block: int, channels: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, 3 * block, 5 * block).to(memory_format=torch.channels_last)
    parts = (2,), (channels,), (3, block), (5, block)
    order = ((0,), (1, 3, 5), (2,), (4,))
    arrangement = Arrangement(parts, order)
    found = arrangement.arranged(x, torch.channels_last)
    assert torch.equal(found, F.pixel_unshuffle(x, block))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(arrangement.restored(found, torch.channels_last), x)
