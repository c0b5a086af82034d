"""Nodes that differ from each other by a constant step in every polynomial."""

from __future__ import annotations

from collections.abc import Sequence

from opgen.algebra.poly import ZERO, Poly
from opgen.ir.loops import Node
from opgen.ir.map_loops import map_nodes

Body = tuple[Node, ...]

Parts = tuple[Body, list[Poly]]
"""Nodes without their polynomials, and these in the order in which `map_nodes` replaces them."""

Step = tuple[Poly, ...] | None
"""By how much each polynomial grows from one body to the next; None where other things differ."""


def parts_of(body: Body) -> Parts:
    """The nodes taken apart."""
    found: list[Poly] = []

    def keep(value: Poly) -> Poly:
        found.append(value)
        return ZERO

    return map_nodes(body, keep), found


def step_between(one: Parts, other: Parts) -> Step:
    """The step from one body to another."""
    if one[0] != other[0]:
        return None
    steps = tuple(b - a for a, b in zip(one[1], other[1], strict=True))
    return steps if all(step.is_constant for step in steps) else None


def moved(bodies: Sequence[Body], distance: Poly) -> Body | None:
    """The body so many steps from the first one, given that and what follows it.

    None where the second body is not one step from the first one.
    """
    if len(bodies) == 1:
        return bodies[0]
    first, second = parts_of(bodies[0]), parts_of(bodies[1])
    step = step_between(first, second)
    if step is None:
        return None
    values = iter([value + by * distance for value, by in zip(first[1], step, strict=True)])
    return map_nodes(bodies[0], lambda value: next(values))
