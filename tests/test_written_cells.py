"""Statements that share an output by conditions on its indices, against PyTorch's own ops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.errors import OpgenError

Function = Callable[[Tensor], Tensor]

SHARED: tuple[tuple[str, str, Function], ...] = (
    (
        "lower triangle",
        "op f(x[N,M]) -> y[N,M]\n  y[i,j] = x[i,j] if i >= j\n  y[i,j] = 0 if i < j\n",
        torch.tril,
    ),
    (
        "band",
        "op f(x[N,M]; k = 1) -> y[N,M]\n"
        "  y[i,j] = x[i,j] if i - j <= k and j - i <= k\n"
        "  y[i,j] = 0 if i - j > k\n"
        "  y[r,c] = 0 if c - r > k and r - c <= k\n",
        lambda x: x.tril(1).triu(-1),
    ),
    (
        "three places, one of them moved",
        "op f(x[N,M]) -> y[N+1,M]\n"
        "  y[i+1,j] = x[i,j] if i >= j\n"
        "  y[i,j] = 2*x[i,j] if i <= j\n"
        "  y[N,j] = 0 if N <= j\n",
        lambda x: F.pad(x.tril(), (0, 0, 1, 0)) + F.pad(2 * x.triu(), (0, 0, 0, 1)),
    ),
    (
        "swapped iterators",
        "op f(x[N,N]) -> y[N,N]\n  y[i,j] = x[i,j] if i >= j\n  y[j,i] = x[i,j] if i > j\n",
        lambda x: x.tril() + x.tril(-1).T,
    ),
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("text", "wanted"), [s[1:] for s in SHARED], ids=[s[0] for s in SHARED])
@pytest.mark.parametrize("size", [0, 1, 5, 40])
def test_conditions_exclude_each_other(text: str, wanted: Function, size: int) -> None:
    function = opgen.compile(text).f
    x = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    result, expected = function(ours), wanted(theirs)
    assert torch.equal(result, expected)
    cotangent = torch.rand_like(expected)
    (gradient,) = torch.autograd.grad(result, ours, cotangent)
    assert torch.equal(gradient, torch.autograd.grad(expected, theirs, cotangent)[0])


@pytest.mark.parametrize(
    "statements",
    [
        ("y[i,j] = x[i,j] if i >= j", "y[i,j] = 0 if i <= j"),  # both on the diagonal
        ("y[i,j] = x[i,j] if i >= j", "y[j,i] = 0 if i < j"),  # both below it
        ("y[i,j] = x[i,j] if i > j", "y[i,j] = 0 if i < j + 2"),
        (
            "y[i,j] = sum(k) w[i,k] for j in M",
            "y[i,j] = 0 if N == 0",
        ),  # a sum without terms is written
    ],
)
def test_conditions_that_do_not(statements: tuple[str, str]) -> None:
    with pytest.raises(OpgenError, match="overlapping-writes"):
        opgen.compile("op f(x[M,M], w[M,N]) -> y[M,M]\n  {}\n  {}\n".format(*statements))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("reduction", "function"),
    [
        ("max", lambda x: x.amax(1)),
        ("min", lambda x: x.amin(1)),
        ("prod", lambda x: x.prod(1)),
        ("mean", lambda x: x.mean(1)),
        ("argmax", lambda x: x.argmax(1)),
    ],
)
def test_cells_beside_a_diagonal_are_zero(
    reduction: str, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """An index that stands twice runs along both dims, and not over all of their cells."""
    kind = ": i64" if reduction == "argmax" else ""
    module = opgen.compile(
        f"op diagonal(x: float[N,K]) -> y{kind}[N,N]\n  y[i,i] = {reduction}(k) x[i,k]\n"
    )
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) + 1
    torch.testing.assert_close(module.diagonal(x), torch.diag(function(x)))


def test_a_diagonal_is_read_where_it_was_written() -> None:
    """Also where one of its indices is composite; `tests/errors` has what is read beside it."""
    module = opgen.compile(
        "op f(x[B,N]) -> y[B,N]\n  tmp t[(B N),N]\n"
        "  t[(b i),i] = x[b,i]\n  y[b,i] = t[(b i),i] * t[(b i),i]\n"
    )
    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(module.f(x), x.square())
    assert torch.autograd.gradcheck(module.f, (x,))
