"""Several rows at a time, where a loop over terms jumps from plane to plane of a tensor.

A row of a plane is short, and the next plane begins elsewhere in memory: with one row at a time the
processor would have to start anew for every row. Some rows of a plane are one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import symbol
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import Axis, Define, For, If, Kernel, Lanes, Load, Node, Row, walk
from opgen.ir.map_loops import symbols_of
from opgen.ir.names import fresh_name

ROWS: Final = 16
"""The most rows of a group."""


def grouped(kernel: Kernel, known: Iterable[str]) -> Kernel:
    """A kernel that has a row, with groups of rows along its last axis where that helps."""
    if not kernel.axes or kernel.row is None:
        return kernel
    *axes, axis = kernel.axes
    outside = tuple(_outside(kernel.body))
    if any(not isinstance(node, For | If | Define) for node in outside):
        return kernel
    if axis.name in symbols_of(*(_alone(node) for node in outside)):
        return kernel  # every row has other terms
    jumps = [node.name for node in outside if isinstance(node, For)]
    if not any(
        _is_plane(load, axis, kernel.row.axis, jumps) for load in loads_of(walk(kernel.body))
    ):
        return kernel
    taken = integer_names(kernel, known=known)
    first, last = (fresh_name(f"{axis.name}_{end}", taken) for end in ("first", "last"))
    group = Row(axis, first, last, ROWS)
    return replace(kernel, axes=tuple(axes), group=group, body=_with_rows(kernel.body, group))


def _outside(body: Sequence[Node]) -> Iterator[Node]:
    """The nodes around the lanes."""
    for node in body:
        if isinstance(node, Lanes):
            continue
        yield node
        if isinstance(node, For | If):
            yield from _outside(node.body)


def _alone(node: Node) -> Node:
    """The node without what is inside."""
    return replace(node, body=()) if isinstance(node, For | If) else node


def _is_plane(load: Load, axis: Axis, row: Axis, jumps: Sequence[str]) -> bool:
    """Whether rows of a tensor lie side by side, and a loop goes from plane to plane."""
    if len(load.indices) < 3:
        return False
    *planes, across, along = load.indices
    return (
        across.step_in(axis.name) == 1
        and along.step_in(row.name) == 1
        and any(name in index.symbols for index in planes for name in jumps)
        and not any(name in across.symbols for name in jumps)
    )


def _with_rows(body: Sequence[Node], group: Row) -> tuple[Node, ...]:
    """Loops over the rows of a group around every run of passes over a row."""
    out: list[Node] = []
    run: list[Node] = []

    def flush() -> None:
        if run:
            bounds = (symbol(group.first),), (symbol(group.last),)
            out.append(For(group.axis.name, *bounds, tuple(run)))
            run.clear()

    for node in body:
        if isinstance(node, Lanes):
            run.append(node)
            continue
        flush()
        if isinstance(node, For | If):
            node = replace(node, body=_with_rows(node.body, group))
        out.append(node)
    flush()
    return tuple(out)
