"""The C source of a program: its kernels, and one function that calls them in order."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from opgen.algebra.poly import Poly
from opgen.emit.c_entry import Entry, print_entry
from opgen.emit.c_layout import wrapped
from opgen.emit.entry_helpers import entry_helpers
from opgen.emit.entry_scope import stride_places
from opgen.emit.exponents import exponent
from opgen.emit.function import Function, print_function
from opgen.emit.source import helper_lines, table_lines
from opgen.emit.templates import comment, render
from opgen.emit.types import Type, Types
from opgen.emit.vectors import row_extreme, row_position
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import (
    Accumulate,
    AtomicAdd,
    Blocks,
    Define,
    Fitting,
    For,
    Kernel,
    Planes,
    Program,
    Short,
    Store,
    walk,
)

_MOST_RARE_TERMS: Final = 12
"""The most terms of a kernel for rare calls that has vectors: these take long to compile, and those
calls have fewer cells than a vector has lanes. Of 3x3 windows it was nearly half of the time."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The arguments of a kernel where steps in memory, and an exponent, are what `test` says."""

    test: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel, and the function that runs a range of its points for the arguments of a call.

    `variants` are the arguments with constant steps, for calls whose tensors have them: consecutive
    elements, or a single one for an input that is absent; and with constant exponents, see
    `opgen.emit.exponents`. `other_calls`, if there are any, may have any steps; they are not worth
    vectors.
    """

    function: Function
    arguments: tuple[str, ...]
    variants: tuple[Variant, ...]
    other_calls: bool


@dataclass(frozen=True, slots=True)
class Source:
    """What `cpu.c.j2` prints."""

    title: str
    notes: tuple[str, ...]
    helpers: tuple[str, ...]
    tables: tuple[str, ...]
    tasks: tuple[Task, ...]
    entry: Entry


_ONE_PASS = "One kernel may run within another one, which reads the same."


def c_source(
    program: Program,
    called_as: Program | None = None,
    orders: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """The C source; it is compiled behind `opgen.runtime.prelude` and the bindings of a call.

    A special program may be `called_as` a more general one, with all arguments of that, and takes
    memory of its own for what that one has not. `orders` are the axes of those tensors whose dims
    stand in another order in the special one.
    """
    called_as = called_as or program
    given = {operand.name for operand in called_as.operands}
    own = tuple(operand for operand in program.operands if operand.name not in given)
    called_as = replace(called_as, operands=(*called_as.operands, *own))
    types = Types(program)
    helpers: dict[tuple[str, Type], None] = {}
    functions = tuple(print_function(kernel, program, types, helpers) for kernel in program.kernels)
    (title,) = comment(program.name)
    return render(
        "cpu.c.j2",
        Source(
            title,
            comment(_ONE_PASS) if program.is_one_pass else (),
            (*helper_lines(helpers, "INLINE"), *entry_helpers(program, orders or {})),
            table_lines(program),
            tuple(
                map(functools.partial(_task, called_as, orders or {}), program.kernels, functions)
            ),
            print_entry(program, called_as, orders or {}, functions, own),
        ),
    )


# ---------------------------------------------------------------------------- tasks
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
    strides = {name: stride_places(called_as, orders, name) for name in signature.tensors}

    def arguments(
        steps: Mapping[str, int],
        streams: str = "call->streams",
        known: Mapping[str, float] = MappingProxyType({}),
    ) -> tuple[str, ...]:
        lines = []
        for name in signature.tensors:
            given = [f"n[{position}]" for position in strides[name]]
            if name in steps:
                given[-1] = str(steps[name])
            lines.append(", ".join([f"call->tensors[{order.index(name)}]", *given]))
        integers = [f"n[{called_as.integers.index(name)}]" for name in signature.integers]
        numbers = [str(known[name]) if name in known else place(name) for name in signature.numbers]
        faults = ["call->fault"] if signature.faults else []
        streaming = [streams] if signature.streams else []
        streaming += ["call->coarse"] if signature.coarse else []
        streaming += ["call->ahead"] if signature.ahead else []
        guest = ["call->guest"] if kernel.guest is not None else []
        return (*lines, *wrapped([*integers, *numbers, *faults, *streaming, *guest]), "begin, end")

    def place(number: str) -> str:
        return f"call->numbers[{called_as.numbers.index(number)}]"

    names = [name for name in signature.tensors if name in walked]
    if isinstance(kernel.only, Blocks | Short | Fitting) and kernel.only.holds:
        given = [name for name in kernel.only.tensors if not called_as.operand(name).optional]
        return Task(function, arguments(dict.fromkeys(given, 1)), (), False)
    if isinstance(kernel.only, Planes):
        return Task(function, arguments({name: 1 for name, _ in kernel.only.tensors}), (), False)
    all_there = dict.fromkeys(names, 1)
    absent = {name: 0 for name in names if called_as.operand(name).optional}
    choices = [all_there, {**all_there, **absent}] if absent else [all_there]
    if isinstance(kernel.only, Blocks) and not kernel.only.is_paired:
        # What is left is rare: fewer cells than a vector has lanes, or elements that stand apart.
        terms = sum(isinstance(node, Accumulate) for node in walk(kernel.body))
        if terms > _MOST_RARE_TERMS:
            return Task(function, arguments({}, "0"), (), True)
        choices = choices[-1:]
    has_steps = any(choices)
    streams = "0" if has_steps else "call->streams"
    variants = []
    power = exponent(kernel)
    for steps in choices:
        tests = [f"n[{strides[name][-1]}] == {step}" for name, step in steps.items()]
        if power is not None and steps == choices[0]:
            for value in power.values:
                number = place(power.name)
                sign = [] if value else [f"!__builtin_signbit({number})"]
                test = " && ".join([*tests, f"{number} == {value}", *sign])
                variants.append(Variant(test, arguments(steps, known={power.name: value})))
        if steps:
            variants.append(Variant(" && ".join(tests), arguments(steps)))
    return Task(function, arguments({}, streams), tuple(variants), has_steps)


def _walked(kernel: Kernel) -> frozenset[str]:
    """The tensors through whose last dim the innermost loop walks."""
    loops = [node for node in walk(kernel.body) if isinstance(node, For)]
    names = {
        node.name
        for node in loops
        if node.any_order
        or row_extreme(node) is not None
        or row_position(node) is not None
        or all(isinstance(each, Store) for each in node.body)
    }
    if kernel.row is not None:
        names.add(kernel.row.axis.name)
    found: set[str] = set()
    moving = set(names)

    def access(tensor: str, indices: Sequence[Poly]) -> None:
        if indices and not moving.isdisjoint(indices[-1].symbols):
            found.add(tensor)

    for node in walk(kernel.body):
        match node:
            case Define(name=name, value=value) if not moving.isdisjoint(value.symbols):
                moving.add(name)
            case Store(tensor=tensor, indices=indices) | AtomicAdd(tensor=tensor, indices=indices):
                access(tensor, indices)
            case _:
                pass
        for load in loads_of((node,)):
            access(load.tensor, load.indices)
    return frozenset(found)
