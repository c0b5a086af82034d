"""Kernels that hand sums to one another as phases of one kernel: which do, and what they give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.errors import Source
from opgen.ir.loops import Program
from opgen.lang.read import read
from opgen.programs import for_gpu, scheduled, threads
from opgen.runtime import cuda_chain
from opgen.testing.cuda_on_cpu.emulated import Emulation, emulated
from opgen.testing.cuda_on_cpu.launch import Order

SPEC = """
op softmax(x: float[N,M]) -> y[N,M]
  tmp top[N], e[N,M], s[N]
  top[n] = max(m) x[n,m]
  e[n,m] = exp(x[n,m] - top[n])
  s[n] = sum(m) e[n,m]
  y[n,m] = e[n,m] / s[n]

op norm(x: float[N,C,H,W], w[C], b[C]) -> y[N,C,H,W]
  mu[c] = mean(n,h,i) x[n,c,h,i]
  s[c] = mean(n,h,i) (x[n,c,h,i] - mu[c])**2
  y[n,c,h,i] = (x[n,c,h,i] - mu[c]) * rsqrt(s[c] + 1e-5) * w[c] + b[c]

op rows_apart(x: float[N,M]) -> y[N,M]
  tmp s[N]
  s[n] = sum(m) x[n,m]
  y[n,m] = x[n,m] - s[N-1-n]

op columns(x: float[N,M]) -> y[N,M]
  tmp s[M]
  s[m] = sum(n) x[n,m]
  y[n,m] = x[n,m] - s[m]

op all_rows(x: float[N,M]) -> y[N,M]
  tmp s[N], t[1]
  s[n] = sum(m) x[n,m]
  t[0] = sum(n) s[n]
  y[n,m] = x[n,m] - t[0]

op looked_up(x: float[N,M], i: int[M]) -> y[N,M]
  tmp s[N]
  s[n] = sum(m) x[n,m]
  y[n,m] = x[n,i[m]] - s[n]

op clamped(x: float[N,M], i: int[M]) -> y[N,M]
  tmp s[N]
  s[n] = sum(m) x[n,m]
  y[n,m] = x[n,i[m] ?clamp] - s[n]

op turned(x: float[N,M]) -> y[M,N]
  tmp s[N]
  s[n] = sum(m) x[n,m]
  y[m,n] = x[n,m] - s[n]

op reversed(x: float[N,M]) -> y[N,M]
  tmp s[N], d[N,M]
  s[n] = sum(m) x[n,m]
  d[n,m] = x[n,m] - s[n]
  y[n,m] = d[n,M-1-m] + d[n,m]

op added_to(x: float[N,M], k: int[N]) -> y[N,M]
  tmp s[N], t[N,M]
  s[n] = sum(m) x[n,m]
  t[n,m] = x[n,m] - s[n]
  t[k[n],m] += x[n,m]
  y[n,m] = t[n,m] * 2

op in_a_condition(x: float[N,M], k: int[N,M]) -> y[N,M]
  tmp a: int[N]
  a[n] = sum(m) k[n,m]
  y[n,m] = a[n] * x[n,m] if m < a[N-1-n]

op in_an_index(x: float[N,M], k: int[N,M]) -> y[N,M]
  tmp a: int[N]
  a[n] = sum(m) k[n,m]
  y[n,m] = a[n] * x[n, (m + a[N-1-n]) ?0]

op many_taps(x: float[N,H,W], g: float[N,H,W]) -> s[N,7,7], y[N,H,W]
  s[n,k,l] = sum(h,w) x[n, h+k-3 ?0, w+l-3 ?0] * g[n,h,w]
  y[n,h,w] = x[n,h,w] * s[n,3,3]

op named(x: float[N,M]) -> chain_1[N,M]
  tmp s[N]
  s[n] = sum(m) x[n,m]
  chain_1[n,m] = x[n,m] - s[n]

op product(x: float[N,M], k[M,K]) -> y[N,K]
  tmp s[N], z[N,K]
  s[n] = sum(m) x[n,m]
  z[n,k] = sum(m) x[n,m] * k[m,k]
  y[n,k] = z[n,k] / s[n]
