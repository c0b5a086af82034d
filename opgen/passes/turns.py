"""Lanes of a row that goes around what it reads, turn by turn.

`y[n] = x[n - s ?wrap]` reads `x[n - s - (n - s)//N*N]`. The middle of the row has no quotient
(`passes.peel`); how long its ends are depends on `s`. There, and in the terms of a sum
`x[n + k ?wrap]`, the quotient is the same for as many cells as `x` has, which are neighbours in it:

    for q = (first - s)//N .. (last - s)//N
        lanes n = q*N + s .. q*N + s + N - 1
            y[n] = x[n - s - q*N]

A row of 4096 cells that divided in each of them, also by tables, took nineteen times as long.

Before: the nodes for some lanes. After: the same for the same lanes, with as many loops around them
as they have such quotients. More than two, as in a wide filter of an image that is continued, leave
few cells to each turn, so they stay.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Final

from opgen.algebra.facts import Facts
from opgen.algebra.fibre_system import replaced
from opgen.algebra.poly import ZERO, Atom, Kind, Poly, maximum, minimum, symbol
from opgen.algebra.prove import is_positive
from opgen.ir.loops import Define, For, Lanes, Node, Row, walk
from opgen.ir.map_loops import map_nodes, polynomials
from opgen.ir.names import fresh_name
from opgen.passes.lane_bounds import LaneBounds

_MOST: Final = 2


def in_turns(
    body: tuple[Node, ...], bounds: LaneBounds, row: Row, facts: Facts, used: Collection[str]
) -> Node:
    """A body for the lanes within the bounds; `facts` hold in every lane, the names are `used`
    around it."""
    lane = row.axis.name
    own = {node.name for node in walk(body) if isinstance(node, Define | For)}
    values = (*polynomials(*body), *bounds.lower, *bounds.upper)
    quotients = dict.fromkeys(atom for value in values for atom in value.all_atoms())
    quotients = {atom: None for atom in quotients if _goes_around(atom, lane, own, facts)}
    if len(quotients) > _MOST:
        return Lanes(bounds.lower, bounds.upper, body)
    taken = {row.first, row.last, *own, *used}.union(*(value.symbols for value in values))
    loops = []
    for quotient in quotients:
        dividend, divisor = quotient.args
        turn = fresh_name(f"{lane}_turn", taken)
        # Within the turns of another one there are few, not all of a stretch.
        begin = maximum(symbol(row.first), *bounds.lower)
        end = minimum(symbol(row.last), *bounds.upper)
        ends = (begin, end) if dividend.step_in(lane) == 1 else (end, begin)
        lower, upper = (dividend.substitute({lane: at}) // divisor for at in ends)
        loops.append((turn, lower, upper))
        bounds = bounds.joined(_lanes_of(symbol(turn) * divisor, quotient, lane))
        body = map_nodes(body, functools.partial(replaced, atom=quotient, by=symbol(turn)))
    node: Node = Lanes(bounds.lower, bounds.upper, body)
    for turn, lower, upper in reversed(loops):
        node = For(turn, (lower,), (upper,), (node,))
    return node


def _lanes_of(first: Poly, quotient: Atom, lane: str) -> LaneBounds:
    """The lanes in a turn, whose dividends begin with the first."""
    dividend, divisor = quotient.args
    rest = dividend.substitute({lane: ZERO})
    if dividend.step_in(lane) == 1:
        return LaneBounds((first - rest,), (first - rest + divisor - 1,))
    return LaneBounds((rest - first - divisor + 1,), (rest - first,))


def _goes_around(atom: Atom, lane: str, own: Collection[str], facts: Facts) -> bool:
    """Whether an atom is the number of a turn that lasts as many lanes as a size says."""
    if atom.kind is not Kind.FLOOR_DIV or any(each.is_data_dependent for each in atom.args):
        return False
    dividend, divisor = atom.args
    return (
        dividend.step_in(lane) in (1, -1)
        and not divisor.is_constant
        and lane not in divisor.symbols
        and atom.symbols.isdisjoint(own)
        and is_positive(divisor, facts)
    )
