"""Cumulative sums, products and extremes: a loop over cells, each of which has one more term."""

from __future__ import annotations

import itertools
import math
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import check_source, stage_text
from opgen.errors import Source
from opgen.programs import for_cpu

TEXT: Final = """op upto(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j <= i) x[n,j]

op before(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j < i) x[n,j]

op onward(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j >= i) x[n,j]

op behind(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j > i) x[n,j]

op product(x[N,I]) -> y[N,I]
  y[n,i] = prod(j in I if j <= i) x[n,j]

op greatest(x[B,T,C]) -> y[B,T,C]
  y[b,t,c] = max(s in T if s <= t) x[b,s,c]

op least(x[B,T,C]) -> y[B,T,C]
  y[b,t,c] = min(s in T if s > t) x[b,s,c]

op first(x[B,T,C]) -> y: int[B,T,C]
  y[b,t,c] = argmax(s in T if s <= t) x[b,s,c]

op first_behind(x[N,I]) -> y: int[N,I]
  y[n,i] = argmin(j in I if j >= i) x[n,j]

op both(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j <= i) x[n,j] + sum(j in I if j >= i) x[n,j]

op line(x[I]) -> y[I]
  y[i] = min(j in I if j > i) x[j]

op weighted(x[N,I], w[I]) -> y[N,I]
  y[n,i] = sum(j in I if j <= i) w[j]*x[n,j]

op weighted_before(x[N,I], w[I]) -> y[N,I]
  y[n,i] = sum(j in I if j < i) w[j]*x[n,j]

op average(x[B,T,C]) -> y[B,T,C]
  y[b,t,c] = (sum(s in T if s <= t) x[b,s,c]) / (t + 1)

op spread(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j <= i) x[n,j]*x[n,j] - (sum(j in I if j <= i) x[n,j])**2

op plus(x[N,I]) -> y[N,I]
  y[n,i] = x[n,i] * sum(j in I if j <= i) x[n,j]

op rows(x[N,K,I]) -> y[N,I]
  y[n,i] = sum(k, j in I if j >= i) x[n,k,j]

op shifted(x[N,J], z[I]; lag: int = 2) -> y[N,I]
  y[n,i] = z[i] + sum(j in J if j <= i + lag) x[n,j]

op late(x[N,J], z[I]) -> y[N,I]
  y[n,i] = z[i] + sum(j in J if j >= i - 3) x[n,j]

op image(x[N,H,W]) -> y[N,H,W]
  y[n,h,w] = sum(i in H, j in W if i <= h and j <= w) x[n,i,j]

op few(x[N,6]) -> y[N,6]
  y[n,i] = sum(j in 6 if j <= i) x[n,j]

op corner(x[B,T,H,W], w[W]) -> y[B,T,H,W]
  y[b,t,h,v] = max(s in T, i in H, j in W if s <= t and i > h and j <= v) w[j]*x[b,s,i,j]

op whole(x: i32[N,I]) -> y: i32[N,I]
  y[n,i] = sum(j in I if j <= i) x[n,j]
"""
LEFT: Final = """op window(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j <= i and j > i - 3) x[n,j]

op pairs(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j <= i) exp(x[n,j]*x[n,i])

op distance(x[N,I]) -> y[N,I]
  y[n,i] = sum(j in I if j <= i) (i - j)*x[n,j]

op steps(x[N,J], z[I]) -> y[N,I]
  y[n,i] = z[i] + sum(j in J if j <= 2*i) x[n,j]
"""
SIZES: Final = (0, 1, 2, 17, 400)


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


def programs(text: str) -> dict[str, str]:
    """The loops of each op along rows."""
    parts = stage_text(Source(text, "<test>"), "rows").split("program ")
    return {part.split("\n")[0]: part for part in parts if part}


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers of which sums are exact."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def from_end(x: Tensor) -> Tensor:
    """Sums from each cell on."""
    return x.flip(1).cumsum(1).flip(1)


