"""Terms of sums that threads of a GPU multiply by the inverses of elements.

A division takes a GPU some twenty instructions, and a branch that keeps it from loading ahead.
Where the innermost loop goes on and the element that divides stays the same, or where several cells
of a thread have the same one, its inverse is found once and the terms are two products each, see
`by_inverse` in `opgen.runtime.cuda_source` and, for which terms may be so, `emit.quotients`. Those
that are no terms of a loop stay divisions, rounded once.

The compiler takes an inverse out of a loop if it is a division and no condition stands before it. A
division has a branch, and where it has to stay in the loop, an inverse without one is better
(`by_moving_inverse`). On an H200, 512 channels, what takes 1036 microseconds with two divisions for
each term takes 506 so, and 594 without a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from opgen.emit.quotients import KEPT, divisors_of
from opgen.ir.loops import (
    Accumulate,
    Always,
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

MOVING: Final = "by_moving_inverse"

Divisors = Mapping[Accumulate, Mapping[Scalar, str]]
"""For the terms of sums the elements that divide in them, and the functions that do it instead."""


def shared_divisors(kernel: Kernel, program: Program) -> Divisors:
    """The elements of floating type that more than one term of a sum is divided by."""
    floating = {each.name for each in program.operands if not each.dtype.is_integer}
    cells = frozenset(row.axis.name for row in kernel.stretched)
    rows = kernel.group.axis.name if kernel.group is not None else None
    found: dict[Accumulate, dict[Scalar, str]] = {}
    for term, moving, is_certain in _terms(kernel.body, rows, frozenset(), True):
        functions: dict[Scalar, str] = {}
        for load in divisors_of(term.value):
            if not isinstance(load, Load) or load.tensor not in floating:
                continue
            names = frozenset[str]().union(*(index.symbols for index in load.indices))
            if is_certain and names.isdisjoint(moving):
                functions[load] = KEPT
            elif not cells <= names:
                functions[load] = MOVING
        if found.setdefault(term, functions) != functions:
            found[term] = {}  # the same one, in two loops
    return found


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
