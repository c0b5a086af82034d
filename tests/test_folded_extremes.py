"""Gradients of `max=` and `min=` into cells that a boundary mode brings what is outside to.

Beside them are loops written by hand: the gradient of a cell goes to the first of the values that
reached it and are its extreme.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen

CELLS = 4


def reflected(index: int) -> int:
    distance = abs(index)
    return min(distance, 2 * CELLS - 2 - distance)


def mirrored(index: int) -> int:
    distance = max(index, -index - 1)
    return min(distance, 2 * CELLS - 1 - distance)


FOLDED: dict[str, Callable[[int], int]] = {
    "clamp": lambda index: min(max(index, 0), CELLS - 1),
    "wrap": lambda index: index % CELLS,
    "reflect": reflected,
    "symmetric": mirrored,
}

INDICES: dict[str, Callable[[int], int]] = {
    "i": lambda i: i,
    "2*i - 2": lambda i: 2 * i - 2,
    "at[i]": lambda i: (-3, 6, 1, -2)[i],
}


def winners(values: Tensor, cells: list[int], sign: float) -> list[int | None]:
    """For each cell the place of the first extreme value that reaches it."""
    found: list[int | None] = [None] * CELLS
    for place, cell in enumerate(cells):
        best = found[cell]
        if best is None or sign * values[place] > sign * values[best]:
            found[cell] = place
    return found


def op_of(index: str, mode: str, reducer: str, more: str = "") -> Callable[..., Tensor]:
    op: Callable[..., Tensor] = opgen.compile(
        f"op extreme(x[N], at: i64[N]; cells: size) -> y[cells]\n"
        f"  where cells >= 4\n  where N <= 4\n"
        f"  y[{index} ?{mode}] {reducer}= x[i]*x[i] for i in N\n{more}"
    ).extreme
    return op


@pytest.fixture(autouse=True)
def general_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivatives are looked at here, not kernels."""
    monkeypatch.setattr("opgen.runtime.special.MOST", 0)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("mode", FOLDED)
@pytest.mark.sampled(6)
def test_the_gradient_goes_to_what_reached_the_cell(index: str, mode: str) -> None:
    reducer = "max" if mode in ("clamp", "reflect") else "min"
    op = op_of(index, mode, reducer)
    at = torch.tensor([INDICES["at[i]"](i) for i in range(4)])
    cells = [FOLDED[mode](INDICES[index](i)) for i in range(4)]
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randint(-3, 4, (4,)).double().requires_grad_()  # with equal values among them
        found = winners(x.detach() ** 2, cells, 1 if reducer == "max" else -1)
        y = op(x, at, cells=CELLS)
        squares = x.detach() ** 2
        wanted = [0.0 if place is None else float(squares[place]) for place in found]
        reached = [place is not None for place in found]
        assert y[reached].tolist() == [v for v, is_so in zip(wanted, reached, strict=True) if is_so]
        cotangent = torch.randn(CELLS, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
        expected = torch.zeros(4, dtype=torch.float64)
        for cell, place in enumerate(found):
            if place is not None:
                expected[place] += cotangent[cell].detach() * 2 * x[place].detach()
        torch.testing.assert_close(first.detach(), expected)
        direction = torch.randn(4, dtype=torch.float64)
        (second,) = torch.autograd.grad(first, cotangent, direction)
        back = [0.0 if p is None else float(2 * x[p].detach() * direction[p]) for p in found]
        torch.testing.assert_close(second, torch.tensor(back, dtype=torch.float64))


def test_two_statements_that_share_cells() -> None:
    op: Any = op_of("i", "clamp", "max", "  y[i - 2 ?wrap] max= 3*x[i] for i in N\n")
    x = torch.tensor([0.5, 4.0, -2.0, 1.0], dtype=torch.float64, requires_grad=True)
    y = op(x, torch.zeros(4, dtype=torch.int64), cells=CELLS)
    # Squares 0.25, 16, 4, 1 reach cells 0 to 3; threefold values 1.5, 12, -6, 3 cells 2, 3, 0, 1.
    assert y.tolist() == [0.25, 16.0, 4.0, 12.0]
    (gradient,) = torch.autograd.grad(y, x, torch.tensor([1.0, 10.0, 100.0, 1000.0]).double())
    assert gradient.tolist() == [1.0 * 2 * 0.5, 10.0 * 2 * 4 + 1000.0 * 3, 100.0 * 2 * -2, 0.0]
