"""Passes over the rows of a group ask for rows before they are read, in the order of the passes."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen
from asked_ahead import FETCH_SOON, asked_for, noting
from opgen.compiler import check_source
from opgen.emit.c import c_source
from opgen.errors import Source
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.programs import along_rows, for_cpu
from opgen.runtime import build, prelude

OPS = """
op moved(x[B,C,H,W]; step=1) -> y[B,H,V]
  let V = W + (C - 1)*step
  y[b,h,v] = sum(c) x[b,c,h, v - c*step ?0]

op single(x[B,C,W]; step=1) -> y[B,V]
  let V = W + (C - 1)*step
  y[b,v] = sum(c) x[b,c, v - c*step ?0]
"""
GROUP, PLANES = 16, 2
"""How many rows take turns, and of how many channels one pass has a row."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ctypes.CDLL]:
    """The kernels made from now on, which note what they ask for."""
    return noting(monkeypatch, FETCH_SOON)


def op_of(op: str, test: str) -> Any:
    """An op under a name of its own, with kernels that no other test has made."""
    name = f"{op}_{test}"
    return getattr(opgen.compile(OPS.replace(f"op {op}(", f"op {name}("), f"{name}.op"), name)


def shifted_sum(x: Tensor, step: int) -> Tensor:
    batch, channels, height, width = x.shape
    y = torch.zeros(batch, height, width + (channels - 1) * step, dtype=torch.float64)
    for c in range(channels):
        y[:, :, c * step : c * step + width] += x[:, c].double()
    return y


# 6 KB are 6 rows of 1 KB; rows between two powers of two count as the longer ones.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("width", "rows_ahead"), [(256, 6), (200, 6), (100, 12), (64, GROUP), (600, 1), (2000, 1)]
)
def test_rows_are_asked_for_in_the_order_in_which_they_are_read(
    width: int, rows_ahead: int, made: list[ctypes.CDLL]
) -> None:
    x = torch.randint(-9, 9, (2, 6, 40, width)).float()
    y = op_of("moved", f"order_{width}")(x, step=3)
    assert torch.equal(y.double(), shifted_sum(x, 3))

    row_bytes = 4 * width
    places = asked_for(made)
    # A pass asks line by line, and begins up to two shifts of three cells before its row.
    begun = [place for last, place in itertools.pairwise([0, *places]) if place != last + 64]
    rows = [(place - x.data_ptr() + 2 * 3 * 4) // row_bytes for place in begun]
    batch, channels, height, _ = x.shape
    wanted = []
    stretches = -(-y.shape[-1] // 1024)
    points = itertools.product(range(batch), range(0, height, GROUP), range(stretches))
    for b, first, _ in points:
        count = min(GROUP, height - first)
        for pair, row in itertools.product(range(channels // PLANES), range(count)):
            behind = row + min(rows_ahead, count)
            pair, behind = (pair + 1, behind - count) if behind >= count else (pair, behind)
            for c in range(PLANES):
                wanted.append((b * channels + PLANES * pair + c) * height + first + behind)
    assert rows == wanted
    # Nearly every line of a row is asked for: the lanes of pairs are those that both channels have.
    lines = {(place - x.data_ptr()) // 64 for place in places}
    for row in set(wanted[: 3 * GROUP]):
        inside = range(row * row_bytes // 64 + 1, (row + 1) * row_bytes // 64 - 1)
        assert len(lines & {*inside}) >= len(inside) - 1


def test_a_row_alone_asks_for_the_next_round(made: list[ctypes.CDLL]) -> None:
    x = torch.randint(-9, 9, (3, 5, 300)).float()
    y = op_of("single", "alone")(x, step=2)
    assert torch.equal(y[:, None].double(), shifted_sum(x[:, :, None], 2))
    assert made
    assert asked_for(made) == []


def test_how_many_rows() -> None:
    source = "int64_t ahead(int64_t bytes, int64_t rows) { return rows_ahead(bytes, rows); }"
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + source)
    library.ahead.restype = ctypes.c_int64

    def ahead(*given: int) -> int:
        return int(library.ahead(*map(ctypes.c_int64, given)))

    assert [ahead(bytes_, 16) for bytes_ in (1024, 1025, 2048, 4096, 6144)] == [6, 3, 3, 1, 1]
    assert [ahead(bytes_, 16) for bytes_ in (0, 1, 4, 256, 1 << 40)] == [16, 16, 16, 16, 1]
    assert ahead(1024, 4) == 4
    assert ahead(1024, 1) == 1


DEFINED = """op f(x: float[D,D], z[D,D]) -> y[D], v[D,D]
  where D >= 1
  u[j,i] += tanh(x[i - 1 ?clamp, 0]) for i in D, j in D
  s[i] = prod(j in D, k in D) z[i + j - 1 ?0, j + k - 1 ?wrap] for i in D
  t[j,i] += tanh(x[i,k] * z[i,j]) for k in D, i in D, j in D
  v[j,i] += s[i - j ?wrap] + t[j, j + k - 1 ?clamp] for i in D, k in D, j in D if k <= i
  y[i] += tanh(x[i + k - 1 ?0, k] - z[i,i] - u[k - i + 1 ?0, k]) for k in D, i in D
"""


def test_rows_that_are_defined_for_each_lane_are_not_asked_for() -> None:
    """Where a wrapped index is solved for, a quotient is known within the loop over lanes only."""
    (op,) = check_source(Source(DEFINED, "<test>"))
    derived = for_cpu(adjoint(op, "z").op)
    text = c_source(along_rows(derived, schedule(derived, gather(derived))))
    assert "quotient" in text
    assert not any("quotient" in line for line in text.splitlines() if "FETCH" in line)
    ours = opgen.compile(DEFINED).f
    generator = torch.Generator().manual_seed(0)
    x, z = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64).requires_grad_()
    along = [torch.ones(4, dtype=torch.float64), torch.ones(4, 4, dtype=torch.float64)]
    (found,) = torch.autograd.grad(ours(x, z), z, along)

    def moved(at: int) -> Tensor:
        step = torch.zeros(4, 4, dtype=torch.float64)
        step.view(-1)[at] = 1e-6
        pairs = zip(ours(x, z + step), ours(x, z - step), along, strict=True)
        return torch.stack([((a - b) * each).sum() for a, b, each in pairs]).sum() / 2e-6

    with torch.no_grad():
        wanted = torch.stack([moved(at) for at in range(16)]).view(4, 4)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