def test_a_point_is_a_row() -> None:
    found = programs(TEXT)
    for name, text in found.items():
        if "_grad" not in name and name not in ("image", "corner"):
            parallel = text[text.index("parallel") :].split("\n")[0]
            assert "t < T" not in parallel, name
            assert "i < " not in parallel, name
    for name, kernels in (("image", 2), ("corner", 3)):
        text = found[name]
        assert text.count("parallel") == kernels
        assert "for j in" not in text and "for s in" not in text, name
    assert "y_rows[b, s, i, v]" in found["corner"]
    assert "parallel b < B, c_first .. c_last of c < C" in found["greatest"]
    row = "for i in 0 .. I - 1\n            total add= x[n, i]\n            y[n, i] = total"
    assert row in found["upto"]
    assert "y[2*n_block, i] = total_0\n          y[2*n_block + 1, i] = total_1" in found["upto"]


def test_both_directions_are_apart() -> None:
    found = programs(TEXT)
    for name in ("both", "both_grad_x"):
        parallel = [line for line in found[name].splitlines() if "parallel" in line]
        assert [each.strip() for each in parallel] == ["parallel n_block < (N + 1)//2"] * 2


def test_what_is_left() -> None:
    found = programs(LEFT)
    for name in ("window", "pairs", "distance", "steps"):
        assert "i < I" in found[name], name


@pytest.mark.parametrize("size", SIZES)
def test_sums(ops: ModuleType, size: int) -> None:
    x = drawn(3, size)
    assert torch.equal(ops.upto(x), x.cumsum(1))
    assert torch.equal(ops.before(x), x.cumsum(1) - x)
    assert torch.equal(ops.onward(x), from_end(x))
    assert torch.equal(ops.behind(x), from_end(x) - x)
    assert torch.equal(ops.weighted(x, x[0]), (x[0] * x).cumsum(1))
    assert torch.equal(ops.spread(x), (x * x).cumsum(1) - x.cumsum(1) ** 2)
    assert torch.equal(ops.both(x), x.cumsum(1) + from_end(x))
    assert torch.equal(ops.rows(torch.stack((x, 2 * x), 1)), from_end(3 * x))
    assert torch.equal(ops.whole(x.to(torch.int32)), x.cumsum(1).to(torch.int32))
    squares = x[:, :40, None] * x[0, :23]
    assert torch.equal(ops.image(squares), squares.cumsum(1).cumsum(2))


@pytest.mark.parametrize("size", SIZES)
def test_extremes(ops: ModuleType, size: int) -> None:
    x = drawn(2, size, 21)
    x[:, 3:5, ::7] = math.nan
    x[:, 7:9, ::5] = math.inf
    greatest, least = ops.greatest(x), ops.least(x)
    first, behind = ops.first(x), ops.first_behind(x[0].T)
    for t in range(size):
        assert same(greatest[:, t], x[:, : t + 1].amax(1))
        assert torch.equal(first[:, t], first_of(x[:, : t + 1], greatest[:, t]))
        assert torch.equal(behind[:, t], t + first_of(x[:1, t:], x[:1, t:].amin(1))[0])
        if t + 1 < size:
            assert same(least[:, t], x[:, t + 1 :].amin(1))
    assert not size or bool((least[:, -1] == math.inf).all())


def same(one: Tensor, other: Tensor) -> bool:
    """Whether numbers are the same, NaN as well."""
    return torch.equal(one.nan_to_num(12345), other.nan_to_num(12345))


def first_of(x: Tensor, extreme: Tensor) -> Tensor:
    """Where rows first hold numbers, or NaN."""
    held = (x == extreme[:, None]) | (x.isnan() & extreme.isnan()[:, None])
    return held.to(torch.int8).argmax(1)


@pytest.mark.parametrize("size", SIZES)
def test_products_and_means(ops: ModuleType, size: int) -> None:
    x = drawn(3, size).sign()
    x[1:] = torch.where(x[1:] == 0, 1, x[1:])
    x[2, 9:10], x[1, 11:12], x[2, 11:12] = 0, math.inf, math.nan
    assert same(ops.product(x), x.cumprod(1))
    x = drawn(2, size, 5)
    torch.testing.assert_close(ops.average(x), x.cumsum(1) / counts(size)[:, None])


