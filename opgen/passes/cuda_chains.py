"""Kernels that hand sums to one another as phases of one kernel, with a block for each cell.

Before: the mean of every image, then the mean of squares around it, then all pixels divided by
these: three kernels, each of which reads all pixels from memory. After: a block has an image. Its
threads add up the mean, wait for one another, add up the squares, wait, and divide pixels that are
still in a near cache.

A phase may read what an earlier one wrote for the same cell: that is known where both indices have
the cell's axes by themselves. Whether there are cells enough for all of a GPU, and few points in
each, is known to a launch, so the kernels stay beside their chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.ir.loop_parts import accumulators_of, loads_of, read_by, uses
from opgen.ir.loops import Axis, Chain, For, Kernel, Load, Program, Store, walk
from opgen.ir.map_loops import renamed
from opgen.ir.names import fresh_name
from opgen.ir.sums import box_sum, is_along
from opgen.passes.cuda_sums import summed
from opgen.passes.rows import direct

_Cells = tuple[Axis, ...]

LEAST: Final = 2
"""The fewest kernels of a chain."""

_MOST_SUMS: Final = 9
"""The most sums of a phase: a thread of a chain has 128 registers. For 8 these are enough, also in
float64, and for 25 in float32; 49 are spilled to memory."""


def with_chains(program: Program, plain: Program, facts: Facts) -> Program:
    """The program of threads with the chains of the kernels of the `plain` one."""
    found: list[Chain] = []
    names = _names(program)
    for chain in _chains(plain, facts):
        place = _place(program, chain)
        if place is not None:
            (first, count), name = place, next(names)
            phases = (replace(each, name=f"{name}_{each.written}") for each in chain.phases)
            made = replace(chain, name=name, first=first, count=count, phases=tuple(phases))
            found.append(made)
    return replace(program, chains=tuple(found))


def _names(program: Program) -> Iterator[str]:
    """Names that no kernel has, or begins with."""
    for number in itertools.count(1):
        name = f"{program.name}_chain_{number}"
        if not any(kernel.name.startswith(name) for kernel in program.kernels):
            yield name


def _place(program: Program, chain: Chain) -> tuple[int, int] | None:
    """Where the kernels are that write what a chain does, and how many: None where others lie
    between, or write to the same tensors."""
    written = {name for phase in chain.phases for name in phase.all_written}
    places = [
        at
        for at, kernel in enumerate(program.kernels)
        if not written.isdisjoint(kernel.all_written)
    ]
    if len(places) < LEAST or places != list(range(places[0], places[-1] + 1)):
        return None
    own = program.kernels[places[0] : places[-1] + 1]
    is_same = {name for kernel in own for name in kernel.all_written} == written
    return (places[0], len(places)) if is_same and not any(e.contraction for e in own) else None


def _chains(plain: Program, facts: Facts) -> Iterator[Chain]:
    """The longest chains of kernels, the first ones first; none shares a kernel with another."""
    # Several kernels write to the same memory.
    shared = {each.output for each in plain.workspaces} | {each.name for each in plain.workspaces}
    writers = [name for kernel in plain.kernels for name in kernel.all_written]
    shared |= {name for name in writers if writers.count(name) > 1}
    sums = [_sum_of(kernel, facts, plain.integers) for kernel in plain.kernels]
    at = 0
    while at < len(plain.kernels):
        best: tuple[Kernel, ...] = ()
        for cells in dict.fromkeys(each.axes for each in sums[at:] if each is not None):
            phases = _phases(plain, sums, at, cells, shared)
            if len(phases) > len(best) and any(s in phases for s in sums[at:] if s is not None):
                best, own = phases, cells
        if len(best) >= LEAST:
            yield Chain("", at, len(best), own, tuple(_joined(plain, best)))
        at += max(1, len(best))


def _phases(
    plain: Program,
    sums: Sequence[Kernel | None],
    first: int,
    cells: _Cells,
    shared: set[str],
) -> tuple[Kernel, ...]:
    """The kernels from the first one on, as far as each is a phase with these cells."""
    found: list[Kernel] = []
    places: dict[str, tuple[Poly, ...]] = {}
    read: set[str] = set()
    for kernel, own in zip(plain.kernels[first:], sums[first:], strict=True):
        phase = own if own is not None and own.axes == cells else _points_of(kernel, cells)
        if phase is None or phase.written in shared or phase.written in places:
            break
        read |= read_by(phase)
        if phase.written in read or not _reads_own_cells(phase, places, cells):
            break
        stores = [node for node in walk(phase.body) if isinstance(node, Store)]
        place = stores[0].indices
        names = {symbol(axis.name) for axis in cells}
        if not names <= set(place) or any(set(each.indices) & names != names for each in stores):
            break
        places[phase.written] = place
        found.append(phase)
    return tuple(found)


def _joined(plain: Program, phases: Sequence[Kernel]) -> Iterator[Kernel]:
    """The phases, with sums over the same points that follow one another as one."""
    first, *others = phases
    for phase in others:
        both = _both(plain, first, phase)
        if both is None:
            yield first
        first = phase if both is None else both
    yield first


def _both(plain: Program, one: Kernel, other: Kernel) -> Kernel | None:
    """Two sums as one phase; None where they are none, or the second one reads the first."""
    boxes = [box_sum(each, plain.integers) for each in (one, other)]
    (first, second) = boxes
    if first is None or second is None or first.box != second.box or one.axes != other.axes:
        return None
    if first.reducer is not second.reducer or not read_by(other).isdisjoint(one.all_written):
        return None
    starts = (*first.starts, *second.starts)
    is_of_one_type = all(plain.operand(start.tensor).dtype.is_generic for start in starts)
    if not is_of_one_type or len(starts) > _MOST_SUMS:
        return None
    taken = set(accumulators_of(*one.body))
    names = {old: fresh_name(old, taken) for old in sorted(accumulators_of(*other.body))}
    terms = (*first.terms, *renamed(second.terms, names.__getitem__))
    for axis in reversed(first.box):
        terms = (For(axis.name, (ZERO,), (axis.extent - 1,), terms, any_order=True),)
    more = (renamed(nodes, names.__getitem__) for nodes in (second.starts, second.stores))
    of_starts, of_stores = more
    return replace(
        one,
        body=(*first.starts, *of_starts, *terms, *first.stores, *of_stores),
        also=(*one.also, *other.all_written),
        spec=(*one.spec, *other.spec),
    )


def _sum_of(kernel: Kernel, facts: Facts, integers: Sequence[str]) -> Kernel | None:
    """A kernel as a sum over a box whose neighbouring points lie side by side in memory."""
    if not _is_plain(kernel):
        return None
    found = summed(replace(kernel, body=direct(kernel.body)), facts, integers, sorts=True)
    box = None if found is None else box_sum(found, integers)
    if box is None or not is_along(box) or len(box.starts) > _MOST_SUMS:
        return None
    return found


def _points_of(kernel: Kernel, cells: _Cells) -> Kernel | None:
    """A kernel that computes each cell of a tensor from cells of others, the given axes first."""
    names = [axis.name for axis in cells]
    own = [axis for axis in kernel.axes if axis.name in names]
    body = direct(kernel.body)
    if sorted(own, key=str) != sorted(cells, key=str) or not _is_plain(kernel):
        return None
    if any(isinstance(node, For) for node in walk(body)):
        return None
    others = tuple(axis for axis in kernel.axes if axis.name not in names)
    return replace(kernel, axes=(*cells, *others), body=body)


def _is_plain(kernel: Kernel) -> bool:
    """Whether points are independent of one another, and check no index."""
    is_alone = kernel.is_deterministic and not kernel.prologue and not kernel.local
    return is_alone and bool(kernel.axes) and not uses(kernel).faults


def _reads_own_cells(kernel: Kernel, places: dict[str, tuple[Poly, ...]], cells: _Cells) -> bool:
    """Whether a phase reads of what others wrote nothing but what is of its own cell."""
    names = {symbol(axis.name) for axis in cells}
    if not uses(kernel).loaded.isdisjoint(places):
        return False  # some is read within an index or a condition
    seen: list[Load] = loads_of(walk(kernel.body))
    for load in seen:
        written = places.get(load.tensor)
        if written is None:
            continue
        pairs = zip(written, load.indices, strict=True)
        if any(index != place for place, index in pairs if place in names):
            return False
    return True
