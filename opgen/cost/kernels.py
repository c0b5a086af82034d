"""Predicted time of a kernel: the largest of what memory, issue and arithmetic need.

    t = launch + max(bytes / bandwidth, instructions / issue rate, operations / peak)

Counts come from the loops at given sizes, at the cell in the middle of every axis; conditions count
as met. Borders, where there are fewer terms, make them a little too large. Every tensor counts as
read or written once: what is read again comes from caches. Instructions of index arithmetic are an
estimate for each thread and each load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opgen.algebra.poly import Poly
from opgen.cost.machines import Machine
from opgen.ir.loop_parts import node_scalars, uses
from opgen.ir.loops import (
    Accumulate,
    Call,
    Choose,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Program,
    Scalar,
    Store,
    walk,
)
from opgen.ir.notation import DType, Reducer
from opgen.ir.sums import BoxSum, box_sum
from opgen.ir.transpose import transpose

_THREAD = 50  # instructions of a thread before and after its cells
_LOAD = 2  # of a load: its address, and itself
_NARROW = 1  # of a conversion from or to 16 bits
_COPY = 10  # of an element from memory to a tile: finding it, loading and storing it
_TILE_LOADS = 1.1  # of a product, with its share of loads from a tile
_UNSEEN = 32  # how often a loop runs whose bounds were read from memory

_BYTES: Mapping[DType, int] = {
    DType.F16: 2,
    DType.BF16: 2,
    DType.F32: 4,
    DType.F64: 8,
    DType.U8: 1,
    DType.I8: 1,
    DType.I16: 2,
    DType.I32: 4,
    DType.I64: 8,
    DType.INT: 8,
    DType.BOOL: 1,
}


@dataclass(frozen=True, slots=True)
class Template:
    """How a kernel is laid out, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What a kernel does at given sizes, and how long that takes."""

    kernel: str
    template: Template
    flops: int
    bytes: int
    instructions: int
    seconds: float
    limit: str


@dataclass(frozen=True, slots=True)
class Tiles:
    """A product of matrices by square tiles: their side, and the sizes of the matrices.

    `bits` are those of the elements that tensor cores multiply, 0 where threads do.
    """

    side: int
    matrices: int
    rows: int
    columns: int
    terms: int
    bits: int

    @property
    def blocks(self) -> int:
        """How many tiles there are."""
        return self.matrices * -(-self.rows // self.side) * -(-self.columns // self.side)

    @property
    def products(self) -> int:
        """Multiply-adds, those for the empty parts of tiles included."""
        return self.blocks * self.side**2 * self.terms


def tiled_cost(
    kernel: Kernel,
    tiles: Tiles,
    program: Program,
    sizes: Mapping[str, int],
    shared: DType,
    machine: Machine,
) -> Cost:
    """The cost of a kernel as a product of matrices.

    Every element of a factor is copied to a tile once for each tile that it is in; a tensor core
    multiplies 16 by 8 by 16 elements of 16 bits with one instruction of 32 threads.
    """
    flops = 2 * tiles.matrices * tiles.rows * tiles.columns * tiles.terms
    moved = _bytes(kernel, program, sizes, shared)
    shares = (1 / min(tiles.side, tiles.rows), 1 / min(tiles.side, tiles.columns))
    copied = flops / 2 * sum(shares)
    multiplied = tiles.products / (64 * 16 / tiles.bits) if tiles.bits else tiles.products
    instructions = round(multiplied * _TILE_LOADS + copied * _COPY)
    rate = machine.tensor_multiply_adds * 16 / tiles.bits if tiles.bits else machine.multiply_adds
    busy = min(1, tiles.blocks / machine.multiprocessors)
    times = {
        "memory": moved / machine.bandwidth,
        "issue": instructions / (machine.instructions * machine.issue * busy),
        "arithmetic": tiles.products / (rate * busy),
    }
    limit = max(times, key=lambda name: times[name])
    seconds = machine.launch + times[limit]
    who = {0: "threads", 16: "tensor cores"}.get(tiles.bits, "tensor cores in TF32")
    size = f"{tiles.rows} x {tiles.columns} x {tiles.terms}"
    template = Template(
        "matrix tiles",
        f"each factor has an axis of its own: {tiles.matrices} of {size}, multiplied by {who} "
        f"in tiles of {tiles.side}",
    )
    return Cost(kernel.name, template, flops, moved, instructions, seconds, limit)


def cost(
    kernel: Kernel,
    threads: Kernel,
    program: Program,
    sizes: Mapping[str, int],
    shared: DType,
    machine: Machine,
) -> Cost:
    """The cost of a kernel.

    `kernel` has one point for each cell, `threads` is the same as it is launched. `sizes` are the
    integers of the call, `shared` is the type of tensors that declare none.
    """
    box = box_sum(threads, program.integers)
    lanes = 1 if threads.row is None and box is None else max(1, 16 // max(4, _BYTES[shared]))
    cells_of_thread = lanes * (1 if threads.group is None else threads.group.width)
    # Of a row whole vectors are loaded, and what several cells read is loaded once.
    counts = _Counts(_BYTES[shared] < 4, cells_of_thread)
    known = dict(sizes)
    cells = 1
    for axis in kernel.axes:
        cells *= max(0, _value(axis.extent, known))
        known[axis.name] = _value(axis.extent, known) // 2
    for define in kernel.prologue:
        known[define.name] = _value(define.value, known)
    counts.nodes(kernel.body, known)
    moved = _bytes(kernel, program, sizes, shared)
    instructions = round(cells * (counts.instructions + _THREAD / cells_of_thread))
    flops = cells * counts.flops
    return _limited(kernel.name, _template(threads, box), flops, moved, instructions, machine)


def joint_cost(
    kernels: Sequence[Kernel],
    threads: Kernel,
    program: Program,
    sizes: Mapping[str, int],
    shared: DType,
    machine: Machine,
) -> Cost:
    """The cost of one kernel that does what several do, see `cost`: what they share moves once."""
    parts = [cost(each, threads, program, sizes, shared, machine) for each in kernels]
    moved = _bytes(threads, program, sizes, shared)
    alone = sum(each.bytes for each in parts)
    template = parts[0].template
    reason = (
        f"{template.reason}; {', '.join(threads.all_written)} in one pass over what they share, "
        f"which moves {moved / max(1, alone):.0%} of what a kernel for each would"
    )
    flops, instructions = (
        sum(each) for each in zip(*((part.flops, part.instructions) for part in parts), strict=True)
    )
    template = Template(template.name, reason)
    return _limited(threads.name, template, flops, moved, instructions, machine)


def _limited(
    name: str, template: Template, flops: int, moved: int, instructions: int, machine: Machine
) -> Cost:
    """The cost of a kernel that does so much."""
    times = {
        "memory": moved / machine.bandwidth,
        "issue": instructions / (machine.instructions * machine.issue),
        "arithmetic": flops / (2 * machine.multiply_adds),
    }
    limit = max(times, key=lambda each: times[each])
    if times[limit] < machine.launch:
        return Cost(name, template, flops, moved, instructions, machine.launch, "launch")
    seconds = machine.launch + times[limit]
    return Cost(name, template, flops, moved, instructions, seconds, limit)


def _value(value: Poly, known: Mapping[str, int]) -> int:
    """A polynomial at given sizes; what is read from memory counts as 32."""
    unseen = {name: _UNSEEN for name in value.symbols if name not in known}
    try:
        return value.evaluate({**known, **unseen}, lambda name, at: _UNSEEN)
    except (ZeroDivisionError, ValueError):
        return 0


def tensor_bytes(
    extents: Iterable[Poly], dtype: DType, widened: bool, sizes: Mapping[str, int], shared: DType
) -> int:
    """The bytes of a tensor at given sizes; a `widened` one is kept in at least 32 bits."""
    count = 1
    for extent in extents:
        count *= max(0, _value(extent, sizes))
    size = _BYTES[shared if dtype.is_generic else dtype]
    return count * (max(4, size) if widened else size)


def _bytes(kernel: Kernel, program: Program, sizes: Mapping[str, int], shared: DType) -> int:
    """Every tensor of the kernel once."""
    names = uses(kernel).tensors
    return sum(
        tensor_bytes(operand.extents, operand.dtype, operand.widened, sizes, shared)
        for operand in program.operands
        if operand.name in names
    )


class _Counts:
    """Operations and instructions of one cell."""

    def __init__(self, is_narrow: bool, cells: int) -> None:
        self.is_narrow = is_narrow
        self.cells = cells
        self.flops = 0
        self.instructions = 0.0

    def nodes(self, nodes: Iterable[Node], known: Mapping[str, int], times: int = 1) -> None:
        for node in nodes:
            match node:
                case For(name=name, lower=lower, upper=upper, body=body):
                    # At the cell in the middle of every axis.
                    first = max(_value(bound, known) for bound in lower)
                    last = min(_value(bound, known) for bound in upper)
                    inner = {**known, name: (first + last) // 2}
                    self.nodes(body, inner, times * max(0, last - first + 1))
                case If(body=body) | Lanes(body=body):
                    self.nodes(body, known, times)
                case Accumulate() | Store():
                    for value in node_scalars(node):
                        self.scalar(value, times)
                    self.flops += times * _adds(node)
                    is_fused = isinstance(node, Accumulate) and isinstance(node.value, Call)
                    self.instructions += 0 if is_fused else times
                    if isinstance(node, Store):
                        self.instructions += times * self.is_narrow
                case _:
                    pass

    def scalar(self, value: Scalar, times: int) -> None:
        match value:
            case Call(arguments=arguments):
                self.flops += times
                self.instructions += times
                for argument in arguments:
                    self.scalar(argument, times)
            case Choose(then=then, otherwise=otherwise):
                self.scalar(then, times)
                self.scalar(otherwise, times)
            case Load():
                self.instructions += times * (_LOAD + self.is_narrow * _NARROW) / self.cells
            case _:
                pass


def _adds(node: Node) -> bool:
    return isinstance(node, Accumulate) and node.reducer is not Reducer.ASSIGN


# ---------------------------------------------------------------------------- templates
def _template(kernel: Kernel, box: BoxSum | None) -> Template:
    """What the schedule chose."""
    group = kernel.group
    loops = [
        node
        for node in walk(kernel.body)
        if isinstance(node, For) and (group is None or node.name != group.axis.name)
    ]
    if not kernel.is_deterministic:
        return Template("scatter", "cells are known at run time only: atomic additions")
    if box is not None:
        names = ", ".join(axis.name for axis in box.box)
        sums = f"; {len(box.starts)} sums in one pass" if len(box.starts) > 1 else ""
        return Template("split sum", f"blocks share the terms of a cell: {names}{sums}")
    if any(loop.any_order for loop in loops):
        names = ", ".join(loop.name for loop in loops if loop.any_order)
        return Template("team sum", f"terms are consecutive in memory, cells are not: {names}")
    turned = transpose(kernel)
    if turned is not None:
        across = ", ".join(axis.name for axis in turned.across)
        reason = f"read along {turned.along.name}, written along {across}, through shared memory"
        return Template("transpose tile", reason)
    if kernel.row is None:
        return Template("cells", "no axis along which most tensors are consecutive")
    row = kernel.row.axis.name
    stores = sum(isinstance(node, Store) for node in walk(kernel.body))
    terms = sum(isinstance(node, Accumulate) for node in walk(kernel.body))
    along = f"neighbours along {row} are consecutive in memory"
    if group is not None:
        along += f", {group.width} along {group.axis.name} are one thread's"
    if loops:
        return Template("serial sum", f"{along}; each adds its own terms")
    if stores > 1:
        return Template("interleaved map", f"{along}; {stores} cells for each {row}")
    if terms > 1:
        return Template("window", f"{along}; {terms} terms written out, loads shared")
    return Template("vector map", along)
