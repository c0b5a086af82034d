"""The argument list of a launch, checked against the parameters of the kernel.

The classic mistake with raw kernels is a list that does not match: a Python float where the kernel
takes a float, an int64 array where it takes int. A GPU reads other bits and says nothing.
"""

from __future__ import annotations

import ctypes
import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opgen.testing.cuda_on_cpu import abi

_CODES = {
    torch.float16: "e", torch.bfloat16: "E", torch.float32: "f", torch.float64: "d",
    torch.bool: "?", torch.int8: "b", torch.uint8: "B", torch.int16: "h", torch.uint16: "H",
    torch.int32: "i", torch.uint32: "I", torch.int64: "q", torch.uint64: "Q",
    torch.complex64: "F", torch.complex128: "D",
}  # fmt: skip
_TYPE_NAMES = {
    "e": "__half", "E": "__nv_bfloat16", "f": "float", "d": "double", "?": "bool",
    "b": "signed char", "B": "unsigned char", "h": "short", "H": "unsigned short", "i": "int",
    "I": "unsigned int", "q": "long long", "Q": "unsigned long long", "F": "complex64",
    "D": "complex128",
}  # fmt: skip
_INTERCHANGEABLE = {frozenset("?B"), frozenset("?b"), frozenset("EH"), frozenset("Eh")}
"""Array and pointer types that need not be the same: NumPy has no bfloat16, C had no bool."""


class Role(enum.Enum):
    """What a parameter takes."""

    VALUE = 0
    POINTER = 1
    CONST_POINTER = 2


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel: `code` is a character of numpy.dtype, E for bfloat16, V for others.

    `bytes` is the size of the value, or of what is pointed to; 0 for void.
    """

    name: str
    role: Role
    code: str
    bytes: int

    @property
    def text(self) -> str:
        """The type as C writes it."""
        size = "void" if self.bytes == 0 else f"a type of {self.bytes} bytes"
        base = _TYPE_NAMES.get(self.code, size)
        match self.role:
            case Role.VALUE:
                return base
            case Role.POINTER:
                return f"{base} *"
            case Role.CONST_POINTER:
                return f"const {base} *"


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Memory of an array: `address` is passed, and `extent` bytes from `low` are the array's."""

    name: str
    address: int
    low: int
    extent: int
    itemsize: int
    owner: object
    """Keeps the memory alive."""

    @property
    def cell(self) -> int:
        """The largest power of two that divides the size of an element."""
        return self.itemsize & -self.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """An argument as it is passed, and the memory behind it."""

    parameter: Parameter
    value: ctypes.Array[ctypes.c_char]
    memory: Memory | None


# ---------------------------------------------------------------------------- parameters
def parameters_of(library: ctypes.CDLL, number: int, source: str, name: str) -> list[Parameter]:
    """The parameters of a kernel, as its stub tells them."""
    tell = getattr(library, f"emu_parameters_{number}")
    tell.restype = ctypes.POINTER(abi.Parameter)
    count = getattr(library, f"emu_count_{number}")()
    told = tell()
    names = _names(source, name, count)
    return [
        Parameter(names[at], Role(told[at].kind), chr(told[at].code), told[at].bytes)
        for at in range(count)
    ]


