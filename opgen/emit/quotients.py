"""Terms of sums that are multiplied by an inverse, in place of divided.

What that adds to the rounding of a term is less than what a sum of many adds. So it is done for
quotients of which a term is made by sums and products alone: one that is rounded down, or compared,
may be another number for the last bit. Which terms, and by what function, is for those to say who
know the loops: `emit.row_quotients` for the CPU, `emit.cuda_quotients` for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from opgen.ir.loops import Accumulate, Call, Choose, Scalar

KEPT: Final = "by_inverse"
_SUMS_AND_PRODUCTS: Final = frozenset({"add", "sub", "neg", "mul", "div"})


@dataclass(frozen=True, slots=True)
class Quotient(Call):
    """A division that a function does."""

    function: str = KEPT


def divisors_of(value: Scalar) -> Iterator[Scalar]:
    """What is divided by where the value is made of the quotient by sums and products alone."""
    match value:
        case Call(primitive=primitive, arguments=arguments) if primitive in _SUMS_AND_PRODUCTS:
            if primitive == "div":
                yield arguments[1]
            for each in arguments:
                yield from divisors_of(each)
        case Choose(then=then, otherwise=otherwise):
            yield from divisors_of(then)
            yield from divisors_of(otherwise)
        case _:
            pass


def by_inverses(term: Accumulate, functions: Mapping[Scalar, str]) -> Accumulate:
    """The term with functions that divide by what they are given for."""
    return replace(term, value=_replaced(term.value, functions)) if functions else term


def _replaced(value: Scalar, functions: Mapping[Scalar, str]) -> Scalar:
    match value:
        case Call(primitive=primitive, arguments=arguments) if primitive in _SUMS_AND_PRODUCTS:
            parts = tuple(_replaced(each, functions) for each in arguments)
            if primitive == "div" and arguments[1] in functions:
                return Quotient(primitive, (parts[0], arguments[1]), functions[arguments[1]])
            return Call(primitive, parts)
        case Choose(then=then, otherwise=otherwise):
            then, otherwise = (_replaced(each, functions) for each in (then, otherwise))
            return replace(value, then=then, otherwise=otherwise)
        case _:
            return value
