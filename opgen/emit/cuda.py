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


def cuda_functions(program: Program) -> tuple[Function, ...]:
    """The kernels; `opgen.runtime` needs their signatures to launch them."""
    return _functions(program)[0]


def cuda_source(program: Program) -> str:
    """The CUDA source; it is compiled behind `opgen.runtime.prelude` and the bindings of a call."""
    kernels, helpers = _functions(program)
    (title,) = comment(program.name)
    return render("cuda.cu.j2", Source(title, helpers, table_lines(program), kernels))


def _functions(program: Program) -> tuple[tuple[Function, ...], tuple[str, ...]]:
    types = Types(program)
    helpers: dict[tuple[str, Type], None] = {}
    kernels = tuple(
        print_function(kernel, program, types, helpers, cuda=True) for kernel in program.kernels
    )
    return kernels, helper_lines(helpers)
