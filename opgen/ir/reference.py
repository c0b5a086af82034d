"""The naive interpreter of the notation: the definition of what an op means.

Clear, never optimised. Everything else in opgen is right if it agrees with this file; this file is
right if it agrees with loops written by hand and with PyTorch, see its tests.

Numbers

* Elements are Python numbers: integers, floats, or fractions in an exact call. Floats are computed
  in double precision, or rounded to single after every operation where no tensor of the call is
  wider than 32 bits. Integers wrap around at 64 bits; integers of indices never do.
* An operation with one real operand, or one that `needs_float`, makes all its operands real.
* In an exact call only functions that leave the rationals are rounded, to the nearest double, and
  the result counts as that rational. Identities such as the one between a tangent and its adjoint
  then hold exactly, whatever functions are involved.
* A tensor that is written holds the wide numbers until the end of the op: temporaries are never
  narrowed, outputs are converted once (floats are rounded, integers wrap around, bool is != 0).

Absence

* `None` is the absent value; `primitives.Absence` says which operations pass it on.
* An access outside under ZERO or DROP is not made at all, so that its other indices do not matter;
  the same then holds for FILL.
* In a product the other factors of an absent one are not evaluated, so they may be outside of their
  tensors there.

Order

* Statements run one after the other, points of a statement in the lexicographic order of its
  iterators. A point is left out if any guard fails, so a guard may load an integer outside of its
  tensor where another one fails. Where a write is dropped the body is not evaluated.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import assert_never

import numpy.typing as npt

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly
from opgen.ir.binding import (
    Array,
    AttributeValue,
    Binding,
    Domain,
    bind,
    input_array,
    is_integer,
    shape_of,
)
from opgen.ir.cells import Cell, Cells, from_array, from_table, identity, to_array, wrapped
from opgen.ir.functions import Number
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Index,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Value,
)
from opgen.ir.primitives import PRIMITIVES, Absence, Primitive

Point = Mapping[str, int]
"""The value of every symbol at one point: sizes, lets, attributes and iterators."""

Trace = Callable[[int, Point, bool], None]
"""Called for every point whose guards hold and whose target cell exists.

