"""What differs along a row alone is computed once for the stretches that share it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.algebra.poly import Atom
from opgen.compiler import check_source
from opgen.emit.lane_tables import MOST, lane_tables
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Call
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule


def tables(spec: str) -> list[str]:
    """What is in tables, as text; of numbers the primitive."""
    (op,) = check_source(Source(spec, "<test>"))
    program = rows(schedule(op, gather(op)), facts_of(op))
    found = []
    for kernel in program.kernels:
        for each in lane_tables(kernel, program):
            found.append(str(each) if isinstance(each, Atom) else getattr(each, "primitive", ""))
    return found


OF_A_ROW = "op f(x: float[N,W]; V: size) -> y[N,V]\n  where W >= 1, V >= 1\n"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("y[n,v] = x[n, v*W//V]", ["(W*v)//V"]),
        # In the middle of a row nothing is clamped.
        ("y[n,v] = x[n, v*W//V ?clamp]", ["min(W - 1, max((W*v)//V, 0))", "(W*v)//V"]),
        ("y[n,v] = x[n, v*3//7 ?clamp]", []),  # seven cells have quotients of their own
        ("y[n,v] = x[n, v*3//70 % W]", ["(3*v)//(70*W)", "(3*v)//70"]),
        ("y[n,v] = x[n, v ?wrap]", []),  # a loop over turns
        (
            "y[n,v] = x[n, v ?wrap] * x[n, v + 1 ?wrap] * x[n, v + 2 ?wrap]",
            ["(v + 1)//W", "(v + 2)//W", "v//W"],
        ),
        ("y[n,v] = x[n, v//4 ?clamp]", []),  # a shift
        ("y[n,v] = x[n, n ?clamp] * (v*W//V)", ["(W*v)//V"]),
        ("y[n,v] = x[n, n*W//V ?clamp]", []),  # the same for all of a row
        ("y[n,v] = x[n, (v*W + n)//V ?clamp]", []),  # others in every row
        ("y[n,v] = x[n, v ?clamp] * ((v*W%V)/V)", ["div"]),
        ("y[n,v] = x[n, v ?clamp] * exp(v)", ["exp"]),
        ("y[n,v] = x[n, v ?clamp] * exp(v*n)", []),
        ("y[n,v] = x[n, v ?clamp] * (v + 1)", []),  # no division
        ("y[n,v] = x[n, v*W//V] * ((v*W%V)/V)", ["div", "(W*v)//V"]),
    ],
)
def test_what_is_in_tables(line: str, wanted: list[str]) -> None:
    assert tables(f"{OF_A_ROW}  {line}\n") == wanted


def test_there_are_not_too_many() -> None:
    terms = " + ".join(f"x[n, (v*{k})//V ?clamp]" for k in range(2, MOST + 5))
    assert len(tables(f"{OF_A_ROW}  y[n,v] = {terms}\n")) == MOST


def test_numbers_are_calls() -> None:
    (op,) = check_source(Source(f"{OF_A_ROW}  y[n,v] = x[n, v ?clamp] * exp(v)\n", "<test>"))
    program = rows(schedule(op, gather(op)), facts_of(op))
    (kernel,) = program.kernels
    (number,) = lane_tables(kernel, program)
    assert isinstance(number, Call)


nearest = opgen.load(SPECS / "upsample_nearest.op")
bilinear = opgen.load(SPECS / "upsample_bilinear.op")
pad = opgen.load(SPECS / "pad.op")
roll = opgen.load(SPECS / "roll.op")


def interpolated(x: Tensor, size: tuple[int, int], *, align: bool) -> Tensor:
    return F.interpolate(x, size, mode="bilinear", align_corners=align)


RESIZED: list[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = [
    (
        lambda x, size: nearest.upsample_nearest_size(x, output_size=size),
        lambda x, size: x[
            :,
            :,
            [i * x.shape[2] // size[0] for i in range(size[0])],
        ][..., [j * x.shape[3] // size[1] for j in range(size[1])]],
    ),
    (
        lambda x, size: bilinear.upsample_bilinear_size(x, output_size=size),
        lambda x, size: interpolated(x, size, align=False),
    ),
    (
        lambda x, size: bilinear.upsample_bilinear_size(x, output_size=size, align_corners=True),
        lambda x, size: interpolated(x, size, align=True),
    ),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", range(len(RESIZED)))
@pytest.mark.parametrize(
    ("pixels", "size"),
    [
        ((5, 7), (9, 13)),
        ((6, 40), (3, 2500)),  # a row of several stretches: each has a table of its own
        ((3, 1500), (4, 1024)),
        ((2, 1100), (5, 1025)),
        ((1, 1), (3, 5)),
        ((7, 5), (1, 1)),
    ],
)
def test_resizing(which: int, pixels: tuple[int, int], size: tuple[int, int]) -> None:
    own, other = RESIZED[which]
    torch.manual_seed(0)
    x = torch.randn(3, 2, *pixels, dtype=torch.float64, requires_grad=True)
    got, wanted = own(x, size), other(x, size)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    cotangent = torch.randn_like(wanted)
    (mine,) = torch.autograd.grad(got, x, cotangent)
    (theirs,) = torch.autograd.grad(wanted, x, cotangent)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("width", [7, 1023, 1024, 1025, 2100])
def test_rows_around(width: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 4, width)
    for shifts in ((1, 3), (-1, -(width - 1)), (2, 5 * width + 2)):
        assert torch.equal(roll.roll(x, shifts=shifts), torch.roll(x, shifts, (2, 3)))
    for mode in ("reflect", "circular"):
        own = getattr(pad, f"pad_{mode}")
        assert torch.equal(own(x, padding=(3, 2, 1, 2)), F.pad(x, (3, 2, 1, 2), mode=mode))