@pytest.mark.parametrize(("size", "lag"), [(0, 1), (1, 0), (3, -2), (7, 2), (20, 5)])
def test_totals_that_end_elsewhere(ops: ModuleType, size: int, lag: int) -> None:
    for terms in (0, 1, size, size + 2, 40):
        x, z = drawn(2, terms), drawn(size)
        shifted, late = ops.shifted(x, z, lag=lag), ops.late(x, z)
        for i in range(size):
            assert torch.equal(shifted[:, i], z[i] + x[:, : max(i + lag + 1, 0)].sum(1))
            assert torch.equal(late[:, i], z[i] + x[:, max(i - 3, 0) :].sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_and_strides(ops: ModuleType, dtype: torch.dtype) -> None:
    x = drawn(50, 2, 40, dtype=dtype).permute(1, 2, 0)[:, ::2]
    assert torch.equal(ops.upto(x[0]), x[0].cumsum(1))
    assert same(ops.greatest(x), x.cummax(1).values)
    means = x.double().cumsum(1) / counts(20)[:, None]
    assert torch.equal(ops.average(x), means.to(dtype))


def counts(size: int) -> Tensor:
    """How many terms the means of cells have."""
    return torch.arange(1, size + 1, dtype=torch.float64)


def test_rows_of_known_length(ops: ModuleType) -> None:
    x = drawn(5, 6)
    assert torch.equal(ops.few(x), x.cumsum(1))


def test_dims_one_by_one(ops: ModuleType) -> None:
    x, w = drawn(2, 4, 3, 21), drawn(21)
    found = ops.corner(x, w)
    for t, h, v in itertools.product(range(4), range(2), range(21)):
        box = (x * w)[:, : t + 1, h + 1 :, : v + 1]
        assert torch.equal(found[:, t, h, v], box.amax((1, 2, 3)))
    image = drawn(2, 9, 11).requires_grad_()
    equal_gradients(ops.image, lambda x: x.cumsum(1).cumsum(2), image)


def test_long_sums_do_not_stop(ops: ModuleType) -> None:
    found = ops.upto(torch.ones(1, 2**24 + 8))
    assert found[0, -1] == 2**24 + 8


@pytest.mark.parametrize("size", [1, 2, 17])
def test_gradients(ops: ModuleType, size: int) -> None:
    x = drawn(3, size).add(0.5).requires_grad_()
    w = drawn(size).requires_grad_()
    assert torch.autograd.gradcheck(ops.onward, (x,))
    equal_gradients(ops.upto, lambda x: x.cumsum(1), x)
    equal_gradients(ops.behind, lambda x: from_end(x) - x, x)
    equal_gradients(ops.plus, lambda x: x * x.cumsum(1), x)
    equal_gradients(ops.product, lambda x: x.cumprod(1), x)
    equal_gradients(ops.both, lambda x: x.cumsum(1) + from_end(x), x)
    equal_gradients(ops.weighted_before, lambda x, w: (x * w).cumsum(1) - x * w, x, w)
    equal_gradients(ops.weighted, lambda x, w: (x * w).cumsum(1), x, w)
    y = (drawn(2, size, 6) + 0.1 * torch.rand(2, size, 6)).requires_grad_()
    equal_gradients(ops.greatest, lambda y: y.cummax(1).values, y)
    equal_gradients(ops.average, lambda y: y.cumsum(1) / counts(size)[:, None], y)


@pytest.mark.parametrize("size", [1, 2, 17, 90])
def test_gradients_of_extremes(ops: ModuleType, size: int) -> None:
    x = drawn(2, size, 21)
    x[:, 3:5, ::7] = math.nan
    x.requires_grad_()
    g = drawn(2, size, 21) + 0.5
    (grad,) = torch.autograd.grad(ops.greatest(x), x, g)
    expected = torch.zeros_like(x).scatter_add(1, ops.first(x).long(), g)
    assert torch.equal(grad, expected)
    row = drawn(size).requires_grad_()
    (grad,) = torch.autograd.grad(ops.line(row), row, g[0, :, 0])
    found = torch.zeros(size, dtype=row.dtype)
    for i in range(size - 1):
        found[i + 1 + row[i + 1 :].argmin()] += g[0, i, 0]
    assert torch.equal(grad, found)


def test_gradients_of_extremes_are_scattered() -> None:
    found = programs(TEXT)
    for name in ("greatest_grad_x", "least_grad_x", "line_grad_x"):
        assert "atomic grad_x_total[" in found[name], name
        assert " == " not in found[name].split("# ")[-1], name


def test_factors_of_a_cell_go_behind_its_total(ops: ModuleType) -> None:
    found = programs(TEXT)
    for name in ("weighted_grad_x", "weighted_grad_w", "weighted_before_grad_x"):
        assert "for i in" not in found[name], name
    x, w = drawn(2, 5).requires_grad_(), drawn(5)
    w[-1] = math.inf
    y = ops.weighted_before(x, w)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(grad[:, -1], torch.zeros(2, dtype=x.dtype))  # no cell has the last one
    assert torch.equal(grad[:, :-1], (w[:-1] * torch.arange(4, 0, -1)).expand(2, 4))


def equal_gradients(op: Any, expected: Any, *inputs: Tensor) -> None:
    """Compare gradients of first and second order with PyTorch's."""
    found = [gradients(each, inputs) for each in (op, expected)]
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)


