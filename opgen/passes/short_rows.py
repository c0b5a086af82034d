"""Short rows: a parallel point computes all rows of a small plane, not a single one.

A point begins with what it finds out about itself, which for a row of one vector takes longer than
the row. Where the axes behind the last open one are short, a point loops over all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from opgen.algebra.poly import poly
from opgen.ir.loops import For, Kernel

LONGEST: Final = 32
"""The longest row that gains by it."""

MOST: Final = 64
"""The most rows of a point."""


def with_planes(kernel: Kernel) -> Kernel:
    """The kernel with loops over its last axes inside, if they are as short as its rows."""
    row = kernel.row
    if row is None or kernel.group is not None or kernel.prologue:
        return kernel
    extent = row.axis.extent
    if not extent.is_constant or extent.constant > min(LONGEST, row.width):
        return kernel
    axes, body, count = list(kernel.axes), kernel.body, 1
    while len(axes) > 1 and axes[-1].extent.is_constant:
        count *= axes[-1].extent.constant
        if count > MOST:
            break
        axis = axes.pop()
        body = (For(axis.name, (poly(0),), (axis.extent - 1,), body),)
    return replace(kernel, axes=tuple(axes), body=body)
