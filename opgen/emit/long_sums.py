"""Sums of any number of terms that are added one after the other: in double precision.

    double total = 0;
    for (int64_t n = 0; n < N; n++) total += x[n * x_s0 + c * x_s1];

A float that grows by ones stops at 2^24, and loses a digit long before. Where terms of a cell or
cells of a row lie side by side, vectors of partial sums (`opgen.emit.vectors`) and sums of parts
(`opgen.passes.sums_of_parts`) see to that. What is added here waits for the sum before, which takes
as long in either precision. A window's few terms, and many sums at a time, have no need of it.
Beside vectors there is a total for all terms that lie apart in memory. What is computed of a sum
has the precision of everything else.
"""

from __future__ import annotations

from typing import Final

from opgen.emit.vectors import vector_sum
from opgen.ir.loop_parts import accumulators_of
from opgen.ir.loops import Accumulate, For, Kernel, Lanes, Node, Program, walk
from opgen.ir.notation import Reducer

_MOST: Final = 4
"""The most sums of one loop."""


def is_long_sum(kernel: Kernel, accumulator: str) -> bool:
    """Whether an accumulator adds terms one by one in a loop of any length."""
    if kernel.row is not None or kernel.sums is not None or kernel.group is not None:
        return False
    return any(
        isinstance(node, For) and _adds(node, accumulator) and len(accumulators_of(node)) <= _MOST
        for node in walk(kernel.body)
    )


def is_beside_vectors(kernel: Kernel, accumulator: str, program: Program) -> bool:
    """Whether a total beside vectors of terms that are computed may get any number of these. Where
    terms are loaded those that no vector has are a sum of their own, see `emit.statements`."""
    loops = (node for node in walk(kernel.body) if isinstance(node, For))
    for loop in loops:
        vectors = vector_sum(loop, program)
        if vectors is None or vectors.walked or any(bound.is_constant for bound in loop.upper):
            continue
        if any(each.accumulator == accumulator for each in vectors.terms):
            return True
    return False


def _adds(loop: For, accumulator: str) -> bool:
    """Whether a loop adds to it, in order, and has no known number of terms."""
    nodes: tuple[Node, ...] = tuple(walk(loop.body))
    if loop.any_order or any(isinstance(each, Lanes) for each in nodes):
        return False
    if any(isinstance(each, For) and each.any_order for each in nodes):
        return False
    is_open = not any(bound.is_constant for bound in loop.upper)
    return is_open and any(
        isinstance(each, Accumulate)
        and each.accumulator == accumulator
        and each.reducer is Reducer.ADD
        for each in nodes
    )
