"""Float attributes that are exponents: copies of a kernel for the values that they mostly have.

    if (n[3] == 1 && n[5] == 1 && call->numbers[0] == 2) {
        p_y(call->tensors[0], n[2], 1, call->tensors[1], n[4], 1, n[0], n[1], 2, begin, end);
        return;
    }

In such a copy powers are products and roots (`opgen.runtime.functions_source`), as PyTorch's are
for a number. `x**gamma` of a million numbers takes 0.1 ms for 2 in place of 1.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from opgen.ir.loop_parts import held
from opgen.ir.loops import (
    Accumulate,
    Argument,
    AtomicAdd,
    Call,
    Kernel,
    Number,
    Scalar,
    Store,
    walk,
)

_USUAL: Final = (2.0, 1.0, 3.0, 0.5, -1.0, 0.0)
"""The values that have copies, the most usual one first. Most of them less one make products, too,
as in gradients."""

_FEW: Final = 3
_MOST: Final = 9
"""How many values a kernel may compute that has all copies, and one that has the first: each copy
takes the compiler as long again."""


@dataclass(frozen=True, slots=True)
class Exponent:
    """A float attribute, and its values for which a kernel has copies."""

    name: str
    values: tuple[float, ...]


def exponent(kernel: Kernel) -> Exponent | None:
    """The only float attribute of which exponents of a kernel are made, beside numbers."""
    nodes = tuple(walk(kernel.body))
    computed = sum(isinstance(node, Accumulate | AtomicAdd | Store) for node in nodes)
    found: set[str] = set()
    for node in nodes:
        for value in held(node):
            if isinstance(value, Call) and value.primitive == "pow":
                found.update(_attributes(value.arguments[1]))
    if len(found) != 1 or computed > _MOST:
        return None
    return Exponent(found.pop(), _USUAL if computed <= _FEW else _USUAL[:1])


def _attributes(value: Scalar) -> Iterator[str]:
    """The float attributes of a value that is made of these and of numbers; none of another one."""
    names: list[str] = []
    waiting = [value]
    while waiting:
        match waiting.pop():
            case Argument(name=name):
                names.append(name)
            case Call(arguments=arguments):
                waiting += arguments
            case Number():
                pass
            case _:
                return
    yield from names
