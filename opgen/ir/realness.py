"""Whether a value is real, or an integer, whatever the undeclared tensors of the op hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from opgen.ir.notation import (
    Access,
    Apply,
    Constant,
    DType,
    Expr,
    Parameter,
    Read,
    Table,
    Tensor,
    Value,
)
from opgen.ir.primitives import PRIMITIVES, Kind


def is_real(expr: Expr, tensor: Callable[[str], Tensor | Table]) -> bool:
    """Whether an op with this body needs its undeclared tensors to be of a floating type."""
    match expr:
        case Constant(value=value):
            return isinstance(value, float)
        case Parameter():
            return True
        case Value():
            return False
        case Read(access=access) if _is_filled_with_a_real(access):
            return True
        case Read(access=access):
            match tensor(access.tensor):
                case Table() as table:
                    return not table.integer
                case Tensor(dtype=dtype):
                    return dtype is not DType.SAME and not dtype.is_integer
        case Apply(primitive=name, arguments=arguments):
            row = PRIMITIVES[name]
            if row.kind is Kind.BOOLEAN or row.needs_float:
                return row.needs_float
            values = arguments[1:] if name == "select" else arguments
            return any(is_real(argument, tensor) for argument in values)
        case unexpected:
            assert_never(unexpected)


def is_whole(expr: Expr, tensor: Callable[[str], Tensor | Table]) -> bool:
    """Whether the value is an integer even if undeclared tensors hold floats."""
    match expr:
        case Constant(value=value):
            return isinstance(value, int)
        case Parameter():
            return False
        case Value():
            return True
        case Read(access=access) if _is_filled_with_a_real(access):
            return False
        case Read(access=access):
            match tensor(access.tensor):
                case Table() as table:
                    return table.integer
                case Tensor(dtype=dtype):
                    return dtype.is_integer
        case Apply(primitive=name, arguments=arguments):
            row = PRIMITIVES[name]
            if row.kind is Kind.BOOLEAN or row.needs_float:
                return not row.needs_float
            values = arguments[1:] if name == "select" else arguments
            return all(is_whole(argument, tensor) for argument in values)
        case unexpected:
            assert_never(unexpected)


def _is_filled_with_a_real(access: Access) -> bool:
    """Whether the read gives a number outside that no integer tensor holds, such as `?(-inf)`."""
    return any(
        index.fill is not None and not float(index.fill).is_integer() for index in access.indices
    )
