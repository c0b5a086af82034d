"""A kernel as the signature and statements of one function; C and CUDA differ in how it starts."""

from __future__ import annotations

from dataclasses import dataclass

from opgen.algebra.poly import Poly
from opgen.emit.c_layout import spec_comment, wrapped
from opgen.emit.expression import Names, Printer, type_name
from opgen.emit.names import CNames, function_name
from opgen.emit.statements import Emitter
from opgen.emit.types import Type, Types
from opgen.ir.loops import (
    Kernel,
    Program,
    uses,
)
from opgen.ir.work import points


@dataclass(frozen=True, slots=True)
class Signature:
    """What a kernel is called with, in this order, and whether it can report a fault at the end."""

    tensors: tuple[str, ...]
    integers: tuple[str, ...]
    numbers: tuple[str, ...]
    faults: bool


@dataclass(frozen=True, slots=True)
class Function:
    """The text of one kernel. `lines` are indented by one level."""

    name: str
    comment: tuple[str, ...]
    signature: Signature
    parameters: tuple[str, ...]
    lines: tuple[str, ...]
    points: Poly  # how many parallel points it has
    written: str


def print_function(
    kernel: Kernel,
    program: Program,
    types: Types,
    helpers: dict[tuple[str, Type], None],
    cuda: bool,
) -> Function:
    """The function of a kernel. The helper functions that it calls join `helpers`."""
    signature = signature_of(kernel, program)
    scope = CNames({function_name(k.name) for k in program.kernels})
    parameters, names = declare_parameters(signature, kernel, program, scope, cuda)
    printer = Printer(program, types, names, cuda, helpers)
    emitter = Emitter(printer, scope, kernel)
    if cuda:
        emitter.thread_index()
        emitter.prologue()
        emitter.nodes(kernel.body)
    else:
        parameters = (*parameters, "int64_t begin, int64_t end")
        emitter.prologue()
        emitter.points("begin", "end")
    spec = tuple(line for text in kernel.spec for line in spec_comment(text))
    lines = tuple(emitter.lines)
    name = function_name(kernel.name)
    return Function(name, spec, signature, parameters, lines, points(kernel), kernel.written)


def signature_of(kernel: Kernel, program: Program) -> Signature:
    """The arguments of a kernel, in the order of the program's."""
    used = uses(kernel)
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
    signature: Signature, kernel: Kernel, program: Program, scope: CNames, cuda: bool
) -> tuple[tuple[str, ...], Names]:
    """The parameter declarations of a kernel, and what its names are called in them."""
    # Integers first: they are read most, so they keep their names where a tensor has the same.
    if not cuda:
        scope.fresh("begin"), scope.fresh("end")
    symbols = {name: scope.fresh(name) for name in signature.integers}
    numbers = {name: scope.fresh(name) for name in signature.numbers}
    tensors: dict[str, str] = {
        table.name: scope.first_free(table.name, f"{table.name}_data") for table in program.tables
    }
    strides: dict[tuple[str, int], str] = {}
    parameters: list[str] = []
    restrict = "__restrict__ " if cuda else "restrict "
    for name in signature.tensors:
        operand = program.operand(name)
        tensors[name] = scope.first_free(name, f"{name}_data")
        constant = "" if name == kernel.written else "const "
        group = [f"{constant}{type_name(operand)} *{restrict}{tensors[name]}"]
        for axis in range(operand.rank):
            strides[name, axis] = scope.fresh(f"{name}_s{axis}")
            group.append(f"int64_t {strides[name, axis]}")
        parameters += wrapped(group)
    group = [f"int64_t {symbols[name]}" for name in signature.integers]
    group += [f"double {numbers[name]}" for name in signature.numbers]
    if signature.faults:
        group.append("int64_t *fault")
    parameters += wrapped(group)
    return tuple(parameters), Names(tensors, strides, symbols, numbers)
