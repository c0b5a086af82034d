"""Asking for the rows of the next round of the loop around a pass over the lanes."""

from __future__ import annotations

from opgen.algebra.poly import Poly, symbol
from opgen.emit.emitter import ScopeEmitter
from opgen.emit.expression import Printer, type_name
from opgen.ir.loop_parts import goes_along, loads_of
from opgen.ir.loops import Lanes, Load, Node, walk


def fetch_lanes(emitter: ScopeEmitter, node: Lanes, inside: Printer, first: str, last: str) -> None:
    """Ask for what the lanes between `first` and `last` read next: it begins elsewhere in memory.

    `inside` prints what is in the loop over them. Where a round is a group of short rows, they go
    into the first cache, if it holds them: sums over 512 channels of 256 by 256 then take a seventh
    less. Groups of rows of 1024 numbers, of which it does not, take up to a fifth longer there.
    """
    kernel, printer = emitter.kernel, emitter.printer
    if emitter.around is None or kernel.row is None:
        return
    upcoming = {emitter.around: symbol(emitter.around) + 1}
    loads = _row_loads(node.body, kernel.row.axis.name, emitter.around)
    for load in loads:
        indices = [index.substitute(upcoming) for index in load.indices]
        operand = printer.program.operand(load.tensor)
        step = printer.names.strides[load.tensor, operand.rank - 1]
        name, element = emitter.lane, f"(int64_t)sizeof({type_name(operand)})"
        place = f"&{inside.cell(load.tensor, indices)}"
        emitter.write(f"if ({step} == 1)")
        emitter.write(
            f"    for (int64_t {name} = {first}; {name} <= {last}; {name} += 64 / {element})"
        )
        if kernel.group is None:
            emitter.write(f"        FETCH({place});")
            continue
        size = f"({last} - {first} + 1) * {len(loads) * kernel.group.width} * {element}"
        emitter.write(f"        FETCH_ROUND({size}, {place});")


def _row_loads(body: tuple[Node, ...], lane: str, loop: str) -> tuple[Load, ...]:
    """One load for every row that lanes run along and that changes with a loop around them."""
    found: dict[tuple[str, tuple[Poly, ...]], Load] = {}
    for load in loads_of(walk(body)):
        rows = load.indices[:-1]
        if goes_along(load.indices, lane) and any(loop in index.symbols for index in rows):
            found.setdefault((load.tensor, rows), load)
    return tuple(found.values())