def gradients(op: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Those of a weighted sum, and those of what these are."""
    y = op(*inputs)
    weight = (drawn(*y.shape) + 0.25).requires_grad_()
    first = torch.autograd.grad(y, inputs, weight, create_graph=True)
    if not any(each.requires_grad for each in first):
        return list(first)
    total = sum(((each * each).sum() for each in first), torch.zeros(()))
    second = torch.autograd.grad(total, (*inputs, weight), allow_unused=True)
    zeros = (torch.zeros_like(each) for each in (*inputs, weight))
    return [*first, *(z if each is None else each for each, z in zip(second, zeros, strict=True))]


def test_a_condition_around_a_total_that_others_join() -> None:
    """Totals of two directions and two dims, of which one has terms in some rows alone."""
    function = opgen.compile(
        "op f(x[J,H]) -> y[H,J]\n"
        "  y[h,i] += sum(g in H, j in J if g > h and j > i) x[j,g]\n"
        "  y[h,i] += sum(g in H, j in J if g < h and j <= i) x[j,g]\n"
    ).f
    x = torch.randn(3, 4, dtype=torch.float64)
    wanted = torch.stack(
        [
            torch.stack([x[i + 1 :, h + 1 :].sum() + x[: i + 1, :h].sum() for i in range(3)])
            for h in range(4)
        ]
    )
    torch.testing.assert_close(function(x), wanted)


def test_a_bound_that_a_tensor_moves() -> None:
    function = opgen.compile(
        "op f(x[I,C], n: int[B]) -> y[C,B,I]\n  y[c,b,i] = max(j in I if j <= i + n[b]) x[j,c]\n"
    ).f
    x, n = torch.randn(17, 2), torch.tensor([1, 2, 0, 5])
    ends = [[min(17, i + int(by) + 1) for i in range(17)] for by in n]
    wanted = torch.stack([torch.stack([x[:end].amax(0) for end in each]) for each in ends])
    assert torch.equal(function(x, n), wanted.movedim(2, 0))


@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_functions_of_terms_are_vectors(reducer: str) -> None:
    spec = f"op f(x[N,J]) -> y[N,J]\n  y[n,i] = {reducer}(j in J if j <= i) exp(x[n,j])\n"
    (op,) = check_source(Source(spec, "<test>"))
    assert {each.name for each in for_cpu(op).temporaries} == {"y_each"}
    x = torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    y, e = opgen.compile(spec).f(x), torch.exp(x)
    wanted = e.cumsum(1) if reducer == "sum" else e.cummax(1).values
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found, theirs = (torch.autograd.grad(each, x, along)[0] for each in (y, wanted))
    torch.testing.assert_close(found, theirs)


def test_a_window_whose_end_is_defined_in_terms_of_a_cell() -> None:
    """The gradient of what `?clamp` reads has two terms at the last cell, and one elsewhere."""
    spec = "op f(x: float[W]) -> y[W]\n  y[w] = max(x[w], x[w+1 ?clamp])\n"
    assert "so_far" not in stage_text(Source(spec, "<test>"), "rows")
    x = torch.randn(9, dtype=torch.float64, requires_grad=True)
    wanted = torch.maximum(x, torch.cat([x[1:], x[-1:]]))
    along = torch.randn(9, dtype=torch.float64)
    y = opgen.compile(spec).f(x)
    found, theirs = (torch.autograd.grad(each, x, along)[0] for each in (y, wanted))
    torch.testing.assert_close(found[:-1], theirs[:-1])
    torch.testing.assert_close(found.sum(), along.sum())
