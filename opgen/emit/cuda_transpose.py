"""Kernels that read along one axis and write along another, by tiles in shared memory.

Threads of a block compute the cells of a tile in stretches along the axis that is read, and leave
them in shared memory; then they store them in stretches along the other one. Both are whole
accesses where elements lie so. Cells of a tile lie so that neither side has more than two accesses
of a warp in one bank, see `tile_places`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import ZERO, symbol
from opgen.emit.cuda_points import CudaEmitter, product
from opgen.emit.cuda_printer import INDEX
from opgen.emit.cuda_statements import inside
from opgen.emit.expression import Printer, type_name
from opgen.ir.loop_parts import integer_names
from opgen.ir.loops import Axis, Kernel, Lanes, Program, Row
from opgen.ir.names import fresh_name
from opgen.ir.primitives import Level
from opgen.ir.transpose import Transpose

WIDEST = 16
"""The most cells of a stretch."""


def stretched(kernel: Kernel, found: Transpose, program: Program) -> Kernel:
    """What a thread does with a stretch along the axis that is read."""
    taken = integer_names(kernel, known=program.integers)
    first, last = (fresh_name(f"{found.along.name}_{end}", taken) for end in ("first", "last"))
    row = Row(found.along, first, last, WIDEST)
    return replace(kernel, row=row, body=(Lanes((), (), (*found.defines, found.store)),))


@dataclass(frozen=True, slots=True)
class _Tile:
    """The names of a tile: its array, its layout, where it begins, and the counter of stretches."""

    cells: str
    layout: str
    across: str
    along: str
    at: str
    row: str
    column: str
    place: str


def print_transpose(
    emitter: CudaEmitter,
    found: Transpose,
    macros: tuple[str, str],
    outer_magic: Sequence[str],
    magic: Sequence[str],
) -> None:
    """The body; `macros` are the sides of a tile, `magic` is for the digits of what is stored."""
    scope = emitter.scope
    written = emitter.printer.program.operand(found.store.tensor)
    kind = type_name(written)
    names = ("tile", "layout", f"{found.across[-1].name}_tile", f"{found.along.name}_tile")
    tile = _Tile(*map(scope.fresh, (*names, "at", "row", "column", "place")))
    emitter.write(f"constexpr int ACROSS = {macros[0]}, ALONG = {macros[1]};")
    emitter.write(f"typedef tile_places<{kind}, ACROSS, ALONG, LANES> {tile.layout};")
    emitter.write(f"__shared__ {kind} {tile.cells}[{tile.layout}::CELLS];")
    width, length = (emitter.printer.poly(e) for e in (found.width, found.along.extent))
    body = _outer(emitter, found.outer, outer_magic)
    sides = (("y", tile.across, width, "ACROSS"), ("x", tile.along, length, "ALONG"))
    for letter, name, extent, side in sides:
        head = f"{INDEX} {name} = blockIdx.{letter} * ({INDEX}){side}"
        step = f"{name} += gridDim.{letter} * ({INDEX}){side}"
        body.write(f"for ({head}; {name} < {extent.at(Level.RELATIONAL)}; {step}) {{")
        body = inside(body)
    cells, step = "ACROSS * ALONG / LANES", f"{tile.at} += blockDim.x"
    counter = f"for (int {tile.at} = threadIdx.x; {tile.at} < {cells}; {step})"
    body.write(f"{counter} {{")
    _compute(inside(body), found, tile, magic, (width.text, length.text))
    body.write("}")
    body.write("__syncthreads();")
    body.write(f"{counter} {{")
    _store(inside(body), found, tile, (width.text, length.text))
    body.write("}")
    body.write("__syncthreads();")
    body.close(emitter)


def _outer(emitter: CudaEmitter, axes: Sequence[Axis], magic: Sequence[str]) -> CudaEmitter:
    """The loop over what is the same for all cells of a tile."""
    if not axes:
        return emitter
    names = [emitter.scope.fresh(axis.name) for axis in axes]
    extents = [emitter.printer.poly(axis.extent) for axis in axes]
    for axis, name in zip(axes, names, strict=True):
        emitter.printer.names.symbols[axis.name] = name
        emitter.printer.bounded.add((symbol(axis.name), axis.extent))
    outer = emitter.scope.fresh("outer")
    emitter.write(
        f"for ({INDEX} {outer} = blockIdx.z; {outer} < {product(extents)}; {outer} += gridDim.z) {{"
    )
    inner = inside(emitter)
    inner.digits_of(outer, names, extents, magic)
    return inner


def _compute(
    emitter: CudaEmitter,
    found: Transpose,
    tile: _Tile,
    magic: Sequence[str],
    extents: tuple[str, str],
) -> None:
    """One stretch of cells into the tile."""
    width, length = extents
    point, store = emitter.scope.fresh("cell"), found.store
    emitter.write(f"const int {tile.row} = {tile.at} / (ALONG / LANES);")
    emitter.write(f"const int {tile.column} = {tile.at} % (ALONG / LANES) * LANES;")
    emitter.write(f"const {INDEX} {point} = {tile.across} + {tile.row};")
    emitter.write(f"if ({point} >= {width} || {tile.along} + {tile.column} >= {length}) continue;")
    names = [emitter.scope.fresh(axis.name) for axis in found.across]
    for axis, name in zip(found.across, names, strict=True):
        emitter.printer.names.symbols[axis.name] = name
        emitter.printer.bounded.add((symbol(axis.name), axis.extent))
    digits = [emitter.printer.poly(axis.extent) for axis in found.across]
    emitter.digits_of(point, names, digits, magic)
    emitter.begin_stretches([f"({tile.along} + {tile.column}) / LANES"])
    emitter.write(f"const int {tile.place} = {tile.layout}::at({tile.row}, {tile.column});")
    place = f"{tile.cells}[{tile.place} + {emitter.lane} * {tile.layout}::PITCH]"
    emitter.outputs[store.tensor, store.indices] = place, ""
    emitter.nodes(emitter.kernel.body)


def _store(emitter: CudaEmitter, found: Transpose, tile: _Tile, extents: tuple[str, str]) -> None:
    """One stretch of cells from the tile to memory."""
    width, length = extents
    store, printer = found.store, emitter.printer
    operand = printer.program.operand(store.tensor)
    along = emitter.scope.fresh(found.along.name)
    first = emitter.scope.fresh(f"{found.across[-1].name}_first")
    out, lane = emitter.scope.fresh(f"{store.tensor}_out"), emitter.scope.fresh("lane")
    printer.names.symbols[found.along.name] = along
    emitter.write(f"const int {tile.row} = {tile.at} / (ACROSS / LANES);")
    emitter.write(f"const int {tile.column} = {tile.at} % (ACROSS / LANES) * LANES;")
    emitter.write(f"const {INDEX} {along} = {tile.along} + {tile.row};")
    emitter.write(f"const {INDEX} {first} = {tile.across} + {tile.column};")
    emitter.write(f"if ({along} >= {length} || {first} >= {width}) continue;")
    emitter.write(f"const int {tile.place} = {tile.layout}::at({tile.column}, {tile.row});")
    emitter.write(f"{type_name(operand)} {out}[LANES];")
    emitter.write("UNROLL")
    emitter.write(f"for (int {lane} = 0; {lane} < LANES; {lane}++)")
    emitter.write(f"    {out}[{lane}] = {tile.cells}[{tile.place} + {lane}];")
    row = Printer.cell(printer, store.tensor, (*store.indices[:-1], ZERO)).removesuffix("]")
    step = f"(PROVED ? 1 : {printer.names.strides[store.tensor, operand.rank - 1]})"
    options = "0, LANES, aligned(PROVED, 1, 0)"
    emitter.write(f"store_run<{options}>({out}, &{row} + {first} * {step}], {step});")
