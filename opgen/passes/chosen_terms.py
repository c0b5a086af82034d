"""Sums that ask for each term whether it is the one: on the CPU, its place is computed.

The gradient of a maximum over windows gives what flows back to the first term that held it,

    grad_x[n,c, 2*i + k - 1 ?drop, 2*j + l - 1 ?drop] += select(first[n,c,i,j] == 3*k + l,
        grad_y[n,c,i,j], 0) for k in 3, l in 3

A cell of the image looks through all windows that it lies in, and asks each whether its maximum was
there: for windows of 5 by 5 25 times as much work as there are windows. The number says where:

    grad_x[n,c, 2*i + first[n,c,i,j]//3 - 1 ?drop, 2*j + first[n,c,i,j]%3 - 1 ?drop] +=
        grad_y[n,c,i,j] if first[n,c,i,j] >= 0, first[n,c,i,j] <= 8

Points are then gone through as by `passes.scatters`, images by threads of their own: in every run a
cell gets its terms in the order of points.

A maximum up to each cell is one of a window that grows, of half the row for a cell:

    grad_x[n,j] = sum(i if i >= j) select(first[n,i] == j, grad_y[n,i], 0)

looks through as many as there are pairs, and `grad_x[n, first[n,i] ?drop] += grad_y[n,i]` takes as
long as there are cells, wherever the numbers come from.

It is worth it where windows overlap, or may: cells that lie in one window at most go as they lie in
memory. And where an iterator of images is an index by itself; a single one is one thread's. The
numbers are given, as those that a forward pass kept: where a gradient looks for them, in 16 bits,
cells that look for their terms take no longer for the windows that are usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, load, symbol
from opgen.ir.indices import digits, digits_of, extents_of, product
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    Value,
)
from opgen.ir.walk import access_polynomials, expression_polynomials
from opgen.passes.scatters import is_rounded


def with_chosen_terms(op: Op) -> Op:
    """The op where sums of terms that a number chooses are made of the chosen ones."""
    statements = tuple(_of_chosen(op, each) for each in op.statements)
    return op if statements == op.statements else replace(op, statements=statements)


@dataclass(frozen=True, slots=True)
class _Choice:
    """`select(number == place, value, 0)`, the place a mixed-radix number of `names`."""

    number: Access
    names: tuple[str, ...]
    value: Expr


def _of_chosen(op: Op, statement: Statement) -> Statement:
    """The statement with one point for each choice; itself where it makes none of this form."""
    extents = extents_of(statement.iterators)
    found = _choice(statement, extents)
    if found is None or not _may_be_chosen(op, statement, found):
        return statement
    if not _is_worth_it(statement, found, extents):
        return statement
    number = load(found.number.tensor, (index.value for index in found.number.indices))
    counts = [extents[name] for name in found.names]
    places = dict(zip(found.names, digits_of(number, counts), strict=True))
    count = product(counts)
    inside = Condition(number), Condition(count - 1 - number)
    guards = (each.substitute(places) for each in statement.guards)
    return replace(
        statement,
        target=replace(
            statement.target,
            indices=tuple(_moved(each, places) for each in statement.target.indices),
        ),
        iterators=tuple(each for each in statement.iterators if each.name not in places),
        guards=(*guards, *inside),
        body=found.value,
        is_scattered=True,
    )


def _moved(index: Index, places: Mapping[str, Poly]) -> Index:
    """An index at the chosen place, which is inside wherever the term was: nothing is proved of
    numbers in memory, so that cells outside are left out."""
    if index.value.symbols.isdisjoint(places):
        return index
    boundary = Boundary.DROP if index.boundary is Boundary.NONE else index.boundary
    return replace(index, value=index.value.substitute(places), boundary=boundary)


def _choice(statement: Statement, extents: Mapping[str, Poly]) -> _Choice | None:
    """The choice that a body is."""
    found = asked_for(statement.body)
    names = None if found is None else digits(found[1], extents)
    return None if found is None or names is None else _Choice(found[0], names, found[2])


def asked_for(body: Expr) -> tuple[Access, Poly, Expr] | None:
    """The number, the place and the value of a body `select(number == place, value, 0)`."""
    match body:
        case Apply(
            primitive="select",
            arguments=(
                Apply(primitive="eq", arguments=(Read(access=number), Value(value=place))),
                value,
                Constant(value=0),
            ),
        ):
            return number, place, value
        case _:
            return None


def is_given(op: Op, number: Access) -> bool:
    """Whether a number is read from an input that is there, without a mode."""
    tensor = op.tensor(number.tensor)
    return (
        tensor in op.inputs
        and isinstance(tensor, Tensor)
        and tensor.dtype.is_integer
        and tensor.default is None
        and all(index.boundary is Boundary.NONE for index in number.indices)
    )


def _is_looked_for(op: Op, number: Access) -> bool:
    """Whether a number is read from a temporary of the op, without a mode."""
    tensor = op.tensor(number.tensor)
    are_plain = all(index.boundary is Boundary.NONE for index in number.indices)
    return tensor in op.temporaries and are_plain


def _may_be_chosen(op: Op, statement: Statement, choice: _Choice) -> bool:
    """Whether the number is given, and nothing but the target depends on what it chooses."""
    names = frozenset(choice.names)
    target = op.tensor(statement.target.tensor)
    if statement.reducer is not Reducer.ADD or is_rounded(target):
        return False
    if not is_given(op, choice.number) and not (
        _is_up_to(statement, choice) and _is_looked_for(op, choice.number)
    ):
        return False
    elsewhere = [*expression_polynomials(choice.value), *access_polynomials(choice.number)]
    guards = [guard.value for guard in statement.guards]
    values = access_polynomials(statement.target)
    if any(each.is_data_dependent for each in (*elsewhere, *guards, *values)):
        return False
    elsewhere += () if _is_up_to(statement, choice) else guards
    return all(names.isdisjoint(each.symbols) for each in elsewhere)


def _is_up_to(statement: Statement, choice: _Choice) -> bool:
    """Whether cells have the terms up to their own place, or from it on."""
    extents = extents_of(statement.iterators)
    moving = frozenset(choice.names)
    return any(
        not moving.isdisjoint(guard.value.symbols)
        and not (guard.value.symbols & extents.keys()) <= moving
        for guard in statement.guards
    )


def _is_worth_it(statement: Statement, choice: _Choice, extents: Mapping[str, Poly]) -> bool:
    """Whether cells may be those of several points, but not of those of two images."""
    names = frozenset(choice.names)
    values = list(access_polynomials(statement.target))
    overlap = any(
        not names.isdisjoint(each.symbols)
        and not names.issuperset(each.symbols & extents.keys())
        and digits(each, extents) is None
        for each in values
    )
    return _is_up_to(statement, choice) or (
        overlap
        and any(
            values.count(symbol(name)) == 1 and sum(name in each.symbols for each in values) == 1
            for name in extents.keys() - names
        )
    )
