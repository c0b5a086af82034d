"""Tensors as `ir.reference` holds them: a number for every cell that has been written."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import assert_never

import numpy as np

from opgen.ir.binding import OBJECT, Array, is_integer
from opgen.ir.functions import Number
from opgen.ir.notation import Reducer, Table

Cell = tuple[int, ...]


@dataclass(slots=True)
class Cells:
    """A tensor under evaluation. `start` is what a cell holds before anything has joined it."""

    shape: Cell
    integer: bool
    start: Number = 0
    values: dict[Cell, Number] = field(default_factory=dict)

    def __getitem__(self, cell: Cell) -> Number:
        return self.values.get(cell, self.start)

    def __setitem__(self, cell: Cell, value: Number) -> None:
        self.values[cell] = value

    def __contains__(self, cell: Cell) -> bool:
        return cell in self.values

    def all_cells(self) -> itertools.product[Cell]:
        """Every cell of the shape, in row-major order."""
        return itertools.product(*map(range, self.shape))


def from_array(array: Array) -> Cells:
    """The cells of an input, bool as 0 and 1; objects other than floats become fractions."""
    cells = Cells(array.shape, is_integer(array.dtype))
    for cell in cells.all_cells():
        element: int | float | Fraction = array.item(cell)
        if array.dtype == OBJECT and not isinstance(element, float):
            element = Fraction(element)
        cells[cell] = int(element) if isinstance(element, bool) else element
    return cells


def from_table(table: Table) -> Cells:
    """The cells of a constant table."""
    cells = Cells(table.shape, table.integer)
    cells.values = dict(zip(cells.all_cells(), table.values, strict=True))
    return cells


def to_array(cells: Cells, dtype: np.dtype[np.generic]) -> Array:
    """The cells as elements of a type: floats are rounded, integers wrap around, bool is != 0."""
    numbers: list[Number]
    numbers = [cells[cell] for cell in cells.all_cells()]
    if dtype.kind in "iu":
        numbers = [
            wrapped(int(number), 8 * dtype.itemsize, dtype.kind == "i") for number in numbers
        ]
    elif dtype.kind == "b":
        numbers = [number != 0 for number in numbers]
    elif dtype == OBJECT:
        numbers = [Fraction(n) if isinstance(n, int) else n for n in numbers]
    flat = np.empty(len(numbers), dtype)
    with np.errstate(over="ignore"):
        flat[:] = np.array(numbers, OBJECT)
    return flat.reshape(cells.shape)


def wrapped(value: int, bits: int, signed: bool = True) -> int:
    """The integer of that many bits that is equal modulo 2**bits."""
    size: int = 1 << bits
    offset = size // 2 if signed else 0
    return (value + offset) % size - offset


# ---------------------------------------------------------------------------- identities
def identity(reducer: Reducer, dtype: np.dtype[np.generic]) -> Number:
    """What a reduction over nothing is, in a tensor of this type."""
    match reducer:
        case Reducer.ASSIGN | Reducer.ADD:
            return 0
        case Reducer.MULTIPLY:
            return 1
        case Reducer.MAX:
            return _extremes(dtype)[0]
        case Reducer.MIN:
            return _extremes(dtype)[1]
        case Reducer.ARGMAX | Reducer.ARGMIN:
            return -1
        case unexpected:
            assert_never(unexpected)


def _extremes(dtype: np.dtype[np.generic]) -> tuple[Number, Number]:
    """The least and the greatest value of a type."""
    if not is_integer(dtype):
        return -math.inf, math.inf
    if dtype.kind == "b":
        return 0, 1
    size: int = 1 << 8 * dtype.itemsize
    return (0, size - 1) if dtype.kind == "u" else (-size // 2, size // 2 - 1)
