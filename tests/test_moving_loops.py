"""Terms whose range moves by a step for some cells: gradients of whatever has a stride."""

from __future__ import annotations

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
from opgen.algebra.poly import floor_div, poly, symbol
from opgen.compiler import stage_text
from opgen.errors import Source
from opgen.ir.loops import For
from opgen.passes.moving_loops import FURTHEST, step

OPS = """
op largest(x[N,W]; step: int, reach: int) -> y[N,V]
  where step >= 1, reach >= 1
  let V = (W + step - 1)//step
  y[n,j] = max(l in reach) x[n, step*j + l - 1 ?0]

op spread(x[N,W], w[5]) -> y[N,V]
  let V = 3*W + 1
  y[n, 3*j + l - 1 ?drop] += x[n,j] * w[l]

op rows(x[N,H,W], w[4]) -> y[N,V,W]
  let V = 2*H
  y[n, 2*i + k - 1 ?drop, v] += x[n,i,v] * w[k]

op halves(x[N,W]) -> y[N,V]
  let V = 2*W
  y[n,v] = sum(j if 2*j + 1 >= v and v + 1 >= 2*j) x[n,j]
"""
WIDTHS = [1, 2, 3, 4, 7, 15, 16, 17, 31, 32, 33, 34, 65]
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FEW = [(2, 3, 1), (3, 5, 0)]
MORE = [(1, 3, 1), (2, 2, 0), (2, 5, 2), (2, 7, 3), (3, 3, 1), (4, 4, 1)]
CASES = [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]


@pytest.fixture(scope="module")
def ops() -> Any:
    return opgen.compile(OPS, "moving.op")


@pytest.fixture(scope="module")
def convolutions() -> Any:
    return opgen.compile((SPECS / "conv.op").read_text(encoding="utf-8"), "conv.op")


@pytest.fixture(scope="module")
def pools() -> Any:
    return opgen.compile((SPECS / "pool.op").read_text(encoding="utf-8"), "pool.op")


