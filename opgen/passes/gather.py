"""Relations to gather form: for every cell of the target, the points that reach it.

Before: a statement relates the points of a box to cells of a tensor. After: `pieces` enumerate, for
a cell given by its coordinates, exactly the points of its fibre, each in one piece. A statement
whose target index is read from a tensor may have no such form; its kind is then SCATTER, and the
fibres, which try every point for every cell, are still right. A statement that `passes.scatters`
marked is of that kind too, and nobody asks for its fibres: it has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator as Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.fibre import Fibre, Problem, TargetIndex, solve
from opgen.algebra.poly import Poly, symbol
from opgen.ir.context import facts_of
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Index,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Value,
    substitute_access,
)
from opgen.ir.primitives import PRIMITIVES, Absence


class Kind(Enum):
    """How the points of a statement lie over the cells of its target, simplest first."""

    BIJECTIVE = "bijective"  # every cell has exactly one point
    INJECTIVE = "injective"  # every cell has at most one
    GATHER = "gather"  # the points of a cell are enumerated by loops
    ENUMERATED = "enumerated"  # some loop tries points that belong to other cells
    SCATTER = "scatter"  # the target is known, or known sooner, at the point: iterate over points


@dataclass(frozen=True, slots=True)
class Inside:
    """The condition that one `?0` index of an access lies inside its dimension."""

    access: Access
    axis: int


@dataclass(frozen=True, slots=True)
class GatheredStatement:
    """A statement and its fibres.

    `pieces` are disjoint. In them an iterator goes by the name that `names` gives it, since it may
    have had to make way for a coordinate. `assumed` are the `?0` reads that were made part of the
    fibre: where a piece enumerates a point, they are inside.
    """

    statement: Statement
    names: tuple[tuple[str, str], ...]
    coordinates: tuple[str, ...]
    pieces: tuple[Fibre, ...]
    assumed: tuple[Inside, ...]
    kind: Kind


def gather(op: Op) -> tuple[GatheredStatement, ...]:
    """Solve every statement of an op for the cells of its target."""
    facts = facts_of(op)
    return tuple(_gather(op, statement, facts) for statement in op.statements)


def gather_statement(op: Op, statement: Statement) -> GatheredStatement:
    """Solve one statement over the tensors of an op."""
    return _gather(op, statement, facts_of(op))


def _gather(op: Op, statement: Statement, facts: Facts) -> GatheredStatement:
    extents = op.extents(statement.target.tensor)
    coordinates, names = _name_coordinates(op, statement, extents)
    values = {old: symbol(new) for old, new in names.items()}
    assumed = annihilating(statement)
    if statement.is_scattered:
        pairs = tuple(names.items())
        return GatheredStatement(statement, pairs, coordinates, (), assumed, Kind.SCATTER)
    presence = presence_conditions(op, assumed)
    guards = tuple(guard.substitute(values) for guard in (*statement.guards, *presence))
    iterators = tuple((names[iterator.name], iterator.extent) for iterator in statement.iterators)
    indices = substitute_access(statement.target, values).indices
    pieces = tuple(
        solve(
            Problem(iterators, (*guards, *folds), target, coordinates, known_names(op), op.sizes),
            facts,
        )
        for target, folds in _target_pieces(indices, extents)
    )
    kind = _classify(statement.target, pieces)
    return GatheredStatement(statement, tuple(names.items()), coordinates, pieces, assumed, kind)


def presence_conditions(op: Op, assumed: tuple[Inside, ...]) -> tuple[Condition, ...]:
    """That all of these indices are inside."""
    return tuple(
        condition
        for inside in assumed
        for condition in inside_conditions(
            inside.access.indices[inside.axis].value,
            op.extents(inside.access.tensor)[inside.axis],
        )
    )


def inside_conditions(index: Poly, extent: Poly) -> tuple[Condition, Condition]:
    """`0 <= index < extent`."""
    return Condition(index), Condition(extent - 1 - index)


def is_data_dependent(value: Poly) -> bool:
    """Whether an index is read from a tensor."""
    return value.is_data_dependent


# ---------------------------------------------------------------------------- names
def known_names(op: Op) -> tuple[str, ...]:
    """The symbols that are no iterators: sizes, lets, attributes."""
    names = [*op.sizes, *(let.name for let in op.lets), BATCH]
    for attribute in op.attributes:
        names.extend(attribute.symbols)
    return tuple(dict.fromkeys(names))


def _name_coordinates(
    op: Op, statement: Statement, extents: tuple[Poly, ...]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Coordinates named after the iterators or sizes of the target, and new names of iterators.

    A dim indexed by a bare iterator lends its name to the coordinate, since both are the same
    number; another one is named after its size, `W` giving `w`.
    """
    taken = set(known_names(op))
    iterators = {iterator.name for iterator in statement.iterators}
    coordinates: list[str] = []
    for axis, (index, extent) in enumerate(zip(statement.target.indices, extents, strict=True)):
        bare = index.value.symbol
        wanted = f"u{axis}"
        if bare is not None and bare in iterators and bare not in coordinates:
            wanted = "batch" if bare == BATCH_ITERATOR else bare
        elif extent.symbol is not None and extent.symbol != BATCH:
            lower = extent.symbol.lower()
            if lower not in iterators and "[" not in lower:
                wanted = lower
        coordinates.append(fresh_name(wanted, taken))
    renamed = {
        iterator.name: fresh_name(
            "batch" if iterator.name == BATCH_ITERATOR else iterator.name, taken
        )
        for iterator in statement.iterators
    }
    return tuple(coordinates), renamed


