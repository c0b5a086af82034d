"""Values at many points at once: a tensor of numbers, where they are absent, where they are faults.

The arithmetic is that of the language: an operation with one real operand is real, integers wrap
around at 64 bits, and `_TABLE` says for every primitive which absent operands make the result
absent. A fault, an index outside of its tensor, is remembered beside the value and counts only if
the value is used, because a product with an absent factor or the branch of `select` that is not
taken may hold one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

import torch

from opgen.runtime.record import record

Scalar = int | float


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """Points at which an index is outside of its dimension, and the index at every point."""

    where: torch.Tensor
    index: torch.Tensor
    tensor: str
    axis: int
    extent: int
    access: str

    def within(self, where: torch.Tensor) -> Fault | None:
        """The fault at some of its points; None if it has none there."""
        both = self.where & where
        return replace(self, where=both) if bool(both.any()) else None


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """Numbers at points: integers, or real numbers of the type `real`.

    The shapes of a value and of its masks broadcast to the shape of the points. `present` is None
    where nothing is absent; an absent value is 0.
    """

    value: torch.Tensor
    real: torch.dtype
    present: torch.Tensor | None = None
    faults: tuple[Fault, ...] = ()

    def __add__(self, other: Term | Scalar) -> Term:
        return apply("add", self, other)

    def __radd__(self, other: Scalar) -> Term:
        return apply("add", other, self)

    def __sub__(self, other: Term | Scalar) -> Term:
        return apply("sub", self, other)

    def __rsub__(self, other: Scalar) -> Term:
        return apply("sub", other, self)

    def __mul__(self, other: Term | Scalar) -> Term:
        return apply("mul", self, other)

    def __rmul__(self, other: Scalar) -> Term:
        return apply("mul", other, self)

    def __truediv__(self, other: Term | Scalar) -> Term:
        return apply("div", self, other)

    def __rtruediv__(self, other: Scalar) -> Term:
        return apply("div", other, self)

    def __neg__(self) -> Term:
        return apply("neg", self)

    def __floordiv__(self, other: Term | int) -> Term:
        return _integers(_floor_div, self, other)

    def __rfloordiv__(self, other: int) -> Term:
        return _integers(_floor_div, other, self)

    def __ge__(self, other: Term | Scalar) -> Term:
        return apply("ge", self, other)

    def __gt__(self, other: Term | Scalar) -> Term:
        return apply("gt", self, other)

    def __le__(self, other: Term | Scalar) -> Term:
        return apply("le", self, other)

    def __lt__(self, other: Term | Scalar) -> Term:
        return apply("lt", self, other)


def term(value: Term | Scalar, like: Term) -> Term:
    """A number as a term in the company of another."""
    if isinstance(value, Term):
        return value
    return number(value, like.real, like.value.device)


def number(value: Scalar, real: torch.dtype, device: torch.device) -> Term:
    """A number as a term; an integer stays one."""
    if isinstance(value, float):
        return Term(torch.tensor(value, dtype=real, device=device), real)
    wrapped = (value + 2**63) % 2**64 - 2**63
    return Term(torch.tensor(wrapped, dtype=torch.int64, device=device), real)


# ---------------------------------------------------------------------------- integers of indices
def minimum(*values: Term | int) -> Term:
    """The least of several integers."""
    return _integers(torch.minimum, *values)


def maximum(*values: Term | int) -> Term:
    """The greatest of several integers."""
    return _integers(torch.maximum, *values)


def limited(bound: Term) -> Term:
    """A bound that is read from a tensor, no further from 0 than 2**61, see `emit.polynomial`."""
    return minimum(maximum(bound, -(2**61)), 2**61)


def floor_div(a: int, b: int) -> int:
    """The floor of a / b; 0 where b is not positive, since it may be computed and not be used."""
    return a // b if b > 0 else 0


def _floor_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(b > 0, torch.div(a, b.clamp(min=1), rounding_mode="floor"), 0)


def _integers(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *values: Term | int
) -> Term:
    first, *rest = _terms(values)
    for other in rest:
        joined = function(first.value, other.value)
        first = Term(joined, first.real, None, first.faults + other.faults)
    return first


# ---------------------------------------------------------------------------- primitives
class _Absence(Enum):
    """When a result is absent; an absent argument of a present result counts as the value 0."""

    ANY = "if any argument is"
    ALL = "if all arguments are"
    FIRST = "if the first argument is"
    NEVER = "never"


@record
class _Primitive:
    function: Callable[..., torch.Tensor]
    absence: _Absence = _Absence.NEVER
    needs_float: bool = False


def apply(name: str, *arguments: Term | Scalar) -> Term:
    """A primitive of the language; at least one of the arguments is a term."""
    if name == "select":
        return _select(*_terms(arguments))
    row = _TABLE[name]
    terms = _terms(arguments)
    value = row.function(*_alike(terms, row.needs_float))
    present = _present(row.absence, terms)
    faults = tuple(fault for each in terms for fault in each.faults)
    if present is not None:
        value = torch.where(present, value, 0)
        if row.absence is _Absence.ANY:
            faults = _within(faults, present)
    return Term(value, terms[0].real, present, faults)


def _terms(values: Sequence[Term | Scalar]) -> list[Term]:
    like = next(value for value in values if isinstance(value, Term))
    return [term(value, like) for value in values]


def _alike(terms: Sequence[Term], needs_float: bool = False) -> list[torch.Tensor]:
    """The values, all of them real numbers if one is."""
    values = [each.value for each in terms]
    if needs_float or any(value.is_floating_point() for value in values):
        return [value.to(terms[0].real) for value in values]
    return values


def _present(absence: _Absence, terms: Sequence[Term]) -> torch.Tensor | None:
    masks = [each.present for each in terms]
    match absence:
        case _Absence.ANY:
            return every(mask for mask in masks if mask is not None)
        case _Absence.ALL:
            present = masks[0]
            for mask in masks[1:]:
                present = None if present is None or mask is None else present | mask
            return present
        case _Absence.FIRST:
            return masks[0]
        case _Absence.NEVER:
            return None
        case unexpected:
            assert_never(unexpected)


def every(masks: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Where all masks hold; None if there are none."""
    found: torch.Tensor | None = None
    for mask in masks:
        found = mask if found is None else found & mask
    return found


