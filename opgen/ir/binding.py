"""What one call of an op fixes: the values of symbols and parameters, shapes and element types.

    symbols     sizes, lets and the attributes that occur in polynomials -> int
    parameters  float attributes -> number
    storage     every tensor -> the numpy type of its elements

numpy has no bfloat16: a `bf16` tensor is float32 here, and whoever compares with one rounds inputs
before and outputs after. A call is *exact* if one of its arrays holds `fractions.Fraction` objects:
then every floating tensor holds fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from opgen.ir.functions import Number
from opgen.ir.notation import Attribute, AttributeType, DType, Op, Tensor

Array = npt.NDArray[np.generic]
AttributeValue = int | float | str | bool | tuple[int, ...] | tuple[float, ...]
_Type = np.dtype[np.generic]

OBJECT: Final = np.dtype(object)
_FIXED: Final[dict[DType, _Type]] = {
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(np.float32),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.U8: np.dtype(np.uint8),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.BOOL: np.dtype(np.bool_),
}
_WIDE_INTEGER: Final[_Type] = np.dtype(np.int64)


class Domain(Enum):
    """The numbers that floating elements are computed with."""

    F32 = "float32"
    F64 = "float64"
    EXACT = "fraction"


@dataclass(frozen=True, slots=True)
class Binding:
    """See the module docstring."""

    symbols: Mapping[str, int]
    parameters: Mapping[str, Number]
    storage: Mapping[str, np.dtype[np.generic]]
    domain: Domain


def bind(
    op: Op,
    sizes: Mapping[str, int],
    tensors: Mapping[str, Array],
    attributes: Mapping[str, AttributeValue],
    dtype: npt.DTypeLike | None = None,
) -> Binding:
    """The binding of a call; ValueError, KeyError or TypeError where the call does not fit the op.

    `dtype` is the type of undeclared tensors where no input shows it.
    """
    symbols = dict(sizes)
    parameters: dict[str, Number] = {}
    for attribute in op.attributes:
        given = attributes.get(attribute.name, attribute.default)
        if given is None and all(name in symbols for name in attribute.symbols):
            continue
        values = _attribute_values(op, attribute, given)
        if attribute.type is AttributeType.FLOAT:
            parameters.update(values)
        else:
            symbols.update({name: int(value) for name, value in values.items()})
    for let in op.lets:
        value = let.value.evaluate(symbols)
        if symbols.setdefault(let.name, value) != value:
            raise ValueError(f"{op.name}: {let.name} is {symbols[let.name]}, not {value}")
    for constraint in op.constraints:
        if not constraint.condition.holds(symbols):
            raise ValueError(f"{op.name}: {constraint.text or constraint.condition} does not hold")
    storage = _storage(op, tensors, None if dtype is None else np.dtype(dtype))
    return Binding(symbols, parameters, storage, _domain(storage))


# ---------------------------------------------------------------------------- attributes
def _attribute_values(
    op: Op, attribute: Attribute, given: AttributeValue | None
) -> dict[str, int | float]:
    """The number of each of its symbols; one number stands for all elements of a tuple."""
    if given is None:
        raise KeyError(f"{op.name}: attribute '{attribute.name}' has no value")
    if isinstance(given, str):
        if given not in attribute.choices:
            raise ValueError(f"{op.name}: '{given}' is none of {', '.join(attribute.choices)}")
        given = attribute.choices.index(given)
    names = attribute.symbols
    elements = given if isinstance(given, tuple) else (given,) * len(names)
    if len(elements) != len(names):
        raise ValueError(f"{op.name}: '{attribute.name}' takes {len(names)} numbers")
    if attribute.type is AttributeType.SIZE and min(elements, default=0) < 0:
        raise ValueError(f"{op.name}: size '{attribute.name}' is negative")
    return dict(zip(names, elements, strict=True))


# ---------------------------------------------------------------------------- element types
def _storage(op: Op, tensors: Mapping[str, Array], dtype: _Type | None) -> dict[str, _Type]:
    for tensor in op.inputs:
        if tensor.name in tensors and tensor.dtype.is_generic:
            given = tensors[tensor.name].dtype
            if tensor.dtype is DType.FLOAT and is_integer(given):
                raise TypeError(f"{op.name}: '{tensor.name}' is {given}, not a floating type")
            if dtype is not None and given != dtype:
                raise TypeError(f"{op.name}: '{tensor.name}' is {given}, not {dtype}")
            dtype = given
    shared: _Type = np.dtype(np.float32) if dtype is None else dtype
    exact = OBJECT in (shared, *(array.dtype for array in tensors.values()))
    storage: dict[str, _Type] = {}
    for tensor in (*op.inputs, *op.outputs):
        storage[tensor.name] = _element_type(tensor, shared, exact)
        if tensor in op.inputs and tensor.name in tensors:
            given = tensors[tensor.name].dtype
            if tensor.dtype is DType.INT and given in (np.int32, np.int64):
                storage[tensor.name] = given
            elif given != storage[tensor.name]:
                expected = storage[tensor.name]
                raise TypeError(f"{op.name}: '{tensor.name}' is {given}, not {expected}")
    for tensor in op.temporaries:
        found = _element_type(tensor, shared, exact)
        storage[tensor.name] = _WIDE_INTEGER if is_integer(found) else found
    return storage


def _element_type(tensor: Tensor, shared: _Type, exact: bool) -> _Type:
    found = shared if tensor.dtype.is_generic else _FIXED.get(tensor.dtype, _WIDE_INTEGER)
    return OBJECT if exact and not is_integer(found) else found


def is_integer(dtype: _Type) -> bool:
    """Whether elements of this type are computed as integers."""
    return dtype.kind in "iub"


def _domain(storage: Mapping[str, _Type]) -> Domain:
    """The widest of the floating tensors, and at least 32 bits."""
    if OBJECT in storage.values():
        return Domain.EXACT
    return Domain.F64 if np.dtype(np.float64) in storage.values() else Domain.F32


# ---------------------------------------------------------------------------- arrays
def shape_of(op: Op, name: str, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor or table."""
    return tuple(extent.evaluate(symbols) for extent in op.extents(name))


def input_array(op: Op, tensor: Tensor, tensors: Mapping[str, Array], binding: Binding) -> Array:
    """The array of an input, or its default everywhere."""
    shape = shape_of(op, tensor.name, binding.symbols)
    if tensor.name in tensors:
        array = tensors[tensor.name]
        if array.shape != shape:
            raise ValueError(f"{op.name}: '{tensor.name}' has shape {array.shape}, not {shape}")
        return array
    if tensor.default is None:
        raise KeyError(f"{op.name}: input '{tensor.name}' is missing")
    dtype = binding.storage[tensor.name]
    default = Fraction(tensor.default) if dtype == OBJECT else tensor.default
    return np.full(shape, default, dtype)
