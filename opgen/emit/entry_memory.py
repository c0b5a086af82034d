"""The memory of a call: of results, of temporaries that no call passes, of copies of inputs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Final

from opgen.algebra.poly import Poly, maximum, poly
from opgen.emit.c_layout import broken
from opgen.emit.entry_helpers import copied_inputs
from opgen.emit.entry_scope import EntryScope
from opgen.emit.expression import type_name
from opgen.emit.joint import ALIGNED
from opgen.emit.streams import stored_beside, stores_lines
from opgen.ir.loops import Kernel
from opgen.ir.primitives import Level
from opgen.ir.work import points, work

_SMALL: Final = 4
"""How many times as large as an input all results must be for a copy of it to be worth its time,"""

_USES: Final = 16
"""or how many terms there must be for each of its elements: a filter of 7x7 has many."""


@dataclass
class MemoryWriter(EntryScope):
    """Writes the lines that make memory ready; `written` and others tell what a call has."""

    streams: dict[str, str] = field(default_factory=dict)  # whether results go past the caches,
    vectors: dict[str, str] = field(default_factory=dict)  # and whether vectors of them do
    unready: dict[str, str] = field(default_factory=dict)  # what makes memory ready if need be
    arguments: str = "arguments"  # what `call` points to
    own: tuple[str, ...] = ()  # temporaries that no call passes
    changed: tuple[str, str] | None = None  # tensors and integers of a call that may be changed

    def written(self) -> Iterator[tuple[str, Poly]]:
        """The tensors that kernels write, with the number of their cells."""
        for name in dict.fromkeys(kernel.written for kernel in self.program.kernels):
            yield name, self.cells(name)

    def cells(self, tensor: str) -> Poly:
        """How many cells a tensor has."""
        return functools.reduce(operator.mul, self.program.operand(tensor).extents, poly(1))

    def announce_outputs(self, streamed: Set[str], own: Set[str]) -> None:
        """Make memory ready; for tensors in `streamed` remember whether to go past the caches.

        Not that of tensors in `own`, for which tasks have memory, if kernels go together.
        """
        for name, cells in self.written():
            size = self.printer.poly(cells).at(Level.MULTIPLICATIVE)
            kind = type_name(self.program.operand(name))
            given = f"{self.tensor(name)}, {size} * sizeof({kind})"
            text = f"will_be_written({given});"
            moved = self.moved_in_lines(name)
            if moved:
                text = f"will_be_stored({given}, {moved});"
            if name in map(self.beside, self.program.kernels):
                past = self.vectors[name] = self.scope.fresh(f"{name}_past")
                text = f"const int {past} = will_be_stored({given}, {self.moved()});"
                self.lines += broken(text)
                is_large = f" && {size} * (int64_t)sizeof({kind}) >= largest_cache"
                text = f"{past}{'' if moved else is_large};"
            if name in streamed:
                self.streams[name] = self.scope.fresh(f"{name}_streams")
                text = f"const int {self.streams[name]} = {text}"
            if name in own:
                self.unready[name] = text
            elif name in streamed or name not in self.vectors:
                self.lines += broken(text)

    def beside(self, kernel: Kernel) -> str | None:
        """The tensor that a kernel stores beside its sums."""
        return stored_beside(kernel, self.program)

    def moved_in_lines(self, written: str) -> str:
        """The bytes of all tensors of a call whose kernel may store vectors of one as lines."""
        kernels = (each for each in self.program.kernels if each.written == written)
        return self.moved() if any(stores_lines(each, self.program) for each in kernels) else ""

    def moved(self) -> str:
        """The bytes of all tensors of a call."""
        texts = []
        for operand in self.program.operands:
            cells = self.printer.poly(self.cells(operand.name)).at(Level.MULTIPLICATIVE)
            texts.append(f"{cells} * sizeof({type_name(operand)})")
        return " + ".join(texts)

    def change_call(self) -> tuple[str, str]:
        """Let the lines from here on have a copy of the call; its tensors, and its integers."""
        if self.changed is not None:
            return self.changed
        operands = self.called_as.operands
        ranks = [operand.rank for operand in operands if operand.name not in self.own]
        integers = len(self.called_as.integers) + sum(ranks)
        all_integers = integers + sum(operand.rank for operand in operands[len(ranks) :])
        tensors, own, changed = map(self.scope.fresh, ("own_tensors", "own_integers", "own_call"))
        self.lines += [
            f"void *{tensors}[{len(operands)}];",
            f"int64_t {own}[{all_integers}];",
            f"memcpy({tensors}, call->tensors, {len(ranks)} * sizeof *{tensors});",
            f"memcpy({own}, n, {integers} * sizeof *{own});",
            f"struct call {changed} = {{{tensors}, {own}, numbers, fault, 0}};",
            f"call = &{changed}, n = {own};",
        ]
        self.arguments, self.changed = changed, (tensors, own)
        return self.changed

    def take_memory(self) -> list[str]:
        """Memory for temporaries that no call passes, in consecutive order; its names."""
        if not self.own:
            return []
        tensors, integers = self.change_call()
        operands = [operand.name for operand in self.called_as.operands]
        memory = []
        for tensor in self.own:
            name = self.scope.fresh(f"{tensor}_memory")
            cells = self.write_consecutive(integers, tensor)
            size = f"greatest({cells}, 1) * sizeof({type_name(self.program.operand(tensor))})"
            room = f"({size} + {ALIGNED - 1}) / {ALIGNED} * {ALIGNED}"
            self.lines += broken(f"void *const {name} = aligned_alloc({ALIGNED}, {room});")
            self.lines += [
                f"if (!{name}) abort();",
                f"{tensors}[{operands.index(tensor)}] = {name};",
            ]
            memory.append(name)
        return memory

    def copy_inputs(self) -> list[str]:
        """Copies of small inputs whose first dim is read as a row; their names."""
        copied = copied_inputs(self.program, self.orders)
        if not copied:
            return []
        operands = [operand.name for operand in self.called_as.operands]
        tensors, own = self.change_call()
        largest = " + ".join(self.printer.poly(cells).text for _, cells in self.written())
        names = []
        known = self.program.integers
        terms = maximum(*(points(each) * work(each, known) for each in self.program.kernels))
        most = f"greatest(({largest}) / {_SMALL}, ({self.printer.poly(terms).text}) / {_USES})"
        for name in copied:
            copy, sizes = self.scope.fresh(f"{name}_copy"), self.scope.fresh(f"{name}_sizes")
            places = self.scope.fresh(f"{name}_places")
            self.declare_array(f"const int64_t {sizes}", self.extents(name))
            self.declare_array(f"const int {places}", map(str, self.places(name)))
            arguments = f"&{tensors}[{operands.index(name)}], {own}, {len(self.extents(name))}"
            arguments += f", {sizes}, {places}, {most}"
            self.lines += broken(f"void *const {copy} = consecutive({arguments});")
            names.append(copy)
        return names
