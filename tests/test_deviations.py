"""Sums of deviations from a mean: which statements add nothing, and gradients without them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import opgen
from opgen.errors import Source
from opgen.ir.show import show
from opgen.ir.verify import verify
from opgen.lang.read import read
from opgen.passes.deviations import adds_zero
from opgen.passes.differentiate import adjoint, tangent

HEAD = "op f(x: float[N,D,E], c[N]) -> y[N]\n"
MEAN = "  mu[n] = mean(d,e) x[n,d,e]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{MEAN}  y[n] = sum(d,e) (x[n,d,e] - mu[n])", True),
        (f"{MEAN}  y[n] = sum(e,d) (-2*(mu[n] - x[n,d,e])*c[n]/(1 + c[n]))", True),
        (f"{MEAN}  y[n] = sum(d,e) (x[n,d,e] - mu[n])*c[d ?0]", False),
        (f"{MEAN}  y[n] = sum(d,e) (x[n,d,e] - mu[n])*d", False),
        (f"{MEAN}  y[n] = sum(d,e) c[n] / (x[n,d,e] - mu[n])", False),
        (f"{MEAN}  y[n] = sum(d,e) (x[n,d,e] - mu[n])**2", False),
        (f"{MEAN}  y[n] = sum(d,e) (x[n,d,e] + mu[n])", False),
        (f"{MEAN}  y[n] = sum(d,e) (x[n,d,e] - mu[n-1 ?clamp])", False),
        (f"{MEAN}  y[n] = sum(d,e) (x[n-1 ?clamp,d,e] - mu[n])", False),
        (f"{MEAN}  y[n] = sum(d in D,e) (x[n,d+1 ?0,e] - mu[n])", False),
        (f"{MEAN}  y[n] = sum(d,e if d >= 1) (x[n,d,e] - mu[n])", False),
        (f"{MEAN}  y[n] = sum(d,e in 1) (x[n,d,e ?0] - mu[n])", False),
        ("  mu[n] = mean(d) x[n,d,0 ?0]\n  y[n] = sum(d,e) (x[n,d,e] - mu[n])", False),
        ("  mu[n] = (sum(d,e) x[n,d,e]) / (D*E)\n  y[n] = sum(d,e) (x[n,d,e] - mu[n])", True),
        ("  mu[n] = (sum(d,e) x[n,d,e]) / (D*D)\n  y[n] = sum(d,e) (x[n,d,e] - mu[n])", False),
        ("  mu[n] = (sum(d,e) x[n,d,e]) / c[n]\n  y[n] = sum(d,e) (x[n,d,e] - mu[n])", False),
        ("  mu[n] = mean(d,e) x[n,d,e]*c[n]\n  y[n] = sum(d,e) (x[n,d,e]*c[n] - mu[n])", True),
        ("  mu[n] = mean(d,e) x[n,d,e]*c[n]\n  y[n] = sum(d,e) (x[n,d,e] - mu[n])", False),
        ("  mu[e] = mean(d) x[0 ?0,d,e]\n  y[n] = sum(d,e) (x[n,d,e] - mu[e])", False),
    ],
)
def test_which_statements(text: str, expected: bool) -> None:
    (op,) = read(Source(f"{HEAD}{text}\n", "<test>"))
    assert adds_zero(op, op.statements[-1]) == expected


def test_means_of_other_axes_of_the_same_extent() -> None:
    """Each row of a square has its own mean, and the sum goes down a column."""
    spec = "op f(x: float[D,D]) -> y[D]\n  mu[i] = mean(j) x[i,j]\n"
    (down,) = read(Source(f"{spec}  y[j] = sum(i) (x[i,j] - mu[i])\n", "<test>"))
    (along,) = read(Source(f"{spec}  y[i] = sum(j) (x[i,j] - mu[i])\n", "<test>"))
    assert not adds_zero(down, down.statements[-1])
    assert adds_zero(along, along.statements[-1])


@pytest.mark.parametrize(
    "text",
    [
        "op f(nograd x: float[N,D], c[N]) -> y[N]\n"
        "  mu[n] = mean(d) x[n,d]\n"
        "  t[n] = sum(d) (x[n,d] - mu[n])*c[n]\n"
        "  y[n] = exp(t[n])\n",
        "op f(nograd x: float[N,D], c[N]) -> y[N], v[N]\n"
        "  mu[n] = mean(d) x[n,d]\n"
        "  v[n] = sum(d) (x[n,d] - mu[n])*c[n]\n"
        "  y[n] = exp(v[n])\n",
    ],
    ids=["temporary", "output"],
)
def test_directions_of_what_does_not_depend(text: str) -> None:
    """A sum that is zero has no direction, whether it is a temporary or an output."""
    (op,) = read(Source(text, "<test>"))
    derived = tangent(op, ("c",))
    verify(derived.op)
    for name in ("tangent_t[n]", "exp"):
        assert name not in show(derived.op)
    c = torch.randn(3, dtype=torch.float64)
    x = torch.randn(3, 5, dtype=torch.float64)
    found = torch.func.jvp(lambda c: opgen.compile(text).f(x, c), (c,), (torch.ones_like(c),))[1]
    for each in found if isinstance(found, tuple) else (found,):
        assert each.abs().max() < 1e-14


VARIANCE = """op variance(x: float[N,D]) -> y[N]
  mu[n] = mean(d) x[n,d]
  y[n] = (sum(d) (x[n,d] - mu[n])**2) / (D - 1)
"""
COVARIANCE = """op covariance(x: float[N,D], z[N,D]) -> y[N]
  mu[n] = mean(d) x[n,d]
  nu[n] = mean(d) z[n,d]
  y[n] = mean(d) (x[n,d] - mu[n])*(z[n,d] - nu[n])
"""
FOURTH = """op fourth(x: float[N,D]) -> y[N]
  mu[n] = mean(d) x[n,d]
  y[n] = mean(d) (x[n,d] - mu[n])**4
"""


def deviations(x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


@pytest.mark.parametrize(
    ("text", "theirs", "flows_to_mean"),
    [
        (VARIANCE, lambda x: x.var(1), False),
        (COVARIANCE, lambda x, z: (deviations(x) * deviations(z)).mean(1), False),
        (FOURTH, lambda x: (deviations(x) ** 4).mean(1), True),
    ],
    ids=["variance", "covariance", "fourth"],
)
def test_gradients_beside_pytorch(
    text: str, theirs: Callable[..., Tensor], flows_to_mean: bool
) -> None:
    (op,) = read(Source(text, "<test>"))
    assert ("grad_mu" in show(adjoint(op, "x").op)) == flows_to_mean
    ours = getattr(opgen.compile(text), op.name)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(3, 5, generator=generator, dtype=torch.float64) + 7 for _ in op.inputs]
    for each in inputs:
        each.requires_grad_()
    torch.testing.assert_close(ours(*inputs), theirs(*inputs))
    weight = torch.randn(3, generator=generator, dtype=torch.float64)
    found = [
        torch.autograd.grad(function(*inputs), inputs, weight, create_graph=True)
        for function in (ours, theirs)
    ]
    torch.testing.assert_close(*found)
    along = [torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in inputs]
    second = [torch.autograd.grad(first, inputs, along) for first in found]
    torch.testing.assert_close(*second)
