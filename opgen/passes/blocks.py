"""Vectors of neighbouring cells, with the loops over their terms inside.

In channels-last format the cells of a row are the channels of one pixel, and all of them have the
same terms. So a block of them goes through the terms together: its accumulators are vectors that
stay in registers, however many loops and conditions there are. `passes.block_tensors` says which
kernels that is possible for. Cells along other axes that load the same numbers share a body, see
`passes.block_tiling`.

What cells with large windows load, a point copies first: see `passes.nearby`. Cells that have
little in common stand alone: see `passes.lone_cells`.

Such a kernel comes beside the one along rows, which serves calls whose tensors are not consecutive
along the row, and rows that no block fits into.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Final

from opgen.ir.chosen import has_choices
from opgen.ir.loop_parts import integer_names
from opgen.ir.loops import Axis, Blocks, For, Kernel, Lanes, Operand, Program, Row, walk
from opgen.ir.names import fresh_name
from opgen.passes.block_passes import with_passes
from opgen.passes.block_tensors import walked
from opgen.passes.block_tiling import Tiling
from opgen.passes.lane_choice import Way, choose
from opgen.passes.lone_cells import WIDTH as LONE_WIDTH
from opgen.passes.lone_cells import lone_cells
from opgen.passes.merge import at
from opgen.passes.nearby import Nearby, nearby
from opgen.passes.rows import direct
from opgen.passes.same_loads import with_same_loads

WIDTH: Final = 256
"""How many cells of a row a parallel point has, if there are as many."""

LONGEST_ROW: Final = 16
"""The longest row of cells whose planes are worth being gathered."""


def with_blocks(plain: Program, program: Program) -> Program:
    """A program along rows, with kernels that compute blocks of cells where that helps.

    `plain` are the same kernels with a parallel point for each cell.
    """
    if program.faults or program.workspaces or len(plain.kernels) != len(program.kernels):
        return program
    kernels: list[Kernel] = []
    local: list[Operand] = []
    for cells, rowed in zip(plain.kernels, program.kernels, strict=True):
        known = replace(program, unstored=(*program.unstored, *local))
        found = None if rowed.only is not None else _blocked(cells, known)
        if found is None and rowed.only is None and _lanes_go_alone(rowed):
            found = _blocked_across(cells, known)
        kernel = None if found is None else found.kernel
        if found is None or kernel is None or kernel.only is None:
            kernels.append(rowed)
            continue
        local += found.local
        names = {each.name for each in (*program.kernels, *kernels)}
        kernels.append(replace(kernel, name=fresh_name(f"{kernel.name}_blocks", names)))
        kernels.append(replace(rowed, only=replace(kernel.only, holds=False)))
    return replace(program, kernels=tuple(kernels), unstored=(*program.unstored, *local))


def _blocked(kernel: Kernel, program: Program) -> Nearby | None:
    """A kernel with one point for each cell as one of blocks; None where it gains nothing by it."""
    if not kernel.is_deterministic or not kernel.axes or kernel.row is not None:
        return None
    kernel = replace(kernel, body=at(direct(kernel.body), {}))
    choice = choose(kernel)
    if choice.way is not Way.ROW:
        return None
    (axis,) = (each for each in kernel.axes if each.name == choice.name)
    tensors = walked(kernel, axis.name, program)
    if tensors is not None and not any(isinstance(node, For) for node in kernel.body):
        same = with_same_loads(kernel, axis, tensors, program.integers)
        return None if same is None else Nearby(same)
    return None if tensors is None else _along(kernel, axis, tensors, program, may_be_alone=True)


def _blocked_across(kernel: Kernel, program: Program) -> Nearby | None:
    """The same along another axis, with elements gathered one by one: for short rows of planes.

    That takes as long as to load them one by one, but what is computed of them is vectors.
    """
    if not kernel.is_deterministic or kernel.row is not None:
        return None
    kernel = replace(kernel, body=at(direct(kernel.body), {}))
    if not any(isinstance(node, For) for node in kernel.body):
        return None
    for axis in reversed(kernel.axes):
        if axis.extent.is_constant:
            if axis.extent.constant > LONGEST_ROW:
                return None
            continue
        tensors = walked(kernel, axis.name, program, is_spread=True)
        return None if tensors is None else _along(kernel, axis, tensors, program)
    return None


def _lanes_go_alone(kernel: Kernel) -> bool:
    """Whether some lanes of a row go through loops of their own, one after the other."""
    passes = [node for node in walk(kernel.body) if isinstance(node, Lanes)]
    return any(isinstance(node, For) for each in passes for node in walk(each.body))


def _along(
    kernel: Kernel,
    axis: Axis,
    tensors: tuple[str, ...],
    program: Program,
    may_be_alone: bool = False,
) -> Nearby | None:
    """The kernel with blocks along an axis, in which all cells have the same terms.

    `tensors` are those that the blocks walk through.
    """
    tiling = Tiling.of(kernel, axis, program.integers)
    body = None if tiling is None else tiling.body()
    if tiling is not None and body is None:
        tiling = tiling.inner_alone
        body = tiling.body()
    if tiling is None or body is None:
        is_worth = has_choices(walk(kernel.body))
        return Nearby(_cell_by_cell(kernel, axis, tensors, program)) if is_worth else None
    first, last = (fresh_name(f"{axis.name}_{end}", tiling.taken) for end in ("first", "last"))
    row = Row(axis, first, last, WIDTH, least=WIDTH)
    blocks = replace(
        kernel,
        axes=tiling.axes(axis),
        body=body,
        row=row,
        only=Blocks(axis.extent, tensors, True),
    )
    if has_choices(walk(kernel.body)):
        return Nearby(blocks)
    found = nearby(blocks, kernel, tiling.steps, program)
    if found.local:
        return found
    alone = lone_cells(kernel, axis, body) if may_be_alone else None
    if alone is not None:
        axes = tuple(each for each in kernel.axes if each is not axis)
        row = replace(row, width=LONE_WIDTH, least=LONE_WIDTH)
        return Nearby(replace(blocks, axes=axes, body=alone, row=row))
    passes = with_passes(blocks)
    is_row = passes is blocks and tiling.outer is None
    return Nearby(_image_by_image(blocks) if is_row else passes)


def _cell_by_cell(kernel: Kernel, axis: Axis, tensors: tuple[str, ...], program: Program) -> Kernel:
    """The kernel with blocks of single cells along an axis: sums stay in registers at least."""
    taken = integer_names(kernel, known=program.integers)
    first, last = (fresh_name(f"{axis.name}_{end}", taken) for end in ("first", "last"))
    return replace(
        kernel,
        axes=tuple(each for each in kernel.axes if each is not axis),
        body=(Lanes((), (), kernel.body),),
        row=Row(axis, first, last, WIDTH, least=WIDTH),
        only=Blocks(axis.extent, tensors, True),
    )


def _image_by_image(blocks: Kernel) -> Kernel:
    """The kernel with stretches that go through the axes of known extent before the next one does.

    Cells of the next row load half of what those of a row have loaded, or more. It is still in the
    caches if cells have few channels, not if a whole row has all of them. With pairs of rows in a
    block less is loaded again, and whole pixels in turn are better for memory (by a tenth for 3 by
    3 filters).
    """
    assert blocks.row is not None
    known = itertools.takewhile(lambda axis: axis.extent.is_constant, reversed(blocks.axes))
    return replace(blocks, row=replace(blocks.row, within=len(tuple(known))))
