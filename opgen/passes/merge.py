"""Cells that share a body, with the loops over their terms cut where some cell has none.

The neighbours of a border have fewer terms than other cells, so loops over constant ranges differ
from cell to cell. Between the places where one of them begins or ends all values concern the same
cells: no value has to be tested.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import undecided
from opgen.algebra.poly import Poly, poly
from opgen.ir.loops import Accumulate, Always, Define, For, If, Node, walk
from opgen.ir.map_loops import map_nodes, map_test

MOST_TERMS: Final = 200
"""The most terms of all cells for which a loop is written out."""

MOST_VALUES: Final = 32
"""The most values of a loop that is written out."""

FEW_VALUES: Final = 4
"""The most values of a loop that is written out before it is known how many terms it has."""

Body = tuple[Node, ...]


def merged(bodies: Sequence[Body], most_terms: int = MOST_TERMS) -> Body | None:
    """Bodies that do not depend on each other as one; None where their loops do not fit together.

    The terms of a cell keep their order. Terms of several cells at one value of a loop stand side
    by side, since they are likely to load the same. Loops with up to `most_terms` are written out.
    """
    if len({len(body) for body in bodies}) > 1:
        return None
    out: list[Node] = []
    for group in zip(*bodies, strict=True):
        nodes = _merged(group, most_terms)
        if nodes is None:
            return None
        out += nodes
    return tuple(out)


def _merged(group: Sequence[Node], most_terms: int) -> Sequence[Node] | None:
    loops = [node for node in group if isinstance(node, For)]
    if not loops:
        is_plain = not any(isinstance(node, If) for node in group)
        return tuple(dict.fromkeys(group)) if is_plain else None
    if len(loops) < len(group) or len({loop.name for loop in loops}) > 1:
        return None
    known = [constant_range(loop) for loop in loops]
    ranges = [values for values in known if values is not None]
    if len(ranges) < len(loops):
        heads = {replace(loop, body=()) for loop in loops}
        inner = merged([loop.body for loop in loops], most_terms)
        return None if len(heads) > 1 or inner is None else (replace(loops[0], body=inner),)
    terms, longest = terms_of(loops), max(map(len, ranges))
    if longest <= (FEW_VALUES if terms is None else MOST_VALUES) and (terms or 0) <= most_terms:
        # Loops inside may have constant ranges at one value where they have none for all.
        out = _written_out(loops, ranges, most_terms)
        if (
            out is not None
            and sum(isinstance(n, Accumulate) for n in walk(tuple(out))) <= most_terms
        ):
            return out
    return _cut(loops, ranges, most_terms)


def constant_range(loop: For) -> range | None:
    """The values of a loop between constants."""
    if not all(bound.is_constant for bound in (*loop.lower, *loop.upper)):
        return None
    if not loop.lower or not loop.upper:
        return None
    lower = max(bound.constant for bound in loop.lower)
    return range(lower, min(bound.constant for bound in loop.upper) + 1)


def terms_of(nodes: Sequence[Node]) -> int | None:
    """How many terms all loops of the nodes have together; None where that is not known."""
    total = 0
    for node in nodes:
        match node:
            case For(body=body):
                values, inner = constant_range(node), terms_of(body)
                if values is None or inner is None:
                    return None
                total += len(values) * inner
            case If():
                return None
            case _:
                total += isinstance(node, Accumulate)
    return total


def _written_out(
    loops: Sequence[For], ranges: Sequence[range], most_terms: int
) -> list[Node] | None:
    """Every value, and at each the cells that have it."""
    out: list[Node] = []
    for value in sorted(set[int]().union(*ranges)):
        here = [loop for loop, values in zip(loops, ranges, strict=True) if value in values]
        bodies = [at(loop.body, {loop.name: poly(value)}) for loop in here]
        inner = merged(bodies, most_terms)
        if inner is None:
            return None
        out += inner
    return out


def _cut(loops: Sequence[For], ranges: Sequence[range], most_terms: int) -> list[Node] | None:
    """A loop for each stretch of values that concerns the same cells."""
    ends = sorted({end for values in ranges if values for end in (values.start, values.stop)})
    out: list[Node] = []
    for begin, end in itertools.pairwise(ends):
        here = [loop for loop, values in zip(loops, ranges, strict=True) if begin in values]
        if not here:
            continue
        inner = merged([loop.body for loop in here], most_terms)
        if inner is None:
            return None
        bounds = (poly(begin),), (poly(end - 1),)
        out.append(replace(here[0], lower=bounds[0], upper=bounds[1], body=inner))
    return out


def at(body: Body, values: Mapping[str, Poly]) -> Body:
    """The body at these values, without definitions and without conditions that are then known."""
    known = dict(values)
    out: list[Node] = []

    def change(value: Poly) -> Poly:
        return value.substitute(known)

    for node in body:
        match node:
            case Define(name=name, value=value):
                known[name] = change(value)
            case For(lower=lower, upper=upper, body=inner):
                bounds = tuple(map(change, lower)), tuple(map(change, upper))
                inner = at(inner, known)
                out.append(replace(node, lower=bounds[0], upper=bounds[1], body=inner))
            case If(conditions=conditions, body=inner, test=test):
                open_ = undecided(replace(each, value=change(each.value)) for each in conditions)
                if open_ is None:
                    continue
                inner, test = at(inner, known), map_test(test, change)
                if open_ or test != Always():
                    out.append(If(open_, inner, test))
                else:
                    out += inner
            case _:
                out += map_nodes((node,), change)
    return tuple(out)
