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
from opgen.algebra.poly import Kind, Poly, poly, symbol, symbol_atom
from opgen.ir.loops import (
    Accumulate,
    Axis,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Scalar,
    Start,
    Store,
    visit,
    walk,
)
from opgen.ir.map_loops import map_nodes, map_results, polynomials

LARGEST: Final = 8
"""The most values of an index for which the body is copied."""

MOST: Final = 8
"""The most copies for several axes."""

Body = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Copies:
    """A kernel whose body consists of independent copies, each with accumulators of its own."""

    kernel: Kernel
    bodies: tuple[Body, ...]


def copies_along(kernel: Kernel, name: str, reads: bool = False) -> Copies:
    """The kernel with copies of its body for what goes along with the axis of that name.

    With `reads` also for short axes that move what is read along it: `l` in `x[w + l]`.
    """
    kernel, bodies = _residues(kernel, name)
    axes = _interleaved(kernel, bodies, name)
    if reads:
        axes = tuple(dict.fromkeys((*axes, *_moving(kernel, bodies, name))))
    for axis in axes:
        if axis not in axes[:1] and len(bodies) * axis.extent.constant > MOST:
            break
        axes = tuple(each for each in kernel.axes if each is not axis)
        kernel = replace(kernel, axes=axes)
        bodies = [
            _with_own_accumulators(_at(body, axis.name, value), f"_{value}")
            for body in bodies
            for value in range(axis.extent.constant)
        ]
    return Copies(kernel, tuple(bodies))


# ---------------------------------------------------------------------------- residues
def _residues(kernel: Kernel, name: str) -> tuple[Kernel, list[Body]]:
    """The axis counted in steps of the divisors of its quotients: a body for each remainder."""
    divisors = set(_divisors(kernel.body, name))
    step = math.lcm(*divisors) if divisors else 1
    if not 1 < step <= LARGEST:
        return kernel, [kernel.body]
    (axis,) = (axis for axis in kernel.axes if axis.name == name)
    bodies = []
    for remainder in range(step):
        value = symbol(name) * step + remainder
        body = _substituted(with_own_definitions(kernel.body, f"_{remainder}", name), {name: value})
        exists = Condition(axis.extent - 1 - value)
        bodies.append(_with_own_accumulators((If((exists,), body),), f"_{remainder}"))
    counted = Axis(name, (axis.extent + step - 1) // step)
    axes = tuple(counted if each is axis else each for each in kernel.axes)
    return replace(kernel, axes=axes), bodies


def _divisors(body: Body, name: str) -> Iterator[int]:
    """The constants that something which depends on the index is divided by.

    Bounds do not count: they hold for a range of the index however they are rounded.
    """
    values: dict[str, Poly] = {}
    found: list[Poly] = []
    for node in walk(body):
        match node:
            case Define(name=name_, value=value):
                values.setdefault(name_, value.substitute(values))
            case For():
                pass
            case If(conditions=conditions, test=test):
                found += [each.value for each in conditions if each.relation is not Relation.GE]
                found += polynomials(If((), (), test))
            case _:
                found += polynomials(node)
    for value in found:
        for atom in value.substitute(values).all_atoms():
            if atom.kind is Kind.FLOOR_DIV and name in atom.symbols and atom.args[1].is_constant:
                yield atom.args[1].constant


# ---------------------------------------------------------------------------- interleaved cells
def _interleaved(kernel: Kernel, bodies: Sequence[Body], name: str) -> tuple[Axis, ...]:
    """Axes that fill the gaps between the cells of the row."""
    short = {
        axis.name: axis
        for axis in kernel.axes
        if axis.extent.is_constant and 1 < axis.extent.constant <= LARGEST and axis.name != name
    }
    found: dict[str, Axis] = {}
    for node in walk(bodies[0]):
        if not isinstance(node, Store) or not node.indices:
            continue
        last = node.indices[-1]
        step = _coefficient(last, name)
        for other, axis in short.items():
            if step == axis.extent.constant and _coefficient(last, other) == 1:
                found[other] = axis
    return tuple(found.values())


def _moving(kernel: Kernel, bodies: Sequence[Body], name: str) -> Iterator[Axis]:
    """Short axes that are added to the row's index in what is read."""
    found: list[Poly] = []

    def on_scalar(value: Scalar) -> None:
        if isinstance(value, Load) and value.indices and name in value.indices[-1].symbols:
            found.append(value.indices[-1])

    for node in walk(bodies[0]):
        visit(node, on_scalar, lambda test: None, lambda value: None)
    for axis in kernel.axes:
        if axis.name == name or not axis.extent.is_constant:
            continue
        is_short = 1 < axis.extent.constant <= LARGEST
        if is_short and any(_coefficient(index, axis.name) for index in found):
            yield axis


def _coefficient(value: Poly, name: str) -> int | None:
    linear = value.linear_in(symbol_atom(name))
    if linear is None or not linear[0].is_constant or name in linear[1].symbols:
        return None
    return linear[0].constant


# ---------------------------------------------------------------------------- copies
def _substituted(body: Body, values: Mapping[str, Poly]) -> Body:
    return map_nodes(body, lambda value: value.substitute(values))


def _at(body: Body, name: str, value: int) -> Body:
    return _substituted(with_own_definitions(body, f"_{value}", name), {name: poly(value)})


def _with_own_accumulators(body: Body, suffix: str) -> Body:
    return tuple(_rejoined(node, suffix) for node in body)


def _rejoined(node: Node, suffix: str) -> Node:
    match node:
        case For(body=body) | If(body=body) | Lanes(body=body):
            return replace(node, body=tuple(_rejoined(each, suffix) for each in body))
        case Start(accumulator=name) | Accumulate(accumulator=name):
            return replace(node, accumulator=name + suffix)
        case Store(value=value):
            return replace(node, value=map_results(value, lambda name: name + suffix))
        case _:
            return node


def with_own_definitions(body: Body, suffix: str, name: str) -> Body:
    """The body with other names for what it defines in terms of `name`."""
    moving = {name}
    for node in walk(body):
        if isinstance(node, Define) and not moving.isdisjoint(node.value.symbols):
            moving.add(node.name)
    defined = {old: f"{old}{suffix}" for old in sorted(moving - {name})}
    values = {old: symbol(new) for old, new in defined.items()}
    return tuple(_redefined(node, defined) for node in _substituted(body, values))


def _redefined(node: Node, defined: Mapping[str, str]) -> Node:
    match node:
        case Define(name=name):
            return replace(node, name=defined.get(name, name))
        case For(body=body) | If(body=body) | Lanes(body=body):
            return replace(node, body=tuple(_redefined(each, defined) for each in body))
        case _:
            return node


# ---------------------------------------------------------------------------- bodies as one
def jammed(bodies: Sequence[Body]) -> Body:
    """Bodies that do not depend on each other as one: loops that agree are shared."""
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
    return tuple(dict.fromkeys(group))
