"""Sums into cells that a mode brings inside as sums into a tensor with a margin, added afterwards.

The gradient of an image that is read with `?clamp` around each pixel, as by a Sobel filter, adds to
clamped cells, by one or by several statements:

    y[h + 1 ?clamp, w ?clamp] += s
    y[h - 1 ?clamp, w ?clamp] += t

Each cell at an edge has the terms of everything beyond, in each dim, from each statement, and a
kernel asks at every cell for every one of them. With a temporary that has room for what is beyond

    wide[h + 2, w] += s
    wide[h, w] += t
    y[u - 1 ?clamp, v ?clamp] += wide[u, v]

there is one statement that asks, and its terms are computed already. The others are sums of what is
at fixed distances. The cells and terms are the same, in another order of addition; where a tensor
is too small for its margin, no term is in the cells that no mode brings inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Kind, Poly, symbol
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.indices import FOLDED, extents_of
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Access,
    Boundary,
    Dim,
    Index,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
)
from opgen.ir.walk import all_reads
from opgen.passes.lane_bounds import greatest_over, least_over
from opgen.passes.new_temporaries import all_names

_FIRST, _LAST = "<first>", "<last>"  # no names of a spec

_WIDEST: Final = 16
"""The widest margin."""


@dataclass(frozen=True, slots=True)
class _Margin:
    """How many cells a dim gets in front of the first and behind the last one, and their mode."""

    mode: Boundary
    before: int = 0
    behind: int = 0


def with_margins(op: Op) -> Op:
    """The op with a temporary for each tensor whose cells have many terms from beyond its edges."""
    for name in dict.fromkeys(statement.target.tensor for statement in op.statements):
        margins = _margins(op, name)
        if margins is not None:
            op = _with_margins(op, name, margins)
    return op


def _margins(op: Op, name: str) -> tuple[_Margin | None, ...] | None:
    """The margins of the dims that have folded indices; None if the tensor stays as it is."""
    statements = [each for each in op.statements if each.target.tensor == name]
    folded = [each for each in statements if any(i.boundary in FOLDED for i in each.target.indices)]
    # A single term for each point is moved once, and would be moved twice.
    is_sum = len(folded) > 1 or any(
        len(each.iterators) > len(each.target.indices) for each in folded
    )
    is_read = any(each.tensor == name for part in op.statements for each in all_reads(part))
    only_adds = all(statement.reducer is Reducer.ADD for statement in statements)
    if not is_sum or is_read or not only_adds:
        return None
    facts = facts_of(op)
    margins: list[_Margin | None] = []
    for axis, extent in enumerate(op.extents(name)):
        indices = [(each.target.indices[axis], each) for each in statements]
        modes = {index.boundary for index, _ in indices}.difference((Boundary.NONE,))
        if modes.isdisjoint(FOLDED):
            margins.append(None)
            continue
        beyond = [_beyond(index.value, extent, each, facts) for index, each in indices]
        sizes = [each for each in beyond if each is not None]
        if len(modes) > 1 or len(sizes) < len(beyond):
            return None
        (mode,) = modes
        before, behind = (max(0, *each) for each in zip(*sizes, strict=True))
        if max(before, behind) > _WIDEST:
            return None
        margins.append(_Margin(mode, before, behind))
    return tuple(margins)


def _beyond(
    value: Poly, extent: Poly, statement: Statement, facts: Facts
) -> tuple[int, int] | None:
    """How far an index goes beyond both ends of a dim at most, if all sizes have that in common.

    None for one that falls and rises again, as `i % 3` does.
    """
    facts = with_iterators(facts, statement.iterators)
    least, largest = value, value
    for name, count in extents_of(statement.iterators).items():
        ends = name, _FIRST, _LAST, facts
        low, high = least_over(least, *ends), greatest_over(largest, *ends)
        if low is None or high is None:
            return None
        places = {_FIRST: ZERO, _LAST: count - 1}
        least, largest = low.substitute(places), high.substitute(places)
    before, behind = _at_most(-least), _at_most(largest - (extent - 1))
    if not before.is_constant or not behind.is_constant:
        return None
    return before.constant, behind.constant


def _at_most(value: Poly) -> Poly:
    """A bound that has no quotients: `n * (a // n)` is `a` at most, and more than `a - n`."""
    bound = value
    for monomial, count in value.terms.items():
        if len(monomial) != 1 or monomial[0].kind is not Kind.FLOOR_DIV:
            continue
        dividend, divisor = monomial[0].args
        if not divisor.is_constant or divisor.constant <= 0 or count % divisor.constant:
            continue
        times = count // divisor.constant
        whole = dividend if times > 0 else dividend - (divisor - 1)
        bound = bound - Poly({monomial: count}) + whole * times
    return bound


def _with_margins(op: Op, name: str, margins: Sequence[_Margin | None]) -> Op:
    tensor = op.tensor(name)
    assert isinstance(tensor, Tensor)
    dims = tuple(
        dim if margin is None else Dim(dim.extent + margin.before + margin.behind)
        for dim, margin in zip(tensor.dims, margins, strict=True)
    )
    wide = Tensor(fresh_name(f"{name}_wide", all_names(op)), dims, tensor.dtype)
    last = max(at for at, each in enumerate(op.statements) if each.target.tensor == name)
    statements: list[Statement] = []
    for at, statement in enumerate(op.statements):
        own = statement.target.tensor == name
        statements.append(_moved(statement, wide, margins) if own else statement)
        if at == last:
            statements.append(_folded(name, wide, margins))
    temporaries = (*op.temporaries, wide)
    return replace(op, temporaries=temporaries, statements=tuple(statements))


def _moved(statement: Statement, wide: Tensor, margins: Sequence[_Margin | None]) -> Statement:
    """The statement with the temporary for its target."""
    indices = tuple(
        index if margin is None else Index(index.value + margin.before)
        for index, margin in zip(statement.target.indices, margins, strict=True)
    )
    return replace(statement, target=Access(wide.name, indices))


def _folded(name: str, wide: Tensor, margins: Sequence[_Margin | None]) -> Statement:
    """What adds the temporary to the tensor."""
    iterators = tuple(
        Iterator(BATCH_ITERATOR if wide.batched and axis == 0 else f"u{axis}", dim.extent)
        for axis, dim in enumerate(wide.dims)
    )
    cells = tuple(Index(symbol(each.name)) for each in iterators)
    target = tuple(
        index if margin is None else Index(index.value - margin.before, margin.mode)
        for index, margin in zip(cells, margins, strict=True)
    )
    body = Read(Access(wide.name, cells))
    return Statement(Access(name, target), Reducer.ADD, iterators, (), body)
