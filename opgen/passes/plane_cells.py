"""The cells of a plane one by one: what each of them adds up, with all that is known put in.

In `y[n,c, 2*h + i, 2*w + j] = x[n,c,h,w]` with `h` and `w` below 8, cell 17 of a plane is
`x[n,c,0,0]`, and cell 18 is `x[n,c,0,1]`. Loops run and conditions are decided here, so nothing is
left of a cell but loads at known places of planes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from opgen.algebra.condition import Relation
from opgen.algebra.poly import Poly, poly
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import (
    Accumulate,
    All,
    Always,
    Any,
    Argument,
    AtomicAdd,
    Axis,
    Call,
    Choose,
    Define,
    Either,
    For,
    If,
    Inside,
    Integer,
    Kernel,
    Lanes,
    Load,
    Node,
    Nonzero,
    Number,
    Program,
    Result,
    Scalar,
    Start,
    Store,
    Test,
    walk,
)
from opgen.ir.map_loops import symbols_of
from opgen.ir.notation import Reducer

MOST_CELLS: Final = 1024
"""The most cells of a plane."""

MOST_TERMS: Final = 4608
"""The most terms of all cells of a plane: what they are is found out in some tenths of a second."""

_SUMS: Final = (Reducer.ASSIGN, Reducer.ADD)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is added up for a cell, in that order, and what is stored: `Result` is the sum."""

    terms: tuple[Scalar, ...]
    value: Scalar


@dataclass(frozen=True, slots=True)
class PlaneCells:
    """The cells of a point in the order of memory; `first` is where they begin in their tensor.

    `axes` are those of the kernel that move within a plane.
    """

    axes: tuple[Axis, ...]
    first: Load
    cells: tuple[Cell, ...]


class _UnknownError(Exception):
    """A cell depends on what only a call knows."""


def plane_cells(kernel: Kernel, program: Program) -> PlaneCells | None:
    """The cells of a kernel with one point for each cell; None where they are not known."""
    nodes = tuple(walk(kernel.body))
    stores = [node for node in nodes if isinstance(node, Store)]
    if kernel.prologue or len(stores) != 1:
        return None
    if any(load.tensor == kernel.written for load in loads_of(nodes)):
        return None
    indices = stores[0].indices
    dims = known_dims(program, kernel.written)
    axes = _moving_axes(kernel, indices[len(indices) - dims :])
    if not axes:
        return None
    sizes = [extent.constant for extent in program.operand(kernel.written).extents[-dims:]]
    ranges = [range(axis.extent.constant) for axis in axes]
    count = math.prod(map(len, ranges))
    if not 0 < count == math.prod(sizes) <= MOST_CELLS:
        return None
    reader = _Reader()
    cells: dict[int, Cell] = {}
    places = set()
    try:
        for point in itertools.product(*ranges):
            values = {axis.name: _number(at) for axis, at in zip(axes, point, strict=True)}
            store, cell = reader.cell(kernel.body, values)
            place = _flat_place(store.indices[len(indices) - dims :], sizes)
            if place is None:
                return None
            places.add(store.indices[: len(indices) - dims])
            cells[place] = cell
            if max(reader.terms, len(cell.terms) * count) > MOST_TERMS:
                return None
    except _UnknownError:
        return None
    if len(places) != 1 or sorted(cells) != list(range(count)):
        return None
    first = Load(kernel.written, (*places.pop(), *[poly(0)] * dims))
    return PlaneCells(axes, first, tuple(cells[at] for at in range(count)))


def sum_terms(body: Sequence[Node], accumulator: str, most: int) -> tuple[Scalar, ...] | None:
    """What nodes add to an accumulator, in order; None where that depends on what a call knows.

    None as well where loops have more than so many rounds.
    """
    terms: list[Scalar] = []
    try:
        _Reader(most).nodes(_own(body, accumulator), {}, terms, [])
    except _UnknownError:
        return None
    return tuple(terms)


