"""Conditions that are asked once for all cells of a thread.

Most conditions at the ends of a row fail for a few of its cells, and a lane tells by its number
that it is not one of them, see `Stretch.hint`. Others concern sizes that no row is measured by,
such as those of a gradient that may be smaller than the tensor it belongs to. They hold for all
cells of a thread if they hold for the first ones or the last ones, which is nearly everywhere. And
if they fail for the last ones or the first ones they fail for all: of 512 channels that are each
moved two columns further than the one before, a column is reached by 128.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Poly, symbol, symbol_atom
from opgen.emit.cuda_printer import Stretch
from opgen.ir.loops import Always, Define, If, Lanes, Node, Row, walk


@dataclass(frozen=True, slots=True)
class Interior:
    """What the cells of a thread do if all these conditions hold.

    If one of those in `possible` does not hold, they do nothing.
    """

    conditions: tuple[Condition, ...]
    possible: tuple[Condition, ...]
    lanes: Lanes


def interior(node: Lanes, stretches: Sequence[Stretch], rows: Sequence[Row]) -> Interior | None:
    """The lanes without conditions that no lane decides; None where there are none of these."""
    local = {each.name for each in walk(node.body) if isinstance(each, Define)}
    corners: dict[Condition, Condition] = {}
    for each in walk(node.body):
        if isinstance(each, If):
            for condition in each.conditions:
                if local.isdisjoint(condition.value.symbols):
                    corner = _corner(condition, stretches, rows)
                    if corner is not None:
                        corners[condition] = corner
    if not corners:
        return None
    possible = (
        _corner(condition, stretches, rows, most_likely=True)
        for condition in _of_all(node)
        if condition in corners
    )
    return Interior(
        tuple(dict.fromkeys(corners.values())),
        tuple(dict.fromkeys(each for each in possible if each is not None)),
        replace(node, body=_without(node.body, corners)),
    )


def _of_all(node: Lanes) -> tuple[Condition, ...]:
    """The conditions of all that is done for a cell."""
    match [each for each in node.body if not isinstance(each, Define)]:
        case [If(conditions=conditions)]:
            return conditions
        case _:
            return ()


def _corner(
    condition: Condition,
    stretches: Sequence[Stretch],
    rows: Sequence[Row],
    *,
    most_likely: bool = False,
) -> Condition | None:
    """The condition at the cell where it is least likely, or most; None where a lane decides it."""
    value = condition.value
    moving = [row for row in rows if row.axis.name in value.symbols]
    if condition.relation is not Relation.GE or not moving or value.is_data_dependent:
        return None
    if any(stretch.hint(value) is not None for stretch in stretches):
        return None
    ends: dict[str, Poly] = {}
    for row in moving:
        linear = value.linear_in(symbol_atom(row.axis.name))
        if linear is None or not linear[0].is_constant or row.axis.name in linear[1].symbols:
            return None
        is_first = (linear[0].constant > 0) != most_likely
        ends[row.axis.name] = symbol(row.first if is_first else row.last)
    return Condition(value.substitute(ends))


def _without(nodes: Sequence[Node], known: Mapping[Condition, Condition]) -> tuple[Node, ...]:
    """The nodes where the known conditions hold."""
    out: list[Node] = []
    for node in nodes:
        if not isinstance(node, If):
            out.append(node)
            continue
        left = tuple(each for each in node.conditions if each not in known)
        plain = replace(node, conditions=left, body=_without(node.body, known))
        out += (plain,) if left or node.test != Always() else plain.body
    return tuple(out)
