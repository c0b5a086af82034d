"""Temporaries of positions in few terms as numbers of 16 bits.

The gradient of a maximum looks for the first term that holds it,

    first_y[n,c,i,j] = argmax(k in 3, l in 3; 3*k + l) x[n,c, 2*i + k - 1 ?0, 2*j + l - 1 ?0]

and asks for it once for each term. There are nine positions, and -1. In 64 bits they were twice as
large as what they are found in where windows do not overlap, and took two comparisons for a vector
of float32. Nobody but the kernels of the program sees them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import poly
from opgen.ir.loop_parts import uses
from opgen.ir.loops import (
    Accumulate,
    AtomicAdd,
    For,
    Kernel,
    Node,
    Operand,
    Program,
    Result,
    Store,
    walk,
)
from opgen.ir.notation import DType

_GREATEST: Final = 2**15 - 1


def with_narrow_positions(program: Program) -> Program:
    """The program with its temporaries of positions in few terms in 16 bits."""
    operands = tuple(
        replace(each, narrow=True) if _is_narrow(each, program) else each
        for each in program.operands
    )
    return program if operands == program.operands else replace(program, operands=operands)


def _is_narrow(operand: Operand, program: Program) -> bool:
    """Whether a temporary holds positions that are known to be small, and nothing else."""
    if not operand.widened or operand.dtype is not DType.I64:
        return False
    written = [kernel for kernel in program.kernels if operand.name in kernel.all_written]
    # An index that is loaded is an integer of 64 bits.
    if any(operand.name in uses(kernel).loaded for kernel in program.kernels):
        return False
    return bool(written) and all(_writes_small(kernel, operand.name) for kernel in written)


def _writes_small(kernel: Kernel, tensor: str) -> bool:
    """Whether all that a kernel writes to a tensor are such positions."""
    if kernel.moves or kernel.framed is not None or kernel.plane is not None:
        return False
    for node in walk(kernel.body):
        match node:
            case AtomicAdd(tensor=target) if target == tensor:
                return False
            case Store(tensor=target, value=Result(accumulator=name)) if target == tensor:
                terms = list(_terms(kernel.body, name, ()))
                if not terms or not all(_is_small(*term) for term in terms):
                    return False
            case Store(tensor=target) if target == tensor:
                return False
            case _:
                pass
    return True


def _terms(
    nodes: tuple[Node, ...], name: str, loops: tuple[For, ...]
) -> Iterator[tuple[Accumulate, tuple[For, ...]]]:
    """The terms of an accumulator with the loops around them."""
    for node in nodes:
        if isinstance(node, Accumulate):
            if node.accumulator == name:
                yield node, loops
            continue
        inner = (*loops, node) if isinstance(node, For) else loops
        yield from _terms(getattr(node, "body", ()), name, inner)


def _is_small(term: Accumulate, loops: tuple[For, ...]) -> bool:
    """Whether a position lies between 0 and what 16 bits hold, for all values of the loops."""
    position = term.position
    if position is None or not term.reducer.is_argument:
        return False
    least = greatest = position
    for loop in loops:
        step = position.step_in(loop.name)
        if loop.name not in position.symbols:
            continue
        first = [bound.constant for bound in loop.lower if bound.is_constant]
        last = [bound.constant for bound in loop.upper if bound.is_constant]
        if step is None or not first or not last or step < 0:
            return False
        least = least.substitute({loop.name: poly(max(first))})
        greatest = greatest.substitute({loop.name: poly(min(last))})
    if not least.is_constant or not greatest.is_constant:
        return False
    return least.constant >= 0 and greatest.constant <= _GREATEST
