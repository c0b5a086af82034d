"""Gradients of cumulative products: totals of a row are multiplied and added to in one go."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Final

import numpy as np
import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import check_source, stage_text
from opgen.errors import Source
from opgen.ir.cells import to_array
from opgen.passes.derive import derive
from opgen.programs import along_rows, for_cpu, scheduled
from opgen.testing.run_loops import run

TEXT: Final = """op upto(a[R,N]) -> y[R,N]
  y[r,n] = prod(m in N if m <= n) a[r,m]

op before(a[R,N]) -> y[R,N]
  y[r,n] = prod(m in N if m < n) (1 - a[r,m]) for n in N

op onward(w[N], a[...,N]) -> y[...,N]
  y[...,n] = prod(m in N if m >= n) (w[m] + a[...,m])

op behind(a[B,T,C]) -> y[B,T,C]
  y[b,t,c] = prod(s in T if s > t) a[b,s,c]

op column(w[N], a[N,C]) -> y[N,C]
  y[n,c] = prod(m in N if m <= n) (w[m] * a[m,c])

op few(a[R,5]) -> y[R,5]
  y[r,n] = prod(m in 5 if m <= n) a[r,m]

op shifted(a[R,N]; lag: int = 1) -> y[R,N]
  y[r,n] = prod(m in N if m <= n - lag) a[r,m] for n in N

op line(a[N]) -> y[N]
  y[n] = prod(m in N if m <= n) a[m]

op longer(a[R,M], z[N]) -> y[R,N]
  y[r,n] = z[n] + prod(m in M if m <= n) a[r,m]

op rays(s: float[R,N], k[R,N,C]) -> y[R,C]
  a[r,n] = 1 - exp(-s[r,n])
  t[r,n] = prod(m in N if m < n) (1 - a[r,m]) for n in N
  y[r,c] = sum(n in N) t[r,n]*a[r,n]*k[r,n,c]
"""
LEFT: Final = """op pairs(a[R,N]) -> y[R,N]
  y[r,n] = prod(m in N if m <= n) (a[r,m] + a[r,n])

op steps(a[R,N]) -> y[R,N]
  y[r,n] = prod(m in N if m <= 2*n) a[r,m] for n in N

op window(a[R,N]) -> y[R,N]
  y[r,n] = prod(m in N if m <= n and m > n - 3) a[r,m]
