"""Asking for the planes that a cell of a group adds in the next round of the loop with a guest.

They begin elsewhere in memory, and are too short for the processor to see a stream in them. Behind
the last image of a cell comes the first image of the cell that has its place in the next group: few
images are short rounds, and each group would begin with planes that nobody asked for. With 2048
channels of 8 by 8, both gradients of eight images take 0.87 to 0.95 of the time.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.emit.emitter import ScopeEmitter
from opgen.emit.expression import type_name
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Define, For, Guest, Row, walk
from opgen.ir.primitives import Level

_LARGEST_PLANE: Final = 1024
"""The most elements of a plane that is asked for as a whole."""


def fetch_planes(emitter: ScopeEmitter, node: For) -> None:
    """Ask for what a cell adds next, where `node` is the loop over the cells of a group."""
    kernel, printer = emitter.kernel, emitter.printer
    guest, group = kernel.guest, kernel.group
    if printer.cuda or guest is None or group is None or kernel.row is not None:
        return
    if node.name != group.axis.name or guest.loop not in printer.names.symbols:
        return
    planes = _planes(emitter, node, guest.loop)
    if not planes:
        return
    later = _later(emitter, guest, group)
    for (tensor, outer), size in planes.items():
        operand = printer.program.operand(tensor)
        indices = [each.substitute(later) for each in outer]
        begin = printer.cell(tensor, (*indices, *(ZERO,) * (operand.rank - len(outer))))
        at, count = emitter.scope.fresh("at"), f"64 / (int64_t)sizeof({type_name(operand)})"
        emitter.write(f"if ({printer.names.strides[tensor, operand.rank - 1]} == 1)")
        emitter.write(f"    for (int64_t {at} = 0; {at} < {size}; {at} += {count})")
        emitter.write(f"        FETCH(&{begin} + {at});")


def _planes(emitter: ScopeEmitter, node: For, loop: str) -> dict[tuple[str, tuple[Poly, ...]], int]:
    """The planes that a round adds, by what they begin with, and how many elements they have."""
    program = emitter.printer.program
    inside = {each.name for each in walk(node.body) if isinstance(each, For | Define)}
    found: dict[tuple[str, tuple[Poly, ...]], int] = {}
    for load in loads_of(walk(node.body)):
        outer = tuple(
            itertools.takewhile(lambda each: inside.isdisjoint(each.symbols), load.indices)
        )
        extents = program.operand(load.tensor).extents[len(outer) :]
        if not any(loop in each.symbols for each in outer):
            continue
        if all(extent.is_constant for extent in extents):
            size = math.prod(extent.constant for extent in extents)
            if size <= _LARGEST_PLANE:
                found[load.tensor, outer] = size
    return found


def _later(emitter: ScopeEmitter, guest: Guest, group: Row) -> dict[str, Poly]:
    """What the counters are when the cell, or the one in its place, comes next.

    Behind the last group, where an axis is a single group, and behind a loop that is one of several
    parts, that is nowhere; to ask for it does no harm.
    """
    symbols, scope = emitter.printer.names.symbols, emitter.scope
    body = emitter.kernel.body
    ends = [n.upper for n in body if isinstance(n, For) and n.name == guest.loop]
    if len(ends) != 1 or len(ends[0]) != 1:
        return {guest.loop: symbol(guest.loop) + 1}
    ((last,),) = ends
    cell, step = group.axis.name, group.width
    test = f"{symbols[guest.loop]} < {emitter.printer.poly(last).at(Level.ADDITIVE)}"
    names = {each: scope.fresh(f"{each}_later") for each in (guest.loop, cell)}
    texts = f"{symbols[guest.loop]} + 1 : 0", f"{symbols[cell]} : {symbols[cell]} + {step}"
    for name, text in zip(names.values(), texts, strict=True):
        emitter.write(f"const int64_t {name} = {test} ? {text};")
        symbols[name] = name
    return {each: symbol(name) for each, name in names.items()}
