"""Tensors of float32 where a call computes with bfloat16, which kernels round themselves.

Under autocast tensors are cast before an op, and gradients behind it. Those casts are passes over
memory, a third of what an op that moves data takes, and kernels can do without: a load rounds, and
so does a store. Cells are stored once, so that rounding them costs nothing more. What is loaded is
loaded by some kernels many times, as pixels are for windows that overlap, and rounded each time: a
cast before it is cheaper then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from opgen.ir.loops import (
    AtomicAdd,
    Finite,
    For,
    Kernel,
    Program,
    Store,
    loads_of,
    uses,
    walk,
)


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
        kernels=tuple(_without_moves(kernel, names) for kernel in program.kernels),
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
    if any(kernel.plane is not None for kernel in reading):
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


def _without_moves(kernel: Kernel, names: Collection[str]) -> Kernel:
    """A kernel that is no copy of elements as they are, if they have to be rounded."""
    touched = uses(kernel).tensors
    return replace(kernel, moves=()) if not touched.isdisjoint(names) else kernel
