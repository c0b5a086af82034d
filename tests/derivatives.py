"""Calls of hand-made ops through the interpreter, and what their derivatives must satisfy.

Two checks, each on any op, so also on a derivative of a derivative:

    slope      a tangent is the limit of difference quotients of the op itself
    transpose  <cotangent, tangent(direction)> == <adjoint(cotangent), direction>, in fractions

Together they say that the adjoint is the transposed derivative. Neither looks at how it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from opgen.errors import Source
from opgen.ir.binding import Array
from opgen.ir.notation import BATCH, AttributeType, DType, Op
from opgen.ir.reference import evaluate
from opgen.ir.verify import verify
from opgen.lang.check import check
from opgen.lang.parse import parse
from opgen.passes.differentiate import Derivative, Tangent, adjoint, tangent

AttributeValue = int | float | str | bool | tuple[int, ...]


def spec(text: str) -> tuple[Op, ...]:
    """The ops of a spec text."""
    source = Source(text, "<test>")
    return check(parse(source), source)


@dataclass(frozen=True)
class Call:
    """An op with values for everything it takes; `values` may hold more than its inputs."""

    op: Op
    symbols: Mapping[str, int]
    attributes: Mapping[str, AttributeValue]
    values: Mapping[str, Array] = field(default_factory=dict)

    def of(self, op: Op, **values: Array) -> Call:
        """The same call of a derived op, with more values."""
        return replace(self, op=op, values={**self.values, **values})

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor of the op."""
        return tuple(extent.evaluate(self.symbols) for extent in self.op.extents(name))

    def run(self) -> dict[str, Array]:
        """The outputs."""
        op = self.op
        sizes = {name: self.symbols[name] for name in (*op.sizes, BATCH) if name in self.symbols}
        attributes = {
            a.name: self.attributes[a.name] if a.name in self.attributes else self.symbols[a.name]
            for a in op.attributes
        }
        return evaluate(op, sizes, {t.name: self.values[t.name] for t in op.inputs}, attributes)

    @property
    def numeric(self) -> list[str]:
        """The inputs that have a derivative."""
        return [t.name for t in self.op.inputs if not (t.dtype.is_integer or t.nograd)]


def call(
    op: Op,
    seed: int = 0,
    *,
    exact: bool = False,
    integers: Mapping[str, object] | None = None,
    **given: AttributeValue,
) -> Call:
    """A call with random values; `given` are sizes and attributes, `integers` integer inputs."""
    symbols: dict[str, int] = {}
    attributes: dict[str, AttributeValue] = {}
    for attribute in op.attributes:
        value = given.pop(attribute.name, attribute.default)
        assert value is not None, attribute.name
        attributes[attribute.name] = value
        if attribute.type is not AttributeType.FLOAT:
            number = attribute.choices.index(value) if isinstance(value, str) else value
            elements = number if isinstance(number, tuple) else (number,) * len(attribute.symbols)
            symbols.update({n: int(v) for n, v in zip(attribute.symbols, elements, strict=True)})
    symbols |= {BATCH if name == "batch" else name: int(value) for name, value in given.items()}
    for let in op.lets:
        symbols[let.name] = let.value.evaluate(symbols)
    numbers = np.random.default_rng(seed)
    bare = Call(op, symbols, attributes)
    values = {
        tensor.name: np.array((integers or {})[tensor.name], np.int64)
        if tensor.dtype.is_integer
        else randoms(bare.shape(tensor.name), numbers, exact)
        for tensor in op.inputs
    }
    return replace(bare, values=values)


def randoms(shape: tuple[int, ...], numbers: np.random.Generator, exact: bool) -> Array:
    """Random floats, or small fractions."""
    if not exact:
        return numbers.uniform(-2, 2, shape)
    array = np.empty(shape, object)
    for cell in np.ndindex(shape):
        array[cell] = Fraction(int(numbers.integers(-9, 10)), int(numbers.integers(1, 5)))
    return array


# ---------------------------------------------------------------------------- the two checks
def verified_adjoint(op: Op, name: str) -> Derivative:
    """The adjoint, verified."""
    derivative = adjoint(op, name)
    verify(derivative.op)
    return derivative


def verified_tangent(op: Op, names: tuple[str, ...]) -> Tangent:
    """The tangent, verified."""
    derivative = tangent(op, names)
    verify(derivative.op)
    return derivative


def transpose_defect(call: Call, name: str, seed: int = 1) -> tuple[Fraction, Fraction]:
    """The two sides of the transpose identity; equal if all is well. Needs an exact call."""
    numbers = np.random.default_rng(seed)
    forward, back = verified_tangent(call.op, (name,)), verified_adjoint(call.op, name)
    direction = randoms(call.shape(name), numbers, exact=True)
    cotangents = {o: randoms(call.shape(o), numbers, exact=True) for o, _ in forward.results}
    moved = call.of(forward.op, **{given: direction for _, given in forward.tangents}).run()
    pulled = call.of(back.op, **{given: cotangents[o] for o, given in back.cotangents}).run()
    (gradient,) = pulled.values()
    left = sum((inner(cotangents[o], moved[r]) for o, r in forward.results), Fraction(0))
    return left, inner(gradient, direction)


def inner(a: Array, b: Array) -> Fraction:
    """The inner product of arrays of fractions."""
    return sum((a[cell] * b[cell] for cell in np.ndindex(a.shape)), Fraction(0))


def slope_error(call: Call, name: str, seed: int = 2, step: float = 1e-5) -> float:
    """How far a tangent is from the central difference quotient, relative to the numbers in it."""
    numbers = np.random.default_rng(seed)
    forward = verified_tangent(call.op, (name,))
    direction = randoms(call.shape(name), numbers, exact=False)
    tangents = call.of(forward.op, **{given: direction for _, given in forward.tangents}).run()
    base = call.values[name]
    above = call.of(call.op, **{name: base + step * direction}).run()
    below = call.of(call.op, **{name: base - step * direction}).run()
    worst = 0.0
    for output, result in forward.results:
        quotient = (above[output] - below[output]) / (2 * step)
        scale = 1 + np.abs(quotient) + np.abs(above[output]) * 1e-2
        if quotient.size:
            worst = max(worst, float(np.max(np.abs(quotient - tangents[result]) / scale)))
    return worst


def gradient(call: Call, name: str, **cotangents: Array) -> Array:
    """The gradient of an input for cotangents of the outputs."""
    back = verified_adjoint(call.op, name)
    values = {given: cotangents[output] for output, given in back.cotangents}
    (result,) = call.of(back.op, **values).run().values()
    return result


def floating(op: Op) -> Op:
    """The op with its undeclared tensors of type f64."""

    def declared(tensors):
        wide = (DType.SAME, DType.FLOAT)
        return tuple(replace(t, dtype=DType.F64) if t.dtype in wide else t for t in tensors)

    return replace(op, inputs=declared(op.inputs), outputs=declared(op.outputs))
