"""Vectors of neighbouring cells, with the loops over their terms inside.

In channels-last format the cells of a row are the channels of one pixel, and all of them have the
same terms. So a block of them goes through the terms together: its accumulators are vectors that
stay in registers, however many loops and conditions there are. Cells along other axes that load
the same numbers share a body. Where the range of a loop differs from cell to cell, as at the
borders of an image, the cells of a short axis have a body for each block of them. Along another
axis so have pairs of cells at the border, if that is not too much; else they go one by one, with
the range of the loop found at run time.

What cells with large windows load, a point copies first: see `passes.nearby`. Cells that have
little in common stand alone: see `passes.lone_cells`.

Such a kernel comes beside the one along rows, which serves calls whose tensors are not consecutive
along the row, and rows that no block fits into.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.loop_parts import goes_along, loads_of, moving
from opgen.ir.loops import (
    Accumulate,
    Always,
    Any,
    Axis,
    Blocks,
    Call,
    Choose,
    Define,
    For,
    If,
    Inside,
    Kernel,
    Lanes,
    Load,
    Node,
    Operand,
    Program,
    Result,
    Row,
    Scalar,
    Start,
    Store,
    walk,
)
from opgen.ir.map_loops import symbols_of, test_symbols
from opgen.ir.notation import Reducer
from opgen.passes.block_passes import pixel_by_pixel, with_passes
from opgen.passes.gather import fresh_name
from opgen.passes.jam import copy_at
from opgen.passes.lane_choice import Way, choose
from opgen.passes.load_order import by_load
from opgen.passes.lone_cells import WIDTH as LONE_WIDTH
from opgen.passes.lone_cells import lone_cells
from opgen.passes.merge import MOST_TERMS as MERGED_TERMS
from opgen.passes.merge import Body, at, constant_range, merged, terms_of
from opgen.passes.nearby import Nearby, Step, nearby
from opgen.passes.rows import direct
from opgen.passes.same_loads import with_same_loads
from opgen.passes.tile import shares_loads

WIDTH: Final = 256
"""How many cells of a row a parallel point has, if there are as many."""

MOST_IN_ROW: Final = 10
"""The most cells along the inner one of two axes that share a body: with two rows of them their
accumulators, and what they load, are in registers."""

WHOLE: Final = 13
"""The most cells of an axis that is not cut."""

FEW_TERMS: Final = 9
FEW_IN_ROW: Final = 8
FEW_WHOLE: Final = 9
"""The same for cells of so few terms. With 10 of them, and 13 where a row is one body, filters of
3 by 3 take 1.2 times as long on rows of 10 and of 12 pixels; on 11, 13, 17, 19, 28 and 56 as long
or a little longer. Filters of 5 by 5 take 1.25 times as long on rows of 9 pixels in two parts."""

MOST_CELLS: Final = 25
"""The most cells that share a body."""

MOST_TERMS: Final = 700
"""The most terms of a kernel that are written out: compiling one takes about a millisecond."""

MOST_PAIRED: Final = 420
"""The most terms with which pairs of cells at the border have bodies of their own as well. With
more of them 16-bit numbers would go one vector at a time, see `emit.lane_pairs`: on rows of 10
pixels these take 0.8 of the time so, and float32 1.04 of it."""

LONGEST_ROW: Final = 16
"""The longest row of cells whose planes are worth being gathered."""

OPERATORS: Final = frozenset({"add", "sub", "mul", "div", "neg"})
"""Primitives that GNU C spells for vectors as for numbers."""

_LARGE: Final = poly(2**62)


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
        found = None if rowed.only is not None else blocked(cells, known)
        if found is None and rowed.only is None and _lanes_go_alone(rowed):
            found = blocked_across(cells, known)
        kernel = None if found is None else found.kernel
        if found is None or kernel is None or kernel.only is None:
            kernels.append(rowed)
            continue
        local += found.local
        names = {each.name for each in (*program.kernels, *kernels)}
        kernels.append(replace(kernel, name=fresh_name(f"{kernel.name}_blocks", names)))
        kernels.append(replace(rowed, only=replace(kernel.only, holds=False)))
    return replace(program, kernels=tuple(kernels), unstored=(*program.unstored, *local))


def blocked(kernel: Kernel, program: Program) -> Nearby | None:
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
        same = with_same_loads(kernel, axis, tensors)
        return None if same is None else Nearby(same)
    return None if tensors is None else _along(kernel, axis, tensors, program, may_be_alone=True)


def blocked_across(kernel: Kernel, program: Program) -> Nearby | None:
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
    walked: tuple[str, ...],
    program: Program,
    may_be_alone: bool = False,
) -> Nearby | None:
    """The kernel with blocks along an axis, in which all cells have the same terms."""
    tiling = Tiling.of(kernel, axis)
    body = None if tiling is None else tiling.body()
    if tiling is not None and body is None:
        tiling = tiling.inner_alone
        body = tiling.body()
    if tiling is None or body is None:
        return None
    first, last = (fresh_name(f"{axis.name}_{end}", tiling.taken) for end in ("first", "last"))
    row = Row(axis, first, last, WIDTH, least=WIDTH)
    blocks = replace(
        kernel,
        axes=tiling.axes(axis),
        body=body,
        row=row,
        only=Blocks(axis.extent, walked, True),
    )
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


# ---------------------------------------------------------------------------- what a vector can do
def walked(
    kernel: Kernel, name: str, program: Program, is_spread: bool = False
) -> tuple[str, ...] | None:
    """The tensors that blocks of the axis walk through; None where the cells differ in more.

    With `is_spread` they are others, whose elements stand apart.
    """
    found: dict[str, None] = {}
    is_long = any(isinstance(n, For) and constant_range(n) is None for n in kernel.body)
    for node in walk(kernel.body):
        match node:
            case For(lower=lower, upper=upper):
                is_same = name not in frozenset[str]().union(*(b.symbols for b in (*lower, *upper)))
                possible = is_same and not node.any_order
            case If(conditions=conditions, test=test):
                symbols = frozenset[str]().union(*(each.value.symbols for each in conditions))
                possible = name not in symbols | test_symbols(test)
            case Start(value=None, reducer=Reducer.ADD | Reducer.ASSIGN):
                possible = True
            case Accumulate(reducer=Reducer.ADD, value=value, present=Always()):
                possible = _is_arithmetic(value, name) and any(moving(value, name))
            case Store(tensor=tensor, indices=indices, value=value):
                possible = _is_arithmetic(value, name) and any(moving(value, name))
                if _goes_along(tensor, indices, name, program):
                    found[tensor] = None
                else:
                    # One by one, which is nothing beside a long sum.
                    is_worth = is_long or is_spread
                    possible = possible and is_worth and _is_of_vectors(tensor, program)
            case _:
                return None
        if not possible:
            return None
    for load in loads_of(walk(kernel.body)):
        if any(name in index.symbols for index in load.indices):
            if _goes_along(load.tensor, load.indices, name, program):
                found[load.tensor] = None
            elif not is_spread or not _goes_across(load, name, program):
                return None
            else:
                found[load.tensor] = None  # its rows are loaded whole, and transposed
        elif load.tensor not in {operand.name for operand in program.operands}:
            return None
    return tuple(found)


def _goes_along(tensor: str, indices: Sequence[Poly], name: str, program: Program) -> bool:
    """Whether neighbours along the axis are neighbours in a tensor of the call's element type."""
    return _is_of_vectors(tensor, program) and goes_along(indices, name)


