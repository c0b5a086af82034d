"""Asking for the rows that passes over the lanes read next, where these begin elsewhere in memory.

Where a round of the loop around has one pass, that asks for the row of the next round. Where it has
one for each row of a group, passes ask for the row a few kilobytes behind their own (`rows_ahead`
in `opgen.runtime.streams`), and the last ones of a round for the first rows of the next one. So
much fits into the first cache, which the rows of a whole round do not. `FETCH_SOON` says which
cache it is.

With 16 rows of 256 cells of two channels a round, sums over 28 shifted channels take 0.7 of the
time that they take if each pass asks for its row of the next round, in the second cache, and sums
over 512 channels 0.75, on a processor whose first cache has 48 KB. If none asks they take twice as
long. With a first cache of 32 KB, to ask for a few kilobytes in the second cache is as quick as to
ask for a round in it, within a twentieth.
"""

from __future__ import annotations

from opgen.algebra.poly import Poly, symbol
from opgen.emit.emitter import ScopeEmitter
from opgen.emit.expression import Printer, type_name
from opgen.ir.loop_parts import goes_along, loads_of
from opgen.ir.loops import Define, For, Lanes, Load, Node, walk


def fetch_lanes(emitter: ScopeEmitter, node: Lanes, inside: Printer, first: str, last: str) -> None:
    """Ask for what the lanes between `first` and `last` read next: it begins elsewhere in memory.

    `inside` prints what is in the loop over them.
    """
    kernel, printer = emitter.kernel, emitter.printer
    if emitter.around is None or kernel.row is None:
        return
    next_round = {emitter.around: symbol(emitter.around) + 1}
    soon: dict[str, Poly] = {}
    for load in _row_loads(node.body, kernel.row.axis.name, emitter.around):
        operand = printer.program.operand(load.tensor)
        is_soon = emitter.in_turn and _goes_by_group(emitter, load)
        if is_soon and not soon:
            size = f"({last} - {first} + 1) * (int64_t)sizeof({type_name(operand)})"
            soon = _rows_behind(emitter, size, inside)
        upcoming = soon if is_soon else next_round
        indices = [index.substitute(upcoming) for index in load.indices]
        step = printer.names.strides[load.tensor, operand.rank - 1]
        name, count = emitter.lane, f"64 / (int64_t)sizeof({type_name(operand)})"
        fetch = "FETCH_SOON" if is_soon else "FETCH"
        emitter.write(f"if ({step} == 1)")
        emitter.write(f"    for (int64_t {name} = {first}; {name} <= {last}; {name} += {count})")
        emitter.write(f"        {fetch}(&{inside.cell(load.tensor, indices)});")


def _goes_by_group(emitter: ScopeEmitter, load: Load) -> bool:
    """Whether neighbours in the group read neighbouring rows."""
    group = emitter.kernel.group
    if group is None or len(load.indices) < 2:
        return False
    *outer, row, lane = (index.step_in(group.axis.name) for index in load.indices)
    return row == 1 and lane == 0 and all(step == 0 for step in outer)


def _rows_behind(emitter: ScopeEmitter, size: str, inside: Printer) -> dict[str, Poly]:
    """What indices are for a row behind that of a pass, in this round or in the next one.

    `size` is how many bytes the pass reads of a row.
    """
    group, around, printer = emitter.kernel.group, emitter.around, emitter.printer
    assert group is not None and around is not None
    last = printer.names.symbols[group.last]
    own = emitter.members[group.axis.name]
    rows, behind, rounds, soon = map(
        emitter.scope.fresh, (f"{own}_rows", f"{own}_behind", "rounds", f"{own}_soon")
    )
    emitter.write(f"const int64_t {rows} = {last} - {printer.names.symbols[group.first]} + 1;")
    emitter.write(f"const int64_t {behind} = {own} + rows_ahead({size}, {rows});")
    emitter.write(f"const int64_t {rounds} = {behind} > {last};")
    emitter.write(f"const int64_t {soon} = {behind} - {rounds} * {rows};")
    inside.names.symbols.update({soon: soon, rounds: rounds})
    return {around: symbol(around) + symbol(rounds), group.axis.name: symbol(soon)}


def _row_loads(body: tuple[Node, ...], lane: str, loop: str) -> tuple[Load, ...]:
    """One load for every row that lanes run along and that changes with a loop around them.

    None where an index is defined for each lane: nothing is known of it before.
    """
    found: dict[tuple[str, tuple[Poly, ...]], Load] = {}
    nodes = tuple(walk(body))
    own = {node.name for node in nodes if isinstance(node, Define | For)}
    for load in loads_of(nodes):
        rows = load.indices[:-1]
        symbols = frozenset[str]().union(*(index.symbols for index in load.indices))
        is_known = own.isdisjoint(symbols)
        if (
            is_known
            and goes_along(load.indices, lane)
            and any(loop in index.symbols for index in rows)
        ):
            found.setdefault((load.tensor, rows), load)
    return tuple(found.values())