"""
OPS = opgen.compile(SPEC)


def program(name: str) -> Program:
    (op,) = (for_gpu(op) for op in read(Source(SPEC)) if op.name == name)
    return threads(op, scheduled(op))


CHAINS = {
    "softmax": [(0, 4, ["top", "e", "s", "y"])],
    "norm": [(0, 3, ["mu", "s", "y"])],
    "turned": [(0, 2, ["s", "y"])],
    "reversed": [(0, 3, ["s", "d", "y"])],
    "clamped": [(0, 2, ["s", "y"])],
    # Another block has what is read; cells lie side by side; an index may be outside.
    "rows_apart": [],
    "columns": [],
    "looked_up": [],
    "all_rows": [],
    "product": [],
    # Another kernel adds to a tensor; a block would need 49 sums in registers.
    "added_to": [],
    "in_a_condition": [],
    "in_an_index": [],
    "many_taps": [],
    "named": [(0, 2, ["s", "chain_1"])],
}


@pytest.mark.parametrize("name", CHAINS)
def test_which_kernels_are_chains(name: str) -> None:
    found = program(name).chains
    assert [(c.first, c.count, [p.written for p in c.phases]) for c in found] == CHAINS[name]


# ---------------------------------------------------------------------------- what they give
@contextlib.contextmanager
def chained(order: Order = "forward") -> Iterator[Emulation]:
    """Few cells of few points are a chain as well."""
    with (
        mock.patch.object(cuda_chain, "_LEAST_CELLS", 1),
        mock.patch.object(cuda_chain, "_FEWEST_STRETCHES", 1),
        emulated(order=order) as launches,
    ):
        yield launches


def kernels(launches: Emulation) -> list[str]:
    return [report.kernel for report in launches.reports]


def reversed_rows(x: Tensor) -> Tensor:
    d = x - x.sum(-1, keepdim=True)
    return d.flip(-1) + d


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True)


CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), [(1, 1), (3, 7), (5, 64), (2, 300), (4, 1030)]),
    "turned": (lambda x: (x - x.sum(1, keepdim=True)).mT, [(3, 5), (2, 128), (70, 33)]),
    "reversed": (reversed_rows, [(3, 5), (2, 128), (1, 1000), (3, 36)]),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_rows(name: str, dtype: torch.dtype, order: Order) -> None:
    theirs, shapes = CASES[name]
    for shape in shapes:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        with chained(order) as launches:
            found = getattr(OPS, name)(x)
        assert kernels(launches) == [f"{name}_chain_1"]
        wanted = theirs(x.double()).to(dtype)
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-7}[dtype]
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (1, 2, 5, 7), (3, 1, 16, 33)])
def test_images(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, w, b = (torch.randn(s).double() for s in (shape, shape[1:2], shape[1:2]))
    with chained() as launches:
        found = OPS.norm(x, w, b)
    assert kernels(launches) == ["norm_chain_1"]
    torch.testing.assert_close(found, normed(x, w, b))


def test_what_a_mode_brings_inside_is_looked_up() -> None:
    x, i = torch.randn(3, 40).double(), torch.randint(-9, 60, (40,))
    with chained() as launches:
        found = OPS.clamped(x, i)
    assert kernels(launches) == ["clamped_chain_1"]
    torch.testing.assert_close(found, x[:, i.clamp(0, 39)] - x.sum(1, keepdim=True))


def test_gradients() -> None:
    """Of a norm, of which sums are computed again, and of a softmax."""
    torch.manual_seed(0)
    x, w, b = (torch.randn(s).double().requires_grad_() for s in ((2, 3, 4, 6), (3,), (3,)))
    flowing = torch.randn(x.shape).double()
    with chained() as launches:
        mine = torch.autograd.grad(OPS.norm(x, w, b), (x, w, b), flowing)
    assert any("grad" in name and "chain" in name for name in kernels(launches))
    theirs = torch.autograd.grad(normed(x, w, b), (x, w, b), flowing)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)
    x = torch.randn(3, 40).double().requires_grad_()
    flowing = torch.randn(x.shape).double()
    with chained() as launches:
        (found,) = torch.autograd.grad(OPS.softmax(x), x, flowing)
    assert any("grad" in name and "chain" in name for name in kernels(launches))
    (wanted,) = torch.autograd.grad(torch.softmax(x, -1), x, flowing)
    torch.testing.assert_close(found, wanted)


def test_a_tensor_named_like_a_chain() -> None:
    x = torch.randn(3, 40).double()
    with chained():
        torch.testing.assert_close(OPS.named(x), x - x.sum(1, keepdim=True))


def test_a_tensor_that_is_added_to_by_another_kernel() -> None:
    x, k = torch.randn(64, 256).double(), torch.arange(64).flip(0)
    with emulated():
        found = OPS.added_to(x, k)
    torch.testing.assert_close(found, 2 * (x - x.sum(1, keepdim=True) + x.flip(0)))


def test_views_of_any_strides() -> None:
    x = torch.randn(6, 5, 40).double()
    for view in (x[:, 2], x[::2, 1, ::3], x[:, :, 3], x[0, :1].expand(4, 40), x[:3, 0].flip(1)):
        with chained():
            torch.testing.assert_close(OPS.softmax(view), torch.softmax(view, -1))


def test_numbers_that_are_not_finite() -> None:
    x = torch.randn(4, 50)
    x[1, 7], x[2, 3] = float("nan"), float("-inf")
    with chained():
        found = OPS.softmax(x)
    torch.testing.assert_close(found, torch.softmax(x, -1), equal_nan=True)


# ---------------------------------------------------------------------------- which are launched
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((64, 256), True),
        ((63, 256), False),
        ((64, 188), False),
        ((64, 192), True),
        ((64, 47), False),
        ((64, 4 * 512 * 8), True),
        ((64, 4 * 512 * 8 + 4), False),
        ((512, 4 * 512 * 8 + 4), True),
        ((64, 512 * 8 + 1), False),
        ((0, 256), False),
        ((64, 0), False),
    ],
)
def test_cells_and_points(shape: tuple[int, int], expected: bool) -> None:
    """Cells for half of a GPU, and points that a block is soon done with."""
    x = torch.zeros(shape, device="meta")
    kernels = OPS.FAMILY.operations["softmax"].cuda
    sizes = dict(zip(("N", "M"), shape, strict=True))
    tensors = dict.fromkeys(("x", "e", "y"), x)
    tensors |= {name: x.new_empty(shape[0]) for name in ("top", "s")}
    found = cuda_chain.chosen(kernels, kernels.extents(*sizes.values()), tensors)
    assert bool(found) == expected


def test_more_cells_than_blocks() -> None:
    kernels = OPS.FAMILY.operations["softmax"].cuda
    x, cells = torch.zeros((), device="meta"), 2**31
    tensors = {name: x.expand(cells, 256) for name in ("x", "e", "y")}
    tensors |= {name: x.expand(cells) for name in ("top", "s")}
    assert not cuda_chain.chosen(kernels, kernels.extents(cells, 256), tensors)
    assert cuda_chain.chosen(kernels, kernels.extents(cells - 1, 256), tensors)
