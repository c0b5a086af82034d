"""Sums along the cells of a row as sums of those of each innermost loop.

Cells side by side, such as the channels of an image in channels-last format, have a sum each that
all pixels of all images join:

    lanes: total = 0
    for n: for h: for w: lanes: total add= x[n,h,w,c]

A million terms of about one size lose three digits of a float32 that way, as each is rounded where
the sum is a million times as large. As sums of sums

    for n: for h:
      lanes: part = 0
      for w: lanes: part add= x[n,h,w,c]
      lanes: total add= part

they lose as many as the longest of these loops has terms. One loop alone is cut into stretches.
Where terms of a cell lie side by side, vectors of partial sums do about the same
(`opgen.emit.vectors`).

Before: kernels along rows. After: kernels with the same values, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import poly, symbol
from opgen.ir.loop_parts import integer_names
from opgen.ir.loops import (
    Accumulate,
    Always,
    Define,
    For,
    Kernel,
    Lanes,
    Node,
    Program,
    Result,
    Short,
    Start,
    walk,
)
from opgen.ir.map_loops import renamed
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer

_STRETCH: Final = 512
"""How many terms of a loop that is the only one are added before they join others."""

_FEW: Final = 8
"""Loops of fewer terms, such as those of a window, are no sums of their own."""


def with_sums_of_parts(program: Program) -> Program:
    """The program with kernels that add what innermost loops have added."""
    kernels = (_kernel(kernel, program.integers) for kernel in program.kernels)
    return replace(program, kernels=tuple(kernels))


def _kernel(kernel: Kernel, integers: Sequence[str]) -> Kernel:
    is_plain = kernel.sums is None and kernel.guest is None and kernel.group is None
    if kernel.row is None or not is_plain or not isinstance(kernel.only, Short | None):
        return kernel
    starts = {node.accumulator: node for node in walk(kernel.body) if isinstance(node, Start)}
    parts = _Parts(starts, {*starts}, integer_names(kernel, known=integers))
    body = tuple(parts.node(node) if isinstance(node, For) else node for node in kernel.body)
    return kernel if body == kernel.body else replace(kernel, body=body)


@dataclass
class _Parts:
    """How the accumulators of a kernel begin, and the names that are taken."""

    starts: Mapping[str, Start]
    taken: set[str]
    integers: set[str]

    def node(self, loop: For) -> For:
        """A loop outside of passes over the row, with parts for the innermost loop within it."""
        joined = _joined_by(loop)
        if joined is not None:
            return self.in_stretches(loop, joined)
        *defines, inner = loop.body or (loop,)
        if not isinstance(inner, For) or not all(isinstance(node, Define) for node in defines):
            return loop
        joined = _joined_by(inner)
        if joined is None:
            return replace(loop, body=(*defines, self.node(inner)))
        if not _is_long(inner):
            return loop
        return replace(loop, body=(*defines, *self.with_parts(inner, joined)))

    def in_stretches(self, loop: For, joined: dict[str, None]) -> For:
        """A loop of any length as one over stretches of it."""
        if loop.lower != (poly(0),) or len(loop.upper) != 1 or loop.upper[0].is_constant:
            return loop
        name = fresh_name(f"{loop.name}_stretch", self.integers)
        first, last = symbol(name) * _STRETCH, loop.upper[0]
        inner = replace(loop, lower=(first,), upper=(last, first + (_STRETCH - 1)))
        body = self.with_parts(inner, joined)
        if body == (inner,):
            return loop
        return For(name, (poly(0),), (last // _STRETCH,), body)

    def with_parts(self, loop: For, joined: dict[str, None]) -> tuple[Node, ...]:
        """What adds the sums of a loop to those that it belongs to."""
        if not self.starts.keys() >= joined.keys():
            return (loop,)
        names = {name: fresh_name(f"{name}_part", self.taken) for name in joined}
        begun = tuple(
            replace(self.starts[old], accumulator=new, value=None) for old, new in names.items()
        )
        added = tuple(Accumulate(old, Reducer.ADD, Result(new)) for old, new in names.items())
        own = renamed((loop,), lambda name: names.get(name, name))
        return Lanes((), (), begun), *own, Lanes((), (), added)


def _is_long(loop: For) -> bool:
    return all(not bound.is_constant or bound.constant + 1 >= _FEW for bound in loop.upper)


def _joined_by(loop: For) -> dict[str, None] | None:
    """The accumulators that passes over the whole row add to in a loop that does nothing else."""
    found: dict[str, None] = {}
    for node in loop.body:
        match node:
            case Define():
                pass
            case Lanes(lower=(), upper=(), body=body):
                for each in body:
                    match each:
                        case Define():
                            pass
                        case Accumulate(reducer=Reducer.ADD, present=Always()):
                            found[each.accumulator] = None
                        case _:
                            return None
            case _:
                return None
    return found or None
