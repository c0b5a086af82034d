"""Fewer passes over a row: what is done to a cell one after the other is done in one pass.

Lanes do not depend on each other, so `a` in all lanes and then `b` in all lanes is `a` and then `b`
in every lane. Where the bounds of both differ, the lanes within all bounds do everything, and the
few at the ends ask for each part whether it is theirs.

Where no lane is within all bounds, as in a row whose halves are computed in two ways, every one
would ask: parts with bounds of their own keep passes of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, maximum, minimum, symbol
from opgen.ir.loops import Accumulate, Define, For, If, Lanes, Node, Start
from opgen.passes.lane_bounds import LaneBounds


def fused(nodes: Sequence[Node], around: LaneBounds, lane: str) -> tuple[Node, ...]:
    """The nodes with as few passes over the row as possible; `around` holds for all lanes."""
    return _in_runs(nodes, lambda run: _joined(run, around, lane))


def together(nodes: Sequence[Node], lane: str) -> tuple[Node, ...]:
    """The nodes with as few passes over the row as possible, each over all lanes.

    For threads: every lane asks for each part whether it is its own.
    """
    return _in_runs(nodes, lambda run: _all_lanes(run, lane))


def _in_runs(
    nodes: Sequence[Node], join: Callable[[Sequence[Lanes]], tuple[Lanes, ...]]
) -> tuple[Node, ...]:
    """The nodes with every run of consecutive passes joined."""
    out: list[Node] = []
    run: list[Lanes] = []
    for node in nodes:
        if isinstance(node, Lanes):
            run.append(node)
            continue
        if isinstance(node, Define):
            # It depends on no pass before it, so it need not come between two of them.
            out += () if node in out else (node,)
            continue
        out += join(run)
        run = []
        if isinstance(node, For | If):
            node = replace(node, body=_in_runs(node.body, join))
        out.append(node)
    return (*out, *join(run))


def _all_lanes(run: Sequence[Lanes], lane: str) -> tuple[Lanes, ...]:
    """Consecutive passes as one without bounds."""
    if not run:
        return ()
    return (Lanes((), (), _bodies([_guarded(each, LaneBounds(), lane) for each in run])),)


def _joined(run: Sequence[Lanes], around: LaneBounds, lane: str) -> tuple[Lanes, ...]:
    """Consecutive passes as at most three, if some lanes are within the bounds of all."""
    if len(run) < 2:
        return tuple(run)
    lower = tuple(dict.fromkeys(bound for lanes in run for bound in lanes.lower))
    upper = tuple(dict.fromkeys(bound for lanes in run for bound in lanes.upper))
    if any(_is_behind(low, high) for low in lower for high in upper):
        groups = itertools.groupby(run, lambda each: (each.lower, each.upper))
        return tuple(Lanes(*bounds, _bodies(list(group))) for bounds, group in groups)
    middle = Lanes(lower, upper, _bodies(run))
    if all(lanes.lower == lower and lanes.upper == upper for lanes in run):
        return (middle,)
    parts = [middle]
    begin, end = _begin(run, lower), _end(run, upper)
    if begin is not None:
        before = LaneBounds(around.lower, (*around.upper, begin - 1))
        parts.insert(0, _part(run, before, around, lane))
    if end is not None:
        behind = () if begin is None else (begin,)
        after = LaneBounds((*around.lower, end + 1, *behind), around.upper)
        parts.append(_part(run, after, around, lane))
    return tuple(parts)


def _part(run: Sequence[Lanes], bounds: LaneBounds, around: LaneBounds, lane: str) -> Lanes:
    """The lanes within bounds, which ask for each of the passes whether they are its own; of those
    that none of them is in, nothing but the begin of sums is left."""
    lower, upper = bounds.lower, bounds.upper
    bodies = []
    for each in run:
        is_none = any(_is_behind(low, last) for low in each.lower for last in upper) or any(
            _is_behind(first, high) for first in lower for high in each.upper
        )
        begins = tuple(replace(n, value=None) for n in each.body if isinstance(n, Start))
        bodies.append(Lanes((), (), begins) if is_none else _guarded(each, around, lane))
    return Lanes(lower, upper, _bodies(bodies))


def _is_behind(low: Poly, high: Poly) -> bool:
    """Whether a first lane comes after a last one, whatever the sizes are."""
    distance = low - high
    return distance.is_constant and distance.constant >= 1


def _begin(run: Sequence[Lanes], lower: tuple[Poly, ...]) -> Poly | None:
    """The first lane of the middle; None where no lane comes before it."""
    return None if all(lanes.lower == lower for lanes in run) else maximum(*lower)


def _end(run: Sequence[Lanes], upper: tuple[Poly, ...]) -> Poly | None:
    return None if all(lanes.upper == upper for lanes in run) else minimum(*upper)


def _guarded(lanes: Lanes, around: LaneBounds, lane: str) -> Lanes:
    """Lanes that ask whether they are within the bounds.

    Sums begin in any case: parts that ask for themselves add to them. What is in the cell already
    joins the sum as its first term.
    """
    here = symbol(lane)
    conditions = [Condition(here - bound) for bound in lanes.lower if bound not in around.lower]
    conditions += [Condition(bound - here) for bound in lanes.upper if bound not in around.upper]
    if not conditions:
        return lanes
    begins: list[Start] = []
    rest: list[Node] = []
    for node in lanes.body:
        if not isinstance(node, Start):
            rest.append(node)
            continue
        begins.append(replace(node, value=None))
        if node.value is not None:
            rest.append(Accumulate(node.accumulator, node.reducer, node.value))
    return replace(
        lanes, body=(*begins, If(tuple(conditions), tuple(rest))) if rest else tuple(begins)
    )


def _bodies(run: Sequence[Lanes]) -> tuple[Node, ...]:
    """One body after the other, without definitions that were made already."""
    known: set[Node] = set()
    out: list[Node] = []
    for lanes in run:
        for node in lanes.body:
            if node in known:
                continue
            if isinstance(node, Define):
                known.add(node)
            out.append(node)
    return tuple(out)
