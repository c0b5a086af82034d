"""Sums along cells that lie side by side: as exact as sums of neighbours, however long."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opgen
from opgen.errors import Source
from opgen.ir.loops import For, Program, walk
from opgen.lang.read import read
from opgen.programs import along_rows, for_cpu, scheduled, special_along_rows

TEXT = """op images(x: float[N,C,H,W]) -> y[C], z[N,C]
  y[c] = sum(n,h,w) x[n,c,h,w]
  z[n,c] = sum(h,w) x[n,c,h,w]**2

op columns(x: float[N,C], s[C]) -> y[C]
  y[c] = sum(n) (x[n,c] - s[c])**2

op guarded(x: float[N,C]) -> y[C]
  y[c] = sum(n if n != 3) x[n,c]
"""
LAST = torch.channels_last


@pytest.mark.parametrize(("channels", "size"), [(3, 300), (64, 200)])
@pytest.mark.parametrize("format_", [torch.contiguous_format, LAST], ids=str)
def test_large_sums_keep_their_digits(
    channels: int, size: int, format_: torch.memory_format
) -> None:
    """Of one size all terms, so that errors do not cancel; a sum one by one loses three digits."""
    ops = opgen.compile(TEXT)
    x = torch.full((2, channels, size, size), 1.05).contiguous(memory_format=format_)
    for found, wanted in zip(ops.images(x), (x.double().sum((0, 2, 3)), None), strict=True):
        exact = x.double().square().sum((2, 3)) if wanted is None else wanted
        torch.testing.assert_close(found.double(), exact, rtol=2e-5, atol=0)


@pytest.mark.parametrize("channels", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_a_sum_beyond_2_to_the_24th(channels: int) -> None:
    """A float that counts one by one stops there."""
    count = 2**24 + 2**20
    ones = torch.ones(1).expand(count, channels)
    ops = opgen.compile(TEXT)
    zeros = torch.zeros(channels)
    assert torch.equal(ops.columns(ones, zeros), torch.full((channels,), float(count)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (2, 17, 3, 9), (3, 64, 9, 8), (0, 5, 2, 2)])
@pytest.mark.parametrize("format_", [torch.contiguous_format, LAST], ids=str)
def test_they_are_those_of_pytorch(shape: tuple[int, ...], format_: torch.memory_format) -> None:
    ops = opgen.compile(TEXT)
    x = torch.randn(shape, dtype=torch.float64).contiguous(memory_format=format_)
    y, z = ops.images(x)
    torch.testing.assert_close(y, x.sum((0, 2, 3)))
    torch.testing.assert_close(z, x.square().sum((2, 3)))


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 511, 512, 513, 1030])
def test_stretches_of_a_loop(rows: int) -> None:
    ops = opgen.compile(TEXT)
    x, s = torch.randn(rows, 21, dtype=torch.float64), torch.randn(21, dtype=torch.float64)
    torch.testing.assert_close(ops.columns(x, s), (x - s).square().sum(0))
    torch.testing.assert_close(ops.guarded(x), x[torch.arange(rows) != 3].sum(0))


@pytest.mark.parametrize("format_", [torch.contiguous_format, LAST], ids=str)
def test_statistics_of_images(format_: torch.memory_format) -> None:
    """Batch norm of numbers that are not negative: errors of their mean add up."""
    norm = opgen.compile(
        "op f(x: float[N,C,H,W]) -> y[N,C,H,W]\n  mu[c] = mean(n,h,w) x[n,c,h,w]\n"
        "  s[c] = mean(n,h,w) (x[n,c,h,w] - mu[c])**2\n"
        "  y[n,c,h,w] = (x[n,c,h,w] - mu[c]) / sqrt(s[c] + 0.00001)\n"
    ).f
    x = torch.randn(4, 8, 224, 224).relu().contiguous(memory_format=format_)
    wanted = F.batch_norm(x.double(), None, None, training=True)
    torch.testing.assert_close(norm(x).double(), wanted, rtol=0, atol=3e-5)


def parts_of(program: Program) -> int:
    """How many accumulators of a program are parts of another."""
    loops = (node for kernel in program.kernels for node in walk(kernel.body))
    return sum(isinstance(node, For) and "_part" in repr(node.body) for node in loops)


def test_windows_are_one_sum() -> None:
    """Loops of few terms are no sums of their own."""
    text = (
        "op f(x: float[N,C,H,W], k[C,3,3]) -> y[N,C,H,W]\n"
        "  y[n,c,h,w] = sum(i in 3, j in 3) x[n,c,h + i ?0,w + j ?0]*k[c,i,j]\n"
    )
    (op,) = read(Source(text, "f.op"))
    own = for_cpu(op)
    assert parts_of(along_rows(own, scheduled(own))) == 0
    assert parts_of(special_along_rows(own, op, {}, 1)[0]) == 0
    (images, *_) = read(Source(TEXT, "f.op"))
    own = for_cpu(images)
    assert parts_of(special_along_rows(own, images, {}, 1)[0]) > 0
