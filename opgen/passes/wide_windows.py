"""Windows of many taps, with blocks of planes side by side in copies of their own.

A filter of 31 by 31 taps over an image of 20 by 20 has two thirds of them outside for most cells,
others for each. Along a row no two cells have the same terms; but the cells of 16 planes at one
place have, and each plane has a filter of its own. So lanes are planes: a parallel point copies
some planes and their filters into local arrays in which these lie side by side, transposed where
memory has rows of pixels instead. A term is then one product of two vectors, and those outside are
left out: nothing is asked of any lane.

The passes of one block of lanes go through all of the image before the next one's begin, so that
what a block loads of the copies is in the first cache: 16 planes of 20 by 20 are 26 KB. Gradients
of filters go through the images one after the other, and keep their sums beside the copies. There
one pass holds everything, since the last block of a row may begin earlier: it begins its sums anew.

With 8 images of 1024 planes of 20 by 20 and 31 by 31 taps, on one thread, the result takes 13 ms
instead of the 50 that oneDNN takes in channels-last format with copies there and back, and both
gradients 29 instead of 300. Products alone are 10 ms, for each of the three.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.indices import is_plainly_inside
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import (
    Axis,
    Blocks,
    Call,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Operand,
    Program,
    Result,
    Row,
    Start,
    Store,
    walk,
)
from opgen.ir.map_loops import map_loads
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.passes.block_tensors import walked
from opgen.passes.block_tiling import Tiling
from opgen.passes.merge import Body, at
from opgen.passes.nearby import most_terms, ranges_of
from opgen.passes.rows import direct

COUNT: Final = 16
"""The fewest columns of a result that are transposed: as many as are at once."""

LEAST_TERMS: Final = 100
"""The fewest terms of a cell: windows of fewer taps are written out, and stay in registers."""

LEAST_TAPS: Final = 49
"""The fewest taps of a filter whose gradient is worth copies of the images, of which each tap reads
all: for 7 by 7 it takes half to two thirds of the time, for 5 by 5 as long, for 3 by 3 longer."""

WIDTH: Final = 32
"""How many planes a parallel point has: two lines of memory where channels are consecutive."""

LEAST_LANES: Final = 16
"""The fewest planes that are a stretch: as many as a vector has at most."""

PITCH: Final = WIDTH + LEAST_LANES
"""The cells of a copy for a pixel: the last stretch may be longer. An odd number of lines, so that
pixels are spread over all sets of the first cache."""

MOST_PIXELS: Final = 3 * 2**10
"""The most pixels and taps of all copies: with 32 bits each, 576 KB. What one block of lanes loads
of them is a third of it."""


def has_wide_windows(plain: Program) -> bool:
    """Whether cells have so many terms that it is worth to look further."""
    is_single = not plain.faults and len(plain.kernels) == 1
    return is_single and _is_wide(_image_by_image(plain.kernels[0])[0])


def _is_wide(kernel: Kernel) -> bool:
    ranges = ranges_of(kernel)
    return ranges is not None and most_terms(kernel.body, ranges) >= LEAST_TERMS


def with_wide_windows(plain: Program, program: Program) -> Program:
    """A program along rows, with a kernel whose lanes are planes where windows have many taps.

    `plain` is the same with a parallel point for each cell.
    """
    if program.faults or program.workspaces or len(plain.kernels) != len(program.kernels):
        return program
    if len(plain.kernels) != 1 or program.kernels[0].only is not None:
        return program
    (cells,), (rowed,) = plain.kernels, program.kernels
    found = _over_planes(cells, program)
    if found is None or found.kernel.only is None:
        return program
    kernel = replace(found.kernel, name=fresh_name(f"{found.kernel.name}_planes", {rowed.name}))
    rest = replace(rowed, only=replace(found.only, holds=False))
    unstored = (*program.unstored, *found.local)
    return replace(program, kernels=(kernel, rest), unstored=unstored)


@dataclass(frozen=True, slots=True)
class _Found:
    """A kernel, what it is conditional on, and the operands of which each point has its own."""

    kernel: Kernel
    only: Blocks
    local: tuple[Operand, ...]


def _over_planes(kernel: Kernel, program: Program) -> _Found | None:
    """The kernel with planes for lanes; None where windows are small, or planes large."""
    if not kernel.is_deterministic or kernel.row is not None or kernel.prologue:
        return None
    kernel, images = _image_by_image(replace(kernel, body=at(direct(kernel.body), {})))
    if not _is_wide(kernel):
        return None
    planes = [axis for axis in kernel.axes if not axis.extent.is_constant]
    if not planes:
        return None
    axis = planes[-1]
    tensors = walked(kernel, axis.name, program, is_spread=True)
    copies = None if tensors is None else _copies(kernel, axis, program)
    if tensors is None or not copies:
        return None
    result = _result(kernel, axis, program)
    if images is not None and not (result is not None and _is_worth(copies.values(), result)):
        return None
    if images is None and result is not None and result.sizes[-1] < COUNT:
        result = None  # not transposed anyway
    pixels = sum(copy.pixels for copy in (*copies.values(), *([result] if result else [])))
    if pixels > MOST_PIXELS:
        return None
    operands = (operand.name for operand in (*program.operands, *program.unstored))
    known = frozenset((*operands, *program.integers))
    return _Planes(kernel, axis, images, copies, result, known).found(tensors)


def _is_worth(copies: Iterable[_Copy], result: _Copy) -> bool:
    """Whether sums of products are worth copies of all images for each point."""
    rows = (copy.sizes[-1] for copy in copies if copy.has_rows)
    return result.pixels >= LEAST_TAPS and all(size >= COUNT for size in rows)


def _image_by_image(kernel: Kernel) -> tuple[Kernel, Axis | None]:
    """A kernel with a loop over images around all terms as the kernel of one, and an axis of them.

    Such is the gradient of a filter. Any other kernel stays as it is.
    """
    match kernel.body:
        case (
            Start(accumulator=total, reducer=Reducer.ADD, value=None) as start,
            For(name=name, lower=(first,), upper=(last,), body=body),
            Store(value=Result(accumulator=stored)) as store,
        ) if total == stored and first == 0 and not last.is_constant:
            if last.symbols.isdisjoint(axis.name for axis in kernel.axes):
                axis = Axis(name, last + 1)
                one = replace(kernel, axes=(axis, *kernel.axes), body=(start, *body, store))
                return one, axis
    return kernel, None


# ---------------------------------------------------------------------------- copies
@dataclass(frozen=True, slots=True)
class _Copy:
    """A tensor of which planes are copied: its index along them, and those that a point fixes.

    Other dims are copied whole; `indices` has None for them, and for that of the planes.
    """

    tensor: Operand
    lane: int
    indices: tuple[Poly | None, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        """The dims that are copied whole."""
        dims = enumerate(self.indices)
        return tuple(dim for dim, index in dims if index is None and dim != self.lane)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Their extents."""
        return tuple(self.tensor.extents[dim].constant for dim in self.whole)

    @property
    def has_rows(self) -> bool:
        """Whether memory has rows of pixels, not planes side by side."""
        return self.lane < len(self.indices) - 1

    def place(self, pixel: Sequence[Poly], lane: Poly) -> tuple[Poly, ...]:
        """The indices of a pixel of a plane."""
        places = iter(pixel)
        return tuple(
            lane if dim == self.lane else next(places) if index is None else index
            for dim, index in enumerate(self.indices)
        )

    @property
    def pixels(self) -> int:
        """How many elements of a plane are copied."""
        return math.prod(self.sizes)


