"""Kernels of short rows with a version that takes whole planes, many cells of several rows at once.

A loop along a row of eight cells is half a vector of them, and what interleaves two results, skips
every other element, or converts numbers of 16 bits goes nearly cell by cell there. But a plane of
eight such rows is four vectors, and each vector of results is made of few vectors of sources: the
elements for its lanes are picked out of these, in an order that is known here.

A vector has as many terms as the cell with the most. Lanes with fewer have a term where a tensor
that all have in common says so, a filter mostly, whose element then is one number for all lanes;
else their terms come first. A cell's terms keep their order in any case.

It needs a processor that picks any elements out of two vectors in one instruction, float32 or
smaller numbers, and planes whose cells lie one behind the other: calls are looked at, and others
run along rows as before. Kernels are as long as the plane has vectors and terms, which the compiler
pays for, so there is a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from opgen.algebra.poly import Poly, poly
from opgen.ir.loops import (
    Argument,
    Call,
    Choose,
    Elements,
    For,
    Integer,
    Kernel,
    Load,
    Number,
    Planes,
    Program,
    Result,
    Scalar,
)
from opgen.ir.names import fresh_name
from opgen.ir.plane import (
    LANES,
    Cells,
    Each,
    Joined,
    Picked,
    Plane,
    Run,
    Same,
    Term,
    Total,
    Vector,
    sources,
)
from opgen.ir.primitives import VECTOR_OPERATORS
from opgen.passes.plane_cells import (
    Cell,
    PlaneCells,
    known_dims,
    place_of,
    plane_cells,
    plane_sizes,
)
from opgen.passes.plane_runs import rolled
from opgen.passes.rows import direct

LONGEST: Final = 16
"""The longest row of results that is worth it: loops along longer ones are vectors,"""

LONGEST_NARROW: Final = 32
"""but for those of 16 bits. Copies along such rows are made otherwise, see `passes.moves`."""

MOST_STEPS: Final = 320
"""The most instructions of a kernel, about: each takes the compiler a millisecond."""

MOST_SOURCES: Final = 6
"""The most vectors out of which lanes of a term are picked."""

SMALL: Final = LANES
"""Planes of fewer elements are loaded one by one."""

_OfLane = TypeVar("_OfLane")


def with_plane_kernels(plain: Program, program: Program) -> Program:
    """A program along rows, with a kernel for whole planes beside a kernel that gains by it.

    `plain` is the same with a parallel point for each cell.
    """
    if program.faults or program.workspaces or len(plain.kernels) != 1:
        return program
    (cells,) = plain.kernels
    found = _planes(cells, plain)
    if found is None:
        return program
    names = {each.name for each in program.kernels}
    assert isinstance(found.only, Planes)
    kernel = replace(found, name=fresh_name(f"{cells.name}_planes", names))
    others = tuple(replace(each, unless=found.only) for each in program.kernels)
    return replace(program, kernels=(kernel, *others))


def _planes(kernel: Kernel, program: Program) -> Kernel | None:
    """The kernel with a plane for each point; None where rows are as good."""
    kernel = replace(kernel, body=direct(kernel.body))
    extents = program.operand(kernel.written).extents
    if not program.is_plain(kernel.written) or not extents or not extents[-1].is_constant:
        return None
    if extents[-1].constant > LONGEST_NARROW:
        return None
    found = plane_cells(kernel, program)
    if found is None or len(found.cells) < LANES or len(found.axes) == len(kernel.axes):
        return None
    vectors = _Vectors(program)
    cells: list[Cells] = []
    for first in (*range(0, len(found.cells) - LANES, LANES), len(found.cells) - LANES):
        made = vectors.cells(first, found.cells[first : first + LANES])
        if made is None:
            return None
        cells.append(made)
    runs = tuple(Run((each,)) for each in cells)
    if _share_nothing(cells) or sum(map(vectors.steps, cells)) > MOST_STEPS:
        runs = rolled(cells)
    plane = Plane(found.first, runs)
    if sum(map(vectors.steps, plane.cells)) > MOST_STEPS:
        return None
    if plane.copies and any(each.size < SMALL for all_ in cells for each in all_.picked):
        return None
    if any(not each.terms and _is_element(each.value) for each in cells):
        return None  # a number may not be what is stored: there is more than one NaN
    if extents[-1].constant >= LANES and all(map(_is_in_order, cells)):
        return None  # as vectors of a loop are
    elements = Elements.STORED if plane.copies else Elements.COMPUTED
    if extents[-1].constant > LONGEST:
        if plane.copies:
            return None
        elements = Elements.NARROW
    return _over_planes(kernel, found, plane, program, elements)


def _over_planes(
    kernel: Kernel, found: PlaneCells, plane: Plane, program: Program, elements: Elements
) -> Kernel:
    """The kernel with loops over the cells of a plane inside of a point."""
    body = kernel.body
    for axis in reversed(found.axes):
        body = (For(axis.name, (poly(0),), (axis.extent - 1,), body),)
    dense = {kernel.written: known_dims(program, kernel.written)}
    for cells in plane.cells:
        for picked in cells.picked:
            if picked.size >= SMALL:
                dense[picked.first.tensor] = known_dims(program, picked.first.tensor)
    return replace(
        kernel,
        axes=tuple(axis for axis in kernel.axes if axis not in found.axes),
        body=body,
        plane=plane,
        only=Planes(tuple(dense.items()), elements),
    )


def _share_nothing(cells: Sequence[Cells]) -> bool:
    """Whether each vector of results is made of vectors of its own, as with windows side by side.

    A loop then loads no more than the same written out. And an instruction that goes through memory
    in even steps tells the processor what to fetch; one that loads a part of every plane does not.
    """
    seen: set[tuple[str, int]] = set()
    for each in cells:
        own = {
            (picked.first.tensor, begin)
            for picked in each.picked
            if picked.size >= LANES
            for begin in sources(picked)
        }
        if not own.isdisjoint(seen):
            return False
        seen |= own
    return bool(seen)


def _is_in_order(cells: Cells) -> bool:
    """Whether lanes have consecutive elements, and all the same terms."""
    consecutive = (
        list(picked.places) == list(range(picked.places[0], picked.places[0] + LANES))
        for picked in cells.picked
    )
    return all(all(term.present) for term in cells.terms) and all(consecutive)


def _is_element(vector: Vector) -> bool:
    """Whether all lanes have one element as it is."""
    return isinstance(vector, Same) and isinstance(vector.value, Load)


# ---------------------------------------------------------------------------- vectors
Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Whether a value depends on tensors, and on the sum of its cell."""

    loads: bool
    results: bool


