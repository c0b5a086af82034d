"""Copies between tensors whose neighbours are not the same: by blocks, planned in each call.

A loop along one axis is the best copy where that axis is long. In an image in channels-last format
with few channels it is not, nor in a window of few pixels. What is best there depends on sizes and
strides, so it is found when the call is made: `move_made` in C takes axes that follow each other in
both tensors as one, and then moves blocks that are

    runs        consecutive in both tensors, each moved by whole vectors,
    shuffled    a vector of cells whose sources lie within a few vectors, picked out of these, or
    tiles       as many rows of the target as a vector has elements, columns of the source.

Blocks are taken in the order of the target. Short axes along which the source goes in smaller steps
are innermost where blocks are shuffled or go past the caches: what was loaded is still in the
innermost cache for all blocks of it. Images that are repeated, and stay in the caches, keep their
order, as lines are written best one after the other: one repeated in both directions in
channels-last format took 1.5 to 2 times as long row by row in turn, from 16 channels on. Runs that
are read once do not: heads of 32 numbers, `y[b,h,n,d] = x[b,n,h,d]`, took 1.4 to 5 times as long
head by head, each run of which is read from another kilobyte.

Those blocks often lie in several rows of the source. Processors foresee what an instruction loads
next along one row, and not where one goes from row to row in turn, which took up to 3.5 times as
long for images larger than the caches. So up to four rows have an instruction each, as do the
windows of two blocks.

A tile takes whole lines of both tensors, which a loop along rows or columns does not: rows of 1024
floats, whose columns share few places of a cache, took forty times as long to transpose. In which
order tiles are taken makes no difference.

Of runs of kilobytes, a loop along the row loads and stores one vector at a time, which takes a
sixth longer than four.

The C library gives results of half the last cache two places by turns, of which neither is in it.
To ask for the lines of a block while the one before is written would take 0.8 of the time then, and
to write past the caches 0.7. In memory that is used again at once, as that of `runtime.kept_memory`
is, on two threads, the one takes 1.2 times as long and the other twice: so neither is done.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Poly, poly, symbol_atom
from opgen.emit.polynomial import Text
from opgen.emit.templates import render
from opgen.ir.loops import Axis, Kernel, Move
from opgen.ir.primitives import Level

LONGEST_ROW: Final = 256
"""Loops along rows of more cells are not beaten; nor of more than a vector, where moves shuffle."""

MOST_AXES: Final = 12
"""The most axes of a move; kernels with more are loops alone."""


def has_moves(kernel: Kernel) -> bool:
    """Whether a call of the kernel may be a move."""
    if any(len(move.axes) > MOST_AXES for move in kernel.moves):
        return False
    return bool(kernel.moves) and not _is_long(kernel)


def _is_long(kernel: Kernel) -> bool:
    """Whether its row is known to be too long."""
    if kernel.row is None or not kernel.row.axis.extent.is_constant:
        return False
    return kernel.row.axis.extent.constant > LONGEST_ROW


def sizes(kernel: Kernel) -> Iterator[Poly]:
    """The formulas that `declaration`, `row` and conditions print."""
    for move in kernel.moves:
        indices = (*move.store.indices, *move.load.indices)
        for index in indices:
            yield index.substitute(dict.fromkeys((axis.name for axis in move.axes), poly(0)))
        for axis in move.axes:
            yield axis.extent
            for index in indices:
                yield step(index, axis)
        yield from (condition.value for condition in move.conditions)
    if kernel.row is not None:
        yield kernel.row.axis.extent


def step(index: Poly, axis: Axis) -> Poly:
    """What one step along an axis adds to an index that is linear in it."""
    linear = index.linear_in(symbol_atom(axis.name))
    assert linear is not None
    return linear[0]


def row(kernel: Kernel, move: Move, text: Callable[[Poly], Text]) -> str:
    """The number of the row that a move is compared with among the axes, and its extent.

    The number is -1 where the row counts otherwise, the extent 1 where there is none. A kernel that
    is a copy in some calls alone has steps that are not known, and no good loop along its row.
    """
    if kernel.row is None or move.conditions:
        return "-1, 1"
    axes = [axis.name for axis in move.axes]
    name = kernel.row.axis.name
    number = axes.index(name) if name in axes else -1
    return f"{number}, {text(kernel.row.axis.extent).text}"


def cells(axes: Sequence[Axis]) -> Poly:
    """How many cells are copied along the axes."""
    return functools.reduce(operator.mul, (axis.extent for axis in axes), poly(1))


def offset(
    tensor: str,
    steps: Sequence[Poly],
    text: Callable[[Poly], Text],
    stride: Callable[[str, int], str],
) -> str:
    """How far apart two cells of a tensor are whose indices are so far apart."""
    parts = []
    for axis, each in enumerate(steps):
        if each == 0:
            continue
        factor = "" if each == 1 else f"{text(each).at(Level.MULTIPLICATIVE)} * "
        parts.append(factor + stride(tensor, axis))
    return " + ".join(parts) or "0"


def declaration(
    name: str,
    move: Move,
    text: Callable[[Poly], Text],
    address: Callable[[str], str],
    stride: Callable[[str, int], str],
) -> str:
    """A `struct move` of that name; `address` and `stride` print those of tensors."""
    start = {axis.name: poly(0) for axis in move.axes}
    sides = ((move.store.tensor, move.store.indices), (move.load.tensor, move.load.indices))
    firsts = []
    for tensor, indices in sides:
        first = offset(tensor, [index.substitute(start) for index in indices], text, stride)
        kind = "(T *)" if tensor == move.store.tensor else "(const T *)"
        place = f"{kind}{address(tensor)}"
        firsts.append(place if first == "0" else f"{place} + {first}")
    axes = []
    for axis in move.axes:
        steps = (
            offset(tensor, [step(index, axis) for index in indices], text, stride)
            for tensor, indices in sides
        )
        axes.append(f"{{{', '.join((text(axis.extent).text, *steps))}}}")
    return f"struct move {name} = {{{', '.join(firsts)}, {len(axes)}, {{{', '.join(axes)}}}}};"


@dataclass(frozen=True, slots=True)
class _Limits:
    """What `moves.c.j2` is given."""

    most_axes: int
    longest_row: int


def helpers() -> str:
    """The C functions that moves call, printed behind the element types of a call."""
    return render("moves.c.j2", _Limits(MOST_AXES, LONGEST_ROW))
