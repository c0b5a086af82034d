"""Sums over every second element of a row: picked out of two vectors, or two sums in one vector."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from guarded_memory import before_a_page
from opgen.compiler import stage_text
from opgen.errors import Source
from opgen.runtime import special

OPS = """
op taps(x[C,N,W], g[C,N,V]) -> y[C,2]
  where V >= 2*W
  y[c,l] = sum(n,w) x[c,n,w] * g[c,n, 2*w + l]

op lone(x[C,N,W], g[C,N,V]) -> y[C]
  where V >= 2*W
  y[c] = sum(n,w) x[c,n,w] * g[c,n, 2*w + 1]

op three(x[C,N,W], g[C,N,V]) -> y[C,3]
  where V >= 2*W + 1
  y[c,l] = sum(n,w) x[c,n,w] * g[c,n, 2*w + l]

op scaled(x[C,N,W], g[C,N,V], s[C] = 1) -> y[C,2]
  where V >= 2*W
  y[c,l] = sum(n,w) x[c,n,w] * g[c,n, 2*w + l] * s[c]

op thirds(x[C,N,W], g[C,N,V]) -> y[C]
  where V >= 3*W
  y[c] = sum(n,w) x[c,n,w] * g[c,n, 3*w]
"""
WIDTHS = [0, 1, 3, 7, 8, 15, 16, 17, 32, 33, 50]
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LIKE_OTHERS = [torch.float64, torch.float16]


def wanted(x: Tensor, g: Tensor, taps: int = 2) -> Tensor:
    """The taps by slices, in float64."""
    width = x.shape[-1]
    parts = [
        (x.double() * g[..., tap : tap + 2 * width : 2][..., :width].double()).sum((1, 2))
        for tap in range(taps)
    ]
    return torch.stack(parts, 1)


@pytest.fixture(scope="module")
def ops() -> Any:
    return opgen.compile(OPS, "taps.op")


@functools.cache
def text_of_kernels() -> str:
    return stage_text(Source(OPS, "taps.op"), "c")


def functions_of(op: str) -> set[str]:
    """What the kernel of an op loads vectors with."""
    text = text_of_kernels()
    begin = text.index(f"// {op}\n")
    end = text.index("// Called by opgen.runtime", begin)
    return set(re.findall(r"(\w+)\(&[xg]\[", text[begin:end]))


def test_what_vectors_are_loaded_with() -> None:
    whole = {"lanes_from_T", "lanes_within"}
    picked = {"every_second", "every_second_within"}
    assert (
        functions_of("taps")
        == functions_of("scaled")
        == whole
        | {
            "each_twice",
            "each_twice_within",
        }
    )
    assert functions_of("lone") == functions_of("three") == whole | picked
    assert functions_of("thirds") == set()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(each, marks=[pytest.mark.slow] if each in LIKE_OTHERS else []) for each in TYPES],
    ids=str,
)
def test_sums_of_every_width(dtype: torch.dtype, ops: Any) -> None:
    """Integers, which all types add exactly."""
    generator = torch.Generator().manual_seed(5)
    for width, more, n in itertools.product(WIDTHS, (0, 1), (0, 1, 3)):
        x = torch.randint(-2, 3, (3, n, width), generator=generator).to(dtype)
        g = torch.randint(-2, 3, (3, n, 2 * width + more), generator=generator).to(dtype)
        expected = wanted(x, g).to(dtype)
        assert torch.equal(ops.taps(x, g), expected), (width, more, n)
        assert torch.equal(ops.lone(x, g), expected[:, 1])
        if more:
            assert torch.equal(ops.three(x, g), wanted(x, g, 3).to(dtype))
        assert torch.equal(ops.scaled(x, g), expected)
        assert torch.equal(ops.scaled(x, g, 2 * torch.ones(3, dtype=dtype)), 2 * expected)
        apart = g.transpose(1, 2).contiguous().transpose(1, 2)
        assert torch.equal(ops.taps(x, apart), expected)
        wide = torch.stack([x, x + 1], -1).flatten(-2)[..., ::2]
        assert torch.equal(ops.taps(wide, g), expected)


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(each, marks=[pytest.mark.slow] if each in LIKE_OTHERS else []) for each in TYPES],
    ids=str,
)
def test_nothing_behind_the_last_element_is_read(dtype: torch.dtype, ops: Any) -> None:
    """A read behind the end would end this process."""
    for width in WIDTHS[1:]:
        x = torch.ones(2, 3, width, dtype=dtype)
        g = torch.arange(2 * 3 * 2 * width).remainder(3).view(2, 3, 2 * width).to(dtype)
        given, _keep = before_a_page(g)
        other, _also = before_a_page(x)
        found = ops.taps(other, given)
        assert torch.equal(found, wanted(x, g).to(dtype))
        assert torch.equal(ops.lone(other, given), found[:, 1])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("n", "width"), [(1, 8), (3, 5), (2, 14), (2, 16), (2, 21)])
def test_filters_of_strided_convolutions(dtype: torch.dtype, n: int, width: int) -> None:
    """Those of a transposed one, whose windows do not meet, and of one whose windows do."""
    generator = torch.Generator().manual_seed(n)
    transposed = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    plain = opgen.load(SPECS / "conv.op").conv2d
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-2)
    for stride, kernel, op, reference in (
        (2, 2, transposed, F.conv_transpose2d),
        (2, 3, transposed, F.conv_transpose2d),
        (2, 3, plain, F.conv2d),
    ):
        x = torch.randn(n, 4, 6, width, generator=generator).to(dtype)
        weight = torch.randn(4, 1, kernel, kernel, generator=generator).to(dtype)
        found, exact = weight.clone().requires_grad_(), weight.double().requires_grad_()
        result = op(x, found, stride=stride, groups=4)
        precise = reference(x.double(), exact, stride=stride, groups=4)
        cotangent = torch.randn(result.shape, generator=generator).to(dtype)
        (own,) = torch.autograd.grad(result, found, cotangent)
        (other,) = torch.autograd.grad(precise, exact, cotangent.double())
        scale = other.abs().max().item()
        torch.testing.assert_close(own.double(), other, atol=tolerance * scale, rtol=0)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("width", "stride"), [(4, 1), (7, 1), (10, 2), (14, 2)])
def test_filters_of_small_images(dtype: torch.dtype, width: int, stride: int) -> None:
    """Sums of four to seven cells, for which calls that are large have kernels of their own."""
    plain = opgen.load(SPECS / "conv.op").conv2d
    channels = 2**15 // width**2
    generator = torch.Generator().manual_seed(width)
    x = torch.randint(-1, 2, (2, channels, width, width), generator=generator).to(dtype)
    weight = torch.zeros(channels, 1, 3, 3)
    found, exact = weight.to(dtype).requires_grad_(), weight.double().requires_grad_()
    result = plain(x, found, stride=stride, padding=1, groups=channels)
    precise = F.conv2d(x.double(), exact, stride=stride, padding=1, groups=channels)
    cotangent = torch.randint(-1, 2, result.shape, generator=generator)
    (own,) = torch.autograd.grad(result, found, cotangent.to(dtype))
    (other,) = torch.autograd.grad(precise, exact, cotangent.double())
    assert torch.equal(own, other.to(dtype))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("height", "width"), [(7, 7), pytest.param(5, 9, marks=pytest.mark.slow)])
def test_sums_have_vectors_of_their_own_where_one_of_a_loop_does(
    height: int, width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taps of the last row have terms where those of the first row have none, in other loops."""
    monkeypatch.setattr(special, "LARGE", 0)
    conv, channels = opgen.load(SPECS / "conv.op").conv2d, 9
    torch.manual_seed(0)
    x = torch.randint(-4, 5, (3, channels, height, width)).to(dtype)
    weight = torch.ones(channels, 1, 2, 2, dtype=dtype, requires_grad=True)
    exact = weight.detach().double().requires_grad_()
    result = conv(x, weight, stride=2, padding=1, groups=channels)
    precise = F.conv2d(x.double(), exact, stride=2, padding=1, groups=channels)
    cotangent = torch.randint(-4, 5, result.shape).to(dtype)
    (found,) = torch.autograd.grad(result, weight, cotangent)
    (wanted_,) = torch.autograd.grad(precise, exact, cotangent.double())
    assert torch.equal(found, wanted_.to(dtype))
