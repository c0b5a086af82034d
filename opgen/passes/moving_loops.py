"""Loops whose range moves from cell to cell, counted from where it begins.

Of the terms `j` in `w//2 .. (w + 1)//2` a cell `w` has one or two, and its neighbours have others.
Counted from `w//2` they are `0 .. (w + 1)//2 - w//2`: that is a constant for even and for odd `w`
alone, and the loop can be written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import ZERO, Kind, Poly, symbol
from opgen.ir.loops import Always, Define, For, If, Node
from opgen.ir.map_loops import map_nodes

LONGEST: Final = 8
"""The most terms of a cell that are counted from a quotient."""

FURTHEST: Final = 64
"""The longest step that is looked for: it takes as many polynomials to see that it is one."""


def from_begin(
    loop: For, depends: Callable[[Poly], bool], values: Mapping[str, Poly]
) -> For | None:
    """The loop from zero on, where its range moves and its length is short or the same for all.

    `depends` says whether a bound differs from cell to cell, `values` are definitions to look into.
    None where the loop stays, or where its length is not seen to be the same everywhere.
    """
    stays = all(any(not depends(bound) for bound in bounds) for bounds in (loop.lower, loop.upper))
    for first in filter(depends, loop.lower):
        begin = first.substitute(values)
        for last in filter(depends, loop.upper):
            count = last.substitute(values) - begin
            is_short = count.is_constant and count.constant < LONGEST
            if not is_short and (stays or depends(count)):
                continue
            value = begin + symbol(loop.name)
            others = [Condition(value - bound) for bound in loop.lower if bound is not first]
            others += [Condition(bound - value) for bound in loop.upper if bound is not last]
            body = map_nodes(loop.body, _substitution({loop.name: value}))
            return For(loop.name, (ZERO,), (count,), (If(tuple(others), body),))
    return None


def step(loop: For, name: str, values: Mapping[str, Poly]) -> int:
    """In which steps of an index its range moves; 1 where that makes its length no constant.

    Cells that are as many apart have equally many terms, if no other bound cuts some off. Steps
    longer than `FURTHEST` are not looked for.
    """
    for first in _quotients(loop.lower, name, values):
        for last in _quotients(loop.upper, name, values):
            found = math.lcm(*divisors(first, name), *divisors(last, name))
            if found > FURTHEST:
                continue
            cells = (symbol(name) * found + remainder for remainder in range(found))
            counts = ((last - first).substitute({name: cell}) for cell in cells)
            if all(count.is_constant and count.constant < LONGEST for count in counts):
                return found
    return 1


def _quotients(bounds: tuple[Poly, ...], name: str, values: Mapping[str, Poly]) -> Iterator[Poly]:
    """The bounds that are quotients of the index, and as such not linear in it."""
    known = (bound.substitute(values) for bound in bounds)
    return (bound for bound in known if any(True for _ in divisors(bound, name)))


def divisors(value: Poly, name: str) -> Iterator[int]:
    """The constants that something which depends on an index is divided by."""
    for atom in value.all_atoms():
        if atom.kind is Kind.FLOOR_DIV and name in atom.symbols and atom.args[1].is_constant:
            yield atom.args[1].constant


def counted(
    body: tuple[Node, ...], name: str, values: Mapping[str, Poly] | None = None
) -> tuple[Node, ...]:
    """The body with loops whose range moves with an index counted from where it begins."""
    known = dict(values or {})
    out: list[Node] = []
    for node in body:
        match node:
            case Define(name=defined, value=value):
                known[defined] = value.substitute(known)
                out.append(node)
            case For():
                moved = from_begin(node, _depends(name, known), known) or node
                inner = _guarded_inside(moved.body)
                out.append(replace(moved, body=counted(inner, name, known)))
            case If(body=inner):
                out.append(replace(node, body=counted(inner, name, known)))
            case _:
                out.append(node)
    return tuple(out)


def _guarded_inside(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """With a condition around a loop inside of it: terms of all loops can then share a loop."""
    match body:
        case (If(test=Always(), body=(For() as loop,)) as guard,):
            inner = replace(guard, body=loop.body)
            return (replace(loop, body=_guarded_inside((inner,))),)
        case _:
            return body


def _substitution(values: Mapping[str, Poly]) -> Callable[[Poly], Poly]:
    return lambda value: value.substitute(values)


def _depends(name: str, values: Mapping[str, Poly]) -> Callable[[Poly], bool]:
    return lambda bound: name in bound.substitute(values).symbols
