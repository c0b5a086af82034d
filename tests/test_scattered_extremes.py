"""Extremes in single cells that points choose: they join in memory, as sums are added there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import opgen
from notation_strategies import Call
from opgen.ir.loops import AtomicAdd, walk
from opgen.ir.show_loops import show_program
from opgen.programs import along_rows, for_cpu, for_gpu, scheduled
from test_loops import differences
from written_anew import read

FLAT = "op f(x: float[M], j: int[M]; V: size) -> y[V]\n  y[j[m]] max= x[m]\n"
LEAST = FLAT.replace("max=", "min=")
DROPPED = FLAT.replace("y[j[m]]", "y[j[m] ?drop]")
GRIDS = """op f(x: float[M], i: int[M], j: int[M]; V: size, W: size) -> y[V,W]
  y[i[m],j[m]] max= x[m]
"""
BATCHES = "op f(x: float[B,M], j: int[B,M]; V: size) -> y[B,V]\n  y[b,j[b,m]] max= x[b,m]\n"
OF_ROWS = "op f(x: float[M,D], j: int[M]; V: size) -> y[V]\n  y[j[m]] max= x[m,d]\n"
ABSENT = """op f(x: float[N], i: int[M], j: int[M]; V: size) -> y[V]
  y[j[m]] max= x[i[m] ?0]
"""
THEN_READ = """op f(x: float[M], j: int[M]; V: size) -> y[M]
  tmp top[V]
  top[j[m]] max= x[m]
  y[m] = x[m] - top[j[m]]
