"""Filters that are gone through backwards, and conditions in place of boundary modes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.passes.convolution import convolution
from opgen.passes.plain_products import with_plain_products
from opgen.passes.stages import products_of
from written_anew import changed, check_numbers, read


def causal(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(F.pad(x, (w.shape[2] - 1, 0)), w.flip(2))


def same(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1)


def scattered(x: Tensor, w: Tensor) -> Tensor:
    return F.conv_transpose2d(x, w.flip(2, 3), padding=1)


def strided(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(F.pad(x, (4, 0)), w.flip(2), stride=2, dilation=2)[..., : x.shape[2] // 2]


CAUSAL = "op f(x[B,C,T], w[O,C,K]) -> y[B,O,T]\n  y[b,o,t] = sum(c,i{}) x[b,c,t-i{}]*w[o,c,i]\n"
SAME = (
    "op f(x[B,C,H,W], w[O,C,3,3]) -> y[B,O,H,W]\n"
    "  y[b,o,h,v] = sum(c,i,j if {}) w[o,c,i,j]*x[b,c,h+i-1,v+j-1]\n"
)
BACKWARD = "op f(x[B,C,H,W], w[C,O,3,3]) -> y[B,O,H,W]\n  y[b,o,{}] += x[b,c,h,v]*w[c,o,i,j]{}\n"
STRIDED = (
    "op f(x[B,C,T], w[O,C,3]) -> y[B,O,T//2]\n  y[b,o,t] = sum(c,i) x[b,c, 2*t - 2*i ?0]*w[o,c,i]\n"
)
IMAGE, KERNEL = (2, 3, 6, 7), (4, 3, 3, 3)

CASES: dict[str, tuple[str, Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "causal": (CAUSAL.format("", " ?0"), causal, (2, 3, 9), (4, 3, 5)),
    "causal, longer": (CAUSAL.format("", " ?0"), causal, (2, 3, 4), (4, 3, 7)),
    "causal by a condition": (CAUSAL.format(" if i <= t", ""), causal, (2, 3, 9), (4, 3, 5)),
    "by steps": (STRIDED, strided, (2, 3, 8), (4, 3, 3)),
    "inside": (SAME.format("0 <= h+i-1 < H and 0 <= v+j-1 < W"), same, IMAGE, KERNEL),
    "inside, in other words": (
        SAME.format("v+j <= W and h+i-1 <= H-1 and h+i >= 1 and 0 < v+j"),
        same,
        IMAGE,
        KERNEL,
    ),
    "scattered": (
        BACKWARD.format("h-i+1 ?drop,v-j+1 ?drop", ""),
        scattered,
        IMAGE,
        (3, 4, 3, 3),
    ),
    "scattered by a condition": (
        BACKWARD.format("h-i+1,v-j+1", " if i <= h+1 and h+1 < H+i and j-1 <= v <= W+j-2"),
        scattered,
        IMAGE,
        (3, 4, 3, 3),
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    spec, reference, image, kernel = CASES[name]
    op = changed(spec)
    assert convolution(op) is not None or len(products_of(op)) == 1
    twice = name in ("causal by a condition", "scattered")
    check_numbers(opgen.compile(spec).f, reference, (image, kernel), twice=twice)


@pytest.mark.parametrize("condition", ["", " if i <= t"])
def test_terms_outside_are_absent(condition: str) -> None:
    """Those of infinite weights, too; and a filter of nothing gives nothing."""
    function = opgen.compile(CAUSAL.format(condition, "" if condition else " ?0")).f
    w = torch.ones(1, 1, 3)
    w[..., 1] = torch.inf
    found = function(torch.ones(1, 1, 3), w)
    assert torch.equal(found, torch.tensor([[[1.0, torch.inf, torch.inf]]]))
    assert torch.equal(function(torch.ones(2, 3, 4), torch.ones(5, 3, 0)), torch.zeros(2, 5, 4))
    assert function(torch.ones(2, 3, 0), torch.ones(5, 3, 2)).shape == (2, 5, 0)


@pytest.mark.parametrize(
    "spec",
    [
        # Channels do not meet in these sums, and kernels need no other form.
        "op f(x[B,C,T], w[C,K]) -> y[B,C,T]\n  y[b,c,t] = sum(i) x[b,c,t-i ?0]*w[c,i]\n",
        "op f(x[B,C,T], w[K]) -> y[B,T]\n  y[b,t] = sum(c,i) x[b,c,t-i ?0]*w[i]\n",
        # Nothing slides along a filter, or it does not reach its end.
        "op f(x[C,K], w[O,C,K]) -> y[O]\n  y[o] = sum(c,i) x[c,K-1-i]*w[o,c,i]\n",
        "op f(x[B,C,T], w[O,C,K]) -> y[B,O,T]\n"
        "  y[b,o,t] = sum(c, i in 2) x[b,c,t-i ?0]*w[o,c,i ?0]\n",
        "op f(x[B,C,T], w[O,C,K]) -> y[B,O,T]\n  where K >= 2\n"
        "  y[b,o,t] = sum(c, i in 2) x[b,c,t-i ?0]*w[o,c,i]\n",
        # Or it has part in another dim of it; or the filter is a table.
        "op f(x[B,C,T], w[O,C,K,L]) -> y[B,O,T]\n"
        "  y[b,o,t] = sum(c,i) x[b,c,t-i ?0]*w[o,c,i,c+i ?0] for t in T\n",
        "op f(x[B,2,T]) -> y[B,2,T]\n  const w = [[[1,2],[3,4]],[[5,6],[7,8.5]]]\n"
        "  y[b,o,t] = sum(c,i) x[b,c,t-i ?0]*w[o,c,i]\n",
        # Conditions on more than where an access is, or on less, or of a function.
        "op f(x[B,C,T], w[O,C,K]) -> y[B,O,T]\n"
        "  y[b,o,t] = sum(c,i if i <= t and c <= i) x[b,c,t-i]*w[o,c,i]\n",
        "op f(x[B,C,T], w[O,C,K], n: int[B]) -> y[B,O,T]\n"
        "  y[b,o,t] = sum(c,i if i <= t and t < n[b]) x[b,c,t-i]*w[o,c,i]\n",
        "op f(x[B,C,T], w[O,C,K]) -> y[B,O,T]\n"
        "  y[b,o,t] = sum(c,i if i + 1 <= t) x[b,c,t-i]*w[o,c,i]\n",
        "op f(x: float[T], w[K], z[T]) -> y[T]\n  y[t] = sum(i if i <= t) exp(x[t-i])*w[i]*z[t]\n",
        "op f(x: float[T], w[K], z[T]) -> y[T]\n  y[t] = sum(i if i <= t) w[i]*z[t]/x[t-i]\n",
        "op f(x[K], w[K]) -> y[1]\n  y[0] = sum(k if k >= 1) x[k-1]*w[k]*(7//k)\n",
        # A tensor that has no numbers where the conditions do not hold.
        "op f(x: float[T], z[T,T]) -> y[T]\n  p[t,i] = exp(z[t,i]) if i <= t\n"
        "  y[t] = sum(i if i <= t) p[t,i]*x[t-i]\n",
        "op f(x[T], w[K]) -> y[T]\n  y[t] = max(i if i <= t) x[t-i]*w[i]\n",
        "op f(x[T]; K = 3) -> y[T]\n  where K >= 0\n  y[t] = sum(i in K if i <= t) x[t-i]\n",
    ],
)
def test_near_misses(spec: str) -> None:
    op = read(spec)
    assert with_plain_products(op) is op
