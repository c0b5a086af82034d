"""How points of CUDA kernels are shared out, what they divide by, and when 32 bits are enough."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import opgen
from opgen.emit.cuda import cuda_source
from opgen.errors import Source
from opgen.lang.read import read
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.runtime import cuda_grid
from opgen.testing.cuda_on_cpu.emulated import emulated

SIZES = st.integers(0, 2**20)


# ---------------------------------------------------------------------------- grids
def points(extents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The points that the threads of a grid go through, as `EACH` and `quotient` do."""
    grid = cuda_grid.grid(extents)
    if grid is None:
        return
    *outer, y, x = (1, 1, *extents)
    total = int(np.prod(outer))

    def steps(at: int, extent: int) -> Iterator[int]:
        blocks, threads = grid.blocks[at], grid.threads[at]
        for first in range(blocks * threads):
            yield from range(first, extent, blocks * threads)

    for point in itertools.product(steps(2, total), steps(1, y), steps(0, x)):
        rest, *inner = point
        digits = []
        for extent, magic in reversed(list(zip(outer[3:], grid.magic, strict=True))):
            above = quotient(rest, magic)
            digits.append(rest - above * extent)
            rest = above
        yield (rest, *reversed(digits), *inner)[-len(extents) :]


def quotient(a: int, magic: int) -> int:
    """What the prelude computes in 32 bits."""
    high = (2 * a % 2**32) * (magic % 2**32) >> 32
    return high >> (magic >> 32)


@pytest.mark.parametrize("most", [(2**31 - 1, 65535, 65535), (2, 1, 3)])
@pytest.mark.parametrize(
    "extents",
    [
        (),
        (1,),
        (7,),
        (300,),
        (3, 5),
        (70, 2, 3),
        (2, 3, 300),
        (5, 4, 3, 2, 7),
        (4, 0, 3),
        (9, 1, 1),
    ],
)
def test_every_point_belongs_to_one_thread(
    extents: tuple[int, ...], most: cuda_grid.Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_grid, "MOST_BLOCKS", most)
    found = sorted(points(extents)) if extents else [()]
    assert found == list(itertools.product(*map(range, extents)))


@given(extents=st.lists(st.integers(1, 5000), max_size=5))
def test_grids_are_within_the_limits_of_a_device(extents: list[int]) -> None:
    grid = cuda_grid.grid(extents)
    assert grid is not None
    assert 1 <= int(np.prod(grid.threads)) <= cuda_grid.THREADS
    assert grid.threads[2] <= 64
    assert all(1 <= n <= most for n, most in zip(grid.blocks, cuda_grid.MOST_BLOCKS, strict=True))


@settings(max_examples=300)
@given(a=st.integers(0, 2**31 - 1), d=st.integers(1, 2**31 - 1), near=st.integers(-2, 2))
@example(a=2**31 - 1, d=1, near=0)
@example(a=2**31 - 1, d=2**31 - 1, near=0)
@example(a=2**31 - 1, d=2**30 + 1, near=0)
def test_division_by_multiplication(a: int, d: int, near: int) -> None:
    magic = cuda_grid.magic(d)
    for value in (a, min(max(a - a % d + near, 0), 2**31 - 1)):
        assert quotient(value, magic) == value // d
    assert magic % 2**32 == 2 ** (31 + (magic >> 32)) // d + 1  # the multiplier fits 32 bits


# ---------------------------------------------------------------------------- widths
def test_what_is_not_narrow() -> None:
    x = torch.empty(1).expand(2**20, 2**12)
    assert cuda_grid.is_narrow(2**29, [(2**29,)], [x, torch.empty(0)])
    assert not cuda_grid.is_narrow(2**30, [(1,)], [])
    assert not cuda_grid.is_narrow(1, [(2**30, 1)], [])
    far = torch.empty(1, dtype=torch.int8).as_strided((2,), (0,))
    assert cuda_grid.is_narrow(1, [(1,)], [far])
    far = torch.empty((2, 2**30), device="meta")
    assert not cuda_grid.is_narrow(1, [(1,)], [far])


def test_large_attributes_are_computed_in_64_bits() -> None:
    ops = opgen.compile("op f(x[N]; step=1) -> y[N]\n  y[n] = x[n*step % 7 ?0]\n")
    x = torch.arange(1.0, 9.0)
    for step in (3, 2**31 + 3, 2**40 + 5):
        wanted = [(n * step % 7 < 8) * x[n * step % 7].item() for n in range(8)]
        with emulated(threads=4, most_blocks=(3, 2, 2)):
            assert ops.f(x, step=step).tolist() == wanted


def test_indices_read_from_memory_are_64_bits_wide() -> None:
    op = read(Source("op f(x[N], id: int[K]) -> y[K]\n  y[k] = x[id[k]*id[k] ?0]"))[-1]
    ops = opgen.compile("op f(x[N], id: int[K]) -> y[K]\n  y[k] = x[id[k]*id[k] ?0]")
    x = torch.arange(1.0, 9.0)
    with emulated(threads=4, most_blocks=(3, 2, 2)):
        assert ops.f(x, torch.tensor([2, 2**16, 2**31, -1])).tolist() == [5.0, 0.0, 0.0, 2.0]
    assert "index_t k = " not in cuda_source(schedule(op, gather(op)))


def test_a_point_is_decoded_where_there_are_more_axes_than_dimensions() -> None:
    op = read(Source("op f(x[A,B,C,D]) -> y[D,A,C,B,1]\n  y[d,a,c,b,0] = x[a,b,c,d]"))[-1]
    text = cuda_source(schedule(op, gather(op)))
    assert "EACH(z, outer, D * A) {" in text
    assert "const index_t d = quotient(outer, A, a_magic);" in text
    assert "const index_t a = outer - d * A;" in text
    assert "EACH(y, c, C) {" in text
    assert "EACH(x, b, B) {" in text


def test_many_totals_leave_no_room_for_rows() -> None:
    """49 sums of 64 bits, beside which two rows of their window would not stay in registers."""
    assert cuda_grid.most_rows(1, totals=49) == cuda_grid.MOST_ROWS
    assert cuda_grid.most_rows(2, totals=2 * 25) == cuda_grid.MOST_ROWS // 4
    assert cuda_grid.most_rows(2, totals=2 * 49) == 1
