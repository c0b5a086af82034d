"""Copies of a kernel's body for the values of a short index, and several bodies as one.

Where the innermost loop runs along `w` and cells lie at `w*2 + j`, both values of `j` belong into
its body: then whole vectors are stored, not every second element. Likewise an index such as
`(w + 1)//2` becomes linear in `w` for even and for odd `w` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Poly, maximum, minimum, poly, symbol
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Axis, Define, For, If, Kernel, Node, Store, walk
from opgen.ir.map_loops import map_nodes, polynomials, renamed
from opgen.passes.moving_loops import counted, divisors, step

LARGEST: Final = 8
"""The most values of an index for which the body is copied."""

WIDEST: Final = 16
"""The widest gap between the cells of a row, or the elements it loads, that copies fill."""

MOST: Final = 8
"""The most copies for several axes."""

Body = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Copies:
    """A kernel whose body consists of independent copies, each with accumulators of its own.

    Its copies are `counted` where loops had a range that moved with the row, and now do not.
    """

    kernel: Kernel
    bodies: tuple[Body, ...]
    counted: bool = False


def copies_along(kernel: Kernel, name: str, reads: bool = False, of_loops: bool = False) -> Copies:
    """The kernel with copies of its body for what goes along with the axis of that name.

    With `reads` also for short axes that move what is read along it: `l` in `x[w + l]`. With
    `of_loops` for the remainders of the axis by the steps in which ranges of short loops move.
    """
    is_linear = not any(_divisors(kernel.body, name, of_loops=False))
    kernel, bodies = residues(kernel, name, of_loops=of_loops)
    is_counted = is_linear and len(bodies) > 1
    axes = _interleaved(kernel, bodies, name)
    if reads:
        axes = tuple(dict.fromkeys((*axes, *_moving(kernel, bodies, name))))
    for axis in axes:
        if reads and axis not in axes[:1] and len(bodies) * axis.extent.constant > MOST:
            break
        axes = tuple(each for each in kernel.axes if each is not axis)
        kernel = replace(kernel, axes=axes)
        bodies = [
            copy_at(body, axis.name, poly(value), f"_{value}")
            for body in bodies
            for value in range(axis.extent.constant)
        ]
    return Copies(kernel, tuple(bodies), is_counted)


# ---------------------------------------------------------------------------- residues
def residues(
    kernel: Kernel, name: str, most: int = LARGEST, of_loops: bool = False
) -> tuple[Kernel, list[Body]]:
    """The axis counted in steps of the divisors of its quotients: a body for each remainder.

    It stays as it is where these would be more than `most`. With `of_loops` the short loops count
    whose range moves with the axis.
    """
    period = math.lcm(*_divisors(kernel.body, name, of_loops))
    if not 1 < period <= most:
        return kernel, [kernel.body]
    (axis,) = (axis for axis in kernel.axes if axis.name == name)
    bodies = []
    for remainder in range(period):
        value = symbol(name) * period + remainder
        own = with_own_definitions(kernel.body, str(remainder), name)
        body = _substituted(own, {name: value})
        body = counted(body, name) if of_loops else body
        exists = Condition(axis.extent - 1 - value)
        bodies.append(_with_own_accumulators((If((exists,), body),), f"_{remainder}"))
    fewer = Axis(name, (axis.extent + period - 1) // period)
    axes = tuple(fewer if each is axis else each for each in kernel.axes)
    return replace(kernel, axes=axes), bodies


def _divisors(body: Body, name: str, of_loops: bool) -> Iterator[int]:
    """The constants that something which depends on the index is divided by.

    Bounds do not count: they hold for a range of the index however they are rounded. With
    `of_loops` they do in a loop that begins and ends at quotients and has few terms.
    """
    values: dict[str, Poly] = {}
    found: list[Poly] = []
    for node in walk(body):
        match node:
            case Define(name=name_, value=value):
                values.setdefault(name_, value.substitute(values))
            case For() if of_loops:
                yield step(node, name, values)
            case For():
                pass
            case If(conditions=conditions, test=test):
                found += [each.value for each in conditions if each.relation is not Relation.GE]
                found += polynomials(If((), (), test))
            case _:
                found += polynomials(node)
    for value in found:
        yield from divisors(value.substitute(values), name)


# ---------------------------------------------------------------------------- interleaved cells
def _interleaved(kernel: Kernel, bodies: Sequence[Body], name: str) -> tuple[Axis, ...]:
    """Axes that fill the gaps between the cells of the row, or between the elements it loads."""
    short = {
        axis.name: axis
        for axis in kernel.axes
        if axis.extent.is_constant and 1 < axis.extent.constant <= LARGEST and axis.name != name
    }
    loads = [load.indices for load in loads_of(walk(bodies[0]))]
    stores = [node.indices for node in walk(bodies[0]) if isinstance(node, Store)]
    for indices in (*stores, *loads):
        found = _filling(indices[-1], name, short) if indices else ()
        if found:
            return found
    return ()


def _filling(value: Poly, name: str, short: Mapping[str, Axis]) -> tuple[Axis, ...]:
    """The axes whose values lie between two neighbours along `name`: they fill the gap exactly."""
    step = value.step_in(name)
    filled, found = 1, []
    while step is not None and filled < step <= WIDEST:
        axis = next((a for n, a in short.items() if value.step_in(n) == filled), None)
        if axis is None:
            return ()
        filled *= axis.extent.constant
        found.append(axis)
    return tuple(found) if filled == step else ()


def _moving(kernel: Kernel, bodies: Sequence[Body], name: str) -> Iterator[Axis]:
    """Short axes that are added to the row's index in what is read."""
    found = [
        load.indices[-1]
        for load in loads_of(walk(bodies[0]))
        if load.indices and name in load.indices[-1].symbols
    ]
    for axis in kernel.axes:
        if axis.name == name or not axis.extent.is_constant:
            continue
        is_short = 1 < axis.extent.constant <= LARGEST
        if is_short and any(index.step_in(axis.name) for index in found):
            yield axis