def _own(nodes: Sequence[Node], accumulator: str) -> tuple[Node, ...]:
    """The nodes without what they add to other accumulators."""
    out: list[Node] = []
    for node in nodes:
        match node:
            case Accumulate(accumulator=name) if name != accumulator:
                continue
            case For(body=body) | If(body=body):
                inner = _own(body, accumulator)
                if any(isinstance(each, Accumulate) for each in walk(inner)):
                    out.append(replace(node, body=inner))
            case _:
                out.append(node)
    return tuple(out)


@functools.cache
def _number(value: int) -> Poly:
    """The same object for the same number: it is compared with itself often."""
    return poly(value)


def known_dims(program: Program, tensor: str) -> int:
    """How many of the last dims of a tensor have sizes that are known."""
    extents = program.operand(tensor).extents
    known = itertools.takewhile(lambda extent: extent.is_constant, reversed(extents))
    return sum(1 for _ in known)


def place_of(load: Load, program: Program) -> tuple[tuple[Poly, ...], int] | None:
    """The plane that an element is of, and its place in it; None where these are not known."""
    dims = known_dims(program, load.tensor)
    outer = load.indices[: len(load.indices) - dims]
    place = _flat_place(load.indices[len(outer) :], plane_sizes(program, load.tensor))
    return None if not dims or place is None else (outer, place)


def plane_sizes(program: Program, tensor: str) -> tuple[int, ...]:
    """The sizes of the planes of a tensor."""
    extents, dims = program.operand(tensor).extents, known_dims(program, tensor)
    return tuple(extent.constant for extent in extents[len(extents) - dims :])


def _flat_place(indices: Sequence[Poly], sizes: Sequence[int]) -> int | None:
    """The place in a plane of those sizes; None where an index is not known, or not inside."""
    place = 0
    for index, size in zip(indices, sizes, strict=True):
        if not index.is_constant or not 0 <= index.constant < size:
            return None
        place = place * size + index.constant
    return place


def _moving_axes(kernel: Kernel, indices: Sequence[Poly]) -> tuple[Axis, ...]:
    """The axes that the indices depend on; none unless their extents are known."""
    symbols = frozenset[str]().union(*(index.symbols for index in indices))
    axes = tuple(axis for axis in kernel.axes if axis.name in symbols)
    return axes if all(axis.extent.is_constant for axis in axes) else ()


