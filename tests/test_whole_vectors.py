"""Rows of known length as whole vectors of lanes, the last of which begins earlier."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.errors import Source
from opgen.on_demand import special_source

WINDOW = "y[n,h,w] = sum(k in 3, l in 3) x[n,h + k ?clamp,w] * t[k,l ?clamp]"
TEXT = "op near(x[N,H,W], t[K,L]) -> y[N,H,W]\n  where K >= 3, L >= 1\n"


def source(statement: str, width: int) -> str:
    """C of an op for rows of a length."""
    spec = Source(f"{TEXT}  {statement}\n", "near.op")
    return special_source(spec.text, spec.name, ("near",), {"W": width}, 0)


def goes_by_vectors(text: str) -> bool:
    return re.search(r"if \((\w+) > \d+\) \1 = \d+;", text) is not None


@pytest.mark.parametrize(
    ("width", "is_so"),
    [(15, False), (16, False), (17, True), (20, True), (32, False), (33, True), (62, True)],
)
def test_rows_that_are_no_whole_vectors(width: int, is_so: bool) -> None:
    assert goes_by_vectors(source(WINDOW, width)) == is_so


NEAR_MISSES = {
    "few terms": ("y[n,h,w] = sum(k in 3) x[n,h + k ?clamp,w] * t[k,0]", 20),
    "ends of a row that are computed apart": (
        "y[n,h,w] = sum(k in 3, l in 3) x[n,h + k ?clamp,w + l ?clamp] * t[k,0]",
        20,
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    assert not goes_by_vectors(source(*NEAR_MISSES[name]))


CALLS = [
    (torch.float32, 20, 7),
    (torch.float32, 17, 3),
    (torch.float64, 19, 5),
    (torch.bfloat16, 28, 5),
    pytest.param((torch.float16, 33, 3), marks=pytest.mark.slow),
    pytest.param((torch.float32, 62, 5), marks=pytest.mark.slow),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_values_are_those_of_torch(call: tuple[torch.dtype, int, int]) -> None:
    """Every cell; the same row by a cell to the side is told apart."""
    dtype, width, window = call
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(3, 19, width, width, dtype=dtype).requires_grad_()
    weight = torch.randn(19, 1, window, window, dtype=dtype).requires_grad_()
    y = conv(x, weight, padding=window // 2, groups=19)
    wide = [each.detach().double().requires_grad_() for each in (x, weight)]
    z = F.conv2d(*wide, padding=window // 2, groups=19)
    seed = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, (x, weight), seed))
    wanted = (z, *torch.autograd.grad(z, wide, seed.double()))
    bits = torch.finfo(dtype).eps
    for own, exact in zip(found, wanted, strict=True):
        largest = exact.abs().max()
        assert (own.double() - exact).abs().max() <= 64 * bits * largest
        shifted = own.double().roll(1, -1)
        assert (shifted - exact).abs().max() > 64 * bits * largest
