"""Cells that start at zero: which kernels are a pass over memory, and which memory has gaps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.emit.c import c_source
from opgen.emit.zeros import makes_zeros
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.programs import along_rows, for_cpu
from opgen.runtime import build, prelude


def passes_over_memory(op: Op) -> list[str]:
    """The tensors that kernels fill with zeros."""
    op = for_cpu(op)
    program = along_rows(op, schedule(op, gather(op)))
    found = [kernel.written for kernel in program.kernels if makes_zeros(kernel, program)]
    assert c_source(program).count("if (!zeros_made(") == len(found)
    return found


@pytest.mark.parametrize("name", ["upsample_bilinear_size", "upsample_bilinear"])
def test_only_cells_that_points_look_for_start_so(name: str) -> None:
    ops = check_source(read_source(SPECS / "upsample_bilinear.op"))
    (op,) = (each for each in ops if each.name == name)
    found = passes_over_memory(adjoint(op, "x").op)
    assert found == (["grad_x_total"] if name.endswith("size") else [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("op f(x[N,D], k: i64[N]) -> y[M,D]\n  y[k[n],d] += x[n,d]\n", 1),
        ("op f(x[N], k: i64[N]) -> y[M,1]\n  y[k[n],0] += x[n]\n", 1),
        # From the least number, or from what is there already.
        ("op f(x[N,D], k: i64[N]) -> y[M,D]\n  y[k[n],d] max= x[n,d]\n", 0),
        ("op f(x[N,M], k: i64[N]) -> y[M]\n  y[m] += x[0 ?0,m]\n  y[k[n]] += x[n,0 ?0]\n", 0),
    ],
)
def test_which_kernels(text: str, expected: int) -> None:
    (op,) = check_source(Source(text.replace(") ->", "; M: size) ->"), "<test>"))
    assert len(passes_over_memory(op)) == expected


FILL = """
int64_t filled(void *place, int64_t size, int rank, const int64_t *sizes, const int64_t *steps)
{
    return zeros_made(place, size, rank, sizes, steps);
}
"""


@pytest.mark.parametrize(
    ("sizes", "steps", "is_made"),
    [
        ((4, 5), (5, 1), True),
        ((4, 5), (1, 4), True),
        ((2, 3, 4), (12, 1, 3), True),
        ((1, 7, 1), (100, 1, -3), True),
        ((300, 500), (500, 1), True),  # several pieces
        ((), (), True),
        ((4, 5), (6, 1), False),
        ((4, 5), (10, 2), False),
        ((3,), (-1,), False),
        ((0, 5), (5, 1), True),
    ],
)
@pytest.mark.parametrize("kind", ["float32", "int16"])
def test_memory(sizes: Sequence[int], steps: Sequence[int], is_made: bool, kind: str) -> None:
    """All cells are zero, and nothing else is touched."""
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + FILL)
    library.filled.restype = ctypes.c_int64
    memory = np.ones(200_000, kind)
    start = 1000
    numbers = ctypes.c_int64 * max(len(sizes), 1)
    result = library.filled(
        ctypes.c_void_p(memory[start:].ctypes.data),
        ctypes.c_int64(memory.itemsize),
        len(sizes),
        numbers(*sizes),
        numbers(*steps),
    )
    assert bool(result) == is_made
    expected = np.ones_like(memory)
    if is_made:
        expected[start : start + int(np.prod(sizes))] = 0
    assert np.array_equal(memory, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_resizing(dtype: torch.dtype, layout: torch.memory_format) -> None:
    """Of a picture in either format, again and again in memory that holds something."""
    ours = opgen.load(SPECS / "upsample_bilinear.op").upsample_bilinear_size
    generator = torch.Generator().manual_seed(0)
    for size in ((5, 9), (40, 30)):
        x = torch.randn(2, 3, 20, 24, generator=generator).to(dtype)
        x = x.contiguous(memory_format=layout).requires_grad_()
        along = torch.randn(2, 3, *size, generator=generator).to(dtype)
        (found,) = torch.autograd.grad(ours(x, output_size=size), x, along)
        wide = x.detach().double().requires_grad_()
        y = torch.nn.functional.interpolate(wide, size, mode="bilinear")
        (wanted,) = torch.autograd.grad(y, wide, along.double())
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
