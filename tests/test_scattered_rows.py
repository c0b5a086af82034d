"""Rows added to the rows of a tensor that another one names, in stretches with their own cells."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import stage_text
from opgen.errors import Source

TEXT = """op rows(x[N,D], k: i64[M]) -> y[M,D]
  y[m,d] = x[k[m],d]

op added(x[M,D], k: i64[M], z[N,D]) -> y[N,D]
  y[n,d] += z[n,d]
  y[k[m],d] += x[m,d] * x[m,d]

op planes(x[M,C,H,W], k: i64[M], z[N,C,H,W]) -> y[N,C,H,W]
  y[n,c,h,w_] += z[n,c,h,w_]
  y[k[m],c,h,w_] += x[m,c,h,w_]

op turned(x[M,D], k: i64[M], z[D,N]) -> y[D,N]
  y[d,n] += z[d,n]
  y[d,k[m]] += x[m,d]

op chosen(x: float[N,C,D], k: i64[N,C,M]) -> y[N,C,M]
  y[n,c,m] = x[n,c,k[n,c,m]]

op beside(x[N,D,C], k: i64[N,M,C], z[N,M,C]) -> y[N,D,C]
  y[n,d,c] += x[n,d,c]
  y[n,k[n,m,c],c] += z[n,m,c]

op skipped(x[M,D], k: i64[M], z[N,D]) -> y[N,D]
  y[n,d] += z[n,d]
  y[k[m] ?drop,d] += x[m,d]
"""
WIDTHS = (1, 3, 16, 127, 128, 129, 300)


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


def drawn(width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, the rows that they go to, of which some are the same, and what is there before."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randint(-2, 3, (40, width), generator=generator).to(dtype)
    k = torch.randint(0, 9, (40,), generator=generator)
    return x, k, torch.randint(-2, 3, (9, width), generator=generator).to(dtype)


def added(terms: Tensor, k: Tensor, total: Tensor) -> Tensor:
    """The same, row by row."""
    total = total.clone()
    for row, to in zip(terms, k.tolist(), strict=True):
        if 0 <= to < len(total):
            total[to] += row
    return total


def test_stretches_are_the_points() -> None:
    text = stage_text(Source(TEXT, "<test>"), "rows")
    assert text.count("for m in 0 .. M - 1\n        if 0 <= k[m] < N (else fault") >= 3
    assert "atomic y_total[k[m], d] += (x[m, d] * x[m, d])" in text
    # Cells that lie apart are added to one by one, those of one d by one thread.
    turned = text[text.index("program turned\n") :]
    assert "parallel d < D\n      for m in 0 .. M - 1\n        if 0 <= k[m] < N" in turned
    # Of several images each has cells of its own, though the image also says which.
    chosen = text[text.index("program chosen_grad_x\n") :]
    assert (
        "parallel n < N, c < C\n      for m in 0 .. M - 1\n        if 0 <= k[n, c, m] < D" in chosen
    )
    beside = text[text.index("program beside\n") :]
    assert "parallel n < N, c_first .. c_last of c < C\n      for m in 0 .. M - 1\n" in beside


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
def test_rows_that_are_added(dtype: torch.dtype, threads: int, ops: ModuleType) -> None:
    for width in WIDTHS:
        x, k, z = drawn(width, dtype)
        for own in (x, x.T.contiguous().T, torch.cat((x, x), 1)[:, ::2].contiguous()):
            for before in (z, z.T.contiguous().T):
                wanted = added((own * own).double(), k, before.double())
                assert torch.equal(ops.added(own, k, before), wanted.to(dtype))


def test_gradients_of_chosen_rows(threads: int, ops: ModuleType) -> None:
    for width in WIDTHS:
        x, k, z = drawn(width)
        z.requires_grad_()
        (found,) = torch.autograd.grad(ops.rows(z, k), z, x)
        assert torch.equal(found, added(x, k, torch.zeros_like(z.detach())))


def test_other_axes_stay_points(threads: int, ops: ModuleType) -> None:
    x = torch.randint(-2, 3, (20, 3, 2, 33)).float()
    z, k = torch.randint(-2, 3, (4, 3, 2, 33)).float(), torch.randint(0, 4, (20,))
    assert torch.equal(ops.planes(x, k, z), added(x, k, z))


def test_what_lies_apart_or_is_dropped(threads: int, ops: ModuleType) -> None:
    for width in WIDTHS:
        x, k, z = drawn(width)
        assert torch.equal(ops.turned(x, k, z.T.contiguous()).T, added(x, k, z))
        k[::5] = -1
        k[1::7] = 9
        assert torch.equal(ops.skipped(x, k, z), added(x, k, z))


def test_the_order_of_terms_is_that_of_the_points(ops: ModuleType) -> None:
    """So that the numbers are the same with any number of threads."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 300, generator=generator)
    k, z = torch.randint(0, 3, (500,), generator=generator), torch.zeros(3, 300)
    wanted = added(x * x, k, z)
    before = torch.get_num_threads()
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        found = ops.added(x, k, z)
        torch.set_num_threads(before)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
        assert torch.equal(found, ops.added(x, k, z))


def test_rows_that_are_not_there(threads: int, ops: ModuleType) -> None:
    for width in (1, 300):
        x, k, z = drawn(width)
        k[7] = 9
        with pytest.raises(IndexError, match="9"):
            ops.added(x, k, z)
        k[7] = -1
        with pytest.raises(IndexError, match="-1"):
            ops.added(x, k, z)


@pytest.mark.parametrize("sizes", [(3, 2, 5, 40), (1, 1, 1, 3), (2, 129, 4, 7), (2, 3, 4, 0)])
def test_cells_that_images_choose(sizes: tuple[int, ...], threads: int, ops: ModuleType) -> None:
    n, c, d, m = sizes
    generator = torch.Generator().manual_seed(d)
    x = torch.randint(-2, 3, (n, c, d), generator=generator).float().requires_grad_()
    k = torch.randint(0, d, (n, c, m), generator=generator)
    flowing = torch.randint(-2, 3, (n, c, m), generator=generator).float()
    (found,) = torch.autograd.grad(ops.chosen(x, k), x, flowing)
    wanted = torch.zeros(n, c, d)
    for image in range(n):
        for channel in range(c):
            for at in range(m):
                to = int(k[image, channel, at])
                wanted[image, channel, to] += flowing[image, channel, at]
    assert torch.equal(found, wanted)
    turned = [each.detach().mT.contiguous() for each in (x, k, flowing)]
    assert torch.equal(ops.beside(*turned), (x.detach() + wanted).mT)


def test_cells_outside_are_told(ops: ModuleType) -> None:
    """The gradient of one image has an index that none has: an error, and no memory is written."""
    x, k = torch.zeros(2, 3, 4), torch.zeros(2, 3, 5, dtype=torch.int64)
    k[1, 2, 3] = 4
    with pytest.raises(IndexError, match=r"k\[n,\s*c,\s*m\]|x\[n"):
        ops.chosen(x, k)
    with pytest.raises(IndexError):
        ops.beside(torch.zeros(2, 4, 3), k.mT.contiguous(), torch.zeros(2, 5, 3))
