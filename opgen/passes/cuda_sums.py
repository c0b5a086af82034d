"""Long sums with few cells as sums over a box, many cells at once where they share their loads.

Before: a cell `k`, `l` of the gradient of a filter sums over the pixels for which its tap lies
inside of the image, and every cell reads the whole image. After: the sum is over all pixels, with a
condition for each tap, and one pass has the accumulators of all taps: it reads the image once.

Maxima and minima are sums of this kind, too.

How the points of the box are shared out is left to the launch: threads take stretches along its
last axis, several rows of them, and where there are few cells, several blocks share a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly, poly, symbol
from opgen.algebra.prove import implies, is_nonnegative
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import (
    Accumulate,
    Always,
    Axis,
    Define,
    For,
    If,
    Kernel,
    Node,
    Start,
    Store,
    walk,
)
from opgen.ir.map_loops import map_nodes
from opgen.ir.sums import SHARED
from opgen.passes.jam import copy_at

_MOST_CELLS: Final = 25
"""The most cells of one pass: the taps of a window of 5 by 5."""

_MOST_TAPS: Final = 49
"""The most cells of one pass that are the taps of one window: 7 by 7.

A sum for each of them reads both tensors 49 times, 2 loads for a product: about 0.3 ms of the
gradients of [8,1024,20,20], which an H100 copies in 11 microseconds. One pass needs 218 registers
of a thread, and loads once for 9 products.
"""

MOST_APART: Final = 64
"""The most taps of a window that have a pass each, or one for a row: 11 for 11 by 11 taps."""

_FAR: Final = 2**31
"""More elements than one step along any axis whose step is known."""


def summed(
    kernel: Kernel, facts: Facts, integers: Sequence[str], sorts: bool = False
) -> Kernel | None:
    """The kernel as a sum over a box, see `opgen.ir.sums`; None where it is none.

    With `sorts` the last axes of the box are those along which loads lie side by side: channels
    may be the first ones of a sum, and the last dim of an image.
    """
    match kernel.body:
        case (Start(value=None, reducer=reducer), For() | If(), Store()) if reducer in SHARED:
            pass
        case _:
            return None
    taps = _taps(kernel)
    bodies = [kernel.body]
    for axis in taps:
        bodies = [
            copy_at(body, axis.name, poly(value), f"_{value}")
            for body in bodies
            for value in range(axis.extent.constant)
        ]
    nests = [_Nest.of(body[1]) for body in bodies]
    found = [nest for nest in nests if nest is not None]
    axes = tuple(axis for axis in kernel.axes if axis not in taps)
    known = _Known(frozenset(integers), _apart(axes))
    box = _box(found, facts, known) if len(found) == len(nests) else None
    if not box:
        return None
    inside = facts.with_conditions(*(Condition(each.extent - 1) for each in kernel.axes))
    for each in (*kernel.axes, *box):
        inside = inside.with_bounds(each.name, ZERO, each.extent - 1)
    order = sorted(box, key=lambda axis: _nearness(kernel, axis.name)) if sorts else list(box)
    terms = [node for nest in found for node in _simplified(nest.guarded(box, order), inside)]
    whole: tuple[Node, ...] = tuple(_merged(terms))
    for axis in reversed(order):
        whole = (For(axis.name, (ZERO,), (axis.extent - 1,), whole, any_order=True),)
    starts, stores = (tuple(body[at] for body in bodies) for at in (0, -1))
    return replace(kernel, axes=axes, body=(*starts, *whole, *stores))


@dataclass(frozen=True, slots=True)
class _Nest:
    """Loops that are inside of each other alone, the terms in them, and conditions around these."""

    loops: tuple[For, ...]
    conditions: tuple[Condition, ...]
    terms: tuple[Node, ...]

    @classmethod
    def of(cls, nest: Node) -> _Nest | None:
        """None where loops or terms lie side by side, or a bound is read from a tensor."""
        loops: list[For] = []
        conditions: list[Condition] = []
        inner: tuple[Node, ...] = (nest,)
        while not all(isinstance(node, Accumulate) for node in inner):
            match inner:
                case (Define(name=name, value=value), *rest) if not value.is_data_dependent:
                    inner = _with(name, value, rest)
                case (If(conditions=more, body=body, test=Always()),):
                    conditions += more
                    inner = body
                case (For(body=body) as loop,):
                    loops.append(replace(loop, body=()))
                    inner = body
                case _:
                    return None
        bounds = (bound for loop in loops for bound in (*loop.lower, *loop.upper))
        if any(each.is_data_dependent for each in (*bounds, *(each.value for each in conditions))):
            return None
        return cls(tuple(loops), tuple(conditions), inner)

    def guarded(self, box: Sequence[Axis], order: Sequence[Axis]) -> tuple[Node, ...]:
        """The terms as they are at a point of the box, conditions on fewer axes outside.

        Its axes come in the `order` in which loops go through them.
        """
        conditions = list(self.conditions)
        for loop, axis in zip(self.loops, box, strict=True):
            here = symbol(loop.name)
            conditions += [Condition(here - bound) for bound in loop.lower if bound != ZERO]
            last = axis.extent - 1
            conditions += [Condition(bound - here) for bound in loop.upper if bound != last]
        body = self.terms
        for name in (*(axis.name for axis in reversed(order)), None):
            own = tuple(each for each in conditions if _innermost(each, order) == name)
            body = (If(own, body),) if own else body
        return body


def _nearness(kernel: Kernel, name: str) -> tuple[bool, int]:
    """Least for axes that move loads to other rows, greatest for those that move them least."""
    last = [load.indices[-1] for load in loads_of(walk(kernel.body)) if load.indices]
    steps = [abs(index.step_in(name) or _FAR) for index in last if name in index.symbols]
    return bool(steps), -max(steps, default=0)


def _with(name: str, value: Poly, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Nodes with what a name stands for in its place."""
    return map_nodes(tuple(nodes), lambda each: each.substitute({name: value}))


