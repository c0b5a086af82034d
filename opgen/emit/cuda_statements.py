"""Nodes of the loops as CUDA statements, and where in the grid a thread finds its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opgen.algebra.poly import Kind, Poly, symbol
from opgen.emit.expression import Printer
from opgen.emit.polynomial import Text
from opgen.emit.statements import Emitter
from opgen.ir import loops
from opgen.ir.loops import Axis, For
from opgen.ir.primitives import Level

INDEX = "index_t"
"""The type of indices: 32 bits where a launch proves that these are enough, else 64."""


@dataclass(frozen=True)
class CudaPrinter(Printer):
    """Prints expressions of a CUDA kernel; `wide` are the integers that may need 64 bits."""

    wide: set[str] = field(default_factory=set)

    def scalar(self, value: loops.Scalar) -> Text:
        """A number. Integers are computed with in 64 bits, wherever they come from."""
        text = super().scalar(value)
        if isinstance(value, loops.Integer) and not value.value.is_constant:
            return Text(f"(int64_t){text.at(Level.UNARY)}", Level.UNARY)
        return text

    def is_wide(self, value: Poly) -> bool:
        """Whether an integer was read from memory, where it may be anything."""
        return not self.wide.isdisjoint(value.symbols) or any(
            atom.kind is Kind.LOAD for atom in value.all_atoms()
        )


@dataclass
class CudaEmitter(Emitter):
    """Prints nodes as statements of one thread."""

    printer: CudaPrinter

    def integer_type(self, *values: Poly) -> str:
        """The type of a variable for an integer that is, or lies between, these."""
        return "int64_t" if any(map(self.printer.is_wide, values)) else INDEX

    def define(self, name: str, value: Poly) -> None:
        super().define(name, value)
        if self.printer.is_wide(value):
            self.printer.wide.add(name)

    def loop(self, node: For) -> None:
        if any(map(self.printer.is_wide, (*node.lower, *node.upper))):
            self.printer.wide.add(node.name)
        super().loop(node)

    # ------------------------------------------------------------ points
    def grid(self, axes: Sequence[Axis], magic: Sequence[str]) -> CudaEmitter:
        """Loops over the points of this thread; gives the emitter of what is inside of them.

        Threads are neighbours along x in the last axis and along y in the one before; all others
        together are z. A grid may be smaller than its axes, hence loops. `magic` are the
        parameters with which `quotient` divides, for all of the z axes but the first.
        """
        names = [self.scope.fresh(axis.name) for axis in axes]
        extents = [self.printer.poly(axis.extent) for axis in axes]
        for axis, name in zip(axes, names, strict=True):
            self.printer.names.symbols[axis.name] = name
            self.printer.bounded.add((symbol(axis.name), axis.extent))
        if not axes:
            names, extents = [self.scope.fresh("point")], [Text("1")]
        emitter: CudaEmitter = self
        if len(axes) > 2:
            emitter = emitter.outer(names[:-2], extents[:-2], magic)
        inner = list(zip(names, extents, strict=True))[-2:]
        for letter, (name, extent) in zip("yx"[-len(inner) :], inner, strict=True):
            emitter.write(f"EACH({letter}, {name}, {extent.text}) {{")
            emitter = _inside(emitter)
        return emitter

    def outer(
        self, names: Sequence[str], extents: Sequence[Text], magic: Sequence[str]
    ) -> CudaEmitter:
        """The loop over the z axes."""
        if len(names) == 1:
            self.write(f"EACH(z, {names[0]}, {extents[0].text}) {{")
            return _inside(self)
        total = " * ".join(
            extent.at(Level.MULTIPLICATIVE if at == 0 else Level.UNARY)
            for at, extent in enumerate(extents)
        )
        rest = self.scope.fresh("outer")
        self.write(f"EACH(z, {rest}, {total}) {{")
        emitter = _inside(self)
        for at in reversed(range(1, len(names))):
            extent = extents[at]
            above = names[0] if at == 1 else emitter.scope.fresh("outer")
            emitter.write(
                f"const {INDEX} {above} = quotient({rest}, {extent.text}, {magic[at - 1]});"
            )
            emitter.write(
                f"const {INDEX} {names[at]} = {rest} - {above} * {extent.at(Level.UNARY)};"
            )
            rest = above
        return emitter

    def close(self, outermost: CudaEmitter) -> None:
        """Close the loops that were opened since."""
        for depth in range(self.depth - 1, outermost.depth - 1, -1):
            self.lines.append("    " * depth + "}")


def _inside(emitter: CudaEmitter) -> CudaEmitter:
    """The emitter one level further in; names stay known."""
    inner = emitter.inner()
    assert isinstance(inner, CudaEmitter)
    return inner
