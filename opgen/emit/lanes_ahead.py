"""Asking for the rows of the next round of the loop around a pass over the lanes."""

from __future__ import annotations

from opgen.algebra.poly import Poly, symbol
from opgen.emit.emitter import ScopeEmitter
from opgen.emit.expression import Printer, type_name
from opgen.ir.loop_parts import goes_along, loads_of
from opgen.ir.loops import Lanes, Load, Node, walk


def fetch_lanes(emitter: ScopeEmitter, node: Lanes, inside: Printer, first: str, last: str) -> None:
    """Ask for what the lanes between `first` and `last` read next: it begins elsewhere in memory.

    `inside` prints what is in the loop over them.
    """
    kernel, printer = emitter.kernel, emitter.printer
    if emitter.around is None or kernel.row is None:
        return
    upcoming = {emitter.around: symbol(emitter.around) + 1}
    for load in _row_loads(node.body, kernel.row.axis.name, emitter.around):
        indices = [index.substitute(upcoming) for index in load.indices]
        operand = printer.program.operand(load.tensor)
        step = printer.names.strides[load.tensor, operand.rank - 1]
        name, count = emitter.lane, f"64 / (int64_t)sizeof({type_name(operand)})"
        emitter.write(f"if ({step} == 1)")
        emitter.write(f"    for (int64_t {name} = {first}; {name} <= {last}; {name} += {count})")
        emitter.write(f"        FETCH(&{inside.cell(load.tensor, indices)});")


def _row_loads(body: tuple[Node, ...], lane: str, loop: str) -> tuple[Load, ...]:
    """One load for every row that lanes run along and that changes with a loop around them."""
    found: dict[tuple[str, tuple[Poly, ...]], Load] = {}
    for load in loads_of(walk(body)):
        rows = load.indices[:-1]
        if goes_along(load.indices, lane) and any(loop in index.symbols for index in rows):
            found.setdefault((load.tensor, rows), load)
    return tuple(found.values())
