"""Ops as the dispatcher of PyTorch knows them: name, schema, and attributes as single numbers.

The dispatcher takes tensors, integers and floats. A tuple attribute is one integer for each
element, a flag is 0 or 1, and a choice is its position. Integers that may come from sizes are
SymInts: a compiled model is not compiled again when they change.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opgen.runtime.description import Attribute

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

NAMESPACE = "opgen"

Number = int | float
Numbers = Number | tuple[int, ...]


def schema(operation: Operation) -> str:
    """The signature, without a name in front."""
    arguments: list[tuple[str, str]] = []
    for declared in operation.inputs:
        kind = "Tensor" if declared.default is None else "Tensor?"
        arguments.append((kind, declared.name))
    for attribute in operation.attributes:
        kind = _kind(attribute)
        if attribute.length is None:
            arguments.append((kind, attribute.name))
        else:
            arguments += [(kind, f"{attribute.name}_{at}") for at in range(attribute.length)]
    names = _identifiers(name for _, name in arguments)
    listed = ", ".join(f"{kind} {name}" for (kind, _), name in zip(arguments, names, strict=True))
    results = ", ".join("Tensor" for _ in operation.outputs)
    return f"({listed}) -> " + (results if len(operation.outputs) == 1 else f"({results})")


def registered_name(operation: Operation) -> str:
    """The name of an op, and a hash of what it computes: saved programs survive upgrades."""
    identity = f"{operation.digest}\0{schema(operation)}"
    (name,) = _identifiers((operation.name,))
    return f"{name}_{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def flatten(values: Iterable[Numbers]) -> tuple[Number, ...]:
    """Values of attributes as the dispatcher takes them."""
    flat: list[Number] = []
    for value in values:
        if isinstance(value, tuple):
            flat.extend(value)
        else:
            flat.append(value)
    return tuple(flat)


def unflatten(attributes: Sequence[Attribute], flat: Sequence[Number]) -> tuple[Numbers, ...]:
    """Values of attributes from what the dispatcher gives."""
    values: list[Numbers] = []
    at = 0
    for attribute in attributes:
        if attribute.length is None:
            values.append(flat[at])
            at += 1
        else:
            values.append(tuple(flat[at : at + attribute.length]))  # type: ignore[arg-type]
            at += attribute.length
    return tuple(values)


def _kind(attribute: Attribute) -> str:
    match attribute.type:
        case "int" | "size":
            return "SymInt"
        case "float":
            return "float"
        case "bool" | "choice":
            return "int"
        case unexpected:
            raise AssertionError(unexpected)


def _identifiers(names: Iterable[str]) -> tuple[str, ...]:
    """Names that mean nothing else in a schema, all different."""
    found: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"\W", "", name, flags=re.ASCII).lstrip("_")
        text = plain if plain[:1].isalpha() else f"v{plain}"
        while keyword.iskeyword(text) or text in _RESERVED or text in found:
            text += "_"
        found[text] = None
    return tuple(found)


_RESERVED = frozenset(
    (
        *("Tensor", "Scalar", "SymInt", "int", "float", "bool", "str", "complex", "number"),
        *("Device", "Layout", "Generator", "Dimname", "Storage", "Stream", "t", "inf", "nan"),
        *("dict", "Dict", "Future", "Any", "AnyClassType", "Capsule", "self", "from"),
    )
)


def told_apart(numbers: Sequence[Number]) -> tuple[Any, ...]:
    """Numbers as a part of a key: 0.0 and -0.0 are equal, but 1/x tells them apart; NaN is not."""
    return tuple([n.hex() if type(n) is float else n for n in numbers])
