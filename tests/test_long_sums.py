"""Sums of more terms than a float counts, one by one: it stops at 2^24."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

import opgen
from opgen.emit.long_sums import is_beside_vectors, is_long_sum
from opgen.errors import Source
from opgen.ir.loops import Kernel, Program
from opgen.lang.read import read
from opgen.programs import along_rows, for_cpu, scheduled

COUNT = 2**24 + 2**20

TEXT = """
op points(x[N,3]) -> y[3]
  y[c] = sum(n) x[n,c]

op weighted(x[N,3], w[N]) -> y[3]
  y[c] = sum(n) x[n,c]*w[n]

op pixels(x[B,H,W,3], w[3]) -> y[B,H,W]
  y[b,h,v] = sum(c) x[b,h,v,c]*w[c]

op rows(x[N,M]) -> y[N]
  y[n] = sum(m) x[n,m]

op roots(x: float[N,M]) -> y[N]
  y[n] = sum(m) sqrt(x[n,m])

op columns(x[M,N]) -> y[N,1]
  y[n,0] = sum(m) x[m,n]

op some(x[M,N], t: int[M]) -> y[N,1]
  y[n,0] = sum(m if t[m] > 0) x[m,n]

op chosen(x[M,2], t: int[N]) -> y[N]
  y[n] = sum(m) x[m,t[n]]

op beyond(x[M,N]) -> y[N]
  y[n] = sum(m in M if m >= n) x[m,n]

op centred(x: float[N,M]) -> y[N,M]
  y[n,m] = x[n,m] - (mean(j) x[n,j])
"""


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


def ones(*shape: int) -> Tensor:
    """Ones that are one number in memory, or lie apart."""
    return torch.ones(1).expand(shape)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("points", (ones(COUNT, 3),)),
        ("weighted", (ones(COUNT, 3), ones(COUNT))),
        ("rows", (ones(2, COUNT),)),
        ("roots", (ones(1, COUNT),)),
        ("columns", (ones(COUNT, 2),)),
        ("some", (ones(COUNT, 1), ones(COUNT).long())),
        ("chosen", (ones(COUNT, 2), torch.ones(3, dtype=torch.int64))),
        ("beyond", (ones(COUNT, 1),)),
    ],
)
def test_every_term_counts(name: str, given: tuple[Tensor, ...], ops: ModuleType) -> None:
    y = getattr(ops, name)(*given)
    assert torch.equal(y, torch.full_like(y, COUNT))


def test_gradients_count_too(ops: ModuleType) -> None:
    w = torch.ones(3, requires_grad=True)
    y = ops.pixels(ones(1, 4096, COUNT // 4096, 3), w)
    (found,) = torch.autograd.grad(y, w, ones(*y.shape))
    assert torch.equal(found, torch.full((3,), float(COUNT)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "roots"])
def test_vectors_of_a_long_row(name: str, ops: ModuleType) -> None:
    """Each of 16 lanes would stop there."""
    count = 17 * 2**24
    assert float(getattr(ops, name)(torch.ones(1, count))) == count


@pytest.mark.parametrize("length", [1, 15, 2**18 - 1, 2**18, 2**18 + 1, 2**19 + 17])
@pytest.mark.parametrize("step", [1, 2])
def test_ends_of_stretches(length: int, step: int, ops: ModuleType) -> None:
    x = torch.rand(2, length * step, dtype=torch.float64)[:, ::step]
    torch.testing.assert_close(ops.rows(x), x.sum(1))
    torch.testing.assert_close(ops.roots(x), x.sqrt().sum(1))
    whole = (x * 9).long()
    assert torch.equal(ops.rows(whole), whole.sum(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype, ops: ModuleType) -> None:
    x = torch.rand(5000, 3).to(dtype)
    torch.testing.assert_close(ops.points(x), x.double().sum(0).to(dtype), rtol=2**-7, atol=0)
    y = ops.centred(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y, (x.double() - x.double().mean(1, keepdim=True)).to(dtype))


def kernel_of(spec: str) -> tuple[Kernel, Program]:
    (op,) = read(Source(spec, "<test>"))
    op = for_cpu(op)
    program = along_rows(op, scheduled(op))
    (kernel,) = program.kernels
    return kernel, program


def test_which_sums_are_long() -> None:
    points, _ = kernel_of("op f(x[N,3]) -> y[3]\n  y[c] = sum(n) x[n,c]\n")
    assert is_long_sum(points, "total")
    row, program = kernel_of("op f(x: float[N,M]) -> y[N]\n  y[n] = sum(m) exp(x[n,m])\n")
    assert is_beside_vectors(row, "total", program)
    assert not is_long_sum(row, "total")
    loaded, program = kernel_of("op f(x[N,M]) -> y[N]\n  y[n] = sum(m) x[n,m]\n")
    assert not is_beside_vectors(loaded, "total", program)  # what no vector has is a sum of its own
    assert not is_long_sum(loaded, "total")
    window, program = kernel_of("op f(x[N,M]) -> y[N]\n  y[n] = sum(m in 9) x[n,m ?0]\n")
    assert not is_beside_vectors(window, "total", program)
    assert not is_long_sum(window, "total")
    least, _ = kernel_of("op f(x[M,3]) -> y[3]\n  y[c] = min(m) x[m,c]\n")
    assert not is_long_sum(least, "total")