@dataclass
class _Reader:
    """Runs the body of a kernel at the points of a plane, in at most so many rounds of loops."""

    most: float = math.inf
    rounds: int = 0
    terms: int = 0
    known: dict[tuple[Poly, tuple[Poly | None, ...]], Poly] = field(default_factory=dict)
    symbols: dict[int | Poly, tuple[str, ...]] = field(default_factory=dict)
    scalars: dict[tuple[int, tuple[Poly | None, ...]], Scalar] = field(default_factory=dict)

    def cell(self, body: Sequence[Node], values: dict[str, Poly]) -> tuple[Store, Cell]:
        """What is stored at a point."""
        terms: list[Scalar] = []
        stored: list[Store] = []
        self.nodes(body, dict(values), terms, stored)
        if len(stored) != 1:
            raise _UnknownError
        self.terms += len(terms)
        return stored[0], Cell(tuple(terms), stored[0].value)

    def at(self, value: Poly, values: dict[str, Poly]) -> Poly:
        """A polynomial with what is known put in. Cells share rows and columns, so it is kept."""
        if value.is_constant:
            return value
        names = self.symbols.get(value)
        if names is None:
            names = self.symbols[value] = tuple(sorted(value.symbols))
        key = value, tuple(map(values.get, names))
        if key not in self.known:
            found = value.substitute({name: values[name] for name in names if name in values})
            if found.is_data_dependent:
                raise _UnknownError
            self.known[key] = found
        return self.known[key]

    def number(self, value: Poly, values: dict[str, Poly]) -> int:
        found = self.at(value, values)
        if not found.is_constant:
            raise _UnknownError
        return found.constant

    def nodes(
        self,
        nodes: Sequence[Node],
        values: dict[str, Poly],
        terms: list[Scalar],
        stored: list[Store],
    ) -> None:
        """Collect what nodes add up and store."""
        for node in nodes:
            match node:
                case Define(name=name, value=value):
                    values[name] = self.at(value, values)
                case For(name=name, lower=lower, upper=upper, body=body):
                    begin = max(self.number(bound, values) for bound in lower)
                    end = min(self.number(bound, values) for bound in upper)
                    self.rounds += max(end + 1 - begin, 0)
                    if self.rounds > self.most:
                        raise _UnknownError
                    for number in range(begin, end + 1):
                        self.nodes(body, {**values, name: _number(number)}, terms, stored)
                case If(body=body):
                    if self.holds(node, values):
                        self.nodes(body, dict(values), terms, stored)
                case Start(value=None, reducer=reducer) if reducer in _SUMS and not terms:
                    pass
                case Accumulate(value=value, reducer=reducer, present=present):
                    if reducer not in _SUMS or (terms and reducer is Reducer.ASSIGN):
                        raise _UnknownError
                    if self.test(present, values):
                        terms.append(self.scalar(value, values))
                    elif reducer is Reducer.ASSIGN:
                        terms.append(Number(0))
                case Store(tensor=tensor, indices=indices, value=value):
                    cell = tuple(self.at(index, values) for index in indices)
                    stored.append(Store(tensor, cell, self.scalar(value, values)))
                case Start() | Lanes() | AtomicAdd():
                    raise _UnknownError
                case unexpected:
                    assert_never(unexpected)

    def holds(self, node: If, values: dict[str, Poly]) -> bool:
        for condition in node.conditions:
            number = self.number(condition.value, values)
            match condition.relation:
                case Relation.GE:
                    held = number >= 0
                case Relation.EQ:
                    held = number == 0
                case Relation.NE:
                    held = number != 0
                case unexpected:
                    assert_never(unexpected)
            if not held:
                return False
        return self.test(node.test, values)

    def test(self, test: Test, values: dict[str, Poly]) -> bool:
        match test:
            case Always():
                return True
            case Inside(index=index, extent=extent, fault=None):
                return 0 <= self.number(index, values) < self.number(extent, values)
            case All(tests=tests):
                return all(self.test(each, values) for each in tests)
            case Any(tests=tests):
                return any(self.test(each, values) for each in tests)
            case Either(condition=condition, then=then, otherwise=otherwise):
                return self.test(then if self.test(condition, values) else otherwise, values)
            case Inside() | Nonzero():
                raise _UnknownError
            case unexpected:
                assert_never(unexpected)

    def scalar(self, value: Scalar, values: dict[str, Poly]) -> Scalar:
        """A number with what is known put in; cells share most parts of theirs, so they are kept.

        The scalars of a body outlive the reader, so they are told apart by where they are.
        """
        names = self.symbols.get(id(value))
        if names is None:
            names = self.symbols[id(value)] = tuple(sorted(symbols_of(Store("", (), value))))
        key = id(value), tuple(map(values.get, names))
        if key not in self.scalars:
            self.scalars[key] = self.made(value, values)
        return self.scalars[key]

    def made(self, value: Scalar, values: dict[str, Poly]) -> Scalar:
        match value:
            case Number() | Argument() | Result():
                return value
            case Integer(value=number):
                return Integer(self.at(number, values))
            case Load(tensor=tensor, indices=indices):
                return Load(tensor, tuple(self.at(index, values) for index in indices))
            case Call(primitive=primitive, arguments=arguments):
                return Call(primitive, tuple(self.scalar(each, values) for each in arguments))
            case Choose(test=test, then=then, otherwise=otherwise):
                return self.scalar(then if self.test(test, values) else otherwise, values)
            case unexpected:
                assert_never(unexpected)
