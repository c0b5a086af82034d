"""Functions of fewer iterators than a sum has are computed before it; numbers are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import opgen
from opgen.passes.invariants import with_invariants
from opgen.passes.plain_products import with_plain_products
from opgen.passes.stages import products_of
from written_anew import changed, check_numbers, read

FOURIER = """
op fourier(x: float[B,L]; step = 0.5) -> y[B,L]
  y[b,k] = -(sum(l) x[b,l]*cos(step*k*l)/(k + 1)) for k in L
"""
FRAMES = """
op frames(x: float[B,T], w[L]; hop = 3) -> y[B,L,M]
  where T >= L, hop >= 1
  let M = (T - L)//hop + 1
  y[b,f,m] = sum(l) w[l]*x[b,m*hop+l]*sin(0.7*f*l) for f in L, m in M
"""
COSINES = """
op cosines(x: float[B,N,M]) -> y[B,N,M]
  y[b,u,v] = sum(n,m) x[b,n,m]*cos((2*n+1)*u)*cos((2*m+1)*v) for u in N, v in M
"""
SMOOTH = """
op smooth(p: float[I], q[J], x[J,D]) -> y[I,D]
  y[i,d] = sum(j) x[j,d]*exp(-(p[i] - q[j])**2)
"""
DECAY = """
op decay(a: float[D], x[B,T,D]) -> y[B,T,D]
  y[b,t,d] = sum(s in T if s <= t) a[d]**(t-s)*x[b,s,d]
"""
HAT = """
op hat(x[B,N], w[M]) -> y[B,M]
  y[b,m] = sum(n) x[b,n]*(2*m - n)*w[m]
