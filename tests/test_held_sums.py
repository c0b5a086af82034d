"""Sums of rows that are looked up, as embedding bags: of whole vectors, and of what they leave."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.emit.c import c_source
from opgen.programs import along_rows, for_cpu, scheduled
from written_anew import read

BAG = "op f(w: float[V,D], i: int[B,L]) -> y[B,D]\n  y[b,d] = sum(l) w[i[b,l],d]\n"
WEIGHTED = """op f(w: float[V,D], i: int[B,L], a[B,L]) -> y[B,D]
  y[b,d] = sum(l) a[b,l]*w[i[b,l],d]
"""
ABSENT = WEIGHTED.replace("w[i[b,l],d]", "w[i[b,l] ?0,d]")
MEAN = BAG.replace("sum(l)", "mean(l)")
RANGES = """op f(w: float[V,D], i: int[M], t: int[B+1]) -> y[B,D]
  y[b,d] = sum(m in M if t[b] <= m < t[b+1]) w[i[m],d] for b in B
"""
MARK = "_rest + LANES <="


def loops(w: Tensor, i: Tensor, a: Tensor | None = None) -> Tensor:
    """Row by row; what is outside counts nothing."""
    y = w.new_zeros(len(i), w.shape[1])
    for b in range(len(i)):
        for at in range(i.shape[1]):
            if 0 <= int(i[b, at]) < len(w):
                row = w[i[b, at]]
                y[b] += row if a is None else a[b, at] * row
    return y


def printed(text: str) -> str:
    op = for_cpu(read(text))
    return c_source(along_rows(op, scheduled(op)))


@pytest.mark.parametrize("text", [BAG, WEIGHTED, ABSENT, MEAN, RANGES])
def test_sums_are_registers(text: str) -> None:
    assert MARK in printed(text)


@pytest.mark.parametrize(
    "text",
    [
        BAG.replace("sum(l)", "max(l)"),
        BAG.replace("w[i[b,l],d]", "exp(w[i[b,l],d])"),
        BAG.replace("w[i[b,l],d]", "i[b,l]*w[l,d]").replace("[B,L]", "[B,V]"),
        BAG.replace("V,D", "V,5").replace("B,D", "B,5"),
        BAG.replace("w[i[b,l],d]", "w[i[b,l], D-1-d]"),
        BAG.replace("i: int[B,L]", "i: int[B,L,D]").replace("i[b,l]", "i[b,l,d]"),
        BAG.replace("w: float[V,D]", "w: int[V,D]").replace("y[B,D]\n", "y: i64[B,D]\n"),
    ],
    ids=["maxima", "a function", "no index", "short", "turned", "an index for each", "integers"],
)
def test_near_misses(text: str) -> None:
    assert MARK not in printed(text)


WIDTHS = (8, 15, 16, 31, 64, 100, 129, 1100)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.sampled(8)
def test_numbers(width: int, dtype: torch.dtype) -> None:
    """Against loops in float64, and with rows that lie apart in memory the very same bits."""
    torch.manual_seed(width)
    w, i = torch.randn(11, width).to(dtype), torch.randint(11, (7, 9))
    a, outside = torch.randn(7, 9).to(dtype), torch.randint(-3, 14, (7, 9))
    apart = torch.stack([w, w], 2)[:, :, 0]
    half = {"rtol": 0.02, "atol": 0.02} if dtype.itemsize == 2 else {}
    for text, args, more in ((BAG, (i,), (i,)), (WEIGHTED, (i, a), (i, a.double()))):
        call = opgen.compile(text).f
        wanted = loops(w.double(), *more)
        torch.testing.assert_close(call(w, *args), wanted.to(dtype), **half)
        torch.testing.assert_close(call(apart, *args), wanted.to(dtype), **half)
    assert torch.equal(opgen.compile(BAG).f(w, i), opgen.compile(BAG).f(apart, i))
    found = opgen.compile(ABSENT).f(w, outside, a)
    torch.testing.assert_close(found, loops(w.double(), outside, a.double()).to(dtype), **half)


@pytest.mark.parametrize("width", [4, 16, 100])
@pytest.mark.parametrize("weights", [False, True])
def test_gradients_of_large_calls(width: int, weights: bool) -> None:
    torch.manual_seed(0)
    w, i = torch.randn(500, width, requires_grad=True), torch.randint(500, (400, 30))
    a = torch.randn(400, 30, requires_grad=True)
    call = opgen.compile(WEIGHTED if weights else BAG).f
    inputs = (w, a) if weights else (w,)
    theirs = F.embedding_bag(i, w, mode="sum", per_sample_weights=a if weights else None)
    mine = call(w, i, a) if weights else call(w, i)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    flowing = torch.randn_like(mine)
    found = torch.autograd.grad(mine, inputs, flowing)
    for got, wanted in zip(found, torch.autograd.grad(theirs, inputs, flowing), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_means_ranges_and_long_sums() -> None:
    torch.manual_seed(0)
    w, i = torch.randn(30, 40, dtype=torch.float64), torch.randint(30, (3, 1200))
    torch.testing.assert_close(opgen.compile(BAG).f(w, i), w[i].sum(1))
    torch.testing.assert_close(opgen.compile(MEAN).f(w, i), w[i].mean(1))
    t = torch.tensor([0, 0, 5, 1200, 1200])
    wanted = torch.stack([w[i[0, t[b] : t[b + 1]]].sum(0) for b in range(4)])
    torch.testing.assert_close(opgen.compile(RANGES).f(w, i[0], t), wanted)


def test_numbers_without_end() -> None:
    """Rows that no index names say nothing, nor do lanes of others."""
    w = torch.ones(6, 37)
    w[1, 36], w[2, 3], w[3, 20], w[5] = torch.inf, torch.nan, -torch.inf, torch.nan
    i = torch.tensor([[0, 1, 4], [2, 0, 1], [3, 1, 4], [0, 4, 0]])
    for text, more in ((BAG, ()), (WEIGHTED, (torch.ones(4, 3),)), (ABSENT, (torch.ones(4, 3),))):
        found = opgen.compile(text).f(w, i, *more)
        torch.testing.assert_close(found, w[i].sum(1), equal_nan=True)
    weights = torch.zeros(4, 3)
    found = opgen.compile(WEIGHTED).f(w, i, weights)
    torch.testing.assert_close(found, (0 * w[i]).sum(1), equal_nan=True)
    outside = torch.full((4, 3), 6)
    assert not opgen.compile(ABSENT).f(w, outside, torch.full((4, 3), torch.inf)).any()


@pytest.mark.parametrize("shape", [(0, 5, 3, 40), (4, 0, 3, 40), (4, 5, 3, 0), (4, 0, 0, 40)])
def test_nothing_to_add(shape: tuple[int, int, int, int]) -> None:
    bags, length, rows, width = shape
    w = torch.randn(rows, width, requires_grad=True)
    i = torch.zeros(bags, length, dtype=torch.int64)
    y = opgen.compile(BAG).f(w, i)
    assert y.shape == (bags, width) and not y.any()
    (found,) = torch.autograd.grad(y, w, torch.ones_like(y))
    assert torch.equal(
        found, torch.full_like(w, float(bags * length)) * (torch.arange(rows) == 0)[:, None]
    )


@pytest.mark.parametrize("width", [16, 37])
def test_an_index_outside_is_refused(width: int) -> None:
    w, i = torch.randn(5, width), torch.zeros(3, 4, dtype=torch.int64)
    i[1, 2] = 5
    for text, more in ((BAG, ()), (WEIGHTED, (torch.zeros(3, 4),))):
        with pytest.raises(IndexError, match="index 5 is outside of dimension 0 of 'w'"):
            opgen.compile(text).f(w, i, *more)


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    w, a = torch.randn(5, 19, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    i = torch.randint(5, (4, 3))
    call = opgen.compile(WEIGHTED).f
    inputs = (w.requires_grad_(), a.requires_grad_())
    assert torch.autograd.gradcheck(lambda w, a: call(w, i, a), inputs)
    assert torch.autograd.gradgradcheck(lambda w, a: call(w, i, a), inputs)
