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


def loops(program: Program) -> list[bool]:
    """For every loop of a program in any order, whether it adds vectors."""
    return [
        vector_sum(node, program) is not None
        for kernel in program.kernels
        for node in walk(kernel.body)
        if isinstance(node, For) and node.any_order
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y[n] = sum(d) t[n,d]", True),
        ("y[n] = sum(d) (t[n,d] - z[n])**2", True),
        ("y[n] = sum(d) (t[n,d] - z[n])*x[n,d] / sqrt(z[n]*z[n] + 1)", True),
        ("y[n] = sum(d) (t[n,d] - z[n])**3", False),
        ("y[n] = sum(d) sqrt(t[n,d])", False),
        ("y[n] = sum(d in D/2) t[n,2*d]", False),  # every second one of a temporary
        ("y[n] = sum(d) t[n,d]*d", False),
    ],
)
def test_which_loops_add_vectors(line: str, expected: bool) -> None:
    where = "  where D >= 2\n" if "D/2" in line else ""
    text = f"{HEAD}  {line}\n".replace("D/2", "D//2").replace("  t[", f"{where}  t[", 1)
    (op,) = check_source(Source(text, "<test>"))
    found = loops(along_rows(op, schedule(op, gather(op))))
    assert any(found) == expected


@pytest.mark.sampled(2)
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
