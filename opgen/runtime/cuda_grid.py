"""How the points of a CUDA kernel are shared out among blocks and threads, and in what width.

A grid has three dimensions: x is the last axis of a kernel, y the one before, z all others as one.
Kernels loop over what a grid leaves out, so the limits of a grid are none of an op.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from opgen.runtime.record import record

THREADS = 256
"""The most threads of a block; kernels are compiled for it."""

Size = tuple[int, int, int]

LEAST_THREADS = 2**16
"""The fewest threads that several rows for each are worth: half of what a large GPU holds."""

MOST_BLOCKS = (2**31 - 1, 65535, 65535)
"""The most blocks along x, y and z."""

_MOST_ALONG_Z = 64
_MOST_VALUES = 128
"""The most values that a thread keeps: of the 255 registers many hold addresses."""
_MOST_IN_MANY_ROWS = 64
"""The most of them in more than four rows: what a thread does but once costs no more than these."""
MOST_ROWS = 8
"""The most rows of a thread, if a number is one register. Of two registers they are a quarter: what
a row keeps beside its cells, such as weights of its own, takes as much again and is not counted."""
ROWS_OF_SIBLINGS = 2
"""The most rows of a thread that computes several tensors, if a number is one register: with 128 of
them two blocks fit on a multiprocessor."""
_MOST_TOTALS = 64
"""The most registers with totals beside which a thread has several rows: those of 7 by 7 taps in 64
bits leave no room for their windows."""
_MOST_OF_ROWS_ACROSS = 96
"""The most totals times rows of a sum across: 8 rows of 3 by 3 taps, 2 of 5 by 5, 1 of 7 by 7."""
_MOST_ACROSS = 64
"""The most threads of a block in a row of several: what neighbouring rows share is read once."""
_WARP = 32
_LONGEST_TILE = 256
_FEWEST_ROUNDS = 8
"""How many points a thread adds up at least, where there are threads enough."""
_FEWEST_TERMS = 64
"""How many terms a thread adds up at least that shares a serial sum."""
_MANY_THREADS = 2**18
"""About as many threads as a large GPU holds."""
_MANY_BLOCKS = 1024
"""As many blocks of a sum, or more than it holds at once."""
_MOST_SPLITS = 512
_ACCESS = 16  # bytes of the widest load and store
_LONGEST_ROW = 16
"""The longest row of a plane that is one thread's."""
_SLAB = 40 * 1024
"""The most bytes of planes in shared memory, of 48 KiB that a block may have anyway."""
_LINE = 128  # bytes that caches hold together
_NARROW = 2**30  # half of what 32 bits hold: loops count one step past their end


@record
class Grid:
    """Blocks, threads of a block, what `quotient` divides by, whether every point has a thread."""

    blocks: Size
    threads: Size
    magic: tuple[int, ...]
    whole: bool