"""
EACH = (FLAT, LEAST, DROPPED, GRIDS, BATCHES, OF_ROWS, ABSENT, THEN_READ)


def joined(text: str) -> bool:
    """Whether points join in cells in memory, and nothing has a list."""
    op = for_cpu(read(text))
    kernels = along_rows(op, scheduled(op)).kernels
    nodes = [node for kernel in kernels for node in walk(kernel.body)]
    extremes = [e for e in nodes if isinstance(e, AtomicAdd) and e.reducer.name != "ADD"]
    return bool(extremes) and all(each.buckets is None for each in op.statements)


@pytest.mark.parametrize("text", EACH)
def test_points_join_in_cells(text: str) -> None:
    assert joined(text)
    assert not any(each.is_scattered for each in for_gpu(read(text)).statements)


@pytest.mark.parametrize(
    "text",
    [
        FLAT.replace("x: float[M]", "x: float[M,D]")
        .replace("y[V]", "y[V,D]")
        .replace("y[j[m]]", "y[j[m],d]")
        .replace("x[m]\n", "x[m,d]\n"),
        FLAT.replace("-> y[V]\n", "-> y[V], k: i64[V]\n")
        + "  k[v] = argmax(m if j[m] == v; m) x[m]\n",
        FLAT.replace("-> y[V]", "-> y: f32[V]"),
        FLAT.replace("y[j[m]]", "y[j[m] ?clamp]"),
        FLAT + "  y[j[m]] max= 2*x[m]\n",
    ],
    ids=["rows", "where it is", "a declared type", "brought inside", "two statements"],
)
def test_near_misses(text: str) -> None:
    assert not joined(text)


def loops(x: Tensor, j: Tensor, nodes: int, least: bool = False) -> Tensor:
    """Point by point; who is outside joins nowhere, and NaN wins."""
    y = x.new_full((nodes,), torch.inf if least else -torch.inf)
    for m in range(len(x)):
        at = int(j[m])
        if 0 <= at < nodes:
            y[at] = torch.minimum(y[at], x[m]) if least else torch.maximum(y[at], x[m])
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("points", [0, 1, 300])
def test_numbers(dtype: torch.dtype, points: int) -> None:
    torch.manual_seed(points)
    x, j = torch.randn(points).to(dtype), torch.randint(40, (points,))
    if points > 100:
        x[5], x[6], x[7:9] = torch.inf, -torch.inf, torch.nan
        x[j == j[20]] = -torch.inf
    apart = torch.stack([x, x], 1)[:, 0]
    for each in (x, apart):
        found = opgen.compile(FLAT).f(each, j, V=50)
        torch.testing.assert_close(found, loops(x, j, 50), equal_nan=True, rtol=0, atol=0)
        found = opgen.compile(LEAST).f(each, j, V=50)
        torch.testing.assert_close(found, loops(x, j, 50, True), equal_nan=True, rtol=0, atol=0)
    outside = j - 10
    found = opgen.compile(DROPPED).f(x, outside, V=20)
    torch.testing.assert_close(found, loops(x, outside, 20), equal_nan=True, rtol=0, atol=0)
    assert opgen.compile(FLAT).f(x[:0], j[:0], V=0).shape == (0,)


@pytest.mark.parametrize("sign", ["max", "min"])
def test_the_meaning_of_the_loops(sign: str) -> None:
    op = for_cpu(read(FLAT.replace("max", sign)))
    x, j = np.array([3.0, -2.0, np.nan, 5.0, 1.0]), np.array([2, 0, 1, 2, 1])
    program = along_rows(op, scheduled(op))
    assert f"{sign}= x[" in show_program(program)
    assert not differences(op, Call({"M": 5}, {"x": x, "j": j}, {"V": 4}), program)


def test_integers() -> None:
    x, j = torch.randint(-9, 9, (300,)), torch.randint(40, (300,))
    call = opgen.compile(FLAT.replace("x: float[M]", "x[M]")).f
    least = torch.iinfo(torch.int64).min
    wanted = torch.full((40,), least).scatter_reduce(0, j, x, "amax")
    assert torch.equal(call(x, j, V=40), wanted)


def test_cells_of_several_numbers() -> None:
    torch.manual_seed(0)
    x, (i, j) = torch.randn(200), torch.randint(7, (2, 200))
    found = opgen.compile(GRIDS).f(x, i, j, V=7, W=8)
    assert torch.equal(found, loops(x, 8 * i + j, 56).reshape(7, 8))
    rows, columns = torch.randn(3, 50), torch.randint(9, (3, 50))
    found = opgen.compile(BATCHES).f(rows, columns, V=9)
    assert torch.equal(found, torch.stack([loops(*e, 9) for e in zip(rows, columns, strict=True)]))
    found = opgen.compile(OF_ROWS).f(rows.t(), columns[0], V=9)
    assert torch.equal(found, loops(rows.t().amax(1), columns[0], 9))
    at = torch.randint(-3, 53, (60,))
    inside = (at >= 0) & (at < 50)
    found = opgen.compile(ABSENT).f(rows[0], at, columns[0].repeat(2)[:60], V=9)
    assert torch.equal(found, loops(rows[0][at[inside]], columns[0].repeat(2)[:60][inside], 9))


@pytest.mark.parametrize("points", [50, 40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients(points: int, dtype: torch.dtype) -> None:
    """The first among equals has it; against PyTorch where none are."""
    torch.manual_seed(0)
    x, j = torch.randn(points, dtype=dtype, requires_grad=True), torch.randint(30, (points,))
    flowing = torch.randn(points, dtype=dtype)
    for _ in range(2):
        found = opgen.compile(THEN_READ).f(x, j, V=30)
        top = x.new_full((30,), -torch.inf).scatter_reduce(0, j, x, "amax")
        wanted = x - top[j]
        torch.testing.assert_close(found, wanted)
        both = [torch.autograd.grad(each, x, flowing)[0] for each in (found, wanted)]
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)
    if points < 100 and dtype is torch.float64:
        assert torch.autograd.gradgradcheck(lambda x: opgen.compile(THEN_READ).f(x, j, V=30), (x,))


def test_an_index_outside_is_refused() -> None:
    x, j = torch.randn(8), torch.zeros(8, dtype=torch.int64)
    j[3] = 5
    with pytest.raises(IndexError, match="index 5 is outside of dimension 0 of 'y'"):
        opgen.compile(FLAT).f(x, j, V=5)
