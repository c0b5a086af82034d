"""What blocks of cells load again and again, in memory of their own, where it lies together.

In channels-last format the pixels of a channel lie as many elements apart as there are channels:
with a power of two of them in the same few places of the first cache, which forgets each before
the window of the next pixel asks for it again. A filter of 7 by 7 loads every pixel 49 times. So a
parallel point has some channels of some rows of an image instead of all channels of some pixels. It
copies what its windows reach, and its filters, and goes from pixel to pixel there.

The copies have the type that is computed in: numbers of 16 bits are converted once. Terms and their
order stay as they are, so results have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import Poly, poly, symbol, symbol_atom
from opgen.ir.indices import is_plainly_inside
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import (
    Accumulate,
    Axis,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Operand,
    Program,
    Row,
    Store,
    walk,
)
from opgen.ir.map_loops import map_loads
from opgen.ir.names import fresh_name

LEAST_TERMS: Final = 25
"""The fewest terms of a cell: with 9 the copies take about as long as they save."""

MOST_CELLS: Final = 2**15
"""The most cells of all copies of a point: with 32 bits each, an eighth of most second caches."""

WIDTHS: Final = (64, 32)
"""How many cells of a row a parallel point has: fewer take too little of each page at a time."""

LEAST_LANES: Final = 16
"""The fewest cells of a row that are a stretch: as many as a vector has at most."""

PARTS: Final = (2, 1, 3, 4, 5, 6, 7, 8)
"""In how many parts an image goes, the best number first: two leave points for more threads."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """The axis that blocks have instead of one of cells: each of its values are `size` cells."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Nearby:
    """A kernel, and the operands of which each of its points has its own."""

    kernel: Kernel
    local: tuple[Operand, ...] = ()


def nearby(kernel: Kernel, cells: Kernel, steps: Mapping[str, Step], program: Program) -> Nearby:
    """A kernel of blocks with copies of what it loads at every point, where that helps.

    `cells` is the same kernel with a point for each cell. `steps` are those of its axes that blocks
    have several values of.
    """
    row, ranges = kernel.row, ranges_of(cells)
    whole = all(isinstance(node, Lanes | If) for node in kernel.body)
    if row is None or ranges is None or not whole or most_terms(cells.body, ranges) < LEAST_TERMS:
        return Nearby(kernel)
    image = _image(cells, row.axis.name)
    if not image:
        return Nearby(kernel)
    step = steps.get(image[0].name, Step(image[0].name, 1))
    if not any(axis.name == step.name for axis in kernel.axes):
        step = Step("", image[0].extent.constant)  # all of its values are within the body
    plans = _plans(cells, row.axis.name, step, ranges, program)
    plan = next((each for each in plans if each.is_worth), None)
    if plan is None:
        return Nearby(kernel)
    operands = (each.name for each in (*program.operands, *program.unstored))
    taken = integer_names(kernel, known=(*operands, *program.integers))
    return plan.applied(kernel, row, steps, taken)


def ranges_of(cells: Kernel) -> dict[str, Range] | None:
    """Constants that all values of each loop lie between; None where one has none."""
    axes = {axis.name: axis.extent for axis in cells.axes if axis.extent.is_constant}
    known = {name: (0, extent.constant - 1) for name, extent in axes.items()}
    for node in walk(cells.body):
        if isinstance(node, Define):
            return None
        if isinstance(node, For):
            lower = [ends[0] for bound in node.lower if (ends := _ends(bound, known))]
            upper = [ends[1] for bound in node.upper if (ends := _ends(bound, known))]
            if not lower or not upper:
                return None
            own = max(lower), min(upper)
            first, last = known.get(node.name, own)
            known[node.name] = min(first, own[0]), max(last, own[1])
    return {name: ends for name, ends in known.items() if name not in axes}


def _ends(value: Poly, known: Mapping[str, Range]) -> Range | None:
    """The least and the greatest value of a sum of multiples of what is known to lie in ranges."""
    first = last = 0
    for name, own in known.items():
        linear = value.linear_in(symbol_atom(name))
        if linear is None or not linear[0].is_constant:
            return None
        ends = sorted(linear[0].constant * end for end in own)
        first, last, value = first + ends[0], last + ends[1], linear[1]
    return (first + value.constant, last + value.constant) if value.is_constant else None


def most_terms(body: Sequence[Node], ranges: Mapping[str, Range]) -> int:
    """How many terms a cell has where no window is cut off."""
    total = 0
    for node in body:
        match node:
            case For(name=name, body=inner):
                first, last = ranges[name]
                total += max(last - first + 1, 0) * most_terms(inner, ranges)
            case If(body=inner):
                total += most_terms(inner, ranges)
            case _:
                total += isinstance(node, Accumulate)
    return total


