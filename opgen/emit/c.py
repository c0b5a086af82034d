"""The C source of a program: its kernels, and one function that calls them in order."""

from __future__ import annotations

from dataclasses import dataclass

from opgen.emit.expression import type_name
from opgen.emit.function import Function, print_function, wrapped
from opgen.emit.names import CNames
from opgen.emit.source import helper_lines, table_lines
from opgen.emit.templates import comment, render
from opgen.emit.types import Type, Types
from opgen.ir.loops import Program


@dataclass(frozen=True, slots=True)
class Entry:
    """The function that the runtime calls."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What `cpu.c.j2` prints."""

    title: str
    helpers: tuple[str, ...]
    tables: tuple[str, ...]
    kernels: tuple[Function, ...]
    entry: Entry


def c_source(program: Program) -> str:
    """The C source; it is compiled behind `opgen.runtime.prelude` and the bindings of a call."""
    types = Types(program)
    helpers: dict[tuple[str, Type], None] = {}
    kernels = tuple(
        print_function(kernel, program, types, helpers, cuda=False) for kernel in program.kernels
    )
    (title,) = comment(program.name)
    return render(
        "cpu.c.j2",
        Source(
            title,
            helper_lines(helpers),
            table_lines(program),
            kernels,
            _entry(program, kernels),
        ),
    )


def entry_name(program: Program) -> str:
    """The exported symbol of a program's C source."""
    return f"run_{program.name}"


def _entry(program: Program, kernels: tuple[Function, ...]) -> Entry:
    """Unpack the arguments that kernels use, then call the kernels."""
    signatures = [kernel.signature for kernel in kernels]
    scope = CNames({kernel.name for kernel in kernels} | {"tensors", "integers", "numbers"})
    lines: list[str] = []
    local: dict[str, str] = {}

    def unpack(kind: str, source: str, names: tuple[str, ...], used: set[str]) -> None:
        parts = []
        for at, name in enumerate(names):
            if name in used:
                local[name] = scope.fresh(name)
                parts.append(f"{local[name]} = {source}[{at}]")
        if parts:
            declared = ",\n    ".join(wrapped(parts, 76))
            lines.extend(f"const {kind} {declared};".split("\n"))

    unpack("int64_t", "integers", program.integers, {n for s in signatures for n in s.integers})
    unpack("double", "numbers", program.numbers, {n for s in signatures for n in s.numbers})
    arguments: dict[str, list[str]] = {}
    position = len(program.integers)
    for at, operand in enumerate(program.operands):
        name = operand.name
        if any(name in signature.tensors for signature in signatures):
            data = scope.first_free(name, f"{name}_data")
            lines.append(f"{type_name(operand)} *{data} = tensors[{at}];")
            arguments[name] = [data]
            arguments[name] += [f"integers[{position + axis}]" for axis in range(operand.rank)]
        position += operand.rank
    workspaces = {workspace.output: workspace.name for workspace in program.workspaces}
    for kernel in kernels:
        signature = kernel.signature
        given = [", ".join(arguments[name]) for name in signature.tensors]
        given += wrapped([local[name] for name in (*signature.integers, *signature.numbers)])
        given += ["fault"] if signature.faults else []
        source = workspaces.get(kernel.written)
        if source is not None:
            # A workspace of the output's own type is the output itself.
            pair = arguments[source][0], arguments[kernel.written][0]
            lines.append(f"if ((void *){pair[0]} != (void *){pair[1]})")
        lines.append(f"{kernel.name}(")
        lines += [f"    {line}," for line in given[:-1]]
        lines.append(f"    {given[-1]});")
    return Entry(entry_name(program), tuple(lines))
