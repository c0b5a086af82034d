"""Indices that are the same for all lanes are read once for a pass, and asked about once."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import stage_text
from opgen.errors import Source

ROWS = "op f(t: int[B,N], w[V,D]) -> y[B,N,D]\n  y[b,n,d] = w[t[b,n],d]\n"
BAG = "op f(t: int[B,N], w[V,D]) -> y[B,D]\n  y[b,d] = sum(n) w[t[b,n],d]\n"
CLAMPED = "op f(t: int[B,N], w[V,D]) -> y[B,N,D]\n  y[b,n,d] = w[t[b,n] - 1 ?clamp,d]\n"
TWICE = "op f(t: int[N], u: int[K], w[V,D]) -> y[N,D]\n  y[n,d] = w[u[t[n]],d]*2\n"
PAIRS = "op f(r: int[N], s: int[N], x[H,W,D]) -> y[N,D]\n  y[n,d] = x[r[n],s[n],d]\n"
OF_LANES = "op f(t: int[N,D], w[V,D]) -> y[N,D]\n  y[n,d] = w[t[n,d],d]\n"


def loops_over(text: str, lane: str) -> list[str]:
    """The bodies of loops over the lanes of all kernels of the op."""
    text = text.split("// f_grad", 1)[0]
    return re.findall(rf"for \(int64_t {lane} = [^{{]*\{{(.*?)\n\s*\}}", text, re.DOTALL)


@pytest.mark.parametrize("spec", [ROWS, BAG, CLAMPED, TWICE, PAIRS])
def test_nothing_is_read_again_for_each_lane(spec: str) -> None:
    """A compiler would gather cells that are neighbours."""
    bodies = loops_over(stage_text(Source(spec, "f.op"), "c"), "d")
    assert any(re.search(r"\b[wx]\[", body) for body in bodies)
    for body in bodies:
        assert "FETCH" in body or not re.search(r"\b[turs]\[|inside_or_fault", body)


def test_what_differs_along_a_row_is_read_there() -> None:
    bodies = loops_over(stage_text(Source(OF_LANES, "f.op"), "c"), "d")
    assert any(re.search(r"\bt\[", body) and "inside_or_fault" in body for body in bodies)


def numbers(*shape: int) -> Tensor:
    return torch.randint(-8, 9, shape).float()


@pytest.mark.parametrize("depth", [1, 7, 64, 1500])
def test_rows_of_a_table(depth: int) -> None:
    torch.manual_seed(0)
    t, w = torch.randint(5, (3, 4)), numbers(5, depth).requires_grad_()
    y = opgen.compile(ROWS).f(t, w)
    wanted = torch.stack([torch.stack([w[int(n)] for n in row]) for row in t])
    assert torch.equal(y, wanted)
    along = numbers(*y.shape)
    pair = (torch.autograd.grad(one, w, along)[0] for one in (y, wanted))
    assert torch.equal(*pair)
    assert torch.equal(opgen.compile(BAG).f(t, w), wanted.sum(1))
    clamped = torch.stack([w[max(int(n) - 1, 0)] for n in t.flatten()]).view(y.shape)
    assert torch.equal(opgen.compile(CLAMPED).f(t, w), clamped)
    u, places = torch.tensor([4, 0, 3]), torch.tensor([2, 2, 1, 0])
    assert torch.equal(opgen.compile(TWICE).f(places, u, w), 2 * w[u[places]])
    x, r, s = numbers(2, 3, depth), torch.tensor([1, 0, 1]), torch.tensor([2, 0, 0])
    assert torch.equal(opgen.compile(PAIRS).f(r, s, x), x[r, s])


@pytest.mark.parametrize("spec", [ROWS, BAG])
def test_an_index_outside_is_an_error(spec: str) -> None:
    """But not where no cell of its row would be read."""
    f, t = opgen.compile(spec).f, torch.tensor([[1, 5], [0, 2]])
    for depth in (3, 1500):
        with pytest.raises(IndexError, match=r"\b5\b"):
            f(t, torch.ones(5, depth))
    assert f(t, torch.ones(5, 0)).numel() == 0


def test_both_indices_are_asked_about() -> None:
    f, x = opgen.compile(PAIRS).f, torch.ones(2, 3, 4)
    fine, far = torch.tensor([1, 0]), torch.tensor([1, 3])
    with pytest.raises(IndexError, match="dimension 0"):
        f(far, fine, x)
    with pytest.raises(IndexError, match="dimension 1"):
        f(fine, far, x)


def test_a_condition_decides_whether_an_index_is_asked_about() -> None:
    """Rows of padding have indices that mean nothing."""
    some = opgen.compile(
        "op f(t: int[N], w[V,D]; n: int = 2) -> y[N,D]\n"
        "  y[i,d] += w[t[i],d] for i in N, d in D if i < n\n"
    ).f
    chosen = opgen.compile(
        "op f(t: int[N], w[V,D], z[D]) -> y[N,D]\n"
        "  y[i,d] = select(z[d] > 0, w[t[i],d], 0) for i in N, d in D\n"
    ).f
    t, w = torch.tensor([1, 0, 9]), numbers(3, 40)
    wanted = torch.stack([w[1], w[0], torch.zeros(40)])
    assert torch.equal(some(t, w), wanted)
    assert torch.equal(chosen(t, w, torch.zeros(40)), torch.zeros(3, 40))
    with pytest.raises(IndexError):
        chosen(t, w, torch.ones(40))
