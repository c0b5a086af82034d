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
from opgen.ir.notation import BATCH, AttributeType, Constraint, Op
from opgen.ir.reference import evaluate
from opgen.ir.verify import verify
from opgen.lang.check import check
from opgen.lang.parse import parse
from opgen.passes.differentiate import Derivative, Tangent, adjoint, tangent

AttributeValue = int | float | str | bool | tuple[int, ...]


def read_ops(text: str) -> tuple[Op, ...]:
    """The ops of a spec text."""
    source = Source(text, "<test>")
    return check(parse(source), source)


def read_op(text: str) -> Op:
    """The one op of a spec text."""
    (op,) = read_ops(text)
    return op


def stated(op: Op) -> Op:
    """The op without the launch checks that a checker adds, which are no spec text."""
    kept: tuple[Constraint, ...] = tuple(c for c in op.constraints if not c.derived)
    return replace(op, constraints=kept)


# ---------------------------------------------------------------------------- calls
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


def make_call(
    op: Op,
    given: Mapping[str, AttributeValue],
    integers: Mapping[str, object] | None = None,
    *,
    seed: int = 0,
    exact: bool = False,
) -> Call:
    """A call with random values; `given` are sizes and attributes, `integers` integer inputs."""
    symbols: dict[str, int] = {}
    attributes: dict[str, AttributeValue] = {}
    for attribute in op.attributes:
        value = given.get(attribute.name, attribute.default)
        assert value is not None, attribute.name
        attributes[attribute.name] = value
        if attribute.type is not AttributeType.FLOAT:
            number = attribute.choices.index(value) if isinstance(value, str) else value
            elements = number if isinstance(number, tuple) else (number,) * len(attribute.symbols)
            symbols.update({n: int(v) for n, v in zip(attribute.symbols, elements, strict=True)})
    symbols.update({name: int(given[name]) for name in op.sizes})
    for let in op.lets:
        symbols[let.name] = let.value.evaluate(symbols)
    numbers = np.random.default_rng(seed)
    bare = Call(op, symbols, attributes)
    values = {
        tensor.name: np.asarray((integers or {})[tensor.name])
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


# ---------------------------------------------------------------------------- derivatives
def verified_adjoint(op: Op, name: str) -> Derivative:
    """The adjoint, verified."""
    derivative = adjoint(op, name)
    verify(derivative.op)
    return derivative


def verified_tangent(op: Op, *names: str) -> Tangent:
    """The tangent, verified."""
    derivative = tangent(op, names)
    verify(derivative.op)
    return derivative


def adjoint_call(call: Call, name: str, seed: int = 3, *, exact: bool = False) -> Call:
    """The gradient of an input for random cotangents."""
    back = verified_adjoint(call.op, name)
    numbers = np.random.default_rng(seed)
    given = {name: randoms(call.shape(o), numbers, exact) for o, name in back.cotangents}
    return call.of(back.op, **given)


def gradient(call: Call, name: str, **cotangents: Array) -> Array:
    """The gradient of an input for cotangents of the outputs."""
    back = verified_adjoint(call.op, name)
    values = {given: cotangents[output] for output, given in back.cotangents}
    (result,) = call.of(back.op, **values).run().values()
    return result


# ---------------------------------------------------------------------------- the two checks
def transpose_sides(
    call: Call, name: str, back: Derivative | None = None, seed: int = 1
) -> tuple[Fraction, Fraction]:
    """The two sides of the transpose identity, of an exact call."""
    numbers = np.random.default_rng(seed)
    forward = verified_tangent(call.op, name)
    back = back or verified_adjoint(call.op, name)
    direction = randoms(call.shape(name), numbers, exact=True)
    cotangents = {o: randoms(call.shape(o), numbers, exact=True) for o, _ in forward.results}
    moved = call.of(forward.op, **{given: direction for _, given in forward.tangents}).run()
    pulled = call.of(back.op, **{given: cotangents[o] for o, given in back.cotangents}).run()
    (pulled_back,) = pulled.values()
    left = sum((inner(cotangents[o], moved[r]) for o, r in forward.results), Fraction(0))
    return left, inner(pulled_back, direction)


def inner(a: Array, b: Array) -> Fraction:
    """The inner product of arrays of fractions."""
    return sum((a[cell] * b[cell] for cell in np.ndindex(a.shape)), Fraction(0))


def slope_error(
    call: Call, name: str, forward: Tangent | None = None, seed: int = 2, step: float = 1e-5
) -> float:
    """How far a tangent is from the central difference quotient, relative to the numbers in it."""
    numbers = np.random.default_rng(seed)
    forward = forward or verified_tangent(call.op, name)
    direction = randoms(call.shape(name), numbers, exact=False)
    tangents = call.of(forward.op, **{given: direction for _, given in forward.tangents}).run()
    base = call.values[name]
    above = call.of(call.op, **{name: base + step * direction}).run()
    below = call.of(call.op, **{name: base - step * direction}).run()
    worst = 0.0
    for output, result in forward.results:
        high, low = above[output], below[output]
        same = high == low  # also where an empty maximum is infinite
        quotient = np.subtract(high, low, out=np.zeros_like(high), where=~same) / (2 * step)
        scale = 1 + np.abs(quotient) + np.where(same, 0, 1e-2 * np.abs(high))
        for error in np.ravel(np.abs(quotient - tangents[result]) / scale):
            worst = worst if error <= worst else float(error)  # NaN stays
    return worst