# ---------------------------------------------------------------------------- absence
_SKIPPING: Final = frozenset(
    {Reducer.ADD, Reducer.MAX, Reducer.MIN, Reducer.ARGMAX, Reducer.ARGMIN}
)
"""Reducers for which a point with an absent body does nothing."""


def annihilating(statement: Statement) -> tuple[Inside, ...]:
    """The `?0` indices without which the statement does nothing at a point."""
    if statement.reducer not in _SKIPPING:
        return ()
    return tuple(dict.fromkeys(_needed(statement.body)))


def _needed(expr: Expr) -> tuple[Inside, ...]:
    """Conditions without which the value is absent: necessary, not always sufficient."""
    match expr:
        case Constant() | Parameter() | Value():
            return ()
        case Read(access=access):
            return tuple(
                Inside(access, axis)
                for axis, index in enumerate(access.indices)
                if index.boundary is Boundary.ZERO
            )
        case Apply(primitive=name, arguments=arguments):
            match PRIMITIVES[name].absence:
                case Absence.NEVER:
                    return ()
                case Absence.ANY:
                    return tuple(itertools.chain.from_iterable(map(_needed, arguments)))
                case Absence.ALL:
                    return _common(arguments)
                case Absence.NUMERATOR | Absence.PASS:
                    return _needed(arguments[0])
                case Absence.BRANCH:
                    return _common(arguments[1:])
                case unexpected:
                    assert_never(unexpected)
        case unexpected_node:
            assert_never(unexpected_node)


def _common(arguments: tuple[Expr, ...]) -> tuple[Inside, ...]:
    first, *rest = (_needed(argument) for argument in arguments)
    return tuple(inside for inside in first if all(inside in other for other in rest))


# ---------------------------------------------------------------------------- target modes
Folded = tuple[TargetIndex, tuple[Condition, ...]]


def _target_pieces(
    indices: tuple[Index, ...], extents: tuple[Poly, ...]
) -> Iterable[tuple[tuple[TargetIndex, ...], tuple[Condition, ...]]]:
    """The target as affine pieces: one choice of a branch of every mirror."""
    folded = [_fold(index, extent) for index, extent in zip(indices, extents, strict=True)]
    for choice in itertools.product(*folded):
        yield (
            tuple(target for target, _ in choice),
            tuple(condition for _, conditions in choice for condition in conditions),
        )


def _fold(index: Index, extent: Poly) -> tuple[Folded, ...]:
    value = index.value
    match index.boundary:
        case Boundary.NONE | Boundary.DROP:
            # A point outside belongs to no cell, so dropping needs no condition of its own.
            return ((TargetIndex(value, extent), ()),)
        case Boundary.CLAMP:
            return ((TargetIndex(value, extent, clamp=True), ()),)
        case Boundary.WRAP:
            return ((TargetIndex(value % extent, extent), ()),)
        case Boundary.REFLECT:
            return _mirrored(value, extent, -value, 2 * extent - 2 - value)
        case Boundary.SYMMETRIC:
            return _mirrored(value, extent, -value - 1, 2 * extent - 1 - value)
        case Boundary.ZERO | Boundary.FILL:
            raise AssertionError(f"{index.boundary} on a write")
        case unexpected:
            assert_never(unexpected)


def _mirrored(value: Poly, extent: Poly, below: Poly, above: Poly) -> tuple[Folded, ...]:
    return (
        (TargetIndex(value, extent), inside_conditions(value, extent)),
        (TargetIndex(below, extent), (Condition(-value - 1),)),
        (TargetIndex(above, extent), (Condition(value - extent),)),
    )


# ---------------------------------------------------------------------------- classification
def _classify(target: Access, pieces: tuple[Fibre, ...]) -> Kind:
    loaded = [index for index in target.indices if is_data_dependent(index.value)]
    if any(index.boundary is Boundary.NONE for index in loaded):
        return Kind.SCATTER  # every point has to be checked, also one that reaches no cell
    if any(piece.is_enumerated for piece in pieces):
        return Kind.SCATTER if loaded else Kind.ENUMERATED
    if len(pieces) > 1:
        return Kind.GATHER
    if pieces[0].is_bijective:
        return Kind.BIJECTIVE
    return Kind.INJECTIVE if pieces[0].is_injective else Kind.GATHER
