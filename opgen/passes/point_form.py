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
from opgen.ir.names import fresh_name
from opgen.ir.notation import Access, Boundary, Index, Iterator, Op, Reducer, Statement
from opgen.passes.gather import (
    GatheredStatement,
    Kind,
    annihilating,
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

    def cell_at(self, point: Sequence[Poly]) -> tuple[Poly, ...]:
        """The cell for these values of the iterators."""
        here = {each.name: value for each, value in zip(self.iterators, point, strict=True)}
        return tuple(value.substitute(here) for value in self.cell)


def point_form(op: Op, statement: Statement) -> PointForm | None:
    """The statement over its own target iterators; None unless each cell has exactly one point.

    A dim that is no composite of iterators of its own keeps its index: `y[n,(g o), 2*h + k]` is
    enumerated by n, g, o and the index of the last dim.
    """
    form = _Cells.of(op, statement)
    if form is None or gather_statement(op, form.alone).kind is not Kind.BIJECTIVE:
        return None
    if statement.guards and not _all_inside(op, form.alone):
        return None  # the guards leave out points that are no cells
    indices = tuple(index.value for index in form.alone.target.indices)
    iterators = sorted(form.alone.iterators, key=lambda each: _place(each.name, indices))
    taken = set(known_names(op))
    coordinates = {each.name: fresh_name(each.name, taken) for each in iterators}
    names = {each.name: fresh_name(each.name, taken) for each in statement.iterators}
    values = {old: symbol(new) for old, new in names.items()}
    reached = {**values, **{new: old.substitute(values) for new, old in form.kept.items()}}
    assumed = annihilating(statement)
    presence = presence_conditions(op, assumed)
    fibre = solve(
        Problem(
            tuple((names[each.name], each.extent) for each in statement.iterators),
            tuple(guard.substitute(values) for guard in (*statement.guards, *presence)),
            tuple(TargetIndex(reached[each.name], each.extent) for each in iterators),
            tuple(coordinates.values()),
            known_names(op),
            op.sizes,
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
        tuple(value.substitute(own) for value in indices),
    )


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of a target as the points of `alone`.

    `kept` are indices of the target for which `alone` has an iterator of that name.
    """

    alone: Statement
    kept: dict[str, Poly]

    @classmethod
    def of(cls, op: Op, statement: Statement) -> _Cells | None:
        """None where no dim is a composite, or the target is more than an index for each dim."""
        target = statement.target
        extents = op.extents(target.tensor)
        taken = {*known_names(op), *(each.name for each in statement.iterators)}
        indices: list[Index] = []
        iterators: list[Iterator] = []
        kept: dict[str, Poly] = {}
        for axis, index in enumerate(target.indices):
            others = (each.value for at, each in enumerate(target.indices) if at != axis)
            elsewhere = frozenset[str]().union(*(value.symbols for value in others))
            own = [each for each in statement.iterators if each.name in index.value.symbols]
            if index.value.is_data_dependent:
                return None
            match index.boundary:
                case Boundary.NONE if not any(each.name in elsewhere for each in own):
                    indices.append(index)
                    iterators += own
                case Boundary.NONE | Boundary.DROP:
                    name = fresh_name(f"u{axis}", taken)
                    kept[name] = index.value
                    indices.append(Index(symbol(name)))
                    iterators.append(Iterator(name, extents[axis]))
                case _:
                    return None
        if all(index.value.symbol is not None or index.value.is_constant for index in indices):
            return None  # the cell's own indices are as good
        access = Access(target.tensor, tuple(indices))
        return cls(Statement(access, Reducer.ASSIGN, tuple(iterators), (), ZERO), kept)


def _all_inside(op: Op, alone: Statement) -> bool:
    """Whether every point of the iterators is a cell, whatever guards the statement had."""
    facts = facts_of(op)
    for iterator in alone.iterators:
        facts = facts.with_bounds(iterator.name, poly(0), iterator.extent - 1)
    return all(
        is_nonnegative(index.value, facts) and is_nonnegative(extent - 1 - index.value, facts)
        for index, extent in zip(alone.target.indices, op.extents(alone.target.tensor), strict=True)
    )


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
