"""Tensors of declared types in calls that compute in a wider one."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

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


def _tripled(holds: Tensor, x: Tensor) -> Tensor:
    return torch.where(holds, 3 * x, x)


READ = {
    "bytes": ("b: u8", "x[n] * b[n]", lambda x, k: x * k),
    "a condition": ("b: i8", "select(b[n] > 100, 3*x[n], x[n])", lambda x, k: _tripled(k > 100, x)),
    "a truth": ("b: bool", "x[n] * b[n]", lambda x, k: x * k),
    "an index": ("b: i8", "x[b[n] - 298 ?clamp]", lambda x, k: x[(k - 298).clamp(0, 3)]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("name", READ)
def test_an_output_that_is_read_is_not_converted_yet(name: str, on_gpu: bool) -> None:
    """Gradients read the same numbers: they compute them again."""
    declared, body, expected = READ[name]
    text = f"op f(x: float[N], k: int[N]) -> {declared}[N], y[N]\n  b[n] = k[n]\n  y[n] = {body}\n"
    call = opgen.compile(text).f
    k = torch.tensor([0, 1, 2, 300])
    x = torch.tensor([1.0, -2, 3, 0.5], requires_grad=True)
    with emulated() if on_gpu else contextlib.nullcontext():
        for _ in range(2):
            b, y = call(x, k)
            (found,) = torch.autograd.grad(y.sum(), x)
    wanted = expected(x, k)
    assert b.equal(k.to(b.dtype))
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), x)[0])


def test_float32_that_is_read_in_float64() -> None:
    text = (
        "op f(x: f64[N]) -> b: f32[N], y: f64[N]\n"
        "  b[n] = x[n] * 1.00000000001\n  y[n] = select(b[n] > 1, 3*x[n], x[n])\n"
    )
    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    b, y = opgen.compile(text).f(x)
    assert b.eq(1).all() and y.eq(3).all()
    assert torch.autograd.grad(y.sum(), x)[0].eq(3).all()
