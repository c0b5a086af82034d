"""The task of kernels whose points go together, see `together`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Poly
from opgen.emit.c_layout import broken
from opgen.emit.entry_helpers import Orders
from opgen.emit.entry_scope import EntryScope
from opgen.emit.expression import type_name
from opgen.emit.function import Function
from opgen.emit.names import CNames
from opgen.emit.together import Together
from opgen.ir.loops import Program
from opgen.ir.primitives import Level

CACHED: Final = 2**18
"""Bytes of what a stretch of rows writes: a part of the second cache."""

NEAREST: Final = 2**13
"""Bytes of temporaries of a stretch that nobody else sees: a part of the first cache. The gradient
of a softmax over 18816 rows of 196 cells takes 1.45 ms, and 1.75 with 32 times as many. Where a row
has more of them, rows are as many as if it had none."""

NEAR: Final = 3 * 2**13
"""Bytes of all that a stretch writes, or several of its kernels read, where they do read something
again: what the first cache holds beside the rest. With 2**18 bytes of what is written, whatever is
read, that gradient took 2.75 ms on one thread in place of 1.9, which PyTorch takes as well."""

ALIGNED: Final = 64
"""The bytes of a line, at which the memory of each temporary begins."""


@dataclass(frozen=True, slots=True)
class Joint:
    """A task that takes its points through several kernels; `lines` stand in its function."""

    name: str
    lines: tuple[str, ...]


def print_joint(
    program: Program,
    called_as: Program,
    orders: Orders,
    functions: Sequence[Function],
    group: Together,
) -> Joint:
    """The task of a group of kernels."""
    scope = CNames({each.name for each in functions} | {"begin", "end", "call", "n"})
    writer = _Writer(program, called_as, orders, scope)
    name = scope.fresh(f"{functions[group.first].name}_and_on")
    inner = [group.inner(kernel) for kernel in group.kernels(program)]
    written, own = list(group.written(program)), list(group.own(program))
    again = list(group.read_again(program))
    extents = [each for tensor, _ in own for each in program.operand(tensor).extents]
    writer.declare_integers([*inner, *(cells for _, cells in (*written, *again)), *extents])
    at, last, step = map(scope.fresh, ("at", "last", "step"))
    sizes = " + ".join(writer.size(tensor, cells) for tensor, cells in written)
    most = f"greatest({CACHED} / greatest({sizes}, 1), 1)"
    if again:
        sizes = " + ".join(writer.size(tensor, cells) for tensor, cells in (*written, *again))
        most = f"greatest({NEAR} / greatest({sizes}, 1), 1)"
    if own:
        near = scope.fresh("near")
        sizes = " + ".join(writer.size(tensor, cells) for tensor, cells in own)
        writer.lines += broken(f"const int64_t {near} = {NEAREST} / greatest({sizes}, 1);")
        most = f"least({most}, {near} > 0 ? {near} : end - begin)"
    writer.lines += broken(f"const int64_t {step} = least({most}, end - begin);")
    memory = writer.take_memory(own, step) if own else None
    writer.lines.append(f"for (int64_t {at} = begin; {at} < end; {at} += {step}) {{")
    writer.lines.append(f"    const int64_t {last} = least({at} + {step}, end);")
    if memory is not None:
        writer.place(own, at, step, memory)
    for count, function in zip(inner, functions[group.first : group.end], strict=True):
        each = writer.printer.poly(count).at(Level.MULTIPLICATIVE)
        ends = f"{at}, {last}" if count == 1 else f"{at} * {each}, {last} * {each}"
        writer.lines += broken(f"    {function.name}_task({ends}, call);")
    writer.lines.append("}")
    if memory is not None:
        writer.lines.append(f"free({memory.bytes});")
    return Joint(name, tuple(writer.lines))


@dataclass(frozen=True, slots=True)
class _Memory:
    """Variables: the memory for temporaries, and the tensors of the call with these in it."""

    bytes: str
    tensors: str


class _Writer(EntryScope):
    """Writes the lines of a task."""

    def size(self, tensor: str, cells: Poly) -> str:
        """The bytes of some cells of a tensor."""
        text = self.printer.poly(cells).at(Level.MULTIPLICATIVE)
        return f"{text} * (int64_t)sizeof({type_name(self.program.operand(tensor))})"

    def room(self, tensor: str, cells: Poly, step: str) -> str:
        """The bytes of a temporary for so many rows, up to the next line."""
        return f"({step} * {self.size(tensor, cells)} + {ALIGNED - 1}) / {ALIGNED} * {ALIGNED}"

    def take_memory(self, own: Sequence[tuple[str, Poly]], step: str) -> _Memory:
        """Memory for the temporaries, and a call with them there, in consecutive order."""
        integers = len(self.called_as.integers)
        integers += sum(operand.rank for operand in self.called_as.operands)
        names = ("memory", "own_tensors", "own_integers", "own_call")
        memory, tensors, numbers, changed = map(self.scope.fresh, names)
        sizes = " + ".join(self.room(tensor, cells, step) for tensor, cells in own)
        self.lines += broken(f"char *const {memory} = aligned_alloc({ALIGNED}, {sizes});")
        self.lines += [
            f"if (!{memory}) abort();",
            f"void *{tensors}[{len(self.called_as.operands)}];",
            f"int64_t {numbers}[{integers}];",
            f"memcpy({tensors}, call->tensors, sizeof {tensors});",
            f"memcpy({numbers}, n, sizeof {numbers});",
        ]
        for tensor, _ in own:
            self.write_consecutive(numbers, tensor)
        self.lines += [
            f"struct call {changed} = *call;",
            f"{changed}.tensors = {tensors}, {changed}.integers = {numbers};",
            f"call = &{changed};",
        ]
        return _Memory(memory, tensors)

    def place(self, own: Sequence[tuple[str, Poly]], at: str, step: str, memory: _Memory) -> None:
        """Let kernels find the temporaries of the rows from `at` on there."""
        operands = [operand.name for operand in self.called_as.operands]
        before: list[str] = []
        for tensor, cells in own:
            begin = " + ".join([f"(uintptr_t){memory.bytes}", *before])
            value = f"(void *)({begin} - {at} * {self.size(tensor, cells)})"
            place = f"{memory.tensors}[{operands.index(tensor)}]"
            self.lines += broken(f"    {place} = {value};")
            before.append(self.room(tensor, cells, step))
