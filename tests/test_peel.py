"""Rows that are mirrored at their ends, or go around: consecutive in the middle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Lanes, Load, Store, walk
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise


def passes(line: str, values: dict[str, int]) -> list[str]:
    """The ends of every pass over a row, and what its cells read along it."""
    attributes = "p: int, V: size" if " p " in line else "V: size"
    limits = "W >= 4, V <= 2*W" if "reflect" in line else "W >= 1"
    spec = f"op f(x[N,W]; {attributes}) -> y[N,V]\n  where {limits}\n  {line}\n"
    (op,) = check_source(Source(spec, "<test>"))
    op = specialise(op, values)
    program = rows(schedule(op, gather(op)), facts_of(op))
    found = []
    for kernel in program.kernels:
        for lanes in (node for node in walk(kernel.body) if isinstance(node, Lanes)):
            (store,) = (node for node in walk(lanes.body) if isinstance(node, Store))
            assert isinstance(store.value, Load)
            ends = (",".join(map(str, each)) or "-" for each in (lanes.lower, lanes.upper))
            found.append(f"{' .. '.join(ends)}: {store.value.indices[-1]}")
    return found


def test_a_row_that_goes_around() -> None:
    assert passes("y[n,v] = x[n, v - 3 ?wrap]", {"W": 56, "V": 62}) == [
        "- .. 2: v + 53 - 56*((v + 53)//56)",
        "3 .. 58: v - 3",
        "59,3 .. -: v + 53 - 56*((v + 53)//56)",
    ]


@pytest.mark.parametrize(
    ("line", "values", "middle"),
    [
        ("y[n,v] = x[n, v + 5 ?wrap]", {"W": 40, "V": 40}, "- .. 34: v + 5"),
        ("y[n,v] = x[n, v - 39 ?wrap]", {"W": 40, "V": 40}, "- .. 38: v + 1"),
        ("y[n,v] = x[n, v - 3 ?reflect]", {"W": 30, "V": 36}, "3 .. 32: v - 3"),
        ("y[n,v] = x[n, v - p ?wrap]", {}, "p .. W + p - 1: v - p"),
    ],
)
def test_the_middle_is_consecutive(line: str, values: dict[str, int], middle: str) -> None:
    assert middle in passes(line, values)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("y[n,v] = x[n, v ?wrap]", {"W": 20, "V": 62}),  # around it many times
        ("y[n,v] = x[n, v//40 % W]", {"W": 40, "V": 62}),  # no remainder of the row
        ("y[n,v] = x[n, 2*v ?wrap]", {"W": 40, "V": 40}),  # every second cell
    ],
)
def test_other_rows_stay_whole(line: str, values: dict[str, int]) -> None:
    (whole,) = passes(line, values)
    assert whole.startswith("- .. -: ")


pad = opgen.load(SPECS / "pad.op")
roll = opgen.load(SPECS / "roll.op")


def taken(x: Tensor, columns: list[int]) -> Tensor:
    """The columns of an image, one by one."""
    return torch.stack([x[..., at] for at in columns], -1)


def mirrored(at: int, size: int) -> int:
    at = abs(at)
    return at if at < size else 2 * (size - 1) - at


@pytest.mark.sampled(24)
@pytest.mark.parametrize("width", [1, 2, 7, 55, 56, 64, 65, 300, 1023, 1025, 2100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(33, 3, width).to(dtype)
    for shift in (0, 1, 3, -1, -5, width, width - 1, 2 * width + 3, -7 * width - 2):
        wanted = taken(x, [(w - shift) % width for w in range(width)])
        assert torch.equal(roll.roll(x, shifts=(0, shift)), wanted)
    for left, right in ((0, 0), (3, 2), (0, 5), (width, 1), (3 * width, 2)):
        columns = [(w - left) % width for w in range(width + left + right)]
        got = pad.pad_circular(x, padding=(left, right, 0, 0))
        assert torch.equal(got, taken(x, columns))
        if max(left, right) < width:
            columns = [mirrored(w - left, width) for w in range(width + left + right)]
            got = pad.pad_reflect(x, padding=(left, right, 0, 0))
            assert torch.equal(got, taken(x, columns))


@pytest.mark.parametrize("width", [5, 40, 700])
def test_gradients(width: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(33, 3, width, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(33, 3, width + 5, dtype=torch.float64)
    for op, place in (
        ("circular", lambda at: at % width),
        ("reflect", lambda at: mirrored(at, width)),
    ):
        got = getattr(pad, f"pad_{op}")(x, padding=(3, 2, 0, 0))
        (mine,) = torch.autograd.grad(got, x, cotangent)
        wanted = torch.zeros_like(x)
        for at in range(width + 5):
            wanted[..., place(at - 3)] += cotangent[..., at]
        torch.testing.assert_close(mine, wanted)