def _goes_across(load: Load, name: str, program: Program) -> bool:
    """Whether one index of a load is that of the axis, and no other one depends on it."""
    own = [index for index in load.indices if name in index.symbols]
    return _is_of_vectors(load.tensor, program) and own == [symbol(name)]


def _is_of_vectors(tensor: str, program: Program) -> bool:
    """Whether it is a tensor of the call's element type."""
    operand = program.stored(tensor)
    return operand is not None and operand.is_generic


def _is_arithmetic(value: Scalar, name: str) -> bool:
    """Whether only sums and products are made of vectors; what is the same for all lanes is one
    number."""
    if not any(moving(value, name)):
        return not any(isinstance(each, Choose) for each in _parts_of(value))
    match value:
        case Load() | Result():
            return True
        case Call(primitive=primitive, arguments=arguments):
            is_same = primitive in OPERATORS
            return is_same and all(_is_arithmetic(each, name) for each in arguments)
        case _:
            return False


def _parts_of(value: Scalar) -> Iterator[Scalar]:
    yield value
    if isinstance(value, Call):
        for argument in value.arguments:
            yield from _parts_of(argument)


# ---------------------------------------------------------------------------- cells of one body
@dataclass(frozen=True, slots=True)
class _Part:
    """Some cells along an axis, and the conditions of the points that have them."""

    conditions: tuple[Condition, ...]
    cells: tuple[Poly, ...]
    is_free: bool  # of conditions on the axis


