"""Several cells at a time that share what they load.

In `y[o,j] = sum(c) x[c,j] * weight[o,c]` all `o` need the same row of x. With four of them in one
body a row is loaded once for four products instead of once for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import Accumulate, Axis, Define, For, If, Kernel, Load, Node, walk
from opgen.ir.map_loops import symbols_of
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.passes.jam import Body, copy_at
from opgen.passes.unroll import short_range

SIZE: Final = 4
"""How many cells along one axis share a body."""

MOST_TAPS: Final = 9
"""How many cells of a window share a body."""

_SIZES: Final = (4, 3, 2)
"""Sizes for an axis of known extent: none of its cells is left over."""


@dataclass(frozen=True, slots=True)
class Tile:
    """An axis whose values are taken several at a time."""

    axis: Axis
    size: int

    @property
    def is_exact(self) -> bool:
        """Whether the extent is known to be a multiple of the size."""
        extent = self.axis.extent
        return extent.is_constant and extent.constant % self.size == 0


def tiles_along(
    kernel: Kernel, bodies: Sequence[Body], walked: str, all_shared: bool
) -> list[Tile]:
    """Axes whose values share loads of a sum along `walked`: an axis, or a loop of the bodies.

    Every term must load something that moves along `walked` but not along the axis, and something
    that moves along the axis. With `all_shared`, nothing may move along both.
    """
    fixed = _fixed(bodies)
    found = []
    for axis in kernel.axes:
        size = _size(axis.extent)
        if size is None or axis.name in fixed:
            continue
        if shares_loads(axis, bodies, walked, all_shared):
            found.append(Tile(axis, size))
    return found


def sharing_more(tiles: Sequence[Tile], bodies: Sequence[Body], walked: str) -> list[Tile]:
    """The last of the tiles, and those whose cells share what cells of the last one do not.

    In `t[h,w] = sum(c) x[h,w,c] * weight[c]` rows share what neighbours in a row do.
    """
    terms = [term for body in bodies for term in _terms(body)]
    moving = [symbols for term in terms for symbols in term if walked in symbols]
    return [
        tile
        for tile in tiles
        if tile is tiles[-1]
        or any((tile.axis.name in each) != (tiles[-1].axis.name in each) for each in moving)
    ]


def window_tiles(kernel: Kernel, bodies: Sequence[Body], walked: str) -> list[Tile]:
    """Short axes on which the ranges of long loops depend: the taps of a filter's gradient."""
    loops = [node for body in bodies for node in walk(body) if isinstance(node, For)]
    moving = _fixed([(replace(node, body=()),) for node in loops if short_range(node) is None])
    found: list[Tile] = []
    count = 1
    for axis in reversed(kernel.axes):
        if axis.name not in moving or not axis.extent.is_constant:
            continue
        size = axis.extent.constant
        if size < 2 or count * size > MOST_TAPS:
            continue
        if shares_loads(axis, bodies, walked):
            found.append(Tile(axis, size))
            count *= size
    return found


def _fixed(bodies: Sequence[Body]) -> frozenset[str]:
    """What bounds and conditions depend on."""
    around = [node for body in bodies for node in walk(body) if isinstance(node, For | If)]
    return symbols_of(*(replace(node, body=()) for node in around))


def shares_loads(axis: Axis, bodies: Sequence[Body], walked: str, all_shared: bool = False) -> bool:
    """Whether all cells along an axis load, in every term, something that moves along `walked`.

    Every term must load something that differs between them as well. With `all_shared`, nothing may
    move along both.
    """
    terms = [term for body in bodies for term in _terms(body)]
    if axis.name == walked or not terms:
        return False
    return all(_shares(term, axis.name, walked, all_shared) for term in terms)


def _size(extent: Poly) -> int | None:
    if not extent.is_constant:
        return SIZE
    return next((size for size in _SIZES if extent.constant % size == 0), None)


def _shares(term: Sequence[frozenset[str]], axis: str, walked: str, all_shared: bool) -> bool:
    moving = [symbols for symbols in term if walked in symbols]
    shared = [symbols for symbols in moving if axis not in symbols]
    if all_shared and len(shared) < len(moving):
        return False
    return bool(shared) and any(axis in symbols for symbols in term)


def _terms(body: Body) -> Iterator[list[frozenset[str]]]:
    """For every term of a sum in a loop: what the addresses of its loads depend on."""
    values: dict[str, Poly] = {}
    for node in walk(body):
        if isinstance(node, Define):
            values.setdefault(node.name, node.value.substitute(values))
    for loop in body:
        for node in walk((loop,)) if isinstance(loop, For | If) else ():
            if not isinstance(node, Accumulate):
                continue
            if node.reducer is not Reducer.ADD:
                yield []
                continue
            yield [_symbols(load, values) for load in loads_of((node,))]


def _symbols(load: Load, values: Mapping[str, Poly]) -> frozenset[str]:
    return frozenset[str]().union(*(each.substitute(values).symbols for each in load.indices))


# ---------------------------------------------------------------------------- tiles
def tiled(
    kernel: Kernel,
    tiles: Sequence[Tile],
    bodies: Sequence[Body],
    join: Callable[[Sequence[Body]], Body],
    known: Iterable[str],
) -> Kernel:
    """The kernel with the axes of the tiles counted in steps of their sizes.

    `join` makes one body of several that do not depend on each other. Where the cells of a tile are
    not all there, the others are taken one by one. `known` are the names of sizes and attributes.
    """
    if not tiles:
        return replace(kernel, body=join(bodies))
    taken = integer_names(kernel, *itertools.chain(*bodies), known=known)
    axes = {axis.name: axis for axis in kernel.axes}
    copies = list(bodies)
    whole: list[Condition] = []
    single: Body = join(bodies)
    for tile in tiles:
        name, extent = tile.axis.name, tile.axis.extent
        first = poly(0)
        if extent == tile.size:
            del axes[name]
        else:
            block = fresh_name(f"{name}_block", taken)
            first = symbol(block) * tile.size
            axes[name] = Axis(block, (extent + tile.size - 1) // tile.size)
        copies = [
            copy_at(body, name, first + number, f"_{number}")
            for body in copies
            for number in range(tile.size)
        ]
        single = (For(name, (first,), (first + tile.size - 1, extent - 1), single),)
        if not tile.is_exact:
            whole.append(Condition(extent - first - tile.size))
    body = join(copies)
    if whole:
        parts: list[Node] = [If(tuple(whole), body)]
        for at, condition in enumerate(whole):
            missing = Condition(-condition.value - 1)
            parts.append(If((*whole[:at], missing), single))
        body = tuple(parts)
    return replace(kernel, axes=tuple(axes.values()), body=body)