"""
SIZES: Final = (0, 1, 2, 3, 17, 1000)


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


@functools.cache
def programs(text: str) -> dict[str, str]:
    """The loops of each op along rows."""
    parts = stage_text(Source(text, "<test>"), "rows").split("program ")
    return {part.split("\n")[0]: part for part in parts if part}


def signs(*shape: int) -> Tensor:
    """Numbers of which products are exact, few of them large."""
    generator = torch.Generator().manual_seed(sum(shape))
    drawn = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return drawn.double() * 2.0 ** torch.randint(-1, 2, shape, generator=generator)


def whole(*shape: int) -> Tensor:
    """Whole numbers, zeros among them, of which few are large."""
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randint(-4, 5, shape, generator=generator).double()


def gradients(op: Callable[..., Tensor], along: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Those of inputs where `along` flows back."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    return torch.autograd.grad(op(*leaves), leaves, along)


def by_loops(a: Tensor, along: Tensor) -> Tensor:
    """The gradient of cumulative products along rows, as it is defined."""
    found = torch.zeros_like(a)
    for m, n in itertools.product(range(a.shape[1]), repeat=2):
        if m <= n:
            others = [a[:, k] for k in range(n + 1) if k != m]
            product = torch.stack(others).prod(0) if others else torch.ones_like(a[:, 0])
            found[:, m] += product * along[:, n]
    return found


def from_end(a: Tensor, dim: int = -1) -> Tensor:
    """Products from each cell on."""
    return a.flip(dim).cumprod(dim).flip(dim)


def shifted_by(a: Tensor, lag: int) -> Tensor:
    """Those of all terms but the last ones."""
    padded = torch.cat((torch.ones_like(a[:, :1]), a.cumprod(1)), 1)
    return padded[:, [min(max(n - lag + 1, 0), a.shape[1]) for n in range(a.shape[1])]]


def composited(s: Tensor, k: Tensor) -> Tensor:
    """Colours along rays."""
    a = 1 - torch.exp(-s)
    return ((shifted_by(1 - a, 1) * a)[..., None] * k).sum(1)


def test_totals_are_multiplied() -> None:
    found = programs(TEXT)
    for name in ("upto", "before", "few", "shifted", "line", "longer"):
        text = found[f"{name}_grad_a"]
        assert "_between[" not in text.replace("# grad_a_totals", "").split("parallel")[-1], name
        assert text.count("kernel") == 2, name
    step = "            total_ multiply= a[r, N - m]\n          total_ add= grad_y[r, N - m - 1]"
    assert step in found["upto_grad_a"].replace("            total_ add", "          total_ add")
    assert "if m - 2 >= 0\n              total_ multiply=" in found["before_grad_a"]
    assert "lanes\n            total_ multiply= (w[N - m] * a[N - m, c])" in found["column_grad_a"]
    for name in ("column_grad_w", "onward_grad_w", "behind_grad_a", "rays_grad_s"):
        assert " multiply= " in found[name].split("_totals\n")[-1], name
        assert "_between\n" not in found[name], name


def test_gradients_together_share_totals() -> None:
    text = programs(TEXT)["onward_grad_w_and_a"]
    assert text.count("_totals\n") == 1
    assert "_between\n" not in text


def test_what_is_left() -> None:
    found = programs(LEFT)
    for name in ("pairs", "steps", "window"):
        assert "_totals" not in found[f"{name}_grad_a"], name


@pytest.mark.parametrize("size", SIZES)
def test_cumulative_products(ops: ModuleType, size: int) -> None:
    a = torch.where(signs(3, size) == 1, 0.5, signs(3, size))
    a = a / a.abs().log2().cumsum(1).clamp(-8, 8).exp2().div(8).clamp(min=0.5)
    a[1, 3:4] = 0
    a[2, 3:5] = 0
    along = whole(3, size)
    close(gradients(ops.upto, along, a), gradients(lambda a: a.cumprod(1), along, a))
    close(
        gradients(ops.before, along, 1 - a),
        gradients(lambda a: shifted_by(1 - a, 1), along, 1 - a),
    )
    batch = a[:, None].expand(3, 2, size)
    more = along[:, None].expand(3, 2, size)
    close(
        gradients(ops.onward, more, 0 * a[0], batch),
        gradients(lambda w, a: from_end(w + a), more, 0 * a[0], batch),
    )
    column, rows = a.T, along.T
    close(
        gradients(ops.column, rows, 1 + column[:, 0] * 0, column),
        gradients(lambda w, a: (w[:, None] * a).cumprod(0), rows, 1 + column[:, 0] * 0, column),
    )


@pytest.mark.parametrize("size", [0, 1, 2, 3, 9, 40])
def test_exact_numbers(ops: ModuleType, size: int) -> None:
    a, along = signs(4, size), whole(4, size)
    a[1, 2:3], a[2, 2:4], a[3, ::3] = 0, 0, 0
    expected = by_loops(a, along)
    (found,) = gradients(ops.upto, along, a)
    assert torch.equal(found, expected)
    (found,) = gradients(ops.upto, along.float(), a.float())
    torch.testing.assert_close(found.double(), expected)
    (found,) = gradients(ops.line, along[2], a[2])
    assert torch.equal(found, expected[2])
    images = torch.stack((a, -a), 2)
    (found,) = gradients(ops.behind, torch.stack((along, along), 2), images)
    (other,) = gradients(lambda a: shifted_by(a.flip(1), 1).flip(1), along, a)
    torch.testing.assert_close(found[..., 0], other)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Compare gradients."""
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_what_is_not_finite(ops: ModuleType) -> None:
    values = (1.0, 0.0, -2.0, math.inf, math.nan)
    a = torch.tensor(list(itertools.product(values, repeat=4))).double()
    a = torch.cat((a, torch.ones(len(a), 3).double()), 1)
    for along in (torch.ones_like(a), whole(*a.shape)):
        (found,), expected = gradients(ops.upto, along, a), by_loops(a, along)
        is_same = (found == expected) | (found.isnan() & expected.isnan())
        # What is infinite is multiplied with a sum, of which some terms may be 0, others not.
        is_plain = ~a.isinf().any(1)
        assert bool(is_same[is_plain].all())
        assert bool((is_same | expected.isnan()).all())
        assert bool((is_same | found.isinf()).all())


