"""Which stretches of its result a pass over the lanes writes whole.

A store that goes past the caches is worth twice a plain one for a result larger than they are, as
no line of it is read before it is written. Hardware does so for whole lines of aligned memory only,
and compilers do not do it at all. So such a pass writes into a buffer that stays in the innermost
cache, which `stream` in `opgen.runtime.streams` then copies past the others. Whether a call does is
decided when it is made: the same loop writes either to the buffer or to the tensor itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from opgen.algebra.poly import Poly
from opgen.emit.lane_pairs import in_pairs
from opgen.emit.planes import stores_planes
from opgen.ir.loop_parts import goes_along, is_last
from opgen.ir.loops import AtomicAdd, Blocks, Kernel, Lanes, Program, Row, Short, Store, walk

FEWEST: Final = 32
"""Lines that are known to have fewer elements are not worth the buffer."""


@dataclass(frozen=True, slots=True)
class Line:
    """Elements that follow each other, `step` of them for every lane.

    `start` are the indices of the first of a lane's elements. `offsets` says for the indices of
    each store which of them it writes.
    """

    tensor: str
    step: int
    start: tuple[Poly, ...]
    offsets: dict[tuple[Poly, ...], int] = field(hash=False)


def lines(node: Lanes, kernel: Kernel, program: Program) -> tuple[Line, ...]:
    """The lines of a pass; none where it leaves gaps, or what it writes is soon read again."""
    row = kernel.row
    stores = [each for each in node.body if isinstance(each, Store)]
    nested = [each for each in walk(node.body) if isinstance(each, Store | AtomicAdd)]
    if row is None or not stores or len(nested) > len(stores):
        return ()
    if isinstance(kernel.only, Blocks | Short) and kernel.only.holds:
        return ()  # its rows are short
    found: list[Line] = []
    for store in stores:
        if not _placed(store, row, found):
            return ()
    whole = tuple(map(_from_first, found))
    if any(set(each.offsets.values()) != set(range(each.step)) for each in whole):
        return ()
    if any(each.tensor in kernel.local for each in whole):
        return ()
    if any(_is_short(each, row) for each in whole) or not is_last(kernel, program):
        return ()
    return whole


def streams(kernel: Kernel, program: Program) -> bool:
    """Whether some pass of the kernel writes lines, or its vectors are lines."""
    return (
        stores_lines(kernel, program)
        or stored_beside(kernel, program) is not None
        or any(
            isinstance(node, Lanes) and lines(node, kernel, program) for node in walk(kernel.body)
        )
    )


def stores_lines(kernel: Kernel, program: Program) -> bool:
    """Whether vectors may be stored past the caches as they are computed, as each is a line."""
    return stores_planes(kernel, program) or stores_rows(kernel, program)


def stored_beside(kernel: Kernel, program: Program) -> str | None:
    """The tensor whose cells a kernel stores as vectors beside its sums (`passes.one_pass`).

    They go past the caches by themselves: sums are few. None where there is no such tensor.
    """
    only, row = kernel.only, kernel.row
    if not isinstance(only, Blocks) or only.together is None or row is None:
        return None
    stores = [each for each in walk(kernel.body) if isinstance(each, Store)]
    cells = [each for each in stores if each.tensor != kernel.written]
    tensors = {each.tensor for each in cells}
    if len(tensors) != 1 or not all(goes_along(each.indices, row.axis.name) for each in cells):
        return None
    (tensor,) = tensors
    return None if program.operand(tensor).widened else tensor


def stores_rows(kernel: Kernel, program: Program) -> bool:
    """Whether these are vectors along rows: those of float32 that are rounded, or pairs.

    The results of calls that go past the caches would be computed by the kernel along rows.
    """
    only, row = kernel.only, kernel.row
    if not isinstance(only, Blocks) or row is None:
        return False
    if not (only.holds and only.is_cached):
        return False
    if program.operand(kernel.written).unrounded == only.is_paired:
        return False
    passes = [each for each in walk(kernel.body) if isinstance(each, Lanes)]
    stores = [each for each in walk(kernel.body) if isinstance(each, Store)]
    if not all(goes_along(each.indices, row.axis.name) for each in stores):
        return False
    has_pairs = all(in_pairs(each, kernel, "behind", "number") for each in passes)
    return (has_pairs or not only.is_paired) and is_last(kernel, program)


def _placed(store: Store, row: Row, found: list[Line]) -> bool:
    """Whether the store was added to one of the lines, or to a new one."""
    lane = row.axis.name
    if not store.indices or any(lane in index.symbols for index in store.indices[:-1]):
        return False
    step = store.indices[-1].step_in(lane)
    if step is None or step < 1:
        return False
    for line in found:
        distance = store.indices[-1] - line.start[-1]
        if (
            (line.tensor, line.step, line.start[:-1]) == (store.tensor, step, store.indices[:-1])
            and distance.is_constant
            and abs(distance.constant) < step
        ):
            line.offsets[store.indices] = distance.constant
            return True
    found.append(Line(store.tensor, step, store.indices, {store.indices: 0}))
    return True


def _is_short(line: Line, row: Row) -> bool:
    extent = row.axis.extent
    return extent.is_constant and extent.constant * line.step < FEWEST


def _from_first(line: Line) -> Line:
    """The line with offsets that begin at 0."""
    least = min(line.offsets.values())
    start = (*line.start[:-1], line.start[-1] + least)
    return Line(line.tensor, line.step, start, {k: at - least for k, at in line.offsets.items()})
