"""Convolutions that leave one side of their image only, which libraries have no padding for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import library_answers
import opgen

SPEC = """
op causal(x[B,C,T], w[O,C,K]; d = 1) -> y[B,O,T]
  where d >= 1
  y[b,o,t] = sum(c,k) x[b,c, t - (K-1)*d + k*d ?0] * w[o,c,k]

op of_four(x[B,C,H,W], w[O,C,4,4]) -> y[B,O,H,W]
  y[b,o,h,v] = sum(c,i,j) x[b,c, h + i - 1 ?0, v + j - 2 ?0] * w[o,c,i,j]

op ahead(x[B,C,T], w[O,C,K]) -> y[B,O,T]
  y[b,o,t] = sum(c,k) x[b,c, t + k + 2 ?0] * w[o,c,k]

op far_ahead(x[B,C,T], w[O,C,K]; far = 30) -> y[B,O,T]
  y[b,o,t] = sum(c,k) x[b,c, t + k + far ?0] * w[o,c,k]

op by_three(x[B,C,T], w[O,C,2]) -> y[B,O,T//3]
  y[b,o,t] = sum(c,k) x[b,c, 3*t + k - 1 ?0] * w[o,c,k]

op transposed(x[B,C,T], w[C,O,K]) -> y[B,O,T]
  y[b,o, t + k ?drop] += x[b,c,t] * w[c,o,k]
"""
OPS = opgen.compile(SPEC)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every convolution called: whether the library computed it."""
    return library_answers.heard(monkeypatch)


def causal(x: Tensor, w: Tensor, d: int = 1) -> Tensor:
    return F.conv1d(F.pad(x, ((w.shape[2] - 1) * d, 0)), w, dilation=d)


def of_four(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(F.pad(x, (2, 1, 1, 2)), w)


def ahead(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(F.pad(x[..., 2:], (0, w.shape[2] + 1)), w)


def by_three(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(F.pad(x, (1, 0)), w, stride=3)[..., : x.shape[2] // 3]


def transposed(x: Tensor, w: Tensor) -> Tensor:
    return F.conv_transpose1d(x, w)[..., : x.shape[2]]


CASES: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "causal": (causal, (2, 64, 20), (72, 64, 3)),
    "of_four": (of_four, (2, 40, 9, 11), (48, 40, 4, 4)),
    "ahead": (ahead, (2, 64, 20), (72, 64, 3)),
    "by_three": (by_three, (2, 64, 23), (72, 64, 2)),
    "transposed": (transposed, (2, 64, 20), (64, 72, 3)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str, dtype: torch.dtype, answers: list[bool]) -> None:
    """By the library, in a first call and in others, contiguous and in channels-last format."""
    reference, image, kernel = CASES[name]
    torch.manual_seed(0)
    x, w = torch.randn(image).to(dtype), torch.randn(kernel).to(dtype)
    close = {"rtol": 1e-4, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.5}
    function = getattr(OPS, name)
    formats = [torch.contiguous_format] + [torch.channels_last] * (x.dim() == 4)
    for format_ in [each for each in formats for _ in range(2)]:
        given = [x.contiguous(memory_format=format_).requires_grad_(), w.clone().requires_grad_()]
        doubled = [each.detach().double().requires_grad_() for each in given]
        y, wanted = function(*given), reference(*doubled)
        assert y.is_contiguous(memory_format=format_)
        torch.testing.assert_close(y.double(), wanted, **close)
        along = torch.randn(wanted.shape).to(dtype).contiguous(memory_format=format_)
        theirs = torch.autograd.grad(wanted, doubled, along.double())
        for found, exact in zip(torch.autograd.grad(y, given, along), theirs, strict=True):
            torch.testing.assert_close(found.double(), exact, **close)
            assert found.is_contiguous(memory_format=format_)
    assert answers == [True] * len(answers)
    assert len(answers) >= 2


@pytest.mark.parametrize("dilation", [1, 3])
def test_terms_outside_are_absent(dilation: int, answers: list[bool]) -> None:
    """An infinite weight meets no zeros around the image, nor does an infinite cotangent; kernels
    compute these."""
    x, w = torch.ones(1, 64, 9, requires_grad=True), torch.zeros(64, 64, 3)
    w[0, 0, 0] = torch.inf
    y = OPS.causal(x, w.requires_grad_(), d=dilation)
    assert torch.equal(y[0, 0].isfinite(), torch.arange(9) < 2 * dilation)
    assert not answers[0]
    along = torch.zeros_like(y)
    along[0, 0, 0] = torch.inf
    (found,) = torch.autograd.grad(y, w, along)
    assert found[0, :, 2].isinf().all()
    assert (found[0, :, :2] == 0).all()


def test_what_generated_kernels_compute(answers: list[bool]) -> None:
    """With few channels a copy of the image takes more time than kernels."""
    for shape in ((2, 32, 20), (0, 64, 20)):
        x, w = torch.randn(shape), torch.randn(64, shape[1], 3)
        torch.testing.assert_close(OPS.causal(x, w), causal(x, w), rtol=1e-4, atol=1e-4)
    for image, kernel in (
        ((2, 64, 0), (64, 64, 3)),
        ((2, 0, 9), (0, 0, 3)),
        ((2, 64, 9), (64, 64, 0)),
    ):
        y = OPS.causal(torch.ones(image), torch.ones(kernel))
        assert torch.equal(y, torch.zeros(2, kernel[0], image[2]))
    assert answers == []


def test_gradients_of_dilated_filters_in_16_bits(answers: list[bool]) -> None:
    """They are the kernels': with a dilation the library reads memory that nobody wrote."""
    x, w = torch.randn(2, 64, 40).bfloat16(), torch.randn(64, 64, 3).bfloat16().requires_grad_()
    y = OPS.causal(x, w, d=2)
    assert answers == [True]
    (found,) = torch.autograd.grad(y, w, torch.ones_like(y))
    assert answers == [True]
    doubled = w.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(causal(x.double(), doubled, 2).sum(), doubled)
    torch.testing.assert_close(found.double(), wanted, rtol=0.02, atol=0.5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("far", [-30, -3, 8, 9, 30])
def test_windows_that_never_reach_the_image(far: int) -> None:
    x, w = torch.randn(1, 64, 9).requires_grad_(), torch.randn(64, 64, 2).requires_grad_()
    padded = F.pad(x, (40, 41))
    wanted = F.conv1d(padded[..., 40 + far : 50 + far], w)
    y = OPS.far_ahead(x, w, far=far)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    along = torch.randn_like(wanted)
    found, theirs = (torch.autograd.grad(each, (x, w), along) for each in (y, wanted))
    torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-3)


def test_second_gradients() -> None:
    x, w = torch.randn(1, 64, 4).requires_grad_(), torch.randn(64, 64, 2).requires_grad_()
    along, more = torch.randn(1, 64, 4), torch.randn(1, 64, 4)
    found = []
    for function in (OPS.causal, causal):
        (first,) = torch.autograd.grad(function(x, w), x, along, create_graph=True)
        found.append(torch.autograd.grad(first, w, more))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
