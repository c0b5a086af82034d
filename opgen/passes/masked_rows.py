"""Rows that may be shorter than a few vectors: every pass takes a whole stretch at once.

Where the length of a row is known, its borders are known as well, and a row is a few vectors. Where
it is not, a pass is a loop, for short rows of less than a vector: its ends are then what takes the
time. So such a kernel comes beside the one along rows: its stretches are of a known number of
lanes, all passes run over all of them, and lanes outside of the bounds of a pass do nothing.

That needs a processor whose vectors have such lanes; it serves rows of a few stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly
from opgen.ir.loop_parts import goes_along, integer_names, loads_of, moving
from opgen.ir.loops import (
    Accumulate,
    Always,
    Argument,
    AtomicAdd,
    Call,
    Choose,
    Define,
    For,
    If,
    Integer,
    Kernel,
    Lanes,
    Load,
    Node,
    Number,
    Program,
    Result,
    Row,
    Scalar,
    Short,
    Start,
    Store,
    walk,
)
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.ir.primitives import VECTOR_OPERATORS
from opgen.passes.jam import copies_along
from opgen.passes.lane_choice import Way, choose
from opgen.passes.rows import Rewriter, Scope, direct
from opgen.passes.tile import tiles_along, window_tiles
from opgen.passes.unroll import unrolled

WIDTH: Final = 16
"""How many lanes a stretch has: a vector of float32 in registers of 64 bytes."""

LONGEST: Final = 48
"""The longest row that gains by it."""

MOST_PASSES: Final = 64
"""The most passes of a kernel: each takes the compiler some milliseconds."""

_FREE: Final = Scope()
_SUMS: Final = (Reducer.ASSIGN, Reducer.ADD)


def with_masked_rows(plain: Program, program: Program, facts: Facts) -> Program:
    """A program along rows, with kernels for short rows beside those that gain by it.

    `plain` are the same kernels with a parallel point for each cell.
    """
    if program.faults or program.workspaces or len(plain.kernels) != len(program.kernels):
        return program
    kernels: list[Kernel] = []
    for cells, rowed in zip(plain.kernels, program.kernels, strict=True):
        kernel = None if rowed.only is not None else _masked(cells, program, facts)
        if kernel is None or kernel.row is None:
            kernels.append(rowed)
            continue
        names = {each.name for each in (*program.kernels, *kernels)}
        only = Short(kernel.row.axis.extent, LONGEST, _walked(kernel), True)
        kernels.append(replace(kernel, name=fresh_name(f"{kernel.name}_short", names), only=only))
        kernels.append(replace(rowed, only=replace(only, holds=False)))
    return replace(program, kernels=tuple(kernels))


def _masked(kernel: Kernel, program: Program, facts: Facts) -> Kernel | None:
    """A kernel with one point for each cell as one of masked rows; None where it gains nothing.

    It gains where cells are sums of what lies in memory as they do, and share no loads.
    """
    if not kernel.is_deterministic or kernel.row is not None or not kernel.axes:
        return None
    kernel = replace(kernel, body=direct(kernel.body))
    choice = choose(kernel)
    if choice.way is not Way.ROW:
        return None
    copies = copies_along(kernel, choice.name, of_loops=True)
    kernel, bodies = copies.kernel, copies.bodies
    (axis,) = (each for each in kernel.axes if each.name == choice.name)
    if axis.extent.is_constant or len(bodies) != 1:
        return None
    if tiles_along(kernel, bodies, axis.name, all_shared=True):
        return None
    if window_tiles(kernel, bodies, axis.name):
        return None
    taken = integer_names(kernel, *bodies[0], known=facts.symbols)
    first, last = (fresh_name(f"{axis.name}_{end}", taken) for end in ("first", "last"))
    row = Row(axis, first, last, WIDTH)
    inside = facts.with_conditions(*(Condition(each.extent - 1) for each in kernel.axes))
    for each in kernel.axes:
        inside = inside.with_bounds(each.name, ZERO, each.extent - 1)
    body = tuple(Rewriter(row, inside).nodes(unrolled(bodies[0]), _FREE))
    if not _is_of_vectors(body, axis.name, program):
        return None
    axes = tuple(each for each in kernel.axes if each is not axis)
    return replace(kernel, axes=axes, row=row, body=body)


def _walked(kernel: Kernel) -> tuple[str, ...]:
    """The tensors in which neighbours in the row are neighbours."""
    assert kernel.row is not None
    lane = kernel.row.axis.name
    nodes = tuple(walk(kernel.body))
    names = [load.tensor for load in loads_of(nodes) if _has(load.indices, lane)]
    names += [node.tensor for node in nodes if isinstance(node, Store)]
    return tuple(dict.fromkeys(names))


def _is_of_vectors(body: tuple[Node, ...], lane: str, program: Program) -> bool:
    """Whether passes are few, and sums of products of elements that lie in memory as lanes do."""
    passes = [node for node in walk(body) if isinstance(node, Lanes)]
    inner = [node for each in passes for node in walk(each.body)]
    if len(passes) > MOST_PASSES or not any(isinstance(node, Accumulate) for node in inner):
        return False
    for each in passes:
        begins = any(isinstance(node, Start) for node in walk(each.body))
        if begins and (each.lower or each.upper):
            return False
    return all(_is_of_vector(node, lane, program) for node in inner)


def _is_of_vector(node: Node, lane: str, program: Program) -> bool:
    """Whether a node of a pass does to vectors what it does to numbers."""
    match node:
        case For() | AtomicAdd() | Lanes() | Define():
            return False
        case If(conditions=conditions, test=test):
            return test == Always() and not any(
                lane in condition.value.symbols for condition in conditions
            )
        case Start(reducer=reducer, value=value):
            return reducer in _SUMS and value is None
        case Accumulate(reducer=reducer, present=present, value=value):
            return reducer is Reducer.ADD and present == Always() and _moves(value, lane, program)
        case Store(tensor=tensor, indices=indices, value=value):
            return (
                program.operand(tensor).dtype.is_generic
                and goes_along(indices, lane)
                and _moves(value, lane, program)
            )
        case unexpected:
            assert_never(unexpected)


def _moves(value: Scalar, lane: str, program: Program) -> bool:
    """Whether a value is a vector: some part of it differs from lane to lane, and all may be."""
    return any(moving(value, lane)) and _is_vector(value, lane, program)


def _is_vector(value: Scalar, lane: str, program: Program) -> bool:
    match value:
        case Number() | Result():
            return True
        case Argument() | Integer() | Choose():
            return False
        case Load(tensor=tensor, indices=indices):
            if not _has(indices, lane):
                return True
            return program.is_plain(tensor) and goes_along(indices, lane)
        case Call(primitive=primitive, arguments=arguments):
            return primitive in VECTOR_OPERATORS and all(
                _is_vector(each, lane, program) for each in arguments
            )
        case unexpected:
            assert_never(unexpected)


def _has(indices: Sequence[Poly], lane: str) -> bool:
    return any(lane in index.symbols for index in indices)
