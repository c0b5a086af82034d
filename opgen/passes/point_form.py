"""Cells named by the iterators that write them, instead of by their indices.

`y[n,c,(h i),(w j)]` has one cell for every (n, c, h, i, w, j). To enumerate those is to enumerate
the cells, and no index has to be divided to find its digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.fibre import Problem, TargetIndex, solve
from opgen.algebra.poly import Poly, poly, symbol
from opgen.algebra.prove import is_nonnegative
from opgen.ir.build import ZERO
from opgen.ir.context import facts_of
from opgen.ir.notation import Boundary, Iterator, Op, Reducer, Statement
from opgen.passes.gather import (
    GatheredStatement,
    Kind,
    annihilating,
    fresh_name,
    gather_statement,
    known_names,
    presence_conditions,
)


@dataclass(frozen=True, slots=True)
class PointForm:
    """A statement whose fibres belong to points of `iterators`, each the only one of `cell`."""

    gathered: GatheredStatement
    iterators: tuple[Iterator, ...]
    cell: tuple[Poly, ...]


def point_form(op: Op, statement: Statement) -> PointForm | None:
    """The statement over its own target iterators; None unless each cell has exactly one point."""
    indices = statement.target.indices
    if all(index.value.symbol is not None or index.value.is_constant for index in indices):
        return None  # the cell's own indices are as good
    if any(index.boundary is not Boundary.NONE for index in indices):
        return None
    used = frozenset[str]().union(*(index.value.symbols for index in indices))
    iterators = [iterator for iterator in statement.iterators if iterator.name in used]
    if statement.guards and not _all_inside(op, statement, iterators):
        return None  # the guards leave out points that are no cells
    alone = Statement(statement.target, Reducer.ASSIGN, tuple(iterators), (), ZERO)
    if gather_statement(op, alone).kind is not Kind.BIJECTIVE:
        return None
    iterators.sort(key=lambda iterator: _place(iterator.name, _indices(statement)))
    taken = set(known_names(op))
    coordinates = {each.name: fresh_name(each.name, taken) for each in iterators}
    names = {each.name: fresh_name(each.name, taken) for each in statement.iterators}
    values = {old: symbol(new) for old, new in names.items()}
    assumed = annihilating(statement)
    presence = presence_conditions(op, assumed)
    fibre = solve(
        Problem(
            tuple((names[each.name], each.extent) for each in statement.iterators),
            tuple(guard.substitute(values) for guard in (*statement.guards, *presence)),
            tuple(TargetIndex(values[each.name], each.extent) for each in iterators),
            tuple(coordinates.values()),
            known_names(op),
        ),
        facts_of(op),
    )
    if fibre.is_enumerated:
        return None
    gathered = GatheredStatement(
        statement,
        tuple(names.items()),
        tuple(coordinates.values()),
        (fibre,),
        assumed,
        Kind.GATHER,
    )
    own = {old: symbol(new) for old, new in coordinates.items()}
    return PointForm(
        gathered,
        tuple(replace(each, name=coordinates[each.name]) for each in iterators),
        tuple(value.substitute(own) for value in _indices(statement)),
    )


def _all_inside(op: Op, statement: Statement, iterators: Sequence[Iterator]) -> bool:
    """Whether every point of the iterators is a cell, whatever the statement's guards say."""
    facts = facts_of(op)
    for iterator in iterators:
        facts = facts.with_bounds(iterator.name, poly(0), iterator.extent - 1)
    extents = op.extents(statement.target.tensor)
    return all(
        is_nonnegative(value, facts) and is_nonnegative(extent - 1 - value, facts)
        for value, extent in zip(_indices(statement), extents, strict=True)
    )


def _indices(statement: Statement) -> tuple[Poly, ...]:
    """The indices of the target."""
    return tuple(index.value for index in statement.target.indices)


def _place(name: str, indices: tuple[Poly, ...]) -> tuple[int, int, int]:
    """Where an iterator comes in the order of the cells: by dim, then the larger step first."""
    for axis, value in enumerate(indices):
        if name in value.symbols:
            factors = [
                (len(monomial), coefficient)
                for monomial, coefficient in value.terms.items()
                if any(name in atom.symbols for atom in monomial)
            ]
            degree, coefficient = max(factors)
            return axis, -degree, -coefficient
    raise AssertionError(name)
