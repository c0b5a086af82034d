"""Kernels of rows of cells with long sums, of which several blocks may each do some turns.

Where there are few cells, each of `splits` threads takes some turns of the loop for the same cells,
and leaves its totals as one of as many parts. Another launch adds up the parts in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import symbol
from opgen.emit.cuda_points import CudaEmitter
from opgen.emit.cuda_printer import INDEX
from opgen.emit.cuda_statements import inside
from opgen.emit.polynomial import Text
from opgen.emit.types import Type, Types
from opgen.ir.loops import Axis, Kernel
from opgen.ir.primitives import Level
from opgen.ir.sums import SerialSum


@dataclass(frozen=True, slots=True)
class SerialNames:
    """What such a kernel calls its parameters beside those of every kernel.

    `magic` is for all axes but the last two. `split` and `splits` are also names of the notation.
    """

    magic: tuple[str, ...]
    share: str
    split: str
    splits: str
    partial: str


def kind_of(types: Types, kernel: Kernel, found: SerialSum) -> Type | None:
    """What is added up; None where sums are of several types."""
    kinds = {types.of_accumulator(e.tensor, e.accumulator, kernel.body) for e in found.starts}
    return kinds.pop() if len(kinds) == 1 else None


def print_sum(
    emitter: CudaEmitter, axes: Sequence[Axis], found: SerialSum, names: SerialNames
) -> None:
    """The body of the kernel; `axes` are those of the grid but for the splits.

    It is launched to do turns, then, with no turns for a split, to add up parts.
    """
    emitter.printer.names.symbols[names.splits] = f"({names.share} > 0 ? {names.splits} : 1)"
    split = Axis(names.split, symbol(names.splits))
    inner = emitter.grid((split, *axes), names.magic)
    _begin(inner, axes)
    inner.nodes(found.head)
    own = inner.printer.names.symbols[names.split]
    inner.write(f"if ({names.share} > 0) {{")
    turns = inside(inner)
    first, last = (turns.scope.fresh(f"turn_{end}") for end in ("first", "last"))
    turns.write(
        f"const {INDEX} {first} = {own} * {names.share}, {last} = {first} + {names.share} - 1;"
    )
    for name in (first, last):
        turns.printer.names.symbols[name] = name
    turns.nodes(
        [replace(found.loop, lower=(symbol(first),), upper=(*found.loop.upper, symbol(last)))]
    )
    inner.write("} else {")
    parts = inside(inner)
    other = parts.scope.fresh(names.split)
    parts.write(f"for ({INDEX} {other} = 0; {other} < {names.splits}; {other}++) {{")
    _parts(inside(parts), axes, found, names, other, "{total} += {part};")
    parts.write("}")
    inner.write("}")
    inner.block(f"if ({names.splits} == 1 || {names.share} == 0)", found.tail)
    inner.write("else {")
    _parts(inside(inner), axes, found, names, own, "{part} = {total};")
    inner.write("}")
    inner.close(emitter)


def _begin(inner: CudaEmitter, axes: Sequence[Axis]) -> None:
    named = inner.printer.names.symbols
    inner.begin_stretches([named[axis.name] for axis in axes[len(inner.kernel.axes) :]])


def _parts(
    emitter: CudaEmitter,
    axes: Sequence[Axis],
    found: SerialSum,
    names: SerialNames,
    split: str,
    statement: str,
) -> None:
    """A statement for every total of the thread and its place among the parts.

    Parts of neighbouring threads lie side by side.
    """
    extents = [emitter.printer.poly(axis.extent) for axis in axes]
    counts = ("LANES", "ROWS")[: len(emitter.kernel.stretched)]
    for at, count in zip((-1, -2), counts, strict=False):
        extents[at] = Text(f"parts({extents[at].text}, {count})")
    named = emitter.printer.names.symbols
    points, point = "(int64_t)1", "0"
    for axis, extent in zip(axes, extents, strict=True):
        factor = extent.at(Level.UNARY)
        point = named[axis.name] if point == "0" else f"({point}) * {factor} + {named[axis.name]}"
        points += f" * {factor}"
    all_points, own = emitter.scope.fresh("points"), emitter.scope.fresh("point")
    emitter.write(f"const int64_t {all_points} = {points}, {own} = {point};")
    members = [emitter.members[row.axis.name] for row in emitter.kernel.stretched]
    for depth, (member, count) in enumerate(zip(members, reversed(counts), strict=True)):
        for line in ("UNROLL", f"for (int {member} = 0; {member} < {count}; {member}++) {{"):
            emitter.write("    " * depth + line)
    place = members[-1] if len(members) == 1 else f"{members[0]} * LANES + {members[1]}"
    cells = " * ".join(counts)
    for at, start in enumerate(found.starts):
        index = f"(({split} * {len(found.starts)} + {at}) * {cells} + {place}) * {all_points}"
        part = f"{names.partial}[{index} + {own}]"
        total = emitter.printer.names.accumulators[start.accumulator]
        emitter.write("    " * len(members) + statement.format(part=part, total=total))
    for depth in reversed(range(len(members))):
        emitter.write("    " * depth + "}")