"""


def fourier(x: Tensor) -> Tensor:
    k = torch.arange(x.shape[1], dtype=x.dtype)
    return -(x @ torch.cos(0.5 * k[:, None] * k)) / (k + 1)


def frames(x: Tensor, w: Tensor) -> Tensor:
    k = torch.arange(len(w), dtype=x.dtype)
    return torch.einsum("bml,lf->bfm", x.unfold(1, len(w), 3) * w, torch.sin(0.7 * k[:, None] * k))


def cosines(x: Tensor) -> Tensor:
    def table(count: int) -> Tensor:
        k = torch.arange(count, dtype=x.dtype)
        return torch.cos((2 * k[:, None] + 1) * k)

    return torch.einsum("bnm,nu,mv->buv", x, table(x.shape[1]), table(x.shape[2]))


def smooth(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    return torch.exp(-((p[:, None] - q) ** 2)) @ x


def decay(a: Tensor, x: Tensor) -> Tensor:
    t = torch.arange(x.shape[1])
    late = t[:, None] - t
    powers = a ** late.clamp(min=0)[..., None] * (late >= 0)[..., None]
    return torch.einsum("tsd,bsd->btd", powers, x)


def hat(x: Tensor, w: Tensor) -> Tensor:
    n, m = (torch.arange(each, dtype=x.dtype) for each in (x.shape[1], len(w)))
    return x @ (2 * m - n[:, None]) * w


CASES: dict[str, tuple[str, Callable[..., Tensor], list[tuple[int, ...]], int]] = {
    "fourier": (FOURIER, fourier, [(3, 5)], 1),
    "frames": (FRAMES, frames, [(2, 14), (5,)], 1),
    "cosines": (COSINES, cosines, [(2, 3, 4)], 2),
    "smooth": (SMOOTH, smooth, [(4,), (5,), (5, 3)], 1),
    "decay": (DECAY, decay, [(3,), (2, 6, 3)], 0),
    "hat": (HAT, hat, [(3, 5), (4,)], 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    spec, reference, shapes, products = CASES[name]
    assert len(products_of(changed(spec))) == products
    check_numbers(getattr(opgen.compile(spec), name), reference, shapes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smooth", "decay"])
def test_gradients_of_gradients(name: str) -> None:
    spec, reference, shapes, _ = CASES[name]
    check_numbers(getattr(opgen.compile(spec), name), reference, shapes, twice=True)


@pytest.mark.parametrize(
    "shapes", [[(0,), (2,), (2, 3)], [(2,), (0,), (0, 3)], [(2,), (3,), (3, 0)]]
)
def test_what_is_in_no_term_is_in_no_gradient(shapes: list[tuple[int, ...]]) -> None:
    """Not even where its slope is infinite."""
    p, q, x = (torch.full(each, -60.0) for each in shapes)
    given = [each.requires_grad_() for each in (p, -q, x)]
    spec = SMOOTH.replace("exp(-(p[i] - q[j])**2)", "exp((p[i] - q[j])**2)")
    y = opgen.compile(spec).smooth(*given)
    assert torch.equal(y, torch.zeros(len(p), x.shape[1]))
    found = torch.autograd.grad(y, given, torch.ones_like(y))
    assert all(torch.equal(each, torch.zeros_like(each)) for each in found)


def test_terms_that_a_condition_leaves_out() -> None:
    """The powers of what comes later are infinite, and what comes later may be."""
    x = torch.rand(1, 1200, 2)
    x[:, 1100:] = torch.nan
    a = torch.tensor([0.5, 0.9], requires_grad=True)
    y = opgen.compile(DECAY).decay(a, x.requires_grad_())
    wanted = decay(a, x[:, :1100])
    torch.testing.assert_close(y[:, :1100], wanted)
    (found,) = torch.autograd.grad(y[:, :1100].sum(), x, retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), x)[0])
    fixed = DECAY.replace("a: float[D], x", "x: float").replace("a[d]", "0.5")
    x = torch.rand(2, 1200, 2, requires_grad=True)
    y = opgen.compile(fixed).decay(x)
    torch.testing.assert_close(y, decay(torch.tensor([0.5, 0.5]), x))
    assert all(each.isfinite().all() for each in torch.autograd.grad(y.sum(), x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype: torch.dtype) -> None:
    x = torch.rand(3, 40).to(dtype)
    wanted = fourier(x.double())
    y = opgen.compile(FOURIER).fourier(x).double()
    torch.testing.assert_close(y, wanted, rtol=0, atol=20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    "spec",
    [
        # What has all iterators, or is read once for each of its cells.
        "op f(x: float[L]) -> y[L]\n  y[k] = sum(l) x[l]*cos(k*l) for k in L\n",
        "op f(p: float[I,2], q[J], x[J]) -> y[I]\n  y[i] = sum(j,k in 2) x[j]*exp(p[i,k] - q[j])\n",
        # It would have more dims than what it multiplies.
        "op f(p: float[I], q[J], r[K], x[K,D]) -> y[I,D]\n"
        "  y[i,d] = sum(j,k) x[k,d]*exp(p[i]*q[j]*r[k])\n",
        # No product of matrices, nor a function.
        "op f(x[B,L], w[L]) -> y[B]\n  y[b] = sum(l) x[b,l]*w[l]*(l + 1)\n",
        "op f(x[B,L]) -> y[B]\n  y[b] += x[b,l]*(l + 1) for b in B, l in L if l < b\n",
        # Some of it is in no term, or not there.
        "op f(p: float[I], q[J], x[J,D]) -> y[I,D]\n  y[i,d] = sum(j) x[j-1 ?0,d]*exp(p[i]*q[j])\n",
        "op f(p: float[I], q[J], x[J,D]) -> y[I,D]\n"
        "  y[i,d] = sum(j if j <= d) x[j,d]*exp(p[i]*q[j])\n",
        "op f(p: float[I], q[J], x[J,D], n: int[I]) -> y[I,D]\n"
        "  y[i,d] = sum(j if j < n[i]) x[j,d]*exp(p[i]*q[j])\n",
        "op f(x: float[B,L]; g: int) -> y[B,L]\n"
        "  y[b,k] = sum(l if g > 0) x[b,l]*cos(l//g*k) for k in L\n",
        "op f(x: float[B,L]) -> y[B,L]\n  y[b,k] = max(l) x[b,l]*cos(k*l) for k in L\n",
    ],
)
def test_near_misses(spec: str) -> None:
    op = read(spec)
    assert with_plain_products(op) is op


def test_functions_within_others() -> None:
    """Powers of two are computed once on the CPU, for all points."""
    spec = "op f(x: float[N,3]; L: size) -> y[N,3,L]\n  y[n,i,l] = sin(2**l*x[n,i]) for l in L\n"
    (held,) = with_invariants(read(spec)).temporaries
    assert [str(each.extent) for each in held.dims] == ["L"]
    x = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    powers = 2 ** torch.arange(4, dtype=x.dtype)
    y, wanted = opgen.compile(spec).f(x, L=4), torch.sin(x[..., None] * powers)
    torch.testing.assert_close(y, wanted)
    found, slope = (torch.autograd.grad(each.sum(), x) for each in (y, wanted))
    torch.testing.assert_close(found, slope)
    assert opgen.compile(spec).f(x, L=0).shape == (5, 3, 0)
    row = read("op f(x: float[N,C]) -> y[N,C]\n  y[n,c] = x[n,c]*exp(n)\n")
    assert with_invariants(row) is row


def test_terms_that_an_equation_counts() -> None:
    """Found by fuzzing: how many there are depends on a first one, which only a kernel knows."""
    spec = (
        "op f(x: float[N,K,B], w[K,N]; s = 1) -> y[B,N,N]\n"
        "  y[b,v,n] += exp(x[v,k,b])*w[k,n] for b in B, v in N, n in N, k in K\n"
        "    if s + 3*v == 2*b\n"
    )
    x, w = (torch.rand(size, dtype=torch.float64).requires_grad_() for size in ((5, 4, 6), (4, 5)))
    v, b = torch.arange(5)[:, None], torch.arange(6)
    terms = x.exp() * (1 + 3 * v == 2 * b)[:, None]
    y, wanted = opgen.compile(spec).f(x, w), torch.einsum("vkb,kn->bvn", terms, w)
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found, theirs = (torch.autograd.grad(each, (x, w), along) for each in (y, wanted))
    torch.testing.assert_close(found, theirs)
