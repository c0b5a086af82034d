"""Points away from the borders apart, where every condition holds and none has to be asked.

Terms of a point that exist under conditions of their own take a pass over the row each. Where all
conditions hold, which is nearly everywhere, they share one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import poly
from opgen.ir.loops import Always, Any, For, If, Inside, Lanes, Node

MOST: Final = 8
"""The most conditions that make an interior."""

_LARGE: Final = poly(2**62)


def with_interior(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with runs of conditions around passes made twice: without and with conditions."""
    out: list[Node] = []
    run: list[Node] = []
    for node in nodes:
        if _is_pass(node):
            run.append(node)
            continue
        out += _split(run)
        run = []
        if isinstance(node, For | If):
            node = replace(node, body=with_interior(node.body))
        out.append(node)
    return (*out, *_split(run))


def _is_pass(node: Node) -> bool:
    """Whether there are only passes over the row in it, and plain conditions around them."""
    match node:
        case Lanes():
            return True
        case If(conditions=conditions, body=body, test=Always()):
            plain = all(each.relation is Relation.GE for each in conditions)
            return plain and all(map(_is_pass, body))
        case _:
            return False


def _split(run: Sequence[Node]) -> tuple[Node, ...]:
    conditions = tuple(dict.fromkeys(_conditions(run)))
    if sum(isinstance(node, If) for node in run) < 2 or len(conditions) > MOST:
        return tuple(run)
    # There is no `else`: on the border some condition fails, c >= 0 where -c - 1 is inside.
    border = Any(tuple(Inside(-each.value - 1, _LARGE) for each in conditions))
    return If(conditions, tuple(_passes(run))), If((), tuple(run), border)


def _conditions(nodes: Sequence[Node]) -> Iterator[Condition]:
    for node in nodes:
        if isinstance(node, If):
            yield from node.conditions
            yield from _conditions(node.body)


def _passes(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        if isinstance(node, If):
            yield from _passes(node.body)
        else:
            yield node
