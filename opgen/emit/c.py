"""The C source of a program: its kernels, and one function that calls them in order."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Poly, poly
from opgen.emit.c_layout import broken, wrapped
from opgen.emit.expression import Names, Printer, type_name
from opgen.emit.function import Function, print_function
from opgen.emit.names import CNames
from opgen.emit.source import helper_lines, table_lines
from opgen.emit.templates import comment, render
from opgen.emit.types import Type, Types
from opgen.ir.loops import Define, For, Kernel, Load, Program, Scalar, Store, visit, walk
from opgen.ir.primitives import Level
from opgen.ir.work import points, work


@dataclass(frozen=True, slots=True)
class Entry:
    """The function that the runtime calls."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """The arguments of a kernel where the innermost loop walks through memory as `test` says."""

    test: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel, and the function that runs a range of its points for the arguments of a call.

    `variants` are the arguments with constant steps, for calls whose tensors have them: consecutive
    elements, or a single one for an input that is absent.
    """

    function: Function
    arguments: tuple[str, ...]
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What `cpu.c.j2` prints."""

    title: str
    helpers: tuple[str, ...]
    tables: tuple[str, ...]
    tasks: tuple[Task, ...]
    entry: Entry


def c_source(
    program: Program,
    called_as: Program | None = None,
    orders: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """The C source; it is compiled behind `opgen.runtime.prelude` and the bindings of a call.

    A special program may be `called_as` a more general one, with all arguments of that. `orders`
    are the axes of those tensors whose dims stand in another order in the special one.
    """
    called_as = called_as or program
    types = Types(program)
    helpers: dict[tuple[str, Type], None] = {}
    functions = tuple(print_function(kernel, program, types, helpers) for kernel in program.kernels)
    (title,) = comment(program.name)
    return render(
        "cpu.c.j2",
        Source(
            title,
            (*helper_lines(helpers), *_are_finite(program)),
            table_lines(program),
            tuple(
                map(functools.partial(_task, called_as, orders or {}), program.kernels, functions)
            ),
            _entry(program, called_as, orders or {}, functions),
        ),
    )


def entry_name(program: Program) -> str:
    """The exported symbol of a program's C source."""
    return f"run_{program.name}"


# ---------------------------------------------------------------------------- tasks
def _stride_positions(program: Program) -> dict[str, int]:
    """Where the strides of each tensor begin among the integers of a call."""
    positions = {}
    position = len(program.integers)
    for operand in program.operands:
        positions[operand.name] = position
        position += operand.rank
    return positions


def _strides(
    program: Program, orders: Mapping[str, tuple[int, ...]], tensor: str
) -> tuple[int, ...]:
    """Where the strides of a tensor are among the integers of a call."""
    first = _stride_positions(program)[tensor]
    axes = orders.get(tensor, range(program.operand(tensor).rank))
    return tuple(first + axis for axis in axes)


def _task(
    called_as: Program,
    orders: Mapping[str, tuple[int, ...]],
    kernel: Kernel,
    function: Function,
) -> Task:
    """How a kernel is called."""
    signature = function.signature
    order = [operand.name for operand in called_as.operands]
    walked = _walked(kernel)
    strides = {name: _strides(called_as, orders, name) for name in signature.tensors}

    def arguments(steps: Mapping[str, int], streams: str = "call->streams") -> tuple[str, ...]:
        lines = []
        for name in signature.tensors:
            given = [f"n[{position}]" for position in strides[name]]
            if name in steps:
                given[-1] = str(steps[name])
            lines.append(", ".join([f"call->tensors[{order.index(name)}]", *given]))
        integers = [f"n[{called_as.integers.index(name)}]" for name in signature.integers]
        numbers = [f"call->numbers[{called_as.numbers.index(name)}]" for name in signature.numbers]
        faults = ["call->fault"] if signature.faults else []
        streaming = [streams] if signature.streams else []
        return (*lines, *wrapped([*integers, *numbers, *faults, *streaming]), "begin, end")

    names = [name for name in signature.tensors if name in walked]
    all_there = dict.fromkeys(names, 1)
    absent = {name: 0 for name in names if called_as.operand(name).optional}
    choices = [all_there, {**all_there, **absent}] if absent else [all_there]
    variants = [
        Variant(
            " && ".join(f"n[{strides[name][-1]}] == {step}" for name, step in steps.items()),
            arguments(steps),
        )
        for steps in choices
        if steps
    ]
    return Task(function, arguments({}, "0" if variants else "call->streams"), tuple(variants))


def _walked(kernel: Kernel) -> frozenset[str]:
    """The tensors through whose last dim the innermost loop walks."""
    loops = [node for node in walk(kernel.body) if isinstance(node, For)]
    names = {
        node.name
        for node in loops
        if node.any_order or all(isinstance(each, Store) for each in node.body)
    }
    if kernel.row is not None:
        names.add(kernel.row.axis.name)
    found: set[str] = set()
    moving = set(names)

    def access(tensor: str, indices: Sequence[Poly]) -> None:
        if indices and not moving.isdisjoint(indices[-1].symbols):
            found.add(tensor)

    def on_scalar(value: Scalar) -> None:
        if isinstance(value, Load):
            access(value.tensor, value.indices)

    for node in walk(kernel.body):
        match node:
            case Define(name=name, value=value) if not moving.isdisjoint(value.symbols):
                moving.add(name)
            case Store(tensor=tensor, indices=indices):
                access(tensor, indices)
            case _:
                pass
        visit(node, on_scalar, lambda test: None, lambda value: None)
    return frozenset(found)


