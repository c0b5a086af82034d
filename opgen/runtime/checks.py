"""What is checked in every call, and the sentence that says what is wrong.

Generated shape functions call the second half of this file; every message names the op, the
argument, what was expected and what was found. `known` maps a size or attribute to its value and
to where that came from: nowhere for an attribute, the formula for a `let`, else a dim of an input.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence

import torch

from opgen.runtime import compat
from opgen.runtime.description import GENERIC, Attribute, Input
from opgen.runtime.schema import Number, Numbers

Known = Mapping[str, tuple[int | bool | str, str]]

DTYPES: dict[torch.dtype, str] = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
}
"""Element types by torch's name."""

TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}

FLOATING = ("f16", "bf16", "f32", "f64")
NUMBERS = tuple(name for name in TORCH_DTYPES if name != "bool")

LARGEST = 2**62
"""The largest integer attribute: kernels compute in 64 bits, and sums with sizes must fit."""


# ---------------------------------------------------------------------------- attributes
def attribute_value(op: str, attribute: Attribute, value: object) -> int | float | tuple[int, ...]:
    """The value of an attribute as numbers: a choice as its position, one number for a tuple."""
    name = attribute.name
    if value is None and attribute.default is None:
        raise TypeError(f"{op}: attribute '{name}' has no default and was not given")
    if attribute.length is not None:
        return _tuple(op, attribute, value, attribute.length)
    match attribute.type:
        case "int":
            return _integer(op, name, value)
        case "size":
            return _size(op, name, value)
        case "float":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(_wrong_type(op, name, "a number", value))
            try:
                return float(value)
            except OverflowError:
                raise ValueError(f"{op}: attribute '{name}' is too large for a float") from None
        case "bool":
            if not isinstance(value, bool):
                raise TypeError(_wrong_type(op, name, "True or False", value))
            return int(value)
        case "choice":
            if not isinstance(value, str) or value not in attribute.choices:
                choices = _any_of(map(repr, attribute.choices))
                raise ValueError(f"{op}: attribute '{name}' must be {choices}, got {_shown(value)}")
            return attribute.choices.index(value)
        case unexpected:
            raise AssertionError(unexpected)


def _tuple(op: str, attribute: Attribute, value: object, length: int) -> tuple[int, ...]:
    """The elements of a tuple attribute; one number stands for all."""
    name = attribute.name
    number = _size if attribute.type == "size" else _integer
    if not isinstance(value, tuple | list):
        return (number(op, name, value, f"an int or {length} of them"),) * length
    if len(value) != length:
        raise ValueError(
            f"{op}: attribute '{name}' must be an int or {length} of them, got {_shown(value)}"
        )
    return tuple(number(op, f"{name}[{at}]", each) for at, each in enumerate(value))


def _integer(op: str, name: str, value: object, expected: str = "an int") -> int:
    # bool is an int to Python, and nearly always a mistake here. SymInt is an integer to torch.
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(_wrong_type(op, name, expected, value))
    if isinstance(value, int) and compat.holds(abs(value) > LARGEST):
        raise ValueError(
            f"{op}: attribute '{name}' must lie between -2**62 and 2**62, got {_shown(value)}"
        )
    return value  # type: ignore[return-value]  # a SymInt stands for the int it will be


def _size(op: str, name: str, value: object, expected: str = "an int") -> int:
    size = _integer(op, name, value, expected)
    if compat.holds(size < 0):
        raise _negative_size(op, name, size)
    return size


def sizes(op: str, attributes: Sequence[Attribute], values: Sequence[Numbers]) -> None:
    """Check the sizes among the attributes of a call once more, which proofs rest on.

    A program that was compiled or exported calls an op with numbers that nobody has looked at.
    """
    for attribute, value in zip(attributes, values, strict=True):
        if attribute.type != "size":
            continue
        for at, size in enumerate(value if isinstance(value, tuple) else (value,)):
            if fails(size >= 0):
                name = attribute.name if attribute.length is None else f"{attribute.name}[{at}]"
                raise _negative_size(op, name, size)


def _negative_size(op: str, name: str, size: Number) -> ValueError:
    return ValueError(
        f"{op}: attribute '{name}' is a size and cannot be negative, got {_shown(size)}"
    )


def _wrong_type(op: str, name: str, expected: str, value: object) -> str:
    plain = value is None or isinstance(value, torch.Tensor)
    kind = "" if plain else f" ({_type(value)})"
    if isinstance(value, torch.Tensor) and compat.is_jit_tracing():
        kind = "; torch.jit.trace makes tensors of sizes: int() of one is a constant of the trace"
    return f"{op}: attribute '{name}' must be {expected}, got {_shown(value)}{kind}"