def whole(shape: tuple[int, ...], seed: int, dtype: torch.dtype, least: int = -2) -> Tensor:
    """Integers, which all types add exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(least, 3, shape, generator=generator).to(dtype)


def test_both_remainders_are_stored_together() -> None:
    """Without the pass there is one body, and each of its terms is in a loop for a few cells."""
    text = stage_text(Source(OPS, "moving.op"), "rows")
    programs = dict(re.findall(r"^program (\w+)\n(.*?\n)\n", text, re.M | re.S))
    for at, more in enumerate(("", " + 1", " + 2")):
        assert f"y[n, 3*v{more}] = total_{at}" in programs["spread"]
    assert "y[n, 2*v + 1] = total_1" in programs["halves"]
    assert "for j" not in programs["spread"] + programs["halves"]


@pytest.mark.parametrize("stride", [2, 7, FURTHEST, FURTHEST + 1, 10**9])
def test_long_steps_are_not_looked_for(stride: int) -> None:
    """There is a polynomial for each cell of a step: of thousands, a call would take seconds."""
    w, divisor = symbol("w"), poly(stride)
    loop = For("j", (floor_div(w, divisor),), (floor_div(w + stride // 2, divisor),), ())
    assert step(loop, "w", {}) == (stride if stride <= FURTHEST else 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_of_every_width(dtype: torch.dtype, ops: Any) -> None:
    for width, n in itertools.product(WIDTHS, (0, 1, 3)):
        x, w = whole((n, width), width, dtype), whole((5,), 1, dtype)
        expected = torch.zeros(n, 3 * width + 4, dtype=torch.float64)
        for j, tap in itertools.product(range(width), range(5)):
            expected[:, 3 * j + tap] += x[:, j].double() * w[tap].double()
        assert torch.equal(ops.spread(x, w), expected[:, 1 : 3 * width + 2].to(dtype)), (n, width)
        cells = x.double()
        expected = torch.zeros(n, 2 * width + 1, dtype=torch.float64)
        for j in range(width):
            expected[:, max(2 * j - 1, 0) : 2 * j + 2] += cells[:, j, None]
        assert torch.equal(ops.halves(x), expected[:, : 2 * width].to(dtype)), (n, width)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_row_may_be_another_dim(dtype: torch.dtype, ops: Any) -> None:
    for height, width in itertools.product((1, 2, 5), WIDTHS):
        x, w = whole((2, height, width), width, dtype), whole((4,), 2, dtype)
        expected = torch.zeros(2, 2 * height + 3, width, dtype=torch.float64)
        for i, tap in itertools.product(range(height), range(4)):
            expected[:, 2 * i + tap] += x[:, i].double() * w[tap].double()
        found = ops.rows(x, w)
        assert torch.equal(found, expected[:, 1 : 2 * height + 1].to(dtype)), (height, width)
        turned = x.transpose(1, 2).contiguous().transpose(1, 2)
        assert torch.equal(ops.rows(turned, w), found)


@pytest.mark.parametrize(
    ("step", "reach"),
    [
        (2, 3),
        *(
            pytest.param(*c, marks=pytest.mark.slow)
            for c in [(3, 2), (1, 3), (2, 2), (3, 5), (9, 11)]
        ),
    ],
)
def test_the_largest_of_a_window_gets_the_gradient(step: int, reach: int, ops: Any) -> None:
    for width in WIDTHS:
        x = whole((3, width), width, torch.float64)
        cells = -(-width // step)
        expected, given = torch.zeros_like(x), whole((3, cells), step, torch.float64)
        for n, j in itertools.product(range(3), range(cells)):
            window = [p for p in range(step * j - 1, step * j - 1 + reach) if 0 <= p < width]
            if window:
                expected[n, max(window, key=lambda p, n=n: x[n, p].item())] += given[n, j]
        for dtype in TYPES:
            own = x.to(dtype).requires_grad_()
            (found,) = torch.autograd.grad(
                ops.largest(own, step=step, reach=reach), own, given.to(dtype)
            )
            assert torch.equal(found, expected.to(dtype)), (width, dtype)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("stride", "size", "padding"), CASES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_of_strided_convolutions(
    stride: int, size: int, padding: int, channels_last: bool, convolutions: Any
) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for height, width in ((7, 12), (9, 33)):
        x = whole((2, 3, height, width), width, torch.float64).requires_grad_()
        w = whole((3, 1, size, size), 3, torch.float64).requires_grad_()
        y = F.conv2d(x, w, stride=stride, padding=padding, groups=3)
        given = whole(tuple(y.shape), 4, torch.float64)
        expected = torch.autograd.grad(y, (x, w), given)
        for dtype in (torch.float32, torch.bfloat16)[: 2 if width == 33 else 1]:
            own = [each.detach().to(dtype).requires_grad_() for each in (x, w)]
            inputs = [own[0].contiguous(memory_format=layout), own[1]]
            result = convolutions.conv2d(*inputs, stride=stride, padding=padding, groups=3)
            found = torch.autograd.grad(result, own, given.to(dtype))
            assert torch.equal(found[0], expected[0].to(dtype)), (height, width, dtype)
            assert torch.equal(found[1], expected[1].to(dtype)), (height, width, dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("stride", "size", "padding"), CASES)
def test_gradients_of_pooling(stride: int, size: int, padding: int, pools: Any) -> None:
    options = {"kernel_size": size, "stride": stride, "padding": padding}
    for height, width in ((7, 12), (9, 33)):
        x = torch.randperm(2 * 3 * height * width).view(2, 3, height, width).double()
        x.requires_grad_()
        y = F.max_pool2d(x, **options)
        mean = F.avg_pool2d(x, **options)
        given = whole(tuple(y.shape), 5, torch.float64)
        own = x.detach().float().requires_grad_()
        (found,) = torch.autograd.grad(pools.max_pool2d(own, **options)[0], own, given.float())
        assert torch.equal(found.double(), torch.autograd.grad(y, x, given)[0])
        (found,) = torch.autograd.grad(pools.avg_pool2d(own, **options), own, given.float())
        torch.testing.assert_close(found.double(), torch.autograd.grad(mean, x, given)[0])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nothing_behind_the_last_element_is_read(dtype: torch.dtype, ops: Any) -> None:
    """A read behind the end would end this process."""
    for width in WIDTHS:
        x, w = whole((2, width), width, dtype), whole((5,), 1, dtype)
        given, _keep = before_a_page(x)
        assert torch.equal(ops.spread(given, w), ops.spread(x, w))
        assert torch.equal(ops.halves(given), ops.halves(x))
