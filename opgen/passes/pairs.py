"""Planes in pairs, where a sum goes from plane to plane of a tensor and reads little of each.

A processor that begins to read elsewhere waits for it; with two planes at a time it waits once for
both, and a partial sum is loaded and stored once for two terms. Where a pass over one plane begins
or ends elsewhere than that over the other, some lanes have one of the terms. The planes are taken
in the order in which they lie in memory, so that the next ones are known; otherwise the terms of a
cell keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from opgen.algebra.poly import ZERO, Poly, maximum, minimum, symbol
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import Accumulate, Always, For, If, Kernel, Lanes, Load, Node
from opgen.ir.map_loops import map_nodes
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer


def paired(kernel: Kernel, known: Iterable[str]) -> Kernel:
    """A kernel with groups of rows, with the innermost loop over planes in steps of two."""
    if kernel.group is None or kernel.row is None:
        return kernel
    return replace(kernel, body=_body(kernel.body, kernel, integer_names(kernel, known=known)))


def _body(nodes: Sequence[Node], kernel: Kernel, taken: set[str]) -> tuple[Node, ...]:
    out: list[Node] = []
    for node in nodes:
        match node:
            case For(body=(For(body=(For() as rows,)) as inner,)) if _is_backwards(
                node, inner, rows, kernel
            ):
                loop = replace(node, body=(rows,))
                out.append(replace(inner, body=_body((loop,), kernel, taken)))
            case For(body=(For() as rows,)) if _planes(node, rows, kernel):
                out += _pairs(node, rows, taken)
            case For(body=body) | If(body=body):
                out.append(replace(node, body=_body(body, kernel, taken)))
            case _:
                out.append(node)
    return tuple(out)


def _planes(loop: For, rows: For, kernel: Kernel) -> tuple[Load, ...]:
    """What is read along rows of which every value of a loop has others.

    Nothing, where the loop does more than to add one term to all cells of a group of rows.
    """
    assert kernel.group is not None and kernel.row is not None
    match rows:
        case For(
            name=name,
            body=(Lanes(body=(Accumulate(reducer=Reducer.ADD, present=Always()) as term,)),),
        ) if name == kernel.group.axis.name:
            pass
        case _:
            return ()
    bounds = (*loop.lower, *loop.upper)
    if loop.any_order or all(bound.is_constant for bound in bounds):
        return ()
    return tuple(
        load
        for load in loads_of((term,))
        if _place(load, loop.name) < len(load.indices) - 1
        and _grows(load.indices[-1], kernel.row.axis.name)
    )


def _place(load: Load, name: str) -> int:
    """The first dim along which a loop goes; the rank where it goes along none."""
    places = (at for at, index in enumerate(load.indices) if name in index.symbols)
    return next(places, len(load.indices))


def _grows(index: Poly, lane: str) -> bool:
    """Whether neighbouring lanes have neighbouring elements."""
    return index.step_in(lane) == 1


def _is_backwards(outer: For, inner: For, rows: For, kernel: Kernel) -> bool:
    """Whether the inner one of two loops over planes makes the longer steps in memory."""
    bounds = (*outer.lower, *outer.upper, *inner.lower, *inner.upper)
    if any(not {outer.name, inner.name}.isdisjoint(bound.symbols) for bound in bounds):
        return False
    own = _planes(outer, rows, kernel)
    return any(
        load in own and _place(load, inner.name) < _place(load, outer.name)
        for load in _planes(inner, rows, kernel)
    )


def _pairs(loop: For, rows: For, taken: set[str]) -> tuple[Node, ...]:
    """The loop over pairs, and the value that may be left."""
    (lanes,) = rows.body
    assert isinstance(lanes, Lanes)
    first, last = maximum(*loop.lower), minimum(*loop.upper)
    pairs = (last - first + 1) // 2
    name = fresh_name(f"{loop.name}_pair", taken)
    begin = first + 2 * symbol(name)
    one, other = (_at(lanes, loop.name, begin + number) for number in range(2))
    both = _together(one, other)
    # An empty range ends before `first`: so does the loop over what is left of it.
    left = replace(loop, lower=(*loop.lower, first + 2 * pairs))
    return For(name, (ZERO,), (pairs - 1,), (replace(rows, body=both),)), left


def _at(lanes: Lanes, name: str, value: Poly) -> Lanes:
    values = {name: value}
    (found,) = map_nodes((lanes,), lambda each: each.substitute(values))
    assert isinstance(found, Lanes)
    return found


def _together(one: Lanes, other: Lanes) -> tuple[Lanes, ...]:
    """Two passes as one over the lanes that both have, and others over those that one has alone."""
    if (one.lower, one.upper) == (other.lower, other.upper):
        return (replace(one, body=(*one.body, *other.body)),)
    joined = tuple(dict.fromkeys((*one.lower, *other.lower)))
    ends = tuple(dict.fromkeys((*one.upper, *other.upper)))
    passes = [Lanes(joined, ends, (*one.body, *other.body))]
    for own, rest in ((one, other), (other, one)):
        if rest.lower:
            before = (*own.upper, maximum(*rest.lower) - 1)
            passes.append(Lanes(own.lower, before, own.body))
        if rest.upper:
            behind = tuple(dict.fromkeys((*joined, minimum(*rest.upper) + 1)))
            passes.append(Lanes(behind, own.upper, own.body))
    return tuple(each for each in passes if not _is_empty(each))


def _is_empty(lanes: Lanes) -> bool:
    counts = (last - first + 1 for last in lanes.upper for first in lanes.lower)
    return any(count.is_constant and count.constant < 1 for count in counts)
