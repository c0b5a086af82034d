"""Terms of a sum that have no loads in common: windows that lie side by side.

A filter of 2x2 in steps of 2 reads every pixel once, so a sum over pixels loads nothing twice. To
write many of them out gains little then, and costs: in channels-last format each element of each
pixel is a stream of its own through memory, and the processor follows only so many of them. With
2048 channels of 8 by 8 the gradient of the filter takes half as long pixel by pixel as row by row.

Cells without loads in common are the same matter, and with 2048 channels two of them in a body take
half as long as sixteen. With 64 channels they take up to half as much again, and how many there are
is not known here: cells stay as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from opgen.algebra.poly import symbol_atom
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, For, Load, Start, walk
from opgen.passes.merge import Body, constant_range


def terms_are_apart(body: Body) -> bool:
    """Whether terms share no loads at different values of the loops between constants.

    There is a term for each accumulator at each of these values, and no term outside of them.
    """
    loops = [node for node in walk(body) if isinstance(node, For)]
    known = {node.name for node in loops if constant_range(node) is not None}
    inner = [node for node in loops if any(isinstance(each, Accumulate) for each in node.body)]
    started = [node.accumulator for node in walk(body) if isinstance(node, Start)]
    terms = [node for node in walk(body) if isinstance(node, Accumulate)]
    return (
        len(inner) == 1
        and inner[0].name in known
        and [term.accumulator for term in terms] == started
        and are_apart(loads_of(terms), known)
    )


def are_apart(loads: Iterable[Load], names: Collection[str]) -> bool:
    """Whether no element is loaded at two points of the axes of these names."""
    distinct = dict.fromkeys(loads)
    return not any(
        one.tensor == other.tensor and _may_meet(one, other, names)
        for one, other in itertools.combinations_with_replacement(distinct, 2)
    )


def _may_meet(one: Load, other: Load, names: Collection[str]) -> bool:
    """Whether one may load at some point what the other loads at another point.

    In each dim with one of the axes both go in the same steps, so it says how far apart the points
    are. Dims of which that is not so say nothing.
    """
    distances: dict[str, int] = {}
    for mine, theirs in zip(one.indices, other.indices, strict=True):
        gap = mine - theirs
        if not gap.is_constant:
            continue
        moving = [name for name in names if name in mine.symbols]
        if not moving:
            if gap != 0:
                return False
            continue
        linear = mine.linear_in(symbol_atom(moving[0]))
        if len(moving) > 1 or linear is None or not linear[0].is_constant:
            continue
        step = linear[0].constant
        if step == 0 or moving[0] in linear[1].symbols:
            continue
        distance, rest = divmod(gap.constant, step)
        if rest != 0 or distances.setdefault(moving[0], distance) != distance:
            return False
    return any(distances.get(name) != 0 for name in names)
