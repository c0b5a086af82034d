"""Filters along each dim, in one sum; numbers are those of PyTorch with one dim after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.passes.plain_products import with_plain_products

close = torch.testing.assert_close

BLUR = (
    "op f(x: float[B,C,H,W], g[5]) -> y[B,C,H,W]\n  where H >= 3, W >= 3\n"
    "  y[b,c,h,v] = sum(i,j) g[i]*g[j]*x[b,c,h+i-2 ?reflect,v+j-2 ?reflect]\n"
)
SAME = (
    "op f(x[B,C,H,W], g[3], k[5]) -> y[B,C,H,W]\n"
    "  y[b,c,h,v] = sum(i,j) x[b,c,h+i-1 ?0,v+j-2 ?0]*g[i]*k[j]\n"
)
OF_CHANNELS = (
    "op f(x[B,C,H,W], g[C,I], k[C,J]) -> y[B,C,H-I+1,W-J+1]\n  where I <= H, J <= W\n"
    "  y[b,c,h,v] = sum(i,j) g[c,i]*x[b,c,h+i,v+j]*k[c,j]\n"
)
SOLID = (
    "op f(x[B,D,H,W], e[3], g[3], k[3]) -> y[B,D,H,W]\n"
    "  y[b,d,h,v] = sum(l,i,j) e[l]*g[i]*k[j]*x[b,d+l-1 ?wrap,h+i-1 ?clamp,v+j-1 ?0]\n"
)
DENSE = (
    "op f(x[B,C,H,W], g[O,C,3], k[C,3]) -> y[B,O,H,W]\n"
    "  y[b,o,h,v] = sum(c,i,j) x[b,c,h+i-1 ?0,v+j-1 ?0]*g[o,c,i]*k[c,j]\n"
)
COVARIANCE = (
    "op f(x: float[B,C,H,W], z[B,C,H,W], g[3]) -> y[B,C,H-2,W-2]\n"
    "  y[b,c,h,v] = sum(i,j) g[i]*g[j]*x[b,c,h+i,v+j]*z[b,c,h+i,v+j]\n"
)
ONE_DIM = (
    "op f(x[B,T], z[B,T], g[3]) -> y[B,T]\n  y[b,t] = sum(i) g[i]*x[b,t+i-1 ?0]*z[b,t+i-1 ?0]\n"
)


def each_of(x: Tensor, g: Tensor, dim: int) -> Tensor:
    """A filter along one dim of an image, the same or another one for each channel."""
    windows = x.unfold(dim, g.shape[-1], 1)
    shape = [1] * windows.dim()
    shape[-1] = g.shape[-1]
    if g.dim() > 1:
        shape[1] = len(g)
    return (windows * g.reshape(shape)).sum(-1)


def blur(x: Tensor, g: Tensor) -> Tensor:
    return each_of(each_of(F.pad(x, (2, 2, 2, 2), "reflect"), g, 2), g, 3)


def same(x: Tensor, g: Tensor, k: Tensor) -> Tensor:
    return each_of(each_of(F.pad(x, (2, 2, 1, 1)), g, 2), k, 3)


def of_channels(x: Tensor, g: Tensor, k: Tensor) -> Tensor:
    return each_of(each_of(x, g, 2), k, 3)


def solid(x: Tensor, e: Tensor, g: Tensor, k: Tensor) -> Tensor:
    x = F.pad(x, (1, 1))
    x = torch.cat([x[:, :, :1], x, x[:, :, -1:]], 2)
    x = torch.cat([x[:, -1:], x, x[:, :1]], 1)
    return each_of(each_of(each_of(x, e, 1), g, 2), k, 3)


def dense(x: Tensor, g: Tensor, k: Tensor) -> Tensor:
    return F.conv2d(x, g[..., None] * k[:, None], padding=1)


def covariance(x: Tensor, z: Tensor, g: Tensor) -> Tensor:
    return each_of(each_of(x * z, g, 2), g, 3)


def one_dim(x: Tensor, z: Tensor, g: Tensor) -> Tensor:
    return each_of(F.pad(x * z, (1, 1)), g, 1)


IMAGE = (2, 3, 6, 7)
CASES: dict[str, tuple[str, Callable[..., Tensor], list[tuple[int, ...]], int]] = {
    "blur": (BLUR, blur, [IMAGE, (5,)], 1),
    "same": (SAME, same, [IMAGE, (3,), (5,)], 1),
    "of channels": (OF_CHANNELS, of_channels, [IMAGE, (3, 2), (3, 4)], 1),
    "solid": (SOLID, solid, [IMAGE, (3,), (3,), (3,)], 2),
    "dense": (DENSE, dense, [IMAGE, (4, 3, 3), (3, 3)], 1),
    "covariance": (COVARIANCE, covariance, [IMAGE, IMAGE, (3,)], 2),
    "covariance of rows": (ONE_DIM, one_dim, [(2, 9), (2, 9), (3,)], 1),
}


def read(spec: str) -> Op:
    (op,) = check_source(Source(spec, "<test>"))
    return op


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    spec, reference, shapes, more = CASES[name]
    changed = with_plain_products(read(spec))
    assert len(changed.temporaries) == more
    assert with_plain_products(changed) is changed
    torch.manual_seed(0)
    given = [torch.rand(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    function = opgen.compile(spec).f
    y, wanted = function(*given), reference(*given)
    close(y, wanted)
    along = torch.randn_like(wanted)
    close(torch.autograd.grad(y, given, along), torch.autograd.grad(wanted, given, along))
    assert torch.autograd.gradgradcheck(function, given)


def test_where_there_is_no_term() -> None:
    """Filters without taps, however infinite the other one is, and images without cells."""
    function = opgen.compile(OF_CHANNELS).f
    x, g, k = torch.ones(2, 3, 4, 5), torch.full((3, 2), torch.inf), torch.ones(3, 0)
    assert torch.equal(function(x, g, k), torch.zeros(2, 3, 3, 6))
    assert torch.equal(function(x, k, g), torch.zeros(2, 3, 5, 4))
    assert torch.equal(function(x[:, :, :2], g, k), torch.zeros(2, 3, 1, 6))
    same = opgen.compile(SAME).f
    for shape in ((2, 3, 0, 5), (2, 3, 4, 0), (0, 3, 4, 5)):
        image = torch.ones(shape, requires_grad=True)
        y = same(image, torch.ones(3), torch.ones(5))
        assert y.shape == shape
        assert torch.autograd.grad(y, image, y)[0].shape == shape


def test_terms_outside_are_absent() -> None:
    """Those of infinite taps, too."""
    g = torch.tensor([torch.inf, 1, 1])
    y = opgen.compile(SAME).f(torch.ones(1, 1, 2, 2), g, torch.ones(5))
    assert torch.equal(y, torch.tensor([[[[4.0, 4], [torch.inf, torch.inf]]]]))


@pytest.mark.parametrize(
    "spec",
    [
        # Windows may lie beside the image.
        "op f(x[H,W], a[I], b[J]) -> y[H,W]\n  y[h,v] = sum(i,j) x[h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n",
        "op f(x[H,W], a[3], b[3]) -> y[H,W]\n"
        "  y[h,v] = sum(i,j) x[h+2*i-1 ?0,v+2*j-1 ?0]*a[i]*b[j]\n",
        # Both filters along one dim, or no sum.
        "op f(x[W], a[3], b[3]) -> y[W]\n  y[v] = sum(i,j) x[v+i+j ?clamp]*a[i]*b[j] for v in W\n",
        "op f(x[H,W], a[3], b[3]) -> y[H,W,3]\n"
        "  y[h,v,j] = max(i) x[h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n",
        # A dim of which few cells are read.
        "op f(x[N,H,W], a[3], b[3]) -> y[H,W]\n"
        "  y[h,v] = sum(i,j) x[0,h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n",
        "op f(x[H,W], a[3], b[3]) -> y[2,W]\n"
        "  y[h,v] = sum(i,j) x[h+i ?0,v+j-1 ?0]*a[i]*b[j] for h in 2\n",
        "op f(x[H,W], a[4], b[4]) -> y[H,W]\n"
        "  y[h,v] = sum(i in 3, j in 3) x[h+i-1 ?0,v+j-1 ?0]*a[i+1]*b[j+1]\n",
        "op f(x[H,W], a[3], b[3]) -> y[H,W]\n"
        "  y[h,v] = sum(i,j if i != j) x[h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n",
        "op f(x[H,W]) -> y[H,W]\n  const a = [1, 2, 1.5]\n"
        "  y[h,v] = sum(i,j) x[h+i-1 ?0,v+j-1 ?0]*a[i]*a[j]\n",
        "op f(x: i32[H,W], a: i32[3], b: i32[3]) -> y: i64[H,W]\n"
        "  y[h,v] = sum(i,j) x[h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n",
    ],
)
def test_near_misses(spec: str) -> None:
    op = read(spec)
    assert with_plain_products(op) is op


def test_an_image_of_which_a_band_is_read() -> None:
    """Nothing is computed of the rest."""
    band = (
        "op f(x[N,N,W], a[3], b[3]) -> y[N,W]\n"
        "  y[n,v] = sum(i,j) x[n,n+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n"
    )
    (part,) = with_plain_products(read(band)).temporaries
    assert [str(dim.extent) for dim in part.dims] == ["N", "W", "3"]
