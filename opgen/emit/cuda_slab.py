"""Kernels that stage whole planes in shared memory, where their rows are short or of odd length.

Consecutive planes are one stretch of memory, which a block copies 16 bytes at a time, whatever the
length of a row. A thread then computes one row of cells from there, and leaves them in shared
memory; they are copied back likewise. The launch chooses how many planes a block has. Sizes are
macros, so that places in shared memory are constants:

    planes_of_K     planes of a block, 0 for a kernel without any
    height_of_K     rows of a plane that is written
    plane_0_of_K    cells of a plane of the first tensor, and so on
    row_0_of_K      cells of a row of it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opgen.algebra.poly import symbol
from opgen.emit.cuda_points import CudaEmitter, product
from opgen.emit.cuda_printer import INDEX
from opgen.emit.cuda_statements import inside
from opgen.emit.expression import type_name
from opgen.ir.loops import Kernel
from opgen.ir.slab import Slab


def print_slab(
    emitter: CudaEmitter, kernel: Kernel, found: Slab, kernel_name: str, magic: Sequence[str]
) -> None:
    """The body; `magic` is for the digits of the number of a plane."""
    assert kernel.group is not None and kernel.row is not None
    height = f"height_of_{kernel_name}"
    program, scope = emitter.printer.program, emitter.scope
    names = [emitter.scope.fresh(axis.name) for axis in kernel.axes]
    extents = [emitter.printer.poly(axis.extent) for axis in kernel.axes]
    first, count, at = (scope.fresh(name) for name in ("first_plane", "planes", "at"))
    plane = scope.fresh("plane")
    staged = (*found.reads, found.written)
    pointers = {name: emitter.printer.names.tensors[name] for name in staged}
    slabs = {name: scope.fresh(f"{name}_slab") for name in staged}
    sizes = {name: f"plane_{at}_of_{kernel_name}" for at, name in enumerate(staged)}
    emitter.write(f"constexpr int PLANES = planes_of_{kernel_name};")
    for name in staged:
        kind = type_name(program.operand(name))
        emitter.write(f"__shared__ __align__(16) {kind} {slabs[name]}[PLANES * {sizes[name]}];")
    step = f"{first} += gridDim.x * ({INDEX})PLANES"
    head = f"{INDEX} {first} = blockIdx.x * ({INDEX})PLANES"
    emitter.write(f"for ({head}; {first} < {product(extents)}; {step}) {{")
    body = inside(emitter)
    body.write(f"const int {count} = least({product(extents)} - {first}, ({INDEX})PLANES);")
    for name in found.reads:
        place = f"{pointers[name]} + {first} * {sizes[name]}"
        body.write(f"copy_in({slabs[name]}, {place}, {count} * {sizes[name]});")
    body.write("__syncthreads();")
    rows = f"{count} * {height}"
    body.write(f"for (int {at} = threadIdx.x; {at} < {rows}; {at} += blockDim.x) {{")
    inner = inside(body)
    outer, part = inner.scope.fresh("outer"), inner.scope.fresh("part")
    inner.write(f"const int {plane} = (unsigned){at} / {height};")
    inner.write(f"const int {part} = {at} - {plane} * {height};")
    inner.write(f"const {INDEX} {outer} = {first} + {plane};")
    for axis, name in zip(kernel.axes, names, strict=True):
        inner.printer.names.symbols[axis.name] = name
        inner.printer.bounded.add((symbol(axis.name), axis.extent))
    inner.digits_of(outer, names, extents, magic)
    _stage(inner, found, kernel_name, slabs, plane)
    for axis, size in zip((kernel.group.axis, kernel.row.axis), (height, "LANES"), strict=True):
        if axis.extent in map(symbol, program.integers):
            inner.printer.names.symbols[str(axis.extent)] = size
    inner.begin_stretches([part, "0"])
    inner.nodes(kernel.body)
    body.write("}")
    body.write("__syncthreads();")
    name = found.written
    place = f"{pointers[name]} + {first} * {sizes[name]}"
    body.write(f"copy_out({place}, {slabs[name]}, {count} * {sizes[name]});")
    emitter.write("}")


def _stage(
    emitter: CudaEmitter, found: Slab, kernel_name: str, slabs: dict[str, str], plane: str
) -> None:
    """From here on the tensors are what of them lies in shared memory: the plane of the thread."""
    names = emitter.printer.names
    names = replace(names, tensors=dict(names.tensors), strides=dict(names.strides))
    for at, name in enumerate((*found.reads, found.written)):
        operand = emitter.printer.program.operand(name)
        constant = "" if name == found.written else "const "
        own = emitter.scope.fresh(f"{name}_plane")
        value = f"{slabs[name]} + {plane} * plane_{at}_of_{kernel_name}"
        emitter.write(f"{constant}{type_name(operand)} *{own} = {value};")
        names.tensors[name] = own
        *planes, row, last = range(operand.rank)
        names.strides.update({(name, axis): "0" for axis in planes})
        names.strides[name, row] = f"row_{at}_of_{kernel_name}"
        names.strides[name, last] = "1"
    emitter.printer = replace(emitter.printer, names=names)
