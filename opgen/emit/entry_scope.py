"""What a call of a C entry knows: its tensors, their strides, and the integers of the call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opgen.algebra.poly import Poly
from opgen.emit.c_layout import broken, wrapped
from opgen.emit.entry_helpers import Orders
from opgen.emit.expression import Names, Printer
from opgen.emit.names import CNames
from opgen.emit.types import Types
from opgen.ir.loops import Program
from opgen.ir.primitives import Level


@dataclass
class EntryScope:
    """The lines of an entry, and how they spell what a call passes.

    It passes the tensors and integers of `called_as`; the kernels are those of `program`, which may
    be for particular values, and has the dims of tensors in the order that `orders` says.
    """

    program: Program
    called_as: Program
    orders: Orders
    scope: CNames
    lines: list[str] = field(default_factory=list)
    symbols: dict[str, str] = field(default_factory=dict)

    @property
    def printer(self) -> Printer:
        """Prints what depends on the integers of the call."""
        return Printer(self.program, Types(self.program), Names(symbols=self.symbols))

    def tensor(self, name: str) -> str:
        """The address of a tensor."""
        operands = [operand.name for operand in self.called_as.operands]
        return f"call->tensors[{operands.index(name)}]"

    def places(self, tensor: str) -> tuple[int, ...]:
        """Where the strides of a tensor are among the integers of the call."""
        return stride_places(self.called_as, self.orders, tensor)

    def stride(self, tensor: str, axis: int) -> str:
        """The stride of a dim."""
        return f"n[{self.places(tensor)[axis]}]"

    def strides(self, tensor: str) -> list[str]:
        """The strides of all dims."""
        return [f"n[{place}]" for place in self.places(tensor)]

    def extents(self, tensor: str) -> list[str]:
        """The extents of all dims."""
        return [self.printer.poly(each).text for each in self.program.operand(tensor).extents]

    def declare_integers(self, values: Sequence[Poly]) -> None:
        """Variables for the integers of the call that values depend on."""
        used = frozenset[str]().union(*(value.symbols for value in values))
        for name in self.program.integers:
            if name in used:
                self.symbols[name] = self.scope.fresh(name)
        place = self.called_as.integers.index
        parts = [f"{local} = n[{place(name)}]" for name, local in self.symbols.items()]
        if parts:
            declared = ",\n    ".join(wrapped(parts, 76))
            self.lines += f"const int64_t {declared};".split("\n")

    def write_consecutive(self, integers: str, tensor: str) -> str:
        """Write the strides of a tensor in consecutive order among these integers; its cells."""
        cells = "1"
        extents = self.program.operand(tensor).extents
        for place, extent in reversed(list(zip(self.places(tensor), extents, strict=True))):
            self.lines += broken(f"{integers}[{place}] = {cells};")
            cells = f"{integers}[{place}] * {self.printer.poly(extent).at(Level.UNARY)}"
        return cells

    def declare_array(self, declared: str, values: Iterable[str]) -> None:
        """Write an array with these values."""
        self.lines += broken(f"{declared}[] = {{{', '.join(values)}}};")


def stride_places(program: Program, orders: Orders, tensor: str) -> tuple[int, ...]:
    """Where the strides of a tensor are among the integers of a call."""
    place = len(program.integers)
    for operand in program.operands:
        if operand.name == tensor:
            return tuple(place + axis for axis in orders.get(tensor, range(operand.rank)))
        place += operand.rank
    raise KeyError(tensor)
