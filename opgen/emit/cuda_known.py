"""Which elements of a run are inside of their row, because a lane reads them for sure.

A cell at the end of a row reads some elements under a condition, and a lane tells by its number
that it is not that cell, see `Stretch.ends`. What the other lanes read is inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import symbol
from opgen.emit.cuda_printer import Stretch
from opgen.emit.cuda_runs import Run, loads_for_sure, loads_from
from opgen.ir.loops import Accumulate, Always, Define, If, Lanes, Load, Node, Store


@dataclass(frozen=True, slots=True)
class Known:
    """The elements from `begin` up to `step*LANES + end`, where the conditions on a row hold."""

    begin: int
    end: int
    conditions: tuple[Condition, ...]


def known_elements(node: Lanes, run: Run, lane: Stretch, group: str | None) -> Known | None:
    """What is known of a run that the lanes read; None where that is nothing.

    Accesses must have the same conditions beside those that a lane decides. These are about the
    member whose row it is; others may read the row too, under conditions of their own.
    """
    found: list[Known] = []
    for load, conditions in _guarded(node.body, ()):
        place = run.accesses.get((load.tensor, load.indices))
        if place is None:
            continue
        known = _known(run, place, conditions, lane, group)
        if known is None:
            return None
        found.append(known)
    if not found or len({each.conditions for each in found}) != 1 or run.clamped:
        return None
    if len(found) < loads_from(run, node):
        return None  # some of these, or others, are read under tests
    found.sort(key=lambda each: each.begin)
    first, *others = found
    begin, end = first.begin, first.end
    for each in others:
        if each.begin > begin + run.step:
            return None
        end = max(end, each.end)
    return Known(begin, end, first.conditions)


def _known(
    run: Run,
    place: tuple[int, int],
    conditions: Sequence[Condition],
    lane: Stretch,
    group: str | None,
) -> Known | None:
    """The elements that one access reads for sure."""
    member, offset = place
    before = after = 0
    others: list[Condition] = []
    for condition in conditions:
        value = condition.value
        if lane.name in value.symbols:
            ends = lane.ends(value) if condition.relation is Relation.GE else None
            if ends is None:
                return None
            before, after = max(before, ends[0]), max(after, ends[1])
        elif group is not None and group in value.symbols:
            if not run.moves:
                return None
            others.append(condition.substitute({group: symbol(group) - member}))
        else:
            others.append(condition)
    begin, end = run.step * before + offset, offset + 1 - run.step * (after + 1)
    return Known(begin, end, tuple(dict.fromkeys(others)))


def _guarded(
    nodes: Sequence[Node], around: tuple[Condition, ...]
) -> Iterator[tuple[Load, tuple[Condition, ...]]]:
    """The loads that are made wherever these conditions hold."""
    local = {each.name for each in nodes if isinstance(each, Define)}
    for node in nodes:
        match node:
            case If(conditions=conditions, body=body, test=Always()):
                if all(local.isdisjoint(each.value.symbols) for each in conditions):
                    yield from _guarded(body, (*around, *conditions))
            case Store() | Accumulate(present=Always()):
                for load in loads_for_sure(node):
                    yield load, around
            case _:
                pass
