"""Functions of few cells that many read: computed once, with the same values."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.errors import Source
from opgen.lang.read import read
from opgen.passes.invariants import with_invariants

TEXT = """op gated(x: float[N,C,H,W], s[N,C]) -> y[N,C,H,W]
  y[n,c,h,w] = x[n,c,h,w] * sigmoid(s[n,c])

op normed(x: float[N,C,H,W], s[C]) -> y[N,C,H,W]
  mu[c] = mean(n,h,w) x[n,c,h,w]
  variance[c] = mean(n,h,w) (x[n,c,h,w] - mu[c])**2
  y[n,c,h,w] = (x[n,c,h,w] - mu[c]) * rsqrt(variance[c] + 0.001) * exp(s[c])

op pixels(x: float[N,C,H,W], s[C]) -> y[N,C,H,W]
  square[n,h,w] = mean(c) x[n,c,h,w]**2
  y[n,c,h,w] = x[n,c,h,w] / sqrt(square[n,h,w] + 0.001) * s[c]

op twice(x: float[N,C,H,W], s[C]) -> y[N,C,H,W], z[N,C]
  y[n,c,h,w] = x[n,c,h,w] * tanh(s[c]) + tanh(2*s[c])
  z[n,c] = sum(h,w if h <= w) x[n,c,h,w] * tanh(2.0*s[c])
"""
LAST = torch.channels_last


def normed(x: Tensor, s: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, s.exp(), None, True, eps=0.001)


def pixels(x: Tensor, s: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(1, keepdim=True) + 0.001) * s[:, None, None]


def twice(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    wide = s[:, None, None]
    y = x * torch.tanh(wide) + torch.tanh(2 * wide)
    inside = torch.ones(x.shape[2:], dtype=x.dtype).triu()
    return y, (x * inside).sum((2, 3)) * torch.tanh(2 * s)


REFERENCES: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "gated": lambda x, s: x * torch.sigmoid(s)[..., None, None],
    "normed": normed,
    "pixels": pixels,
    "twice": twice,
}


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("format_", [torch.contiguous_format, LAST], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 20, 7, 9), (1, 64, 24, 24)])
@pytest.mark.parametrize("name", REFERENCES)
def test_values_and_gradients(
    name: str, shape: tuple[int, ...], format_: torch.memory_format, ops: ModuleType
) -> None:
    x = torch.randn(shape, dtype=torch.float64).contiguous(memory_format=format_)
    s = torch.randn(shape[:2] if name == "gated" else shape[1:2], dtype=torch.float64)
    leaves = x.requires_grad_(), s.requires_grad_()
    found, wanted = getattr(ops, name)(*leaves), REFERENCES[name](*leaves)
    torch.testing.assert_close(found, wanted)
    results = (found, wanted) if isinstance(found, tuple) else ((found,), (wanted,))
    along = [torch.randn_like(each) for each in results[1]]
    pair = [torch.autograd.grad(each, leaves, along, create_graph=True) for each in results]
    torch.testing.assert_close(*pair)
    directions = [torch.randn_like(each) for each in leaves]
    torch.testing.assert_close(*(torch.autograd.grad(each, leaves, directions) for each in pair))


@pytest.mark.parametrize(
    ("name", "count"), [("gated", 1), ("normed", 2), ("pixels", 1), ("twice", 3)]
)
def test_what_is_computed_once(name: str, count: int) -> None:
    """A value for each expression; 2 and 2.0 are not the same one."""
    (op,) = (op for op in read(Source(TEXT, "test.op")) if op.name == name)
    assert len(with_invariants(op).temporaries) == len(op.temporaries) + count


KEPT = {
    "what a guard keeps inside": (
        "op f(x: float[N,C,H,W], s[C]) -> y[N,C,H,W]\n"
        "  y[n,c,h,w] += x[n,c,h,w] * exp(s[c - 1]) for n, c in C, h, w if c >= 1\n"
    ),
    "what a condition keeps inside": (
        "op f(x: float[N,C,H,W], s[C]) -> y[N,C,H,W]\n"
        "  y[n,c,h,w] = select(c >= 1, x[n,c,h,w] * exp(s[c - 1]), 0)\n"
    ),
    "the same along a row": "op f(x: float[N,D], s[N]) -> y[N,D]\n  y[n,d] = x[n,d] * exp(s[n])\n",
    "sums and products": (
        "op f(x: float[N,C,H,W], s[C]) -> y[N,C,H,W]\n  y[n,c,h,w] = x[n,c,h,w] * (s[c]*s[c] + 1)\n"
    ),
    "a function for each cell": (
        "op f(x: float[N,C,H,W]) -> y[N,C,H,W]\n  y[n,c,h,w] = exp(x[n,c,h,w])\n"
    ),
    "a value that is zero outside": (
        "op f(x: float[N,C,H,W], s[C]) -> y[N,C,H,W]\n"
        "  y[n,c,h,w] = x[n,c,h,w] * exp(s[c - 1 ?0])\n"
    ),
    "a value that is looked up": (
        "op f(x: float[N,C,H,W], s[M], at: i64[C]) -> y[N,C,H,W]\n"
        "  y[n,c,h,w] = x[n,c,h,w] * exp(s[at[c] ?clamp])\n"
    ),
    "windows of a few": (
        "op f(x: float[N,D], s[N]) -> y[N,D]\n  y[n,d] = sum(k in 3) x[n, d + k ?0] * exp(s[n])\n"
    ),
}


@pytest.mark.parametrize("why", KEPT)
def test_what_is_left_alone(why: str) -> None:
    (op,) = read(Source(KEPT[why], "test.op"))
    assert with_invariants(op) is op
