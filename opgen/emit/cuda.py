"""The CUDA source of a program: its kernels, one thread for each point."""

from __future__ import annotations

from dataclasses import dataclass

from opgen.emit.function import Function, print_function
from opgen.emit.source import helper_lines, table_lines
from opgen.emit.templates import comment, render
from opgen.emit.types import Type, Types
from opgen.ir.loops import Program


@dataclass(frozen=True, slots=True)
class Source:
    """What `cuda.cu.j2` prints."""

    title: str
    helpers: tuple[str, ...]
    tables: tuple[str, ...]
    kernels: tuple[Function, ...]


def cuda_functions(program: Program) -> tuple[tuple[Function, ...], tuple[str, ...]]:
    """The kernels and the helper functions they call."""
    types = Types(program)
    helpers: dict[tuple[str, Type], None] = {}
    kernels = tuple(
        print_function(kernel, program, types, helpers, cuda=True) for kernel in program.kernels
    )
    return kernels, helper_lines(helpers)


def cuda_source(program: Program) -> str:
    """The CUDA source; it is compiled behind `opgen.runtime.prelude` and the bindings of a call."""
    kernels, helpers = cuda_functions(program)
    (title,) = comment(program.name)
    return render("cuda.cu.j2", Source(title, helpers, table_lines(program), kernels))
