"""Loops for the threads of a GPU: neighbours along the axis that is consecutive in memory.

Before: one parallel point for every cell. After: the last axis is the one along which most tensors
are read and written at consecutive addresses, and where possible a point is a stretch of
neighbouring cells of it. These are the work of one thread: it keeps their accumulators in
registers, loads what they share once, and loads and stores several elements at a time. Everything
that is the same for all cells of a stretch is done once; a term that only some of them have is
asked for cell by cell.

How many cells a stretch has is left to the launch, which knows alignments and element types. It
divides the row, so no stretch is partial. A thread may have several such rows, see `cuda_tiles`.
Sums along consecutive memory are shared out instead, see `cuda_sums` and `cuda_teams`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Kind, Poly, symbol
from opgen.algebra.prove import implies
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import (
    Always,
    Axis,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Node,
    Program,
    Row,
    Store,
    walk,
)
from opgen.ir.map_loops import map_nodes
from opgen.ir.names import fresh_name
from opgen.ir.sums import SHARED, BoxSum, box_sum, is_along
from opgen.ir.transpose import transpose
from opgen.passes.cuda_addends import added_first
from opgen.passes.cuda_beside import with_beside
from opgen.passes.cuda_sums import MOST_APART, summed
from opgen.passes.cuda_teams import team_sum
from opgen.passes.cuda_tiles import copies_across, tiled
from opgen.passes.cuda_warps import in_warps
from opgen.passes.cuda_windows import in_pieces
from opgen.passes.jam import Copies, copies_along, jammed
from opgen.passes.lane_choice import Choice, Way, choose
from opgen.passes.lane_passes import together
from opgen.passes.rows import Rewriter, Scope, direct
from opgen.passes.unroll import LONGEST, unrolled

LARGEST_STEP: Final = 4
"""The most elements that may lie from what one cell loads to what the next one does."""

WIDEST: Final = 16
"""The most cells of a stretch: 16 bytes of the smallest elements."""

MOST_OF_WINDOW: Final = 49
"""The most terms that are written out of a sum that has no others: 7 by 7.

