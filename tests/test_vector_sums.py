"""Sums of rows a vector at a time, also of what kernels before have left in temporaries."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.emit.vectors import vector_sum
from opgen.errors import Source
from opgen.ir.loops import For, Program, walk
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.programs import along_rows

HEAD = "op f(x: float[N,D], z[N]) -> y[N]\n  t[n,d] = exp(x[n,d])\n"


def loops(program: Program) -> set[str]:
    """How loops of a program in any order add vectors: as they lie in memory, or of computed
    terms."""
    sums = [
        vector_sum(node, program)
        for kernel in program.kernels
        for node in walk(kernel.body)
        if isinstance(node, For) and node.any_order
    ]
    return {"memory" if found.walked else "computed" for found in sums if found is not None}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y[n] = sum(d) t[n,d]", "memory"),
        ("y[n] = sum(d) (t[n,d] - z[n])**2", "memory"),
        ("y[n] = sum(d) (t[n,d] - z[n])*x[n,d] / sqrt(z[n]*z[n] + 1)", "memory"),
        ("y[n] = sum(d) (t[n,d] - z[n])**3", "computed"),
        ("y[n] = sum(d) sqrt(t[n,d])", "computed"),
        ("y[n] = sum(d in D/2) t[n,2*d]", ""),  # every second one of a temporary
        ("y[n] = sum(d) t[n,d]*d", "computed"),
        ("y[n] = sum(d) select(x[n,d] > 0, t[n,d], 0)", "computed"),
        ("y[n] = sum(d in 12) exp(t[n,d ?0])", ""),
    ],
)
def test_which_loops_add_vectors(line: str, expected: str) -> None:
    where = "  where D >= 2\n" if "D/2" in line else ""
    text = f"{HEAD}  {line}\n".replace("D/2", "D//2").replace("  t[", f"{where}  t[", 1)
    (op,) = check_source(Source(text, "<test>"))
    found = loops(along_rows(op, schedule(op, gather(op))))
    assert found == ({expected} if expected else set())


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 100])
def test_rows_of_any_length(length: int, dtype: torch.dtype) -> None:
    """Softmax and layer norm with their gradients, beside PyTorch in float64."""
    generator = torch.Generator().manual_seed(length)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    softmax = opgen.load(SPECS / "softmax.op").softmax
    layer_norm = functools.partial(opgen.load(SPECS / "norm.op").layer_norm, eps=1.0)
    x, along = numbers(5, length), numbers(5, length)
    weight, bias = numbers(length), numbers(length)
    tolerance = 40 * torch.finfo(dtype).eps

    def gradients(function: object, *inputs: Tensor) -> list[Tensor]:
        assert callable(function)
        leaves = [each.clone().requires_grad_() for each in inputs]
        y = function(*leaves)
        return [y, *torch.autograd.grad(y, leaves, along.to(y.dtype))]

    for ours, theirs, inputs in (
        (softmax, lambda x: F.softmax(x, -1), (x,)),
        (layer_norm, lambda x, w, b: F.layer_norm(x, (length,), w, b, 1.0), (x, weight, bias)),
    ):
        found = gradients(ours, *inputs)
        wanted = gradients(theirs, *(each.double() for each in inputs))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [3, 40])
def test_pairs_beside_a_temporary(length: int, dtype: torch.dtype) -> None:
    """Sums of even and of odd elements share a vector, but not where each is for both of them."""
    function = opgen.compile(
        "op f(x: float[N,(D 2)], z[N,D]) -> y[N,2]\n"
        "  t[n,d] = tanh(z[n,d])\n"
        "  y[n,j] = sum(d) x[n,(d j)]*t[n,d]\n"
    ).f
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(2, 2 * length, generator=generator).to(dtype)
    z = torch.randn(2, length, generator=generator).to(dtype)
    wanted = torch.einsum("ndj,nd->nj", x.double().view(2, length, 2), z.double().tanh())
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(function(x, z).double(), wanted, rtol=tolerance, atol=tolerance)


def test_filter_of_windows_side_by_side_before_a_function() -> None:
    """The gradient of the filter reads that of what the function is of, which is a temporary."""
    function = opgen.compile(
        "op f(x: float[N,C,(H 2),(W 2)], w[O,C,2,2], b[O]) -> y[N,O,H,W]\n"
        "  z[n,o,p,q] = sum(c,i,j) x[n,c,(p i),(q j)]*w[o,c,i,j]\n"
        "  y[n,o,p,q] = gelu(z[n,o,p,q] + b[o])\n"
    ).f
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 8, 80), (4, 3, 2, 2), (4,)
    inputs = [torch.randn(s, generator=generator).requires_grad_() for s in shapes]
    along = torch.randn(2, 4, 4, 40, generator=generator)
    found = torch.autograd.grad(function(*inputs), inputs, along)
    wide = [each.detach().double().requires_grad_() for each in inputs]
    x, w, b = wide
    wanted = torch.autograd.grad(F.gelu(F.conv2d(x, w, b, 2)), wide, along.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


COMPUTED = """op chosen(x[N,D], b[N]) -> y[N]
  y[n] = sum(d) select(x[n,d] + b[n] > 0, x[n,d], b[n])

