"""Gradients of extremes of what is computed for pairs: of the pair that was chosen alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen
from opgen.ir.notation import Op
from opgen.ir.show import show
from opgen.passes.chosen_points import with_chosen_points
from opgen.passes.derive import derive
from opgen.passes.kept import keepable, with_kept
from written_anew import read

NEAREST = (
    "op f(a: float[N,3], b[M,3]) -> y[N]\n"
    "  y[n] = min(m) sqrt((sum(k) (a[n,k] - b[m,k])**2) + 0.5)\n"
)
BOTH = (
    "op f(a: float[B,N,K], b[B,M,K]) -> y[B]\n  where N >= 1, M >= 1\n"
    "  d[i,n] = min(m) (sum(k) (a[i,n,k] - b[i,m,k])**2)\n"
    "  e[i,m] = min(n) (sum(k) abs(a[i,n,k] - b[i,m,k]))\n"
    "  y[i] = (mean(n) d[i,n]) + (mean(m) e[i,m])\n"
)
PRODUCTS = "op f(a: float[N,K], b[K,M]) -> y[N,M]\n  y[n,m] = max(k) a[n,k]*b[k,m]\n"
WINDOWS = "op f(x: float[B,T], w[I]) -> y[B,T]\n  y[b,t] = max(i) (x[b,t+i ?0] * w[i])\n"
BELOW = "op f(a: float[N], b[M]) -> y[N]\n  y[n] = max(m if m <= n) (a[n] - b[m])*b[m]\n"


F32 = NEAREST.replace("float", "f32").replace("b[M,3]", "b: f32[M,3]").replace("y[N]", "y: f32[N]")


def least(found: Tensor, dim: int) -> Tensor:
    """The first of the smallest ones."""
    is_least = found == found.amin(dim, keepdim=True)
    return found.gather(dim, is_least.int().argmax(dim, keepdim=True)).squeeze(dim)


def nearest(a: Tensor, b: Tensor) -> Tensor:
    return least(((a[:, None] - b).square().sum(2) + 0.5).sqrt(), 1)


def both(a: Tensor, b: Tensor) -> Tensor:
    apart = a[:, :, None] - b[:, None]
    return least(apart.square().sum(3), 2).mean(1) + least(apart.abs().sum(3), 1).mean(1)


def products(a: Tensor, b: Tensor) -> Tensor:
    return -least(-(a[:, :, None] * b), 1)


def windows(x: Tensor, w: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(x, (0, len(w) - 1)).unfold(1, len(w), 1)
    inside = torch.arange(x.shape[1])[:, None] + torch.arange(len(w)) < x.shape[1]
    return -least(torch.where(inside, -(padded * w), torch.inf), 2)


def below(a: Tensor, b: Tensor) -> Tensor:
    found = (a[:, None] - b) * b
    is_below = torch.arange(len(b)) <= torch.arange(len(a))[:, None]
    return -least(torch.where(is_below, -found, torch.inf), 1)


CASES = {
    "nearest": (NEAREST, nearest, lambda n, m: [(n, 3), (m, 3)]),
    "both": (BOTH, both, lambda n, m: [(2, n, 3), (2, m, 3)]),
    "products": (PRODUCTS, products, lambda n, m: [(n, m), (m, 5)]),
    "windows": (WINDOWS, windows, lambda n, m: [(n, m + 3), (4,)]),
    "below": (BELOW, below, lambda n, m: [(n,), (m,)]),
}
Shapes = Callable[[int, int], list[tuple[int, ...]]]


@pytest.mark.parametrize(("spec", "reference", "shapes"), CASES.values(), ids=CASES)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("are_few", [False, True])
def test_numbers(
    spec: str, reference: Callable[..., Tensor], shapes: Shapes, are_few: bool
) -> None:
    """Of random numbers, and of few ones, of which many are the same: the first one counts."""
    function: Any = opgen.compile(spec).f
    torch.manual_seed(0)
    for sizes in ((1, 1), (3, 2), (40, 18), (7, 130)):
        given = [torch.rand(shape, dtype=torch.float64) for shape in shapes(*sizes)]
        if are_few:
            given = [(each * 3).round() for each in given]
        given = [each.requires_grad_() for each in given]
        y, wanted = function(*given), reference(*given)
        torch.testing.assert_close(y, wanted)
        flow = torch.rand_like(wanted)
        found = torch.autograd.grad(y, given, flow, create_graph=not are_few)
        right = torch.autograd.grad(wanted, given, flow, create_graph=not are_few)
        torch.testing.assert_close(found, right)
        for each in given:
            (alone,) = torch.autograd.grad(function(*given), each, flow)
            (one,) = torch.autograd.grad(reference(*given), each, flow)
            torch.testing.assert_close(alone, one)
        if are_few:
            continue
        weights = [torch.rand_like(each) for each in found]
        total = sum((each * weight).sum() for each, weight in zip(found, weights, strict=True))
        other = sum((each * weight).sum() for each, weight in zip(right, weights, strict=True))
        if isinstance(other, Tensor) and other.requires_grad:
            torch.testing.assert_close(
                torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True),
                torch.autograd.grad(other, given, allow_unused=True, materialize_grads=True),
            )


def test_threads_give_the_same_bits() -> None:
    function: Any = opgen.compile(BOTH).f
    torch.manual_seed(0)
    a, b = (torch.rand(5, 700, 3).requires_grad_() for _ in range(2))
    threads, found = torch.get_num_threads(), []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        found.append(torch.autograd.grad(function(a, b).sum(), (a, b)))
    torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_nothing_to_choose_from() -> None:
    function: Any = opgen.compile(NEAREST).f
    a, b = torch.rand(4, 3, requires_grad=True), torch.rand(0, 3, requires_grad=True)
    y = function(a, b)
    assert torch.equal(y, torch.full((4,), torch.inf))
    found = torch.autograd.grad(y.sum(), (a, b))
    assert torch.equal(found[0], torch.zeros(4, 3))
    assert found[1].shape == (0, 3)


def kept(spec: str, name: str) -> Op:
    """A gradient of an op that kept its positions."""
    op = read(spec)
    (derived,) = (each.op for each in derive([op], 1) if each.path == ("f", name))
    names = keepable(op)
    found, _ = with_kept(derived, op, (*names.totals, *names.positions))
    return found


def test_statements() -> None:
    text = show(with_chosen_points(kept(NEAREST, "b")))
    assert "grad_b[first_y[n] ?drop,k] +=" in text
    assert "sum(m)" not in text
    text = show(with_chosen_points(kept(NEAREST, "a")))
    assert "b[first_y[n] ?0,k]" in text


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (WINDOWS.replace("w[I]", "w[3]"), "x"),  # a window of few terms
        (F32, "b"),  # what is added up is rounded once
    ],
)
def test_what_stays_as_it_is(spec: str, name: str) -> None:
    op = kept(spec, name)
    assert with_chosen_points(op) is op


def test_numbers_for_some_rows_alone() -> None:
    """What flows back to rows that have no number is 0, and nothing is read for them."""
    spec = (
        "op f(a: float[N,3], b[M,3]) -> y[V]\n  where N >= 500, M >= 1\n  let V = N-500\n"
        "  t[n,m] = sum(k) (a[n,k] - b[m,k])**2\n  y[n] = min(m) t[n,m] for n in V\n"
    )
    function: Any = opgen.compile(spec).f
    torch.manual_seed(0)
    a, b = (torch.rand(count, 3, dtype=torch.float64).requires_grad_() for count in (900, 1000))
    found = torch.autograd.grad(function(a, b).sum(), (a, b))
    wanted = (a[:400, None] - b).square().sum(2).amin(1)
    torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), (a, b)))


GIVEN = "op f(idx: i64[N], v: float[N], z[M]) -> y[N]\n  where M >= 1\n  tmp t[N,M]\n"


@pytest.mark.parametrize(
    "statement",
    [
        "t[n,m] += select(idx[n] == m, v[n], 0) for n in N, m in M-1",
        "t[n,m] += select(idx[n] == m + 1, v[n], 0) for n in N, m in M",
        "t[n,m] += select(idx[n] == m, v[n], 0) for n in N, m in M if m < n",
    ],
)
def test_choices_of_some_cells_stay(statement: str) -> None:
    op = read(f"{GIVEN}  {statement}\n  y[n] = sum(m) t[n,m]*z[m]\n")
    assert with_chosen_points(op) is op


def test_choices_by_an_input() -> None:
    """Numbers that are no place choose nothing."""
    spec = (
        "op f(idx: i64[N], v: float[N], z[M]) -> y[N]\n"
        "  t[n,m] = select(idx[n] == m, v[n], 0) for m in M\n  y[n] = sum(m) t[n,m]*z[m]\n"
    )
    assert with_chosen_points(read(spec)) is not read(spec)
    function: Any = opgen.compile(spec).f
    numbers = torch.tensor([-1, 0, 3, 4, 2**40, -(2**40), 1])
    v, z = torch.rand(7), torch.rand(4)
    wanted = torch.stack([v[n] * z[i] if 0 <= i < 4 else v[n] * 0 for n, i in enumerate(numbers)])
    assert torch.equal(function(numbers, v, z), wanted)


SUMS = (
    "op f(x[M,D], i: int[M]; V: size) -> y[V,D]\n"
    "  y[v,d] = sum(m) select(i[m] == v, x[m,d], 0) for v in V\n"
)


def test_sums_of_what_an_input_chooses() -> None:
    """They scatter, and their gradients gather; numbers that are no place choose nothing."""
    op = read(SUMS)
    assert "y[i[m] ?drop,d] +=" in show(with_chosen_points(op))
    (derived,) = (each.op for each in derive([op], 1) if each.path == ("f", "x"))
    assert "sum" not in show(with_chosen_points(derived))
    function: Any = opgen.compile(SUMS).f
    i = torch.tensor([3, 0, 3, -1, 4, 2**40, 1])
    x = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    y = function(x, i, V=4)
    wanted = torch.stack([x[i == v].sum(0) for v in range(4)])
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found, theirs = (torch.autograd.grad(each, x, along)[0] for each in (y, wanted))
    torch.testing.assert_close(found, theirs)


@pytest.mark.parametrize(
    "statement",
    [
        "y[v,d] = max(m) select(i[m] == v, x[m,d], 0) for v in V",  # 0 counts there
        "y[v,d] = sum(m) select(i[m] == v, x[m,d], 1) for v in V",
        "y[v,d] = sum(m) select(i[m] == v + 1, x[m,d], 0) for v in V",
        "y[v,d] = sum(m) select(i[m] <= v, x[m,d], 0) for v in V",
    ],
)
def test_other_sums_stay(statement: str) -> None:
    op = read(f"{SUMS.splitlines()[0]}\n  {statement}\n")
    assert with_chosen_points(op) is op


def test_absent_terms_of_a_maximum_stay_absent() -> None:
    spec = (
        "op f(idx: i64[N], v: float[N], x[M]) -> y[N,M]\n"
        "  t[n,m] = select(idx[n] == m, v[n], 0) for m in M\n  y[n,m] max= t[n,m]*x[m+1 ?0]\n"
    )
    found = opgen.compile(spec).f(torch.tensor([0, 2]), torch.ones(2), torch.ones(3))
    assert torch.equal(found[:, -1], torch.full((2,), -torch.inf))


def test_without_positions() -> None:
    """Where they are not given, gradients look for them, and are as they were."""
    for each in derive([read(NEAREST)], 1):
        assert with_chosen_points(each.op) is each.op