@dataclass(frozen=True, slots=True)
class _Known:
    """What ranges may depend on: integers that a launch knows, and taps that a pass has one of."""

    integers: frozenset[str]
    taps: frozenset[str]


def _apart(axes: Sequence[Axis]) -> frozenset[str]:
    """The axes that are so short that all are taps, or as good as that; those of a large window
    leave most of their images out, and are enough cells to have a thread each."""
    short = [axis for axis in axes if axis.extent.is_constant]
    count = math.prod(axis.extent.constant for axis in short)
    return frozenset(axis.name for axis in short) if count <= MOST_APART else frozenset()


def _box(nests: Sequence[_Nest], facts: Facts, known: _Known) -> tuple[Axis, ...]:
    """Ranges that contain those of all nests and that a launch knows; nothing where there are none.

    They begin at 0, and they end where every nest has to end. Where the range is another one for
    every cell, as in a triangle, too much of a box would be left out.
    """
    if len({len(nest.loops) for nest in nests}) != 1:
        return ()
    box = []
    for loops in zip(*(nest.loops for nest in nests), strict=True):
        bounds = [bound for loop in loops for bound in (*loop.lower, *loop.upper)]
        first, *others = (set(loop.upper) for loop in loops)
        ends = (each for each in first.intersection(*others) if each.symbols <= known.integers)
        last = min(ends, key=lambda bound: (len(str(bound)), str(bound)), default=None)
        if (
            last is None
            or len({loop.name for loop in loops}) != 1
            or not all(bound.symbols <= known.integers | known.taps for bound in bounds)
            or not all(any(is_nonnegative(b, facts) for b in loop.lower) for loop in loops)
        ):
            return ()
        box.append(Axis(loops[0].name, last + 1))
    return tuple(box)


def _innermost(condition: Condition, axes: Sequence[Axis]) -> str | None:
    """The innermost axis that a condition depends on."""
    symbols = condition.value.symbols
    return next((each.name for each in reversed(axes) if each.name in symbols), None)


def _taps(kernel: Kernel) -> tuple[Axis, ...]:
    """Short axes of which some loads are independent, last ones first, as far as they are few."""
    loads = loads_of(walk(kernel.body))
    short = [
        axis
        for axis in reversed(kernel.axes)
        if axis.extent.is_constant
        and axis.extent.constant > 0
        and not all(any(axis.name in index.symbols for index in load.indices) for load in loads)
    ]
    if len(short) <= 2 and math.prod(axis.extent.constant for axis in short) <= _MOST_TAPS:
        return tuple(reversed(short))
    found: list[Axis] = []
    count = 1
    for axis in short:
        if axis.extent.constant * count <= _MOST_CELLS:
            found.append(axis)
            count *= axis.extent.constant
    return tuple(reversed(found))


def _simplified(nodes: Sequence[Node], facts: Facts) -> list[Node]:
    """Without conditions that hold for every point there is."""
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, If):
            left = tuple(each for each in node.conditions if not implies(facts, each))
            inner = _simplified(node.body, facts)
            out += [replace(node, conditions=left, body=tuple(inner))] if left else inner
        else:
            out.append(node)
    return out


def _merged(nodes: Sequence[Node]) -> list[Node]:
    """Neighbours under the same conditions put together."""
    out: list[Node] = []
    for node in nodes:
        last = out[-1] if out else None
        if isinstance(node, If) and isinstance(last, If) and last.conditions == node.conditions:
            out[-1] = replace(last, body=tuple(_merged((*last.body, *node.body))))
        else:
            out.append(node)
    return out
