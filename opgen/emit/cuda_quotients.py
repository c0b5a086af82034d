"""Terms of sums that are multiplied by the inverses of elements, in place of divided by them.

A division takes a GPU some twenty instructions, and a branch that keeps it from loading ahead.
Where the innermost loop goes on and the element that divides stays the same, or where several cells
of a thread have the same one, its inverse is found once and the terms are two products each, see
`by_inverse` in `opgen.runtime.cuda_source`. What that adds to the rounding of a term is less than
what a sum of many adds. So it is done for quotients of which a term is made by sums and products
alone: one that is rounded down, or compared, may be another number for the last bit. Those that are
no terms of a loop stay divisions, rounded once.

The compiler takes an inverse out of a loop if it is a division and no condition stands before it. A
division has a branch, and where it has to stay in the loop, an inverse without one is better
(`by_moving_inverse`). On an H200, 512 channels, what takes 1036 microseconds with two divisions for
each term takes 506 so, and 594 without a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from opgen.ir.loops import (
    Accumulate,
    Always,
    Call,
    Choose,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Program,
    Scalar,
    walk,
)
from opgen.ir.notation import Reducer

KEPT: Final = "by_inverse"
MOVING: Final = "by_moving_inverse"
_SUMS_AND_PRODUCTS: Final = frozenset({"add", "sub", "neg", "mul", "div"})


@dataclass(frozen=True, slots=True)
class Quotient(Call):
    """A division that a function does."""

    function: str = KEPT


Divisors = Mapping[Accumulate, Mapping[Load, str]]
"""For the terms of sums the elements that divide in them, and the functions that do it instead."""


def shared_divisors(kernel: Kernel, program: Program) -> Divisors:
    """The elements of floating type that more than one term of a sum is divided by."""
    floating = {each.name for each in program.operands if not each.dtype.is_integer}
    cells = frozenset(row.axis.name for row in kernel.stretched)
    rows = kernel.group.axis.name if kernel.group is not None else None
    found: dict[Accumulate, dict[Load, str]] = {}
    for term, moving, is_certain in _terms(kernel.body, rows, frozenset(), True):
        functions: dict[Load, str] = {}
        for load in _divisors(term.value):
            names = frozenset[str]().union(*(index.symbols for index in load.indices))
            if load.tensor not in floating:
                continue
            if is_certain and names.isdisjoint(moving):
                functions[load] = KEPT
            elif not cells <= names:
                functions[load] = MOVING
        if found.setdefault(term, functions) != functions:
            found[term] = {}  # the same one, in two loops
    return found


def by_inverses(term: Accumulate, divisors: Divisors) -> Accumulate:
    """The term with divisions that these functions do."""
    functions = divisors.get(term)
    return replace(term, value=_replaced(term.value, functions)) if functions else term


def _terms(
    nodes: tuple[Node, ...], rows: str | None, moving: frozenset[str], is_certain: bool
) -> Iterator[tuple[Accumulate, frozenset[str], bool]]:
    """The terms that loops add up, with the names whose values differ between turns of the
    innermost one, and whether there is one in every turn. The loop over `rows` is that over a
    thread's own cells."""
    for node in nodes:
        match node:
            case For(name=name, body=body) if name != rows:
                defined = {each.name for each in walk(body) if isinstance(each, Define)}
                yield from _terms(body, rows, frozenset({name, *defined}), True)
            case For(body=body) | Lanes(body=body):
                yield from _terms(body, rows, moving, is_certain)
            case If(body=body):
                yield from _terms(body, rows, moving, False)
            case Accumulate(reducer=Reducer.ADD, present=present) if moving:
                yield node, moving, is_certain and present == Always()
            case _:
                pass


def _divisors(value: Scalar) -> Iterator[Load]:
    match value:
        case Call(primitive=primitive, arguments=arguments) if primitive in _SUMS_AND_PRODUCTS:
            if primitive == "div" and isinstance(arguments[1], Load):
                yield arguments[1]
            for each in arguments:
                yield from _divisors(each)
        case Choose(then=then, otherwise=otherwise):
            yield from _divisors(then)
            yield from _divisors(otherwise)
        case _:
            pass


def _replaced(value: Scalar, functions: Mapping[Load, str]) -> Scalar:
    match value:
        case Call(primitive=primitive, arguments=arguments) if primitive in _SUMS_AND_PRODUCTS:
            parts = tuple(_replaced(each, functions) for each in arguments)
            divisor = arguments[1] if primitive == "div" else None
            if isinstance(divisor, Load) and divisor in functions:
                return Quotient(primitive, parts, functions[divisor])
            return Call(primitive, parts)
        case Choose(then=then, otherwise=otherwise):
            then, otherwise = (_replaced(each, functions) for each in (then, otherwise))
            return replace(value, then=then, otherwise=otherwise)
        case _:
            return value
