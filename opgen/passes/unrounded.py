"""Tensors of float32 where a call computes with bfloat16, which kernels round themselves.

Under autocast tensors are cast before an op, and gradients behind it. Those casts are passes over
memory, a third of what an op that moves data takes, and kernels can do without: a load rounds, and
so does a store. Cells are stored once, so that rounding them costs nothing more. What is loaded is
loaded by some kernels many times, as pixels are for windows that overlap, and rounded each time: a
cast before it is cheaper then.

A copy that repeats what it loads rounds it once for cells that are neighbours: points of the axis
along which it does become one point with a store for each. Where the row of a kernel lies in memory
as its lanes do, that is a second kernel, of vectors. For an image of 2048 channels in channels-last
format that is enlarged two times in both directions such a kernel took 0.45 of the time by hand,
and 0.6 with two streams of memory at once instead of four; a call takes 0.75. Results that go past
the caches are left to the loop along the row, which writes whole lines of them; there only pixels
side by side are written at once, in 0.7 of the time of a store at each point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import poly
from opgen.ir.loop_parts import goes_along, loads_of, uses
from opgen.ir.loops import (
    AtomicAdd,
    Axis,
    Blocks,
    Finite,
    For,
    Kernel,
    Lanes,
    Load,
    Program,
    Row,
    Store,
    walk,
)
from opgen.ir.names import fresh_name
from opgen.passes.rounded_sums import with_rounded_sums


def unrounded(program: Program, tensors: Collection[str]) -> Program | None:
    """The program with these tensors stored as float32; None where casts are better, or needed."""
    names = frozenset(tensors)
    if any(_needs_cast(kernel, names) for kernel in program.kernels):
        return None
    if any(workspace.output in names for workspace in program.workspaces):
        return None
    written = frozenset(name for kernel in program.kernels for name in kernel.all_written)
    if not all(_is_loaded_once(program, name) for name in names - written):
        return None
    rounding = replace(
        program,
        operands=tuple(replace(o, unrounded=o.name in names) for o in program.operands),
        kernels=_rounding(program, names),
    )
    return with_rounded_sums(rounding, names & written)


def _needs_cast(kernel: Kernel, names: Collection[str]) -> bool:
    """Whether a kernel looks at memory itself, or adds to it without rounding."""
    if isinstance(kernel.only, Finite) and kernel.only.tensor in names:
        return True
    nodes = walk(kernel.body)
    return any(isinstance(node, AtomicAdd) and node.tensor in names for node in nodes)


def _is_loaded_once(program: Program, name: str) -> bool:
    """Whether each element of an input is loaded about as often as cells are stored.

    Kernels of planes load each element once, and take what other kernels are there for.
    """
    reading = [kernel for kernel in program.kernels if name in uses(kernel).tensors]
    if any(kernel.plane is not None or kernel.sums is not None for kernel in reading):
        return True
    return all(_is_loaded_as_stored(kernel, name) for kernel in reading)


def _is_loaded_as_stored(kernel: Kernel, name: str) -> bool:
    nodes = tuple(walk(kernel.body))
    for loop in nodes:
        inside = tuple(walk(loop.body)) if isinstance(loop, For) else ()
        is_loaded = any(load.tensor == name for load in loads_of(inside))
        if is_loaded and not any(isinstance(each, Store) for each in inside):
            return False
    loads = {load.indices for load in loads_of(nodes) if load.tensor == name}
    return len(loads) <= sum(isinstance(node, Store) for node in nodes)


def _rounding(program: Program, names: Collection[str]) -> tuple[Kernel, ...]:
    """The kernels, of which none copies elements as they are that have to be rounded."""
    out: list[Kernel] = []
    taken = {kernel.name for kernel in program.kernels}
    for kernel in program.kernels:
        if uses(kernel).tensors.isdisjoint(names):
            out.append(kernel)
            continue
        plain = replace(kernel, moves=(), framed=None)
        repeat = _repeat(plain, names)
        if repeat is None:
            out.append(plain)
            continue
        blocks = _in_blocks(plain, repeat)
        rowed = _stored_together(plain, repeat)
        if blocks is not None and blocks.only is not None:
            out.append(replace(blocks, name=fresh_name(f"{kernel.name}_blocks", taken)))
            rowed = replace(rowed, only=replace(blocks.only, holds=False))
        out.append(rowed)
    return tuple(out)


# ---------------------------------------------------------------------------- copies that repeat
_MOST_STORES: Final = 4
"""The most cells that are written together."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A pass that is nothing but a copy, and the axes, fastest last, along which it repeats."""

    lanes: Lanes
    store: Store
    load: Load
    axes: tuple[Axis, ...]

    def along(self, axes: Sequence[Axis]) -> Lanes:
        """The pass with a store for each point of these axes."""
        stores = []
        for point in itertools.product(*(range(axis.extent.constant) for axis in axes)):
            here = {axis.name: poly(at) for axis, at in zip(axes, point, strict=True)}
            indices = tuple(each.substitute(here) for each in self.store.indices)
            stores.append(replace(self.store, indices=indices))
        return replace(self.lanes, body=tuple(stores))


def _repeat(kernel: Kernel, names: Collection[str]) -> _Repeat | None:
    """What a kernel repeats of a tensor that is to be rounded; None where it does more."""
    match kernel.body:
        case (Lanes(lower=(), upper=(), body=(Store(value=Load() as load) as store,)) as lanes,):
            pass
        case _:
            return None
    is_plain = kernel.plane is None and kernel.only is None and kernel.guest is None
    if load.tensor not in names or not is_plain or kernel.prologue or kernel.group:
        return None
    moving = frozenset[str]().union(*(each.symbols for each in load.indices))
    axes = tuple(each for each in kernel.axes if each.name not in moving)
    axes = tuple(each for each in axes if each.extent.is_constant)
    while axes and math.prod(each.extent.constant for each in axes) > _MOST_STORES:
        axes = axes[1:]
    return _Repeat(lanes, store, load, axes) if axes else None


def _stored_together(kernel: Kernel, repeat: _Repeat) -> Kernel:
    """The kernel with a store for every value of its last axis, if that repeats what is loaded."""
    *axes, last = kernel.axes
    if last != repeat.axes[-1]:
        return kernel
    return replace(kernel, axes=tuple(axes), body=(repeat.along((last,)),))


def _in_blocks(kernel: Kernel, repeat: _Repeat) -> Kernel | None:
    """The kernel with vectors, and a store for every repetition; None where lanes lie apart."""
    row = kernel.row
    if row is None or row.within or row.joined > 1:
        return None
    lane = row.axis.name
    if not all(goes_along(each.indices, lane) for each in (repeat.load, repeat.store)):
        return None
    return replace(
        kernel,
        axes=tuple(axis for axis in kernel.axes if axis not in repeat.axes),
        body=(repeat.along(repeat.axes),),
        row=Row(row.axis, row.first, row.last, row.width, least=row.width),
        only=Blocks(
            row.axis.extent, (repeat.load.tensor, repeat.store.tensor), True, is_cached=True
        ),
    )
