"""Sums of products become sums of products of two tensors; numbers are those of PyTorch.

Near misses stay as they are written.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.passes.matrix_product import matrix_product
from opgen.passes.plain_products import with_plain_products
from opgen.passes.stages import products_of
from written_anew import changed, check_numbers, read

SCORE = """
op score(q[...,N,D], k[...,M,D]; scale = 1.0) -> y[...,N,M]
  y[...,n,m] = sum(d) scale*q[...,n,d]*k[...,m,d]*rsqrt(D)
"""
GRAM = """
op gram(x[B,C,H,W]) -> y[B,C,C]
  y[b,i,j] = sum(h,w) x[b,i,h,w]*x[b,j,h,w] / (C*H*W)
"""
CONVOLUTION = """
op scaled(x[B,C,H,W], w[O,C,3,3], s[O], n[O]) -> y[B,O,H,W]
  y[b,o,h,v] = sum(c,i,j) x[b,c,h+i-1 ?0,v+j-1 ?0]*w[o,c,i,j]*s[o]/(n[o]+1)
"""
ATTENTION = """
op attention(q[N,D], k[M,D], v[M,E]) -> y[N,E]
  s[n,m] = sum(d) q[n,d]*k[m,d]/sqrt(D)
  p[n,m] = exp(s[n,m])
  z[n] = sum(m) p[n,m]
  y[n,e] = sum(m) p[n,m]*v[m,e]/z[n]
