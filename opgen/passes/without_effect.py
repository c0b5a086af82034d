"""Temporaries that no output depends on, though they are read: the derivative along them is zero.

A softmax subtracts the greatest score so that no exponential overflows. Any other number would give
the same quotients, so nothing has to flow back through the maximum, and nobody has to find out
where it was. `log(sum(d) exp(x[d] - peak[])) + peak[]` is as independent of `peak`.

That is found as follows. Let a cell of a temporary grow at the rate of 1. The cells that read it
change at the rate `scale * value + shift` for two numbers, or nothing is known of them:

    peak                   value' = 1
    x - peak               value' = -1
    exp(x - peak)          value' = -value
    sum of such            value' = -value, if all terms read the same cell of `peak`
    quotient of such       value' = 0

This is differentiation by the rules of `ir.primitives`, along one direction: the derivative of
`select` is that of its branches, and integers have none. An output of the rate 0 does not depend
on the temporary, whatever its elements are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from opgen.algebra.poly import Poly, symbol
from opgen.ir.build import literal
from opgen.ir.indices import covers_plainly, extents_of
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    DType,
    Expr,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    reads,
)
from opgen.ir.primitives import PRIMITIVES


def without_effect(op: Op) -> frozenset[str]:
    """The temporaries of floating type along which the derivative of every output is zero."""
    return frozenset(
        tensor.name
        for tensor in op.temporaries
        if not tensor.dtype.is_integer and _leaves_alone(op, tensor.name)
    )


@dataclass(frozen=True, slots=True)
class _Pace:
    """A value changes at the rate `scale * value + shift`."""

    scale: Fraction = Fraction(0)
    shift: Fraction = Fraction(0)


_STILL: Final = _Pace()


@dataclass(frozen=True, slots=True)
class _Rate:
    """The pace of a value while the cell `at` of the temporary grows at the rate 1, which stays as
    it is while other cells do."""

    pace: _Pace
    at: tuple[Poly, ...] = ()


class _UnknownError(Exception):
    """The rate is of no such form."""


def _leaves_alone(op: Op, name: str) -> bool:
    cell = tuple(symbol(_place(axis)) for axis in range(len(op.extents(name))))
    rates: dict[str, _Rate | None] = {name: _Rate(_Pace(shift=Fraction(1)), cell)}
    is_read = False
    for statement in op.statements:
        target = statement.target.tensor
        is_read |= any(access.tensor == name for access in reads(statement.body))
        if target == name:
            if is_read:
                return False  # some readers see less of it than others
            continue
        try:
            found = _written(op, statement, rates)
        except _UnknownError:
            rates[target] = None
        else:
            if rates.setdefault(target, found) != found:
                rates[target] = None
    return all(rates.get(output.name) == _Rate(_STILL) for output in op.outputs)


def _place(axis: int) -> str:
    """The symbol of a cell's index along an axis of the tensor that it is in."""
    return f"index {axis}"


# ---------------------------------------------------------------------------- statements
def _written(op: Op, statement: Statement, rates: _Rates) -> _Rate:
    """The rate of the cells that a statement writes, in terms of their indices."""
    target = statement.target
    if statement.reducer.is_argument or _dtype(op, target.tensor).is_integer:
        return _Rate(_STILL)
    rate = _rate(statement.body, rates)
    if rate.pace == _STILL:
        return rate
    if statement.reducer is Reducer.MULTIPLY:
        raise _UnknownError
    extents = extents_of(statement.iterators)
    if rate.pace.shift:
        # Cells that are not written stay as they are, and a sum would shift by each of its terms.
        is_whole = covers_plainly(target, op.extents(target.tensor), extents)
        if not is_whole or statement.guards or statement.reducer is Reducer.ADD:
            raise _UnknownError
    return _Rate(rate.pace, _in_cells(op, target, rate.at, extents.keys()))


def _in_cells(
    op: Op, target: Access, at: tuple[Poly, ...], names: AbstractSet[str]
) -> tuple[Poly, ...]:
    """A cell in terms of the indices of the one that is written, for all that joins in that.

    A number that an input holds says where both are: all that joins in `z[i[e]]` reads `peak[i[e]]`
    in the same cell.
    """
    plain, given = {}, {}
    for axis, index in enumerate(target.indices):
        symbol_of, is_plain = index.value.symbol, index.boundary is Boundary.NONE
        if is_plain and symbol_of is not None and symbol_of in names:
            plain[symbol_of] = symbol(_place(axis))
        elif is_plain and all(op.tensor(load.name) in op.inputs for load in index.value.loads):
            given[index.value] = symbol(_place(axis))
    found = []
    for value in at:
        known = given.get(value) if value.is_data_dependent else None
        if known is None and not value.symbols & names <= plain.keys():
            raise _UnknownError  # what joins in one cell may belong to several of the temporary
        found.append(value.substitute(plain) if known is None else known)
    return tuple(found)


