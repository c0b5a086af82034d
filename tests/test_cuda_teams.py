"""Sums that a team of threads adds up: which they are, that they are right, and always the same."""

from __future__ import annotations

import pytest
import torch

import opgen
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import For, walk
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.runtime import cuda_grid, prelude
from opgen.testing.cuda_on_cpu import KernelError
from opgen.testing.cuda_on_cpu.emulated import emulated

SPEC = """
op triangle(x[N,N]) -> y[N]
  y[n] = sum(m in N if m <= n) x[n,m]

op triangles(x[N,C,W], g[N,C,W]) -> y[C]
  y[c] = sum(n, w in W if w <= c) x[n,c,w] * g[n,c,w]

op place(x[N,M]) -> y: int[N]
  y[n] = argmax(m) x[n,m]
"""
OPS = opgen.compile(SPEC)


def shared(name: str) -> list[str]:
    """The loops of an op's kernel that a team shares, outermost first."""
    (op,) = (op for op in read(Source(SPEC)) if op.name == name)
    (kernel,) = cuda_rows(schedule(op, gather(op)), facts_of(op)).kernels
    return [each.name for each in walk(kernel.body) if isinstance(each, For) and each.any_order]


def test_which_loops_are_shared() -> None:
    assert shared("triangle") == ["m"]
    assert shared("triangles") == ["n", "w"]
    assert shared("place") == []  # no sum


@pytest.mark.parametrize("threads", [1, 4, 64, 256])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 5), (9, 1, 70), (0, 3, 4), (2, 0, 3)])
def test_every_term_is_added_once(shape: tuple[int, int, int], threads: int) -> None:
    """Integers are exact in any order."""
    w = shape[2]
    x = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(0))
    g = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(1))
    square = torch.randint(-9, 9, (w, w), generator=torch.Generator().manual_seed(2))
    with emulated(threads=threads, most_blocks=(2, 1, 1)):
        assert torch.equal(OPS.triangles(x, g), (x * g).sum(0).tril().sum(1))
        assert torch.equal(OPS.triangle(square), square.tril().sum(1))


def test_the_same_bits_whatever_runs_first() -> None:
    x = torch.randn(90, 90, generator=torch.Generator().manual_seed(0))
    with emulated(order="forward"):
        first = OPS.triangle(x)
    with emulated(order="reverse"):
        second = OPS.triangle(x)
    assert torch.equal(first, second)


def test_a_missing_barrier_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the emulator sees what a team does to shared memory."""

    broken = prelude.CUDA.replace(
        "own[MEMBER] = value;\n    __syncthreads();", "own[MEMBER] = value;"
    )
    assert broken != prelude.CUDA
    monkeypatch.setattr(prelude, "CUDA", broken)
    with emulated(), pytest.raises(KernelError, match="race"):
        OPS.triangle(torch.ones(100, 100))


@pytest.mark.parametrize(
    ("extents", "outer", "inner", "threads"),
    [
        ((), 1000, 1000, (32, 8, 1)),
        ((5,), 1, 100000, (256, 1, 1)),
        ((5,), 1, 100, (32, 1, 5)),
        ((1000,), 1, 3, (2, 1, 64)),
        ((64, 9), 2, 56, (32, 2, 4)),
    ],
)
def test_shapes_of_teams(
    extents: tuple[int, ...], outer: int, inner: int, threads: cuda_grid.Size
) -> None:
    grid = cuda_grid.team_grid(extents, outer, inner)
    assert grid is not None
    assert grid.threads == threads
    assert cuda_grid.team_grid((0, 3), outer, inner) is None
