"""Sums whose terms are loaded a vector at a time, with the vector extensions of GNU C.

A sum in any order has a vector of partial sums beside its total. Where all tensors that the loop
walks through are consecutive in memory, whole vectors of terms are added to it; the rest of the
loop adds to the total as always. Left to the compiler, every run of the innermost loop would end
with the sum of a vector, which costs as much as a hundred terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Poly, symbol_atom
from opgen.emit.types import GENERIC
from opgen.ir.loops import (
    Accumulate,
    Always,
    Argument,
    Call,
    Define,
    For,
    Integer,
    Load,
    Number,
    Program,
    Scalar,
)
from opgen.ir.notation import Reducer

OPERATORS: Final = frozenset({"add", "sub", "mul", "div", "neg"})
"""Primitives that GNU C spells for vectors as for numbers."""


@dataclass(frozen=True, slots=True)
class VectorSum:
    """The only term of a loop, and the tensors that it walks through one by one."""

    term: Accumulate
    walked: tuple[str, ...]


def vector_sum(node: For, program: Program) -> VectorSum | None:
    """How the loop adds vectors; None where that is not possible."""
    *defines, term = node.body
    if (
        not node.any_order
        or not isinstance(term, Accumulate)
        or term.reducer is not Reducer.ADD
        or term.present != Always()
        or not all(isinstance(each, Define) for each in defines)
        or any(isinstance(each, Define) and node.name in each.value.symbols for each in defines)
    ):
        return None
    walked: dict[str, None] = {}
    for load in _loads(term.value):
        if load is None or load.tensor not in {operand.name for operand in program.operands}:
            return None
        if not any(node.name in index.symbols for index in load.indices):
            continue
        operand = program.operand(load.tensor)
        if operand.dtype not in GENERIC or operand.widened:
            return None
        if any(node.name in index.symbols for index in load.indices[:-1]):
            return None
        if not _is_next(load.indices[-1], node.name):
            return None
        walked[load.tensor] = None
    if not walked or not _is_arithmetic(term.value, node.name):
        return None
    return VectorSum(term, tuple(walked))


def _is_next(index: Poly, name: str) -> bool:
    linear = index.linear_in(symbol_atom(name))
    return linear is not None and linear[0] == 1 and name not in linear[1].symbols


def _is_arithmetic(value: Scalar, name: str) -> bool:
    match value:
        case Number() | Argument() | Load():
            return True
        case Integer(value=number):
            return name not in number.symbols
        case Call(primitive=primitive, arguments=arguments):
            return primitive in OPERATORS and all(_is_arithmetic(each, name) for each in arguments)
        case _:
            return False


def _loads(value: Scalar) -> Iterator[Load | None]:
    """Every load; None for what may hold one that is not always made."""
    match value:
        case Load():
            yield value
        case Call(arguments=arguments):
            for argument in arguments:
                yield from _loads(argument)
        case Number() | Argument() | Integer():
            return
        case _:
            yield None