class _Vectors:
    """Makes vectors of the cells of a plane."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tables = frozenset(table.name for table in program.tables)
        # Scalars share parts, and cells outlive this: they are told apart by where they are.
        self.known: dict[int, _Parts] = {}
        self.places: dict[int, tuple[tuple[Poly, ...], int] | None] = {}

    def parts(self, value: Scalar) -> _Parts:
        """What a value depends on."""
        found = self.known.get(id(value))
        if found is None:
            loads = any(load.tensor not in self.tables for load in loads_in(value))
            found = self.known[id(value)] = _Parts(loads, _results(value))
        return found

    def place(self, load: Load) -> tuple[tuple[Poly, ...], int] | None:
        """The plane that an element is of, and its place in it."""
        if id(load) not in self.places:
            self.places[id(load)] = place_of(load, self.program)
        return self.places[id(load)]

    def loads(self, value: Scalar) -> Iterator[Load]:
        """The elements of tensors that a value depends on."""
        return (load for load in loads_in(value) if load.tensor not in self.tables)

    def cells(self, first: int, cells: Sequence[Cell]) -> Cells | None:
        """Cells side by side, in the way that takes the fewest steps; None if there is none."""
        value = self.vector([cell.value for cell in cells])
        if value is None:
            return None
        best: Cells | None = None
        for order in self.orders(cells):
            terms = self.terms(order)
            if terms is None:
                continue
            made = Cells(first, terms, value)
            if best is None or self.steps(made) < self.steps(best):
                best = made
        return best

    def orders(self, cells: Sequence[Cell]) -> Iterator[list[list[Scalar | None]]]:
        """The terms of all lanes at each step, None where a lane has none."""
        longest = max(len(cell.terms) for cell in cells)
        yield [
            [cell.terms[at] if at < len(cell.terms) else None for cell in cells]
            for at in range(longest)
        ]
        if all(len(cell.terms) == longest for cell in cells):
            return
        tensors = dict.fromkeys(
            load.tensor for cell in cells for term in cell.terms for load in self.loads(term)
        )
        for tensor in tensors:
            keys = [[self.key(term, tensor) for term in cell.terms] for cell in cells]
            for backwards in (False, True):
                if all(_rises(each, backwards) for each in keys):
                    yield _by_key(cells, keys, backwards)

    def key(self, term: Scalar, tensor: str) -> Key:
        """Which elements of a tensor a term loads."""
        return tuple(
            index.constant
            for load in loads_in(term)
            if load.tensor == tensor
            for index in load.indices
        )

    def terms(self, order: Sequence[Sequence[Scalar | None]]) -> tuple[Term, ...] | None:
        terms = []
        for values in order:
            present = tuple(value is not None for value in values)
            vector = self.vector(filled(values))
            if vector is None:
                return None
            terms.append(Term(vector, present))
        return tuple(terms)

    def vector(self, values: Sequence[Scalar]) -> Vector | None:
        """Numbers side by side; None where lanes do different things."""
        first = values[0]
        if isinstance(first, Result):
            return Total() if all(isinstance(value, Result) for value in values) else None
        if not any(self.parts(value).results for value in values):
            if all(value is first or value == first for value in values):
                return Same(first)
            if not any(self.parts(value).loads for value in values):
                return Each(tuple(values))
        if isinstance(first, Load):
            return self.picked(values)
        if not isinstance(first, Call) or first.primitive not in VECTOR_OPERATORS:
            return None
        arguments = []
        for at in range(len(first.arguments)):
            column = []
            for value in values:
                if not isinstance(value, Call) or value.primitive != first.primitive:
                    return None
                column.append(value.arguments[at])
            argument = self.vector(column)
            if argument is None:
                return None
            arguments.append(argument)
        return Joined(first.primitive, tuple(arguments))

    def picked(self, values: Sequence[Scalar]) -> Picked | None:
        """Elements of one plane side by side."""
        loads = [value for value in values if isinstance(value, Load)]
        tensor = loads[0].tensor
        if len(loads) < len(values) or any(load.tensor != tensor for load in loads):
            return None
        if not self.program.is_plain(tensor):
            return None
        placed = [self.place(load) for load in loads]
        outer = placed[0][0] if placed[0] is not None else ()
        places = [each[1] for each in placed if each is not None and each[0] == outer]
        if len(places) < len(loads):
            return None
        sizes = plane_sizes(self.program, tensor)
        first = Load(tensor, (*outer, *[poly(0)] * len(sizes)))
        found = Picked(first, sizes, tuple(places))
        return found if found.size < SMALL or len(sources(found)) <= MOST_SOURCES else None

    def steps(self, cells: Cells) -> int:
        """About how many instructions cells take."""
        total = 2 + self.steps_of(cells.value)
        for term in cells.terms:
            total += 1 + self.steps_of(term.value) + (not all(term.present))
        return total

    def steps_of(self, vector: Vector) -> int:
        match vector:
            case Picked():
                return 1 if vector.size < SMALL else max(len(sources(vector)) - 1, 1)
            case Joined(arguments=arguments):
                return sum(map(self.steps_of, arguments))
            case Same() | Each() | Total():
                return 0


def _rises(keys: Sequence[Key], backwards: bool) -> bool:
    """Whether every key comes after the one before it."""
    ordered = sorted(set(keys), reverse=backwards)
    return list(keys) == ordered


def _by_key(
    cells: Sequence[Cell], keys: Sequence[Sequence[Key]], backwards: bool
) -> list[list[Scalar | None]]:
    """A step for every key, with the terms that have it."""
    found = [dict(zip(own, cell.terms, strict=True)) for own, cell in zip(keys, cells, strict=True)]
    ordered = sorted({key for own in keys for key in own}, reverse=backwards)
    return [[own.get(key) for own in found] for key in ordered]


def filled(values: Sequence[_OfLane | None]) -> list[_OfLane]:
    """Something for every lane: those without a term do as a neighbour, which changes nothing.

    Some lane must have one.
    """
    last = next(value for value in values if value is not None)
    found = []
    for value in values:
        last = last if value is None else value
        found.append(last)
    return found


def loads_in(value: Scalar) -> Iterator[Load]:
    """Every load of a value, in order, repeats included."""
    match value:
        case Load():
            yield value
        case Call(arguments=arguments):
            for argument in arguments:
                yield from loads_in(argument)
        case Choose(then=then, otherwise=otherwise):
            yield from loads_in(then)
            yield from loads_in(otherwise)
        case Number() | Argument() | Integer() | Result():
            return


def _results(value: Scalar) -> bool:
    """Whether a value depends on the sum."""
    match value:
        case Result():
            return True
        case Call(arguments=arguments):
            return any(map(_results, arguments))
        case _:
            return False
