"""Tensors of float32 where a call computes with bfloat16, which kernels round themselves.

Under autocast tensors are cast before an op, and gradients behind it. Those casts are passes over
memory, a third of what an op that moves data takes, and kernels can do without: a load rounds, and
so does a store. Cells are stored once, so that rounding them costs nothing more. What is loaded is
loaded by some kernels many times, as pixels are for windows that overlap, and rounded each time: a
cast before it is cheaper then.

A copy that repeats what it loads rounds it once for cells that are neighbours: points of the axis
along which it does become one point with a store for each. (Of an image in channels-last format
that is enlarged two times in both directions, pixels side by side are written together, which takes
0.7 of the time. Rows of pixels are not: that would be four streams of memory at once.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import poly
from opgen.ir.loop_parts import loads_of, uses
from opgen.ir.loops import AtomicAdd, Finite, For, Kernel, Lanes, Load, Program, Store, walk


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
    return replace(
        program,
        operands=tuple(replace(o, unrounded=o.name in names) for o in program.operands),
        kernels=tuple(_rounding(kernel, names) for kernel in program.kernels),
    )


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


def _rounding(kernel: Kernel, names: Collection[str]) -> Kernel:
    """A kernel that is no copy of elements as they are, if they have to be rounded."""
    if uses(kernel).tensors.isdisjoint(names):
        return kernel
    return _stored_together(replace(kernel, moves=(), framed=None), names)


_MOST_STORES: Final = 4
"""The most cells that are written together."""


def _stored_together(kernel: Kernel, names: Collection[str]) -> Kernel:
    """A copy with a store for every value of its last axis, if that repeats what is loaded."""
    match kernel.body:
        case (Lanes(lower=(), upper=(), body=(Store(value=Load() as load) as store,)) as lanes,):
            pass
        case _:
            return kernel
    is_plain = kernel.plane is None and kernel.only is None and kernel.guest is None
    if load.tensor not in names or not kernel.axes or kernel.prologue or kernel.group:
        return kernel
    *axes, last = kernel.axes
    is_few = last.extent.is_constant and last.extent.constant <= _MOST_STORES
    if not is_plain or not is_few or any(last.name in each.symbols for each in load.indices):
        return kernel
    stores = []
    for at in range(last.extent.constant):
        indices = tuple(each.substitute({last.name: poly(at)}) for each in store.indices)
        stores.append(replace(store, indices=indices))
    body = (replace(lanes, body=tuple(stores)),)
    return replace(kernel, axes=tuple(axes), body=body)
