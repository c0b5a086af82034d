"""The naive interpreter of the loops: the definition of what a `loops.Program` means.

Elements are Python numbers, integers or doubles; indices are exact integers. It counts what it
executes, so that a test can tell a loop that enumerates a fibre from one that tries every point,
and asserts that no cell outside of a tensor and none that was not written is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from opgen.algebra.poly import Poly
from opgen.ir import cells, loops
from opgen.ir.binding import Array
from opgen.ir.cells import Cells
from opgen.ir.functions import Number
from opgen.ir.loops import Kernel, Node, Program
from opgen.ir.notation import DType, Reducer
from opgen.ir.primitives import PRIMITIVES

Environment = dict[str, int]

LANES: Final = 16
"""How many cells a block has: that of the vectors of a processor is another number."""


@dataclass
class Counts:
    """What a run executed: terms that were joined, and tests of whether to join one that failed."""

    terms: int = 0
    rejected: int = 0


@dataclass
class FaultError(IndexError):
    """An index that is checked at run time was outside."""

    fault: loops.Fault
    index: int
    extent: int


def run(
    program: Program,
    tensors: Mapping[str, Array],
    integers: Mapping[str, int],
    numbers: Mapping[str, float] | None = None,
    storage: Mapping[str, npt.DTypeLike] | None = None,
) -> tuple[dict[str, Cells], Counts]:
    """Every tensor after all kernels, and what was executed.

    `tensors` are the inputs; `storage` gives the element types of tensors that are written, where
    the identity of max or min depends on them (float64 unless one is declared as an integer).
    """
    given = {name: cells.from_array(array) for name, array in tensors.items()}
    given |= {table.name: cells.from_table(table) for table in program.tables}
    runner = _Runner(program, given, dict(numbers or {}), dict(storage or {}))
    for kernel in program.kernels:
        runner.kernel(kernel, dict(integers))
    return runner.tensors, runner.counts


@dataclass
class _Accumulator:
    value: Number
    best: Number | None = None
    order: tuple[int, ...] = ()


@dataclass
class _Runner:
    program: Program
    tensors: dict[str, Cells]
    numbers: dict[str, float]
    storage: dict[str, npt.DTypeLike]
    counts: Counts = field(default_factory=Counts)
    accumulators: dict[tuple[str, int, int], _Accumulator] = field(default_factory=dict)
    row: loops.Row | None = None
    group: str = ""
    lane: int = 0

    def kernel(self, kernel: Kernel, values: Environment) -> None:
        """All points of a kernel, in row-major order."""
        for written in kernel.all_written:
            if written not in self.tensors:
                operand = self.program.operand(written)
                shape = tuple(extent.evaluate(values) for extent in operand.extents)
                self.tensors[written] = Cells(shape, operand.dtype.is_integer)
        for define in kernel.prologue:
            try:
                values[define.name] = self.integer(define.value, values)
            except (ZeroDivisionError, ValueError):
                values[define.name] = 0  # it has no meaning in this call, and is not used
        if kernel.only is not None and self.is_so(kernel.only, values) != kernel.only.holds:
            return
        if kernel.unless is not None and self.is_so(kernel.unless, values):
            return
        ranges = [range(self.integer(axis.extent, values)) for axis in kernel.axes]
        groups, stretches = (self.stretches(row, values) for row in (kernel.group, kernel.row))
        self.row = kernel.row
        self.group = kernel.group.axis.name if kernel.group is not None else ""
        for local in kernel.zeroed:
            cells = self.tensors[local] = self.local(local)
            cells.values = dict.fromkeys(cells.all_cells(), 0)
        for point, group, stretch in itertools.product(
            itertools.product(*ranges), groups, stretches
        ):
            names = (axis.name for axis in kernel.axes)
            at = dict(zip(names, point, strict=True))
            for local in set(kernel.local) - set(kernel.zeroed):
                self.tensors[local] = self.local(local)
            self.nodes(kernel.body, {**values, **at, **group, **stretch})

    def local(self, name: str) -> Cells:
        """A tensor of a point's own, of which no cell is written."""
        extents = self.program.operand(name).extents
        return Cells(tuple(extent.constant for extent in extents), False)

    def is_so(
        self,
        condition: loops.Finite | loops.Blocks | loops.Short | loops.Planes | loops.Fitting,
        values: Environment,
    ) -> bool:
        """What a kernel is conditional on. Here all tensors are consecutive."""
        match condition:
            case loops.Finite(tensor=tensor):
                return self.is_finite(tensor)
            case loops.Blocks(extent=extent):
                return self.integer(extent, values) >= LANES
            case loops.Short(extent=extent, most=most):
                return self.integer(extent, values) <= most
            case loops.Fitting(stretches=stretches, extent=extent, most=most):
                own, other = (self.integer(each, values) for each in (stretches, extent))
                return own == 1 and other <= most
            case loops.Planes():
                return True
            case unexpected:
                assert_never(unexpected)

    def is_finite(self, tensor: str) -> bool:
        """Whether all elements of an input are."""
        cells = self.tensors[tensor]
        places = itertools.product(*map(range, cells.shape))
        return all(math.isfinite(cells[place]) for place in places)

    def place(self, accumulator: str, values: Environment) -> tuple[str, int, int]:
        """The accumulator of this lane of this row."""
        return accumulator, self.lane, values.get(self.group, 0)

    def stretches(self, row: loops.Row | None, values: Environment) -> list[Environment]:
        """The ends of every stretch of a row, by name."""
        if row is None:
            return [{}]
        extent = self.integer(row.axis.extent, values)
        ends = [min(first + row.width, extent) for first in range(0, extent, row.width)]
        if len(ends) > 1 and 0 < extent % row.width < row.least:
            del ends[-2]
        around = dict(zip(row.around or (), (0, extent - 1), strict=False))
        return [
            {row.first: first, row.last: end - 1, **around}
            for first, end in zip((0, *ends), ends, strict=False)
        ]

    def lanes(self, node: loops.Lanes, values: Environment) -> None:
        """The values of the row that all bounds allow."""
        assert self.row is not None
        lower = [values[self.row.first], *(self.integer(bound, values) for bound in node.lower)]
        upper = [values[self.row.last], *(self.integer(bound, values) for bound in node.upper)]
        for self.lane in range(max(lower), min(upper) + 1):
            self.nodes(node.body, {**values, self.row.axis.name: self.lane})
        self.lane = 0

    # ------------------------------------------------------------ nodes
    def nodes(self, nodes: tuple[Node, ...], values: Environment) -> None:
        """Nodes of one scope."""
        for node in nodes:
            self.node(node, values)

    def node(self, node: Node, values: Environment) -> None:
        match node:
            case loops.Define(name=name, value=value):
                values[name] = self.integer(value, values)
            case loops.For(name=name, lower=lower, upper=upper, body=body):
                first = max(self.integer(bound, values) for bound in lower)
                last = min(self.integer(bound, values) for bound in upper)
                for number in range(first, last + 1):
                    self.nodes(body, {**values, name: number})
            case loops.Lanes():
                self.lanes(node, values)
            case loops.If(conditions=conditions, body=body, test=test):
                holds = all(
                    condition.holds(values, lambda name, at: self.load(name, at))
                    for condition in conditions
                )
                if holds and self.test(test, values):
                    self.nodes(body, dict(values))
                else:
                    self.counts.rejected += 1
            case loops.Start(accumulator=name, tensor=tensor, reducer=reducer, value=value):
                initial = (
                    self.identity(tensor, reducer) if value is None else self.scalar(value, values)
                )
                self.accumulators[self.place(name, values)] = _Accumulator(initial)
            case loops.Accumulate():
                self.accumulate(node, values)
            case loops.Store(tensor=tensor, indices=indices, value=value):
                self.tensors[tensor][self.cell(tensor, indices, values)] = self.scalar(
                    value, values
                )
            case loops.AtomicAdd(tensor=tensor, indices=indices, value=value, reducer=reducer):
                cell = self.cell(tensor, indices, values)
                self.counts.terms += 1
                old, term = self.tensors[tensor][cell], self.scalar(value, values)
                if reducer is Reducer.ADD:
                    self.tensors[tensor][cell] = old + term
                elif term != term or (term > old if reducer is Reducer.MAX else term < old):
                    self.tensors[tensor][cell] = term
            case unexpected:
                assert_never(unexpected)

    def accumulate(self, node: loops.Accumulate, values: Environment) -> None:
        accumulator = self.accumulators[self.place(node.accumulator, values)]
        present = self.test(node.present, values)
        self.counts.terms += present
        self.counts.rejected += not present
        match node.reducer:
            case Reducer.ASSIGN:
                accumulator.value = self.scalar(node.value, values) if present else 0
            case Reducer.MULTIPLY:
                factor = self.scalar(node.value, values) if present else 0
                accumulator.value = accumulator.value * factor
            case _ if not present:
                pass
            case Reducer.ADD:
                accumulator.value = accumulator.value + self.scalar(node.value, values)
            case Reducer.MAX | Reducer.MIN:
                term = self.scalar(node.value, values)
                if _wins(node.reducer, term, accumulator.value):
                    accumulator.value = term
            case Reducer.ARGMAX | Reducer.ARGMIN:
                self.join_argument(node, accumulator, values)
            case unexpected:
                assert_never(unexpected)

    def join_argument(
        self, node: loops.Accumulate, accumulator: _Accumulator, values: Environment
    ) -> None:
        term, best = self.scalar(node.value, values), accumulator.best
        order = tuple(self.integer(value, values) for value in node.order)
        better = best is None or _wins(node.reducer, term, best)
        if best is not None and not better and not _wins(node.reducer, best, term):
            better = order < accumulator.order
        if better:
            assert node.position is not None
            accumulator.best, accumulator.order = term, order
            accumulator.value = self.integer(node.position, values)

    def identity(self, tensor: str, reducer: Reducer) -> Number:
        """What a cell holds before anything has joined it."""
        workspaces = {workspace.name: workspace.output for workspace in self.program.workspaces}
        declared = workspaces.get(tensor, tensor)
        return cells.identity(
            reducer, np.dtype(self.storage.get(declared, self._declared(declared)))
        )

    def _declared(self, tensor: str) -> npt.DTypeLike:
        operand = self.program.operand(tensor)
        if not operand.dtype.is_integer:
            return np.float64
        return np.int64 if operand.widened else _INTEGERS[operand.dtype]

    # ------------------------------------------------------------ values
    def integer(self, value: Poly, values: Environment) -> int:
        """An integer; loads outside of their tensor and divisions by what is not positive are 0."""
        return value.evaluate(values, self.load)

    def load(self, name: str, at: tuple[int, ...]) -> int:
        tensor = self.tensors[name]
        inside = all(0 <= i < n for i, n in zip(at, tensor.shape, strict=True))
        return int(tensor[at]) if inside else 0

    def cell(self, name: str, indices: tuple[Poly, ...], values: Environment) -> tuple[int, ...]:
        """The place of a cell; an assertion that it exists, which C does not make."""
        at = tuple(self.integer(index, values) for index in indices)
        shape = self.tensors[name].shape
        assert all(0 <= i < n for i, n in zip(at, shape, strict=True)), (name, at, shape)
        return at

    def scalar(self, value: loops.Scalar, values: Environment) -> Number:
        """A number."""
        match value:
            case loops.Number(value=number):
                return number
            case loops.Argument(name=name):
                return self.numbers[name]
            case loops.Integer(value=number):
                return self.integer(number, values)
            case loops.Load(tensor=tensor, indices=indices):
                cell = self.cell(tensor, indices, values)
                assert cell in self.tensors[tensor], f"{tensor}{list(cell)} was not written"
                return self.tensors[tensor][cell]
            case loops.Call(primitive=name, arguments=arguments):
                row = PRIMITIVES[name]
                numbers = [self.scalar(argument, values) for argument in arguments]
                if row.needs_float:
                    numbers = [float(number) for number in numbers]
                return row.function(*numbers)
            case loops.Choose(test=test, then=then, otherwise=otherwise):
                return self.scalar(then if self.test(test, values) else otherwise, values)
            case loops.Result(accumulator=name):
                return self.accumulators[self.place(name, values)].value
            case unexpected:
                assert_never(unexpected)

    def test(self, test: loops.Test, values: Environment) -> bool:
        """A truth value. Raises FaultError where a checked index is outside."""
        match test:
            case loops.Always():
                return True
            case loops.Inside(index=index, extent=extent, fault=fault):
                at, end = self.integer(index, values), self.integer(extent, values)
                if fault is not None and not 0 <= at < end:
                    raise FaultError(self.program.faults[fault - 1], at, end)
                return 0 <= at < end
            case loops.Nonzero(value=value):
                return bool(self.scalar(value, values) != 0)
            case loops.All(tests=tests):
                return all(self.test(each, values) for each in tests)
            case loops.Any(tests=tests):
                return any(self.test(each, values) for each in tests)
            case loops.Either(condition=condition, then=then, otherwise=otherwise):
                return self.test(then if self.test(condition, values) else otherwise, values)
            case unexpected:
                assert_never(unexpected)


def _wins(reducer: Reducer, term: Number, best: Number) -> bool:
    """Whether a term takes the place of another: NaN before numbers, then the extreme."""
    if term != term or best != best:
        return best == best
    return term > best if reducer in (Reducer.MAX, Reducer.ARGMAX) else term < best


_INTEGERS: Final[dict[DType, npt.DTypeLike]] = {
    DType.INT: np.int64,
    DType.U8: np.uint8,
    DType.I8: np.int8,
    DType.I16: np.int16,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.BOOL: np.bool_,
}