op far(x[N,D], b[N]) -> y[N]
  y[n] = sum(d) abs(x[n,d] - b[n])*(d + 1)

op both(x[N,H,D], b[N]) -> y[N], z[N]
  y[n] = sum(h,d) max(x[n,h,d], b[n])
  z[n] = sum(h,d) min(x[n,h,d], b[n])

op waves(x: float[N,D], b[N]) -> y[N]
  y[n] = sum(d) tanh(x[n,d]*b[n])*exp(-x[n,d]**2)
"""
TERMS = (0, 1, 7, 16, 17, 255, 256, 257, 300, 512, 1000)


def far(x: Tensor, b: Tensor) -> Tensor:
    return ((x - b[:, None]).abs() * torch.arange(1, x.shape[1] + 1, dtype=x.dtype)).sum(1)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("length", TERMS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8], ids=str
)
def test_terms_that_are_computed(dtype: torch.dtype, length: int) -> None:
    """Of any number, in consecutive rows and others, beside PyTorch."""
    ops = opgen.compile(COMPUTED, "computed.op")
    generator = torch.Generator().manual_seed(length)
    x = torch.randint(-3, 4, (3, 2, length), generator=generator)
    b = torch.randint(-2, 3, (3,), generator=generator)
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps if dtype.is_floating_point else 0, "atol": 0.0}

    def compare(found: Tensor, wanted: Tensor) -> None:
        torch.testing.assert_close(found, wanted.to(dtype), **tolerance)

    spread = x.repeat_interleave(2, -1).to(dtype)[..., ::2]
    for given in (x.to(dtype), spread):
        row, exact, each = given[:, 0], x[:, 0].to(wide), b.to(wide)
        own = b.to(dtype)
        wanted = torch.where(exact + each[:, None] > 0, exact, each[:, None]).sum(1)
        compare(ops.chosen(row, own), wanted)
        if dtype.is_floating_point:
            compare(ops.far(row, own), far(exact, each))
            waves = torch.tanh(exact * each[:, None]) * torch.exp(-(exact**2))
            limit = 8 * torch.finfo(dtype).eps * (waves.abs().sum(1).max().item() + 1)
            torch.testing.assert_close(
                ops.waves(row, own).to(wide), waves.sum(1), rtol=limit, atol=limit
            )
        greater, less = ops.both(given, own)
        compare(greater, torch.maximum(x.to(wide), each[:, None, None]).sum((1, 2)))
        compare(less, torch.minimum(x.to(wide), each[:, None, None]).sum((1, 2)))


def test_gradients_of_a_rectified_bias() -> None:
    """Cells that are sums over images, of what a condition chooses."""
    op = opgen.compile(
        "op f(x: float[N,C,H,W], b[C]) -> y[N,C,H,W]\n  y[n,c,h,w] = max(x[n,c,h,w] + b[c], 0)\n"
    ).f
    x = torch.randn(3, 5, 9, 21, dtype=torch.float64, requires_grad=True)
    b = torch.randn(5, dtype=torch.float64, requires_grad=True)
    along = torch.randn(3, 5, 9, 21, dtype=torch.float64)
    wanted = torch.autograd.grad(F.relu(x + b[:, None, None]), (x, b), along)
    torch.testing.assert_close(torch.autograd.grad(op(x, b), (x, b), along), wanted)
