"""Pairs of points and boxes: their columns as rows, beside what PyTorch gives for all pairs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen
from opgen.ir.show import show
from opgen.passes.derive import derive
from opgen.passes.thin_columns import thin_sizes, thin_tensors, with_thin_columns
from opgen.programs import for_cpu
from written_anew import check_numbers, read

DISTANCES = "op f(a: float[N,3], b[M,3]) -> y[N,M]\n  y[n,m] = sum(k) (a[n,k] - b[m,k])**2\n"
BATCHES = (
    "op f(a: float[...,N,2], b[...,M,2]) -> y[...,N,M]\n"
    "  y[...,n,m] = exp(-abs(a[...,n,0] - b[...,m,0]) * b[...,m,1])\n"
)
NEAREST = (
    "op f(a: float[B,N,3], b[B,M,3]) -> y[B]\n  where N >= 1, M >= 1\n"
    "  d[i,n] = min(m) (sum(k) (a[i,n,k] - b[i,m,k])**2)\n"
    "  e[i,m] = min(n) (sum(k) (a[i,n,k] - b[i,m,k])**2)\n"
    "  y[i] = (mean(n) d[i,n]) + (mean(m) e[i,m])\n"
)
OVERLAPS = (
    "op f(a: float[N,4], b[M,4]) -> y[N,M]\n"
    "  i[n,m] = max(min(a[n,2],b[m,2]) - max(a[n,0],b[m,0]), 0)\n"
    "         * max(min(a[n,3],b[m,3]) - max(a[n,1],b[m,1]), 0)\n"
    "  u[n,m] = (a[n,2]-a[n,0])*(a[n,3]-a[n,1]) + (b[m,2]-b[m,0])*(b[m,3]-b[m,1])\n"
    "  y[n,m] = i[n,m]/(3 + u[n,m] - i[n,m])\n"
)
FORCES = (
    "op f(p: float[N,3], q[N]) -> y[N,3]\n"
    "  r[n,m] = (sum(k) (p[m,k] - p[n,k])**2) + 0.1\n"
    "  y[n,k] = sum(m) q[m]*(p[m,k] - p[n,k])/(r[n,m]*sqrt(r[n,m]))\n"
)
CENTRED = (
    "op f(a: float[N,2], b[M,2]) -> y[N,M]\n  where N >= 1\n"
    "  c[k] = mean(n) a[n,k]\n"
    "  z[m,k] = b[m,k] - c[k]\n"
    "  y[n,m] = sum(k) abs(a[n,k] + z[m,k])*(k + 1)\n"
)
SOME = (
    "op f(a: float[N,3], b[M,3], w[M]) -> y[N,3]\n"
    "  y[n,0] += w[m]*a[n,1]*b[m,2]*b[m,0] for m if m < n\n"
    "  y[n,2] += w[m]*b[m,2]**2 for m\n"
    "  y[n,k] += w[m]*a[n,k]*b[m,k]**2 for m if m >= n\n"
    "  y[n,k] += a[n,k]\n"
)


def distances(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).square().sum(2)


def batches(a: Tensor, b: Tensor) -> Tensor:
    apart = a[..., :, None, 0] - b[..., None, :, 0]
    return torch.exp(-apart.abs() * b[..., None, :, 1])


def nearest(a: Tensor, b: Tensor) -> Tensor:
    found = (a[:, :, None] - b[:, None]).square().sum(3)
    return found.amin(2).mean(1) + found.amin(1).mean(1)


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    sides = [
        (torch.minimum(a[:, None, at + 2], b[:, at + 2]) - torch.maximum(a[:, None, at], b[:, at]))
        for at in (0, 1)
    ]
    both = sides[0].clamp(0) * sides[1].clamp(0)
    areas = [(each[:, 2] - each[:, 0]) * (each[:, 3] - each[:, 1]) for each in (a, b)]
    return both / (3 + areas[0][:, None] + areas[1] - both)


def forces(p: Tensor, q: Tensor) -> Tensor:
    apart = p[None] - p[:, None]
    squares = apart.square().sum(2) + 0.1
    return ((q / squares**1.5)[..., None] * apart).sum(1)


def centred(a: Tensor, b: Tensor) -> Tensor:
    apart = (a[:, None] + b - a.mean(0)).abs()
    return apart[..., 0] + 2 * apart[..., 1]


def some(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    numbers = torch.arange(len(a))[:, None], torch.arange(len(b))
    below = (numbers[1] < numbers[0]).to(a.dtype)
    first = a[:, 1] * (below @ (w * b[:, 2] * b[:, 0]))
    third = (w * b[:, 2] ** 2).sum().expand(len(a))
    each = a * ((1 - below) @ (w[:, None] * b**2)) + a
    return each + torch.stack([first, torch.zeros_like(first), third], 1)


CASES: Sequence[tuple[str, Callable[..., Tensor], Callable[[int, int], list[tuple[int, ...]]]]] = (
    (DISTANCES, distances, lambda n, m: [(n, 3), (m, 3)]),
    (BATCHES, batches, lambda n, m: [(2, 3, n, 2), (2, 3, m, 2)]),
    (NEAREST, nearest, lambda n, m: [(2, n, 3), (2, m, 3)]),
    (OVERLAPS, overlaps, lambda n, m: [(n, 4), (m, 4)]),
    (FORCES, forces, lambda n, m: [(n, 3), (n,)]),
    (CENTRED, centred, lambda n, m: [(n, 2), (m, 2)]),
    (SOME, some, lambda n, m: [(n, 3), (m, 3), (m,)]),
)
NAMES = ("distances", "batches", "nearest", "overlaps", "forces", "centred", "some")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("spec", "reference", "shapes"), CASES, ids=NAMES)
def test_numbers(
    spec: str,
    reference: Callable[..., Tensor],
    shapes: Callable[[int, int], list[tuple[int, ...]]],
) -> None:
    function: Any = opgen.compile(spec).f
    for sizes in ((1, 1), (3, 2), (18, 7), (7, 40), (5, 1030)):
        check_numbers(function, reference, shapes(*sizes), twice=sizes == (3, 2))


@pytest.mark.parametrize(("spec", "reference", "shapes"), CASES, ids=NAMES)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_and_steps(
    spec: str,
    reference: Callable[..., Tensor],
    shapes: Callable[[int, int], list[tuple[int, ...]]],
    dtype: torch.dtype,
) -> None:
    """Also of tensors with other steps in memory, and gradients of each tensor alone."""
    function: Any = opgen.compile(spec).f
    torch.manual_seed(0)
    exact = [torch.rand(shape).to(dtype).double() for shape in shapes(33, 20)]
    turned = [
        each.to(dtype).mT.contiguous().mT if each.dim() > 1 else each.to(dtype) for each in exact
    ]
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.02}
    if dtype == torch.bfloat16:
        tolerance["atol"] = 0.02 * float(reference(*exact).abs().max())
    wanted = reference(*exact)
    torch.testing.assert_close(function(*turned).double(), wanted, **tolerance)
    if dtype == torch.bfloat16:
        return
    flow = torch.rand(wanted.shape)
    for at in range(len(exact)):
        there = [each.clone().requires_grad_(place == at) for place, each in enumerate(turned)]
        (found,) = torch.autograd.grad(function(*there), there[at], flow)
        there = [each.clone().requires_grad_(place == at) for place, each in enumerate(exact)]
        (right,) = torch.autograd.grad(reference(*there), there[at], flow.double())
        torch.testing.assert_close(found.double(), right, rtol=1e-3, atol=1e-3)


def test_no_points() -> None:
    function: Any = opgen.compile(DISTANCES).f
    for n, m in ((0, 5), (5, 0), (0, 0)):
        a, b = torch.rand(n, 3, requires_grad=True), torch.rand(m, 3, requires_grad=True)
        y = function(a, b)
        assert y.shape == (n, m)
        for found, given in zip(torch.autograd.grad(y.sum(), (a, b)), (a, b), strict=True):
            assert torch.equal(found, torch.zeros_like(given))


def test_statements() -> None:
    op = read(DISTANCES)
    text = show(for_cpu(op))
    assert "b_columns[i1,i0] = b[i0,i1]" in text
    assert "sum(k) (a[n,k] - b_columns[k,m])**2" in text
    of_b = next(each.op for each in derive([op], 1) if each.path == ("f", "b"))
    text = show(with_thin_columns(of_b))
    assert "grad_b_columns[k,m] = sum(n) (-2 * (a[n,k] - b_columns[k,m]) * grad_y[n,m])" in text
    assert "grad_b[i0_,i1_] += grad_b_columns[i1_,i0_]" in text
    of_a = next(each.op for each in derive([read(OVERLAPS)], 1) if each.path == ("f", "a"))
    text = show(for_cpu(of_a))
    assert "grad_a_column[n] +=" in text
    assert "grad_a[i0_,2] += grad_a_column[i0_]" in text


@pytest.mark.parametrize(
    "spec",
    [
        "op f(x[N,3]) -> y[N]\n  y[n] = sum(k) x[n,k]**2\n",  # each number once
        "op f(x[N,K], z[M,K]) -> y[N,M]\n  y[n,m] = sum(k) abs(x[n,k] - z[m,k])\n",  # any number
        "op f(x[N,9], z[M]) -> y[N,M]\n  y[n,m] = sum(k) abs(x[n,k] - z[m])\n",  # not along n
        "op f(x[N,3], z[M,3]) -> y[N,M]\n  y[n,m] = sum(k) x[n,k]*z[m,k]\n",  # a product
        "op f(x[N,3], z[M,3]) -> y[M,16]\n  where N >= 16\n"
        "  y[m,n] = sum(k) abs(x[n,k] - z[m,k]) for m in M, n in 16\n",  # some points of x
        "op f(x[L,N,3], z[M,3]) -> y[M,N]\n  where L >= 1\n"
        "  y[m,n] = sum(k) abs(x[0,n,k] - z[m,k])\n",  # one of several
        "op f(x[N,3], f[3,3]) -> y[N,3]\n  y[n,i] = sum(k) abs(x[n,k]*f[i,k])\n",  # few pairs
    ],
)
def test_what_stays_as_it_is(spec: str) -> None:
    op = read(spec)
    assert with_thin_columns(op) is op


def test_which_sizes_are_those_of_points() -> None:
    pairs = read("op f(x[N,K], z[M,K]) -> y[N,M]\n  y[n,m] = sum(k) abs(x[n,k] - z[m,k])\n")
    assert thin_sizes(pairs) == ("K",)
    assert thin_tensors(pairs, ("K",)) == {"x", "z"}
    norm = (
        "op f(x: float[N,C,H,W], w[C]) -> y[N,C,H,W]\n"
        "  y[n,c,h,v] = x[n,c,h,v]*rsqrt(mean(k) x[n,k,h,v]**2)*w[c]\n"
    )
    convolution = (
        "op f(x[B,C,H,W], w[O,C,I,J]) -> y[B,O,H,W]\n"
        "  y[b,o,h,v] = sum(c,i,j) x[b,c,h+i ?0,v+j ?0]*w[o,c,i,j]\n"
    )
    for spec in (norm, convolution, "op f(x[N,D]) -> y[N]\n  y[n] = sum(d) abs(x[n,d])\n"):
        assert thin_sizes(read(spec)) == ()


def test_integers_have_all_digits() -> None:
    spec = (
        "op f(a: i64[N,3], b: i64[M,3]) -> y: i64[N,3]\n"
        "  y[n,k] = sum(m) (a[n,k] - b[m,k])*b[m,0]\n"
        "op g(x: i64[N]) -> y: i64[]\n  y[] = sum(n) x[n]\n"
        "op h(x: i64[N,M]) -> y: i64[N]\n  y[n] = sum(m) x[n,m]*x[n,m]\n"
    )
    ops: Any = opgen.compile(spec)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(2**24, 2**30, (40, 3), generator=generator) for _ in range(2))
    assert torch.equal(ops.f(a, b), ((a[:, None] - b) * b[:, :1]).sum(1))
    assert torch.equal(ops.g(a[:, 0]), a[:, 0].sum())
    assert torch.equal(ops.h(a), (a * a).sum(1))


def test_choices_of_which_both_sides_are_computed() -> None:
    """Numbers that are not chosen have no part in a result, whatever they are."""
    spec = (
        "op f(x: float[N], z[N], w[N]) -> y[N]\n"
        "  y[n] = select(x[n] < 0, z[n], max(z[n], w[n])/x[n])\n"
    )
    function: Any = opgen.compile(spec).f
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 3e38])
    x, z, w = (each.flatten() for each in torch.meshgrid(special, special, special, indexing="ij"))
    wanted = torch.where(x < 0, z, torch.maximum(z, w) / x)
    assert torch.equal(function(x, z, w).nan_to_num(7), wanted.nan_to_num(7))


# ---------------------------------------------------------------------------- integers
CORNERS = (
    "op f(x: float[B,C,H,W], a[B,P,{q}], i: int[B,P,{q}], j: int[B,P,{q}]) -> y[B,C,P]\n"
    "  y[b,c,p] = sum(q) a[b,p,q]*x[b,c, i[b,p,q] {mode}, j[b,p,q] {mode}]\n"
)


def corners(x: Tensor, a: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Of what is outside nothing."""
    (batches, channels, height, width), (_, points, near) = x.shape, i.shape
    inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
    at = i.clamp(0, height - 1) * width + j.clamp(0, width - 1)
    at = at.reshape(batches, 1, points * near).long().expand(-1, channels, -1)
    found = x.reshape(batches, channels, height * width).gather(2, at)
    found = found.reshape(batches, channels, points, near)
    return (found * (a * inside)[:, None]).sum(3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("integers", [torch.int64, torch.int32])
@pytest.mark.parametrize("near", ["4", "Q"])
def test_corners(near: str, integers: torch.dtype) -> None:
    function: Any = opgen.compile(CORNERS.format(q=near, mode="?0")).f
    torch.manual_seed(0)
    for batches, channels, points in ((1, 1, 1), (2, 3, 5), (2, 20, 1100), (0, 3, 5), (2, 3, 0)):
        i, j = (torch.randint(-2, 9, (batches, points, 4), dtype=integers) for _ in range(2))
        x, a = (
            torch.randn(shape, dtype=torch.float64, requires_grad=True)
            for shape in ((batches, channels, 7, 6), (batches, points, 4))
        )
        y, wanted = function(x, a, i, j), corners(x, a, i, j)
        torch.testing.assert_close(y, wanted)
        along = torch.randn_like(wanted)
        found = torch.autograd.grad(y, (x, a), along)
        torch.testing.assert_close(found, torch.autograd.grad(wanted, (x, a), along))
        if points == 5 and batches:
            at_these = functools.partial(function, i=i, j=j)
            assert torch.autograd.gradgradcheck(at_these, (x, a))


def test_what_is_outside_is_nothing_whatever_its_factor_is() -> None:
    function: Any = opgen.compile(CORNERS.format(q=4, mode="?0")).f
    x, a = torch.ones(1, 20, 7, 6), torch.full((1, 40, 4), torch.inf)
    i = torch.full((1, 40, 4), -1)
    i[0, :, 3] = 2
    a[0, :, 3] = 2.0
    assert torch.equal(function(x, a, i, i), torch.full((1, 20, 40), 2.0))


def test_an_index_outside_is_shown_as_it_is_written() -> None:
    op = read(CORNERS.format(q=4, mode=""))
    assert "i_columns[b,q,p]" in show(for_cpu(op)).replace(" ", "")
    function: Any = opgen.compile(CORNERS.format(q=4, mode="")).f
    x, a = torch.ones(2, 20, 7, 6), torch.ones(2, 40, 4)
    i, j = torch.full((2, 40, 4), 5), torch.full((2, 40, 4), 5)
    assert torch.equal(function(x, a, i, j), torch.full((2, 20, 40), 4.0))
    j[1, 30, 2] = 6
    message = r"index 6 is outside of dimension 3 of 'x'.*i\[b, p, q\], j\[b, p, q\]"
    with pytest.raises(IndexError, match=message):
        function(x, a, i, j)


def test_a_copy_that_a_user_wrote_is_shown_by_its_name() -> None:
    spec = "op f(x[N], i: int[P]) -> y[P], t: int[P]\n  t[p] = i[p]\n  y[p] = x[t[p]]\n"
    with pytest.raises(IndexError, match=r"in x\[t\[p\]\]"):
        opgen.compile(spec).f(torch.ones(3), torch.tensor([0, 3]))


def test_corners_by_a_window() -> None:
    """The four cells around a place: each adds to its own, a cell does not ask all places."""
    spec = (
        "op f(x: float[B,C,H,W], u[B,P], v[B,P], i: int[B,P], j: int[B,P]) -> y[B,C,P]\n"
        "  y[b,c,p] = sum(k in 2, l in 2) abs(1 - k - u[b,p])*abs(1 - l - v[b,p])\n"
        "    * x[b,c, i[b,p] + k ?0, j[b,p] + l ?0]\n"
    )
    of_x = next(each.op for each in derive([read(spec)], 1) if each.path == ("f", "x"))
    assert any(each.is_scattered for each in for_cpu(of_x).statements)
    torch.manual_seed(0)
    i, j = (torch.randint(-2, 9, (2, 90)) for _ in range(2))
    x, u, v = (
        torch.rand(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 20, 7, 6), (2, 90), (2, 90))
    )
    weights = torch.stack([(1 - u) * (1 - v), (1 - u) * v, u * (1 - v), u * v], 2)
    near = (torch.stack([i, i, i + 1, i + 1], 2), torch.stack([j, j + 1, j, j + 1], 2))
    y, wanted = opgen.compile(spec).f(x, u, v, i, j), corners(x, weights, *near)
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found = torch.autograd.grad(y, (x, u, v), along)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, (x, u, v), along))