def _dtype(op: Op, name: str) -> DType:
    tensor = op.tensor(name)
    assert isinstance(tensor, Tensor)
    return tensor.dtype


# ---------------------------------------------------------------------------- expressions
_Rates = Mapping[str, _Rate | None]
"""What is known of the tensors that were written so far; None: that it is of no such form."""


def _rate(expr: Expr, rates: _Rates) -> _Rate:
    """The rate of an expression at a point, in terms of iterators."""
    match expr:
        case Read(access=access):
            return _rate_of_read(access, rates)
        case Apply(primitive="select", arguments=(_, *branches)):
            return _joined(_paces_agree, branches, rates)
        case Apply(primitive=name, arguments=arguments):
            if PRIMITIVES[name].partials is None:
                return _Rate(_STILL)
            return _joined(_RULES.get(name, _unmoved), arguments, rates)
        case _:
            return _Rate(_STILL)


def _rate_of_read(access: Access, rates: _Rates) -> _Rate:
    rate = rates.get(access.tensor, _Rate(_STILL))
    if rate is None:
        raise _UnknownError
    if rate.pace == _STILL:
        return rate
    if any(index.boundary is not Boundary.NONE for index in access.indices):
        raise _UnknownError
    values = {_place(axis): index.value for axis, index in enumerate(access.indices)}
    return _Rate(rate.pace, tuple(value.substitute(values) for value in rate.at))


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument of a primitive with its pace, and the number that it is, if it is a literal."""

    pace: _Pace
    number: Fraction | None


_Rule = Callable[..., _Pace]


def _joined(rule: _Rule, arguments: Sequence[Expr], rates: _Rates) -> _Rate:
    """The rate of a primitive by its rule; unknown where arguments follow different cells."""
    found = [_rate(argument, rates) for argument in arguments]
    cells = {rate.at for rate in found if rate.pace != _STILL}
    if not cells:
        return _Rate(_STILL)
    if len(cells) > 1:
        raise _UnknownError
    pairs = zip(found, arguments, strict=True)
    pace = rule(*(_Argument(rate.pace, _number(argument)) for rate, argument in pairs))
    return _Rate(pace, *cells) if pace != _STILL else _Rate(_STILL)


def _number(expr: Expr) -> Fraction | None:
    value = literal(expr)
    return Fraction(value) if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------------------- primitives
def _unmoved(*_: _Argument) -> _Pace:
    raise _UnknownError


def _require(holds: bool) -> None:
    if not holds:
        raise _UnknownError


def _paces_agree(*arguments: _Argument) -> _Pace:
    """The pace of either argument; 0 has every scale."""
    paces = {each.pace for each in arguments if each.number != 0}
    _require(len(paces) == 1)
    (pace,) = paces
    _require(not pace.shift or all(each.number != 0 for each in arguments))
    return pace


def _added(a: _Argument, b: _Argument) -> _Pace:
    _require(a.pace.scale == b.pace.scale)
    return _Pace(a.pace.scale, a.pace.shift + b.pace.shift)


def _negated(a: _Argument) -> _Pace:
    return _Pace(a.pace.scale, -a.pace.shift)


def _multiplied(a: _Argument, b: _Argument) -> _Pace:
    for one, other in ((a, b), (b, a)):
        if one.number is not None:
            return _Pace(other.pace.scale, other.pace.shift * one.number)
    return _Pace(_scale(a) + _scale(b))


def _divided(a: _Argument, b: _Argument) -> _Pace:
    if b.number:
        return _Pace(a.pace.scale, a.pace.shift / b.number)
    return _Pace(_scale(a) - _scale(b))


def _raised(a: _Argument, b: _Argument) -> _Pace:
    _require(b.number is not None)
    assert b.number is not None
    return _Pace(_scale(a) * b.number)


def _power(exponent: Fraction) -> _Rule:
    return lambda a: _Pace(_scale(a) * exponent)


def _exponential(a: _Argument) -> _Pace:
    _require(not a.pace.scale)
    return _Pace(a.pace.shift)


def _logarithm(a: _Argument) -> _Pace:
    return _Pace(shift=_scale(a))


def _scale(a: _Argument) -> Fraction:
    """The scale of a value that is not shifted."""
    _require(not a.pace.shift)
    return a.pace.scale


_RULES: Final[Mapping[str, _Rule]] = {
    "add": _added,
    "sub": lambda a, b: _added(a, _Argument(_negated(b), None)),
    "neg": _negated,
    "mul": _multiplied,
    "div": _divided,
    "pow": _raised,
    "min": _paces_agree,
    "max": _paces_agree,
    "abs": _power(Fraction(1)),
    "relu": _power(Fraction(1)),
    "sqrt": _power(Fraction(1, 2)),
    "rsqrt": _power(Fraction(-1, 2)),
    "exp": _exponential,
    "log": _logarithm,
}
"""The pace of a primitive by those of its arguments, one of which is not still."""
