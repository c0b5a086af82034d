"""Element types: does the op need a floating type, and what are its temporaries made of.

A value is INTEGER (indices, integer tensors, comparisons), SAME (whatever the undeclared tensors
hold) or REAL (a float attribute, a float literal, `/`, or a function of the reals). An op with a
REAL value needs its undeclared tensors to be floating; a temporary takes the kind of its body.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import IntEnum
from typing import assert_never

from opgen.errors import Edit, Span
from opgen.ir.notation import (
    Apply,
    Constant,
    DType,
    Expr,
    Op,
    Parameter,
    Read,
    Statement,
    Tensor,
    Value,
)
from opgen.ir.primitives import PRIMITIVES
from opgen.ir.primitives import Kind as ResultKind
from opgen.lang import repairs
from opgen.lang.environment import Environment, Fault


class _Kind(IntEnum):
    INTEGER = 0
    SAME = 1
    REAL = 2


def resolve_types(op: Op, environment: Environment) -> Op:
    """The op with final element types. Raises Fault where a real value meets an integer tensor."""
    kinds = {tensor.name: _declared(tensor) for tensor in (*op.inputs, *op.outputs)}
    kinds |= {t.name: _Kind.INTEGER if t.integer else _Kind.REAL for t in op.tables}
    declared = {t.name for t in op.temporaries if t.dtype is not DType.SAME}
    kinds |= {t.name: _declared(t) for t in op.temporaries if t.name in declared}
    real = False
    positions: set[str] = set()
    for statement in op.statements:
        kind = _Kind.INTEGER if statement.reducer.is_argument else _kind(statement.body, kinds)
        real = real or _kind(statement.body, kinds) is _Kind.REAL
        name = statement.target.tensor
        if kind is _Kind.INTEGER and _gives_position(statement, positions):
            positions.add(name)
            _refuse_position(op, statement, environment)
        if name not in kinds or (name in _free(op, declared) and kind > kinds[name]):
            kinds[name] = kind
        elif kinds[name] is _Kind.INTEGER and kind is not _Kind.INTEGER:
            _refuse(statement, environment)
    real = real or any(t.default is not None and t.default % 1 for t in op.inputs)
    needed = DType.FLOAT if real else DType.SAME
    temporary = {_Kind.INTEGER: DType.I64, _Kind.SAME: needed, _Kind.REAL: DType.FLOAT}
    op = replace(
        op,
        inputs=tuple(_with(tensor, needed) for tensor in op.inputs),
        outputs=tuple(_with(_wide(tensor), needed) for tensor in op.outputs),
        temporaries=tuple(
            _with(_wide(tensor), temporary[kinds[tensor.name]]) for tensor in op.temporaries
        ),
    )
    if not any(tensor.dtype.is_generic for tensor in op.inputs):
        for tensor in op.outputs:
            if tensor.dtype.is_generic:
                at = environment.declared_at[tensor.name]
                likely = "f32" if real else "i64"
                raise Fault(
                    "untyped-output",
                    f"nothing says what type '{tensor.name}' has",
                    environment.declared_at[tensor.name],
                    notes=(
                        "an undeclared output takes the type of the undeclared inputs, and there "
                        "are none",
                    ),
                    advice=f"declare it, such as {tensor.name}: {likely}",
                    replacement=(Span(at.end, at.end), f": {likely}"),
                )
    return op


def _free(op: Op, declared: set[str]) -> set[str]:
    return {tensor.name for tensor in op.temporaries} - declared


def _declared(tensor: Tensor) -> _Kind:
    if tensor.dtype.is_integer:
        return _Kind.INTEGER
    return _Kind.SAME if tensor.dtype is DType.SAME else _Kind.REAL


def _wide(tensor: Tensor) -> Tensor:
    """`int` lets an input be i32 or i64; what is computed is i64."""
    return replace(tensor, dtype=DType.I64) if tensor.dtype is DType.INT else tensor


def _with(tensor: Tensor, dtype: DType) -> Tensor:
    return replace(tensor, dtype=dtype) if tensor.dtype is DType.SAME else tensor


def _kind(expr: Expr, kinds: dict[str, _Kind]) -> _Kind:
    match expr:
        case Constant(value=value):
            return _Kind.INTEGER if isinstance(value, int) else _Kind.REAL
        case Parameter():
            return _Kind.REAL
        case Value():
            return _Kind.INTEGER
        case Read(access=access):
            filled = any(isinstance(index.fill, float) for index in access.indices)
            return _Kind.REAL if filled else kinds[access.tensor]
        case Apply(primitive=name, arguments=arguments):
            row = PRIMITIVES[name]
            if row.kind is ResultKind.BOOLEAN:
                return _Kind.INTEGER
            if row.needs_float:
                return _Kind.REAL
            values = arguments[1:] if name == "select" else arguments
            return max(_kind(argument, kinds) for argument in values)
        case unexpected:
            assert_never(unexpected)


def _refuse_position(op: Op, statement: Statement, environment: Environment) -> None:
    """Raises Fault where a position ends in an undeclared output.

    Such an output has the type of the undeclared inputs, and 16-bit floats round positions.
    """
    name = statement.target.tensor
    if not any(tensor.name == name and tensor.dtype is DType.SAME for tensor in op.outputs):
        return
    at = environment.declared_at[name]
    raise Fault(
        "undeclared-position",
        f"'{name}' has the type of the undeclared inputs, but a position is written to it",
        statement.span or Span(0, 0),
        (at, "declared here"),
        notes=("a 16-bit float holds 2048 and 2050, but not the position 2049",),
        advice=f"declare it, {name}: i64[...]",
        replacement=(Span(at.end, at.end), ": i64"),
    )


def _gives_position(statement: Statement, positions: set[str]) -> bool:
    """Whether the integers that a statement writes are positions, or computed from some."""
    return statement.reducer.is_argument or _holds_position(statement.body, positions)


def _holds_position(expr: Expr, positions: set[str]) -> bool:
    match expr:
        case Read(access=access):
            return access.tensor in positions
        case Apply(primitive=name, arguments=arguments):
            if PRIMITIVES[name].kind is ResultKind.BOOLEAN:
                return False
            values = arguments[1:] if name == "select" else arguments
            return any(_holds_position(value, positions) for value in values)
        case _:
            return False


def _refuse(statement: Statement, environment: Environment) -> None:
    name = statement.target.tensor
    tensor = environment.tensors[name]
    if isinstance(tensor, Tensor) and tensor.dtype is DType.BOOL:
        raise Fault(
            "real-into-integer",
            f"'{name}' holds truth, but a real value is written to it",
            statement.span or Span(0, 0),
            (environment.declared_at[name], "declared here"),
            advice="write a comparison, such as with 0",
            replacement=repairs.compared_at(statement.target.span, environment),
        )
    raise Fault(
        "real-into-integer",
        f"'{name}' holds integers, but a real value is written to it",
        statement.span or Span(0, 0),
        (environment.declared_at[name], "declared here"),
        advice="declare it with a float type, or round with `//`, which works on indices",
        alternatives=_float_types(name, environment),
    )


def _float_types(name: str, environment: Environment) -> list[Edit]:
    """The edits that leave the type of a tensor out, or make it a float."""
    end, text = environment.declared_at[name].end, environment.source.text
    type_ = re.compile(r"\s*:\s*\w+").match(text, end)
    if type_ is None:
        return []
    span = Span(*type_.span())
    return [(span, ""), (span, ": f32")]
