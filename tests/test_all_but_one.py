"""What all terms but one make: of those before it and those behind it, in the gradient of a product
as well."""

from __future__ import annotations

import itertools
import math
from types import ModuleType
from typing import Final

import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import stage_text
from opgen.errors import Source

TEXT: Final = """op row(x[N,K]) -> y[N]
  y[n] = prod(k) x[n,k]

op column(x[N,H,C]) -> y[N,C]
  y[n,c] = prod(h) x[n,h,c]

op image(x[N,H,W]) -> y[N]
  y[n] = prod(h, w) x[n,h,w]

op leading(x[...,K], w[K]) -> y[...,1]
  y[...,0] = prod(k) (w[k] + x[...,k])

op others(x[N,K]) -> y[N,K]
  y[n,k] = sum(j in K if j != k) x[n,j]

op later(x[N,K]; since: int = 1) -> y[N,K]
  y[n,k] = prod(j in K if j != k and j >= since) x[n,j]

op whole(x: i32[N,K]) -> y: i32[N,K]
  y[n,k] = prod(j in K if k != j) x[n,j]
"""
LEFT: Final = """op few(x[N,2]) -> y[N]
  y[n] = prod(k) x[n,k]

op apart(x[N,K]) -> y[N,K]
  y[n,k] = sum(j in K if j != k) abs(x[n,j] - x[n,k])

op next_to(x[N,K]) -> y[N,K]
  y[n,k] = sum(j in K if j != k + 1) x[n,j]

op extremes(x[N,K]) -> y[N,K]
  y[n,k] = max(j in K if j != k) x[n,j]
"""
SIZES: Final = (0, 1, 2, 3, 17, 400)


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


def programs(text: str) -> dict[str, str]:
    """The loops of each op along rows."""
    parts = stage_text(Source(text, "<test>"), "rows").split("program ")
    return {part.split("\n")[0]: part for part in parts if part}


def signs(*shape: int) -> Tensor:
    """Numbers of which products are exact, none of them too large."""
    generator = torch.Generator().manual_seed(sum(shape))
    drawn = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return drawn.double() * 2.0 ** torch.randint(-1, 2, shape, generator=generator)


def others_of(x: Tensor) -> Tensor:
    """The product of all others for each cell along the last dim, by plain loops."""
    found = torch.ones_like(x)
    for own, other in itertools.product(range(x.shape[-1]), repeat=2):
        if own != other:
            found[..., own] *= x[..., other]
    return found


def same(one: Tensor, other: Tensor) -> bool:
    """Whether numbers are the same, NaN as well."""
    return torch.equal(one.nan_to_num(12345), other.nan_to_num(12345))


def gradient(op: object, *inputs: Tensor) -> Tensor:
    """That of the first input where the sum of what an op computes flows back."""
    first = inputs[0].clone().requires_grad_()
    assert callable(op)
    (found,) = torch.autograd.grad(op(first, *inputs[1:]).sum(), first)
    assert isinstance(found, Tensor)
    return found


def test_two_sides() -> None:
    found = programs(TEXT)
    for name in ("row_grad_x", "column_grad_x", "leading_grad_x", "others", "later", "whole"):
        assert "_before[" in found[name], name
        assert " != 0" not in found[name], name
    assert "others_y_rows" in found["image_grad_x"]
    assert " != 0" not in found["image_grad_x"]
    assert "lanes\n          others_y_before[n, h, c] = total" in found["column_grad_x"]


def test_what_is_left() -> None:
    found = programs(LEFT)
    for name in ("few_grad_x", "apart", "next_to", "extremes"):
        assert "_before[" not in found[name], name
        assert " != 0" in found[name], name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_products(ops: ModuleType, size: int) -> None:
    x = signs(4, size)
    x[1, 3:4] = 0
    x[2, 3:5] = 0
    assert torch.equal(gradient(ops.row, x), others_of(x))
    assert torch.equal(gradient(ops.leading, x[:, None], 0 * x[0]), others_of(x)[:, None])
    column = x.T[:, None].expand(size, 2, 4).permute(1, 0, 2)
    assert torch.equal(gradient(ops.column, column), others_of(x).T.expand(2, size, 4))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 4), (4, 0), (0, 4), (17, 5)])
def test_gradients_of_products_of_images(ops: ModuleType, shape: tuple[int, int]) -> None:
    x = signs(4, *shape)
    x[1, 2:3, 3:4] = 0
    x[2, 2:4, 3:4] = 0
    x[3, 2:3] = 0
    expected = others_of(x.flatten(1)).view(x.shape)
    assert torch.equal(gradient(ops.image, x), expected)


def test_what_is_not_finite(ops: ModuleType) -> None:
    special = torch.tensor(list(itertools.product((1.0, 0.0, -2.0, math.inf, math.nan), repeat=4)))
    x = torch.cat((torch.ones(len(special), 13), special), 1).double()
    assert same(gradient(ops.row, x), others_of(x))
    assert same(gradient(ops.row, x.flip(1)), others_of(x.flip(1)))
    image = torch.cat((special, torch.ones_like(special)), 1).double().view(-1, 2, 4)
    assert same(gradient(ops.image, image), others_of(image.flatten(1)).view(image.shape))


@pytest.mark.parametrize("size", [0, 1, 5, 30])
def test_others(ops: ModuleType, size: int) -> None:
    x = signs(3, size)
    torch.testing.assert_close(ops.others(x), x.sum(1, keepdim=True) - x)
    late = torch.where(torch.arange(size) >= 3, x, 1.0)
    assert torch.equal(ops.later(x, since=3), others_of(late))
    whole = torch.arange(-1, size * 3 - 1, dtype=torch.int32).view(3, size)
    assert torch.equal(ops.whole(whole), others_of(whole))


def test_second_order(ops: ModuleType) -> None:
    x = (signs(2, 3, 4) / 2).requires_grad_()
    assert torch.autograd.gradgradcheck(ops.image, (x,))
    assert torch.autograd.gradgradcheck(ops.column, (x,))
    assert torch.autograd.gradgradcheck(ops.row, (x[0],))


@pytest.mark.parametrize("size", [*SIZES, 7, 8, 9, 15, 16, 31])
def test_long_products(ops: ModuleType, size: int) -> None:
    x = signs(3, size)
    x[1, 11:12], x[2, 5:6], x[2, 13:14] = 0, math.inf, 0
    assert same(ops.row(x), x.prod(1))
    assert same(ops.row(x.T.contiguous().T), x.prod(1))
    image = torch.stack((x, x), 1)
    assert same(ops.image(image), image.prod(1).prod(1))


def test_products_do_not_wait_for_each_other() -> None:
    found = programs(TEXT)
    for name in ("row", "image", "leading"):
        assert "total_7 multiply= total" not in found[name]
        assert "total_7 multiply= " in found[name], name
    assert "total_1" not in found["column"]
