"""Statements that share a kernel: what one of them defines, asks or loads is its own.

In the emulator of a GPU, and on the CPU, beside loops of PyTorch.
"""

from __future__ import annotations

import contextlib

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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["2*w ?drop", "w + 1 ?drop", "w//2", "w - 1 ?clamp"])
def test_an_extreme_over_all_leading_dims(target: str) -> None:
    """A target without them is joined by all: its gradient finds the extreme among these."""
    op = opgen.compile(f"op f(x: float[...,W]) -> y[W]\n  y[{target}] max= x[...,w] for w in W\n").f
    x = torch.randn(3, 2, 16, requires_grad=True)
    places = {
        "2*w ?drop": lambda w: 2 * w,
        "w + 1 ?drop": lambda w: w + 1,
        "w//2": lambda w: w // 2,
        "w - 1 ?clamp": lambda w: max(w - 1, 0),
    }
    columns = x.flatten(0, 1).unbind(1)
    joined: dict[int, list[torch.Tensor]] = {}
    for w, column in enumerate(columns):
        joined.setdefault(places[target](w), []).append(column)
    wanted = {at: torch.cat(terms).max() for at, terms in joined.items() if at < 16}
    (expected,) = torch.autograd.grad(torch.stack(list(wanted.values())).sum(), x)
    for on_gpu in (False, True):
        with emulated() if on_gpu else contextlib.nullcontext():
            y = op(x)
            (found,) = torch.autograd.grad(y[list(wanted)].sum(), x)
        close(y[list(wanted)], torch.stack(list(wanted.values())))
        close(found, expected)


def test_two_conditions_that_define_the_same_index() -> None:
    """On the CPU too: the gradient is a sum of two, and each has an index of its own."""
    op = opgen.compile(
        "op f(t: float[N,W]; ks = 2) -> y[N,W]\n  where ks >= 1\n"
        "  y[n, x0 + 1 ?drop] min= select(x0 == l, t[n, x0*2 - 1 + l ?0],\n"
        "      0.5*t[n, x0*2 - 1 + l ?0]) for n in N, x0 in W, l in ks\n"
    ).f
    t, along = torch.randn(3, 32), torch.randn(3, 32)
    wanted = torch.zeros(3, 32)
    for n in range(3):
        for x0 in range(31):
            places = [(2 * x0 - 1 + at, 1.0 if x0 == at else 0.5) for at in range(2)]
            found = [(factor * t[n, at], at, factor) for at, factor in places if 0 <= at < 32]
            if found:
                _, at, factor = min(found, key=lambda each: each[0])
                wanted[n, at] += factor * along[n, x0 + 1]
    for on_gpu in (False, True):
        leaf = t.clone().requires_grad_()
        with emulated() if on_gpu else contextlib.nullcontext():
            (gradient,) = torch.autograd.grad(op(leaf, ks=2), leaf, along)
        close(gradient, wanted)


def test_sums_that_are_begun_and_read_under_one_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers do not see that the conditions are one, and said that sums have no value."""
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "64")
    op = opgen.compile(
        "op f(x: float[N,5], a: float[L,N,5,D], b: float[L]) -> y[N]\n"
        "  where N >= 6, D >= 1\n"
        "  y[i] = max(k in 5, l in L)\n"
        "      (x[i,k] - a[l, i - 3 ?symmetric, k, min(i, l) - 3 ?clamp]) / (x[i,k]**2 + 1.5)\n"
        "      * ((x[i, i//4 + 2 ?0] + b[l]) * (b[l] * a[l, i, k - 3 ?wrap, l + 1 ?(0.5)]))\n"
        "      for i in N\n"
    ).f
    given = [torch.randn(*shape, requires_grad=True) for shape in ((6, 5), (7, 6, 5, 1), (7,))]
    x, a, b = given
    mirrored = a[:, [2, 1, 0, 0, 1, 2], :, 0]  # of L, N, 5
    behind = x[torch.arange(6), torch.arange(6) // 4 + 2]
    factors = (behind[:, None] + b[:, None, None]) * (0.5 * b[:, None, None])
    wanted = ((x - mirrored) / (x**2 + 1.5) * factors).amax((0, 2))
    along = torch.randn(6)
    with emulated():
        y = op(*given)
        found = torch.autograd.grad(y, given, along)
    close(y, wanted)
    close(found, torch.autograd.grad(wanted, given, along))