With the number of the statement, the point, and whether the body is present.
"""


class IllDefinedError(RuntimeError):
    """The op has no meaning: a cell is assigned after it was written, or read before that."""


def evaluate(
    op: Op,
    sizes: Mapping[str, int],
    tensors: Mapping[str, Array],
    attributes: Mapping[str, AttributeValue],
    *,
    dtype: npt.DTypeLike | None = None,
    trace: Trace | None = None,
) -> dict[str, Array]:
    """The outputs of an op by name.

    `sizes` holds every size (lets are computed if they are not given), with leading batch dims
    flattened to the one size `...`. Optional inputs may be missing. `dtype` is the type of
    undeclared tensors where no input shows it. Raises IndexError where an index without a mode, or
    outside of the range of its mode, leaves its tensor, and IllDefinedError.
    """
    interpreter = Interpreter(op, bind(op, sizes, tensors, attributes, dtype), tensors)
    for number, statement in enumerate(op.statements):
        interpreter.execute(number, statement, trace)
    return {
        tensor.name: to_array(
            interpreter.cells[tensor.name], interpreter.binding.storage[tensor.name]
        )
        for tensor in op.outputs
    }


class Interpreter:
    """The state of one evaluation: the cells of every tensor."""

    def __init__(self, op: Op, binding: Binding, tensors: Mapping[str, Array]) -> None:
        self.op = op
        self.binding = binding
        self.cells: dict[str, Cells] = {table.name: from_table(table) for table in op.tables}
        self._best: dict[tuple[str, Cell], Number] = {}  # argmax, argmin: value at the position
        self._assigned: set[str] = set()  # tensors whose cells no reducer starts
        for tensor in op.inputs:
            self.cells[tensor.name] = from_array(input_array(op, tensor, tensors, binding))
        for tensor in (*op.outputs, *op.temporaries):
            self._start(tensor.name)

    def _start(self, name: str) -> None:
        reducers = [s.reducer for s in self.op.statements if s.target.tensor == name]
        assert reducers, f"'{name}' is never written"
        shape = shape_of(self.op, name, self.binding.symbols)
        if min(shape, default=0) < 0:
            raise ValueError(f"{self.op.name}: '{name}' has negative shape {shape}")
        dtype = self.binding.storage[name]
        self.cells[name] = Cells(shape, is_integer(dtype), identity(reducers[0], dtype))
        if all(reducer is Reducer.ASSIGN for reducer in reducers):
            self._assigned.add(name)

    # ------------------------------------------------------------------ statements
    def execute(self, number: int, statement: Statement, trace: Trace | None = None) -> None:
        """Run one statement over its box."""
        names = [iterator.name for iterator in statement.iterators]
        symbols = self.binding.symbols
        ranges = [
            range(self._integer(iterator.extent, symbols)) for iterator in statement.iterators
        ]
        for values in itertools.product(*ranges):
            point = {**symbols, **dict(zip(names, values, strict=True))}
            if not self._guarded(statement.guards, point):
                continue
            cell = self._cell(statement.target, point)
            if cell is None:
                continue
            body = self.expression(statement.body, point)
            if trace is not None:
                trace(number, point, body is not None)
            self._join(statement, cell, body, point)

    def _guarded(self, guards: tuple[Condition, ...], point: Point) -> bool:
        """Whether all guards hold; one that cannot be evaluated counts only if no other fails."""
        fault: Exception | None = None
        for guard in guards:
            try:
                if not guard.holds(point, self._load):
                    return False
            except (IndexError, IllDefinedError) as error:
                fault = error
        if fault is not None:
            raise fault
        return True

    def _join(self, statement: Statement, cell: Cell, body: Number | None, point: Point) -> None:
        """Join a body to the cell, by the reducer's rule for absent ones too."""
        name, cells = statement.target.tensor, self.cells[statement.target.tensor]
        match statement.reducer:
            case Reducer.ASSIGN:
                if cell in cells:
                    where = f"{self.op.name}: {name}{list(cell)}"
                    raise IllDefinedError(f"{where} is assigned, but was written before")
                cells[cell] = self._element(name, 0 if body is None else body)
            case Reducer.ADD if body is not None:
                cells[cell] = self.joined("add", cells[cell], self._element(name, body))
            case Reducer.MULTIPLY:
                factor = self._element(name, 0 if body is None else body)
                cells[cell] = self.joined("mul", cells[cell], factor)
            case (Reducer.MAX | Reducer.MIN) as reducer if body is not None:
                cells[cell] = self.joined(reducer.value, cells[cell], self._element(name, body))
            case (Reducer.ARGMAX | Reducer.ARGMIN) as reducer if body is not None:
                assert statement.position is not None
                if _better(reducer, body, self._best.get((name, cell))):
                    self._best[name, cell] = body
                    cells[cell] = self._integer(statement.position, point)
            case Reducer.ADD | Reducer.MAX | Reducer.MIN | Reducer.ARGMAX | Reducer.ARGMIN:
                pass  # an absent body is skipped
            case unexpected:
                assert_never(unexpected)

    # ------------------------------------------------------------------ expressions
    def expression(self, expr: Expr, point: Point) -> Number | None:
        """The value of an expression at a point; None where it is absent."""
        match expr:
            case Constant(value=value):
                return self.rounded(value)
            case Parameter(name=name):
                return self.rounded(self.binding.parameters[name])
            case Value(value=value):
                return self.rounded(self._integer(value, point))
            case Read(access=access):
                return self._read(access, point)
            case Apply(primitive=name, arguments=arguments):
                return self._apply(PRIMITIVES[name], arguments, point)
            case unexpected:
                assert_never(unexpected)

    def _apply(self, row: Primitive, arguments: tuple[Expr, ...], point: Point) -> Number | None:
        if row.absence is Absence.BRANCH:
            condition, chosen, otherwise = arguments
            holds = self.expression(condition, point)
            return self.expression(chosen if holds else otherwise, point)  # absent is false
        values: list[Number | None] = []
        fault: Exception | None = None
        for argument in arguments:
            try:
                values.append(self.expression(argument, point))
            except (IndexError, IllDefinedError) as error:
                if row.absence is not Absence.ANY:
                    raise
                fault = error  # counts only if no other factor is absent
        if _is_absent(row.absence, [value is None for value in values]):
            return None
        if fault is not None:
            raise fault
        return self.applied(row, [0 if value is None else value for value in values])

    def applied(self, row: Primitive, values: list[Number]) -> Number:
        """The result of a primitive on present values."""
        if row.needs_float or not all(isinstance(value, int) for value in values):
            values = [self.real(value) for value in values]
        return self.rounded(row.function(*values))

    def joined(self, row: str, cell: Number, value: Number) -> Number:
        """A cell after a value has joined it."""
        return self.applied(PRIMITIVES[row], [cell, value])

    # ------------------------------------------------------------------ numbers
    def real(self, value: Number) -> Number:
        """An integer as a real number."""
        if self.binding.domain is Domain.EXACT:
            return Fraction(value) if math.isfinite(value) else value
        return self.rounded(float(value)) if isinstance(value, int) else value

    def rounded(self, value: Number) -> Number:
        """A result as a number that is computed with."""
        if isinstance(value, int):
            return wrapped(value, 64)
        match self.binding.domain:
            case Domain.EXACT:
                return Fraction(value) if math.isfinite(value) else value
            case Domain.F32:
                return ctypes.c_float(float(value)).value  # overflows to infinity
            case Domain.F64:
                return float(value)
            case unexpected:
                assert_never(unexpected)

    def _element(self, name: str, value: Number) -> Number:
        """A body as an element of a tensor, as wide as it is computed with."""
        if not self.cells[name].integer:
            return self.real(value)
        if not isinstance(value, int):
            raise TypeError(
                f"{self.op.name}: real value {value} written to integer tensor '{name}'"
            )
        return value

    def _integer(self, value: Poly, point: Point) -> int:
        return value.evaluate(point, self._load)

    def _load(self, name: str, indices: Cell) -> int:
        """An integer that is part of an index."""
        cells = self.cells[name]
        for axis, (index, extent) in enumerate(zip(indices, cells.shape, strict=True)):
            if not 0 <= index < extent:
                raise IndexError(self._outside(name, axis, index, extent, {}))
        element = self._at(name, indices)
        assert isinstance(element, int), f"{self.op.name}: '{name}' is used in an index"
        return element

    # ------------------------------------------------------------------ accesses
    def _read(self, access: Access, point: Point) -> Number | None:
        shape = self.cells[access.tensor].shape
        values = [self._integer(index.value, point) for index in access.indices]
        placed = list(zip(access.indices, values, shape, strict=True))
        outside = [index for index, value, extent in placed if not 0 <= value < extent]
        if any(index.boundary is Boundary.ZERO for index in outside):
            return None
        for index in outside:
            if index.boundary is Boundary.FILL:
                assert index.fill is not None
                whole = self.cells[access.tensor].integer and float(index.fill).is_integer()
                return self.rounded(int(index.fill) if whole else index.fill)
        return self.rounded(self._at(access.tensor, self._inside(access, values, point)))

    def _cell(self, target: Access, point: Point) -> Cell | None:
        """The cell that is written; None if the write is dropped."""
        shape = self.cells[target.tensor].shape
        values = [self._integer(index.value, point) for index in target.indices]
        for index, value, extent in zip(target.indices, values, shape, strict=True):
            if index.boundary is Boundary.DROP and not 0 <= value < extent:
                return None
        return self._inside(target, values, point)

    def _inside(self, access: Access, values: list[int], point: Point) -> Cell:
        """The cell under the boundary modes that move an index; IndexError if it is outside."""
        cell = []
        shape = self.cells[access.tensor].shape
        for axis, (index, value, extent) in enumerate(
            zip(access.indices, values, shape, strict=True)
        ):
            moved = moved_index(index, value, extent)
            if moved is None:
                raise IndexError(self._outside(access.tensor, axis, value, extent, point))
            cell.append(moved)
        return tuple(cell)

    def _at(self, name: str, cell: Cell) -> Number:
        if name in self._assigned and cell not in self.cells[name]:
            where = f"{name}{list(cell)}"
            raise IllDefinedError(f"{self.op.name}: {where} is read before it is written")
        return self.cells[name][cell]

    def _outside(self, name: str, axis: int, index: int, extent: int, point: Point) -> str:
        at = ", ".join(f"{symbol}={value}" for symbol, value in point.items())
        return (
            f"{self.op.name}: index {index} is outside of dimension {axis} of '{name}', "
            f"which has extent {extent}" + (f" (at {at})" if at else "")
        )


