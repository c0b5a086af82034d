"""Cells along short axes that share the body of a block, and what they load.

Along an inner axis as many cells as have room share a body, along an outer one all rows or two at a
time. Cells at the ends of an axis may have fewer terms than others (`passes.all_terms`), so each
block of an axis in which some cell has not all of them is a body of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.loop_parts import integer_names
from opgen.ir.loops import Accumulate, Any, Axis, For, If, Inside, Kernel, Lanes, Node, walk
from opgen.ir.map_loops import symbols_of
from opgen.ir.names import fresh_name
from opgen.passes.all_terms import has_all_terms, of_all_terms
from opgen.passes.block_passes import pixel_by_pixel
from opgen.passes.jam import copy_at
from opgen.passes.load_order import by_load
from opgen.passes.merge import MOST_TERMS as MERGED_TERMS
from opgen.passes.merge import Body, at, merged, terms_of
from opgen.passes.nearby import Step
from opgen.passes.tile import shares_loads

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

_LARGE: Final = poly(2**62)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some cells along an axis, and the conditions of the points that have them."""

    conditions: tuple[Condition, ...]
    cells: tuple[Poly, ...]
    have_all_terms: bool  # see `passes.all_terms`; False where that is not known


@dataclass(frozen=True, slots=True)
class Tiling:
    """The axes whose cells share a body: an inner one in parts, an outer one whole or in pairs.

    An axis that is cut has a `block` to go in its place. `pairs` are the first and the last pair of
    rows with all terms; `taken` are names of integers.
    """

    kernel: Kernel
    inner: Axis
    inner_block: Axis | None
    parts: tuple[_Part, ...]
    outer: Axis | None
    outer_block: Axis | None
    pairs: tuple[int, int] | None
    taken: set[str]

    @classmethod
    def of(cls, kernel: Kernel, row: Axis, known: Iterable[str]) -> Tiling | None:
        """None where no axis of known extent shares loads."""
        taken = integer_names(kernel, known=known)
        axes = _shared_axes(kernel, row)
        if not axes:
            return None
        inner, outer = axes[-1], axes[-2] if len(axes) > 1 else None
        extent = inner.extent.constant
        body = of_all_terms(kernel.body, inner.name)
        terms = terms_of(body if outer is None else of_all_terms(body, outer.name))
        is_small = terms is not None and terms <= FEW_TERMS
        whole, most = (FEW_WHOLE, FEW_IN_ROW) if is_small else (WHOLE, MOST_IN_ROW)
        count = 1 if extent <= whole else -(-extent // most)
        size = -(-extent // count)
        block = None if count == 1 else Axis(fresh_name(f"{inner.name}_block", taken), poly(count))
        parts = _parts(kernel.body, inner, block, size)
        pairs, outer_block = None, None
        if outer is not None and (size * outer.extent.constant > MOST_CELLS):
            pairs = _inner_pairs(kernel.body, outer)
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
        whole = self._body(border_in_pairs=True)
        if whole is None or _written_terms(whole) > MOST_PAIRED:
            whole = self._body(border_in_pairs=False)
        return None if whole is None or _written_terms(whole) > MOST_TERMS else whole

    def _body(self, border_in_pairs: bool) -> Body | None:
        """The same, however many terms there are."""
        out: list[Node] = []
        for part in self.parts:
            nodes = self._rows(part, border_in_pairs)
            if nodes is None:
                return None
            out += (If(part.conditions, nodes),) if part.conditions else nodes
        return tuple(out)

    # ------------------------------------------------------------ rows of cells
    def _rows(self, part: _Part, border_in_pairs: bool) -> Body | None:
        """The cells of a part along both axes."""
        body = self.kernel.body
        if self.outer is None:
            return self._pass(part, [body])
        if self.outer_block is None or self.pairs is None:
            return self._pass(part, self._at(range(self.outer.extent.constant)))
        block, name = symbol(self.outer_block.name), self.outer.name
        same = of_all_terms(body, name)
        both = self._pass(part, [copy_at(same, name, 2 * block + at_, f"_{at_}") for at_ in (0, 1)])
        if both is None:
            return None
        first, last = self.pairs
        conditions: tuple[Condition, ...] = ()
        if first > 0:
            conditions += (Condition(block - first),)
        if 2 * last + 2 < self.outer.extent.constant:
            conditions += (Condition(last - block),)
        if not conditions:
            return both
        if border_in_pairs:
            border = self._border_in_pairs(part, block, self.outer.extent.constant, self.pairs)
        else:
            border = self._border_by_rows(part, block, self.outer, conditions)
        return None if border is None else (If(conditions, both), *border)

    def _border_in_pairs(
        self, part: _Part, block: Poly, extent: int, pairs: tuple[int, int]
    ) -> Body | None:
        """Each pair of rows outside of `pairs` as a body of its own."""
        first, last = pairs
        out: list[Node] = []
        for number in (*range(first), *range(last + 1, -(-extent // 2))):
            rows = self._at(range(2 * number, min(2 * number + 2, extent)))
            nodes = self._pass(part, rows)
            if nodes is None:
                return None
            here = (Condition(block - number), Condition(number - block))
            out.append(If(here, nodes))
        return tuple(out)

    def _border_by_rows(
        self, part: _Part, block: Poly, outer: Axis, inside: Sequence[Condition]
    ) -> Body | None:
        """A loop over the two rows of any pair for which one of the conditions does not hold."""
        single = self._pass(part, [self.kernel.body])
        if single is None:
            return None
        # There is no `else`: where c >= 0 fails, -c - 1 is within a range from 0 on.
        border = Any(tuple(Inside(-each.value - 1, _LARGE) for each in inside))
        alone = For(outer.name, (2 * block,), (2 * block + 1, outer.extent - 1), single)
        return (If((), (alone,), border),)

    def _at(self, rows: Iterable[int]) -> list[Body]:
        """The body at values of the outer axis."""
        assert self.outer is not None
        return [copy_at(self.kernel.body, self.outer.name, poly(at_), f"_{at_}") for at_ in rows]

    def _pass(self, part: _Part, bodies: Sequence[Body]) -> Body | None:
        """A pass over the lanes with all cells of the part in each of the bodies."""
        name = self.inner.name
        cells = []
        for body in bodies:
            own = of_all_terms(body, name) if part.have_all_terms else body
            for number, cell in enumerate(part.cells):
                cells.append(at(copy_at(own, name, cell, f"_{number}"), {}))
        whole = pixel_by_pixel(merged(cells, most_terms=0)) or merged(cells)
        return None if whole is None else (Lanes((), (), by_load(whole)),)


def _shared_axes(kernel: Kernel, row: Axis) -> list[Axis]:
    """Axes of known extent whose cells load the same, or have ranges of their own."""
    loops = [each for each in walk(kernel.body) if isinstance(each, For | If)]
    ranged = symbols_of(*(replace(each, body=()) for each in loops))
    return [
        axis
        for axis in kernel.axes
        if axis is not row
        and axis.extent.is_constant
        and axis.extent.constant > 1
        and (axis.name in ranged or shares_loads(axis, (kernel.body,), row.name))
    ]


def _written_terms(body: Body) -> int:
    return sum(isinstance(node, Accumulate) for node in walk(body))


def _parts(body: Body, axis: Axis, block: Axis | None, size: int) -> tuple[_Part, ...]:
    """The blocks of an axis: those with all terms as one part, each of the others by itself."""
    extent = axis.extent.constant
    if block is None:
        return (_Part((), tuple(map(poly, range(extent))), False),)
    here = symbol(block.name)
    inside = [
        at_
        for at_ in range(extent // size)
        if all(has_all_terms(body, axis.name, at_ * size + one) for one in range(size))
    ]
    parts = []
    if len(inside) > 1 and inside == list(range(inside[0], inside[-1] + 1)):
        cells = tuple(here * size + one for one in range(size))
        conditions = (Condition(here - inside[0]), Condition(inside[-1] - here))
        parts.append(_Part(conditions, cells, True))
    else:
        inside = []
    for at_ in range(block.extent.constant):
        if at_ not in inside:
            cells = tuple(map(poly, range(at_ * size, min(at_ * size + size, extent))))
            parts.append(_Part((Condition(here - at_), Condition(at_ - here)), cells, False))
    return tuple(parts)


def _inner_pairs(body: Body, axis: Axis) -> tuple[int, int] | None:
    """The first and the last pair of cells with all terms, if these are half of all or more."""
    count = axis.extent.constant // 2
    inside = [
        pair
        for pair in range(count)
        if all(has_all_terms(body, axis.name, 2 * pair + one) for one in range(2))
    ]
    if 2 * len(inside) < count or inside != list(range(inside[0], inside[-1] + 1)):
        return None
    return inside[0], inside[-1]
