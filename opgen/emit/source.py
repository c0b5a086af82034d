"""What the C and the CUDA source of a program have in common."""

from __future__ import annotations

from collections.abc import Iterable

from opgen.emit.names import is_reserved_in_c
from opgen.emit.types import Type
from opgen.ir.loops import Program
from opgen.ir.notation import Table
from opgen.ir.primitives import PRIMITIVES


def helper_lines(helpers: Iterable[tuple[str, Type]], begin: str = "FUNCTION") -> tuple[str, ...]:
    """Definitions of the small functions that spellings of primitives call, in table order.

    `begin` is the macro that they begin with.
    """
    order = list(PRIMITIVES)
    lines = []
    for name, kind in sorted(helpers, key=lambda item: (order.index(item[0]), item[1].value)):
        row = PRIMITIVES[name]
        if name == "select":
            head = f"{begin} {kind.value} opgen_select_{kind.tag}"
            sides = f"{kind.value} then, {kind.value} otherwise"
            lines.append(f"{head}(int test, {sides}) {{ return test ? then : otherwise; }}")
            continue
        assert row.helper is not None
        parameters = ", ".join(f"{kind.value} {letter}" for letter in "ab"[: row.arity])
        head = f"{begin} {kind.value} opgen_{name}_{kind.tag}({parameters})"
        lines.append(f"{head} {{ return {row.helper}; }}")
    return tuple(lines)


def table_name(table: Table) -> str:
    """The C name of a constant table."""
    return f"{table.name}_data" if is_reserved_in_c(table.name) else table.name


def table_lines(program: Program) -> tuple[str, ...]:
    """Definitions of the constant tables, without storage class."""
    lines = []
    for table in program.tables:
        kind = "int64_t" if table.integer else "real"
        values = ", ".join(repr(value) for value in table.values)
        lines.append(f"{kind} {table_name(table)}[] = {{{values}}};")
    return tuple(lines)