# ---------------------------------------------------------------------------- rules
def moved_index(index: Index, value: int, extent: int) -> int | None:
    """The index inside a dimension that an index stands for; None if there is none."""
    if extent == 0:
        return None
    last = extent - 1
    match index.boundary:
        case Boundary.CLAMP:
            return min(max(value, 0), last)
        case Boundary.WRAP:
            return value % extent
        case Boundary.REFLECT:
            moved = -value if value < 0 else 2 * last - value if value > last else value
        case Boundary.SYMMETRIC:
            moved = -1 - value if value < 0 else 2 * last + 1 - value if value > last else value
        case Boundary.NONE | Boundary.ZERO | Boundary.FILL | Boundary.DROP:
            moved = value
        case unexpected:
            assert_never(unexpected)
    return moved if 0 <= moved <= last else None


def _is_absent(rule: Absence, missing: list[bool]) -> bool:
    match rule:
        case Absence.ANY | Absence.PASS:
            return any(missing)
        case Absence.ALL:
            return all(missing)
        case Absence.NUMERATOR:
            return missing[0]
        case Absence.NEVER:
            return False
        case Absence.BRANCH:
            raise AssertionError("select is evaluated lazily")
        case unexpected:
            assert_never(unexpected)


def _better(reducer: Reducer, value: Number, best: Number | None) -> bool:
    """Whether a value takes the place of the best so far: the first NaN, else the extreme."""
    if best is None:
        return True
    if best != best or value != value:
        return best == best
    return value > best if reducer is Reducer.ARGMAX else value < best
