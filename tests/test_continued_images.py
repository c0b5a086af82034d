"""Convolutions of images that go on beyond their ends; numbers are those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.passes.plain_products import with_plain_products
from opgen.passes.stages import products_of
from written_anew import changed, check_numbers, read


def symmetric(x: Tensor) -> Tensor:
    """Both last dims one cell further on each side, the cells at the ends once more."""
    rows = torch.cat([x[..., :1, :], x, x[..., -1:, :]], -2)
    return torch.cat([rows[..., :1], rows, rows[..., -1:]], -1)


PLANE = (
    "op f(x[B,C,H,W], w[O,C,3,3]) -> y[B,O,H,W]\n{where}"
    "  y[b,o,h,v] = sum(c,i,j) x[b,c,h+i-1 {mode},v+j-1 {mode}]*w[o,c,i,j]\n"
)
STRIDED = (
    "op f(x[B,C,T], w[O,C,K]; s = 2, d = 2, p = 3) -> y[B,O,M]\n"
    "  where s >= 1, d >= 1, 0 <= p < T\n  let M = (T + 2*p - d*(K-1) - 1)//s + 1\n"
    "  y[b,o,t] = sum(c,i) x[b,c, s*t + d*i - p ?reflect]*w[o,c,i]\n"
)
GROUPED = (
    "op f(x[B,(G C),T], w[(G O),C,K]) -> y[B,(G O),T]\n"
    "  y[b,(g o),t] = sum(c,i) w[(g o),c,i]*x[b,(g c), t + i - K//2 ?wrap]\n"
)
BACKWARD = (
    "op f(x[B,C,T], w[O,C,K]) -> y[B,O,T]\n  y[b,o,t] = sum(c,i) x[b,c, t - i ?clamp]*w[o,c,i]\n"
)
LAST = (
    "op f(x[B,H,W,C], w[3,3,C,O]) -> y[B,H,W,O]\n"
    "  y[b,h,v,o] = sum(c,i,j) x[b,h+i-1 ?0,v+j-1 ?wrap,c]*w[i,j,c,o]\n"
)
SINGLE = (
    "op f(x[B,C,H,W], w[C,3,5]) -> y[B,C,H,W]\n"
    "  y[b,c,h,v] = sum(i,j) w[c,i,j]*x[b,c,h+i-1 ?wrap,v+j-2 ?clamp]\n"
)


def plane(mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), mode), w)


def last(x: Tensor, w: Tensor) -> Tensor:
    image = F.pad(F.pad(x.movedim(3, 1), (1, 1, 0, 0), "circular"), (0, 0, 1, 1))
    return F.conv2d(image, w.permute(3, 2, 0, 1)).movedim(1, 3)


def single(x: Tensor, w: Tensor) -> Tensor:
    image = F.pad(F.pad(x, (0, 0, 1, 1), "circular"), (2, 2, 0, 0), "replicate")
    return F.conv2d(image, w[:, None], groups=len(w))


IMAGE, FILTER = (2, 3, 6, 7), (4, 3, 3, 3)
SOME = "  where H >= 2, W >= 2\n"
CASES: dict[str, tuple[str, Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "wrap": (PLANE.format(where="", mode="?wrap"), plane("circular"), IMAGE, FILTER),
    "clamp": (PLANE.format(where="", mode="?clamp"), plane("replicate"), IMAGE, FILTER),
    "reflect": (PLANE.format(where=SOME, mode="?reflect"), plane("reflect"), IMAGE, FILTER),
    "symmetric": (
        PLANE.format(where="", mode="?symmetric"),
        lambda x, w: F.conv2d(symmetric(x), w),
        IMAGE,
        FILTER,
    ),
    "by steps": (
        STRIDED,
        lambda x, w: F.conv1d(F.pad(x, (3, 3), "reflect"), w, stride=2, dilation=2),
        (2, 3, 9),
        (4, 3, 4),
    ),
    "groups": (
        GROUPED,
        lambda x, w: F.conv1d(F.pad(x, (2, 2), "circular"), w, groups=2),
        (2, 6, 9),
        (4, 3, 5),
    ),
    "backwards": (
        BACKWARD,
        lambda x, w: F.conv1d(F.pad(x, (4, 0), "replicate"), w.flip(2)),
        (2, 3, 9),
        (4, 3, 5),
    ),
    "channels last": (LAST, last, (2, 6, 7, 3), (3, 3, 3, 4)),
    "single channels": (SINGLE, single, IMAGE, (3, 3, 5)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    spec, reference, image, kernel = CASES[name]
    op = changed(spec)
    assert "x_continued" in {each.name for each in op.temporaries}
    assert len(products_of(op)) == 1
    twice = name in ("reflect", "groups")
    check_numbers(opgen.compile(spec).f, reference, (image, kernel), twice=twice)


def test_images_and_filters_of_nothing() -> None:
    """A tensor has no less than no cells, and no image without cells goes on."""
    function = opgen.compile(GROUPED).f
    w = torch.ones(4, 3, 5)
    empty = torch.ones(2, 6, 0, requires_grad=True)
    y = function(empty, w.requires_grad_())
    assert y.shape == (2, 4, 0)
    for found, of in zip(torch.autograd.grad(y, (empty, w), y), (empty, w), strict=True):
        assert torch.equal(found, torch.zeros_like(of))
    assert torch.equal(function(torch.ones(2, 6, 9), torch.ones(4, 3, 0)), torch.zeros(2, 4, 9))
    assert function(torch.ones(2, 6, 0), torch.ones(4, 3, 0)).shape == (2, 4, 0)
    strided = opgen.compile(STRIDED).f
    assert strided(torch.ones(2, 3, 2), torch.ones(4, 3, 4), p=1, d=1).shape == (2, 4, 1)
    assert strided(torch.ones(2, 3, 4), torch.ones(4, 3, 9), p=0, d=1, s=8).shape == (2, 4, 0)


@pytest.mark.parametrize(
    "spec",
    [
        # A filter along one dim is as fast as it is; so is one that is written out.
        "op f(x[B,C,T], w[C,3]) -> y[B,C,T]\n  y[b,c,t] = sum(i) x[b,c,t+i-1 ?wrap]*w[c,i]\n",
        "op f(x[H,W]) -> y[H,W]\n  const w = [[1,2],[3,4.5]]\n"
        "  y[h,v] = sum(i,j) x[h+i ?wrap,v+j ?wrap]*w[i,j] for h in H, v in W\n",
        # No mode, or one that is no cell of the image.
        "op f(x[B,C,T], w[O,C,3]) -> y[B,O,T]\n  y[b,o,t] = sum(c,i) x[b,c,t+i-1 ?0]*w[o,c,i]\n",
        "op f(x[B,C,T], w[O,C,3]) -> y[B,O,T]\n  y[b,o,t] = sum(c,i) x[b,c,t+i-1 ?(1)]*w[o,c,i]\n",
        # Few cells of the image are read, or it would go on for many times its length.
        "op f(x[N,C,T], w[O,C,K]; n = 0) -> y[O,T]\n  where 0 <= n < N\n"
        "  y[o,t] = sum(c,i) x[n,c,t+i-1 ?wrap]*w[o,c,i]\n",
        "op f(x[N,C,T], w[O,C,K], r: int[B]) -> y[B,O,T]\n"
        "  y[b,o,t] = sum(c,i) x[r[b] ?0,c,t+i-1 ?wrap]*w[o,c,i]\n",
        "op f(x[B,C,T], w[O,C,K]; d = 1) -> y[B,O,T]\n  where d >= 1\n"
        "  y[b,o,t] = sum(c,i) x[b,c,t+d*i ?wrap]*w[o,c,i]\n",
        "op f(x[B,C,T], w[O,C,3]) -> y[B,O,T]\n"
        "  y[b,o,t] = sum(c,i) x[b,c,t+1000*i ?clamp]*w[o,c,i]\n",
        "op f(x[B,C,H,W], w[C,3,3]; s = 1) -> y[B,C,M,N]\n  where s >= 1\n"
        "  let M = H//s, N = W//s\n"
        "  y[b,c,h,v] = sum(i,j) x[b,c,s*h+i-1 ?clamp,s*v+j-1 ?clamp]*w[c,i,j]\n",
        "op f(x[B,C,H,W], w[O,C,3,3]) -> y[B,O,2,W]\n"
        "  y[b,o,h,v] = sum(c,i,j) x[b,c,h+i ?0,v+j-1 ?wrap]*w[o,c,i,j] for h in 2\n",
        # How far a window goes depends on the sign of an attribute.
        "op f(x[B,C,T], w[O,C,3]; d: int) -> y[B,O,T]\n"
        "  y[b,o,t] = sum(c,i) x[b,c,t+i*d ?wrap]*w[o,c,i] for t in T\n",
        "op f(x[B,C,T], w[O,C,3]) -> y[B,O,2*T]\n"
        "  y[b,o,t] = sum(c,i) x[b,c,(t+i-1)//2 ?clamp]*w[o,c,i] for t in 2*T\n",
        # Nothing slides, or not all cells have numbers.
        "op f(x[N,K], w[M,J]) -> y[N,M]\n  y[n,m] = sum(j) x[n,j ?clamp]*w[m,j]\n",
        "op f(x: float[B,C,T], w[O,C,3]; n: size) -> y[B,O,T]\n"
        "  p[b,c,t] = exp(x[b,c,t]) if t < n\n"
        "  y[b,o,t] = sum(c,i if n >= T) p[b,c,t+i-1 ?clamp]*w[o,c,i]\n",
        "op f(x[B,C,T], w[O,C,3]) -> y[B,O,T]\n  y[b,o,t] = max(c,i) x[b,c,t+i-1 ?wrap]*w[o,c,i]\n",
        "op f(x: i64[B,C,T], w: i64[O,C,3]) -> y: i64[B,O,T]\n"
        "  y[b,o,t] = sum(c,i) x[b,c,t+i-1 ?wrap]*w[o,c,i]\n",
    ],
)
def test_near_misses(spec: str) -> None:
    op = read(spec)
    assert with_plain_products(op) is op