def _copies(kernel: Kernel, lane: Axis, program: Program) -> dict[str, _Copy] | None:
    """What terms load of planes, by tensor; None where it is not whole dims.

    All of them go along the planes: with a filter that many share, rows have as much to reuse.
    """
    loops = (node.name for node in walk(kernel.body) if isinstance(node, For))
    moving = {*loops, *(axis.name for axis in kernel.axes if axis.extent.is_constant)}
    points = {axis.name: axis.extent for axis in kernel.axes}
    found: dict[str, _Copy] = {}
    for load in loads_of(walk(kernel.body)):
        symbols = frozenset[str]().union(*(index.symbols for index in load.indices))
        if moving.isdisjoint(symbols):
            continue  # one number for all pixels
        own = [dim for dim, index in enumerate(load.indices) if index == symbol(lane.name)]
        operand = program.operand(load.tensor)
        if len(own) != 1 or operand.optional or operand.widened:
            return None
        fixed = tuple(
            None if dim in own or not moving.isdisjoint(index.symbols) else index
            for dim, index in enumerate(load.indices)
        )
        copy = _Copy(operand, own[0], fixed)
        if found.setdefault(load.tensor, copy) != copy:
            return None
        places = zip(fixed, operand.extents, strict=True)
        if not all(index is None or is_plainly_inside(index, e, points) for index, e in places):
            return None  # it may not be there, and would be copied
        if not copy.sizes or not all(operand.extents[dim].is_constant for dim in copy.whole):
            return None
    return found


