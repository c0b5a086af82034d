"""Cells that are made of the same numbers share a body, without any loop.

A transposed convolution of 2x2 in steps of 2 makes four cells of every pixel. Row by row of cells
each pixel is loaded four times, and converted as often. In channels-last format a pass over the
channels of one pixel can write all four cells at once: with 2048 channels of 8 by 8 that takes 0.7
of the time where numbers have 16 bits.

Such a pass writes to four places at once. Where numbers have 32 bits nothing is converted, and one
place after the other is as good or better. Results that are larger than the caches are written past
them, where all that two vectors write are whole lines of memory: 2048 channels of 16 by 16 take 0.7
of the time of the kernel along rows under autocast, which goes line by line. It stays for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import Poly, exact_quotient, poly, symbol
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import Accumulate, Axis, Blocks, For, If, Kernel, Lanes, Load, Row, walk
from opgen.ir.names import fresh_name
from opgen.passes.jam import copy_at
from opgen.passes.merge import Body, at, merged

WIDTH: Final = 1024
"""How many cells of a row a parallel point has, if there are as many: the filters of so many
channels stay in the first cache, and what is written is a few pages at a time."""

MOST_ALONG: Final = 4
"""The most cells along an axis that share a body."""

MOST_CELLS: Final = 9
"""The most cells that share a body: each is written to a place of its own."""


def with_same_loads(
    kernel: Kernel, row: Axis, tensors: tuple[str, ...], known: Iterable[str]
) -> Kernel | None:
    """The kernel with a point for all cells that load the same; None where no cells do.

    `kernel` has a point for each cell, and neither loops nor conditions. Neighbours along the row
    are neighbours in all of `tensors`.
    """
    nodes = tuple(walk(kernel.body))
    if any(isinstance(node, For | If) for node in nodes):
        return None
    if not any(isinstance(node, Accumulate) for node in nodes):
        return None
    taken = integer_names(kernel, known=known)
    axes: list[Axis] = []
    bodies: tuple[Body, ...] = (kernel.body,)
    for axis in reversed(kernel.axes):
        if axis is row:
            continue
        block, cells = _cells(kernel.body, axis, taken)
        if len(cells) < 2 or len(bodies) * len(cells) > MOST_CELLS:
            axes.insert(0, axis)
            continue
        axes.insert(0, block)
        bodies = tuple(
            at(copy_at(body, axis.name, cell, f"_{number}"), {})
            for number, cell in enumerate(cells)
            for body in bodies
        )
    body = merged(bodies) if len(bodies) > 1 else None
    if body is None:
        return None
    first, last = (fresh_name(f"{row.name}_{end}", taken) for end in ("first", "last"))
    return replace(
        kernel,
        axes=tuple(axes),
        body=(Lanes((), (), body),),
        row=Row(row, first, last, WIDTH, least=WIDTH, within=_known(axes)),
        only=Blocks(row.extent, tensors, True, is_cached=True, is_paired=True),
    )


def _known(axes: list[Axis]) -> int:
    """How many of the innermost axes have a known extent: the filters of a stretch serve all."""
    count = 0
    while count < len(axes) and axes[-1 - count].extent.is_constant:
        count += 1
    return count


def _cells(body: Body, axis: Axis, taken: set[str]) -> tuple[Axis, list[Poly]]:
    """As many neighbours along an axis as load the same of whatever moves with them as a group.

    And the axis of the groups; with a single cell where neighbours do not load the same.
    """
    for size in range(MOST_ALONG, 1, -1):
        extent = exact_quotient(axis.extent, poly(size))
        if extent is None:
            continue
        block = Axis(fresh_name(f"{axis.name}_block", taken), extent)
        cells = [symbol(block.name) * size + one for one in range(size)]
        loaded = [_moving(at(copy_at(body, axis.name, cell, ""), {}), block) for cell in cells]
        if loaded[0] and all(each == loaded[0] for each in loaded):
            return block, cells
        taken.discard(block.name)
    return axis, [symbol(axis.name)]


def _moving(body: Body, block: Axis) -> set[Load]:
    """What terms load at places that depend on the group."""
    terms = [node for node in walk(body) if isinstance(node, Accumulate)]
    loads = loads_of(terms)
    return {load for load in loads if any(block.name in index.symbols for index in load.indices)}