def test_nothing_is_multiplied_where_there_are_no_terms(ops: ModuleType) -> None:
    """The last factor is part of no product of those before a cell, and of none between."""
    a = torch.tensor([[0.5, 0.25, math.inf], [0.5, 0.25, math.nan], [math.inf, 0.5, 0.5]])
    (found,) = gradients(ops.before, torch.ones(3, 3), 1 - a)
    assert torch.equal(found[0], torch.tensor([-1.25, -0.5, 0.0]))
    assert torch.equal(found[1], torch.tensor([-1.25, -0.5, 0.0]))
    assert torch.equal(found[2], torch.tensor([-1.5, -math.inf, 0.0]))


@pytest.mark.parametrize("lag", [-2, 0, 1, 3, 30])
def test_products_that_end_elsewhere(ops: ModuleType, lag: int) -> None:
    a, along = signs(3, 20), whole(3, 20)
    (found,) = gradients(lambda a: ops.shifted(a, lag=lag), along, a)
    (expected,) = gradients(lambda a: shifted_by(a, lag), along, a)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("terms", "cells"), [(0, 3), (3, 0), (1, 1), (4, 9), (9, 4), (6, 6)])
def test_more_terms_than_cells_or_fewer(ops: ModuleType, terms: int, cells: int) -> None:
    a, along = signs(2, terms), whole(2, cells)
    a[1, 2:3] = 0
    (found,) = gradients(lambda a: ops.longer(a, torch.zeros(cells).double()), along, a)
    wide = torch.cat((a, torch.ones(2, max(cells - terms, 0)).double()), 1)
    zeros = torch.zeros(2, max(terms - cells, 0)).double()
    expected = by_loops(wide, torch.cat((along, zeros), 1))
    assert torch.equal(found, expected[:, :terms])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_and_strides(ops: ModuleType, dtype: torch.dtype) -> None:
    a = signs(30, 2, 7).to(dtype).permute(1, 0, 2)[:, ::2, ::3]
    along = whole(15, 3, 2).to(dtype).permute(2, 0, 1)
    (found,) = gradients(ops.behind, along, a)
    (expected,) = gradients(
        lambda a: torch.cat((from_end(a, 1)[:, 1:], torch.ones_like(a[:, :1])), 1),
        along.double(),
        a.double(),
    )
    torch.testing.assert_close(found.double(), expected, rtol=0.01, atol=0.01)
    (found,) = gradients(ops.few, along[:, :5, 0], a[:, :5, 0])
    assert torch.equal(found, by_loops(a[:, :5, 0].double(), along[:, :5, 0].double()).to(dtype))


@pytest.mark.parametrize("size", [1, 2, 9])
def test_products_that_others_are_made_of(ops: ModuleType, size: int) -> None:
    s, k = signs(3, size).abs() / 4, whole(3, size, 2)
    along = whole(3, 2)
    close(gradients(ops.rays, along, s, k), gradients(composited, along, s, k))


def test_second_order(ops: ModuleType) -> None:
    a = (signs(2, 4) / 2).requires_grad_()
    assert torch.autograd.gradgradcheck(ops.upto, (a,))
    assert torch.autograd.gradgradcheck(ops.onward, (signs(4).requires_grad_(), a))


def test_there_is_no_memory_for_pairs(ops: ModuleType) -> None:
    size = 60_000  # of as many pairs nothing could be computed
    ones = torch.ones(1, size)
    (found,) = gradients(ops.upto, ones, ones)
    assert torch.equal(found[0], torch.arange(size, 0, -1, dtype=torch.float32))
    module = stage_text(Source(TEXT[: TEXT.index("op before")], "<test>"), "module")
    assert 'Temporary("others_y_before"' in module
    assert 'Temporary("others_y_between"' not in module


def test_naive_loops() -> None:
    """The same by the interpreter of loops, which reads no cell that was not written."""
    ops = {each.op.name: each.op for each in derive(check_source(Source(TEXT, "<test>")), 1)}
    a, along = signs(3, 6).numpy(), whole(3, 6).numpy()
    a[1, 2], a[2, 4:] = 0, 0
    op = for_cpu(ops["upto_grad_a"], is_derived=True)
    program = along_rows(op, scheduled(op))
    found, counts = run(program, {"a": a, "grad_y": along}, {"R": 3, "N": 6})
    cells = to_array(found["grad_a"], np.dtype(np.float64))
    assert np.array_equal(cells, by_loops(torch.tensor(a), torch.tensor(along)).numpy())
    assert counts.terms < 3 * 6 * 5