def _result(kernel: Kernel, lane: Axis, program: Program) -> _Copy | None:
    """The planes of a result with rows of pixels: else every element would be stored by itself."""
    operand = program.operand(kernel.written)
    image = {symbol(axis.name): axis.extent for axis in kernel.axes if axis.extent.is_constant}
    store, *more = (node for node in walk(kernel.body) if isinstance(node, Store))
    if more:
        return None
    own = [dim for dim, index in enumerate(store.indices) if index == symbol(lane.name)]
    whole = [dim for dim, index in enumerate(store.indices) if index in image]
    fixed = (None if dim in own or dim in whole else i for dim, i in enumerate(store.indices))
    copy = _Copy(operand, own[0] if own else -1, tuple(fixed))
    is_all = all(image[store.indices[dim]] == operand.extents[dim] for dim in whole)
    others = frozenset[str]().union(*(i.symbols for i in copy.indices if i is not None))
    moving = {lane.name, *(axis.name for axis in kernel.axes if axis.extent.is_constant)}
    is_known = len(own) == 1 and len(whole) == len(image) and others.isdisjoint(moving)
    has_rows = copy.has_rows and len(store.indices) - 1 in whole
    return copy if is_known and is_all and has_rows else None


# ---------------------------------------------------------------------------- points with copies
@dataclass(frozen=True, slots=True)
class _Planes:
    """A kernel of cells, its axis of planes, and what a point copies; its result, if that too.

    Where cells are sums over images, these go one after the other, and the copy of the result has
    the sums: what is copied of an image serves all cells.
    """

    kernel: Kernel
    lane: Axis
    images: Axis | None
    copies: Mapping[str, _Copy]
    result: _Copy | None
    known: frozenset[str]  # names of tensors and integers

    def found(self, tensors: tuple[str, ...]) -> _Found | None:
        """The kernel of blocks; `tensors` are those that it walks through."""
        tiling = Tiling.of(self.kernel, self.lane, self.known)
        if tiling is None:
            return None
        body = tiling.inner_alone.body()
        if body is None:
            return None
        taken = tiling.taken
        first, last = (fresh_name(f"{self.lane.name}_{end}", taken) for end in ("first", "last"))
        row = Row(self.lane, first, last, WIDTH, least=LEAST_LANES)
        names = {name: fresh_name(f"{name}_near", taken) for name in self.copies}
        inner = map_loads(_without_passes(body), lambda load: self.near(load, names, first))
        axes = tiling.inner_alone.axes(self.lane)
        for axis in reversed([each for each in axes if each.extent.is_constant]):
            inner = (For(axis.name, (poly(0),), (axis.extent - 1,), inner),)
        fill = [
            self.copied(copy, names[name], first, taken, is_back=False)
            for name, copy in self.copies.items()
        ]
        copies = {names[name]: copy for name, copy in self.copies.items()}
        if (result := self.result) is not None:
            name = fresh_name(f"{result.tensor.name}_near", taken)
            copies[name] = result
            tensors = (*tensors, result.tensor.name)
            inner = _stored_in(inner, result, name, symbol(first), self.images is not None)
            if self.images is not None:
                inner = self.summed((*itertools.chain(*fill), *inner), result, name, first, taken)
            inner += self.copied(result, name, first, taken, is_back=True)
        if self.images is None:
            body = (*(Lanes((), (), each) for each in fill), Lanes((), (), inner))
        else:
            body = (Lanes((), (), inner),)
        only = Blocks(self.lane.extent, tensors, True)
        outer = (each for each in axes if not each.extent.is_constant and each != self.images)
        kernel = replace(
            self.kernel, axes=tuple(outer), body=body, row=row, local=tuple(copies), only=only
        )
        return _Found(kernel, only, tuple(_operand(copy, name) for name, copy in copies.items()))

    def near(self, load: Load, names: Mapping[str, str], first: str) -> Load:
        """The load from the copy, if there is one."""
        copy = self.copies.get(load.tensor)
        if copy is None or load.indices[copy.lane] != symbol(self.lane.name):
            return load
        pixel = tuple(load.indices[dim] for dim in copy.whole)
        return Load(names[load.tensor], (*pixel, symbol(self.lane.name) - symbol(first)))

    def summed(self, nodes: Body, copy: _Copy, name: str, first: str, taken: set[str]) -> Body:
        """Nodes that add to the copy of the result for one image as a loop over all of them.

        It begins with empty sums, all in one pass over the lanes: blocks may have lanes in common,
        which then begin anew.
        """
        assert self.images is not None
        loops = [fresh_name(f"at_{number}", taken) for number in range(len(copy.sizes))]
        place = (*map(symbol, loops), symbol(self.lane.name) - symbol(first))
        total = fresh_name("empty", taken)
        begin = Start(total, copy.tensor.name, Reducer.ADD), Store(name, place, Result(total))
        last = self.images.extent - 1
        sums = For(self.images.name, (poly(0),), (last,), nodes)
        return (*_over(zip(loops, copy.sizes, strict=True), begin), sums)

    def copied(self, copy: _Copy, name: str, first: str, taken: set[str], is_back: bool) -> Body:
        """Loops over all pixels of a copy, from the tensor or back to it.

        All columns of a row stand side by side where that lets them be transposed.
        """
        lane = symbol(self.lane.name)
        loops = [fresh_name(f"at_{number}", taken) for number in range(len(copy.sizes))]
        at_, sizes = list(map(symbol, loops)), list(copy.sizes)
        pixels = [at_]
        if copy.has_rows:
            pixels = [[*at_[:-1], poly(column)] for column in range(sizes.pop())]
        stores: list[Node] = []
        for pixel in pixels:
            ends = (
                (copy.tensor.name, copy.place(pixel, lane)),
                (name, (*pixel, lane - symbol(first))),
            )
            source, target = reversed(ends) if is_back else ends
            stores.append(Store(*target, Load(*source)))
        return _over(zip(loops, sizes, strict=False), tuple(stores))


