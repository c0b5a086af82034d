"""What chooses: extremes, and terms that are there where an integer of a tensor is a number, as
those of the gradient of a maximum: `select(first[n,i] == k, grad_y[n,i], 0)`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Poly
from opgen.ir.loop_parts import goes_along
from opgen.ir.loops import (
    Accumulate,
    Call,
    Choose,
    Integer,
    Load,
    Node,
    Nonzero,
    Number,
    Program,
    Scalar,
)
from opgen.ir.notation import DType, Reducer
from opgen.ir.primitives import VECTOR_OPERATORS

GREATEST: Final = frozenset({Reducer.MAX, Reducer.ARGMAX})
EXTREMES: Final = GREATEST | {Reducer.MIN, Reducer.ARGMIN}
"""Reducers of which a better term takes the place of another one."""


@dataclass(frozen=True, slots=True)
class WhereEqual:
    """`value` in the lanes where `element` is `number`, and zero in others."""

    element: Load
    number: Poly
    value: Scalar


def where_equal(value: Scalar, lane: str, program: Program) -> WhereEqual | None:
    """The parts of such a term in vectors; None where it is another one.

    All that it loads lies at the place of the integer, in tensors of the same shape. So it may be
    loaded where it is not asked for.
    """
    match value:
        case Choose(
            test=Nonzero(
                value=Call(primitive="eq", arguments=(Load() as element, Integer(value=number)))
            ),
            then=then,
            otherwise=Number(value=0),
        ) if lane not in number.symbols:
            operand = program.stored(element.tensor)
            if operand is None or operand.dtype is not DType.I64 or operand.optional:
                return None
            if not goes_along(element.indices, lane) or not _lies_at(then, element, program):
                return None
            return WhereEqual(element, number, then)
        case _:
            return None


def has_choices(nodes: Iterable[Node]) -> bool:
    """Whether some term is a choice; nodes in these are not looked at."""
    return any(isinstance(each, Accumulate) and isinstance(each.value, Choose) for each in nodes)


def _lies_at(value: Scalar, place: Load, program: Program) -> bool:
    """Whether a value is made by arithmetic of elements at a place."""
    match value:
        case Load(tensor=tensor, indices=indices):
            extents = program.operand(place.tensor).extents
            return (
                program.is_plain(tensor)
                and indices == place.indices
                and program.operand(tensor).extents == extents
            )
        case Call(primitive=primitive, arguments=arguments):
            are_there = all(_lies_at(each, place, program) for each in arguments)
            return primitive in VECTOR_OPERATORS and are_there
        case _:
            return False
