"""A kernel as the signature and statements of one C function; what CUDA shares with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly, symbol
from opgen.emit.c_layout import spec_comment, wrapped
from opgen.emit.coarse import coarse
from opgen.emit.expression import Names, Printer, type_name
from opgen.emit.names import CNames, function_name
from opgen.emit.planes import HAVE
from opgen.emit.points import PointEmitter
from opgen.emit.rows_ahead import piece
from opgen.emit.streams import streams
from opgen.emit.types import Type, Types
from opgen.ir.loop_parts import uses
from opgen.ir.loops import Blocks, Kernel, Operand, Planes, Program
from opgen.ir.work import points


@dataclass(frozen=True, slots=True)
class Signature:
    """What a kernel is called with, in this order.

    After them stand where it reports a fault, whether its result goes past the caches, if it can,
    whether tensors are coarse, if it has another way for these, and how much it asks for ahead.
    """

    tensors: tuple[str, ...]
    integers: tuple[str, ...]
    numbers: tuple[str, ...]
    faults: bool
    streams: bool = False
    coarse: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """The text of one kernel. `lines` are indented by one level.

    Where the macro `given` is 0, the kernel is never called, and its lines may not compile.
    """

    name: str
    comment: tuple[str, ...]
    signature: Signature
    parameters: tuple[str, ...]
    lines: tuple[str, ...]
    points: Poly  # how many parallel points it has
    written: str
    given: str = ""


def print_function(
    kernel: Kernel,
    program: Program,
    types: Types,
    helpers: dict[tuple[str, Type], None],
) -> Function:
    """The C function of a kernel. The helper functions that it calls join `helpers`."""
    found, ahead = coarse(kernel, program), piece(kernel, program)
    signature = replace(
        signature_of(kernel, program),
        streams=streams(kernel, program),
        coarse=found is not None,
        ahead=ahead is not None,
    )
    scope = CNames({function_name(k.name) for k in program.kernels})
    parameters, names = declare_parameters(signature, kernel, program, scope)
    axes = frozenset((symbol(axis.name), axis.extent) for axis in kernel.axes)
    printer = Printer(program, types, names, False, helpers, axes=axes)
    emitter = PointEmitter(printer, scope, kernel)
    if signature.streams:
        emitter.streams = scope.fresh("streams")
        parameters = (*parameters, f"int {emitter.streams}")
    if found is not None:
        emitter.coarse, emitter.is_coarse = found, scope.fresh("coarse")
        parameters = (*parameters, f"int {emitter.is_coarse}")
    if ahead is not None:
        emitter.ahead, emitter.asked = ahead, scope.fresh("ahead")
        parameters = (*parameters, f"int64_t {emitter.asked}")
    if kernel.guest is not None:
        emitter.guest = scope.fresh("guest")
        parameters = (*parameters, f"const struct call *{emitter.guest}")
    parameters = (*parameters, "int64_t begin, int64_t end")
    emitter.prologue()
    emitter.points("begin", "end")
    spec = tuple(line for text in kernel.spec for line in spec_comment(text))
    lines = tuple(emitter.lines)
    name = function_name(kernel.name)
    given = ""
    if isinstance(kernel.only, Planes):
        given = HAVE[kernel.only.elements]
    elif isinstance(kernel.only, Blocks) and kernel.only.holds and kernel.only.is_paired:
        given = "PAIRED_LANES"
    elif is_replaced(kernel) and isinstance(kernel.unless, Planes):
        given = f"!{HAVE[kernel.unless.elements]}"
    count = points(kernel)
    return Function(name, spec, signature, parameters, lines, count, kernel.written, given)


def is_replaced(kernel: Kernel) -> bool:
    """Whether a kernel is not made where there are instructions for one of whole planes.

    Blocks take the compiler a second, and there few calls are left to them.
    """
    is_of_blocks = isinstance(kernel.only, Blocks) and kernel.only.holds
    return is_of_blocks and isinstance(kernel.unless, Planes)


def signature_of(kernel: Kernel, program: Program) -> Signature:
    """The arguments of a kernel, in the order of the program's."""
    used = uses(kernel)
    if kernel.guest is not None and kernel.guest.point:
        used = used.joined(uses(program.kernel(kernel.guest.kernel)))
    # An integer is loaded only where its index is inside, so the extents are needed as well.
    symbols = used.symbols.union(
        *(
            extent.symbols
            for operand in program.operands
            if operand.name in used.loaded
            for extent in operand.extents
        )
    )
    return Signature(
        tuple(o.name for o in program.operands if o.name in used.tensors),
        tuple(name for name in program.integers if name in symbols),
        tuple(name for name in program.numbers if name in used.numbers),
        used.faults,
    )


def declare_parameters(
    signature: Signature, kernel: Kernel, program: Program, scope: CNames
) -> tuple[tuple[str, ...], Names]:
    """The parameter declarations of a C function, and what its names are called in them."""
    # Integers first: they are read most, so they keep their names where a tensor has the same.
    scope.fresh("begin"), scope.fresh("end")
    names = declare_names(signature, program, scope)
    parameters: list[str] = []
    for name in signature.tensors:
        group = [pointer(program.operand(name), kernel, names, "restrict")]
        group += [f"int64_t {stride}" for stride in strides_of(name, program, names)]
        parameters += wrapped(group)
    group = [f"int64_t {names.symbols[name]}" for name in signature.integers]
    group += [f"double {names.numbers[name]}" for name in signature.numbers]
    if signature.faults:
        group.append("int64_t *fault")
    parameters += wrapped(group)
    return tuple(parameters), names


def declare_names(signature: Signature, program: Program, scope: CNames) -> Names:
    """What everything that a kernel is called with is called in it."""
    symbols = {name: scope.fresh(name) for name in signature.integers}
    numbers = {name: scope.fresh(name) for name in signature.numbers}
    tensors: dict[str, str] = {
        table.name: scope.first_free(table.name, f"{table.name}_data") for table in program.tables
    }
    strides: dict[tuple[str, int], str] = {}
    for name in signature.tensors:
        tensors[name] = scope.first_free(name, f"{name}_data")
        for axis in range(program.operand(name).rank):
            strides[name, axis] = scope.fresh(f"{name}_s{axis}")
    return Names(tensors, strides, symbols, numbers)


def pointer(operand: Operand, kernel: Kernel, names: Names, restrict: str) -> str:
    """The parameter for the elements of a tensor."""
    constant = "" if operand.name in kernel.all_written else "const "
    return f"{constant}{type_name(operand)} *{restrict} {names.tensors[operand.name]}"


def strides_of(tensor: str, program: Program, names: Names) -> list[str]:
    """The names of the strides of a tensor."""
    return [names.strides[tensor, axis] for axis in range(program.operand(tensor).rank)]
