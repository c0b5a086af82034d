"""Sums over every second element of a row take these out of two vectors of it."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import stage_text
from opgen.errors import Source

OPS = """
op taps(x[C,N,W], g[C,N,V]) -> y[C,2]
  where V >= 2*W
  y[c,l] = sum(n,w) x[c,n,w] * g[c,n, 2*w + l]

op thirds(x[C,N,W], g[C,N,V]) -> y[C]
  where V >= 3*W
  y[c] = sum(n,w) x[c,n,w] * g[c,n, 3*w]
"""
WIDTHS = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50]
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def wanted(x: Tensor, g: Tensor) -> Tensor:
    """The taps by slices, in float64."""
    width = x.shape[-1]
    parts = [
        (x.double() * g[..., tap : tap + 2 * width : 2][..., :width].double()).sum((1, 2))
        for tap in range(2)
    ]
    return torch.stack(parts, 1)


@pytest.fixture(scope="module")
def ops() -> Any:
    return opgen.compile(OPS, "taps.op")


def test_kernels_load_them_as_vectors() -> None:
    text = stage_text(Source(OPS, "taps.op"), "c")
    assert "every_second(&g[" in text
    assert "every_second_within(&g[" in text
    thirds = text[text.index("// thirds") :]
    thirds = thirds[: thirds.index("// Called by opgen.runtime")]
    assert "every_second" not in thirds


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_of_every_width(dtype: torch.dtype, ops: Any) -> None:
    """Integers, which all types add exactly."""
    generator = torch.Generator().manual_seed(5)
    for width, more, n in itertools.product(WIDTHS, (0, 1), (0, 1, 3)):
        x = torch.randint(-2, 3, (3, n, width), generator=generator).to(dtype)
        g = torch.randint(-2, 3, (3, n, 2 * width + more), generator=generator).to(dtype)
        expected = wanted(x, g).to(dtype)
        assert torch.equal(ops.taps(x, g), expected), (width, more, n)
        apart = g.transpose(1, 2).contiguous().transpose(1, 2)
        assert torch.equal(ops.taps(x, apart), expected)
        wide = torch.stack([x, x + 1], -1).flatten(-2)[..., ::2]
        assert torch.equal(ops.taps(wide, g), expected)


def before_a_page(tensor: Tensor) -> tuple[Tensor, mmap.mmap]:
    """A copy whose last element is the last one before memory that may not be read."""
    page = mmap.PAGESIZE
    size = tensor.numel() * tensor.element_size()
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + page)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(whole.data_ptr() + room, page, 0) == 0
    copy = whole[room - size : room].view(tensor.dtype).view(tensor.shape)
    copy.copy_(tensor)
    return copy, memory


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nothing_behind_the_last_element_is_read(dtype: torch.dtype, ops: Any) -> None:
    """A read behind the end would end this process."""
    for width in WIDTHS[1:]:
        x = torch.ones(2, 3, width, dtype=dtype)
        g = torch.arange(2 * 3 * 2 * width).remainder(3).view(2, 3, 2 * width).to(dtype)
        given, _keep = before_a_page(g)
        other, _also = before_a_page(x)
        found = ops.taps(other, given)
        assert torch.equal(found, wanted(x, g).to(dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("n", "width"), [(1, 8), (3, 5), (2, 16), (2, 21)])
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