def _loads(cells: Kernel, lane: str) -> list[Load]:
    """What terms load of rows that lanes run along."""
    terms = (node for node in walk(cells.body) if isinstance(node, Accumulate))
    return [load for load in loads_of(terms) if load.indices and lane in load.indices[-1].symbols]


def _image(cells: Kernel, lane: str) -> tuple[Axis, ...]:
    """The axes of known extent that windows move along."""
    moving = frozenset[str]().union(
        *(index.symbols for load in _loads(cells, lane) for index in load.indices)
    )
    return tuple(
        axis
        for axis in cells.axes
        if axis.name in moving and axis.name != lane and axis.extent.is_constant
    )


# ---------------------------------------------------------------------------- what is copied
@dataclass(frozen=True, slots=True)
class _Whole:
    """A dim that is copied whole."""

    extent: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A dim of which a point reads one index."""

    index: Poly


@dataclass(frozen=True, slots=True)
class _Window:
    """A dim of which cell `i` reads `step*i + first` to `step*i + last`, where that is inside."""

    step: int
    first: int
    last: int
    extent: int

    def reach(self, cells: int) -> int:
        """How many indices so many neighbouring cells read."""
        return self.step * (cells - 1) + self.last - self.first + 1


_Dim = _Whole | _Place | _Window


@dataclass(frozen=True, slots=True)
class _Copy:
    """A tensor and its dims but the last one, along which lanes run."""

    tensor: Operand
    dims: tuple[_Dim, ...]

    @classmethod
    def of(
        cls,
        loads: Sequence[Load],
        tensor: Operand,
        cells: Kernel,
        lane: str,
        ranges: dict[str, Range],
    ) -> _Copy | None:
        """None where it is not known what cells read, or a point may copy what is not there."""
        places = [axis.name for axis in _image(cells, lane)]
        points = {axis.name: axis.extent for axis in cells.axes}
        dims = []
        for at, extent in enumerate(tensor.extents[:-1]):
            indices = {load.indices[at] for load in loads}
            dim = _dim(indices, extent, places, ranges)
            if dim is None:
                return None
            if isinstance(dim, _Place) and not is_plainly_inside(dim.index, extent, points):
                return None
            dims.append(dim)
        return cls(tensor, tuple(dims))

    @property
    def whole(self) -> _Copy:
        """The same for all cells along the first image axis."""
        dims = (_Whole(d.extent) if isinstance(d, _Window) else d for d in self.dims)
        return replace(self, dims=tuple(dims))

    def sizes(self, cells: int) -> list[int]:
        """The extents of the copy for so many neighbouring cells along the first image axis."""
        sizes = []
        for dim in self.dims:
            match dim:
                case _Whole(extent=extent):
                    sizes.append(extent)
                case _Window():
                    sizes.append(dim.reach(cells))
                case _Place():
                    pass
        return sizes


def _dim(
    indices: set[Poly], extent: Poly, image: Sequence[str], ranges: Mapping[str, Range]
) -> _Dim | None:
    local = {*image, *ranges}
    if all(local.isdisjoint(index.symbols) for index in indices):
        return _Place(indices.pop()) if len(indices) == 1 else None
    if not extent.is_constant or any(index.symbols - local for index in indices):
        return None
    windows = [_window(index, image[0], ranges, extent.constant) for index in indices]
    found = [window for window in windows if window is not None]
    if len(found) < len(windows) or len({window.step for window in found}) > 1:
        return _Whole(extent.constant)
    first, last = min(w.first for w in found), max(w.last for w in found)
    return _Window(found[0].step, first, last, extent.constant)


def _window(index: Poly, name: str, ranges: Mapping[str, Range], extent: int) -> _Window | None:
    """What cells along an axis read at an index; None where that is no window that moves on."""
    linear = index.linear_in(symbol_atom(name))
    if linear is None or not linear[0].is_constant or linear[0].constant < 1:
        return None
    ends = _ends(linear[1], ranges)
    return None if ends is None else _Window(linear[0].constant, *ends, extent)


# ---------------------------------------------------------------------------- points with copies
@dataclass(frozen=True, slots=True)
class _Plan:
    """Points of `blocks` values of a step along the first image axis, and of `width` lanes."""

    image: tuple[Axis, ...]
    step: Step
    parts: int
    width: int
    copies: tuple[_Copy, ...]

    @property
    def blocks(self) -> int:
        """How many values of the step a point has."""
        return -(-self.image[0].extent.constant // (self.step.size * self.parts))

    @property
    def rows(self) -> int:
        """How many cells along the first image axis a point has."""
        return self.blocks * self.step.size

    @property
    def pitch(self) -> int:
        """The cells of a copy for a pixel: the last stretch of a row may be longer than others."""
        return self.width + LEAST_LANES

    @property
    def is_worth(self) -> bool:
        """Whether copies are small, and windows no higher than what cells of a point share."""
        cells = sum(math.prod(copy.sizes(self.rows)) for copy in self.copies) * self.pitch
        windows = [dim for copy in self.copies for dim in copy.dims if isinstance(dim, _Window)]
        return cells <= MOST_CELLS and all(
            window.last - window.first <= self.rows * window.step for window in windows
        )

    def applied(
        self, kernel: Kernel, row: Row, steps: Mapping[str, Step], taken: set[str]
    ) -> Nearby:
        """The kernel with these points; `taken` are names of tensors and integers."""
        part = fresh_name(f"{self.image[0].name}_part", taken)
        first = symbol(part) * self.blocks if self.parts > 1 else poly(0)
        places = {copy.tensor.name: copy for copy in self.copies}
        names = {name: fresh_name(f"{name}_near", taken) for name in places}
        start = first * self.step.size

        def near(load: Load) -> Load:
            if load.tensor not in places:
                return load
            dims = places[load.tensor].dims
            inner = [
                index if isinstance(dim, _Whole) else index - dim.step * start - dim.first
                for dim, index in zip(dims, load.indices, strict=False)
                if not isinstance(dim, _Place)
            ]
            return Load(names[load.tensor], (*inner, load.indices[-1] - symbol(row.first)))

        body = map_loads(kernel.body, near)
        loops = {steps.get(axis.name, Step(axis.name, 1)).name: axis for axis in self.image}
        for axis in reversed([each for each in kernel.axes if each.name in loops]):
            lower, upper = (poly(0),), [axis.extent - 1]
            if axis.name == self.step.name and self.parts > 1:
                lower, upper = (first,), [first + self.blocks - 1, axis.extent - 1]
            body = (For(axis.name, lower, tuple(upper), body),)
        outer = tuple(each for each in kernel.axes if each.name not in loops)
        if self.parts > 1:
            outer += (Axis(part, poly(self.parts)),)
        filled = [
            self.filled(copy, names[name], start, row, taken) for name, copy in places.items()
        ]
        row = replace(row, width=self.width, least=LEAST_LANES)
        own = tuple(names.values())
        kernel = replace(kernel, axes=outer, body=(*filled, *body), row=row, local=own)
        return Nearby(kernel, tuple(self.operand(places[name], names[name]) for name in names))

    def operand(self, copy: _Copy, name: str) -> Operand:
        """What a copy is."""
        extents = (*map(poly, copy.sizes(self.rows)), poly(self.pitch))
        return replace(copy.tensor, name=name, extents=extents, widened=True)

    def filled(self, copy: _Copy, name: str, start: Poly, row: Row, taken: set[str]) -> Node:
        """Loops that copy what is inside of the tensor."""
        at: list[Poly] = []
        to: list[Poly] = []
        loops: list[tuple[str, list[Poly], list[Poly]]] = []
        for dim in copy.dims:
            if isinstance(dim, _Place):
                at.append(dim.index)
                continue
            index = fresh_name(f"at_{len(loops)}", taken)
            at.append(symbol(index))
            to.append(symbol(index))
            loops.append((index, [poly(0)], [poly(dim.extent - 1)]))
            if isinstance(dim, _Window):
                begin = dim.step * start + dim.first
                to[-1] -= begin
                loops[-1][1].append(begin)
                loops[-1][2].append(begin + dim.reach(self.rows) - 1)
        lane = symbol(row.axis.name)
        value = Load(copy.tensor.name, (*at, lane))
        node: Node = Lanes((), (), (Store(name, (*to, lane - symbol(row.first)), value),))
        for loop, lower, upper in reversed(loops):
            node = For(loop, tuple(lower), tuple(upper), (node,))
        return node


def _plans(
    cells: Kernel, lane: str, step: Step, ranges: dict[str, Range], program: Program
) -> Iterator[_Plan]:
    """Ways to share out an image, the best first; none where no tensor can be copied."""
    image = _image(cells, lane)
    loads: dict[str, list[Load]] = {}
    for load in _loads(cells, lane):
        loads.setdefault(load.tensor, []).append(load)
    operands = {each.name: each for each in program.operands}
    copies = []
    for name, found in loads.items():
        tensor = operands.get(name)
        others = [each for each in loads_of(walk(cells.body)) if each.tensor == name]
        if tensor is None or tensor.optional or tensor.widened or len(others) > len(found):
            continue
        copy = _Copy.of(found, tensor, cells, lane, ranges)
        if copy is not None:
            copies.append(copy)
    if not copies:
        return
    extent = image[0].extent.constant
    for width in WIDTHS:
        for parts in PARTS:
            if parts > 1 and extent <= step.size * (parts - 1):
                continue
            kept = tuple(copies) if parts > 1 else tuple(copy.whole for copy in copies)
            yield _Plan(image, step, parts, width, kept)
