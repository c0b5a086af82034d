"""Powers with a float attribute in the exponent: what they are for every value, and how."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import stage_text
from opgen.errors import Source

TEXT = "op f(x: float[N,M]; gamma = 2.0) -> y[N,M]\n  y[n,m] = x[n,m]**gamma\n"
VALUES = (2.0, 1.0, 3.0, 0.5, -1.0, 0.0, -0.0, 2.5, -0.5, 4.0, 7.0)


@pytest.fixture(scope="module")
def power() -> Callable[..., Tensor]:
    op: Callable[..., Tensor] = opgen.compile(TEXT).f
    return op


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", VALUES)
def test_values_and_gradients(
    gamma: float, dtype: torch.dtype, power: Callable[..., Tensor]
) -> None:
    """Of neighbours, which have copies of the kernels for some exponents, and of cells apart."""
    base = torch.rand(5, 40, dtype=dtype) * 3
    for x in (base, base.T):
        own, other = (x.detach().clone().requires_grad_() for _ in range(2))
        found, wanted = power(own, gamma=gamma), other**gamma
        torch.testing.assert_close(found, wanted)
        force = torch.rand_like(wanted)
        pairs = zip((found, wanted), (own, other), strict=True)
        gradients = [torch.autograd.grad(y, leaf, force)[0] for y, leaf in pairs]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("gamma", [2.0, 0.5, -1.0, 0.0, 2.5])
def test_what_is_no_number(gamma: float, power: Callable[..., Tensor]) -> None:
    x = torch.tensor([[0.0, -0.0, torch.inf, -torch.inf, torch.nan, -2.0, 1.0, 1e-40]])
    wanted = (x.double() ** torch.full_like(x, gamma, dtype=torch.float64)).float()
    found = power(x, gamma=gamma)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    zeros = wanted == 0
    assert torch.equal(torch.signbit(found[zeros]), torch.signbit(wanted[zeros]))


def test_the_sign_of_zero_is_kept() -> None:
    """A copy for 0 is none for -0."""
    text = "op f(x: float[N]; a = 1.0) -> y[N]\n  y[n] = x[n]**a / a\n"
    op, x = opgen.compile(text).f, torch.rand(3)
    assert op(x, a=0.0).tolist() == [torch.inf] * 3
    assert op(x, a=-0.0).tolist() == [-torch.inf] * 3


def test_two_attributes_have_no_copies() -> None:
    one = stage_text(Source(TEXT, "f.op"), "c")
    assert "call->numbers[0] == 2.0" in one
    text = "op f(x: float[N]; a = 1.0, b = 2.0) -> y[N]\n  y[n] = x[n]**a + x[n]**b\n"
    two = stage_text(Source(text, "f.op"), "c")
    assert "== 2.0" not in two
    op, x = opgen.compile(text).f, torch.rand(33)
    torch.testing.assert_close(op(x, a=2.0, b=3.0), x**2 + x**3)


def test_the_gradient_of_a_base_takes_no_logarithm() -> None:
    text = "op f(x: float[N,M], p[M]) -> y[N,M]\n  y[n,m] = x[n,m]**p[m]\n"
    for each in (TEXT, text):
        source = stage_text(Source(each, "f.op"), "c")
        begin = source.index("// f_grad_x\n")
        end = source.find("\n// f_grad_", begin + 1)
        assert "pow(" in source[begin:end]
        assert "log(" not in source[begin:end]
