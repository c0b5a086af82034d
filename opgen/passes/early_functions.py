"""Factors of a sum that are functions of fewer iterators than it has are computed before it.

Before:

    y[b,k] = sum(l) x[b,l] * cos(0.5*k*l)
    z[i,d] = sum(j) exp(-(p[i] - q[j])**2) * x[j,d]

After:

    y_early[k,l] = cos(0.5*k*l)
    y[b,k] = sum(l) x[b,l] * y_early[k,l]
    z_early[i,j] = exp(-(p[i] - q[j])**2) if D >= 1
    z[i,d] = sum(j) z_early[i,j] * x[j,d]

A function is computed once where it was once for each b, or d, and what is left is a product of
matrices. Where that is so, what takes no functions is such a factor, too: `x[b,l]*(k*l + 1)`.

Functions of one cell are those of `cell_factors`, which are read through windows. One of several
cells may be of all pairs of them; it has no more dims than what it is multiplied with, or than the
result.

What reads no tensor is computed wherever it may be, since nothing is made of what no term reads,
nor has it gradients. What does is computed for terms alone, whose conditions it must know: the
slope of a function may be infinite where there are none, and their gradient 0. Then functions go
first also where conditions choose terms, as in `sum(s if s <= t) a[d]**(t - s)*x[b,s,d]`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import symbol
from opgen.algebra.prove import implies
from opgen.ir.context import facts_of
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Expr,
    Index,
    Iterator,
    Read,
    Reducer,
    Statement,
    reads,
)
from opgen.ir.walk import expression_polynomials, loads, polynomials
from opgen.passes.cell_factors import is_tame
from opgen.passes.cells import (
    are_many,
    are_sizes,
    in_steps,
    is_multiplied_again,
    is_plain_sum,
    moving,
    names_of,
    some_of,
)
from opgen.passes.invariants import are_numbers, takes_functions
from opgen.passes.new_temporaries import NewTemporaries


def with_functions_early(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that compute factors of it."""
    return in_steps(statement, lambda each: _step(each, made))


@dataclass(frozen=True, slots=True)
class _Early:
    """Factors that are computed first, by position, and the statement that does so."""

    places: tuple[int, ...]
    first: Statement


def _step(statement: Statement, made: NewTemporaries) -> tuple[Statement, Statement] | None:
    """What computes some factors, and the statement with that in their place."""
    if not is_plain_sum(replace(statement, guards=()), made):
        return None
    if not all(map(made.is_generic, reads(statement.body))):
        return None
    if any(any(loads(value)) for value in polynomials(statement)):
        return None
    negative, factors = factors_of(statement.body)
    found = _found(statement, factors, made)
    if found is None:
        return None
    at, *others = found.places
    read = Factor(Read(found.first.target))
    left = [read if place == at else each for place, each in enumerate(factors)]
    left = [each for place, each in enumerate(left) if place not in others]
    return found.first, replace(statement, body=product_of(left, negative=negative))


def _found(statement: Statement, factors: Sequence[Factor], made: NewTemporaries) -> _Early | None:
    """The first factors that are worth it: numbers of the same iterators together, or a function of
    tensors."""
    names = names_of(statement)
    groups: list[tuple[frozenset[str], tuple[int, ...]]] = []
    applied: list[tuple[int, ...]] = []
    for at, each in enumerate(factors):
        if any(True for _ in reads(each.value)):
            applied += [(at,)] if isinstance(each.value, Apply) else []
        elif used := _moving(each.value, names):
            near = [group for group in groups if not group[0].isdisjoint(used)]
            groups = [group for group in groups if group not in near]
            some = sorted((at, *(place for _, places in near for place in places)))
            groups.append((used.union(*(others for others, _ in near)), tuple(some)))
    for places in (*(places for _, places in groups), *applied):
        first = _computed(statement, factors, places, made)
        if first is not None:
            return _Early(places, first)
    return None


def _moving(value: Expr, names: Set[str]) -> frozenset[str]:
    """The iterators that a value differs with."""
    found = frozenset[str]().union(*(each.symbols for each in expression_polynomials(value)))
    return found.intersection(names)


def _computed(
    statement: Statement, factors: Sequence[Factor], places: Sequence[int], made: NewTemporaries
) -> Statement | None:
    """What computes some factors first; None if that is not worth it, or not the same."""
    names = names_of(statement)
    value = product_of([factors[at] for at in places])
    used = _moving(value, names)
    own = tuple(each for each in statement.iterators if each.name in used)
    others = [each for each in statement.iterators if each.name not in used]
    left = [a for at, each in enumerate(factors) if at not in places for a in reads(each.value)]
    most = max((len(moving(each, names)) for each in (statement.target, *left)), default=0)
    is_small = 0 < len(own) <= most and bool(left)
    if not is_small or not are_many(each.extent for each in others) or not are_sizes(own, made):
        return None
    cell = Access("", tuple(Index(symbol(each.name)) for each in own))
    is_matrix = any(is_multiplied_again(each, cell, statement) for each in left)
    is_matrix = is_matrix and not statement.guards
    if not is_matrix and not takes_functions(value):
        return None
    conditions = _conditions(value, own, others, statement, made)
    if conditions is None:
        return None
    cells = [(each.extent, symbol(each.name)) for each in own]
    return Statement(
        made.cells(statement.target.tensor, "early", cells),
        # What is there without conditions of terms is there, and 0 where there are no terms.
        Reducer.ADD if conditions and not statement.guards else Reducer.ASSIGN,
        own,
        conditions,
        value,
        span=statement.span,
        is_exclusive=True,
    )


def _conditions(
    value: Expr,
    own: tuple[Iterator, ...],
    others: Sequence[Iterator],
    statement: Statement,
    made: NewTemporaries,
) -> tuple[Condition, ...] | None:
    """Under which a value is computed for cells that have its own iterators; None where it might
    not be there, or where some cells of it are in no term."""
    if not any(True for _ in reads(value)):
        return () if are_numbers(value, own, made.op) else None
    names, known = names_of(statement), {each.name for each in own}
    if any(not guard.value.symbols & names <= known for guard in statement.guards):
        return None
    if not made.is_always_there(value, statement):
        return None
    if is_tame(value):
        return statement.guards
    accesses = (statement.target, *reads(statement.body))
    if any(index.boundary is not Boundary.NONE for each in accesses for index in each.indices):
        return None
    facts = facts_of(made.op)
    some = (each for each in some_of(others) if not implies(facts, each))
    return (*statement.guards, *some)
