"""Sizes that a dim determines with a factor below zero, as that of a filter in `N - K + 1`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.testing.sizes import UnsolvableError, solve_sizes
from test_library import compare

CORRELATE = """
op correlate(w[O,C,K], x[N,C,L]) -> y[N,O,L - K + 1]
  y[n,o,i] = sum(c,k) w[o,c,k] * x[n,c,i + k]
"""
SHRINK = """
op shrink(x[L], y[L - 2*K]) -> z[K]
  z[k] = x[2*k] + sum(i) y[i]
"""
REFUSED = [
    (
        4,
        "y.shape[0] = 4 must be L - 2*K; with L=9 from x.shape[0] that needs 9 - 4 to be a "
        "multiple of 2 (remainder 1)",
    ),
    (11, "y.shape[0] = 11 must be L - 2*K; K would be negative with L=9 from x.shape[0]"),
]


def shrunk(x: Tensor, y: Tensor) -> Tensor:
    return x[: x.numel() - y.numel() : 2] + y.sum()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("length", "taps"), [(9, 3), (5, 5), (7, 2), (4, 1)])
def test_a_filter_s_gradient_has_the_size_of_the_filter(length: int, taps: int) -> None:
    correlate = opgen.compile(CORRELATE).correlate
    torch.manual_seed(0)
    w = torch.randn(4, 3, taps, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 3, length, dtype=torch.float64, requires_grad=True)
    got, wanted = correlate(w, x), F.conv1d(x, w)
    torch.testing.assert_close(got, wanted)
    cotangent = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, (w, x), cotangent),
        torch.autograd.grad(wanted, (w, x), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
    assert torch.autograd.gradgradcheck(correlate, (w, x))


@pytest.mark.parametrize("sizes", [(9, 3), (9, 9), (4, 0), (8, 0), (1, 1)])
def test_a_size_of_the_result(sizes: tuple[int, int]) -> None:
    shrink = opgen.compile(SHRINK).shrink
    x, y = (torch.randn(size) for size in sizes)
    torch.testing.assert_close(shrink(x, y), shrunk(x, y))


@pytest.mark.parametrize(("size", "said"), REFUSED)
def test_no_size_fits(size: int, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'shrink: {said}')}$"):
        opgen.compile(SHRINK).shrink(torch.zeros(9), torch.zeros(size))
    (op,) = check_source(Source(SHRINK))
    with pytest.raises(UnsolvableError):
        solve_sizes(op, {"x": (9,), "y": (size,)}, {})
    assert solve_sizes(op, {"x": (9,), "y": (3,)}, {})["K"] == 3


def test_an_extent_of_the_result_is_not_negative() -> None:
    correlate = opgen.compile(CORRELATE).correlate
    w, x = torch.zeros(1, 1, 4), torch.zeros(1, 1, 2)
    assert correlate(w, torch.zeros(1, 1, 3)).shape == (1, 1, 0)
    said = (
        "correlate: y.shape[2] = L + 1 - K = -1 is negative (K=4 from w.shape[2], L=2 from "
        "x.shape[2])"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        correlate(w, x)
    (op,) = check_source(Source(CORRELATE))
    with pytest.raises(UnsolvableError, match="negative"):
        solve_sizes(op, {"w": (1, 1, 4), "x": (1, 1, 2)}, {})
    blocks = opgen.compile(
        "op crop(x[...,L], w[K]) -> y[...,L - K]\n"
        "  y[...,i] = x[...,i] + sum(k) w[k]  for i in L - K\n"
    ).crop
    with pytest.raises(ValueError, match=r"crop: y.shape\[-1\] = L - K = -2 is negative"):
        blocks(torch.zeros(2, 3), torch.zeros(5))


@pytest.mark.slow
def test_symbolic_sizes() -> None:
    shrink = opgen.compile(SHRINK).shrink
    compiled = torch.compile(shrink, dynamic=True, fullgraph=True)
    for sizes in ((9, 3), (10, 4), (12, 2)):
        x, y = (torch.randn(size) for size in sizes)
        torch.testing.assert_close(compiled(x, y), shrunk(x, y))


@pytest.mark.parametrize("text", [SHRINK, pytest.param(CORRELATE, marks=pytest.mark.slow)])
def test_a_library_without_python(text: str, tmp_path: Path) -> None:
    spec = tmp_path / "solved.op"
    spec.write_text(text)
    numbers, refusals = compare(spec, tmp_path, ("float32",))
    assert numbers > 10 and refusals > 3
