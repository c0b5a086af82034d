"""Terms of sums that loops of the CPU multiply by inverses: one division for a row.

A processor divides sixteen numbers of 32 bits in the time of ten products or more. Where the
innermost loop, over a sum or along a row, goes on and what divides stays the same, its inverse is
found before the loop, see `INVERSES` in `opgen.runtime.functions_source` and, for which terms may
be so, `emit.quotients`. The gradient of a softmax divides three times by the sum of a row.

What divides is loaded where the loop has a turn, and only for terms that every turn adds: in other
places there may be no such cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import assert_never

from opgen.algebra.poly import Poly
from opgen.emit.quotients import divisors_of
from opgen.emit.types import Type, Types
from opgen.ir.loops import (
    Accumulate,
    Always,
    Argument,
    Call,
    Choose,
    Define,
    For,
    Integer,
    Kernel,
    Lanes,
    Load,
    Number,
    Result,
    Scalar,
    Start,
    walk,
)
from opgen.ir.notation import Reducer


def row_divisors(node: For | Lanes, kernel: Kernel, types: Types) -> tuple[Scalar, ...]:
    """What divides in terms that a loop adds, and is the same in all of its turns."""
    if isinstance(node, For):
        moving = {node.name}
    else:
        assert kernel.row is not None
        moving = {kernel.row.axis.name}
    moving |= {each.name for each in walk(node.body) if isinstance(each, Define)}
    found = (
        divisor
        for term in _terms(node, kernel)
        for divisor in divisors_of(term.value)
        if types.of(divisor) is Type.REAL
        and _has_elements(divisor)
        and _stays(divisor, moving, kernel.all_written)
    )
    return tuple(dict.fromkeys(found))


def _terms(node: For | Lanes, kernel: Kernel) -> Iterator[Accumulate]:
    """What every turn adds to a sum of several terms."""
    joined = Counter(each.accumulator for each in walk(kernel.body) if isinstance(each, Accumulate))
    begun = {each.accumulator for each in node.body if isinstance(each, Start)}
    for term in node.body:
        if isinstance(term, Accumulate) and term.reducer is Reducer.ADD:
            is_sum = joined[term.accumulator] > 1 or term.accumulator not in begun
            if is_sum and term.present == Always():
                yield term


def _stays(value: Scalar, moving: Collection[str], written: Collection[str]) -> bool:
    """Whether a scalar made of elements is the same in all turns, and safe to compute before."""

    def is_still(*polynomials: Poly) -> bool:
        return not any(
            each.is_data_dependent or not each.symbols.isdisjoint(moving) for each in polynomials
        )

    match value:
        case Number() | Argument():
            return True
        case Integer(value=number):
            return is_still(number)
        case Load(tensor=tensor, indices=indices):
            return tensor not in written and is_still(*indices)
        case Call(arguments=arguments):
            return all(_stays(each, moving, written) for each in arguments)
        case Choose() | Result():
            return False
        case unexpected:
            assert_never(unexpected)


def _has_elements(value: Scalar) -> bool:
    match value:
        case Load():
            return True
        case Call(arguments=arguments):
            return any(map(_has_elements, arguments))
        case _:
            return False
