"""Conditions on integers that tensors hold: bounds that mean none, and indices that others decide.

Numbers are those of loops, in which integers have no end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import opgen
from test_eager import without_compiler

LARGEST, SMALLEST = 2**63 - 1, -(2**63)
CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "m <= at[r]": lambda m, at: m <= at,
    "m < at[r]": lambda m, at: m < at,
    "m >= at[r]": lambda m, at: m >= at,
    "m > at[r]": lambda m, at: m > at,
    "m == at[r]": lambda m, at: m == at,
    "m - 5 <= at[r]": lambda m, at: m - 5 <= at,
    "m + 5 >= at[r]": lambda m, at: m + 5 >= at,
    "m + at[r] >= 0": lambda m, at: m + at >= 0,
    "m + at[r] <= 9": lambda m, at: m + at <= 9,
    "m >= 2*at[r]": lambda m, at: m >= 2 * at,
    "at[r] % 2 == 1 and m <= at[r]": lambda m, at: at % 2 == 1 and m <= at,
}
SPECS = "".join(
    f"op f{number}(x[M], at: int[R]) -> y[R]\n  y[r] = sum(m if {condition}) x[m]\n"
    f"op g{number}(x[R], at: int[R]; M: size) -> y[M]\n"
    f"  y[m] = max(r if {condition}) x[r] for m in M\n"
    for number, condition in enumerate(CONDITIONS)
)
BOUNDS = ((LARGEST, 3, SMALLEST), (LARGEST - 1, SMALLEST + 1, 0), (2**61 + 1, -(2**61) - 1, 7))


def check(bounds: tuple[int, ...]) -> None:
    module, at = opgen.compile(SPECS), torch.tensor(bounds)
    x = torch.randn(10, dtype=torch.float64, requires_grad=True)
    z = torch.randn(len(bounds), dtype=torch.float64)
    for number, holds in enumerate(CONDITIONS.values()):
        inside = torch.tensor([[holds(m, end) for m in range(10)] for end in bounds])
        y, wanted = getattr(module, f"f{number}")(x, at), inside.double() @ x
        torch.testing.assert_close(y, wanted)
        found, theirs = (torch.autograd.grad(each.sum(), x)[0] for each in (y, wanted))
        torch.testing.assert_close(found, theirs)
        largest = z[:, None].masked_fill(~inside, -torch.inf).amax(0)
        torch.testing.assert_close(getattr(module, f"g{number}")(z, at, M=10), largest)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_largest_integers_are_no_bounds(bounds: tuple[int, ...]) -> None:
    check(bounds)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.filterwarnings("ignore:.*plain PyTorch operations:RuntimeWarning")
def test_without_a_compiler(bounds: tuple[int, ...]) -> None:
    with without_compiler():
        check(bounds)


@pytest.mark.parametrize("number", [2**61 + 1, 6000000000000000007, -6000000000000000007])
def test_remainders_of_large_integers(number: int) -> None:
    """As of hashes: a quotient is part of such a bound, which is right for these as it is."""
    conditions = ("m >= at[r] % 5", "m == at[r] % 5", "m < at[r] % 7", "m <= at[r] - at[r]//2*2")
    spec = "".join(
        f"op f{at}(x[M], at: int[R]) -> y[R]\n  y[r] = sum(m if {each}) x[m]\n"
        f"op g{at}(x[M], at: int[R]) -> y[R,M]\n  y[r,m] = 2*x[m] if {each}\n"
        for at, each in enumerate(conditions)
    )
    module, x, at = opgen.compile(spec), torch.arange(10.0), torch.tensor([number])
    five, seven, two = number % 5, number % 7, number % 2
    first = torch.arange(10)
    for each, inside in enumerate((first >= five, first == five, first < seven, first <= two)):
        assert torch.equal(getattr(module, f"f{each}")(x, at), (x * inside).sum()[None])
        assert torch.equal(getattr(module, f"g{each}")(x, at), (2 * x * inside)[None])


# ---------------------------------------------------------------------------- solved indices
SOLVED = (
    "op f(w[F], u[M], i: int[M], p: int[B]; V: size) -> y[F,V]\n"
    "  y[f,v] = sum(m, b if i[m] >= 1 and v == p[b] + m) w[f]*u[m] for f in F, v in V\n"
)


def test_a_number_of_an_index_that_a_condition_decides() -> None:
    """`m = v - p[b]` is outside of `i` for many v: then there is no term, and nothing is asked."""
    torch.manual_seed(0)
    i, p = torch.randint(0, 3, (14,)), torch.tensor([0, 8, -3, 19, 2])
    w, u = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (3, 14))
    y = opgen.compile(SOLVED).f(w, u, i, p, V=20)
    placed: list[list[Tensor]] = [[] for _ in range(20)]
    for m in range(14):
        for end in p.tolist():
            if i[m] >= 1 and 0 <= m + end < 20:
                placed[m + end].append(u[m])
    wanted = w[:, None] * torch.stack([sum(each, u.new_zeros(())) for each in placed])
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    both = (torch.autograd.grad(each, (w, u), along) for each in (y, wanted))
    for found, theirs in zip(*both, strict=True):
        torch.testing.assert_close(found, theirs)


def test_conditions_on_what_is_read_come_before_those_that_need_an_index_of_it() -> None:
    spec = (
        "op f(x[M], j: int[M], t: int[N]) -> y[]\n"
        "  y[] = sum(m if j[m] < 3 and t[j[m]] == 1) x[m]\n"
    )
    function, x = opgen.compile(spec).f, torch.arange(1.0, 6.0)
    t = torch.tensor([1, 0, 1])
    assert function(x, torch.tensor([0, 1, 2, 3, 9]), t) == 1 + 3  # 3 and 9 are not asked of `t`
    with pytest.raises(IndexError, match=r"index -1 is outside of dimension 0 of 't'"):
        function(x, torch.tensor([0, 1, 2, -1, 9]), t)
