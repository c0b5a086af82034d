"""What bodies of kernels are made of: nodes, and the scalars and tests in them.

Their meaning, and that of kernels, is told in `ir.loops`, which has all of these names too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly
from opgen.ir.notation import Reducer


# ---------------------------------------------------------------------------- scalars and tests
@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Argument:
    """A float attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer polynomial used as a number."""

    value: Poly


@dataclass(frozen=True, slots=True)
class Load:
    """The element of a tensor or table, in the type it is computed in. The indices are inside."""

    tensor: str
    indices: tuple[Poly, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A row of the primitive table applied to values."""

    primitive: str
    arguments: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """`then` where the test holds, else `otherwise`; the other one is not evaluated."""

    test: Test
    then: Scalar
    otherwise: Scalar


@dataclass(frozen=True, slots=True)
class Result:
    """The value of an accumulator; of the type of `tensor` where it takes that one's place."""

    accumulator: str
    tensor: str | None = None


Scalar = Number | Argument | Integer | Load | Call | Choose | Result


@dataclass(frozen=True, slots=True)
class Always:
    """True."""


@dataclass(frozen=True, slots=True)
class Inside:
    """`0 <= index < extent`; where it fails, the fault with that number (from 1) is recorded."""

    index: Poly
    extent: Poly
    fault: int | None = None


@dataclass(frozen=True, slots=True)
class Nonzero:
    """The value is not 0."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class All:
    """Every test holds; evaluated in order, up to the first that fails."""

    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """Some test holds."""

    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """`then` where the condition holds, else `otherwise`."""

    condition: Test
    then: Test
    otherwise: Test


Test = Always | Inside | Nonzero | All | Any | Either


# ---------------------------------------------------------------------------- nodes
@dataclass(frozen=True, slots=True)
class Define:
    """A named integer, constant from here on."""

    name: str
    value: Poly


@dataclass(frozen=True, slots=True)
class For:
    """A loop over `max(lower) <= name <= min(upper)`, in order.

    The terms of an `any_order` loop may be added in any order, several at a time.
    """

    name: str
    lower: tuple[Poly, ...]
    upper: tuple[Poly, ...]
    body: tuple[Node, ...]
    any_order: bool = False


@dataclass(frozen=True, slots=True)
class Lanes:
    """The values of the kernel's row with `max(lower) <= value <= min(upper)`, in any order."""

    lower: tuple[Poly, ...]
    upper: tuple[Poly, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class If:
    """The body where every condition and the test hold."""

    conditions: tuple[Condition, ...]
    body: tuple[Node, ...]
    test: Test = Always()


@dataclass(frozen=True, slots=True)
class Start:
    """Begin an accumulator for cells of `tensor`; without a value, with the reducer's identity."""

    accumulator: str
    tensor: str
    reducer: Reducer
    value: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Join a term to an accumulator. `position` and `order` are those of ARGMAX and ARGMIN."""

    accumulator: str
    reducer: Reducer
    value: Scalar
    present: Test = Always()
    position: Poly | None = None
    order: tuple[Poly, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Write a cell, converted to the tensor's element type."""

    tensor: str
    indices: tuple[Poly, ...]
    value: Scalar


@dataclass(frozen=True, slots=True)
class AtomicAdd:
    """Add to a cell that other points of the kernel may add to as well; on the CPU the `reducer`
    may be one that takes the greatest or the least of all."""

    tensor: str
    indices: tuple[Poly, ...]
    value: Scalar
    reducer: Reducer = Reducer.ADD


Node = Define | For | Lanes | If | Start | Accumulate | Store | AtomicAdd


# ---------------------------------------------------------------------------- traversal
def walk(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Every node, outermost first."""
    waiting = [*reversed(nodes)]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case For(body=body) | Lanes(body=body) | If(body=body):
                waiting.extend(reversed(body))
            case Define() | Start() | Accumulate() | Store() | AtomicAdd():
                pass
            case unexpected:
                assert_never(unexpected)