def _within(faults: Iterable[Fault], where: torch.Tensor) -> tuple[Fault, ...]:
    found = (fault.within(where) for fault in faults)
    return tuple(fault for fault in found if fault is not None)


def _select(condition: Term, then: Term, otherwise: Term) -> Term:
    holds = condition.value != 0  # absent is 0, hence false
    chosen, rest = _alike((then, otherwise))
    value = torch.where(holds, chosen, rest)
    present = None
    if then.present is not None or otherwise.present is not None:
        always = torch.ones_like(holds)
        chosen, rest = (always if t.present is None else t.present for t in (then, otherwise))
        present = torch.where(holds, chosen, rest)
    faults = condition.faults + _within(then.faults, holds) + _within(otherwise.faults, ~holds)
    return Term(value, condition.real, present, faults)


# ---------------------------------------------------------------------------- functions
def _truth(function: Callable[..., torch.Tensor]) -> _Primitive:
    return _Primitive(lambda *values: function(*values).to(torch.int64))


def _real(function: Callable[..., torch.Tensor]) -> _Primitive:
    return _Primitive(function, needs_float=True)


def _min(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where((a <= b) | (a != a), a, b)


def _max(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where((a >= b) | (a != a), a, b)


def _sign(a: torch.Tensor) -> torch.Tensor:
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


def _gelu(a: torch.Tensor) -> torch.Tensor:
    return 0.5 * a * (1 + torch.erf(math.sqrt(0.5) * a))


_A = _Absence
_TABLE: dict[str, _Primitive] = {
    "add": _Primitive(torch.add, _A.ALL),
    "sub": _Primitive(torch.sub, _A.ALL),
    "mul": _Primitive(torch.mul, _A.ANY),
    "div": _Primitive(torch.div, _A.FIRST, needs_float=True),
    "neg": _Primitive(torch.neg, _A.FIRST),
    "pow": _real(torch.pow),
    "lt": _truth(torch.lt),
    "le": _truth(torch.le),
    "gt": _truth(torch.gt),
    "ge": _truth(torch.ge),
    "eq": _truth(torch.eq),
    "ne": _truth(torch.ne),
    "and": _truth(torch.logical_and),
    "or": _truth(torch.logical_or),
    "not": _truth(torch.logical_not),
    "min": _Primitive(_min),
    "max": _Primitive(_max),
    "relu": _Primitive(lambda a: torch.where(a < 0, 0, a)),
    "abs": _Primitive(torch.abs),
    "sign": _Primitive(_sign),
    "floor": _Primitive(torch.floor),
    "ceil": _Primitive(torch.ceil),
    "round": _Primitive(torch.round),
    "exp": _real(torch.exp),
    "expm1": _real(torch.expm1),
    "log": _real(torch.log),
    "log1p": _real(torch.log1p),
    "sqrt": _real(torch.sqrt),
    "rsqrt": _real(lambda a: 1 / torch.sqrt(a)),
    "sin": _real(torch.sin),
    "cos": _real(torch.cos),
    "tan": _real(torch.tan),
    "tanh": _real(torch.tanh),
    "erf": _real(torch.erf),
    "sigmoid": _real(lambda a: 1 / (1 + torch.exp(-a))),
    "gelu": _real(_gelu),
    "silu": _real(lambda a: a / (1 + torch.exp(-a))),
    "softplus": _real(lambda a: a.clamp(min=0) + torch.log1p(torch.exp(-torch.abs(a)))),
}
"""Every primitive of the language but `select`, by the name it has in opgen's own table."""

PRIMITIVES = frozenset((*_TABLE, "select"))
"""The names that `apply` knows."""
