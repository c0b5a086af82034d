"""The transpose identity of derivatives in exact fractions, by the interpreter."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from opgen.ir.binding import Array
from opgen.testing.calls import Call
from opgen.testing.subject import Subject


def transpose_sides(subject: Subject, call: Call, name: str) -> tuple[Fraction, Fraction] | None:
    """`<cotangent, tangent(direction)>` and `<adjoint(cotangent), direction>` of an input.

    None where the op has no finite value in this call, or the input is absent.
    """
    op = subject.op
    if name in call.case.absent:
        return None
    numbers = np.random.default_rng(call.seed)
    integers = subject.completed(call, call.inputs(op))
    values: dict[str, Array] = {
        tensor.name: integers[tensor.name]
        if tensor.dtype.is_integer
        else fractions(integers[tensor.name].shape, numbers, positive=call.positive)
        for tensor in op.inputs
    }
    forward, back = subject.tangent, subject.adjoint(op, name)
    shapes = {tensor.name: call.case.shape(op, tensor) for tensor in op.outputs}
    cotangents = {output: fractions(shapes[output], numbers) for output, _ in forward.results}
    direction = fractions(values[name].shape, numbers)
    directions = {
        taken: direction if given == name else fractions(values[given].shape, numbers, zero=True)
        for given, taken in forward.tangents
    }
    try:
        moved = subject.interpreted(forward.op, call, values | directions)
        pulled = subject.interpreted(
            back.op, call, values | {taken: cotangents[o] for o, taken in back.cotangents}
        )
        (gradient,) = pulled.values()
        left = sum((_inner(cotangents[o], moved[r]) for o, r in forward.results), Fraction(0))
        return left, _inner(gradient, direction)
    except (ArithmeticError, ValueError, IndexError):  # no number there, or an infinite one
        return None


def fractions(
    shape: tuple[int, ...],
    numbers: np.random.Generator,
    *,
    positive: bool = False,
    zero: bool = False,
) -> Array:
    """An array of small fractions, or of zeros."""
    out = np.empty(shape, object)
    for cell in np.ndindex(shape):
        top = int(numbers.integers(1, 10) if positive else numbers.integers(-9, 10))
        out[cell] = Fraction(0 if zero else top, int(numbers.integers(1, 5)))
    return out


def _inner(a: Array, b: Array) -> Fraction:
    pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    return sum((Fraction(left) * Fraction(right) for left, right in pairs), Fraction(0))