@dataclass(frozen=True, slots=True)
class Tiling:
    """The axes whose cells share a body: an inner one in parts, an outer one whole or in pairs."""

    kernel: Kernel
    inner: Axis
    inner_block: Axis | None
    parts: tuple[_Part, ...]
    outer: Axis | None
    outer_block: Axis | None
    pairs: tuple[int, int] | None  # the first and the last pair without conditions
    taken: set[str]

    @classmethod
    def of(cls, kernel: Kernel, row: Axis) -> Tiling | None:
        """None where no axis of known extent shares loads."""
        taken = {axis.name for axis in kernel.axes} | {define.name for define in kernel.prologue}
        taken |= {node.name for node in walk(kernel.body) if isinstance(node, Define | For)}
        taken |= symbols_of(*kernel.body)
        loops = [each for each in walk(kernel.body) if isinstance(each, For | If)]
        ranged = symbols_of(*(replace(each, body=()) for each in loops))
        axes = [
            axis
            for axis in kernel.axes
            if axis is not row
            and axis.extent.is_constant
            and axis.extent.constant > 1
            and (axis.name in ranged or shares_loads(axis, (kernel.body,), row.name))
        ]
        if not axes:
            return None
        inner, outer = axes[-1], axes[-2] if len(axes) > 1 else None
        extent = inner.extent.constant
        free = _freed(kernel.body, inner.name)
        terms = terms_of(free if outer is None else _freed(free, outer.name))
        is_small = terms is not None and terms <= FEW_TERMS
        whole, most = (FEW_WHOLE, FEW_IN_ROW) if is_small else (WHOLE, MOST_IN_ROW)
        count = 1 if extent <= whole else -(-extent // most)
        size = -(-extent // count)
        block = None if count == 1 else Axis(fresh_name(f"{inner.name}_block", taken), poly(count))
        parts = _parts(kernel.body, inner, block, size)
        pairs, outer_block = None, None
        if outer is not None and (size * outer.extent.constant > MOST_CELLS):
            pairs = _free_pairs(kernel.body, outer)
            # What two rows have in common is loaded once only if all of it is written out.
            if pairs is None or terms is None or 2 * size * terms > MERGED_TERMS:
                outer = None
            else:
                name = fresh_name(f"{outer.name}_block", taken)
                outer_block = Axis(name, poly(-(-outer.extent.constant // 2)))
        return cls(kernel, inner, block, parts, outer, outer_block, pairs, taken)

    def axes(self, row: Axis) -> tuple[Axis, ...]:
        """The kernel's axes without its row, in blocks where they are cut."""
        blocks = {self.inner.name: self.inner_block}
        if self.outer is not None:
            blocks[self.outer.name] = self.outer_block
        left = (blocks.get(each.name, each) for each in self.kernel.axes if each is not row)
        return tuple(each for each in left if each is not None)

    @property
    def steps(self) -> dict[str, Step]:
        """The axes that are cut, by the name of what they were."""
        found = {}
        if self.inner_block is not None:
            found[self.inner.name] = Step(self.inner_block.name, len(self.parts[0].cells))
        if self.outer is not None and self.outer_block is not None:
            found[self.outer.name] = Step(self.outer_block.name, 2)
        return found

    @property
    def inner_alone(self) -> Tiling:
        """The same with a single row of cells."""
        return replace(self, outer=None, outer_block=None, pairs=None)

    def body(self) -> Body | None:
        """All parts; None where the cells of one do not fit together, or have too many terms."""
        whole = self.body_of(border_in_pairs=True)
        if whole is None or _written_terms(whole) > MOST_PAIRED:
            whole = self.body_of(border_in_pairs=False)
        return None if whole is None or _written_terms(whole) > MOST_TERMS else whole

    def body_of(self, border_in_pairs: bool) -> Body | None:
        """The same, however many terms there are."""
        out: list[Node] = []
        for part in self.parts:
            nodes = self.rows(part, border_in_pairs)
            if nodes is None:
                return None
            out += (If(part.conditions, nodes),) if part.conditions else nodes
        return tuple(out)

    def rows(self, part: _Part, border_in_pairs: bool) -> Body | None:
        """The cells of a part along both axes."""
        body = self.kernel.body
        if self.outer is None:
            return self.lanes(part, [body])
        name, extent = self.outer.name, self.outer.extent.constant
        if self.outer_block is None or self.pairs is None:
            cells = [copy_at(body, name, poly(at_), f"_{at_}") for at_ in range(extent)]
            return self.lanes(part, cells)
        block, free = symbol(self.outer_block.name), _freed(body, name)
        pair = [copy_at(free, name, 2 * block + one, f"_{one}") for one in range(2)]
        both = self.lanes(part, pair)
        if both is None:
            return None
        first, last = self.pairs
        conditions: tuple[Condition, ...] = ()
        if first > 0:
            conditions += (Condition(block - first),)
        if 2 * last + 2 < extent:
            conditions += (Condition(last - block),)
        if not conditions:
            return both
        if border_in_pairs:
            out: list[Node] = [If(conditions, both)]
            for number in (*range(first), *range(last + 1, -(-extent // 2))):
                rows = range(2 * number, min(2 * number + 2, extent))
                nodes = self.lanes(
                    part, [copy_at(body, name, poly(at_), f"_{at_}") for at_ in rows]
                )
                if nodes is None:
                    return None
                here = (Condition(block - number), Condition(number - block))
                out.append(If(here, nodes))
            return tuple(out)
        single = self.lanes(part, [body])
        if single is None:
            return None
        # There is no `else`: on the border some condition fails, c >= 0 where -c - 1 is inside.
        border = Any(tuple(Inside(-each.value - 1, _LARGE) for each in conditions))
        alone = For(name, (2 * block,), (2 * block + 1, poly(extent - 1)), single)
        return If(conditions, both), If((), (alone,), border)

    def lanes(self, part: _Part, bodies: Sequence[Body]) -> Body | None:
        """A pass over the row with all cells of the part in each of the bodies."""
        name = self.inner.name
        cells = [
            at(copy_at(_freed(body, name) if part.is_free else body, name, cell, f"_{number}"), {})
            for body in bodies
            for number, cell in enumerate(part.cells)
        ]
        whole = pixel_by_pixel(merged(cells, most_terms=0)) or merged(cells)
        return None if whole is None else (Lanes((), (), by_load(whole)),)


def _written_terms(body: Body) -> int:
    return sum(isinstance(node, Accumulate) for node in walk(body))


def _parts(body: Body, axis: Axis, block: Axis | None, size: int) -> tuple[_Part, ...]:
    """The blocks of an axis: those without conditions as one part, each of the others by itself."""
    extent = axis.extent.constant
    if block is None:
        return (_Part((), tuple(map(poly, range(extent))), False),)
    here = symbol(block.name)
    free = [
        at_
        for at_ in range(extent // size)
        if all(_is_free(body, axis.name, at_ * size + one) for one in range(size))
    ]
    parts = []
    if len(free) > 1 and free == list(range(free[0], free[-1] + 1)):
        cells = tuple(here * size + one for one in range(size))
        conditions = (Condition(here - free[0]), Condition(free[-1] - here))
        parts.append(_Part(conditions, cells, True))
    else:
        free = []
    for at_ in range(block.extent.constant):
        if at_ not in free:
            cells = tuple(map(poly, range(at_ * size, min(at_ * size + size, extent))))
            parts.append(_Part((Condition(here - at_), Condition(at_ - here)), cells, False))
    return tuple(parts)


def _free_pairs(body: Body, axis: Axis) -> tuple[int, int] | None:
    """The first and the last pair of cells without conditions, if these are half of all or more."""
    count = axis.extent.constant // 2
    free = [
        pair
        for pair in range(count)
        if all(_is_free(body, axis.name, 2 * pair + one) for one in range(2))
    ]
    if 2 * len(free) < count or free != list(range(free[0], free[-1] + 1)):
        return None
    return free[0], free[-1]


def _is_free(body: Body, name: str, value: int) -> bool:
    """Whether a cell of an axis has all terms that some cell has."""
    for node in walk(body):
        match node:
            case For(lower=lower, upper=upper):
                for sign, bounds in ((1, lower), (-1, upper)):
                    limits = [sign * b.constant for b in bounds if b.is_constant]
                    for bound in bounds:
                        if name in bound.symbols:
                            here = bound.substitute({name: poly(value)})
                            if not here.is_constant or not limits:
                                return False
                            if sign * here.constant > max(limits):
                                return False
            case If(conditions=conditions, test=test):
                if name in test_symbols(test):
                    return False
                for each in conditions:
                    if name in each.value.symbols:
                        here = each.value.substitute({name: poly(value)})
                        if not here.is_constant or not replace(each, value=here).holds({}):
                            return False
            case _:
                pass
    return True


def _freed(body: Body, name: str) -> Body:
    """The body for cells that have all terms: nothing is asked of the axis."""
    out: list[Node] = []
    for node in body:
        match node:
            case For(lower=lower, upper=upper, body=inner):
                lower = tuple(bound for bound in lower if name not in bound.symbols)
                upper = tuple(bound for bound in upper if name not in bound.symbols)
                out.append(replace(node, lower=lower, upper=upper, body=_freed(inner, name)))
            case If(conditions=conditions, body=inner, test=test):
                left = tuple(each for each in conditions if name not in each.value.symbols)
                inner = _freed(inner, name)
                out += (If(left, inner, test),) if left or test != Always() else inner
            case _:
                out.append(node)
    return tuple(out)
