"""Short loops of constant length written out, so that their terms can share a pass over a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition, undecided
from opgen.algebra.poly import Poly, poly
from opgen.ir.loops import Accumulate, AtomicAdd, For, If, Node, walk
from opgen.ir.map_loops import map_nodes
from opgen.ir.notation import Reducer
from opgen.passes.jam import with_own_definitions

LONGEST: Final = 8
"""The most values of one loop."""

LONGEST_MOVING: Final = 4
"""The most values of a loop of which every cell needs others."""

MOST: Final = 32
"""The most terms of all loops together."""


def unrolled(
    body: tuple[Node, ...], most: int = MOST, moving: int = LONGEST_MOVING
) -> tuple[Node, ...]:
    """The body without innermost loops that have few terms for every cell, `most` in all.

    Where a loop is another one for every cell it has at most so many `moving` values.
    """
    return _unrolled(_all_short_inside(body, moving), most, moving)


def _all_short_inside(body: tuple[Node, ...], moving: int) -> tuple[Node, ...]:
    """Short loops inside of long ones where one is all that the other contains.

    Terms are then added in another order, so it is done to sums only.
    """
    return tuple(_short_inside(node, moving) for node in body)


def _short_inside(node: Node, moving: int) -> Node:
    match node:
        case For(body=(For() as inner,)) if (
            short_range(node, moving) is not None
            and short_range(inner, moving) is None
            and not any(node.name in bound.symbols for bound in (*inner.lower, *inner.upper))
            and _only_adds(inner.body)
        ):
            swapped = replace(node, body=inner.body)
            return replace(inner, body=(_short_inside(swapped, moving),))
        case For(body=body):
            changed = replace(node, body=_all_short_inside(body, moving))
            return changed if changed == node else _short_inside(changed, moving)
        case If(body=body):
            return replace(node, body=_all_short_inside(body, moving))
        case _:
            return node


def _only_adds(body: tuple[Node, ...]) -> bool:
    terms = [each for each in walk(body) if isinstance(each, Accumulate)]
    return all(term.reducer is Reducer.ADD for term in terms)


def _unrolled(body: tuple[Node, ...], most: int, moving: int) -> tuple[Node, ...]:
    out: list[Node] = []
    for node in body:
        if isinstance(node, For):
            inner = _unrolled(node.body, most, moving)
            same = [bound for bound in node.lower if bound in node.upper]
            if same:
                out += _at(node, inner, same[0], "")
                continue
            values = short_range(node, moving)
            terms = sum(isinstance(each, Accumulate | AtomicAdd) for each in walk(inner))
            is_innermost = not any(isinstance(each, For) for each in walk(inner))
            if values is None or not is_innermost or len(values) * terms > most:
                out.append(replace(node, body=inner))
            else:
                for value in values:
                    out += _at(node, inner, poly(value), str(value))
        elif isinstance(node, If):
            out.append(replace(node, body=_unrolled(node.body, most, moving)))
        else:
            out.append(node)
    return tuple(out)


def short_range(node: For, moving: int = LONGEST_MOVING) -> range | None:
    """Every value that the loop can have, if these are few.

    Where its range moves from cell to cell on both sides, a cell has fewer still: they have to be
    very few, at most so many `moving` ones.
    """
    lower = [bound.constant for bound in node.lower if bound.is_constant]
    upper = [bound.constant for bound in node.upper if bound.is_constant]
    if not lower or not upper:
        return None
    moves = len(lower) < len(node.lower) and len(upper) < len(node.upper)
    values = range(max(lower), min(upper) + 1)
    return values if len(values) <= (moving if moves else LONGEST) else None


def _at(node: For, body: tuple[Node, ...], value: Poly, suffix: str) -> tuple[Node, ...]:
    """The body at one value, where the other bounds allow it; nothing if they never do."""
    conditions = [Condition(value - bound) for bound in node.lower if bound != value]
    conditions += [Condition(bound - value) for bound in node.upper if bound != value]
    open_ = undecided(conditions)
    if open_ is None:
        return ()
    here: dict[str, Poly] = {node.name: value}
    # Definitions at different values end up in one scope.
    inner = with_own_definitions(body, suffix, node.name) if suffix else body
    inner = map_nodes(inner, lambda each: each.substitute(here))
    return (If(open_, inner),) if open_ else inner