# ---------------------------------------------------------------------------- copies
def _substituted(body: Body, values: Mapping[str, Poly]) -> Body:
    return map_nodes(body, lambda value: value.substitute(values))


def copy_at(body: Body, name: str, value: Poly, suffix: str) -> Body:
    """The body at one value of an index, with accumulators and definitions of its own."""
    own = with_own_definitions(body, suffix.removeprefix("_"), name)
    own = _substituted(own, {name: value})
    return _with_own_accumulators(own, suffix)


def _with_own_accumulators(body: Body, suffix: str) -> Body:
    return renamed(body, lambda name: name + suffix)


def with_own_definitions(body: Body, number: str, name: str) -> Body:
    """The body with other names for what it defines in terms of `name`.

    Nothing else has such names: that of the copy at 2 of a quotient is `quotient.2`, where that of
    the second quotient of a body is `quotient_2`. Names in C are told apart when they are printed.
    """
    moving = {name}
    for node in walk(body):
        if isinstance(node, Define) and not moving.isdisjoint(node.value.symbols):
            moving.add(node.name)
    defined = {old: f"{old}.{number}" for old in sorted(moving - {name})}
    values = {old: symbol(new) for old, new in defined.items()}
    return renamed(_substituted(body, values), lambda accumulator: accumulator, defined)


# ---------------------------------------------------------------------------- bodies as one
def jammed(bodies: Sequence[Body]) -> Body:
    """Bodies that do not depend on each other as one: loops and conditions that agree are shared.

    Loops whose ranges differ share what they have in common; each runs through the values before
    and after that by itself. The terms of a cell keep their order.
    """
    first, *others = bodies
    if not others:
        return first
    if any(len(other) != len(first) for other in others):
        return tuple(node for body in bodies for node in body)
    out: list[Node] = []
    for group in zip(*bodies, strict=True):
        out += _joined(group)
    return tuple(out)


def _joined(group: tuple[Node, ...]) -> Sequence[Node]:
    first = group[0]
    if isinstance(first, For | If):
        heads = [replace(node, body=()) for node in group if isinstance(node, For | If)]
        if len(heads) == len(group) and len(set(heads)) == 1:
            inner = [node.body for node in group if isinstance(node, For | If)]
            return (replace(first, body=jammed(inner)),)
    loops = [node for node in group if isinstance(node, For)]
    if len(loops) == len(group) and len({(loop.name, loop.any_order) for loop in loops}) == 1:
        return _overlapping(loops)
    return tuple(dict.fromkeys(group))


def _overlapping(loops: Sequence[For]) -> Sequence[Node]:
    """Loops over one index with ranges of their own."""
    lower = tuple(dict.fromkeys(bound for loop in loops for bound in loop.lower))
    upper = tuple(dict.fromkeys(bound for loop in loops for bound in loop.upper))
    begin, end = maximum(*lower), minimum(*upper)
    if begin.symbols or end.symbols:
        return tuple(dict.fromkeys(loops))  # what each does alone would be most of the work
    before = [replace(each, upper=(*each.upper, begin - 1), any_order=False) for each in loops]
    both = replace(loops[0], lower=lower, upper=upper, body=jammed([each.body for each in loops]))
    behind = maximum(begin, end + 1)
    after = [replace(each, lower=(*each.lower, behind), any_order=False) for each in loops]
    return (*filter(_may_run, before), both, *filter(_may_run, after))


def _may_run(loop: For) -> bool:
    count = minimum(*loop.upper) - maximum(*loop.lower)
    return not count.is_constant or count.constant >= 0
