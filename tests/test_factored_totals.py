"""Sums of three and more tensors up to a cell have totals without the factors of that cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import opgen
from opgen.passes.factored_totals import with_factored_totals
from opgen.programs import for_cpu
from written_anew import check_numbers, read

CAUSAL = """
op causal(q[B,T,D], k[B,T,D], v[B,T,E]) -> y[B,T,E]
  y[b,t,e] = sum(s, d if s <= t) q[b,t,d]*k[b,s,d]*v[b,s,e]
"""
BEHIND = """
op behind(q[B,T,D], k[B,T,D], v[B,T,E]) -> y[B,T,E]
  y[b,t,e] = -(sum(s, d if s > t) k[b,s,d]*v[b,s,e]*q[b,t,d])
"""


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).tril() @ v


def behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return -((q @ k.mT).triu(1) @ v)


@pytest.mark.parametrize(("text", "reference"), [(CAUSAL, causal), (BEHIND, behind)])
def test_numbers_and_gradients(text: str, reference: Callable[..., Tensor]) -> None:
    op = read(text)
    assert len(for_cpu(op).temporaries) == len(op.temporaries) + 1
    function = getattr(opgen.compile(text), op.name)
    for shape in ((2, 5), (1, 1), (2, 0), (0, 3)):
        check_numbers(function, reference, [(*shape, 3), (*shape, 3), (*shape, 2)])
    q, k, v = (torch.randn(5, 3, 2, dtype=torch.float64).transpose(0, 2) for _ in range(3))
    torch.testing.assert_close(function(q, k, v), reference(q, k, v))


@pytest.mark.slow
def test_gradients_of_gradients() -> None:
    shapes = [(2, 4, 3), (2, 4, 3), (2, 4, 2)]
    check_numbers(opgen.compile(CAUSAL).causal, causal, shapes, twice=True)


def test_what_comes_later_is_not_read() -> None:
    """Neither in values nor in gradients; and where there is no term the sum is 0."""
    q, k, v = (torch.rand(1, 6, 2) for _ in range(3))
    k[:, 4] = torch.inf
    v[:, 5] = torch.nan
    given = [each.requires_grad_() for each in (q, k, v)]
    y = opgen.compile(CAUSAL).causal(*given)
    assert torch.allclose(y[:, :4], causal(q[:, :4], k[:, :4], v[:, :4]))
    slope, *_ = torch.autograd.grad(y[:, :4].sum(), given)
    assert slope[:, :4].isfinite().all()
    q = torch.full((1, 6, 2), torch.inf)
    y = opgen.compile(BEHIND).behind(q, torch.ones(1, 6, 2), torch.ones(1, 6, 2))
    assert torch.equal(y[:, -1], torch.zeros(1, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype: torch.dtype) -> None:
    q, k, v = (torch.rand(2, 40, 4).to(dtype) for _ in range(3))
    y = opgen.compile(CAUSAL).causal(q, k, v)
    wanted = causal(q.float(), k.float(), v.float())
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize(
    "spec",
    [
        "op f(w[T], x[N,T]) -> y[N,T]\n  y[n,t] = sum(s in T if s <= t) w[t]*x[n,s]\n",
        "op f(q[T,D], k[T,D], v[T,D]) -> y[T,D]\n"
        "  y[t,d] = sum(s in T if s <= t) q[t,d]*k[s,d]*v[t-s ?0,d]\n",
        "op f(q[T,D], k[T,D], v[T,D], n: int[T]) -> y[T,D]\n"
        "  y[t,d] = sum(s in T if s <= n[t]) q[t,d]*k[s,d]*v[s,d]\n",
        "op f(q: float[T], k[T], v[T]) -> y[T]\n"
        "  z[t] = sum(s in T if s <= t) q[t]*k[s]*v[s]\n  y[t] = select(z[t] > 1, z[t], 0)\n",
    ],
)
def test_near_misses(spec: str) -> None:
    """Two tensors, windows, what tensors say, and what decides something."""
    op = read(spec)
    assert with_factored_totals(op, fewest=3) is op
