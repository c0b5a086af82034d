"""One fibre of a statement as a nest of loops around the accumulation of its terms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.fibre import Definition, Fibre, Loop, Step
from opgen.algebra.poly import ZERO, Atom, Poly, of_atom, symbol
from opgen.algebra.poly import Kind as AtomKind
from opgen.algebra.prove import is_positive
from opgen.ir.loops import Accumulate, Define, For, If, Node
from opgen.ir.names import fresh_name
from opgen.passes.gather import GatheredStatement
from opgen.passes.lower import Lowering, every


@dataclass(frozen=True, slots=True)
class Nest:
    """`prologue` does not depend on the cell; `body` is executed for each."""

    prologue: tuple[Define, ...]
    body: tuple[Node, ...]


def build_nest(
    part: GatheredStatement,
    piece: Fibre,
    cell: Sequence[Poly],
    taken: set[str],
    known: Facts,
    accumulator: str,
    lowering: Lowering,
) -> Nest:
    """Accumulate the terms of the piece that belong to a cell.

    `taken` are the names the kernel uses already; those of the prologue join them. Names inside the
    nest only have to differ from what is taken outside of it. `known` holds wherever there is a
    cell at all.
    """
    names = dict(zip(part.coordinates, cell, strict=True))
    prologue = []
    for definition in piece.host:
        value = definition.value.substitute(names)
        name = fresh_name(definition.name, taken)
        names[definition.name] = symbol(name)
        prologue.append(Define(name, value))
    inner = set(taken)
    for step in piece.steps:
        if isinstance(step, Definition | Loop):
            names[step.name] = symbol(fresh_name(step.name, inner))
    steps = tuple(_renamed(step, names) for step in piece.steps)
    body = _accumulate(part, piece, names, steps, inner, accumulator, lowering)
    for _, group in reversed([(k, tuple(g)) for k, g in itertools.groupby(steps, type)]):
        body = _wrap(group, body, lowering)
    empty = tuple(
        Condition(extent - 1)
        for extent in piece.nonempty
        if not is_positive(extent, known) and not _is_range_of_loop(extent, piece.loops)
    )
    return Nest(tuple(prologue), (If(empty, body),) if empty else body)


def _is_range_of_loop(extent: Poly, loops: Sequence[Loop]) -> bool:
    """Whether a loop has no iterations anyway where the extent is 0.

    What is evaluated before it then has no meaning, but loops are defined for all values.
    """
    return any(ZERO in loop.lower and extent - 1 in loop.upper for loop in loops)


def _renamed(step: Step, names: dict[str, Poly]) -> Step:
    match step:
        case Definition(name=name, value=value):
            return replace(step, name=names[name].symbol or name, value=value.substitute(names))
        case Loop(name=name, lower=lower, upper=upper):
            return replace(
                step,
                name=names[name].symbol or name,
                lower=tuple(bound.substitute(names) for bound in lower),
                upper=tuple(bound.substitute(names) for bound in upper),
            )
        case Condition():
            return step.substitute(names)
        case unexpected:
            assert_never(unexpected)


def _wrap(steps: tuple[Step, ...], body: tuple[Node, ...], lowering: Lowering) -> tuple[Node, ...]:
    """Steps of one kind around a body."""
    conditions = tuple(step for step in steps if isinstance(step, Condition))
    if conditions:
        return lowering.guarded(conditions, body)
    for step in reversed(steps):
        match step:
            case Definition(name=name, value=value):
                body = (Define(name, value), *body)
            case Loop(name=name, lower=lower, upper=upper):
                body = (For(name, lower, upper, body),)
            case Condition():
                raise AssertionError("conditions were handled above")
            case unexpected:
                assert_never(unexpected)
    return body


def _accumulate(
    part: GatheredStatement,
    piece: Fibre,
    names: dict[str, Poly],
    steps: tuple[Step, ...],
    taken: set[str],
    accumulator: str,
    lowering: Lowering,
) -> tuple[Node, ...]:
    """The innermost nodes: iterators that are long formulas get a name, the rest is substituted."""
    statement = part.statement
    solution = {name: value.substitute(names) for name, value in piece.solution}
    values = {old: solution[new] for old, new in part.names}
    order = _order(part, piece, steps, values)
    nodes: list[Node] = []
    quotients: dict[Atom, Poly] = {}
    for iterator in statement.iterators:
        value = _with_known(values[iterator.name], quotients)
        if not _is_short(value):
            name = fresh_name(iterator.name, taken)
            nodes.append(Define(name, value))
            if len(value.terms) == 1 and value == of_atom(value.atoms()[0]):
                quotients[value.atoms()[0]] = symbol(name)
            value = symbol(name)
        values[iterator.name] = value
    lowered = lowering.expression(statement.body, values, part.assumed)
    present, position = lowered.test, statement.position
    if position is not None:
        position = position.substitute(values)
        present = every((present, lowering.loads_inside(position)))
    nodes.append(
        Accumulate(accumulator, statement.reducer, lowered.value, present, position, order)
    )
    return tuple(nodes)


def _with_known(value: Poly, known: Mapping[Atom, Poly]) -> Poly:
    """The polynomial with atoms that have a name already replaced by it."""
    if not known:
        return value
    return value.map_atoms(lambda atom: known.get(atom, of_atom(atom)))


def _is_short(value: Poly) -> bool:
    return len(value.terms) <= 3 and all(atom.kind is AtomKind.SYMBOL for atom in value.atoms())


def _order(
    part: GatheredStatement, piece: Fibre, steps: tuple[Step, ...], values: dict[str, Poly]
) -> tuple[Poly, ...]:
    """What tells the terms of a cell apart, unless they come in the order of iteration anyway."""
    if not part.statement.reducer.is_argument or (piece.ordered and len(part.pieces) == 1):
        return ()
    varying: set[str] = set()
    for step in steps:
        match step:
            case Loop(name=name):
                varying.add(name)
            case Definition(name=name, value=value) if not value.symbols.isdisjoint(varying):
                varying.add(name)
            case _:
                pass
    iterators = (values[iterator.name] for iterator in part.statement.iterators)
    return tuple(value for value in iterators if not value.symbols.isdisjoint(varying))