"""
MEAN = """
op average(x[B,C,H,W]; K = 3) -> y[B,C,H,W]
  where K >= 1
  y[b,c,h,v] = sum(i in K, j in K) x[b,c, h+i-K//2 ?0, v+j-K//2 ?0] / (K*K)
"""
MODULATED = """
op modulated(x[B,C,H,W], s[B,C], w[O,C,3,3]) -> y[B,O,H,W]
  y[b,o,h,v] = sum(c,i,j) (-x[b,c,h+i-1 ?0,v+j-1 ?0])*s[b,c]*w[o,c,i,j]
"""
GAINED = """
op gained(x[B,C,H,W], w[O,C,3,3], m[C,3], s[O]) -> y[B,O,H,W]
  y[b,o,h,v] = sum(c,i,j) s[o]*m[c,j]*w[o,c,i,j]*x[b,c,h+i-1 ?0,v+j-1 ?0]
"""
BENT = """
op bent(x: float[B,C,H,W], w[O,C,3,3]) -> y[B,O,H,W]
  y[b,o,h,v] = sum(c,i,j) relu(x[b,c,h+i-1 ?0,v+j-1 ?0])*w[o,c,i,j]
"""
PERCEPTRON = """
op perceptron(x: float[N,K], a[J,K], w[M,J]) -> y[N,M]
  h[n,j] = sum(k) x[n,k]*a[j,k]
  y[n,m] = sum(j) h[n,j]*sigmoid(h[n,j])*w[m,j]
"""
CENTERED = """
op centered(x: float[N,K], w[M,K]) -> y[N,M]
  u[n] = mean(k) x[n,k]
  y[n,m] = sum(k) (x[n,k] - u[n])*exp(w[m,k])
"""
ENLARGED = """
op enlarged(x[B,C,H,W], w[C,O,K,K]; gain = 0.5) -> y[B,O,(H-1)*2+K,(W-1)*2+K]
  where H >= 1, W >= 1
  y[b,o,h*2+i,v*2+j] += x[b,c,h,v]*w[c,o,i,j]*gain
"""
QUOTIENT = """
op quotient(x: float[N,K], w[M,K], a[N], b[N]) -> y[N,M]
  y[n,m] = sum(k) x[n,k]*w[m,k]/(a[n]*(b[n]/2))
"""
ADAPTED = """
op adapted(x[N,K], a[R,K], b[M,R]) -> y[N,M]
  y[n,m] = sum(k,r) x[n,k]*a[r,k]*b[m,r]
"""
BILINEAR = """
op bilinear(a[N,I], w[K,I,J], b[N,J]) -> y[N,K]
  y[n,k] = sum(i,j) 2*a[n,i]*w[k,i,j]*b[n,j]
"""
MAHALANOBIS = """
op mahalanobis(x[N,K], m[K,K]) -> y[N]
  y[n] = sum(i,j) x[n,i]*m[i,j]*x[n,j]
"""
SEPARABLE = """
op separable(x[B,C,H,W], d[C,3,3], w[O,C]) -> y[B,O,H,W]
  y[b,o,h,v] = sum(c,i,j) x[b,c,h+i-1 ?0,v+j-1 ?0]*d[c,i,j]*w[o,c]
"""
POLYADIC = """
op polyadic(a[I,R], b[J,R], c[K,R]) -> y[I,J,K]
  y[i,j,k] = -(sum(r) a[i,r]*b[j,r]*c[k,r])
"""
POOLED = """
op pooled(x[B,C,H,W], w[O,C]) -> y[B,O]
  y[b,o] = sum(c,h,v) x[b,c,h,v]*w[o,c] / (H*W)
"""
CHAINED = """
op chained(a[I,J], b[J,K], c[K,L], d[L,M]) -> y[I,M]
  y[i,m] = sum(j,k,l) a[i,j]*b[j,k]*c[k,l]*d[l,m]
"""
ENERGY = """
op energy(a[N], m[N,N]) -> y[1]
  y[0] = sum(i,j) a[i]*m[i,j]*a[j]
"""
SCATTERED = """
op scattered(x[N,K], w[N,K], s[N]) -> y[N]
  where N >= 1
  y[n//2] += 2*x[n,k]*w[n,k]*s[n]
"""
BLOCKS = """
op blocks(x[B,C,(H 4),(W 4)], d[4,4]) -> y[B,C,(H 4),(W 4)]
  y[b,c,(h u),(w v)] = sum(i,j) x[b,c,(h i),(w j)]*d[u,i]*d[v,j]
"""

TRAIN = """
op train(x[B,(I J)], g[I,M,R], h[R,J,N]) -> y[B,(M N)]
  y[b,(m n)] = sum(i,j,r) x[b,(i j)]*g[i,m,r]*h[r,j,n]
"""
SKIN = """
op skin(w[V,J], a[J,4,4], p[V,4]) -> y[V,4]
  y[v,i] = sum(j,l) w[v,j]*a[j,i,l]*p[v,l]
"""

EXPERTS = """
op experts(g[T,K], x[T,D], w[E,D,O], r: int[T,K]) -> y[T,O]
  y[t,o] = sum(k,d) g[t,k]*x[t,d]*w[r[t,k],d,o]
"""


def score(q: Tensor, k: Tensor, scale: float = 1.0) -> Tensor:
    return q @ k.mT * (scale * q.shape[-1] ** -0.5)


def gram(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    return flat @ flat.mT / x[0].numel()


def scaled(x: Tensor, w: Tensor, s: Tensor, n: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1) * (s / (n + 1))[:, None, None]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[1] ** 0.5).softmax(1) @ v


def average(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1)


def modulated(x: Tensor, s: Tensor, w: Tensor) -> Tensor:
    return -F.conv2d(x * s[..., None, None], w, padding=1)


def gained(x: Tensor, w: Tensor, m: Tensor, s: Tensor) -> Tensor:
    return F.conv2d(x, w * m[:, None] * s[:, None, None, None], padding=1)


def bent(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(F.relu(x), w, padding=1)


def perceptron(x: Tensor, a: Tensor, w: Tensor) -> Tensor:
    return F.silu(x @ a.mT) @ w.mT


def centered(x: Tensor, w: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) @ w.exp().mT


def enlarged(x: Tensor, w: Tensor) -> Tensor:
    return 0.5 * F.conv_transpose2d(x, w, stride=2)


def quotient(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w.mT / (a * b / 2)[:, None]


def adapted(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ a.mT @ b.mT


def bilinear(a: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return 2 * F.bilinear(a, b, w)


def mahalanobis(x: Tensor, m: Tensor) -> Tensor:
    return ((x @ m) * x).sum(1)


def separable(x: Tensor, d: Tensor, w: Tensor) -> Tensor:
    channels = F.conv2d(x, d[:, None], padding=1, groups=len(d))
    return F.conv2d(channels, w[..., None, None])


def polyadic(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return -(a[:, None, None] * b[:, None] * c).sum(3)


def pooled(x: Tensor, w: Tensor) -> Tensor:
    return x.mean((2, 3)) @ w.mT


def chained(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return a @ b @ c @ d


def energy(a: Tensor, m: Tensor) -> Tensor:
    return (a @ m @ a).reshape(1)


def scattered(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    at = torch.arange(len(s)) // 2
    return x.new_zeros(len(s)).index_add(0, at, 2 * (x * w).sum(1) * s)


def blocks(x: Tensor, d: Tensor) -> Tensor:
    """A transform of each block, as in JPEG."""
    parts = x.unflatten(3, (-1, 4)).unflatten(2, (-1, 4)).transpose(3, 4)
    return (d @ parts @ d.mT).transpose(3, 4).reshape(x.shape)


def train(x: Tensor, g: Tensor, h: Tensor) -> Tensor:
    image = x.unflatten(1, (len(g), h.shape[1]))
    return torch.einsum("bij,imr,rjn->bmn", image, g, h).flatten(1)


def skin(w: Tensor, a: Tensor, p: Tensor) -> Tensor:
    return torch.einsum("vj,jil,vl->vi", w, a, p)


CASES: dict[str, tuple[str, Callable[..., Tensor], list[tuple[int, ...]], int]] = {
    "score": (SCORE, score, [(2, 3, 9, 8), (2, 3, 7, 8)], 1),
    "gram": (GRAM, gram, [(2, 5, 3, 4)], 1),
    "scaled": (CONVOLUTION, scaled, [(2, 3, 6, 7), (4, 3, 3, 3), (4,), (4,)], 1),
    "attention": (ATTENTION, attention, [(5, 4), (6, 4), (6, 3)], 2),
    "average": (MEAN, average, [(2, 3, 6, 7)], 0),
    "modulated": (MODULATED, modulated, [(2, 3, 6, 7), (2, 3), (4, 3, 3, 3)], 1),
    "gained": (GAINED, gained, [(2, 3, 6, 7), (4, 3, 3, 3), (3, 3), (4,)], 1),
    "bent": (BENT, bent, [(2, 3, 6, 7), (4, 3, 3, 3)], 1),
    "perceptron": (PERCEPTRON, perceptron, [(5, 4), (6, 4), (3, 6)], 2),
    "centered": (CENTERED, centered, [(5, 4), (3, 4)], 1),
    "enlarged": (ENLARGED, enlarged, [(2, 3, 4, 5), (3, 4, 2, 2)], 1),
    "quotient": (QUOTIENT, quotient, [(5, 4), (3, 4), (5,), (5,)], 1),
    "adapted": (ADAPTED, adapted, [(5, 7), (2, 7), (6, 2)], 2),
    "bilinear": (BILINEAR, bilinear, [(5, 3), (4, 3, 2), (5, 2)], 1),
    "mahalanobis": (MAHALANOBIS, mahalanobis, [(5, 3), (3, 3)], 1),
    "separable": (SEPARABLE, separable, [(2, 3, 6, 7), (3, 3, 3), (4, 3)], 2),
    "polyadic": (POLYADIC, polyadic, [(3, 5), (4, 5), (2, 5)], 1),
    "pooled": (POOLED, pooled, [(2, 3, 4, 5), (6, 3)], 1),
    "chained": (CHAINED, chained, [(2, 3), (3, 4), (4, 5), (5, 6)], 3),
    "energy": (ENERGY, energy, [(4,), (4, 4)], 0),
    "blocks": (BLOCKS, blocks, [(2, 3, 8, 12), (4, 4)], 2),
    "train": (TRAIN, train, [(2, 12), (3, 5, 2), (2, 4, 3)], 2),
    "skin": (SKIN, skin, [(5, 3), (3, 4, 4), (5, 4)], 1),
    "scattered": (SCATTERED, scattered, [(7, 4), (7, 4), (7,)], 0),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    spec, reference, shapes, products = CASES[name]
    op, found = read(spec), changed(spec)
    assert len(found.temporaries) > len(op.temporaries)
    assert len(products_of(found)) == products
    assert products == 0 or matrix_product(op) is None
    function = getattr(opgen.compile(spec), name)
    check_numbers(function, reference, shapes, twice=name == "score")


def test_a_temporary_has_one_dim_more_at_most() -> None:
    """However many steps there are, and where it is much less work: then it is a matrix for the
    product that it is a factor of."""
    (part,) = with_plain_products(read(TRAIN)).temporaries
    assert [str(dim.extent) for dim in part.dims] == ["B", "M", "R", "J"]
    long = read(
        "op f(x[B,I,J,K], g[I,M,R], h[R,J,N,S], q[S,K,O]) -> y[B,M,N,O]\n"
        "  y[b,m,n,o] = sum(i,j,k,r,s) g[i,m,r]*h[r,j,n,s]*q[s,k,o]*x[b,i,j,k]\n"
    )
    assert [len(each.dims) for each in with_plain_products(long).temporaries] == [5, 5]
    (part,) = with_plain_products(read(SKIN)).temporaries
    assert [str(dim.extent) for dim in part.dims] == ["V", "4", "4"]
    wide = SKIN.replace("a[J,4,4], p[V,4]) -> y[V,4]", "a[J,I,L], p[V,L]) -> y[V,I]")
    (part,) = with_plain_products(read(wide)).temporaries
    assert [str(dim.extent) for dim in part.dims] == ["V", "J", "L"]


def test_what_is_looked_up_is_multiplied_last() -> None:
    (first, _) = changed(EXPERTS).statements
    assert {each.name for each in first.iterators} == {*"tkd"}
    experts = opgen.compile(EXPERTS).experts
    r = torch.tensor([[0, 1], [2, 2], [1, 0]])

    def reference(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("tk,td,tkdo->to", g, x, w[r])

    check_numbers(lambda *given: experts(*given, r), reference, [(3, 2), (3, 4), (3, 4, 5)])
    given = torch.ones(3, 2), torch.ones(3, 4), torch.ones(3, 4, 5)
    with pytest.raises(IndexError, match="r"):
        experts(*given, r + 1)
    empty = experts(torch.ones(3, 2), torch.ones(3, 0), torch.ones(3, 0, 5), r)
    assert torch.equal(empty, torch.zeros(3, 5))
    assert experts(torch.ones(0, 2), torch.ones(0, 4), given[2], r[:0]).shape == (0, 5)


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 1, 1)])
def test_trains_of_few_cells(shape: tuple[int, ...]) -> None:
    """What nothing is summed for is 0, and has gradients."""
    i, j, r = shape
    x, g, h = torch.ones(2, i * j), torch.ones(i, 2, r), torch.ones(r, j, 5)
    given = [each.requires_grad_() for each in (x, g, h)]
    y = opgen.compile(TRAIN).train(*given)
    total = float(y.detach().sum())
    assert torch.equal(y, torch.full((2, 10), float(i * j * r)))
    for each, found in zip(given, torch.autograd.grad(y.sum(), given), strict=True):
        assert torch.equal(found, torch.full_like(each, total / max(1, each.numel())))


@pytest.mark.parametrize("attribute", [1.0, 0.5])
def test_a_sum_of_nothing_is_zero(attribute: float) -> None:
    """Whatever it is divided by."""
    y = opgen.compile(ATTENTION).attention(torch.ones(2, 3), torch.ones(0, 3), torch.ones(0, 4))
    assert torch.equal(y, torch.zeros(2, 4))
    y = opgen.compile(SCORE).score(torch.ones(2, 3, 0), torch.ones(2, 4, 0), scale=attribute)
    assert torch.equal(y, torch.zeros(2, 3, 4))
    for shape in ((2, 3, 0, 4), (2, 3, 4, 0)):
        assert torch.equal(opgen.compile(GRAM).gram(torch.ones(shape)), torch.zeros(2, 3, 3))
    assert opgen.compile(GRAM).gram(torch.ones(2, 0, 3, 4)).shape == (2, 0, 0)


def test_nothing_times_what_is_infinite() -> None:
    """Sums of parts of sums that have no terms, and where all are absent."""
    adapted = "op f(x[N,K], a[R,K], b[M,R]) -> y[N,M]\n  y[n,m] = sum(k{},r) {}\n"
    x, a, b = torch.ones(2, 0), torch.ones(3, 0), torch.ones(4, 3)
    for more, term in (
        ("", "x[n,k]*a[r,k]*b[m,r]*inf"),
        ("", "x[n,k]*a[r,k]*b[m,r]/(b[m,r] - 1)"),
        (", j in 0", "x[n,k]*a[r,j ?0]*b[m,r]/(b[m,r] - 1)"),
    ):
        found = opgen.compile(adapted.format(more, term)).f(x, a, b)
        assert torch.equal(found, torch.zeros(2, 4))
    outside = adapted.format(" in K", "x[n,k-1 ?0]*a[r,k]*b[m,r]/(b[m,r] - 1)")
    given = torch.ones(2, 1), torch.ones(3, 1), b
    assert torch.equal(opgen.compile(outside).f(*given), torch.zeros(2, 4))
    alone = "op f(x[K], w[C]) -> y[1]\n  y[0] = sum(k in K, c) x[k-1 ?0]*w[c]\n"
    infinite = torch.tensor([torch.inf, 1])
    assert torch.equal(opgen.compile(alone).f(torch.ones(1), infinite), torch.zeros(1))


def test_where_there_is_no_term() -> None:
    """No cell is looked for, and no tensor has less than no cells."""
    one = opgen.compile(
        "op f(a[N,K], b[N,K], c[K]) -> y[N]\n  y[0] += a[n,k]*b[n,k]*c[k] for n in N, k in K\n"
    ).f
    given = [torch.ones(0, 3), torch.ones(0, 3), torch.ones(3)]
    y = one(*(each.requires_grad_() for each in given))
    assert y.shape == (0,)
    found = torch.autograd.grad(y, given, torch.ones(0))
    assert all(torch.equal(each, torch.zeros_like(each)) for each in found)
    parts = opgen.compile(
        "op f(x[(p r),K], a[R,K], b[S,R]; p: int, r: size) -> y[(p S)]\n"
        "  y[(m s)] += x[(m q),k]*a[t,k]*b[s,t]\n"
    ).f
    assert parts(torch.ones(0, 2), torch.ones(3, 2), torch.ones(0, 3), p=-2, r=0).shape == (0,)
    at = opgen.compile("op f(x[N,K], w[K], t: int[N]) -> y[N]\n  y[t[n]] += 2*x[n,k]*w[k]\n").f
    assert torch.equal(at(torch.ones(2, 0), torch.ones(0), torch.tensor([0, -1])), torch.zeros(2))
    some = opgen.compile(
        "op f(x[N,K], w[K]; g: int) -> y[N]\n  where g <= N\n"
        "  y[n] += 2*x[n,k]*w[k] for n in g, k in K\n"
    ).f
    for count in (-1, 0, 1):
        wanted = torch.tensor([6.0, 6]) * (torch.arange(2) < count)
        assert torch.equal(some(torch.ones(2, 3), torch.ones(3), g=count), wanted)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_wrap_as_before(dtype: torch.dtype) -> None:
    spec = "op f(x[N,K], w[M,K]) -> y[N,M]\n  y[n,m] = sum(k) x[n,k]*3*w[m,k]*K\n"
    op = read(spec)
    assert with_plain_products(op) is not op
    x, w = (torch.randint(0, 200, (5, 7), dtype=dtype) for _ in range(2))
    assert torch.equal(opgen.compile(spec).f(x, w), ((x.long() @ w.long().mT) * 21).to(dtype))


@pytest.mark.parametrize(
    "spec",
    [
        "op f(x[N,K]) -> y[N]\n  y[n] = sum(k) x[n,k]*K\n",
        "op f(x[N,K], s[N]) -> y[N]\n  y[n] = sum(k) x[n,k]/s[n]\n",
        "op f(x[N,K]) -> y[N]\n  const a = [1.0, 2.0]\n  y[n] = sum(k,j) x[n,k]*a[j]*2\n",
        "op f(x[N,K], w[K]) -> y[N]\n  y[n] = sum(k) x[n,k]*w[k]*k\n",
        "op f(x[N,K], w[N,K], s[N,K]) -> y[N]\n  y[n] = sum(k) s[n,k]*x[n,k]*w[n,k]\n",
        # One pass over a tensor is enough.
        "op f(x[B,C,H], s[C]) -> y[B]\n  y[b] = sum(c,h) x[b,c,h]*s[c]\n",
        # A temporary would have more dims than any tensor; or what it reads is not there by itself.
        "op f(x[H,W], a[I], b[J]) -> y[H,W]\n  y[h,v] = sum(i,j) x[h+i-1 ?0,v+j-1 ?0]*a[i]*b[j]\n",
        "op f(x[N,K], a[R,K], b[M,R]) -> y[N,M]\n"
        "  y[n,m] = sum(k in K,r) x[n,k-1 ?0]*a[r,k-1]*b[m,r]\n",
        "op f(x[N,K], a[R,K], b[M,R]) -> y[N,M]\n"
        "  y[n,m] = sum(k,r) x[n-1 ?0,k]*a[r,k]*b[m,r]/a[r,0]\n",
        "op f(x[B,I,J], g[I,3,R], h[R,J,4]) -> y[B,3,4]\n"
        "  y[b,m,n] = sum(i,j,r) x[b,i,j ?0]*g[i,m,r]*h[r,j,n]\n",
        # What is looked up may be nowhere, or few numbers are between what is.
        "op f(g[T,K], x[T,D], w[E,D,O], r: int[T,K]) -> y[T,O]\n"
        "  y[t,o] = sum(k,d) g[t,k]*x[t,d]*w[r[t,k] ?0,d,o]\n",
        "op f(a[P,2], b[P,2], x[C,H,W], h: int[P], v: int[P]) -> y[C,P]\n"
        "  y[c,p] = sum(i,j) a[p,i]*b[p,j]*x[c,h[p]+i,v[p]+j]\n",
        # What is computed only where there are terms.
        "op f(x: float[N,K], w[M,K]; g: size) -> y[N,M]\n  z[n,k] = exp(x[n,k]) if M >= 1\n"
        "  y[n,m] += z[n,k]*w[m,k] for n in N, m in M, k in K, i in g\n",
        "op f(x[N,K], a[R,K], b[M,R]) -> y[N,M]\n"
        "  y[n,m] = sum(k,r if k <= r) x[n,k]*a[r,k]*b[m,r]\n",
        "op f(x[N,K], a[R,K], t: int[N]) -> y[N,R]\n  y[n,r] = sum(k) x[t[n] ?0,k]*a[r,k]*x[n,k]\n",
        "op f(x[N,K], w[M,K], s[K]) -> y[N,M]\n  y[n,m] = sum(k) x[n,k ?(2)]*w[m,k ?(3)]*s[k]\n",
        "op f(x: f16[N,K], w: f16[M,K], s[K]) -> y[N,M]\n  y[n,m] = sum(k) x[n,k]*w[m,k]*s[k]\n",
        "op f(x[N,K], w[M,K], s[K]) -> y[N,M]\n  y[n,m] = sum(k) x[n,k]*w[m,k]*s[k-1 ?0]\n",
        # A row may have no term, and what all terms share no value there.
        "op f(x[N,L], w[L], n: int[N]) -> y[N]\n  y[i] = sum(l if l < n[i]) x[i,l]*w[l]/n[i]\n",
        "op f(x[N,K], w[K]) -> y[N]\n"
        "  y[n+1] += 2*x[n,k]*w[k] for n in N, k in K if n + k < N - 1\n",
        # What is outside is not read where another factor is absent.
        "op f(x: float[N,K], w[N,K]) -> y[N]\n  y[n] = sum(k in K) w[n,k-1 ?0]*(2/x[n,k-1])\n",
        "op f(x: i64[N,K], w: i64[M,K], z[N,M]) -> y[N,M]\n"
        "  y[n,m] = sum(k) x[n,k]*w[m,k]*3*z[n,m]\n",
        # What no term reads stays out of the gradients.
        "op f(x[N,K], w[M,K], s[K], l: int[N]) -> y[N,M]\n"
        "  y[n,m] = sum(k if k < l[n]) x[n,k]*w[m,k]*s[k]\n",
        "op f(x: float[N,K], w[M,K]) -> y[N,M]\n  y[n,m] = sum(k) log(x[n,k])*w[m,k-1 ?0]\n",
        "op f(x: float[N,K], w[M,K]) -> y[N,M]\n  y[n-1 ?drop,m] += exp(x[n,k])*w[m,k]\n",
        "op f(x: float[N,K], w[J]) -> y[N,K-J+1]\n  where K >= J\n"
        "  y[n,k] = sum(j) x[n,k+j]**3*w[j]\n",
        # Nor is it computed, nor what is read once.
        "op f(x: float[C,W], w[O,C]; h: size, top = 0) -> y[O,h]\n"
        "  y[o,i] = sum(c) relu(x[c, i + top ?0])*w[o,c]\n",
        "op f(x: float[N,(C I)], w[C,I]) -> y[N]\n  y[n] = sum(c,i) relu(x[n,(c i)])*w[c,i]\n",
        "op f(x[N,K], w[K], s[M]) -> y[N]\n"
        "  y[n] += x[n,k]*w[k]*s[n] for n in N, k in K if n + k < M\n",
        "op f(x[N,K], w[K], s[M], i: int[N]) -> y[N]\n  y[n] = sum(k) x[n,k]*w[k]*s[i[n]]\n",
        "op f(x[N,K], w[K]) -> y[N]\n  y[n] = max(k) x[n,k]*w[k]*2\n",
        "op f(x: float[N,K], w[M,J]) -> y[N,M]\n  y[n,m] = sum(j) exp(x[n,j ?0])*w[m,j]\n",
        "op f(x: float[N,K], w[M,J]) -> y[N,M]\n  y[n,m] = sum(j) sqrt(x[n,j ?0])*w[m,j]\n",
        "op f(x: float[N,K], w[M,J]) -> y[N,M]\n  y[n,m] = sum(j) relu(x[n,j ?(2)])*w[m,j]\n",
        "op f(x: float[N,K], w[M,K]) -> y[N,M]\n"
        "  y[n,m] += relu(x[n,k])*w[m,k] for n in N, m in M, k in K if k <= n\n",
        "op f(x: float[N,K], w[N,K]) -> y[N]\n  y[n] = sum(k) relu(x[n,k])*w[n,k]\n",
        "op f(x: float[N,K], w[M,K]) -> y[N,M]\n  y[n,m] = sum(k) (x[n,k] - w[m,k])*w[m,k]\n",
        "op f(x: i32[N,K], w: i32[K]) -> y: i64[N]\n  y[n] = sum(k) x[n,k]*w[k]*2\n",
        "op f(x[N,K], w[K]) -> y[N]\n  y[n] = sum(k) x[n,k]*w[k]*inf\n",
    ],
)
def test_near_misses(spec: str) -> None:
    op = read(spec)
    assert with_plain_products(op) is op


def test_what_is_left_is_a_product_of_matrices() -> None:
    first, last = with_plain_products(read(SCORE)).statements
    alone = (
        "op f(q[...,N,D], k[...,M,D]) -> y[...,N,M]\n  y[...,n,m] = sum(d) q[...,n,d]*k[...,m,d]\n"
    )
    (wanted,) = read(alone).statements
    assert matrix_product(read(SCORE)) is None
    assert matrix_product(read(alone)) is not None
    assert first.body == wanted.body
    assert first.iterators == wanted.iterators
    assert {each.name for each in last.iterators} == {each.name for each in wanted.iterators[:-1]}
