"""What differs along a loop or an axis alone, in tables.

A kernel whose points go through an image, `grad_x[n,c, i*H//OH, j*W//OW] += grad_y[n,c,i,j]`, has a
division for every pixel, though it is that of every row above and of every other image. A call of
the kernel's function divides once for each value of a loop; then there are loads. See `lane_tables`
for those of a row.

So it is with pixels that are points themselves, `y[n,i,j,c] = x[n, i*H//OH, j*W//OW, c]` of images
in channels-last format: each divided twice, where it copies a few dozen channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Atom, Kind, Poly, of_atom, poly
from opgen.emit.lane_tables import Search, parts_of
from opgen.ir.loops import For, Integer, Kernel, Program, Scalar, walk

MOST: Final = 12
"""The most tables of a kernel."""


@dataclass(frozen=True, slots=True)
class LoopTables:
    """A loop from 0 on or an axis, how many values it has, and what of it goes into tables."""

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


def axis_tables(kernel: Kernel, program: Program) -> tuple[LoopTables, ...]:
    """The tables of axes, slowest one first: of sizes by which multiples of an axis are divided.

    Other quotients are of small numbers that are known, or the same for most points.
    """
    is_other = kernel.plane or kernel.sums or kernel.framed or kernel.moves or kernel.contraction
    if is_other or not kernel.is_deterministic:
        return ()
    found = []
    room = MOST
    for axis in kernel.axes:
        search = Search(axis.name, frozenset((*program.integers, axis.name)))
        values = Counter(each for each in search.nodes(kernel.body) if _resizes(each, axis.name))
        ordered = sorted(values, key=lambda each: (isinstance(each, Atom), str(each)))[:room]
        if ordered:
            room -= len(ordered)
            found.append(LoopTables(axis.name, axis.extent, tuple(ordered)))
    return tuple(found)


def _resizes(value: Atom | Scalar, name: str) -> bool:
    """Whether a multiple of an index is divided by something in an integer."""
    atoms = of_atom(value).all_atoms() if isinstance(value, Atom) else _atoms_of(value)
    return any(
        atom.kind is Kind.FLOOR_DIV
        and name in atom.args[0].symbols
        and atom.args[0].step_in(name) not in (1, -1)
        for atom in atoms
    )


def _atoms_of(value: Scalar) -> Iterator[Atom]:
    for part in parts_of(value):
        if isinstance(part, Integer):
            yield from part.value.all_atoms()


def _loops(kernel: Kernel, known: frozenset[str]) -> Iterator[For]:
    """The loops whose range is that of a call, if no other one has the name."""
    loops = [node for node in walk(kernel.body) if isinstance(node, For)]
    names = Counter(each.name for each in loops)
    for each in loops:
        is_plain = each.lower == (poly(0),) and len(each.upper) == 1
        if is_plain and names[each.name] == 1 and each.upper[0].symbols <= known:
            yield each
