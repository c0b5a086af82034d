"""Sums over ranges that tensors hold, and their gradients; numbers are those of loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opgen
from opgen.ir.loops import For, walk
from opgen.passes.derive import derive
from opgen.programs import along_rows, for_cpu, scheduled
from written_anew import read

SEGMENTS = (
    "op f(x[P,D], at: int[Q]) -> y[Q-1,D]\n  where Q >= 1\n"
    "  y[r,d] = {}(p if p >= at[r] and p < at[r+1]) x[p,d] for r in Q-1\n"
)
ROWS = (
    "op f(v[P], x[C], at: int[Q], c: int[P]) -> y[Q-1]\n  where Q >= 1\n"
    "  y[r] = sum(p if p >= at[r] and p < at[r+1]) v[p]*x[c[p]] for r in Q-1\n"
)
BOXES = (
    "op f(x[B,P,D], at: int[B,R], n: int[B,R]) -> y[B,R,D]\n"
    "  y[b,r,d] = sum(p if p >= at[b,r] and p < at[b,r] + n[b,r]) x[b,p,d]\n"
)


def slices(x: Tensor, at: Tensor, end: Tensor) -> list[Tensor]:
    """The cells of each range that are there."""
    return [x[max(a, 0) : max(b, 0)] for a, b in zip(at.tolist(), end.tolist(), strict=True)]


@pytest.mark.parametrize("columns", [1, 3, 70])
@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_segments(reducer: str, columns: int) -> None:
    torch.manual_seed(columns)
    x = torch.randn(20, columns, dtype=torch.float64, requires_grad=True)
    at = torch.tensor([0, 3, 3, 4, 11, 20])
    y = opgen.compile(SEGMENTS.format(reducer)).f(x, at)
    empty = x.new_full((columns,), 0.0 if reducer == "sum" else -torch.inf)
    parts = slices(x, at[:-1], at[1:])
    joined = [
        each.sum(0) if reducer == "sum" else each.amax(0) if len(each) else empty for each in parts
    ]
    wanted = torch.stack(joined)
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found, theirs = (torch.autograd.grad(each, x, along)[0] for each in (y, wanted))
    torch.testing.assert_close(found, theirs)


def test_rows_of_a_sparse_matrix() -> None:
    at, c = torch.tensor([0, 2, 2, 7, 9]), torch.randint(6, (9,))
    v = torch.randn(9, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    function = opgen.compile(ROWS).f
    y, wanted = (
        function(v, x, at, c),
        torch.stack([e.sum() for e in slices(v * x[c], at[:-1], at[1:])]),
    )
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found, theirs = (torch.autograd.grad(each, (v, x), along) for each in (y, wanted))
    torch.testing.assert_close(found, theirs)
    assert torch.autograd.gradgradcheck(lambda v, x: function(v, x, at, c), (v, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_ranges_that_overlap_and_leave_the_tensor(dtype: torch.dtype) -> None:
    """Cells get the terms of every range that they are in; there is nothing outside."""
    at = torch.tensor([[0, -3, 5, 8], [2, 2, 9, 0]])
    n = torch.tensor([[4, 6, 5, 0], [3, -1, 4, 10]])
    x = torch.randn(2, 10, 3).to(dtype).requires_grad_()
    y = opgen.compile(BOXES).f(x, at, n)
    wide = x.detach().double().requires_grad_()
    parts = (slices(wide[b], at[b], at[b] + n[b]) for b in range(2))
    wanted = torch.stack([torch.stack([e.sum(0) for e in each]) for each in parts])
    exact = {torch.bfloat16: 2e-2}.get(dtype, 1e-5)
    torch.testing.assert_close(y.double(), wanted, rtol=exact, atol=exact)
    along = torch.randn_like(wanted).to(dtype)
    (found,) = torch.autograd.grad(y, x, along)
    (theirs,) = torch.autograd.grad(wanted, wide, along.double())
    torch.testing.assert_close(found.double(), theirs, rtol=exact, atol=exact)


def test_boxes_of_two_dims() -> None:
    spec = (
        "op f(x[C,H,W], at: int[R,2], end: int[R,2]) -> y[R,C]\n"
        "  y[r,c] = max(h,w if h >= at[r,0] and h < end[r,0] and w >= at[r,1] and w < end[r,1])"
        " x[c,h,w]\n"
    )
    x = torch.randn(3, 7, 8, dtype=torch.float64, requires_grad=True)
    at, end = torch.tensor([[0, 1], [2, 2], [5, 0]]), torch.tensor([[3, 5], [9, 3], [7, 8]])
    y = opgen.compile(spec).f(x, at, end)
    corners = zip(at.tolist(), end.tolist(), strict=True)
    wanted = torch.stack([x[:, a:c, b:d].amax((1, 2)) for (a, b), (c, d) in corners])
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found, theirs = (torch.autograd.grad(each, x, along)[0] for each in (y, wanted))
    torch.testing.assert_close(found, theirs)


@pytest.mark.parametrize("spec", [SEGMENTS.format("sum"), SEGMENTS.format("max"), ROWS, BOXES])
def test_no_pair_of_a_range_and_a_cell_is_asked(spec: str) -> None:
    for member in derive((read(spec),), 1):
        op = for_cpu(member.op, not member.is_public)
        for kernel in along_rows(op, scheduled(op)).kernels:
            loops = [node for node in walk(kernel.body) if isinstance(node, For)]
            of_cells = [each for each in loops if each.name.startswith("p")]
            assert all(len(each.lower) > 1 and len(each.upper) > 1 for each in of_cells)
            around = {*(axis.name for axis in kernel.axes), *(each.name for each in loops)}
            assert of_cells or not {"p", "r"} <= around
