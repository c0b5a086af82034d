"""The loops that sort points by the cells that they choose, and those over the points of a cell.

Before, see `passes.buckets`:

    parallel v < V
      total = identity of max
      for m in 0 .. M - 1
        if dst[m] - v == 0
          total max= h[m]

After:

    parallel v < V
      total = identity of max
      for m_place in y_ends[v - 1] .. y_ends[v] - 1
        m = y_order[m_place]
        total max= h[m]

What is read outside of a tensor is 0: the points of the first cell begin there.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import ZERO, Poly, load, symbol
from opgen.ir.indices import digits_of, extents_of, position, product
from opgen.ir.loop_parts import integers_in
from opgen.ir.loops import (
    Accumulate,
    Always,
    AtomicAdd,
    Axis,
    Call,
    Define,
    For,
    If,
    Inside,
    Integer,
    Node,
    Number,
    Result,
    Start,
    Store,
    Test,
)
from opgen.ir.names import fresh_name
from opgen.ir.notation import Buckets, Iterator, Reducer
from opgen.passes.buckets import Choices
from opgen.passes.lower import Lowering, every


def sorting_loops(
    found: Choices, into: Buckets, lowering: Lowering, taken: set[str], accumulator: str
) -> tuple[tuple[Axis, ...], tuple[Node, ...]]:
    """The axes and the body of a kernel that sorts points by a count of those of each cell.

    `ends` first say how many points a cell has, then where the next one of each is to go, and at
    last where they end.
    """
    row = tuple(symbol(each.name) for each in found.others)
    cell = fresh_name("cell", taken)
    cells, here = product(found.counts), (*row, symbol(cell))
    chosen = (*row, _flat(found.values, found.counts))
    inside = (Inside(value, n) for value, n in zip(found.values, found.counts, strict=True))
    test = every((lowering.loads_inside(*found.values), *inside))
    count = AtomicAdd(into.ends, chosen, Number(1))
    place = position((each.name for each in found.points), extents_of(found.points))
    put = Store(into.order, (*row, load(into.ends, chosen)), Integer(place))
    many = Integer(load(into.ends, here))
    begin = Call("sub", (Result(accumulator), many))
    body = (
        _loop(cell, cells, (Store(into.ends, here, Number(0)),)),
        *_over_points(found.points, test, (count,)),
        Start(accumulator, into.ends, Reducer.ADD),
        _loop(
            cell,
            cells,
            (Accumulate(accumulator, Reducer.ADD, many), Store(into.ends, here, begin)),
        ),
        *_over_points(found.points, test, (put, count)),
    )
    return tuple(Axis(each.name, each.extent) for each in found.others), body


def _flat(values: Sequence[Poly], counts: Sequence[Poly]) -> Poly:
    """The place of a cell among all that are chosen from."""
    place = ZERO
    for value, count in zip(values, counts, strict=True):
        place = place * count + value
    return place


def _loop(name: str, extent: Poly, body: tuple[Node, ...]) -> Node:
    return For(name, (ZERO,), (extent - 1,), body)


def _over_points(
    points: Sequence[Iterator], test: Test, body: tuple[Node, ...]
) -> tuple[Node, ...]:
    """A body for every point that chooses a cell."""
    body = (If((), body, test),)
    for each in reversed(points):
        body = (_loop(each.name, each.extent, body),)
    return body


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the target, index by index, and what iterators are called in the loops to it."""

    indices: tuple[Poly, ...]
    names: dict[str, str]


def over_own_points(
    nodes: tuple[Node, ...], found: Choices, of: Buckets, cell: Cell, taken: set[str]
) -> tuple[Node, ...] | None:
    """The nodes with loops over the points of a cell alone; None where they have other loops than
    those over all points."""
    first = cell.names[found.points[0].name]
    for at, node in enumerate(nodes):
        match node:
            case For(name=name) if name == first:
                inner = _within(node, found, of, cell, taken)
            case For() | If():
                body = over_own_points(node.body, found, of, cell, taken)
                inner = None if body is None else (replace(node, body=body),)
            case _:
                continue
        if inner is not None:
            return (*nodes[:at], *inner, *nodes[at + 1 :])
    return None


def _within(
    loop: For, found: Choices, of: Buckets, cell: Cell, taken: set[str]
) -> tuple[Node, ...] | None:
    """The loop over the points of a cell in place of one over all."""
    names = [cell.names[each.name] for each in found.points]
    node: Node = loop
    between: list[If] = []
    for name, point in zip(names, found.points, strict=True):
        while isinstance(node, If) and len(node.body) == 1:
            between.append(node)
            (node,) = node.body
        if not isinstance(node, For) or node.name != name:
            return None
        if node.lower != (ZERO,) or node.upper != (point.extent - 1,):
            return None
        body = node.body
        if name != names[-1]:
            if len(body) != 1:
                return None
            (node,) = body
    for each in reversed(between):
        body = (replace(each, body=body),)
    return _in_list(body, names, found, of, cell, taken)


def _in_list(
    body: tuple[Node, ...],
    names: Sequence[str],
    found: Choices,
    of: Buckets,
    cell: Cell,
    taken: set[str],
) -> tuple[Node, ...] | None:
    """The body of loops over all points, for those in the list of a cell."""
    row = tuple(cell.indices[axis] for axis in found.rows)
    own = tuple(cell.indices[axis] for axis in found.dims)
    at = {old: symbol(new) for old, new in cell.names.items()}
    at |= {each.name: index for each, index in zip(found.others, row, strict=True)}
    asked = {
        Condition(sign * (value.substitute(at) - index), Relation.EQ)
        for value, index in zip(found.values, own, strict=True)
        for sign in (1, -1)
    }
    without, count = _without(body, asked)
    if count != len(found.values):
        return None
    used = {*taken, *names, *integers_in(*body)}
    place = fresh_name(f"{names[0]}_place", used)
    flat = _flat(own, found.counts)
    begin, end = (load(of.ends, (*row, each)) for each in (flat - 1, flat))
    point = load(of.order, (*row, symbol(place)))
    extents = [each.extent for each in found.points]
    defines: list[Node] = []
    if len(names) > 1:
        number = fresh_name(f"{names[0]}_point", used)
        defines.append(Define(number, point))
        point = symbol(number)
    for name, value in zip(names, digits_of(point, extents), strict=True):
        defines.append(Define(name, value))
    return (For(place, (begin,), (end - 1,), (*defines, *without)),)


def _without(body: tuple[Node, ...], asked: Set[Condition]) -> tuple[tuple[Node, ...], int]:
    """A body without these conditions, and how many of them it had."""
    nodes: list[Node] = []
    count = 0
    for node in body:
        match node:
            case If(conditions=conditions, body=inner, test=test):
                inner, more = _without(inner, asked)
                left = tuple(each for each in conditions if each not in asked)
                count += more + len(conditions) - len(left)
                nodes += [If(left, inner, test)] if left or test != Always() else inner
            case For(body=inner):
                inner, more = _without(inner, asked)
                count += more
                nodes.append(replace(node, body=inner))
            case _:
                nodes.append(node)
    return tuple(nodes), count
