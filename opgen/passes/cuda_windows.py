"""Wide windows along a row in pieces of a few neighbouring taps, which share what they load.

Before: a thread goes through the taps `l` of `x[.., w + l] * weight[l]` one by one, and for each of
them loads what lies one further for all of its cells, element by element: 4 loads for 4 products.
After: it takes 4 taps at a time from a multiple of 4 on. Four cells then read 7 neighbouring
elements for 16 products, in two accesses of 16 bytes, for a whole group of rows as before.

The terms of a cell keep their order. Each lane asks anyway which taps are its own; in the last
piece each tap also asks whether the window has it. It is done where the width of the window is
known, for others are mostly not windows: a loop over the pixels of an image moves with its taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol
from opgen.algebra.prove import implies
from opgen.ir.loop_parts import integers_in, loads_of
from opgen.ir.loops import Accumulate, Define, For, If, Lanes, Node, Row, walk
from opgen.ir.map_loops import map_nodes
from opgen.ir.names import fresh_name
from opgen.passes.jam import with_own_definitions

PIECE: Final = 4
"""Taps of a piece, as many as 16 bytes have of the usual elements. Of a window of 31 columns a
thread needs 23 at most in rows of 20 cells: pieces of 8 would have many that are not its own."""

MOST: Final = 16
"""The most terms of a piece."""


def in_pieces(nodes: Sequence[Node], row: Row, facts: Facts) -> list[Node]:
    """Nodes, whose lanes are those of the row, with such loops in pieces.

    `facts` hold for every cell.
    """
    out: list[Node] = []
    for node in nodes:
        match node:
            case For() if _is_window(node, row):
                out.append(_pieces(node, row, facts))
            case For(body=body) | If(body=body):
                out.append(replace(node, body=tuple(in_pieces(body, row, facts))))
            case _:
                out.append(node)
    return out


def _is_window(loop: For, row: Row) -> bool:
    """Whether cells along the row have parts of one range, and read along it turn by turn."""
    inner = tuple(walk(loop.body))
    terms = sum(isinstance(node, Accumulate) for node in inner)
    loads = [load.indices for load in loads_of(inner) if load.indices]
    return (
        all(_is_moving(bounds, row) for bounds in (loop.lower, loop.upper))
        and not loop.any_order
        and 0 < terms * PIECE <= MOST
        and all(isinstance(node, Lanes | Define) for node in loop.body)
        and not any(isinstance(node, For) for node in inner)
        and any(_walks(indices, row.axis.name, loop.name) for indices in loads)
    )


def _is_moving(bounds: Sequence[Poly], row: Row) -> bool:
    """Whether one end of a loop is a number, but for cells near that end of the row."""
    moving = [bound for bound in bounds if not {row.first, row.last}.isdisjoint(bound.symbols)]
    numbers = [bound for bound in bounds if bound.is_constant]
    return bool(moving) and bool(numbers) and len(moving) + len(numbers) == len(bounds)


def _walks(indices: tuple[Poly, ...], lane: str, name: str) -> bool:
    """Whether neighbouring turns read neighbours in the row that neighbouring cells read along."""
    *rows, last = indices
    return (
        last.step_in(name) in (1, -1)
        and last.step_in(lane) == 1
        and not any(name in index.symbols for index in rows)
    )


def _pieces(loop: For, row: Row, facts: Facts) -> For:
    """The loop over pieces."""
    taken = integers_in(loop).union((row.axis.name, row.first, row.last), facts.symbols)
    name = fresh_name(f"{loop.name}_piece", taken)
    # What moves with the row every lane asks by itself.
    first = max(bound.constant for bound in loop.lower if bound.is_constant)
    last = min(bound.constant for bound in loop.upper if bound.is_constant)
    here = symbol(name)
    inside = facts.with_bounds(name, poly(first // PIECE), poly(last // PIECE))
    body: list[Node] = []
    for at in range(PIECE):
        tap = here * PIECE + at
        own = (Condition(tap - first), Condition(last - tap))
        left = tuple(each for each in own if not implies(inside, each))
        copy = with_own_definitions(loop.body, str(at), loop.name)
        body += _guarded(left, _at(copy, {loop.name: tap}))
    return replace(
        loop,
        name=name,
        lower=tuple(bound // PIECE for bound in loop.lower),
        upper=tuple(bound // PIECE for bound in loop.upper),
        body=tuple(body),
    )


def _at(body: tuple[Node, ...], values: dict[str, Poly]) -> tuple[Node, ...]:
    return map_nodes(body, lambda value: value.substitute(values))


def _guarded(conditions: tuple[Condition, ...], body: Sequence[Node]) -> Iterator[Node]:
    """The body with conditions inside of its lanes, where passes over a row can be joined."""
    for node in body:
        if isinstance(node, Lanes) and conditions:
            yield replace(node, body=(If(conditions, node.body),))
        else:
            yield node
