"""Several rows of cells for one thread, along a second axis.

What does not depend on the row is then done once for all of them: finding the place in the grid,
and loading what several rows read, such as the rows of an image that neighbouring rows of a window
share, or a row that all channels read. The axis is the one along which most loads are shared.

How many rows a thread has is left to the launch, like the number of cells of a stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import (
    Always,
    Axis,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Row,
    Store,
    walk,
)
from opgen.ir.names import fresh_name
from opgen.passes.jam import Copies, copy_at, residues
from opgen.passes.lane_passes import together

ROWS: Final = 8
"""The most rows of a thread."""

_MOST_COPIES: Final = 9
"""The most copies of a body for all axes together: those of a window of 3 by 3."""

_ALL_SHARED: Final = 4
_SOME_SHARED: Final = 2


def copies_across(copies: Copies, along: str) -> Copies:
    """Copies for what goes along with another axis than the row, as far as they stay few.

    These are short axes such as `i` in `y[2*h + i, ...]` and `k` in `x[h + k, ...]`, and remainders
    of an axis such as `h` in `x[h // 2, ...]`: then rows that they read are shared.
    """
    kernel, bodies = copies.kernel, copies.bodies
    for axis in kernel.axes:
        if axis.name != along and not axis.extent.is_constant:
            most = _MOST_COPIES // len(bodies)
            split = [residues(replace(kernel, body=body), axis.name, most) for body in bodies]
            if len({len(found) for _, found in split}) == 1:
                kernel = replace(kernel, axes=split[0][0].axes)
                bodies = tuple(body for _, found in split for body in found)
    for axis in kernel.axes:
        count = axis.extent.constant if axis.extent.is_constant else 0
        if (
            count < 2
            or count * len(bodies) > _MOST_COPIES
            or not _is_added(bodies[0], axis, kernel)
        ):
            continue
        bodies = tuple(
            copy_at(body, axis.name, poly(value), f"_{value}")
            for body in bodies
            for value in range(count)
        )
        kernel = replace(kernel, axes=tuple(each for each in kernel.axes if each is not axis))
    return Copies(kernel, bodies)


def _is_added(body: tuple[Node, ...], axis: Axis, kernel: Kernel) -> bool:
    others = {each.name for each in kernel.axes if not each.extent.is_constant}
    values = {node.name: node.value for node in walk(body) if isinstance(node, Define)}
    indices = [load.indices for load in loads_of(walk(body))]
    indices += [node.indices for node in walk(body) if isinstance(node, Store)]
    rows = [row.substitute(values) for each in indices for row in each[:-1]]
    return any(axis.name in row.symbols and not others.isdisjoint(row.symbols) for row in rows)


def tiled(kernel: Kernel) -> Kernel:
    """A kernel that has a row, with groups of rows along another axis where that can be done."""
    row = kernel.row
    if row is None:
        return kernel
    candidates = [axis for axis in kernel.axes if not axis.extent.is_constant]
    scored = [(_score(kernel, row, axis), at) for at, axis in enumerate(candidates)]
    for _, at in sorted(scored, reverse=True):
        body = _inside_lanes(kernel.body, candidates[at].name)
        if body is not None:
            return _grouped(kernel, row, candidates[at], together(body, row.axis.name))
    return kernel


def _grouped(kernel: Kernel, row: Row, axis: Axis, body: tuple[Node, ...]) -> Kernel:
    taken = {each.name for each in kernel.axes} | {define.name for define in kernel.prologue}
    taken |= {node.name for node in walk(body) if isinstance(node, Define | For)}
    taken |= {row.axis.name, row.first, row.last}
    first, last = (fresh_name(f"{axis.name}_{end}", taken) for end in ("first", "last"))
    group = Row(axis, first, last, ROWS)
    axes = tuple(each for each in kernel.axes if each is not axis)
    return replace(kernel, axes=axes, group=group, body=_with_rows(body, group))


# ---------------------------------------------------------------------------- which axis
def _score(kernel: Kernel, row: Row, axis: Axis) -> int:
    """How much of what is loaded along the row the rows of a group would share."""
    loads = list(dict.fromkeys(loads_of(walk(kernel.body))))
    score = 0
    for load in loads:
        *rows, last = load.indices or (symbol(axis.name),)
        if row.axis.name not in last.symbols:
            continue
        if not any(axis.name in index.symbols for index in rows):
            score += _ALL_SHARED
        elif any(_is_next(load, other, axis.name) for other in loads):
            score += _SOME_SHARED
    return score


def _is_next(load: Load, other: Load, name: str) -> bool:
    """Whether two loads differ in an index that depends on the axis, by a constant."""
    if load.tensor != other.tensor or load.indices == other.indices:
        return False
    pairs = zip(load.indices, other.indices, strict=True)
    return all(a == b or (name in a.symbols and (a - b).is_constant) for a, b in pairs)


# ---------------------------------------------------------------------------- the body
def _inside_lanes(body: Sequence[Node], name: str) -> tuple[Node, ...] | None:
    """The body with every condition on the axis inside of lanes; None where more depends on it."""
    out: list[Node] = []
    for node in body:
        match node:
            case Lanes():
                if any(name in bound.symbols for bound in (*node.lower, *node.upper)):
                    return None
                out.append(node)
            case For(lower=lower, upper=upper):
                inner = _inside_lanes(node.body, name)
                if inner is None or _depend((*lower, *upper), name):
                    return None
                out.append(replace(node, body=inner))
            case If(conditions=conditions, test=test):
                inner = _inside_lanes(node.body, name)
                if inner is None or not node.body:
                    return None
                if _depend([each.value for each in conditions], name):
                    if test != Always():
                        return None
                    out += _guarded(node, inner)
                else:
                    out.append(replace(node, body=inner))
            case Define(value=value) if name not in value.symbols:
                out.append(node)
            case _:
                return None
    return tuple(out)


def _depend(values: Sequence[Poly], name: str) -> bool:
    return any(name in value.symbols for value in values)


def _guarded(guard: If, body: Sequence[Node]) -> Iterator[Node]:
    """The body with the guard inside of its lanes."""
    for node in body:
        match node:
            case Lanes():
                yield replace(node, body=(replace(guard, body=node.body),))
            case For() | If():
                yield replace(node, body=tuple(_guarded(guard, node.body)))
            case _:
                yield node


def _with_rows(body: Sequence[Node], group: Row) -> tuple[Node, ...]:
    """Loops over the rows of a group around all passes over a row."""
    bounds = (symbol(group.first),), (symbol(group.last),)
    out: list[Node] = []
    for node in body:
        match node:
            case Lanes():
                out.append(For(group.axis.name, *bounds, (node,)))
            case For(body=inner) | If(body=inner):
                out.append(replace(node, body=_with_rows(inner, group)))
            case _:
                out.append(node)
    return tuple(out)