A depthwise convolution of 7 by 7 then executes 86 instructions for a cell of rows of 20 and loads 5
times; with loops over the taps it was 148 and 39, and 6 times as long as with a kernel of one cell
for a thread (H100, 318 and 53 microseconds).
"""


def cuda_rows(program: Program, facts: Facts) -> Program:
    """The same program for threads; `facts` hold for every call."""
    # With `OW = W` a row of the output is seen to be one of the input.
    known: dict[str, Poly] = {}
    for name, value in facts.definitions:
        if _is_plain(value.substitute(known)):
            known[name] = value.substitute(known)

    def plain(value: Poly) -> Poly:
        return value.substitute(known)

    integers = program.integers
    kernels = (_kernel(_mapped(kernel, plain), facts, integers) for kernel in program.kernels)
    operands = tuple(
        replace(operand, extents=tuple(map(plain, operand.extents))) for operand in program.operands
    )
    return replace(program, kernels=tuple(kernels), operands=operands)


def _is_plain(value: Poly) -> bool:
    return all(atom.kind is Kind.SYMBOL for atom in value.atoms())


def _mapped(kernel: Kernel, change: Callable[[Poly], Poly]) -> Kernel:
    axes = tuple(Axis(axis.name, change(axis.extent)) for axis in kernel.axes)
    prologue = tuple(Define(each.name, change(each.value)) for each in kernel.prologue)
    return replace(kernel, axes=axes, prologue=prologue, body=map_nodes(kernel.body, change))


def _kernel(kernel: Kernel, facts: Facts, integers: Sequence[str]) -> Kernel:
    if not kernel.is_deterministic:
        return kernel
    if kernel.axes:
        kernel = replace(kernel, body=direct(kernel.body))
        match choose(kernel, SHARED, are_parts_long=False):
            case Choice(way=Way.POINTS) | Choice(way=Way.ROW) if transpose(kernel) is not None:
                return kernel
            case Choice(way=Way.ROW, name=name):
                apart = summed(kernel, facts, integers, sorts=True)
                if apart and _is_along_parts(kernel, apart, integers, name):
                    return apart
                found = summed(kernel, facts, integers)
                is_in_a_pass = found is not None and all(a.name != name for a in found.axes)
                if found and (is_in_a_pass or _has_taps(found, kernel, integers, across=True)):
                    return found
                if found and _is_of_few_cells(found, integers, name):
                    return found
                if found and _are_taps_apart(found, integers, name):
                    return found
                return _along(kernel, name, facts)
            case Choice(way=Way.POINTS):
                stored = _stored_along(kernel)
                if stored is not None:
                    return _along(kernel, stored, facts)
                found = summed(kernel, facts, integers, sorts=True)
                if found and _has_taps(found, kernel, integers):
                    return found
                return found if found and _is_of_few_cells(found, integers) else kernel
            case _:
                pass
    return summed(kernel, facts, integers) or team_sum(kernel)


def _is_along_parts(kernel: Kernel, found: Kernel, integers: Sequence[str], name: str) -> bool:
    """Whether neighbouring cells are parts of a dim, as groups of channels are, and what a sum
    reads lies side by side within these, and goes through whole dims besides.

    What lies side by side for cells, as the mean of each group, is read once.
    """
    box = box_sum(found, integers)
    if box is None or not is_along(box):
        return False
    points = {axis.name for axis in box.box}
    whole = {index for load in loads_of(walk(kernel.body)) for index in load.indices}
    if whole.isdisjoint(map(symbol, points)):
        return False  # parts of dims alone are few
    loads = [load.indices for load in loads_of(walk(kernel.body)) if load.indices]
    moving = [each for each in loads if any(not points.isdisjoint(i.symbols) for i in each)]
    steps = [each[-1].step_in(name) for each in moving if name in each[-1].symbols]
    return bool(steps) and all(step is None for step in steps)


def _has_taps(found: Kernel, kernel: Kernel, integers: Sequence[str], across: bool = False) -> bool:
    """Whether a sum over pixels has the taps of a filter in one pass, and loads lie side by side.

    If `across`, along channels that are cells; else there may be one filter for all channels. A sum
    over channels that are far apart, for neighbouring pixels, is one over a single axis.
    """
    box = box_sum(found, integers)
    if box is None or len(box.box) == 1 or len(found.axes) == len(kernel.axes):
        return False
    names = {axis.name for axis in box.box}
    loads = [tuple(index.symbols for index in e.indices) for e in loads_of(walk(box.terms))]
    if box.across:
        return all(names <= frozenset().union(*each) for each in loads)
    return not across and all(each and each[-1] and each[-1] <= names for each in loads)


def _is_of_few_cells(found: Kernel, integers: Sequence[str], name: str = "") -> bool:
    """Whether a sum has more points than threads could add up one by one, and few cells.

    That are those over pixels: over axes of which two or more are as long as a call says, while of
    the cells only the axis of that `name` is, along which loads then lie side by side, or others
    around all points; or none but those that move to other rows.
    The gradient of a bias of channels `(o a b)` has two neighbours in a row of pixels: with a
    thread for each of 128 cells, of 57600 terms, it took an H100 6.7 ms.
    """
    box = box_sum(found, integers)
    if box is None or sum(not axis.extent.is_constant for axis in box.box) < 2:
        return False
    long = {axis.name for axis in found.axes if not axis.extent.is_constant}
    points = {axis.name for axis in box.box}
    loads = [load.indices for load in loads_of(walk(box.terms)) if load.indices]
    loads = [each for each in loads if any(not points.isdisjoint(i.symbols) for i in each)]
    if name:
        return box.across and (long == {name} or any(_lies_between(e, found, box) for e in loads))
    nearest = box.box[-1].name
    steps = [_step_along(indices, nearest, {}) for indices in loads]
    are_near = any(steps) and all(s is not None and abs(s) <= LARGEST_STEP for s in steps)
    return are_near and all(long.isdisjoint(indices[-1].symbols) for indices in loads)


def _are_taps_apart(found: Kernel, integers: Sequence[str], name: str) -> bool:
    """Whether neighbouring cells are the taps of a window, too many for one pass and too few for a
    thread each: that one would add up a whole image."""
    box = box_sum(found, integers)
    (extent,) = (axis.extent for axis in found.axes if axis.name == name)
    if box is None or not extent.is_constant or extent.constant > MOST_APART:
        return False
    points = {axis.name for axis in box.box}
    indices = (index for load in loads_of(walk(box.terms)) for index in load.indices)
    return any(name in each.symbols and not points.isdisjoint(each.symbols) for each in indices)


def _lies_between(indices: tuple[Poly, ...], found: Kernel, box: BoxSum) -> bool:
    """Whether a load is another element for each cell and point, and goes through all points within
    the first axis of cells: these are few then, such as images and channels."""
    dims = len(found.axes) + len(box.box)
    return len(indices) == dims and any(a.name in indices[0].symbols for a in found.axes)


def _stored_along(kernel: Kernel) -> str | None:
    """The axis along which cells are neighbours, and what is loaded is few elements apart.

    Such loads take as much time as others where a stretch of cells reads what lies between, too.
    """
    values: dict[str, Poly] = {}
    for node in walk(kernel.body):
        if isinstance(node, Define):
            values.setdefault(node.name, node.value.substitute(values))
    stores = [node.indices for node in walk(kernel.body) if isinstance(node, Store)]
    loads = [load.indices for load in loads_of(walk(kernel.body))]
    for axis in reversed(kernel.axes):
        steps = [_step_along(indices, axis.name, values) for indices in stores]
        others = [_step_along(indices, axis.name, values) for indices in loads]
        near = all(step is not None and abs(step) <= LARGEST_STEP for step in others)
        if not axis.extent.is_constant and near and all(step == 1 for step in steps):
            return axis.name
    return None


def _step_along(indices: tuple[Poly, ...], name: str, values: Mapping[str, Poly]) -> int | None:
    """How many elements an access moves with an axis; None where it leaves its row or jumps."""
    *rows, last = (index.substitute(values) for index in indices or (ZERO,))
    return None if any(name in row.symbols for row in rows) else last.step_in(name)


def _along(whole: Kernel, name: str, facts: Facts) -> Kernel:
    """The kernel with the axis of that name as its row, or last where cells have long loops."""
    found = with_beside(whole, name)
    along = Copies(found, (found.body,)) if found.beside else copies_along(whole, name, reads=True)
    copies = copies_across(along, name)
    kernel, bodies = copies.kernel, tuple(map(_unrolled, copies.bodies))
    (axis,) = (axis for axis in kernel.axes if axis.name == name)
    taken = integer_names(kernel, *itertools.chain(*bodies), known=facts.symbols)
    row = Row(axis, fresh_name(f"{name}_first", taken), fresh_name(f"{name}_last", taken), WIDEST)
    inside = facts.with_conditions(*(Condition(each.extent - 1) for each in kernel.axes))
    for each in kernel.axes:
        inside = inside.with_bounds(each.name, ZERO, each.extent - 1)
    rewriter, scope = Rewriter(row, inside), Scope()
    rewritten = [
        tuple(in_pieces(rewriter.nodes(_unrolled(body), scope), row, inside)) for body in bodies
    ]
    body = _inlined(_simplified(together(jammed(rewritten), name), inside), {})
    if any(isinstance(node, Lanes) and _loops(node) for node in walk(body)):
        (last,) = (axis for axis in whole.axes if axis.name == name)
        others = tuple(axis for axis in whole.axes if axis.name != name)
        return replace(whole, axes=(*others, last))
    axes = tuple(each for each in kernel.axes if each is not axis)
    found = added_first(tiled(replace(kernel, axes=axes, row=row, body=body), inside))
    return in_warps(found, inside.symbols)


def _unrolled(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """The body with short loops written out, those over windows that end at the image's ends, too.

    A thread asks for these ends cell by cell. A window that is the whole sum may have more terms.
    """
    whole = unrolled(body, MOST_OF_WINDOW, LONGEST)
    if not any(isinstance(node, For) for node in walk(whole)):
        return whole
    return unrolled(body, moving=LONGEST)


def _simplified(body: tuple[Node, ...], facts: Facts) -> tuple[Node, ...]:
    """Without conditions that hold for every cell there is."""
    out: list[Node] = []
    for node in body:
        match node:
            case If():
                left = tuple(each for each in node.conditions if not implies(facts, each))
                inner = _simplified(node.body, facts)
                if left or node.test != Always() or not inner:
                    out.append(replace(node, conditions=left, body=inner))
                else:
                    out += inner
            case For(body=inner) | Lanes(body=inner):
                out.append(replace(node, body=_simplified(inner, facts)))
            case _:
                out.append(node)
    return tuple(out)


def _loops(node: Lanes) -> bool:
    return any(isinstance(each, For) for each in walk(node.body))


def _inlined(body: tuple[Node, ...], values: Mapping[str, Poly]) -> tuple[Node, ...]:
    """The body with short definitions replaced by what they stand for; `values` are known ones.

    What is loaded for neighbouring cells can then be seen to be neighbours.
    """
    values = dict(values)

    def known(value: Poly) -> Poly:
        return value.substitute(values)

    out: list[Node] = []
    for node in body:
        match node:
            case Define(name=name, value=value):
                value = known(value)
                if _is_plain(value):
                    values[name] = value
                else:
                    values.pop(name, None)
                    out.append(Define(name, value))
            case If(body=inner) | For(body=inner) | Lanes(body=inner):
                (head,) = map_nodes((replace(node, body=()),), known)
                assert isinstance(head, If | For | Lanes)
                out.append(replace(head, body=_inlined(inner, values)))
            case _:
                out += map_nodes((node,), known)
    return tuple(out)