# ---------------------------------------------------------------------------- entry
_ARE_FINITE: Final = """
/* Whether all elements of a tensor are finite; dims that lie one behind the other count as one. */
static int are_finite(const T *data, int rank, const int64_t *sizes, const int64_t *steps)
{
    int64_t size = 1, step = 1, rows = 1;
    int finite = 1;
    if (rank > 0) size = sizes[--rank], step = steps[rank];
    while (rank > 0 && steps[rank - 1] == size * step) size *= sizes[--rank];
    for (int axis = 0; axis < rank; axis++) rows *= sizes[axis];
    for (int64_t row = 0; row < rows; row++) {
        const T *first = data;
        int64_t rest = row;
        for (int axis = rank - 1; axis >= 0; axis--) {
            first += rest % sizes[axis] * steps[axis];
            rest /= sizes[axis];
        }
        if (step == 1)
            for (int64_t at = 0; at < size; at++) finite &= from_T(first[at]) * 0 == 0;
        else
            for (int64_t at = 0; at < size; at++) finite &= from_T(first[at * step]) * 0 == 0;
    }
    return finite;
}
"""


def _are_finite(program: Program) -> tuple[str, ...]:
    """The function that looks at a tensor, where a kernel asks for it."""
    if all(kernel.only is None for kernel in program.kernels):
        return ()
    return tuple(_ARE_FINITE.rstrip().split("\n"))


def _written(program: Program) -> list[tuple[str, Poly]]:
    """The tensors that kernels write, with the number of their cells."""
    names = dict.fromkeys(kernel.written for kernel in program.kernels)
    return [
        (name, functools.reduce(operator.mul, program.operand(name).extents, poly(1)))
        for name in names
    ]


def _entry(
    program: Program,
    called_as: Program,
    orders: Mapping[str, tuple[int, ...]],
    functions: tuple[Function, ...],
) -> Entry:
    """Run the kernels in order, each over all of its points."""
    scope = CNames({function.name for function in functions} | {"call", "n"})
    order = [operand.name for operand in called_as.operands]
    workspaces = {workspace.output: workspace.name for workspace in program.workspaces}
    counts = [(points(kernel), work(kernel, program.integers)) for kernel in program.kernels]
    sizes = [size for _, size in _written(program)]
    sizes += [
        extent
        for kernel in program.kernels
        if kernel.only is not None
        for extent in program.operand(kernel.only.tensor).extents
    ]
    used = frozenset[str]().union(
        *(value.symbols for value in (*itertools.chain.from_iterable(counts), *sizes))
    )
    names = {name: scope.fresh(name) for name in program.integers if name in used}
    printer = Printer(program, Types(program), Names(symbols=names))
    parts = [f"{local} = n[{called_as.integers.index(name)}]" for name, local in names.items()]
    names_of_streams = {name: scope.fresh(f"{name}_streams") for name, _ in _written(program)}
    lines = []
    if parts:
        declared = ",\n    ".join(wrapped(parts, 76))
        lines += f"const int64_t {declared};".split("\n")
    streamed = {
        kernel.written
        for kernel, function in zip(program.kernels, functions, strict=True)
        if function.signature.streams
    }
    for name, extents in _written(program):
        size = printer.poly(extents).at(Level.MULTIPLICATIVE)
        place = order.index(name)
        kind = type_name(program.operand(name))
        kept = f"const int {names_of_streams[name]} = " if name in streamed else ""
        lines += broken(f"{kept}will_be_written(call->tensors[{place}], {size} * sizeof({kind}));")
    checked = dict.fromkeys(kernel.only.tensor for kernel in program.kernels if kernel.only)
    flags = {tensor: scope.fresh(f"{tensor}_is_finite") for tensor in checked}
    for tensor, flag in flags.items():
        dims = [printer.poly(extent).text for extent in program.operand(tensor).extents]
        steps = [f"n[{position}]" for position in _strides(called_as, orders, tensor)]
        arguments = f"call->tensors[{order.index(tensor)}], {len(dims)}"
        lines += broken(f"const int64_t {flag}_sizes[] = {{{', '.join(dims)}}};")
        lines += broken(f"const int64_t {flag}_steps[] = {{{', '.join(steps)}}};")
        lines += broken(f"const int {flag} = are_finite({arguments}, {flag}_sizes, {flag}_steps);")
    for kernel, function, (count, each) in zip(program.kernels, functions, counts, strict=True):
        before = len(lines)
        if kernel.only is not None:
            lines.append(f"if ({'' if kernel.only.holds else '!'}{flags[kernel.only.tensor]})")
        source = workspaces.get(kernel.written)
        if source is not None:
            # A workspace of the output's own type is the output itself.
            pair = order.index(source), order.index(kernel.written)
            lines.append(f"if (call->tensors[{pair[0]}] != call->tensors[{pair[1]}])")
        if function.signature.streams:
            lines[before:before] = [f"arguments.streams = {names_of_streams[kernel.written]};"]
        count_text, work_text = printer.poly(count).text, printer.poly(each).text
        if kernel.is_deterministic:
            lines += broken(f"in_parallel({function.name}_task, call, {count_text}, {work_text});")
        else:
            lines += broken(f"{function.name}_task(0, {count_text}, call);  // points share cells")
    return Entry(entry_name(program), tuple(lines))
