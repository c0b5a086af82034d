"""Cells that stand alone in a body, all terms written out, and whole pixels in turn.

Neighbours in a block load what they have in common once. That is little where each number is in
the terms of fewer than two of them, as in the gradient of a resize, whose windows move on by two
pixels or more. There a block loads dozens of pixels at once. With 2048 channels all of these fall
into the same few places of the first cache, each is in a page of its own, and no stream is seen
that could be fetched ahead. A cell that goes through all of its channels reads pieces of kilobytes,
one behind the other: the gradient of bilinear upsampling takes 0.6 of the time, and 0.45 with
16-bit numbers, of which a vector is half a line of memory.

The loops of a cell run from bounds that depend on where it is. Most cells still differ in nothing
but by how much they are moved: these have one body, whose indices are linear in the cell, and those
at the borders have others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import poly, symbol
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, Axis, For, If, Kernel, Lanes, walk
from opgen.ir.progression import Step, moved, parts_of, step_between
from opgen.passes.load_order import by_load
from opgen.passes.merge import Body, at, merged
from opgen.passes.tile import shares_loads

WIDTH: Final = 2048
"""How many cells of a row a parallel point has, if there are as many."""

LEAST_SHARED: Final = 2
"""For how many terms a block has to load each number at least to be better than cells alone."""

MOST_TERMS: Final = 250
"""The most terms of a kernel: compiling one takes about a millisecond."""


Runs = tuple[tuple[int, int], ...]
"""The first and the last cells of stretches of an axis."""


def lone_cells(kernel: Kernel, row: Axis, block: Body) -> Body | None:
    """The body of a kernel whose points have one cell of each axis but the row.

    `kernel` has a point for each cell. None where that is no gain over the body of blocks, where
    cells have conditions, or where they are too different.
    """
    left = (each for each in kernel.axes if each is not row and each.extent.is_constant)
    known = [each for each in left if each.extent.constant > 1]
    if any(shares_loads(each, (kernel.body,), row.name) for each in known):
        return None  # what all cells load is loaded once for a block
    if _terms_of_a_load(block) >= LEAST_SHARED:
        return None
    runs = [_runs(kernel.body, axis) for axis in known]
    found = [(axis, each) for axis, each in zip(known, runs, strict=True) if each is not None]
    body = _along(kernel.body, found) if len(found) == len(known) else None
    if body is None or sum(isinstance(node, Accumulate) for node in walk(body)) > MOST_TERMS:
        return None
    return body


def _terms_of_a_load(block: Body) -> float:
    """How many terms a block has for each number that it loads, in the best of its passes."""
    passes = [tuple(walk(node.body)) for node in walk(block) if isinstance(node, Lanes)]
    shared = (
        sum(isinstance(node, Accumulate) for node in nodes) / max(1, len(set(loads_of(nodes))))
        for nodes in passes
    )
    return max(shared, default=0.0)


def _along(body: Body, axes: Sequence[tuple[Axis, Runs]]) -> Body | None:
    """The body with cells of these axes, and the stretches of them that share a body."""
    if not axes:
        is_written = not any(isinstance(node, For | If) for node in body)
        return (Lanes((), (), by_load(body)),) if is_written else None
    (axis, runs), *rest = axes
    out: list[If] = []
    here, end = symbol(axis.name), axis.extent.constant - 1
    for first, last in runs:
        cells = [_cell(body, axis, place) for place in range(first, min(last, first + 1) + 1)]
        known = [cell for cell in cells if cell is not None]
        generic = moved(known, here - first) if len(known) == len(cells) else None
        nodes = None if generic is None else _along(generic, rest)
        if nodes is None:
            return None
        conditions = [Condition(here - first)] if first > 0 else []
        conditions += [Condition(last - here)] if last < end else []
        if not conditions:
            return nodes
        out.append(If(tuple(conditions), nodes))
    return tuple(out)


def _cell(body: Body, axis: Axis, place: int) -> Body | None:
    """The body at one place of an axis, with loops of known range written out."""
    return merged([at(body, {axis.name: poly(place)})])


# ---------------------------------------------------------------------------- what cells share
def _runs(body: Body, axis: Axis) -> Runs | None:
    """The first and the last cells of stretches that share a body, in order; the longest is taken
    first.

    What is found of one axis holds wherever a cell is along the others: to write out a loop and to
    set an index are both substitutions.
    """
    cells = []
    for place in range(axis.extent.constant):
        cell = _cell(body, axis, place)
        if cell is None:
            return None
        cells.append(parts_of(cell))
    steps = [step_between(one, other) for one, other in itertools.pairwise(cells)]
    return tuple(_stretches(steps, 0, len(cells)))


def _stretches(steps: Sequence[Step], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Stretches of the cells [begin, end) in which all steps are the same."""
    if begin >= end:
        return
    groups = [(begin, begin)]
    for step, group in itertools.groupby(range(begin, end - 1), lambda place: steps[place]):
        places = list(group)
        if step is not None:
            groups.append((places[0], places[-1] + 1))
    first, last = max(groups, key=lambda group: group[1] - group[0])
    yield from _stretches(steps, begin, first)
    yield first, last
    yield from _stretches(steps, last + 1, end)
