"""A kernel as CUDA functions: their signatures and statements, for each form of kernel."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly, poly
from opgen.emit import cuda_serial, cuda_slab, cuda_transpose
from opgen.emit.c_layout import spec_comment
from opgen.emit.cuda_parameters import Parameters
from opgen.emit.cuda_points import CudaEmitter
from opgen.emit.cuda_printer import CudaPrinter
from opgen.emit.cuda_product import ProductFunction, product_function
from opgen.emit.cuda_quotients import shared_divisors
from opgen.emit.cuda_runs import is_window, values_of_cell
from opgen.emit.cuda_sums import SumNames, kind_of, print_sum, stretched
from opgen.emit.function import Signature, signature_of
from opgen.emit.names import CNames, function_name, identifier
from opgen.emit.reach import reach
from opgen.emit.types import Type, Types
from opgen.ir.loop_parts import integer_names
from opgen.ir.loops import Axis, Kernel, Program
from opgen.ir.names import fresh_name
from opgen.ir.slab import Slab, slab
from opgen.ir.sums import BoxSum, SerialSum, box_sum, serial_sum
from opgen.ir.transpose import Transpose, transpose
from opgen.ir.work import shared_lengths


@dataclass(frozen=True, slots=True)
class Sums:
    """Of a kernel of sums that blocks may share: it is launched for terms, then for parts of sums.

    `cells` is how many of the axes are those of cells, `count` how many sums each has of that type.
    The others are those of a box, or of a serial loop how many turns it has, and terms in a turn.
    """

    cells: int
    count: int
    kind: Type
    is_serial: bool = False
    is_across: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """Of a kernel that writes along other axes than it reads: what, along how many axes.

    The macros are for the sides of a tile, across and along the axis that is read.
    """

    written: str
    digits: int
    macros: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel. `lines` are indented by one level.

    `extents` are those of the axes of its grid; of a kernel of teams also the lengths of the loops
    that a team shares.
    """

    name: str
    comment: tuple[str, ...]
    signature: Signature
    parameters: tuple[str, ...]
    lines: tuple[str, ...]
    extents: tuple[Poly, ...]
    teams: bool
    reach: Poly
    written: str
    sums: Sums | None
    tile: Tile | None
    lanes: str | None  # the macro for the cells of a thread
    rows: tuple[str, int] | None  # that for its rows, and how many values a cell has
    window: bool  # whether neighbouring rows of both axes before the last share what they read
    beside: int  # how many axes lie between its rows and its cells
    walked: tuple[tuple[str, int], ...]  # tensors that these walk along, and their steps
    slab: tuple[str, ...] | None = None  # how macros end, and the tensors with planes
    product: ProductFunction | None = None
    also: tuple[str, ...] = ()  # tensors that it writes beside its sums


Helpers = dict[tuple[str, Type], None]
"""Helper functions that kernels call, in the order of their first use."""


@dataclass
class Head:
    """How a kernel begins: its parameters, and the integers narrowed to indices."""

    kernel: Kernel
    program: Program
    scope: CNames
    parameters: Parameters

    @classmethod
    def begin(cls, kernel: Kernel, program: Program) -> Head:
        """With the parameters for tensors."""
        scope = CNames({function_name(each.name) for each in program.kernels})
        signature = _signature(kernel, program)
        return cls(kernel, program, scope, Parameters.begin(signature, kernel, program, scope))

    def magic(self, axes: Sequence[Axis]) -> tuple[str, ...]:
        """Names for what divides by the extents of axes."""
        return self.parameters.magic([axis.name for axis in axes])

    def emitter(self, kernel: Kernel, types: Types, helpers: Helpers) -> CudaEmitter:
        """The emitter of a body; `kernel` is this one, or what a thread does in place of it."""
        known = self.parameters.names
        names = replace(known, symbols=dict(known.symbols), accumulators={})
        divisors = shared_divisors(kernel, self.program)
        printer = CudaPrinter(self.program, types, names, True, helpers, divisors=divisors)
        emitter = CudaEmitter(printer, self.scope.inner(), kernel)
        if kernel.row is not None:
            lanes = _macro("lanes", kernel)
            emitter.write(f"constexpr int LANES = {lanes};")
            emitter.write(f"constexpr int PROVED = proved_{lanes} ? LANES : 0;")
        if kernel.group is not None:
            emitter.write(f"constexpr int ROWS = {_macro('rows', kernel)};")
        emitter.lines += self.parameters.narrowing
        emitter.prologue()
        return emitter

    def function(
        self, kernel: Kernel, emitter: CudaEmitter, extents: Sequence[Poly], reach: Poly
    ) -> Function:
        """The function with the body that the emitter of that kernel has printed."""
        return Function(
            function_name(kernel.name),
            tuple(line for text in kernel.spec for line in spec_comment(text)),
            self.parameters.signature,
            tuple(self.parameters.declared),
            tuple(emitter.lines),
            tuple(extents),
            False,
            reach,
            kernel.written,
            None,
            None,
            None if kernel.row is None else _macro("lanes", kernel),
            None if kernel.group is None else (_macro("rows", kernel), values_of_cell(kernel)),
            _is_window(kernel),
            kernel.beside,
            tuple(emitter.walked.items()),
        )


