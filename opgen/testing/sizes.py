"""Sizes from shapes, by executing the static plan of `ir.shapes` with plain integers.

Generated modules carry the same plan as straight-line code with full messages; this one serves the
interpreter in tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from opgen.ir.binding import AttributeValue
from opgen.ir.notation import AttributeType, Op
from opgen.ir.shapes import (
    CheckConstraint,
    CheckDim,
    CheckExtent,
    DefineSize,
    SolveSize,
    solve_order,
)


class UnsolvableError(ValueError):
    """The shapes do not fit the op."""


def solve_sizes(
    op: Op, shapes: Mapping[str, tuple[int, ...]], attributes: Mapping[str, AttributeValue]
) -> dict[str, int]:
    """Every size, let and integer attribute symbol of a call.

    Shapes have their batch dims flattened (see `flattened`). Raises UnsolvableError.
    """
    values = _attribute_symbols(op, attributes)
    plan = solve_order(
        op.inputs, op.attributes, op.sizes, op.lets, op.constraints, op.outputs, op.temporaries
    )
    for step in plan.steps:
        match step:
            case SolveSize(size=size, tensor=tensor, axis=axis, factor=factor, rest=rest):
                divisor = factor.evaluate(values)
                numerator = shapes[tensor][axis] - rest.evaluate(values)
                if divisor < 0:
                    divisor, numerator = -divisor, -numerator
                if divisor <= 0 or numerator < 0 or numerator % divisor:
                    raise UnsolvableError(f"{op.name}: no {size} fits {tensor}.shape[{axis}]")
                values[size] = numerator // divisor
            case DefineSize(let=let, is_extent=is_extent):
                values[let.name] = let.value.evaluate(values)
                if is_extent and values[let.name] < 0:
                    raise UnsolvableError(f"{op.name}: {let.name} is negative")
            case CheckDim(tensor=tensor, axis=axis, extent=extent):
                if tensor in shapes and shapes[tensor][axis] != extent.evaluate(values):
                    raise UnsolvableError(f"{op.name}: {tensor}.shape[{axis}] is not {extent}")
            case CheckExtent(tensor=tensor, axis=axis, extent=extent):
                if extent.evaluate(values) < 0:
                    raise UnsolvableError(f"{op.name}: {tensor}.shape[{axis}] is negative")
            case CheckConstraint(constraint=constraint):
                if not constraint.condition.holds(values):
                    raise UnsolvableError(f"{op.name}: {constraint.text} does not hold")
    return values


def flattened(op: Op, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the leading batch dims of a `...` tensor made one."""
    tensor = op.tensor(name)
    rank = len(op.extents(name))
    if not getattr(tensor, "batched", False):
        return shape
    leading = len(shape) - (rank - 1)
    return (math.prod(shape[:leading]), *shape[leading:])


def _attribute_symbols(op: Op, attributes: Mapping[str, AttributeValue]) -> dict[str, int]:
    values: dict[str, int] = {}
    for attribute in op.attributes:
        if attribute.type is AttributeType.FLOAT:
            continue
        given = attributes.get(attribute.name, attribute.default)
        if given is None:
            raise UnsolvableError(f"{op.name}: attribute '{attribute.name}' was not given")
        if isinstance(given, str):
            given = attribute.choices.index(given)
        elements = given if isinstance(given, tuple) else (given,) * len(attribute.symbols)
        values.update({name: int(v) for name, v in zip(attribute.symbols, elements, strict=True)})
    return values
