"""Kernels for whole planes, which `passes.planes` arranged, and sums over planes, in GNU C.

`plane_vectors` prints the vectors; here is what is around them: loops where the vectors of several
rounds differ in their places alone, and the cells of a guest within the loops of its host.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from opgen.emit.emitter import ScopeEmitter
from opgen.emit.plane_vectors import PlanePrinter, halved
from opgen.ir.loop_parts import is_last, loads_of
from opgen.ir.loops import Elements, Guest, Kernel, Planes, Program, walk
from opgen.ir.plane import LANES, Plane, PlaneSums, Run, picked_in, sources

FEW_TERMS: Final = 4
"""The most terms of cells that are rounded as where little else is done: those of windows of 2 by
2, which do not overlap, or of sums of as many cells."""

HAVE: Final = {
    Elements.COMPUTED: "HAVE_PLANES",
    Elements.NARROW: "HAVE_NARROW_PLANES",
    Elements.STORED: "HAVE_PLANES_OF_T",
}
"""The macros that are 1 where there are instructions that pick elements."""


def print_plane(emitter: ScopeEmitter, plane: Plane, streams: str) -> None:
    """The cells of a point; `streams` says whether they are stored past the caches, if they may."""
    is_little = all(len(cells.terms) <= FEW_TERMS for cells in plane.cells)
    fetches = not is_little and _reads_most(plane) and _reads_alone(emitter, plane)
    printer = PlanePrinter(emitter, plane.target.tensor, plane.copies, fetches, is_little)
    if not plane.copies:
        all_picked = (picked for cells in plane.cells for picked in cells.picked)
        printer.halved = halved(emitter, all_picked)
    if emitter.coarse is not None and emitter.kernel.plane is plane and is_little:
        printer.look_at(emitter.coarse)
    target = emitter.printer.cell(plane.target.tensor, plane.target.indices)
    if streams:
        printer.goes_past = _goes_past(emitter, streams, target)
    for is_single, runs in itertools.groupby(plane.runs, lambda run: run.count == 1):
        if is_single:
            printer.run(Run(tuple(cells for run in runs for cells in run.cells)), target)
            continue
        for run in runs:
            printer.run(run, target)


def _goes_past(emitter: ScopeEmitter, streams: str, target: str) -> str:
    """The variable that says whether the vectors from a cell on are stored past the caches."""
    name = emitter.scope.fresh("past")
    emitter.write(f"const int {name} = {streams} && (uintptr_t)&{target} % LINE == 0;")
    return name


def stores_planes(kernel: Kernel, program: Program) -> bool:
    """Whether these are vectors of planes, in a kernel that does little else than move numbers."""
    plane = kernel.plane
    if plane is None or plane.copies or not is_last(kernel, program):
        return False
    if any(len(cells.terms) > FEW_TERMS for cells in plane.cells):
        return False
    steps = [cells.first for cells in plane.cells] + [run.step for run in plane.runs]
    return all(step % LANES == 0 for step in steps)


def print_sums(emitter: ScopeEmitter, sums: PlaneSums) -> None:
    """What a round of a loop adds to vectors of partial sums, behind the cells of a guest."""
    guest = emitter.kernel.guest
    if sums.count == 1:
        assert guest is None, "sums in one round have no guest, see `passes.plane_sums`"
        printer = PlanePrinter(emitter)
        for accumulator, term in sums.terms:
            printer.total = emitter.vectors[accumulator]
            printer.term(term)
        return
    totals = {name: emitter.scope.fresh("sums") for name, _ in sums.terms}
    for name, total in totals.items():
        emitter.write(f"wide_lanes {total} = {emitter.vectors[name]};")
    if guest is None or not guest.point:
        _print_rounds(emitter, sums, totals)
    else:
        _print_rounds_and_guest(emitter, sums, totals, guest)
    for name, total in totals.items():
        emitter.write(f"{emitter.vectors[name]} = {total};")


def _print_rounds_and_guest(
    emitter: ScopeEmitter, sums: PlaneSums, totals: Mapping[str, str], guest: Guest
) -> None:
    """Rounds with the cells of a guest in them, or behind these where its vectors are others."""
    kernel = emitter.printer.program.kernel(guest.kernel)
    if not _has_same_vectors(kernel, sums):
        print_guest(emitter, guest)
        _print_rounds(emitter, sums, totals)
        return
    emitter.write(f"#if {HAVE[_elements(kernel)]}")
    emitter.write(f"if ({emitter.guest}) {{")
    _print_rounds(emitter.inner(), sums, totals, (guest, kernel))
    emitter.write("} else")
    emitter.write("#endif")
    emitter.write("{")
    _print_rounds(emitter.inner(), sums, totals)
    emitter.write("}")


def _has_same_vectors(kernel: Kernel, sums: PlaneSums) -> bool:
    """Whether the vectors of a guest are those of sums, one in each of as many rounds."""
    assert kernel.plane is not None
    (run, *others), steps = kernel.plane.runs, dict(sums.steps)
    return (
        not others
        and not kernel.plane.copies
        and len(run.cells) == 1
        and run.count == sums.count
        and all(steps.get(tensor) == step for tensor, step in run.steps)
    )


def _print_rounds(
    emitter: ScopeEmitter,
    sums: PlaneSums,
    totals: Mapping[str, str],
    along: tuple[Guest, Kernel] | None = None,
) -> None:
    """A loop that adds to `totals`, with the cells of a guest, which share what is loaded."""
    past = "" if along is None else _guest_goes_past(emitter, *along)
    name = emitter.scope.fresh("round")
    emitter.write(f"for (int64_t {name} = 0; {name} < {sums.count}; {name}++) {{")
    inner = emitter.inner()
    inner.write("NOT_A_VECTOR;")
    steps = dict(sums.steps)
    printer = PlanePrinter(inner, round=name, steps=steps)
    all_picked = [each for _, term in sums.terms for each in picked_in(term.value)]
    if along is not None and along[1].plane is not None:
        all_picked += [each for cells in along[1].plane.cells for each in cells.picked]
    printer.halved = halved(emitter, all_picked)
    if along is not None:
        guest, kernel = along
        assert kernel.plane is not None
        (run,), target = kernel.plane.runs, kernel.plane.target
        own = _at_point(inner, guest)
        is_little = len(run.cells[0].terms) <= FEW_TERMS
        cells = replace(
            printer, emitter=own, target=target.tensor, is_little=is_little, goes_past=past
        )
        cells.cells(run.cells[:1], own.printer.cell(target.tensor, target.indices), run.step)
    for accumulator, term in sums.terms:
        printer.total = totals[accumulator]
        printer.term(term)
    emitter.write("}")


def _guest_goes_past(emitter: ScopeEmitter, guest: Guest, kernel: Kernel) -> str:
    """The variable that says whether a guest's cells are stored past the caches, if they may."""
    streams = _streams_of_guest(emitter, kernel)
    if not streams:
        return ""
    assert kernel.plane is not None
    target = kernel.plane.target
    there = _at_point(emitter, guest).printer
    return _goes_past(emitter, streams, there.cell(target.tensor, target.indices))