def grid(extents: Sequence[int], window: int = 0) -> Grid | None:
    """The grid over axes of these extents, slowest first; None where there is no point.

    With a `window`, neighbours along y and along the axis before it read elements in common; a
    thread has so many cells along y.
    """
    if not all(extents):
        return None
    x, y, *_ = *reversed(extents[-2:]), 1, 1
    z = math.prod(extents[:-2])
    if window and len(extents) > 2:
        threads = _window_threads(x, y, extents[-3], window)
    else:
        # As many threads as a row needs, so that none of them is idle at its end.
        most = THREADS if y == 1 else min(THREADS, _MOST_ACROSS)
        across = -(-x // -(-x // most))
        along = min(y, THREADS // across)
        threads = across, along, min(z, THREADS // (across * along), _MOST_ALONG_Z)
    needed = tuple(-(-extent // count) for extent, count in zip((x, y, z), threads, strict=True))
    blocks = tuple(map(min, needed, MOST_BLOCKS))
    divisors = tuple(map(magic, extents[1:-2]))
    return Grid((blocks[0], blocks[1], blocks[2]), threads, divisors, blocks == needed)


def _window_threads(x: int, y: int, z: int, cells: int) -> Size:
    """Threads of a block that together read least: a window is two cells larger than the block.

    Along x they are as many as access 128 bytes.
    """
    across = -(-x // -(-x // min(THREADS, _LINE // _ACCESS)))
    most = THREADS // across
    options = [1 << at for at in range(most.bit_length()) if 1 << at < 2 * y]

    def block(along: int) -> Size:
        along = min(along, y)
        return across, along, min(z, most // along, _MOST_ALONG_Z)

    def halo(threads: Size) -> float:
        _, along, deep = threads
        return (1 + 2 / (along * cells)) * (1 + 2 / deep)

    return min(map(block, options), key=halo)


def team_grid(extents: Sequence[int], outer: int, inner: int) -> Grid | None:
    """The grid over cells that teams of threads add up: x and y are a team, z are cells.

    A team takes the inner loop in steps of x, so that its threads are neighbours in memory, and the
    outer one in steps of y. Its size depends on nothing but lengths: sums are the same everywhere.
    """
    cells = math.prod(extents)
    if cells == 0:
        return None
    across = min(_WARP, THREADS, _power(inner))
    if outer == 1:
        across = min(THREADS, max(across, _power(inner // 8)))
    along = min(THREADS // across, _power(outer))
    deep = min(cells, THREADS // (across * along), _MOST_ALONG_Z)
    blocks = min(-(-cells // deep), MOST_BLOCKS[0])
    whole = blocks * deep >= cells
    return Grid((blocks, 1, 1), (across, along, deep), tuple(map(magic, extents[1:])), whole)


@record
class Tiles:
    """Tiles of cells that are read along one axis and stored along another.

    `across` and `along` are the sides of a tile, in cells that are stored and read side by side;
    `lanes` of them are a stretch.
    """

    across: int
    along: int
    lanes: int

    @classmethod
    def of(cls, width: int, length: int, size: int, lanes: int) -> Tiles:
        """Tiles of elements of that size, of a matrix of that width and length.

        Square ones have sides of 128 bytes, or 32 cells. Narrow ones, where the matrix is, have as
        many cells, each a stretch of its own.
        """
        side = 64 if size <= 2 else 32
        across, along = (min(_power(2 * e - 1), _LONGEST_TILE) for e in (width, length))
        if min(across, along) * 2 >= side:
            return cls(side, side, lanes)
        if across < along:
            return cls(across, min(along, max(side, side * side // across)), 1)
        return cls(min(across, max(side, side * side // along)), along, 1)

    def grid(self, outer: Sequence[int], digits: Sequence[int], length: int) -> Grid | None:
        """The grid: x along what is read, y along what is stored, z all others."""
        width, count = math.prod(digits), math.prod(outer)
        if not count * width * length:
            return None
        needed = (-(-length // self.along), -(-width // self.across), count)
        x, y, z = map(min, needed, MOST_BLOCKS)
        cells = self.across * self.along // self.lanes
        threads = min(THREADS, max(_WARP, cells))
        divisors = tuple(map(magic, (*outer[1:], *digits[1:])))
        return Grid((x, y, z), (threads, 1, 1), divisors, True)


@record
class Slab:
    """How many planes a block has, which are staged in shared memory, and the grid."""

    planes: int
    grid: Grid


def slab(extents: Sequence[int], tensors: Sequence[torch.Tensor], lanes: int) -> Slab | None:
    """The planes of a block of a kernel over axes of these extents, the last two of a plane.

    None where planes are large, or their rows are as good: `lanes` cells of them are one access.
    Tensors must have their planes one behind the other, from a multiple of 16 bytes on.
    """
    *outer, height, width = extents
    size = max(tensor.element_size() for tensor in tensors)
    if lanes * size >= _ACCESS or not 1 < width <= _LONGEST_ROW or not height:
        return None
    count = math.prod(outer)
    planes = [math.prod(tensor.shape[-2:]) * tensor.element_size() for tensor in tensors]
    lie_so = all(t.is_contiguous() and t.data_ptr() % _ACCESS == 0 for t in tensors)
    few = count * height < LEAST_THREADS
    if not lie_so or few or 0 in planes or any(map(_meet_in_banks, tensors)):
        return None
    whole = max(_ACCESS // math.gcd(plane, _ACCESS) for plane in planes)
    most = min(max(whole, THREADS // height), _SLAB // sum(planes))
    own = most // whole * whole
    if own == 0:
        return None
    threads = (min(THREADS, own * height), 1, 1)
    blocks = min(-(-count // own), MOST_BLOCKS[0])
    return Slab(own, Grid((blocks, 1, 1), threads, tuple(map(magic, extents[1:-2])), True))


def _meet_in_banks(tensor: torch.Tensor) -> bool:
    """Whether more than two of a warp's rows, one behind the other, begin in one bank."""
    bank = max(4, tensor.element_size())
    row = tensor.shape[-1] * tensor.element_size()
    return row % bank == 0 and math.gcd(row // bank, 128 // bank) > 2


@record
class SumGrid:
    """The grids over the cells of a sum over a box, and how the points of the box are shared out.

    `splits` blocks along y share a cell; each has `share` points, the last one may have fewer. The
    `total` grid is that of the launch which adds up what they have.
    """

    blocks: Size
    threads: Size
    total_blocks: Size
    total_threads: Size
    magic: tuple[int, ...]
    share: int
    splits: int


def sum_grid(cells: Sequence[int], box: Sequence[int]) -> SumGrid | None:
    """The grids for cells and points of these extents; None where there is no cell.

    They depend on nothing but extents, so that sums are the same on every device.
    """
    count, points = math.prod(cells), math.prod(box)
    if count == 0:
        return None
    rounds = max(1, min(_FEWEST_ROUNDS, count * points // _MANY_THREADS))
    members = min(THREADS, _power(points // rounds))
    blocks, threads = _teams(count, members)
    most = min(_MOST_SPLITS, MOST_BLOCKS[1], _MANY_BLOCKS // blocks)
    splits = max(1, min(most, points // (members * _FEWEST_ROUNDS)))
    share = max(1, -(-points // (splits * members))) * members
    splits = max(1, -(-points // share))
    divisors = tuple(magic(max(1, extent)) for extent in (*cells[1:], *box[1:]))
    total_blocks, total_threads = _teams(count, min(_WARP, THREADS))
    return SumGrid(
        (blocks, splits, 1),
        threads,
        (total_blocks, 1, 1),
        total_threads,
        divisors,
        share,
        splits,
    )


def across_grid(cells: Sequence[int], box: Sequence[int], stretch: int = 1) -> SumGrid | None:
    """The same where a warp's threads are neighbouring cells: x are cells, y the team of each.

    Points of the box are stretches of so many.
    """
    count, points = math.prod(cells), math.prod(box)
    if count == 0:
        return None
    width = min(_WARP, THREADS, _power(2 * count - 1))
    blocks = min(-(-count // width), MOST_BLOCKS[0])
    rounds = min(_FEWEST_ROUNDS, max(2, _FEWEST_ROUNDS // stretch))
    members = min(THREADS // width, _power(points // rounds))
    most = min(_MOST_SPLITS, MOST_BLOCKS[1], max(1, _MANY_BLOCKS // blocks))
    splits = max(1, min(most, points // (members * rounds)))
    share = max(1, -(-points // (splits * members))) * members
    splits = max(1, -(-points // share))
    divisors = tuple(magic(max(1, extent)) for extent in (*cells[1:], *box[1:]))
    return SumGrid(
        (blocks, splits, 1),
        (width, members, 1),
        (blocks, 1, 1),
        (width, min(THREADS // width, _power(splits)), 1),
        divisors,
        share,
        splits,
    )


def serial_splits(cells: Sequence[int], turns: int, terms: int) -> int:
    """How many threads share the turns of the loop of a cell, where a turn has so many terms.

    More than one where there are fewer threads than a GPU holds, and terms enough for each.
    """
    wanted = _MANY_THREADS // max(1, math.prod(cells))
    return max(1, min(wanted, turns, turns * terms // _FEWEST_TERMS, _MOST_SPLITS))


def _teams(count: int, members: int) -> tuple[int, Size]:
    """Blocks and threads for that many teams of so many members, in whole warps."""
    deep = max(_power(2 * count - 1), _WARP // members)
    deep = min(deep, THREADS // members, _MOST_ALONG_Z)
    return min(-(-count // deep), MOST_BLOCKS[0]), (members, 1, deep)


def _power(value: int) -> int:
    """The largest power of two that is at most a value, at least 1."""
    return 1 << (max(1, value).bit_length() - 1)


Walked = tuple[torch.Tensor, int]
"""A tensor that cells walk along, with the elements from one to the next."""


def lanes(extents: Sequence[int], walked: Iterable[Walked], gathered: Iterable[Walked] = ()) -> int:
    """How many neighbouring cells of the last axis are one thread's: 1, 2, 4, 8 or 16.

    As many as fill an access of 16 bytes in every tensor that they walk along, fewer where the
    axis is no multiple of them or elements do not lie at multiples of such an access. Tensors that
    are `gathered` are read in several accesses, as many as elements lie from one cell to the next.
    """
    found = [_cells(extents[-1], tensor, step, 1) for tensor, step in walked]
    found += [_cells(extents[-1], tensor, step, step) for tensor, step in gathered]
    return min(found, default=1)


def registers(kind: str) -> int:
    """How many registers of 32 bits a number takes that is computed in a type such as `f64`."""
    return 2 if kind.endswith("64") else 1


def most_rows(registers: int, siblings: bool = False, totals: int = 0) -> int:
    """The most rows of a thread for numbers of so many registers, see the limits above.

    `totals` are those of sums that it keeps for all of its rows.
    """
    if totals > _MOST_TOTALS:
        return 1
    return ROWS_OF_SIBLINGS // registers if siblings else MOST_ROWS // registers**2


def most_rows_across(totals: int) -> int:
    """The most rows of a thread with so many registers of totals, where each row has its loads.

    4 rows of 7 by 7 taps take 190 registers and load hardly less for a point than one does, with
    128: two blocks then fit on a multiprocessor.
    """
    return max(1, _MOST_OF_ROWS_ACROSS // max(1, totals))


def rows(extents: Sequence[int], values: int, limit: int = MOST_ROWS) -> int:
    """How many neighbours along the last axis but one are one thread's: 1, 2, 4 or 8.

    They share what does not depend on them, and rows that several of them read. The axis is a
    multiple of them, there are threads enough left, and `values` that are kept for each, counted in
    registers, are not too many. They are no more than the limit.
    """
    threads = math.prod(extents)
    for count, most in ((8, _MOST_IN_MANY_ROWS), (4, _MOST_VALUES), (2, _MOST_VALUES)):
        fits = count <= limit and extents[-2] % count == 0 and count * values <= most
        if fits and threads >= count * LEAST_THREADS:
            return count
    return 1


def _cells(extent: int, tensor: torch.Tensor, step: int, accesses: int) -> int:
    """The same for one tensor, which is walked along in so many accesses."""
    cells = max(1, accesses * _ACCESS // (step * tensor.element_size()))
    while cells > 1 and not (extent % cells == 0 and is_aligned(tensor, step * cells)):
        cells //= 2
    return cells


def is_aligned(tensor: torch.Tensor, elements: int) -> bool:
    """Whether rows are consecutive and begin at multiples of an access of that many elements."""
    size = tensor.element_size()
    access = min(elements * size, _ACCESS)
    *strides, step = tensor.stride()
    rows = zip(tensor.shape[:-1], strides, strict=True)
    return (
        step == 1
        and tensor.data_ptr() % access == 0
        and all(stride * size % access == 0 for count, stride in rows if count > 1)
    )


def magic(divisor: int) -> int:
    """A multiplier and a shift, in one number, that `quotient` divides by a divisor with.

    With s = ceil(log2 d) and m = floor(2**(31 + s) / d) + 1, the quotient n // d is
    n * m >> (31 + s) for all 0 <= n < 2**31: the error of m is at most d <= 2**s (Granlund and
    Montgomery 1994). A divisor beyond 31 bits is divided by as it is.
    """
    if divisor >= 2**31:
        return 0
    shift = (divisor - 1).bit_length()
    multiplier: int = 2 ** (31 + shift) // divisor + 1
    return shift << 32 | multiplier


def is_narrow(reach: int, grids: Iterable[Sequence[int]], tensors: Iterable[torch.Tensor]) -> bool:
    """Whether 32 bits are enough for every index: of points, elements, and all in between."""
    if reach >= _NARROW or any(extent >= _NARROW for each in grids for extent in each):
        return False
    return all(_span(tensor) < _NARROW for tensor in tensors)


def _span(tensor: torch.Tensor) -> int:
    """How many elements the last one lies behind the first."""
    span: int = sum(
        (size - 1) * stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 0
    )
    return span
