"""Filters along each dim, in one sum; numbers are those of PyTorch with one dim after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.passes.plain_products import with_plain_products
from written_anew import changed, check_numbers, read

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


@pytest.mark.sampled(3, 1)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    spec, reference, shapes, more = CASES[name]
    assert len(changed(spec).temporaries) == more
    twice = name in ("blur", "covariance of rows")
    check_numbers(opgen.compile(spec).f, reference, shapes, twice=twice)


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


def test_an_image_without_cells_has_no_terms() -> None:
    """However infinite the filters are that would meet them."""
    function = opgen.compile(
        "op f(x[H,W], a[3], b[3]) -> y[H,M]\n  let M = W + 1\n"
        "  y[h,v] = sum(i,j) x[h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n"
    ).f
    infinite = torch.full((3,), torch.inf)
    assert torch.equal(function(torch.ones(2, 0), infinite, torch.ones(3)), torch.zeros(2, 1))


_UNREAD = {
    "by steps": ("y[H//2,W-1]", "sum(i,j) x[2*h+i,v+j]*a[i]*b[j]", 1, [1, 3]),
    "by longer steps": ("y[(H+1)//3,W-1]", "sum(i,j) x[3*h+i,v+j]*a[i]*b[j]", 2, [2]),
    "dropped": ("y[H-1,W-1]", "sum(i,j) x[h+i,v+j]*a[i]*b[j] for h in H", 1, [3]),
    "no terms": ("y[H-4,W-1]", "sum(i,j) x[h+i,v+j]*a[i]*b[j]", 5, [0, 1, 2, 3]),
}


@pytest.mark.parametrize("name", _UNREAD)
def test_what_no_term_reads_is_in_no_gradient(name: str) -> None:
    """Rows of NaN beside those that are read."""
    dims, term, taps, unread = _UNREAD[name]
    size = "I" if name == "no terms" else str(taps)
    where = "  where H >= 4, I == 5\n" if name == "no terms" else ""
    target = "y[h ?drop,v]" if name == "dropped" else "y[h,v]"
    function = opgen.compile(
        f"op f(x[H,W], a[{size}], b[2]) -> {dims}\n  where H >= 4, W >= 1\n{where}"
        f"  {target} = {term}\n"
    ).f
    x = torch.ones(4, 3)
    x[unread] = torch.nan
    a, b = torch.ones(taps, requires_grad=True), torch.ones(2, requires_grad=True)
    y = function(x, a, b)
    assert y.isfinite().all()
    found = torch.autograd.grad(y, (a, b), torch.ones_like(y))
    assert all(each.isfinite().all() for each in found)


def test_pixels_of_two_images_that_no_term_reads() -> None:
    steps = opgen.compile(
        "op f(x[T], z[T], a[2]) -> y[T//4]\n  y[t] = sum(i) x[4*t+i]*z[4*t+i]*a[i]\n"
    ).f
    x, a = torch.ones(8, requires_grad=True), torch.ones(2)
    z = torch.ones(8)
    z[2], z[3] = torch.inf, torch.nan
    (found,) = torch.autograd.grad(steps(x, z, a).sum(), x)
    assert torch.equal(found, torch.tensor([1.0, 1, 0, 0, 1, 1, 0, 0]))
    valid = opgen.compile(
        "op f(x[T], z[T], a[K]) -> y[T-K+1]\n  where K <= T + 1\n"
        "  y[t] = sum(i) x[t+i]*z[t+i]*a[i]\n"
    ).f
    for count in (0, 4):
        x = torch.ones(3, requires_grad=True)
        y = valid(x, torch.full((3,), torch.nan), torch.ones(count))
        (found,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert torch.equal(found, torch.zeros(3)), count


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
        # A dim of which few cells are read, as far as is known.
        "op f(x[B,H,W], a[3], b[3]) -> y[B,M,W]\n  let M = min(H,4)\n"
        "  y[b_,h,v] = sum(i,j) x[b_,h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n".replace("b_", "n"),
        "op f(x[4096,W], a[3], b[3]) -> y[2,W]\n"
        "  y[h,v] = sum(i,j) x[h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n",
        "op f(x[H,W], a[3], b[3]; s = 2) -> y[M,N]\n  where s >= 1\n"
        "  let M = (H-3)//s + 1, N = (W-3)//s + 1\n"
        "  y[h,v] = sum(i,j) x[s*h+i,s*v+j]*a[i]*b[j]\n",
        "op f(x[H,W], a[2], b[2]) -> y[M,N]\n  let M = (H-2)//4 + 1, N = (W-2)//4 + 1\n"
        "  y[h,v] = sum(i,j) x[4*h+i,4*v+j]*a[i]*b[j]\n",
        "op f(x[N,N], z[N,N], a[3]) -> y[N]\n  y[n] = sum(i) x[n,n+i-1 ?0]*z[n,n+i-1 ?0]*a[i]\n",
        "op f(x[T], a[3]; s = 2) -> y[M]\n  where s >= 1\n  let M = (T-3)//s + 1\n"
        "  y[t] = sum(i) x[s*t+i]*x[s*t+i]*a[i]\n",
        # Or which another factor leaves out.
        "op f(x[H,W], m[W], a[3], b[3]) -> y[H,W]\n"
        "  y[h,v] = sum(i,j) x[h+i-1 ?0,v+j-1 ?0]*m[v-1 ?0]*a[i]*b[j] for v in W\n",
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