def _at_point(emitter: ScopeEmitter, guest: Guest) -> ScopeEmitter:
    """An emitter of what a guest does at a point of its host."""
    names = emitter.printer.names
    point = {axis: emitter.text(value) for axis, value in guest.point}
    there = replace(names, symbols={**names.symbols, **point})
    return replace(emitter, printer=replace(emitter.printer, names=there))


def print_guest(emitter: ScopeEmitter, guest: Guest) -> None:
    """The cells of a guest, as a part of its host, at a cell of the group of that.

    A call for each plane, or one for all planes of a group, takes a sixth longer or more: it looks
    up and multiplies all steps again, and nothing of it overlaps with what the host computes.
    """
    kernel = emitter.printer.program.kernel(guest.kernel)
    assert kernel.plane is not None
    own = _at_point(emitter.inner(), guest)
    emitter.write(f"#if {HAVE[_elements(kernel)]}")
    emitter.write(f"if ({emitter.guest}) {{")
    print_plane(own, kernel.plane, _streams_of_guest(emitter, kernel))
    emitter.write("}")
    emitter.write("#endif")


def _streams_of_guest(emitter: ScopeEmitter, kernel: Kernel) -> str:
    """What says in a host whether a guest's cells are stored past the caches, if they may."""
    may = stores_planes(kernel, emitter.printer.program)
    return f"{emitter.guest}->streams" if may else ""


def _elements(kernel: Kernel) -> Elements:
    """What a kernel for planes does with elements."""
    assert isinstance(kernel.only, Planes)
    return kernel.only.elements


def _reads_most(plane: Plane) -> bool:
    """Whether a point loads at least twice as many vectors as it stores."""
    stored = sum(run.count * len(run.cells) for run in plane.runs)
    loaded = {
        (picked.first, begin + number * dict(run.steps).get(picked.first.tensor, 0))
        for run in plane.runs
        for cells in run.cells
        for picked in cells.picked
        if picked.size >= LANES
        for begin in sources(picked)
        for number in range(run.count)
    }
    return len(loaded) >= 2 * stored


def _reads_alone(emitter: ScopeEmitter, plane: Plane) -> bool:
    """Whether no other kernel of a call reads the planes: it leaves them in the caches, or asks."""
    kernel, program = emitter.kernel, emitter.printer.program
    planes = {picked.first.tensor for cells in plane.cells for picked in cells.picked}
    others = (each for each in program.kernels if each.name != kernel.name)
    others = (each for each in others if kernel.only is None or each.unless != kernel.only)
    read = {load.tensor for each in others for load in loads_of(walk(each.body))}
    return planes.isdisjoint(read)
