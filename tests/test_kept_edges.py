"""Gradients of a softmax over the edges of a graph: they read the quotients it gave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.show import show
from opgen.passes.derive import derive
from opgen.passes.kept import with_kept

EDGES = """op f(s: float[E,H], j: int[E]; N: size) -> y[E,H]
  tmp top[N,H], z[N,H]
  top[j[e],h] max= s[e,h]
  p[e,h] = exp(s[e,h] - top[j[e],h])
  z[j[e],h] += p[e,h]
  y[e,h] = p[e,h] / z[j[e],h]
"""
BARE = """op f(s: float[E,H], j: int[E]; N: size) -> y[E,H]
  tmp z[N,H]
  p[e,h] = exp(s[e,h])
  z[j[e],h] += p[e,h]
  y[e,h] = p[e,h] / z[j[e],h]
"""
HEADS_FIRST = """op f(s: float[E,H], j: int[E]; N: size) -> y[E,H]
  tmp z[H,N]
  p[e,h] = exp(s[e,h])
  z[h,j[e]] += p[e,h]
  y[e,h] = p[e,h] / z[h,j[e]]
"""
GRIDS = """op f(s: float[E,H], i: int[E], j: int[E]; N: size, M: size) -> y[E,H]
  tmp z[N,M,H]
  p[e,h] = exp(s[e,h])
  z[i[e],j[e],h] += p[e,h]
  y[e,h] = p[e,h] / z[i[e],j[e],h]
"""


def of_kept(text: str, names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """What a gradient reads that is given these tensors, and what it then is, as text."""
    ops = check_source(Source(text, "<test>"))
    derived = next(member.op for member in derive(ops, 1) if member.path == ("f", "s"))
    found, kept = with_kept(derived, ops[0], names)
    return kept, show(found)


def test_what_flows_back_is_divided_by_nothing() -> None:
    kept, found = of_kept(EDGES, ("top", "z", "y"))
    assert kept == ("y",)
    assert found.endswith(
        "  grad_p[e,h] += grad_y[e,h]\n"
        "  grad_z[j[e],h] += -y[e,h] * grad_y[e,h]\n"
        "  grad_p[e,h] += grad_z[j[e],h]\n"
        "  grad_s[e,h] = y[e,h] * grad_p[e,h]\n"
    )


@pytest.mark.parametrize("text", [BARE, HEADS_FIRST, GRIDS])
def test_other_cells_that_inputs_choose(text: str) -> None:
    kept, found = of_kept(text, ("z", "y"))
    assert kept == ("y",) and "exp" not in found and "/" not in found


STAYS = {
    "edges to nowhere": BARE.replace("z[j[e],h] +=", "z[j[e] ?drop,h] +="),
    "another edge": BARE.replace("/ z[j[e],h]", "/ z[j[E-1-e],h]"),
    "another sum": BARE.replace("+= p[e,h]", "+= p[e,h] * s[e,h]"),
    "other nodes": BARE.replace("j: int[E];", "j: int[E], i: int[E];").replace("/ z[j", "/ z[i"),
    "the nearest node": BARE.replace("/ z[j[e],h]", "/ z[j[e] ?clamp,h]"),
    "what an op finds": BARE.replace("tmp z", "tmp k: int[E], z")
    .replace("  p[e,h] =", "  k[e] = argmax(h) s[e,h]\n  p[e,h] =")
    .replace("/ z[j[e],h]", "/ z[k[e] ?clamp,h]"),
}


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS)
def test_divisors_that_stay(text: str) -> None:
    kept, found = of_kept(text, ("z", "y"))
    assert "y" not in kept and "exp" in found


# ---------------------------------------------------------------------------- numbers
def theirs(s: Tensor, j: Tensor, nodes: int) -> Tensor:
    """The same of PyTorch's own operations."""
    start = s.new_full((nodes, s.shape[1]), -torch.inf)
    top = start.scatter_reduce(0, j[:, None].expand_as(s), s.detach(), "amax")
    p = torch.exp(s - top[j])
    return p / s.new_zeros(nodes, s.shape[1]).index_add(0, j, p)[j]


