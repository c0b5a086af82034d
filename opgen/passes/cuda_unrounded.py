"""Inputs of float32 where a call computes with numbers of 16 bits, which CUDA kernels round.

Under autocast a cast stands before an op: a pass over memory, a tensor of its own, and one more
kernel to launch, which for small ops takes longer than the op. A kernel that rounds what it loads
reads the same memory once. Elements that it loads many times, as in loops, would be rounded as
often: there a cast is better, and so it is for products of matrices, which tensor cores multiply.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from opgen.ir.loop_parts import loads_of, uses
from opgen.ir.loops import AtomicAdd, For, Kernel, Program, Store, walk

_MOST_LOADS: Final = 16
"""How often an element is loaded for each cell at most: the taps of 4 by 4, all written out."""


def unrounded(program: Program, tensors: Collection[str]) -> Program | None:
    """The program with these inputs stored as float32; None where casts are better, or needed."""
    names = frozenset(tensors)
    reading = [kernel for kernel in program.kernels if not names.isdisjoint(uses(kernel).tensors)]
    if not all(_may_round(kernel, names) for kernel in reading):
        return None
    operands = tuple(replace(o, unrounded=o.name in names) for o in program.operands)
    return replace(program, operands=operands)


def _may_round(kernel: Kernel, names: frozenset[str]) -> bool:
    """Whether a kernel loads few times for each of its cells, outside of loops but over rows."""
    nodes = tuple(walk(kernel.body))
    if kernel.contraction is not None or not kernel.is_deterministic:
        return False
    if any(isinstance(node, AtomicAdd) for node in nodes):
        return False
    group = None if kernel.group is None else kernel.group.axis.name
    for loop in nodes:
        if isinstance(loop, For) and loop.name != group:
            inside = loads_of(tuple(walk(loop.body)))
            if any(load.tensor in names for load in inside):
                return False
    stores = sum(isinstance(node, Store) for node in nodes)
    for name in names:
        loads = {load.indices for load in loads_of(nodes) if load.tensor == name}
        if len(loads) > _MOST_LOADS * max(1, stores):
            return False
    return True