def _shown(value: object) -> str:
    """A value in a sentence: on one line, and a tensor, which may be large, by its shape."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if torch.compiler.is_compiling() and isinstance(value, int | float | tuple | list):
        return _shown_to_a_compiler(value)
    try:
        return reprlib.repr(value).replace("\n", " ")
    except ValueError:  # Python refuses to print an int of thousands of digits
        return f"a {_type(value)}"


def _shown_to_a_compiler(value: float | tuple[object, ...] | list[object]) -> str:
    """The same where numbers may be symbols, which `torch.compile` cannot print."""
    if isinstance(value, tuple | list):
        return f"({', '.join([_shown(each) for each in value])})"
    if isinstance(value, bool):
        return repr(value)
    return f"{int(value)}" if isinstance(value, int) else "a number"


def _type(value: object) -> str:
    """The type of a value, with its module unless it is built in: a NumPy int64 is no int."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _any_of(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


# ---------------------------------------------------------------------------- tensors
def tensors(op: str, inputs: Sequence[Input], given: Sequence[object]) -> torch.device:
    """Check that arguments are tensors that fit the declared ranks; return their common device."""
    first: tuple[str, torch.device] | None = None
    for declared, value in zip(inputs, given, strict=True):
        name = declared.name
        if value is None and declared.default is not None:
            continue
        if not isinstance(value, torch.Tensor):
            found = "None" if value is None else _type(value)
            raise TypeError(f"{op}: {name} must be a tensor, got {found}")
        _dense(op, name, value)
        rank = len(declared.dims)
        fits = value.dim() >= rank - 1 if declared.batched else value.dim() == rank
        if not fits:
            expected = f"at least {rank - 1}-d" if declared.batched else f"{rank}-d"
            raise ValueError(
                f"{op}: {name} must be {expected} [{', '.join(declared.dims)}], "
                f"got shape {tuple(value.shape)}"
            )
        if first is None:
            first = name, value.device
        elif value.device != first[1]:
            raise ValueError(
                f"{op}: {name} is on {value.device} but {first[0]} is on {first[1]}; "
                "all tensors of a call must be on one device"
            )
    return torch.device("cpu") if first is None else first[1]


def _dense(op: str, name: str, tensor: torch.Tensor) -> None:
    """Check that the elements of a tensor lie in memory at its strides, and are all there is."""
    if tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else layout
        raise TypeError(f"{op}: {name} must be a dense strided tensor, got a {kind} one")


def element_types(
    op: str, inputs: Sequence[Input], given: Sequence[torch.Tensor | None], floating: bool
) -> tuple[str | None, dict[str, str]]:
    """The type that undeclared tensors share, if a tensor shows it, and that of every input."""
    shared: str | None = None
    shown_by = ""
    found: dict[str, str] = {}
    for declared, tensor in zip(inputs, given, strict=True):
        if tensor is None:
            continue
        name, dtype = declared.name, DTYPES.get(tensor.dtype)
        allowed = _allowed(declared.dtype, floating)
        if dtype is None or dtype not in allowed:
            kinds = _any_of(map(_name, allowed))
            raise TypeError(f"{op}: {name} must be {kinds}, got {_plain(tensor)}")
        found[name] = dtype
        if declared.dtype in GENERIC:
            if shared is not None and dtype != shared:
                raise TypeError(
                    f"{op}: {name} is {_plain(tensor)} but {shown_by} is "
                    f"{_name(shared)}; tensors declared without a dtype share one"
                )
            if shared is None:
                shared, shown_by = dtype, name
    return shared, found


def _allowed(declared: str, floating: bool) -> tuple[str, ...]:
    """The element types that an input declared with a type may have."""
    match declared:
        case "same" | "float":
            return FLOATING if floating else NUMBERS
        case "int":
            return ("i32", "i64")
        case _:
            return (declared,)