def loops(s: Tensor, j: Tensor) -> Tensor:
    """The same edge by edge."""
    y = torch.empty_like(s)
    for e in range(len(s)):
        own = [k for k in range(len(s)) if j[k] == j[e]]
        for h in range(s.shape[1]):
            top = max(float(s[k, h]) for k in own)
            p = [torch.exp(s[k, h] - top) for k in own]
            y[e, h] = torch.exp(s[e, h] - top) / sum(p)
    return y


def test_naive_loops() -> None:
    s, j = torch.randn(30, 3, dtype=torch.float64), torch.randint(5, (30,))
    torch.testing.assert_close(opgen.compile(EDGES).f(s, j, N=5), loops(s, j))
    torch.testing.assert_close(theirs(s, j, 5), loops(s, j))


def slopes(call: object, s: Tensor, flowing: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(call, s, flowing)  # type: ignore[arg-type]
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("heads", [1, 4, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_numbers_and_gradients(heads: int, dtype: torch.dtype, is_strided: bool) -> None:
    """Large calls, each twice: the second one knows what its gradient reads."""
    torch.manual_seed(heads)
    edges, nodes = 50_000 // heads, 100
    s, j = torch.randn(edges, heads).to(dtype), torch.randint(nodes - 1, (edges,))
    if is_strided:
        s, j = s.t().contiguous().t(), torch.stack([j, j], 1)[:, 0]
    s.requires_grad_()
    wide = s.detach().double().requires_grad_()
    flowing = torch.randn(edges, heads).to(dtype)
    call = opgen.compile(EDGES).f
    exact = theirs(wide, j, nodes)
    wanted = slopes(exact, wide, flowing.double())
    how = {"rtol": 0.02, "atol": 0.001} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-6}
    for _ in range(2):
        y = call(s, j, N=nodes)
        torch.testing.assert_close(y.double(), exact, **how)
        torch.testing.assert_close(slopes(y, s, flowing).double(), wanted, **how)


def test_special_values() -> None:
    """An edge without end, or that is no number, is the matter of its own node and head alone."""
    torch.manual_seed(0)
    s, j = torch.randn(20_000, 2), torch.randint(50, (20_000,))
    s[5, 0], s[6, 1], s[7, 0] = torch.inf, -torch.inf, torch.nan
    alone = j == j[8]
    alone[8] = False
    s[alone] = -torch.inf
    s.requires_grad_()
    flowing, call = torch.randn(s.shape), opgen.compile(EDGES).f
    for _ in range(2):
        y, other = call(s, j, N=50), theirs(s, j, 50)
        torch.testing.assert_close(y, other, equal_nan=True)
        found, wanted = slopes(y, s, flowing), slopes(other, s, flowing)
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-6)
        assert found.isnan().any() and not found.isnan().all()


@pytest.mark.parametrize(("edges", "heads", "nodes"), [(0, 4, 5), (7, 0, 5), (0, 4, 0)])
def test_no_cells(edges: int, heads: int, nodes: int) -> None:
    s = torch.randn(edges, heads, requires_grad=True)
    j = torch.zeros(edges, dtype=torch.int64)
    y = opgen.compile(EDGES).f(s, j, N=nodes)
    assert slopes(y, s, torch.ones_like(y)).shape == s.shape


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    s, j = torch.randn(12, 2, dtype=torch.float64, requires_grad=True), torch.randint(3, (12,))
    call = opgen.compile(EDGES).f
    assert torch.autograd.gradgradcheck(lambda s: call(s, j, N=4), (s,))
    s = torch.randn(40_000, 1, dtype=torch.float64, requires_grad=True)
    j = torch.randint(30, (40_000,))
    flowing = torch.randn(s.shape, dtype=torch.float64)
    found = []
    for made in (call(s, j, N=30), theirs(s, j, 30)):
        (first,) = torch.autograd.grad(made, s, flowing, create_graph=True)
        found.append(slopes(first.square().sum(), s, torch.ones((), dtype=torch.float64)))
    torch.testing.assert_close(*found)
