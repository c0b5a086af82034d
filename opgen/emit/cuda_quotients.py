"""Elements by whose inverses the terms of a sum are multiplied, in place of dividing by them.

A division takes a GPU some twenty instructions, and a branch that keeps it from loading ahead.
Where the innermost loop goes on and the element that divides stays the same, or where several cells
of a thread have the same one, its inverse is found once and the terms are two products each, see
`by_inverse` in `opgen.runtime.cuda_source`. What that adds to the rounding of a term is less than
what a sum of many adds. Quotients that are no terms of a loop stay divisions, rounded once.

The compiler takes an inverse out of a loop if it is a division, which has a branch; where it has to
stay there, one without a branch is better (`by_moving_inverse`). On an H200, 512 channels, what
takes 1036 microseconds with two divisions for each term takes 506 so, and 594 without a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opgen.ir.loop_parts import visit
from opgen.ir.loops import (
    Accumulate,
    Call,
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


def shared_divisors(kernel: Kernel, program: Program) -> dict[Load, str]:
    """The elements that more than one term of a sum is divided by, and the function that does it.

    They are those of floating type. An element that several sums divide by is kept for one of them
    only if it is for all.
    """
    floating = {each.name for each in program.operands if not each.dtype.is_integer}
    cells = frozenset(row.axis.name for row in kernel.stretched)
    rows = kernel.group.axis.name if kernel.group is not None else None
    found: dict[Load, str] = {}
    for term, moving in _terms(kernel.body, rows, frozenset()):
        for load in _divisors(term):
            if load.tensor not in floating:
                continue
            names = frozenset[str]().union(*(index.symbols for index in load.indices))
            if not names.isdisjoint(moving) and not cells <= names:
                found[load] = MOVING
            elif names.isdisjoint(moving):
                found.setdefault(load, KEPT)
    return found


def _terms(
    nodes: tuple[Node, ...], rows: str | None, moving: frozenset[str]
) -> Iterator[tuple[Accumulate, frozenset[str]]]:
    """The terms that loops add up, with the names whose values differ between turns of the
    innermost one. The loop over `rows` is that over a thread's own cells."""
    for node in nodes:
        match node:
            case For(name=name, body=body) if name != rows:
                defined = {each.name for each in walk(body) if isinstance(each, Define)}
                yield from _terms(body, rows, frozenset({name, *defined}))
            case For(body=body) | Lanes(body=body) | If(body=body):
                yield from _terms(body, rows, moving)
            case Accumulate(reducer=Reducer.ADD) if moving:
                yield node, moving
            case _:
                pass


def _divisors(term: Accumulate) -> list[Load]:
    found: list[Load] = []

    def on_scalar(value: Scalar) -> None:
        match value:
            case Call(primitive="div", arguments=(_, Load() as divisor)):
                found.append(divisor)
            case _:
                pass

    visit(term, on_scalar, lambda test: None, lambda index: None)
    return found
