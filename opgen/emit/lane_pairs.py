"""Blocks of two vectors of lanes, term by term in turn.

A vector of 16-bit numbers is half a line of memory. Cells that share a body go through dozens of
pixels, whose lines are likely to fall into the same places of the first cache: what is left of each
line is gone before the next block asks for it, and every line comes twice. Two vectors of each
pixel take lines whole (0.7 of the time for filters of 3 by 3).

Which numbers of a line are in which vector is for their type to say: those of bfloat16 with even
places are in one and those with odd places in the other, which takes one instruction for either
(0.7 of the time again). A row with fewer numbers than two vectors have goes one vector at a time.

A cell that is alone in its pass is a pair where it has some terms: each line is loaded once then,
not half of it twice. Gradients of a bilinear upsampling of 2048 channels of 16 by 16 take 0.75 of
the time, those of nearest ones, of 8 by 8 and of 16 by 16, 0.9.

Passes that go on with sums of other passes (`passes.one_pass`) do so two vectors at a time as well,
all of a kernel or none: which numbers are in which vector of a sum is the same in all of them. Such
a kernel is for rows of two vectors or more, the others compute shorter ones. With 2048 channels of
8 by 8 the gradients of image and filter take 0.8 of the time so under autocast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import Poly, symbol
from opgen.ir.chosen import has_choices
from opgen.ir.loop_parts import accumulators_of, goes_along, loads_of
from opgen.ir.loops import Accumulate, For, Kernel, Lanes, Node, Start, Store, walk
from opgen.ir.map_loops import map_nodes, renamed
from opgen.ir.progression import Body, moved

MOST_CELLS: Final = 8
"""The most cells of a pass: two vectors of each, and what they load, are in registers."""

COLUMNS: Final = 4
"""How many columns of cells a pass has, if it has two rows: what both load is loaded once, and the
filters of two rows of taps stay in registers."""

MOST_TERMS: Final = 420
"""The most terms of a kernel: there are twice as many then, and those for short rows, which takes
the compiler a fifth longer. Images of 8 by 8 have 352 for windows of 3 by 3, those of 20 by 20 have
406; their filters take 0.55 and 0.8 of the time so."""


FEWEST_TERMS: Final = 2
"""The fewest terms of a cell that is alone in its pass."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass does, how many times."""

    body: Body
    count: int = 1


def in_pairs(node: Lanes, kernel: Kernel, behind: str, number: str) -> tuple[Pass, ...]:
    """Passes with two vectors; in indices of the second one `behind` is added to the lane.

    A pass has as many cells as its accumulators have registers for. Passes that are the same but
    for a constant step, as those of two rows of cells, are one that is repeated. There is none
    where it is not worth it: for single cells that are copies or have loops, and for what a point
    copies first. All accumulators must begin and end in the pass; where they do so around loops, as
    at the borders of an image, there is one pass at most.
    """
    nodes = tuple(walk(node.body))
    begun = [each.accumulator for each in nodes if isinstance(each, Start)]
    terms = sum(isinstance(each, Accumulate) for each in walk(kernel.body))
    if not all(isinstance(each, Start | For | Accumulate | Store) for each in nodes):
        return ()
    if kernel.row is None or not begun or terms > MOST_TERMS or has_choices(nodes):
        return ()
    has_loops = any(isinstance(each, For) for each in nodes)
    if has_loops and len(begun) > MOST_CELLS:
        return ()
    if len(begun) == 1 and (has_loops or terms < FEWEST_TERMS):
        return ()
    own = set(map(second_of, begun))
    if kernel.local or accumulators_of(*node.body) - set(begun) or own & set(begun):
        return ()
    lane = kernel.row.axis.name
    places = [load.indices for load in loads_of(nodes)]
    places += [each.indices for each in nodes if isinstance(each, Store)]
    if not all(_are_apart_or_next(indices, lane) for indices in places):
        return ()
    if any(len(accumulators_of(each)) != 1 for each in nodes if not isinstance(each, For)):
        return ()
    there = symbol(lane) + symbol(behind)
    passes = _passes(node.body, _groups(begun, node.body, lane), number)

    def change(value: Poly) -> Poly:
        return value.substitute({lane: there})

    return tuple(
        replace(each, body=_in_turn(each.body, map_nodes(_renamed(each.body), change)))
        for each in passes
    )


