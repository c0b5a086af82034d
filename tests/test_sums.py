"""Loops over the same terms become one loop; iterators of the same name stay apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.loops import For, walk
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule

HEAD = "op f(x: float[N,D], z[N,D]) -> y[N]\n"


def x_by_z(x: Tensor, z: Tensor) -> Tensor:
    """The sum of all products of a row of each."""
    return x.sum(1) * z.sum(1)


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ("x[n,d]*z[n,d] for d in D", "x[n,d] for d in D", 1),
        ("x[n,e]*z[n,e] for e in D", "x[n,d] for d in D", 1),
        ("x[n,d]*z[n,e] for d in D, e in D", "x[n,d] for d in D", 2),
        # The outer loop of the first one must not become the inner one.
        ("x[n,d]*z[n,e] for e in D, d in D", "x[n,d] for d in D", 3),
    ],
)
def test_loops_and_their_numbers(first: str, second: str, count: int) -> None:
    text = f"{HEAD}  y[n] += {first}\n  y[n] += {second}\n"
    (op,) = check_source(Source(text, "<test>"))
    (kernel,) = schedule(op, gather(op)).kernels
    assert sum(isinstance(node, For) for node in walk(kernel.body)) == count
    x, z = torch.randn(2, 3, 5, dtype=torch.float64)
    both = (x * z).sum(1) if "e" not in first or "x[n,e]" in first else x_by_z(x, z)
    torch.testing.assert_close(opgen.compile(text).f(x, z), both + x.sum(1))


def test_gradients_of_gradients_of_two_sums() -> None:
    """Statements of a reverse sweep have the names that those of the spec had."""
    ours = opgen.compile(
        "op f(x: float[N,D], g[N]) -> y[N,D]\n"
        "  y[n,d] = (sum(e if e <= d) x[n,e]) / (1 + abs(g[n])) + x[n,d]*g[n]\n"
    ).f

    def theirs(x: Tensor, g: Tensor) -> Tensor:
        return x.cumsum(1) / (1 + g.abs())[:, None] + x * g[:, None]

    generator = torch.Generator().manual_seed(0)
    x, along, weight = (
        torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    g = torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_()
    x.requires_grad_()
    found = []
    for function in (ours, theirs):
        (first,) = torch.autograd.grad(function(x, g), x, weight, create_graph=True)
        found.append(torch.autograd.grad(first, g, along))
    torch.testing.assert_close(*found)