def _over(loops: Iterable[tuple[str, int]], nodes: Body) -> Body:
    """The nodes in loops of these names and sizes."""
    for loop, size in reversed(list(loops)):
        nodes = (For(loop, (poly(0),), (poly(size - 1),), nodes),)
    return nodes


def _stored_in(nodes: Body, copy: _Copy, name: str, first: Poly, is_sum: bool) -> Body:
    """The nodes with results in the copy of their tensor, or added to what stands there."""
    out: list[Node] = []
    for node in nodes:
        match node:
            case Store(tensor=tensor, indices=indices) if tensor == copy.tensor.name:
                near = (*(indices[dim] for dim in copy.whole), indices[copy.lane] - first)
                value = Call("add", (Load(name, near), node.value)) if is_sum else node.value
                out.append(Store(name, near, value))
            case For(body=inner) | If(body=inner):
                out.append(replace(node, body=_stored_in(inner, copy, name, first, is_sum)))
            case _:
                out.append(node)
    return tuple(out)


def _without_passes(nodes: Body) -> Body:
    """What passes over lanes do, for a pass over all of it."""
    out: list[Node] = []
    for node in nodes:
        match node:
            case Lanes(body=inner):
                out += inner
            case For(body=inner) | If(body=inner):
                out.append(replace(node, body=_without_passes(inner)))
            case _:
                out.append(node)
    return tuple(out)


def _operand(copy: _Copy, name: str) -> Operand:
    """What a copy is."""
    extents = (*map(poly, copy.sizes), poly(PITCH))
    return replace(copy.tensor, name=name, extents=extents, widened=True)