def _names(source: str, name: str, count: int) -> list[str]:
    """What the source calls the parameters; their positions if it cannot be read easily."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    start = re.search(rf"\b{re.escape(name.split('<')[0])}\s*\(([^()]*)\)\s*\{{", plain)
    if start is not None:
        pieces = [piece.strip() for piece in start[1].split(",")] if start[1].strip() else []
        names = [found[0] for piece in pieces if (found := re.findall(r"(\w+)\s*$", piece))]
        if len(names) == len(set(names)) == count:
            return names
    return [f"argument {at}" for at in range(count)]


# ---------------------------------------------------------------------------- binding
def bind(kernel: str, parameters: Sequence[Parameter], values: Sequence[object]) -> list[Bound]:
    """Arguments as they are passed. TypeError names one that does not match, and what would."""
    if len(values) != len(parameters):
        wanted = ", ".join(f"{each.text} {each.name}".replace("* ", "*") for each in parameters)
        raise TypeError(f"{kernel}({wanted}) takes {len(parameters)} arguments, got {len(values)}")
    return [
        _bind_one(f"argument {at} ({each.name}) of {kernel}", each, value)
        for at, (each, value) in enumerate(zip(parameters, values, strict=True))
    ]


def _bind_one(what: str, parameter: Parameter, value: object) -> Bound:
    is_array = isinstance(value, np.ndarray | torch.Tensor)
    if parameter.role is Role.VALUE:
        if is_array:
            raise TypeError(f"{what} is {parameter.text}, a value; got {_told(value)}")
        return Bound(parameter, packed(what, parameter, value), None)
    if not isinstance(value, np.ndarray | torch.Tensor):
        raise TypeError(
            f"{what} is {parameter.text}: pass a NumPy array or a CPU tensor, got {_told(value)}"
        )
    memory, code = _memory_of(what, parameter.name, value)
    _check_element_type(what, parameter, code, memory.itemsize, value)
    if (
        parameter.role is Role.POINTER
        and isinstance(value, np.ndarray)
        and not value.flags.writeable
    ):
        raise TypeError(f"{what} is {parameter.text}, and the array is read-only")
    return Bound(parameter, pointer(memory.address), memory)


def pointer(address: int) -> ctypes.Array[ctypes.c_char]:
    """An address as it is passed."""
    return ctypes.create_string_buffer(address.to_bytes(8, "little"), 8)


def packed(what: str, parameter: Parameter, value: object) -> ctypes.Array[ctypes.c_char]:
    """A number as it is passed, under the rules of CuPy: Python's numbers have 8 bytes."""
    code, wanted = parameter.code, parameter.text
    if isinstance(value, np.generic):
        is_same = value.dtype.char == code or np.dtype(value.dtype).str[1:] == _size_name(code)
        if code == "V":
            is_same = value.dtype.itemsize == parameter.bytes
        if not is_same:
            raise TypeError(f"{what} is {wanted}, got {value.dtype.name}; {_advice(code)}")
        return ctypes.create_string_buffer(value.tobytes(), max(8, parameter.bytes))
    if isinstance(value, bool):
        fits, passed = code == "?", "bool"
    elif isinstance(value, int):
        fits, passed = code in "qQ", "long long"
    elif isinstance(value, float):
        fits, passed = code == "d", "double"
    else:
        raise TypeError(f"{what} is {wanted}, got {_told(value)}; {_advice(code)}")
    if not fits:
        raise TypeError(
            f"{what} is {wanted}; Python's {type(value).__name__} is passed as {passed}; "
            f"{_advice(code)}"
        )
    number: Any = np.dtype(code).type(value)  # OverflowError if it does not fit
    return ctypes.create_string_buffer(number.tobytes(), 8)


def memory_of(name: str, value: np.ndarray | torch.Tensor) -> Memory:
    """The memory of an array. TypeError if the emulator cannot take it."""
    return _memory_of(name, name, value)[0]


def _size_name(code: str) -> str:
    """Kind and size, which are the same for NumPy's several names of one C type."""
    return "" if code in "VE" else np.dtype(code).str[1:]


def _advice(code: str) -> str:
    return "" if code in "VE" else f"pass numpy.{np.dtype(code).name}(...)"


def _told(value: object) -> str:
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"an array of {value.dtype}"
    return f"{type(value).__name__} {value!r}"[:60]


def _memory_of(what: str, name: str, value: np.ndarray | torch.Tensor) -> tuple[Memory, str]:
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise TypeError(f"{what}: the emulator takes tensors of the CPU, got {value.device}")
        if value.dtype not in _CODES:
            raise TypeError(f"{what}: tensors of {value.dtype} are not supported")
        code, address, size = _CODES[value.dtype], value.data_ptr(), value.element_size()
        strides = [stride * size for stride in value.stride()]
    else:
        code = {"l": "q", "L": "Q"}.get(value.dtype.char, value.dtype.char)
        address, size, strides = value.ctypes.data, value.dtype.itemsize, list(value.strides)
    if 0 in value.shape:
        return Memory(name, address, address, 0, size, value), code
    steps = [(extent - 1) * step for extent, step in zip(value.shape, strides, strict=True)]
    low = address + sum(min(0, step) for step in steps)
    extent = sum(map(abs, steps)) + size
    return Memory(name, address, low, extent, size, value), code


def _check_element_type(
    what: str, parameter: Parameter, code: str, itemsize: int, value: object
) -> None:
    wanted = parameter.code
    if wanted == "V":  # a vector or structure, of which elements are parts, or the other way round
        size = parameter.bytes
        fits = size == 0 or size % itemsize == 0 or itemsize % size == 0
    else:
        fits = code == wanted or frozenset((code, wanted)) in _INTERCHANGEABLE
    if not fits:
        raise TypeError(f"{what} is {parameter.text}, got {_told(value)}")
