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

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.loop_parts import integer_names, loads_of
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
from opgen.ir.map_loops import test_symbols
from opgen.ir.names import fresh_name
from opgen.passes.jam import Copies, copy_at, residues
from opgen.passes.lane_bounds import least_over
from opgen.passes.lane_passes import together

ROWS: Final = 8
"""The most rows of a thread."""

_MOST_COPIES: Final = 9
"""The most copies of a body for all axes together: those of a window of 3 by 3."""

_LONGEST_SHORT: Final = 16
"""The most values of a short axis, such as one over the taps of a window."""

_ALL_SHARED: Final = 4
_SOME_SHARED: Final = 2


def copies_across(copies: Copies, along: str) -> Copies:
    """Copies for what goes along with another axis than the row, as far as they stay few.

    These are short axes such as `i` in `y[2*h + i, ...]` and `k` in `x[h + k, ...]`, and remainders
    of an axis such as `h` in `x[h // 2, ...]`: then rows that they read are shared. There are none
    for axes `beside` the row.
    """
    kernel, bodies = copies.kernel, copies.bodies
    beside = kernel.axes[len(kernel.axes) - kernel.beside :]
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
            or axis in beside
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


def tiled(kernel: Kernel, facts: Facts) -> Kernel:
    """A kernel that has a row, with groups of rows along another axis where that can be done.

    `facts` hold for every cell. Where axes lie `beside` the row, it is the last one before these.
    """
    row = kernel.row
    if row is None:
        return kernel
    candidates = [axis for axis in kernel.axes if not _is_short(axis)]
    if kernel.beside:
        candidates = candidates[-1:]
    scored = [(_score(kernel, row, axis), at) for at, axis in enumerate(candidates)]
    for _, at in sorted(scored, reverse=True):
        group = _group(kernel, candidates[at], facts)
        body = _inside_lanes(kernel.body, group, facts)
        if body is not None:
            axes = tuple(each for each in kernel.axes if each is not group.axis)
            body = _with_rows(together(body, row.axis.name), group)
            return replace(kernel, axes=axes, group=group, body=body)
    return kernel


def _is_short(axis: Axis) -> bool:
    """Whether an axis has too few values to be shared out; those of a wide window are many."""
    return axis.extent.is_constant and axis.extent.constant <= _LONGEST_SHORT


def _group(kernel: Kernel, axis: Axis, facts: Facts) -> Row:
    taken = integer_names(kernel, known=facts.symbols)
    first, last = (fresh_name(f"{axis.name}_{end}", taken) for end in ("first", "last"))
    return Row(axis, first, last, ROWS)


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
def _inside_lanes(body: Sequence[Node], group: Row, facts: Facts) -> tuple[Node, ...] | None:
    """The body with every condition on the axis inside of lanes; None where more depends on it."""
    name = group.axis.name
    out: list[Node] = []
    for node in body:
        match node:
            case Lanes():
                if any(name in bound.symbols for bound in (*node.lower, *node.upper)):
                    return None
                out.append(node)
            case For():
                inner = _inside_lanes(node.body, group, facts)
                loop = None if inner is None else _for_all_rows(node, inner, group, facts)
                if loop is None:
                    return None
                out.append(loop)
            case If(conditions=conditions, test=test):
                inner = _inside_lanes(node.body, group, facts)
                if inner is None or not node.body:
                    return None
                asked = [each.value for each in conditions]
                if name in test_symbols(test) or _depend(asked, name):
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


def _for_all_rows(loop: For, body: tuple[Node, ...], group: Row, facts: Facts) -> For | None:
    """The loop over all values that some row of a group needs; None where these might be many.

    Such is the loop over the rows of a window, which near the ends of an image are fewer. Every row
    asks for its own values.
    """
    name, here = group.axis.name, symbol(loop.name)
    lower = [_end(bound, group, group.first, group.last, facts) for bound in loop.lower]
    upper = [_end(bound, group, group.last, group.first, facts) for bound in loop.upper]
    own = [Condition(here - bound) for bound in loop.lower if name in bound.symbols]
    own += [Condition(bound - here) for bound in loop.upper if name in bound.symbols]
    if not own:
        return replace(loop, body=body)
    ends = [each for each in (*lower, *upper) if each is not None]
    is_fixed = [any(name not in e.symbols for e in each) for each in (loop.lower, loop.upper)]
    if len(ends) < len(lower) + len(upper) or not all(is_fixed):
        return None
    inner = tuple(_guarded(If(tuple(own), ()), body))
    return replace(
        loop, lower=tuple(ends[: len(lower)]), upper=tuple(ends[len(lower) :]), body=inner
    )


def _end(bound: Poly, group: Row, first: str, last: str, facts: Facts) -> Poly | None:
    """The least of a bound over the rows of a group, which begins and ends with these.

    None where it is no plain one: every row would divide, in every turn, to ask for its own.
    """
    name = group.axis.name
    if name in bound.symbols and bound.step_in(name) is None:
        return None
    return least_over(bound, name, first, last, facts)


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
