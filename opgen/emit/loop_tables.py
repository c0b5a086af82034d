"""What differs along a loop alone, in tables: it is the same at every point of a kernel.

A kernel whose points go through an image, `grad_x[n,c, i*H//OH, j*W//OW] += grad_y[n,c,i,j]`, has a
division for every pixel, though it is that of every row above and of every other image. A call of
the kernel's function divides once for each value of a loop; then there are loads. See `lane_tables`
for those of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Atom, Poly, poly
from opgen.emit.lane_tables import Search
from opgen.ir.loops import For, Kernel, Program, Scalar, walk

MOST: Final = 12
"""The most tables of a kernel."""


@dataclass(frozen=True, slots=True)
class LoopTables:
    """A loop from 0 on, how many values it has, and what of it goes into tables."""

    loop: str
    count: Poly
    values: tuple[Atom | Scalar, ...]


def loop_tables(kernel: Kernel, program: Program) -> tuple[LoopTables, ...]:
    """The tables of loops that are the same at every point, outermost loop first.

    They are those of kernels that add to cells: points of others have a row instead, or few terms.
    """
    if kernel.is_deterministic or kernel.shares_cells:
        return ()
    found = []
    room = MOST
    for loop in _loops(kernel, frozenset(program.integers)):
        search = Search(loop.name, frozenset((*program.integers, loop.name)))
        values = Counter(search.nodes(loop.body))
        ordered = sorted(values, key=lambda each: (isinstance(each, Atom), str(each)))[:room]
        if ordered:
            room -= len(ordered)
            found.append(LoopTables(loop.name, loop.upper[0] + 1, tuple(ordered)))
    return tuple(found)


def _loops(kernel: Kernel, known: frozenset[str]) -> Iterator[For]:
    """The loops whose range is that of a call, if no other one has the name."""
    loops = [node for node in walk(kernel.body) if isinstance(node, For)]
    names = Counter(each.name for each in loops)
    for each in loops:
        is_plain = each.lower == (poly(0),) and len(each.upper) == 1
        if is_plain and names[each.name] == 1 and each.upper[0].symbols <= known:
            yield each
