"""Blocks of two vectors of lanes, term by term in turn.

A vector of 16-bit numbers is half a line of memory. Cells that share a body go through dozens of
pixels, whose lines are likely to fall into the same places of the first cache: what is left of each
line is gone before the next block asks for it, and every line comes twice. Two vectors of each
pixel, one right behind the other, take lines whole (0.7 of the time for filters of 3 by 3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import Poly, symbol
from opgen.ir.loops import (
    Accumulate,
    Kernel,
    Lanes,
    Start,
    Store,
    accumulators_of,
    loads_of,
    walk,
)
from opgen.ir.map_loops import map_nodes, renamed
from opgen.ir.progression import Body, moved

MOST_CELLS: Final = 8
"""The most cells of a pass: two vectors of each, and what they load, are in registers."""

MOST_TERMS: Final = 350
"""The most terms of a kernel: there are twice as many then, and each takes a millisecond."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass does, how many times."""

    body: Body
    count: int = 1


def in_pairs(node: Lanes, kernel: Kernel, distance: str, number: str) -> tuple[Pass, ...]:
    """Passes with two vectors, the second one so many lanes behind the first one.

    A pass has as many cells as its accumulators have registers for. Passes that are the same but
    for a constant step, as those of two rows of cells, are one that is repeated. There is none
    where it is not worth it: for single cells, for what a point copies first, and for loops, which
    the few cells at a border have. All accumulators must begin and end in the pass.
    """
    nodes = tuple(walk(node.body))
    begun = [each.accumulator for each in nodes if isinstance(each, Start)]
    terms = sum(isinstance(each, Accumulate) for each in walk(kernel.body))
    is_simple = all(isinstance(each, Start | Accumulate | Store) for each in nodes)
    if kernel.row is None or len(begun) < 2 or terms > MOST_TERMS or not is_simple:
        return ()
    own = {f"{name}_next" for name in begun}
    if kernel.local or accumulators_of(*node.body) - set(begun) or own & set(begun):
        return ()
    lane = kernel.row.axis.name
    places = [load.indices for load in loads_of(nodes)]
    places += [each.indices for each in nodes if isinstance(each, Store)]
    if any(lane in index.symbols for indices in places for index in indices[:-1]):
        return ()
    if any(len(accumulators_of(each)) != 1 for each in nodes):
        return ()
    there = symbol(lane) + symbol(distance)
    groups = [begun[at : at + MOST_CELLS] for at in range(0, len(begun), MOST_CELLS)]
    bodies = []
    for group in groups:
        names = dict(zip(group, groups[0], strict=False))
        own_nodes = tuple(each for each in nodes if accumulators_of(each) <= set(group))
        bodies.append(renamed(own_nodes, names.__getitem__))
    passes = [Pass(body) for body in bodies]
    if len(groups) == 2:
        whole = moved(bodies, symbol(number))
        passes = passes if whole is None else [Pass(whole, 2)]

    def change(value: Poly) -> Poly:
        return value.substitute({lane: there})

    return tuple(
        replace(each, body=_in_turn(each.body, map_nodes(_renamed(each.body), change)))
        for each in passes
    )


def _renamed(body: Body) -> Body:
    return renamed(body, lambda name: f"{name}_next")


def _in_turn(first: Body, second: Body) -> Body:
    return tuple(node for pair in zip(first, second, strict=True) for node in pair)
