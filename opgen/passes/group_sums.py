"""Several sums at a time, where the loop around them jumps from plane to plane of a tensor.

Before: a point is a cell that adds up its terms, image after image. Of each image it reads one
plane, and the next one lies far away. After: a point is a group of cells whose planes lie side by
side, and all of them add their terms of an image before the next image comes. Each cell has
accumulators of its own and adds the same terms in the same order.

Alone it gains little; it makes a kernel fit to be a host, see `passes.guests`. The nine sums of a
3x3 filter lose by it, half their speed at 8 by 8: they take the time, and leave the registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import symbol
from opgen.ir.loop_parts import accumulators_of, integer_names, loads_of
from opgen.ir.loops import Accumulate, For, Kernel, Node, Row, Start, Store, walk
from opgen.ir.map_loops import symbols_of
from opgen.ir.names import fresh_name

MOST_SUMS: Final = 4
"""The most accumulators of a cell that takes turns with others."""


def grouped_sums(kernel: Kernel, width: int, known: Iterable[str]) -> Kernel:
    """The kernel with groups of cells along its last axis; as it was where it is no such sum."""
    if kernel.row is not None or kernel.group is not None or not kernel.axes:
        return kernel
    *axes, axis = kernel.axes
    at = _loop(kernel.body)
    if at is None or not _adds_planes(kernel.body, at, axis.name):
        return kernel
    taken = integer_names(kernel, known=known)
    first, last = (fresh_name(f"{axis.name}_{end}", taken) for end in ("first", "last"))
    bounds = (symbol(first),), (symbol(last),)

    def for_each(nodes: Sequence[Node]) -> For:
        return For(axis.name, *bounds, tuple(nodes))

    loop = kernel.body[at]
    assert isinstance(loop, For)
    around = replace(loop, body=(for_each(loop.body),))
    body = (for_each(kernel.body[:at]), around, for_each(kernel.body[at + 1 :]))
    return replace(kernel, axes=tuple(axes), group=Row(axis, first, last, width), body=body)


def cell_body(kernel: Kernel) -> tuple[Node, ...]:
    """The body of a kernel as it was before its cells were grouped."""
    if kernel.group is None:
        return kernel.body
    name = kernel.group.axis.name
    out: list[Node] = []
    for node in kernel.body:
        match node:
            case For(name=own, body=body) if own == name:
                out += body
            case For(body=(For(name=own, body=body),)) if own == name:
                out.append(replace(node, body=body))
            case _:
                out.append(node)
    return tuple(out)


def _loop(body: Sequence[Node]) -> int | None:
    """Where the loop over all terms is, between the beginning of accumulators and stores."""
    found = [at for at, node in enumerate(body) if isinstance(node, For)]
    if len(found) != 1:
        return None
    (at,) = found
    begins = all(isinstance(node, Start) and node.value is None for node in body[:at])
    ends = all(isinstance(node, Store) for node in body[at + 1 :])
    started = {node.accumulator for node in body[:at] if isinstance(node, Start)}
    is_whole = accumulators_of(*body) == started
    return at if begins and ends and is_whole and len(started) <= MOST_SUMS else None


def _adds_planes(body: Sequence[Node], at: int, axis: str) -> bool:
    """Whether the loop only adds, and something next to a plane of a cell is that of the next."""
    loop = body[at]
    assert isinstance(loop, For)
    inside = tuple(walk(loop.body))
    terms = [node for node in inside if isinstance(node, Accumulate)]
    return (
        loop.name not in symbols_of(*body[:at], *body[at + 1 :])
        and axis not in symbols_of(replace(loop, body=()))
        and not any(node.reducer.is_argument for node in terms)
        and any(
            any(
                before.symbol == loop.name and index.symbol == axis
                for before, index in zip(load.indices, load.indices[1:], strict=False)
            )
            for load in loads_of(inside)
        )
    )
