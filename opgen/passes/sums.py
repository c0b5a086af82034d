"""Sums that go on where others ended as one sum, and loops over the same terms as one loop.

Two statements that add to one tensor are two loops, the second beginning with what the first has
found. Terms of a sum have no order, so both fit in one loop, which reads what they share once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from opgen.algebra.poly import Poly, symbol
from opgen.ir.loop_parts import accumulators_of, results_of
from opgen.ir.loops import Accumulate, Define, For, If, Node, Result, Start, walk
from opgen.ir.map_loops import map_nodes, renamed, symbols_of
from opgen.ir.notation import Reducer


def joined_sums(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """The body of a kernel with as few accumulators and loops for its sums as can be."""
    at = 0
    while at < len(body):
        total = _continued(body, at)
        if total is None:
            at += 1
            continue
        own, rest = body[at], body[at + 1 :]
        assert isinstance(own, Start)
        names = {own.accumulator: total}
        body = (*body[:at], *renamed(rest, functools.partial(_name, names)))
    return _joined_loops(body)


def _name(names: Mapping[str, str], name: str) -> str:
    return names.get(name, name)


def _continued(body: tuple[Node, ...], at: int) -> str | None:
    """The sum that the accumulator started there goes on with, if nothing else needs it."""
    match body[at]:
        case Start(reducer=Reducer.ADD, tensor=tensor, value=Result(accumulator=total)):
            starts = [
                (node.tensor, node.reducer)
                for node in body[:at]
                if isinstance(node, Start) and node.accumulator == total
            ]
            is_sum = starts == [(tensor, Reducer.ADD)]
            return total if is_sum and total not in accumulators_of(*body[at + 1 :]) else None
        case _:
            return None


def _joined_loops(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    out: list[Node] = []
    for node in nodes:
        last = out[-1] if out else None
        if isinstance(node, For) and isinstance(last, For) and _fit(last, node):
            inner = map_nodes(last.body, functools.partial(_moved, last.name, symbol(node.name)))
            out[-1] = replace(node, body=_joined_loops((*inner, *node.body)))
        else:
            out.append(node)
    return tuple(out)


def _moved(name: str, to: Poly, value: Poly) -> Poly:
    return value.substitute({name: to})


def _fit(first: For, second: For) -> bool:
    """Whether both run over the same values, do nothing but add, and keep their names apart.

    The first loop takes the name of the second, which nothing in it may define; and what it defines
    is seen by what follows in the second.
    """
    same = (first.lower, first.upper, first.any_order)
    if (second.lower, second.upper, second.any_order) != same:
        return False
    bound = {each.name for each in walk(first.body) if isinstance(each, Define | For)}
    seen = {each.name for each in first.body if isinstance(each, Define)}
    own = {each.name for each in second.body if isinstance(each, Define)}
    is_apart = second.name not in bound and seen.isdisjoint(symbols_of(*second.body) - own)
    return is_apart and all(map(_only_adds, (*first.body, *second.body)))


def _only_adds(node: Node) -> bool:
    return not results_of((node,)) and all(
        isinstance(each, Define | For | If)
        or (isinstance(each, Accumulate) and each.reducer is Reducer.ADD)
        for each in walk((node,))
    )
