"""Temporaries that no output depends on: which ones, and gradients without what flows to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import opgen
from opgen.errors import Source
from opgen.ir.show import show
from opgen.lang.read import read
from opgen.passes.differentiate import adjoint, tangent
from opgen.passes.without_effect import without_effect

HEAD = "op f(x: float[N,D]) -> y[N,D]\n  where N >= 1, D >= 1\n  peak[n] = max(d) x[n,d]\n"
P = "  p[n,d] = exp(x[n,d] - peak[n])\n"


def peak(x: Tensor) -> Tensor:
    return x.amax(1, keepdim=True)


def p(x: Tensor) -> Tensor:
    return (x - peak(x)).exp()


Case = tuple[str, set[str], Callable[[Tensor], Tensor]]

CASES: dict[str, Case] = {
    "softmax": (
        f"{P}  y[n,d] = p[n,d] / (sum(e) p[n,e])",
        {"peak"},
        lambda x: x.softmax(1),
    ),
    "log_softmax": (
        f"{P}  y[n,d] = x[n,d] - (log(sum(e) p[n,e]) + peak[n])",
        {"peak"},
        lambda x: x.log_softmax(1),
    ),
    "the wrong sign": (
        f"{P}  y[n,d] = x[n,d] - (log(sum(e) p[n,e]) - peak[n])",
        set(),
        lambda x: x - (p(x).sum(1, keepdim=True).log() - peak(x)),
    ),
    "a temperature": (
        "  p[n,d] = exp(0.5 * x[n,d] - peak[n] / 2)\n  y[n,d] = p[n,d] / (sum(e) p[n,e])",
        {"peak"},
        lambda x: (x / 2).softmax(1),
    ),
    "two temperatures": (
        f"{P}  y[n,d] = p[n,d] / (sum(e) exp(x[n,e] - 2*peak[n]))",
        set(),
        lambda x: p(x) / (x - 2 * peak(x)).exp().sum(1, keepdim=True),
    ),
    "roots and powers": (
        f"{P}  y[n,d] = sqrt(p[n,d]**3) * rsqrt(sum(e) p[n,e]*p[n,e]*abs(p[n,e]))",
        {"peak"},
        lambda x: p(x) ** 1.5 / (p(x) ** 3).sum(1, keepdim=True).sqrt(),
    ),
    "a floor": (
        f"{P}  y[n,d] = p[n,d] / (1 + (sum(e) p[n,e]))",
        set(),
        lambda x: p(x) / (1 + p(x).sum(1, keepdim=True)),
    ),
    "a choice": (
        f"{P}  y[n,d] = select(x[n,d] > peak[n] - 1, p[n,d] / (sum(e) p[n,e]), 0)",
        {"peak"},
        lambda x: torch.where(x > peak(x) - 1, x.softmax(1), 0),
    ),
    "a choice of two scales": (
        f"{P}  y[n,d] = select(x[n,d] > 0, p[n,d], 1) / (sum(e) p[n,e])",
        set(),
        lambda x: torch.where(x > 0, p(x), 1) / p(x).sum(1, keepdim=True),
    ),
    "sums over rows": (
        f"{P}  y[n,d] = p[n,d] / (sum(m) p[m,d])",
        set(),
        lambda x: p(x) / p(x).sum(0, keepdim=True),
    ),
    "another row": (
        f"{P}  y[n,d] = p[n,d] / (sum(e) p[n-1 ?clamp,e])",
        set(),
        lambda x: p(x) / p(x)[[0, *range(len(x) - 1)]].sum(1, keepdim=True),
    ),
    "extremes": (
        f"{P}  top[n] = max(d) p[n,d]\n  y[n,d] = max(p[n,d], 0) / top[n]",
        {"peak"},
        lambda x: p(x) / p(x).amax(1, keepdim=True),
    ),
    "a product": (
        f"{P}  all[n] = prod(d) p[n,d]\n  y[n,d] = p[n,d] / all[n]",
        set(),
        lambda x: p(x) / p(x).prod(1, keepdim=True),
    ),
    "a count": (
        "  shift[n,d] = x[n,d] - peak[n]\n  y[n,d] = shift[n,d] - (sum(e) shift[n,e])",
        set(),
        lambda x: x - peak(x) - (x - peak(x)).sum(1, keepdim=True),
    ),
    "a part of the cells": (
        "  shift[n,d] += peak[n] - x[n,d] if d >= 1\n  y[n,d] = peak[n] - shift[n,d]",
        set(),
        lambda x: torch.cat([peak(x).expand_as(x)[:, :1], x[:, 1:]], 1),
    ),
}


def op_of(text: str) -> str:
    return f"{HEAD}{text}\n"


@pytest.mark.parametrize("name", CASES)
def test_which_ones(name: str) -> None:
    text, expected, _ = CASES[name]
    (op,) = read(Source(op_of(text), "<test>"))
    assert without_effect(op) & {"peak", "p"} == expected


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", CASES)
def test_gradients_beside_pytorch(name: str) -> None:
    """First and second order, and forward mode."""
    text, _, theirs = CASES[name]
    ours = opgen.compile(op_of(text)).f
    generator = torch.Generator().manual_seed(3)
    x, along, weight = (
        torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    found = []
    for function in (ours, theirs):
        x_ = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x_), x_, weight, create_graph=True)
        second = torch.zeros_like(x)
        if first.requires_grad:
            (second,) = torch.autograd.grad(first, x_, along)
        found.append((function(x), torch.func.jvp(function, (x,), (along,))[1], first, second))
    torch.testing.assert_close(*found)


def test_softmax_looks_for_no_position() -> None:
    text, _, _ = CASES["softmax"]
    (op,) = read(Source(op_of(text), "<test>"))
    assert "argmax" not in show(adjoint(op, "x").op)
    assert "tangent_peak" not in show(tangent(op, ("x",)).op)


def test_a_temporary_that_some_read_before_it_is_whole() -> None:
    """What was added later, only the second reader sees: its shift is not made up for."""
    spec = (
        "op f(x[N], z[N]) -> y[N]\n"
        "  t[n] += x[n]\n"
        "  t[n] += z[n]\n"
        "  u[n] = t[n]\n"
        "  y[n] = t[n] - u[n]\n"
    )
    (op,) = read(Source(spec, "<test>"))
    assert without_effect(op) == {"t"}
    first, second, copy, last = op.statements
    assert without_effect(replace(op, statements=(first, copy, second, last))) == set()


def test_an_output_counts_as_one() -> None:
    (op,) = read(
        Source(
            "op f(x: float[N,D]) -> y[N,D], z[N]\n"
            "  where D >= 1\n"
            "  peak[n] = max(d) x[n,d]\n"
            "  y[n,d] = exp(x[n,d] - peak[n]) / (sum(e) exp(x[n,e] - peak[n]))\n"
            "  z[n] = 2*peak[n]\n",
            "<test>",
        )
    )
    assert without_effect(op) == set()


EDGES = (
    "op f(s: float[E,H], i: int[E], j: int[E]; N: size) -> a[E,H]\n"
    "  top[i[e],h] max= s[e,h]\n"
    "  z[{}[e],h] += exp(s[e,h] - top[i[e],h])\n"
    "  a[e,h] = exp(s[e,h] - top[i[e],h])/z[{}[e],h]\n"
)


def test_a_softmax_over_the_edges_of_each_node() -> None:
    """All that joins in a cell subtracts the same number, if the same tensor says where both go."""
    declared = EDGES.replace("  top", "  tmp top[N,H], z[N,H]\n  top", 1)
    (op,) = read(Source(declared.format("i", "i"), "<test>"))
    assert without_effect(op) == {"top"}
    (other,) = read(Source(declared.format("j", "j"), "<test>"))
    assert without_effect(other) == set()
    generator = torch.Generator().manual_seed(3)
    s = torch.randn(9, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    i = torch.tensor([0, 2, 0, 1, 2, 2, 0, 1, 3])
    y = opgen.compile(declared.format("i", "i")).f(s, i, i, N=5)
    wanted = torch.cat([s[i == n].softmax(0) for n in range(5)])[i.argsort(stable=True).argsort()]
    torch.testing.assert_close(y, wanted)
    along = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    found, theirs = (torch.autograd.grad(each, s, along)[0] for each in (y, wanted))
    torch.testing.assert_close(found, theirs)