def hold_pairs(kernel: Kernel) -> bool:
    """Whether passes over sums that outlive them are made with two vectors.

    They are where one of them has cells of its own beside the sums.
    """
    if kernel.row is None or has_choices(walk(kernel.body)):
        return False
    lane = kernel.row.axis.name
    passes = [node for node in walk(kernel.body) if isinstance(node, Lanes)]
    if not all(
        isinstance(each, Start | Accumulate | Store) and len(accumulators_of(each)) == 1
        for one in passes
        for each in one.body
    ):
        return False
    places = [load.indices for one in passes for load in loads_of(one.body)]
    if not all(_are_apart_or_next(indices, lane) for indices in places):
        return False
    return any(
        any(isinstance(each, Start) for each in one.body)
        and any(isinstance(each, Accumulate) for each in one.body)
        for one in passes
    )


def held_pair(node: Lanes, lane: str, behind: str) -> Body:
    """What a pass of such a kernel does with two vectors."""
    there = symbol(lane) + symbol(behind)
    second = map_nodes(_renamed(node.body), lambda value: value.substitute({lane: there}))
    return _in_turn(node.body, second)


def second_of(accumulator: str) -> str:
    """The name of an accumulator in the second vector."""
    return f"{accumulator}_next"


def _are_apart_or_next(indices: Sequence[Poly], lane: str) -> bool:
    """Whether an element is the same for all lanes, or lies one behind that of the lane before."""
    return goes_along(indices, lane) or not any(lane in index.symbols for index in indices)


def one_by_one(node: Lanes, number: str) -> tuple[Pass, ...]:
    """Passes with a vector of each cell, for rows that are too short for two: they are few, so what
    counts is how long they take to compile."""
    begun = [each.accumulator for each in walk(node.body) if isinstance(each, Start)]
    half = len(begun) // 2
    if len(begun) % 2 or any(isinstance(each, For) for each in node.body):
        return (Pass(node.body),)
    passes = _passes(node.body, [begun[:half], begun[half:]], number)
    return passes if len(passes) == 1 else (Pass(node.body),)


def _passes(body: Body, groups: Sequence[Sequence[str]], number: str) -> tuple[Pass, ...]:
    """A pass for each group of cells, or a single one for two that differ by a constant step."""
    if len(groups) == 1:
        return (Pass(body),)
    bodies = []
    for group in groups:
        names = dict(zip(group, groups[0], strict=False))
        bodies.append(renamed(_own(body, group), names.__getitem__))
    whole = moved(bodies, symbol(number)) if len(groups) == 2 else None
    return tuple(map(Pass, bodies)) if whole is None else (Pass(whole, 2),)


def _groups(cells: Sequence[str], nodes: Sequence[Node], lane: str) -> list[list[str]]:
    """The cells of each pass: one behind the other, or columns of two rows if that loads less."""
    rows = [list(cells[at : at + MOST_CELLS]) for at in range(0, len(cells), MOST_CELLS)]
    half = len(cells) // 2
    if len(cells) % 2 or len(rows) < 2:
        return rows
    upper, lower = cells[:half], cells[half:]
    tiles = [
        [*upper[at : at + COLUMNS], *lower[at : at + COLUMNS]] for at in range(0, half, COLUMNS)
    ]

    found = [(accumulators_of(each), loads_of((each,))) for each in nodes]

    def loads_for(group: Sequence[str]) -> int:
        own = frozenset(group)
        needed = {load for names, theirs in found if names <= own for load in theirs}
        return sum(lane in index.symbols for load in needed for index in load.indices)

    def loads(groups: list[list[str]]) -> int:
        return sum(map(loads_for, groups))

    return tiles if loads(tiles) < loads(rows) else rows


def _own(nodes: Sequence[Node], group: Sequence[str]) -> Body:
    """The nodes of some cells."""
    return tuple(each for each in nodes if accumulators_of(each) <= set(group))


def _renamed(body: Body) -> Body:
    return renamed(body, second_of)


def _in_turn(first: Body, second: Body) -> Body:
    """The nodes of both, one after the other; loops, which are the same, are one."""
    out: list[Node] = []
    for one, other in zip(first, second, strict=True):
        if isinstance(one, For) and isinstance(other, For):
            out.append(replace(one, body=_in_turn(one.body, other.body)))
        else:
            out += (one, other)
    return tuple(out)
