"""Tensors of declared types in calls that compute in a wider one."""

from __future__ import annotations

import contextlib

import pytest
import torch

import opgen
from opgen.testing.cuda_on_cpu.emulated import emulated

BODIES = {
    "quotient": ("y[n] = z[n] + x[n] / d[n]", lambda x, d, z: z + x / d),
    "product": ("y[n] = z[n] - x[n] * d[n]", lambda x, d, z: z - x * d),
    "function": ("y[n] = z[n] + exp(x[n])", lambda x, d, z: z + x.exp()),
    "sum": ("y[n] = z[n] + (sum(m) x[m] / d[n])", lambda x, d, z: z + (x[:, None] / d).sum(0)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_float32_is_computed_with_in_float64(name: str, on_gpu: bool) -> None:
    """The compute type is the widest one: a quotient in float32 would be off by 3e-8."""
    body, expected = BODIES[name]
    text = f"op f(x: f32[N], d: f32[N], z: f64[N]) -> y: f64[N]\n  {body}"
    spec = opgen.compile(text, f"{name}.op")
    torch.manual_seed(0)
    x, d = torch.rand(2, 37) + 1
    z = torch.rand(37, dtype=torch.float64)
    given = [each.clone().requires_grad_() for each in (x, d, z)]
    exact = [each.double().requires_grad_() for each in (x, d, z)]
    with emulated() if on_gpu else contextlib.nullcontext():
        y = spec.f(*given)
        wanted = expected(*exact)
        torch.testing.assert_close(y, wanted, rtol=1e-13, atol=1e-13)
        found = torch.autograd.grad(y.sum(), given, allow_unused=True)
    gradients = torch.autograd.grad(wanted.sum(), exact, allow_unused=True)
    for one, other in zip(found, gradients, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-6, atol=1e-6)
