"""Statements that share a kernel of a GPU: what one of them defines, asks or loads is its own.

In the emulator, beside loops of PyTorch.
"""

from __future__ import annotations

import pytest
import torch

import opgen
from opgen.testing.cuda_on_cpu.emulated import emulated

close = torch.testing.assert_close


@pytest.mark.parametrize(("rows", "columns"), [(8, 1), (4, 6)])
def test_what_is_defined_under_a_condition_that_always_holds(rows: int, columns: int) -> None:
    """Every second row has a term for itself, whose index is named as the loop of the others is."""
    op = opgen.compile(
        "op f(x: float[C,(H 2),W]) -> y[H,W]\n"
        "  y[h,w] = (sum(i in 3, c in C) x[c, h*2 + i - 1 ?wrap, w])\n"
        "      + (sum(c in C) x[c, h*2 ?0, w])\n"
    ).f
    x, along = torch.randn(2, 2 * rows, columns, requires_grad=True), torch.randn(rows, columns)
    wanted = torch.zeros(2 * rows, columns)
    for h in range(rows):
        wanted[2 * h] += along[h]
        for i in range(3):
            wanted[(2 * h + i - 1) % (2 * rows)] += along[h]
    with emulated():
        (found,) = torch.autograd.grad(op(x), x, along)
    close(found, wanted.expand(2, -1, -1))


def test_windows_around_an_end_in_both_directions() -> None:
    """The same, of two temporaries: an index of one was read beyond the tensor."""
    op = opgen.compile(
        "op f(x: float[N,H,W]; d = 1) -> y[N,H]\n"
        "  where d >= 1, H >= 1\n"
        "  y[n,h] = mean(i in 3, w in W) (x[n, h + i*d ?wrap, w]\n"
        "      / (1.5 + abs(x[n, h - i ?wrap, w]))) for h in H\n"
    ).f
    x, along = torch.randn(2, 16, 63, requires_grad=True), torch.randn(2, 16)
    terms = [x.roll(-3 * i, 1) / (1.5 + x.roll(i, 1).abs()) for i in range(3)]
    reference = torch.stack(terms).sum(0).sum(2) / (3 * 63)
    wanted = torch.autograd.grad(reference, x, along)
    with emulated():
        y = op(x, d=3)
        found = torch.autograd.grad(y, x, along)
    close(y, reference)
    close(found, wanted)


@pytest.mark.parametrize("width", [16, 15, 5])
def test_elements_that_are_read_under_other_tests_too(width: int) -> None:
    """A row is loaded where a condition holds, unless somebody reads it where it does not."""
    op = opgen.compile(
        "op f(x: float[N,H,W], a[N]) -> y[N,H,W]\n"
        "  y[n,h,w] += select(a[n] < 100, x[n,h,w], 0)\n"
        "  y[n,h,w] += 2*x[n,h,w] for n in N, h in H, w in W if n != h\n"
        "  y[n,h,w] += x[n,h,w//2]\n"
    ).f
    x, a = torch.randn(3, 4, width), torch.tensor([1.0, 200.0, 3.0])
    others = 1 - torch.eye(3, 4)[..., None]
    wanted = x * (a < 100)[:, None, None] + 2 * x * others + x[..., torch.arange(width) // 2]
    with emulated():
        close(op(x, a), wanted)


def test_accumulators_that_begin_under_a_condition() -> None:
    """The compiler of the emulator takes them for variables without a value."""
    op = opgen.compile(
        "op f(x: float[N,OH,OW], z[N,H,W]) -> y[N,H,W]\n"
        "  let OH = (H - 1)//2 + 1, OW = (W - 1)//2 + 1\n"
        "  y[n,h - 1 ?drop,w*2 ?drop] += x[n, h//2 ?clamp, w//2]\n"
        "      for h in H, i in 3, n in N, w in W\n"
        "  y[n,h,w] += x[n, h//2 ?clamp, w//2] for n in N, h in H, w in W\n"
    ).f
    x = torch.randn(1, 8, 7)
    places = torch.arange(16) // 2, torch.arange(14) // 2
    whole = x[:, places[0]][:, :, places[1]]
    wanted = whole.clone()
    wanted[:, :15, ::2] += 3 * whole[:, 1:, :7]
    with emulated():
        close(op(x, torch.empty(1, 16, 14)), wanted)


def test_a_sum_over_what_no_tensor_of_its_kernel_has() -> None:
    """Sizes of loops alone were no parameters of such a kernel."""
    op = opgen.compile(
        "op f(x[N,D,H,W], k[K,L], b[D]) -> y[N,D,H,W]\n"
        "  y[n,d,h,w] = sum(i,j) (x[n,d,h + i ?0,w + j ?0]*k[i,j] + b[d])\n"
    ).f
    x, k, b = torch.randn(2, 3, 5, 4), torch.randn(3, 2), torch.randn(3, requires_grad=True)
    along = torch.randn(2, 3, 5, 4)
    with emulated():
        (found,) = torch.autograd.grad(op(x, k, b), b, along)
    close(found, 6 * along.sum((0, 2, 3)))
