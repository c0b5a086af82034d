"""`=` writes no cell twice: within a statement, and between two statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.fibre import Problem, TargetIndex, solve
from opgen.algebra.poly import Poly, poly, symbol, symbol_atom
from opgen.algebra.prove import implies
from opgen.errors import Span
from opgen.ir.context import with_iterators
from opgen.ir.notation import (
    Boundary,
    Statement,
)
from opgen.ir.notation import Iterator as BoxIterator
from opgen.lang.environment import Fault
from opgen.lang.lower import Lowered
from opgen.lang.obligations import Obligations, excludes, loads
from opgen.lang.repairs import accumulated_at


def _writing(lowered: Lowered) -> tuple[tuple[BoxIterator, ...], tuple[Condition, ...]]:
    """The iterators and guards that say which cells are written.

    Those of a reduction choose its terms: a cell is written even if it has none.
    """
    iterators = lowered.statement.iterators
    reduced = {iterator.name for iterator in iterators[lowered.own :]}
    guards = (g for g in lowered.statement.guards if g.value.symbols.isdisjoint(reduced))
    return iterators[: lowered.own], tuple(guards)


def injective(obligations: Obligations, lowered: Lowered) -> None:
    """`=` writes no cell twice: the fibre of a cell is at most one point."""
    statement = lowered.statement
    own, guards = _writing(lowered)
    names = {iterator.name for iterator in own}
    extents = obligations.extents(statement.target)
    indices = statement.target.indices
    if any(i.boundary not in (Boundary.NONE, Boundary.DROP) for i in indices):
        obligations.faults.append(
            Fault(
                "moved-write",
                "`=` with a boundary mode that moves the index can write a cell twice",
                statement.target.span or Span(0, 0),
                notes=("a moved index is the index of another cell, which has a value of its own",),
                advice="accumulate with `+=`, or leave out what lies outside with `?drop`",
                replacement=accumulated_at(statement.target.span, obligations.environment),
            )
        )
        return
    problem = Problem(
        tuple((iterator.name, iterator.extent) for iterator in own),
        guards,
        tuple(
            TargetIndex(index.value, extent) for index, extent in zip(indices, extents, strict=True)
        ),
        tuple(f"u{axis}" for axis in range(len(indices))),
        tuple(names),
    )
    if solve(problem, obligations.facts).is_injective:
        return
    facts = with_iterators(obligations.facts, own).with_conditions(*guards)
    twin = {iterator.name: symbol(f"{iterator.name}'") for iterator in own}
    both = with_iterators(facts, (BoxIterator(f"{i.name}'", i.extent) for i in own))
    both = both.with_conditions(*(guard.substitute(twin) for guard in guards))
    both = both.with_conditions(
        *(Condition(i.value - i.value.substitute(twin), Relation.EQ) for i in indices)
    )
    span = statement.target.span or Span(0, 0)
    for iterator in own:
        same = Condition(symbol(iterator.name) - twin[iterator.name], Relation.EQ)
        if implies(both, same):
            continue
        bound = obligations.missing_bound(
            same,
            both,
            lambda bounds: solve(problem, obligations.facts.with_conditions(*bounds)).is_injective,
        )
        advice, edit = bound or (
            "combine the values with `+=`, `max=` or `min=`",
            accumulated_at(statement.target.span, obligations.environment),
        )
        obligations.faults.append(
            Fault(
                "written-twice",
                f"`=` writes a cell of '{statement.target.tensor}' once for each "
                f"'{iterator.name}' that leads to it",
                span,
                notes=_met_twice(statement, own, same, both, obligations),
                advice=advice,
                replacement=edit,
            )
        )
        return


def _met_twice(
    statement: Statement,
    own: Sequence[BoxIterator],
    same: Condition,
    both: Facts,
    obligations: Obligations,
) -> tuple[str, ...]:
    """`smallest case: W = 2; w = 0 and w = 1 both write y[0]`."""
    held = _held((statement,))
    if held:
        return (f"{held} may hold the same position twice",)
    values = obligations.example(same, both)
    if values is None:
        return ("it could not be proved that every cell is written once",)
    differing = [i.name for i in own if values[i.name] != values[f"{i.name}'"]]
    one = _point(differing, [values[name] for name in differing])
    two = _point(differing, [values[f"{name}'"] for name in differing])
    shapes = _shapes((statement,), values, obligations)
    return (f"smallest case: {shapes}{one} and {two} both write {_cell(statement, values)}",)


def _held(statements: Sequence[Statement]) -> str:
    """The tensors whose values tell which cell is written."""
    indices = (index.value for s in statements for index in s.target.indices)
    return " and ".join(dict.fromkeys(f"'{access.tensor}'" for access in loads(indices)))


def _point(names: Sequence[str], values: Sequence[int]) -> str:
    """`w = 0` or `(h, w) = (0, 1)`."""
    if len(names) == 1:
        return f"{names[0]} = {values[0]}"
    return f"({', '.join(names)}) = ({', '.join(map(str, values))})"


def _cell(statement: Statement, values: Mapping[str, int]) -> str:
    indices = (index.value.evaluate(values) for index in statement.target.indices)
    return f"{statement.target.tensor}[{','.join(map(str, indices))}]"


def _shapes(
    statements: Sequence[Statement], values: Mapping[str, int], obligations: Obligations
) -> str:
    """The sizes and attributes on which the written cells depend, as `W = 2; `."""
    polynomials = [
        polynomial
        for statement in statements
        for polynomial in (
            *(index.value for index in statement.target.indices),
            *(guard.value for guard in statement.guards),
            *(iterator.extent for iterator in statement.iterators),
        )
    ]
    used = frozenset[str]().union(*(polynomial.symbols for polynomial in polynomials))
    known = [name for name in obligations.facts.symbols if name in used and name in values]
    shown = ", ".join(f"{name} = {values[name]}" for name in known)
    return f"{shown}; " if shown else ""


def disjoint(obligations: Obligations, first: Lowered, second: Lowered) -> None:
    """Two `=` into one tensor write different cells."""
    one, two = first.statement, second.statement
    own, own_guards = _writing(first)
    others, other_guards = _writing(second)
    rename = {i.name: symbol(f"{i.name}'") for i in others}
    facts = with_iterators(obligations.facts, own).with_conditions(*own_guards)
    facts = with_iterators(facts, (BoxIterator(f"{i.name}'", i.extent) for i in others))
    guards = tuple(guard.substitute(rename) for guard in other_guards)
    if any(excludes(facts, guard) for guard in guards):
        return
    differences = [
        a.value - b.value.substitute(rename)
        for a, b in zip(one.target.indices, two.target.indices, strict=True)
    ]
    same = _at_the_same_cell(differences, [name.symbol for name in rename.values()])
    if any(excludes(facts, guard.substitute(same)) for guard in guards):
        return
    facts = facts.with_conditions(*guards)
    for difference in differences:
        if implies(facts, Condition(difference - 1)) or implies(facts, Condition(-difference - 1)):
            return
        if _never_zero_by_divisibility(difference):
            return
    same_cell = facts.with_conditions(*(Condition(d, Relation.EQ) for d in differences))
    later = accumulated_at(two.target.span, obligations.environment)
    obligations.faults.append(
        Fault(
            "overlapping-writes",
            f"two statements write the same cells of '{one.target.tensor}' with `=`",
            (two.target.span or Span(0, 0), "again here"),
            (one.target.span or Span(0, 0), "first written here"),
            notes=_met_by_both(first, second, same_cell, obligations),
            advice="make their indices or conditions exclude each other, or add with `+=`",
            replacement=later,
        )
    )


def _at_the_same_cell(differences: Sequence[Poly], names: Sequence[str | None]) -> dict[str, Poly]:
    """What iterators of the second statement are where all differences of indices are zero.

    `y[i,j]` and `y[i',j'+1]` are one cell where `i'` is `i` and `j'` is `j - 1`: guards such as
    `i >= j` and `i' <= j'` then speak of the same values. An iterator that no index determines, or
    that stands beside others of the second statement, is left as it is.
    """
    found: dict[str, Poly] = {}
    for difference in differences:
        unknown = difference.symbols.intersection(name for name in names if name)
        if len(unknown) != 1:
            continue
        (name,) = unknown
        parts = difference.linear_in(symbol_atom(name))
        if parts is None or abs(parts[0].constant) != 1 or not parts[0].is_constant:
            continue
        factor, rest = parts
        if name not in rest.symbols:  # it is in no quotient either
            found.setdefault(name, rest * -factor.constant)
    return found


def _met_by_both(
    first: Lowered, second: Lowered, same_cell: Facts, obligations: Obligations
) -> tuple[str, ...]:
    """`smallest case: N = 1; both write y[0], the first at n = 0, the second at m = 0`."""
    statements = (first.statement, second.statement)
    held = _held(statements)
    if held:
        return (f"{held} may hold the same position for both",)
    values = obligations.example(Condition(poly(-1)), same_cell)
    if values is None:
        return ("it could not be proved that their cells differ",)
    names = [iterator.name for iterator in _writing(first)[0]]
    others = [iterator.name for iterator in _writing(second)[0]]
    places = {
        "the first": (names, [values[name] for name in names]),
        "the second": (others, [values[f"{name}'"] for name in others]),
    }
    at = [f"{which} at {_point(*place)}" for which, place in places.items() if place[0]]
    shapes = _shapes(statements, values, obligations)
    case = "smallest case: " if shapes or at else ""  # else it is so in every call
    both = f"both write {_cell(first.statement, values)}"
    return (f"{case}{shapes}{', '.join((both, *at))}",)


def _never_zero_by_divisibility(difference: Poly) -> bool:
    """Whether the variable part is a multiple of an integer that does not divide the constant."""
    rest = difference - difference.constant
    coefficients = list(rest.terms.values())
    if not coefficients:
        return difference.constant != 0
    divisor = 0
    for coefficient in coefficients:
        while coefficient:
            divisor, coefficient = coefficient, divisor % coefficient
    return abs(divisor) > 1 and difference.constant % abs(divisor) != 0
