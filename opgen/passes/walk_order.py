"""The order of parallel points: those that read neighbouring rows run after one another.

The points of `y[n,c,i,h,w] = x[n,c, 2*h + i, w]` stand in the order of what they write. With `i`
outside of `h` every second row of x is read, then all others: each part of memory is loaded twice,
and never in one piece. With `i` inside of `h` the image is read from end to end, twice as fast.

The points of `y[n,c, 4*h + i, 4*w + j] = x[n, 16*c + 4*i + j, h, w]` each read a row of four
images, those of all `j`. With `i` inside of `h` rows of sixteen images take turns, of none of which
enough is read at a time for processors to foresee the next one. With `i` outside of `h` these are
four, which are foreseen, and what is written are still whole rows. For large images float32 then
takes 0.57 of the time and bfloat16 0.7, on one thread; for those in the caches it takes the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import Poly
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Axis, Define, Kernel, Lanes, Load, Store, walk

FEWEST_IN_TURN: Final = 8
"""So many rows that are read in turn are not foreseen."""


def in_walk_order(kernel: Kernel) -> Kernel:
    """The kernel with axes that fill the gaps between rows that are read behind those of the gaps.

    What is written in a certain order still is, unless too many rows are read in turn.
    """
    if kernel.row is None or kernel.group is not None:
        return kernel
    axes = list(kernel.axes)
    names = [axis.name for axis in axes]
    values: dict[str, Poly] = {}
    for node in walk(kernel.body):
        if isinstance(node, Define):
            values.setdefault(node.name, node.value.substitute(values))
    read = [load.indices for load in loads_of(walk(kernel.body))]
    written = [node.indices for node in walk(kernel.body) if isinstance(node, Store)]
    kept = set(_gaps(written, names, {}))
    for coarse, fine in _gaps(read, names, values):
        if (fine, coarse) not in kept and _place(axes, fine) < _place(axes, coarse):
            axes.insert(_place(axes, coarse), axes.pop(_place(axes, fine)))
    return replace(kernel, axes=_few_in_turn(kernel, axes))


@dataclass(frozen=True, slots=True)
class _Copied:
    """What a point of a copy reads and writes in a pass over its row: one row for each of both."""

    loads: frozenset[tuple[Poly, ...]]
    stores: tuple[tuple[Poly, ...], ...]


def _few_in_turn(kernel: Kernel, axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes of a copy of several rows at a point, with few of them in turn.

    Axes inside of that of the rows choose further rows, so as many are in turn as they have points:
    where that is too many, they go outside.
    """
    found = _copied(kernel)
    at = None if found is None else _axis_of_rows(kernel, found, axes)
    if found is None or at is None:
        return tuple(axes)
    read = _symbols(found.loads)
    inner = [axis for axis in axes[at + 1 :] if axis.name in read]
    others = [axis for axis in axes[at + 1 :] if axis.name not in read]
    columns = _symbols(store[-1:] for store in found.stores)
    if any(axis.name in columns or not axis.extent.is_constant for axis in inner):
        return tuple(axes)
    in_turn = len(found.loads) * math.prod(axis.extent.constant for axis in inner)
    if not inner or in_turn < FEWEST_IN_TURN:
        return tuple(axes)
    return (*axes[:at], *inner, axes[at], *others)


def _copied(kernel: Kernel) -> _Copied | None:
    """The rows of a kernel that copies several whole ones at a point; None where it does not."""
    node = kernel.body[0] if len(kernel.body) == 1 else None
    if not isinstance(node, Lanes) or node.lower or node.upper:
        return None
    stores = [each for each in node.body if isinstance(each, Store)]
    loads = frozenset(each.value.indices for each in stores if isinstance(each.value, Load))
    only_stores = len(stores) == len(node.body)
    each_reads_its_own = len(loads) == len(stores)
    if not only_stores or not each_reads_its_own or len(loads) < 2:
        return None
    return _Copied(loads, tuple(each.indices for each in stores))


def _axis_of_rows(kernel: Kernel, copied: _Copied, axes: Sequence[Axis]) -> int | None:
    """Where the axis is that chooses a row of every image; None where there is no such axis.

    What is read must be whole rows of the kernel.
    """
    assert kernel.row is not None
    rows = {load[-2] if len(load) > 1 else None for load in copied.loads}
    row = rows.pop() if len(rows) == 1 else None
    if row is None or any(load[-1].step_in(kernel.row.axis.name) != 1 for load in copied.loads):
        return None
    names = [axis.name for axis in axes]
    return names.index(row.symbol) if row.symbol in names else None


def _symbols(accesses: Iterable[Iterable[Poly]]) -> frozenset[str]:
    return frozenset[str]().union(*(index.symbols for each in accesses for index in each))


def _place(axes: Sequence[Axis], name: str) -> int:
    return next(at for at, axis in enumerate(axes) if axis.name == name)


def _gaps(
    accesses: Sequence[Sequence[Poly]], names: Sequence[str], values: Mapping[str, Poly]
) -> Iterator[tuple[str, str]]:
    """Pairs of axes in one index, of which the first goes in larger steps than the second."""
    for indices in accesses:
        for index in indices:
            steps = {name: index.substitute(values).step_in(name) or 0 for name in names}
            for coarse, fine in ((a, b) for a in names for b in names):
                if steps[coarse] > steps[fine] > 0:
                    yield coarse, fine
