"""How large the rounding errors of an op may be: a scale for tolerances, cell by cell.

A result may differ from the exact one by a small multiple of the unit roundoff times its magnitude:

* of a sum reduction: the absolute values of all terms, plus the magnitudes of the terms;
* of an operation: the absolute result, plus each operand's magnitude times the absolute partial
  derivative (the running error analysis of Higham, *Accuracy and Stability of Numerical
  Algorithms*, section 3.3, with the partials of the primitive table);
* of an input, a literal or a whole number: 0.

It does not depend on the order of summation, unlike the error itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from opgen.ir.binding import Array, AttributeValue, bind
from opgen.ir.functions import Number
from opgen.ir.notation import Constant, DType, Op, Tensor
from opgen.ir.primitives import Primitive
from opgen.ir.reference import Interpreter

_NARROW = (DType.F16, DType.BF16, DType.F32)


class _Measured(float):
    """A number with the magnitude of its error."""

    __slots__ = ("magnitude",)
    magnitude: float

    def __new__(cls, value: float, magnitude: float) -> _Measured:
        self = super().__new__(cls, value)
        self.magnitude = magnitude if magnitude == magnitude else math.inf
        return self


def magnitude(
    op: Op,
    sizes: Mapping[str, int],
    tensors: Mapping[str, Array],
    attributes: Mapping[str, AttributeValue],
) -> dict[str, Array]:
    """For every cell of every output the larger of its magnitude and its absolute value."""
    wide = widened(op)
    arrays = {
        name: array.astype(np.float64) if array.dtype.kind == "f" else array
        for name, array in tensors.items()
    }
    interpreter = _Measurer(wide, bind(wide, sizes, arrays, attributes), arrays)
    for number, statement in enumerate(wide.statements):
        interpreter.execute(number, statement)
    result: dict[str, Array] = {}
    for tensor in op.outputs:
        cells = interpreter.cells[tensor.name]
        values = [
            max(_magnitude(cells[cell]), abs(float(cells[cell]))) for cell in cells.all_cells()
        ]
        result[tensor.name] = np.array(values, np.float64).reshape(cells.shape)
    return result


class _Measurer(Interpreter):
    """Evaluates with `_Measured` numbers."""

    def rounded(self, value: Number) -> Number:
        return value if isinstance(value, _Measured) else super().rounded(value)

    def applied(self, row: Primitive, values: list[Number]) -> Number:
        result = super().applied(row, [_plain(value) for value in values])
        if isinstance(result, int):
            return result
        total = abs(float(result))
        if row.name in ("min", "max"):  # both sides of a near tie count
            return _Measured(float(result), max(map(_magnitude, values)))
        partials = row.partials(*map(Constant, map(float, values))) if row.partials else ()
        for value, partial in zip(values, partials, strict=bool(partials)):
            if partial is not None and _magnitude(value) > 0:
                slope = self.expression(partial, {})
                total += abs(float(slope or 0)) * _magnitude(value)
        return _Measured(float(result), total)

    def joined(self, row: str, cell: Number, value: Number) -> Number:
        result = super().joined(row, cell, value)
        if row != "add" or isinstance(result, int):
            return result
        return _Measured(float(result), _magnitude(cell) + _magnitude(value) + abs(float(value)))


def _plain(value: Number) -> Number:
    return float(value) if isinstance(value, _Measured) else value


def _magnitude(value: Number) -> float:
    return value.magnitude if isinstance(value, _Measured) else 0.0


def widened(op: Op) -> Op:
    """The op with every narrow floating type made double, so that nothing is rounded to it."""
    return replace(
        op,
        inputs=tuple(map(_widened, op.inputs)),
        outputs=tuple(map(_widened, op.outputs)),
        temporaries=tuple(map(_widened, op.temporaries)),
    )


def _widened(tensor: Tensor) -> Tensor:
    return replace(tensor, dtype=DType.F64) if tensor.dtype in _NARROW else tensor