def _plain(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _name(dtype: str) -> str:
    return str(TORCH_DTYPES[dtype]).removeprefix("torch.")


def leading_shape(
    op: str, inputs: Sequence[Input], given: Sequence[torch.Tensor | None]
) -> torch.Size:
    """The batch dims that all inputs declared with `...` have in common."""
    found: tuple[str, torch.Size] | None = None
    for declared, tensor in zip(inputs, given, strict=True):
        if tensor is None or not declared.batched:
            continue
        own = tensor.shape[: tensor.dim() - len(declared.dims) + 1]
        if found is None:
            found = declared.name, own
        elif own != found[1]:
            raise ValueError(
                f"{op}: {declared.name} has the batch dims {tuple(own)} but {found[0]} has "
                f"{tuple(found[1])}; all inputs with ... need the same"
            )
    return torch.Size() if found is None else found[1]


# ---------------------------------------------------------------------------- shapes
def fails(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes and attributes does not hold.

    Nothing is known of sizes that a compiled program computes while it runs, such as how many
    elements of a tensor are not zero: there the condition becomes one of the program, and kernels
    check it again.
    """
    if isinstance(condition, torch.SymBool) and compat.is_unknown(condition):
        compat.check_later(condition)
        return False
    return not condition


def fits(op: str, name: str, value: int) -> None:
    """Check that kernels can compute with a size; one that is symbolic will be checked later."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{op}: {name} = {value} must lie between -2**62 and 2**62")


def indexable(
    op: str, reach: Iterable[tuple[int, Sequence[str]]], integers: Mapping[str, int]
) -> None:
    """Check that kernels can compute their indices; symbolic sizes will be checked later.

    `reach` is what none of these exceeds: products of the magnitudes of these integers, each at
    least 1, and how often each product counts. One that wrapped would be another element.
    """
    if not all(isinstance(value, int) for value in integers.values()):
        return
    sizes = {name: max(abs(value), 1) for name, value in integers.items()}
    terms = [(count * math.prod(map(sizes.__getitem__, names)), names) for count, names in reach]
    bound = sum(term for term, _ in terms)
    if bound > LARGEST:
        _, names = max(terms)
        shown = ", ".join(f"{name} = {value}" for name, value in integers.items() if name in names)
        raise ValueError(
            f"{op}: too large together: {shown}; an index, or a part of one, may come to "
            f"{_shown(bound)}, and kernels compute indices in 64 bits, up to 2**62"
        )


def addressable(op: str, name: str, shape: Sequence[int]) -> None:
    """Check that the elements of a new tensor can be counted."""
    known = all(isinstance(size, int) for size in shape)
    if known and math.prod(max(size, 1) for size in shape) > LARGEST:
        raise ValueError(f"{op}: {name} would get the shape {tuple(shape)}, which is too large")


def solved(
    op: str, where: str, found: int, factor: int, rest: int, size: str, formula: str, known: Known
) -> int:
    """The size for which `size * factor + rest == found`; ValueError if there is none."""
    greater, less = found, rest
    if isinstance(factor, int) and factor < 0:  # as in `x[N], w[K] -> y[N - K + 1]`
        greater, less, factor = rest, found, -factor
    difference = greater - less
    if not (fails(factor > 0) or fails(difference % factor == 0) or fails(difference >= 0)):
        return difference // factor
    head = f"{op}: {where} = {found} must be {formula}"
    values = _values(known)
    given = f" with {values}" if values else ""
    if factor <= 0:
        raise ValueError(f"{head}, which{given} does not determine {size}")
    if difference < 0:
        raise ValueError(f"{head}; {size} would be negative{given}")
    remainder = difference % factor
    number = str(greater) if less == 0 else f"{greater} - {less}"
    raise ValueError(
        f"{head};{given} that needs {number} to be a multiple of {factor} (remainder {remainder})"
    )


def mismatch(
    op: str, where: str, found: int, expected: int, formula: str, known: Known
) -> ValueError:
    """The error for a dim that is not what the sizes say."""
    needed = formula if formula == str(expected) else f"{formula} = {expected}"
    parts = [
        f"{name}={value!r}" + (f" from {origin}" if origin else "")
        for name, (value, origin) in known.items()
    ]
    reason = f" ({'; '.join(parts)})" if parts else ""
    return ValueError(f"{op}: {where} = {found} but the spec needs {needed}{reason}")


def negative(op: str, name: str, value: int, formula: str, known: Known) -> ValueError:
    """The error for an extent that a formula makes negative."""
    values = _values(known)
    return ValueError(
        f"{op}: {name} = {formula} = {value} is negative" + (f" ({values})" if values else "")
    )


def violated(op: str, text: str, known: Known) -> ValueError:
    """The error for a condition of the spec that a call does not meet."""
    values = _values(known)
    return ValueError(f"{op}: {text} does not hold" + (f" ({values})" if values else ""))


def unproved(op: str, text: str, known: Known) -> ValueError:
    """The error for what a proof left to the launch; `text` is a sentence about the spec."""
    return ValueError(f"{op}: {text}, but {_values(known)}")


def _values(known: Known) -> str:
    """What sizes and attributes are, and the dim that shows it; formulas are left out."""
    return ", ".join(
        f"{name}={value!r}"
        + (f" from {origin}" if origin and not origin.startswith(f"{name} = ") else "")
        for name, (value, origin) in known.items()
    )


def modular_inverse(value: int, modulus: int) -> int:
    """The x in [0, modulus) with value * x % modulus == 1 % modulus."""
    # Neither kind of number that stands for an int can be inverted.
    return 0 if modulus == 1 else pow(int(value), -1, int(modulus))


# ---------------------------------------------------------------------------- indices
def outside(op: str, tensor: str, axis: int, access: str, index: int, extent: int) -> IndexError:
    """The error for an index, read from a tensor, that leaves its dimension."""
    return IndexError(
        f"{op}: index {index} is outside of dimension {axis} of '{tensor}', which has extent "
        f"{extent} (in {access})"
    )