def print_function(kernel: Kernel, program: Program, types: Types, helpers: Helpers) -> Function:
    """The function of a kernel. The helper functions that it calls join `helpers`."""
    function = _function(kernel, program, types, helpers)
    return replace(function, product=product_function(kernel, program, types, helpers))


def _function(kernel: Kernel, program: Program, types: Types, helpers: Helpers) -> Function:
    """The function that computes the kernel cell by cell, or by sums or tiles."""
    found = box_sum(kernel, program.integers)
    if found is not None:
        return _sum_function(kernel, found, program, types, helpers)
    turned = transpose(kernel)
    if turned is not None:
        return _transpose_function(kernel, turned, program, types, helpers)
    serial = serial_sum(kernel, program.integers)
    if serial is not None and cuda_serial.kind_of(types, kernel, serial) is not None:
        return _serial_function(kernel, serial, program, types, helpers)
    head = Head.begin(kernel, program)
    lengths = shared_lengths(kernel, program.integers)
    parts = _parts(kernel, program)
    outer = len(kernel.axes) - kernel.beside
    axes = (*kernel.axes[:outer], *parts[:-1], *kernel.axes[outer:], *parts[-1:])
    magic = head.magic(axes[1:] if lengths else axes[1:-2])
    head.parameters.end(magic)
    emitter = head.emitter(kernel, types, helpers)
    if lengths:
        emitter.team(axes, magic)
    else:
        inner = emitter.grid(axes, magic)
        if kernel.row is not None:
            named = inner.printer.names.symbols
            inner.begin_stretches([named[axis.name] for axis in parts])
        inner.nodes(kernel.body)
        inner.close(emitter)
    extents = (*(axis.extent for axis in axes), *lengths)
    function = head.function(kernel, emitter, extents, reach(kernel))
    planes = slab(kernel, program)
    if planes is not None:
        function = _with_slab(function, kernel, planes, head, types, helpers, magic)
    return replace(function, teams=bool(lengths))


def _parts(kernel: Kernel, program: Program) -> list[Axis]:
    """An axis of stretches for each one that points share out."""
    taken = integer_names(kernel, known=program.integers)
    parts = ((fresh_name(f"{row.axis.name}_part", taken), row) for row in kernel.stretched)
    return [Axis(name, row.axis.extent) for name, row in parts]


def _with_slab(
    function: Function,
    kernel: Kernel,
    found: Slab,
    head: Head,
    types: Types,
    helpers: Helpers,
    magic: Sequence[str],
) -> Function:
    """The function with another body, for planes in shared memory."""
    emitter = head.emitter(kernel, types, helpers)
    name = identifier(kernel.name)
    cuda_slab.print_slab(emitter, kernel, found, name, magic)
    lines = (f"#if planes_of_{name}", *emitter.lines, "#else", *function.lines, "#endif")
    return replace(function, lines=lines, slab=(name, *found.reads, found.written))


