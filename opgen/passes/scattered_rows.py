"""Kernels that add to cells that share no axis with others.

Before: `grad_x[k[m],d] += grad_y[m,d]` has a point for every m and d. Points share cells, so that
the CPU runs them one after the other. After: cells with different d are never the same ones, so
stretches of d are points of their own, each of which goes through all m, and through its d in
lanes. The terms of a cell come in the order that they had.

The stretches are short, so that there are some for every thread; each reads all names of rows.

Where such cells do not lie side by side, as those of different images, each is a point: with
`grad_x[n, i*H//OH] += grad_y[n,i]` a point goes through all i. One index that is an axis is enough,
whatever the others are: `grad_x[n,k[n,m]] += grad_y[n,m]` has a point for each n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import AtomicAdd, Axis, For, Kernel, Node, walk

WIDTH: Final = 128
"""The most cells of a stretch: the rows of its terms are read that much at a time."""


def scattered_rows(kernel: Kernel) -> tuple[Kernel, str | None] | None:
    """The kernel with loops for the axes whose points share cells, and the axis for the lanes.

    None where no axis chooses cells of its own; no axis for lanes where these lie apart.
    """
    targets = list(_targets(kernel))
    names = [axis.name for axis in kernel.axes]
    own = {name for name in names if all(_chooses(indices, name) for indices in targets)}
    row = next((axis for axis in reversed(kernel.axes) if _is_row(kernel, axis, own)), None)
    others = [axis for axis in kernel.axes if axis.name not in own]
    if not own or kernel.prologue:
        return None
    body: tuple[Node, ...] = kernel.body
    for axis in reversed(others):
        body = (For(axis.name, (ZERO,), (axis.extent - 1,), body),)
    axes = tuple(axis for axis in kernel.axes if axis.name in own)
    kernel = replace(kernel, axes=axes, body=body, shares_cells=False)
    return kernel, None if row is None else row.name


def _targets(kernel: Kernel) -> Iterator[tuple[Poly, ...]]:
    for node in walk(kernel.body):
        if isinstance(node, AtomicAdd):
            yield node.indices


def _chooses(indices: tuple[Poly, ...], name: str) -> bool:
    """Whether an axis alone is an index: then no two of its values have a cell in common."""
    return symbol(name) in indices


def _is_row(kernel: Kernel, axis: Axis, own: set[str]) -> bool:
    """Whether cells along an axis, and what is added to them, lie side by side."""
    if axis.name not in own or any(each[-1] != symbol(axis.name) for each in _targets(kernel)):
        return False
    loads = [load for load in loads_of(walk(kernel.body)) if load.indices]
    moving = [each for each in loads if any(axis.name in i.symbols for i in each.indices)]
    return all(
        each.indices[-1].step_in(axis.name) == 1
        and not any(axis.name in index.symbols for index in each.indices[:-1])
        for each in moving
    )
