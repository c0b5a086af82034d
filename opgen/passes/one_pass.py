"""Two kernels of blocks as one, where both go through the same pixels and read the same of them.

Before: the gradient of an image, block by block, and that of a filter whose pixels share no loads
(`passes.apart`), which goes from pixel to pixel with its sums in memory. Both read what flows back.
After: a third kernel that computes the cells of the image at the pixels of the sums, so that it
loads everything once. It runs where it has points enough for all threads, else the other two do.

Cells and sums have the same terms in the same order in both ways, so that the bits are the same.

Some neighbouring pixels are one pass: sums, and the filter that cells are multiplied by, are loaded
once for all of them. They are half of what a pass for a single pixel loads, and more than the first
cache holds beside the pixels. With 8 images of 2048 channels of 16 by 16, by hand, one pixel at a
time took 2.74 ms, two 2.01 and four 2.35, where copying as many bytes took 1.39. Of 8 by 8, where
the caches hold all of it, two take no longer than four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.ir.loop_parts import accumulators_of, loads_of, read_by, uses
from opgen.ir.loops import Blocks, Define, For, Kernel, Lanes, Load, Node, Program, walk
from opgen.ir.map_loops import map_nodes, renamed
from opgen.ir.names import fresh_name
from opgen.ir.work import points
from opgen.passes.block_passes import JOINED
from opgen.passes.merge import Body, at, merged
from opgen.passes.rows import direct

MOST_TERMS: Final = 64
"""The most terms that cells have: they are written out."""

PIXELS: Final = (2, 3)
"""How many neighbouring pixels may be in a pass, the best first: each of their elements is a stream
through memory."""


def with_one_pass(plain: Program, program: Program) -> Program:
    """The program with a kernel that does the work of two; as it was where there are no such two.

    `plain` are the same kernels with a parallel point for each cell.
    """
    if program.faults or program.workspaces:
        return program
    written = {name for kernel in program.kernels for name in kernel.all_written}
    loaded = read_by(*program.kernels)
    for sums in filter(_is_of_pixels, program.kernels):
        for cells in program.kernels:
            own = [each for each in plain.kernels if each.written == cells.written]
            if cells is sums or len(own) != 1 or not _may_join(cells, sums, written):
                continue
            if not loaded.isdisjoint((*cells.all_written, *sums.all_written)):
                continue  # it would be read before the third kernel has written it
            both = _joined(own[0], cells, sums)
            if both is not None:
                names = {each.name for each in program.kernels}
                both = replace(both, name=fresh_name(f"{sums.name}_and_{cells.written}", names))
                together = both.only
                assert isinstance(together, Blocks)
                alone = {each.name: replace(each, unless=together) for each in (cells, sums)}
                kernels = (alone.get(each.name, each) for each in program.kernels)
                return replace(program, kernels=(*kernels, both))
    return program


def _is_of_pixels(kernel: Kernel) -> bool:
    """Whether so many of its stretches may run as one as where pixels are passes."""
    return kernel.row is not None and kernel.row.joined > JOINED


def _may_join(cells: Kernel, sums: Kernel, written: set[str]) -> bool:
    """Whether kernels of blocks along the same channels may run at once, and last."""
    both = cells, sums
    rows = [each.row.axis.extent for each in both if each.row is not None]
    return (
        all(isinstance(each.only, Blocks) and each.only.holds for each in both)
        and all(each.unless is None and not each.local and not each.prologue for each in both)
        and all(each.is_deterministic and not uses(each).faults for each in both)
        and len(rows) == 2
        and rows[0] == rows[1]
        and cells.written != sums.written
        and written.isdisjoint(read_by(*both))
    )


# ---------------------------------------------------------------------------- the body
def _joined(plain: Kernel, cells: Kernel, sums: Kernel) -> Kernel | None:
    """The sums with the cells at their pixels; None where these are not the same."""
    found = _pixels(sums.body)
    row, other = sums.row, cells.row
    if found is None or row is None or other is None:
        return None
    written_out = merged([at(direct(plain.body), {})])
    if written_out is None or any(isinstance(node, For | Define) for node in walk(written_out)):
        return None
    axes = {axis.name: axis.extent for axis in plain.axes if axis.name != other.axis.name}
    places = _places(written_out, axes, found)
    if places is None or other.axis.name not in {axis.name for axis in plain.axes}:
        return None
    places |= {other.axis.name: symbol(row.axis.name)}
    own = map_nodes(written_out, lambda value: value.substitute(places))
    if not set(loads_of(own)) & set(loads_of(found.inside.body)) or len(own) > MOST_TERMS:
        return None
    found = _side_by_side(found, own, set(accumulators_of(*sums.body)))
    tensors = dict.fromkeys(
        name
        for each in (cells, sums)
        for name in (each.only.tensors if isinstance(each.only, Blocks) else ())
    )
    counts = points(sums), points(cells)
    only = Blocks(row.axis.extent, tuple(tensors), True, counts)
    spec = (*cells.spec, *sums.spec)
    also = (*sums.also, cells.written)
    return replace(sums, body=found.body, also=also, only=only, spec=spec)


@dataclass(frozen=True, slots=True)
class _Pixels:
    """Loops one within the other around a pass, what comes before them, and what behind."""

    before: Body
    loops: tuple[For, ...]
    inside: Lanes
    behind: Body

    @property
    def body(self) -> Body:
        """All nodes."""
        body: Body = (self.inside,)
        for loop in reversed(self.loops):
            body = (replace(loop, body=body),)
        return (*self.before, *body, *self.behind)


def _pixels(body: Body) -> _Pixels | None:
    """None where there is more than a pass in the loops, or where they do not begin at 0."""
    places = [place for place, node in enumerate(body) if isinstance(node, For)]
    if len(places) != 1:
        return None
    loops: list[For] = []
    inside = body[places[0]]
    while isinstance(inside, For):
        is_whole = inside.lower == (ZERO,) and len(inside.upper) == 1
        if not is_whole or len(inside.body) != 1 or inside.any_order:
            return None
        loops.append(inside)
        inside = inside.body[0]
    if not isinstance(inside, Lanes):
        return None
    return _Pixels(body[: places[0]], tuple(loops), inside, body[places[0] + 1 :])


def _side_by_side(pixels: _Pixels, cells: Body, taken: set[str]) -> _Pixels:
    """The loops with cells in their pass, and with neighbouring pixels in it.

    Sums come before cells and have the same accumulators in all pixels; cells have their own, of
    names that are not `taken`.
    """
    *outer, loop = pixels.loops
    extent = loop.upper[0] + 1
    count = 1
    if extent.is_constant:
        fitting = (n for n in PIXELS if n * len(cells) <= MOST_TERMS)
        count = next((n for n in fitting if extent.constant % n == 0), 1)
    body: list[Node] = []
    for at_pixel in range(count):
        names = {name: fresh_name(name, taken) for name in sorted(accumulators_of(*cells))}
        both = (*pixels.inside.body, *renamed(cells, names.__getitem__))
        body += at(both, {loop.name: symbol(loop.name) * count + at_pixel})
    loop = replace(loop, upper=(extent // count - 1,))
    inside = replace(pixels.inside, body=tuple(body))
    return replace(pixels, loops=(*outer, loop), inside=inside)


def _places(body: Body, axes: Mapping[str, Poly], pixels: _Pixels) -> dict[str, Poly] | None:
    """What the axes of cells are in the loops: a loop of the same extent for each of them.

    Then every cell is computed once. Something both load in the same steps says which loop it is.
    """
    extents = {loop.name: loop.upper[0] + 1 for loop in pixels.loops}
    for mine in dict.fromkeys(loads_of(walk(body))):
        for theirs in dict.fromkeys(loads_of(pixels.inside.body)):
            if mine.tensor != theirs.tensor:
                continue
            found = _alike(mine, theirs, tuple(axes), tuple(extents))
            if (
                set(found) == set(axes)
                and sorted(found.values()) == sorted(extents)
                and all(axes[axis] == extents[loop] for axis, loop in found.items())
            ):
                return {axis: symbol(loop) for axis, loop in found.items()}
    return None


def _alike(mine: Load, theirs: Load, axes: Sequence[str], loops: Sequence[str]) -> dict[str, str]:
    """The loop that goes in the same steps through the same dim, by axis."""
    found = {}
    for one, other in zip(mine.indices, theirs.indices, strict=True):
        moving = [(name, one.step_in(name)) for name in axes if name in one.symbols]
        counted = [(name, other.step_in(name)) for name in loops if name in other.symbols]
        if len(moving) == 1 and len(counted) == 1:
            (axis, step), (loop, counted_step) = *moving, *counted
            if step and step == counted_step:
                found[axis] = loop
    return found
