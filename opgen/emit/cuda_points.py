"""Where in the grid a thread finds its points, and the sums that a team of threads adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opgen.algebra.poly import symbol
from opgen.emit.cuda_printer import INDEX
from opgen.emit.cuda_statements import CudaStatements, inside
from opgen.emit.polynomial import Text
from opgen.ir.loops import Axis, Start, Store
from opgen.ir.primitives import Level


@dataclass
class CudaEmitter(CudaStatements):
    """Prints the body of a kernel."""

    def team(self, axes: Sequence[Axis], magic: Sequence[str]) -> None:
        """The whole body of a kernel whose cells are sums that a team of threads adds up."""
        start, *terms, store = self.kernel.body
        assert isinstance(start, Start) and isinstance(store, Store)
        names = [self.scope.fresh(axis.name) for axis in axes]
        extents = [self.printer.poly(axis.extent) for axis in axes]
        for axis, name in zip(axes, names, strict=True):
            self.printer.names.symbols[axis.name] = name
            self.printer.bounded.add((symbol(axis.name), axis.extent))
        count = product(extents)
        first, point = self.scope.fresh("first"), self.scope.fresh("point")
        kind = self.printer.types.of_accumulator(start.tensor, start.accumulator, self.kernel.body)
        partial = self.scope.fresh("partial")
        self.write(f"__shared__ {kind.value} {partial}[THREADS];")
        head = f"{INDEX} {first} = blockIdx.x * ({INDEX})blockDim.z"
        step = f"gridDim.x * ({INDEX})blockDim.z"
        self.write(f"for ({head}; {first} < {count}; {first} += {step}) {{")
        inner = inside(self)
        inner.write(f"const {INDEX} {point} = {first} + threadIdx.z;")
        inner.digits_of(point, names, extents, magic)
        inner.start(start)
        total = inner.printer.names.accumulators[start.accumulator]
        if start.value is not None:
            inner.write(f"if (MEMBER != 0) {total} = 0;")
        inner.block(f"if ({point} < {count})", terms)
        inner.write(f"{total} = team_sum({total}, {partial});")
        inner.block(f"if ({point} < {count} && MEMBER == 0)", (store,))
        self.write("}")

    # ------------------------------------------------------------ points
    def grid(self, axes: Sequence[Axis], magic: Sequence[str]) -> CudaEmitter:
        """Loops over the points of this thread; gives the emitter of what is inside of them.

        Threads are neighbours along x in the last axis and along y in the one before; all others
        together are z. A grid may be smaller than its axes, hence loops. `magic` are the
        parameters with which `quotient` divides, for all of the z axes but the first. The last
        axes count stretches where the kernel has any, but for axes beside its row.
        """
        names = [self.scope.fresh(axis.name) for axis in axes]
        extents = [self.printer.poly(axis.extent) for axis in axes]
        for axis, name in zip(axes, names, strict=True):
            self.printer.names.symbols[axis.name] = name
            self.printer.bounded.add((symbol(axis.name), axis.extent))
        ends = ((-1, "LANES"), (-2 - self.kernel.beside, "ROWS"))
        for at, count in ends[: len(self.kernel.stretched)]:
            extents[at] = Text(f"parts({extents[at].text}, {count})")
        if not axes:
            names, extents = [self.scope.fresh("point")], [Text("1")]
        emitter: CudaEmitter = self
        if len(axes) > 2:
            emitter = emitter.outer(names[:-2], extents[:-2], magic)
        inner = list(zip(names, extents, strict=True))[-2:]
        for letter, (name, extent) in zip("yx"[-len(inner) :], inner, strict=True):
            emitter.write(f"EACH({letter}, {name}, {extent.text}) {{")
            emitter = inside(emitter)
        return emitter

    def outer(
        self, names: Sequence[str], extents: Sequence[Text], magic: Sequence[str]
    ) -> CudaEmitter:
        """The loop over the z axes."""
        if len(names) == 1:
            self.write(f"EACH(z, {names[0]}, {extents[0].text}) {{")
            return inside(self)
        point = self.scope.fresh("outer")
        self.write(f"EACH(z, {point}, {product(extents)}) {{")
        emitter = inside(self)
        emitter.digits_of(point, names, extents, magic)
        return emitter

    def digits_of(
        self, point: str, names: Sequence[str], extents: Sequence[Text], magic: Sequence[str]
    ) -> None:
        """Name the digits of a number, the last one fastest; `magic` is for all but the first."""
        rest = point
        for at in reversed(range(1, len(names))):
            extent = extents[at]
            above = names[0] if at == 1 else self.scope.fresh("outer")
            self.write(f"const {INDEX} {above} = quotient({rest}, {extent.text}, {magic[at - 1]});")
            self.write(f"const {INDEX} {names[at]} = {rest} - {above} * {extent.at(Level.UNARY)};")
            rest = above
        if len(names) == 1:
            self.write(f"const {INDEX} {names[0]} = {rest};")

    def close(self, outermost: CudaEmitter) -> None:
        """Close the loops that were opened since."""
        for depth in range(self.depth - 1, outermost.depth - 1, -1):
            self.lines.append("    " * depth + "}")


def product(extents: Sequence[Text]) -> str:
    """The product of extents, 1 for none."""
    factors = (
        extent.at(Level.MULTIPLICATIVE if at == 0 else Level.UNARY)
        for at, extent in enumerate(extents)
    )
    return " * ".join(factors) or "1"