def _sum_function(
    kernel: Kernel, found: BoxSum, program: Program, types: Types, helpers: Helpers
) -> Function:
    """The function of a kernel that sums over a box."""
    stretch = stretched(kernel, found, program)
    # What is stored may read more tensors than the terms do, and the box may have more sizes.
    head = Head.begin(replace(stretch, body=(*stretch.body, *kernel.body)), program)
    magic = head.magic(kernel.axes[1:]), head.magic(found.box[1:])
    share, splits, partial = map(head.scope.fresh, ("points_of_block", "splits", "partial"))
    wide = head.parameters.integers([share, splits])
    names = SumNames(tuple(magic[0]), tuple(magic[1]), share, splits, partial)
    kind = kind_of(types, kernel, found)
    head.parameters.end((*magic[0], *magic[1]), (*wide, f"{kind.value} *{partial}"))
    emitter = head.emitter(stretch, types, helpers)
    print_sum(emitter, kernel, found, names)
    axes = (*kernel.axes, *found.box)
    points = functools.reduce(operator.mul, (axis.extent for axis in found.box), poly(1))
    extents = [axis.extent for axis in axes]
    function = head.function(stretch, emitter, extents, reach(kernel) + points)
    sums = Sums(len(kernel.axes), len(found.starts), kind, is_across=found.across)
    return replace(function, sums=sums, also=kernel.also)


def _serial_function(
    kernel: Kernel, found: SerialSum, program: Program, types: Types, helpers: Helpers
) -> Function:
    """The function of a kernel of rows of cells that have long sums."""
    head = Head.begin(kernel, program)
    parts = _parts(kernel, program)
    axes = (*kernel.axes, *parts)
    magic = tuple(head.magic(axes[:-2]))
    split, share, splits, partial = map(
        head.scope.fresh, ("split", "turns_of_split", "splits", "partial")
    )
    wide = head.parameters.integers([share, splits])
    names = cuda_serial.SerialNames(magic, share, split, splits, partial)
    kind = cuda_serial.kind_of(types, kernel, found)
    assert kind is not None
    head.parameters.end(magic, (*wide, f"{kind.value} *{partial}"))
    emitter = head.emitter(kernel, types, helpers)
    cuda_serial.print_sum(emitter, axes, found, names)
    extents = (*(axis.extent for axis in axes), found.length, found.turn)
    function = head.function(kernel, emitter, extents, reach(kernel))
    sums = Sums(len(axes), len(found.starts), kind, is_serial=True)
    return replace(function, sums=sums, also=kernel.also)


def _transpose_function(
    kernel: Kernel, found: Transpose, program: Program, types: Types, helpers: Helpers
) -> Function:
    """The function of a kernel that reads along one axis and writes along another."""
    stretch = cuda_transpose.stretched(kernel, found, program)
    head = Head.begin(stretch, program)
    outer, across = head.magic(found.outer[1:]), head.magic(found.across[1:])
    head.parameters.end((*outer, *across))
    emitter = head.emitter(stretch, types, helpers)
    macros = (_macro("across", kernel), _macro("along", kernel))
    cuda_transpose.print_transpose(emitter, found, macros, outer, across)
    extents = [axis.extent for axis in (*found.outer, *found.across, found.along)]
    function = head.function(stretch, emitter, extents, reach(kernel))
    tile = Tile(found.store.tensor, len(found.across), macros)
    return replace(function, tile=tile)


def _signature(kernel: Kernel, program: Program) -> Signature:
    """The arguments of a kernel; the ends of runs are compared with extents."""
    signature = signature_of(kernel, program)
    if kernel.row is None:
        return signature
    extents = (e for name in signature.tensors for e in program.operand(name).extents)
    needed = frozenset(signature.integers).union(*(extent.symbols for extent in extents))
    return replace(signature, integers=tuple(n for n in program.integers if n in needed))


def _is_window(kernel: Kernel) -> bool:
    if kernel.group is None or not kernel.axes:
        return False
    return all(is_window(kernel, axis.name) for axis in (kernel.group.axis, kernel.axes[-1]))


def _macro(what: str, kernel: Kernel) -> str:
    """The macro for the number of `lanes` or `rows` of a thread, which a launch defines."""
    return f"{what}_of_{identifier(kernel.name)}"
