"""What all terms but one make, for each of them, from those before it and those behind it.

The gradient of `y[n] = prod(k) x[n,k]` gives each term the product of all others,

    others_y[n,k] = prod(k_ if k_ != k) x[n,k_]

which takes as many products as there are pairs. With two temporaries,

    before[n,k]   = prod(k_ if k_ < k) x[n,k_]
    after[n,k]    = prod(k_ if k_ > k) x[n,k_]
    others_y[n,k] = before[n,k] * after[n,k]

it takes three for each term, see `passes.running_totals`. Nothing is divided, so that zeros are
what they were, and nothing subtracted from a sum of all terms. Factors stay those of the cell, but
not in one order: what is too large or too small for a float on the way may be another one.

Those of several indices are first those of other rows, and then those of other cells in the row:

    rows[n,h]       = prod(w) x[n,h,w]
    others_y[n,h,w] = prod(h_ if h_ != h) rows[n,h_] * prod(w_ if w_ != w) x[n,h,w_]

Before: an op. After: an op with the same values but for rounding. This is for the CPU: on a GPU
such totals take as long as all others.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import ZERO, symbol
from opgen.ir.indices import covers_plainly, digits, extents_of, position, product
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Access,
    Apply,
    Index,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    substitute_expression,
)
from opgen.ir.walk import expression_polynomials, loads, polynomials, symbols_as_read
from opgen.passes.new_temporaries import NewTemporaries

FEW: Final = 2
"""So many terms have one other each. Three take no longer in two sides, eight or more less."""

_JOINED: Final = {Reducer.ADD: "add", Reducer.MULTIPLY: "mul"}


def with_all_but_one(op: Op) -> Op:
    """The op with temporaries for the terms before and behind each one that is left out."""
    made = NewTemporaries.of(op)
    return made.op_with(part for each in op.statements for part in _parts(each, made))


@dataclass(frozen=True, slots=True)
class _Others:
    """A statement that joins all terms but that of a cell.

    `own` are the iterators of the term that is left out, `other` those of all terms, in the same
    order, slowest first; `guards` are what else is asked of terms.
    """

    statement: Statement
    own: tuple[Iterator, ...]
    other: tuple[Iterator, ...]
    guards: tuple[Condition, ...]

    @property
    def iterators(self) -> tuple[Iterator, ...]:
        """The iterators of cells."""
        return tuple(each for each in self.statement.iterators if each not in self.other)


def _parts(statement: Statement, made: NewTemporaries) -> Iterable[Statement]:
    """The statement, or those that make the same of fewer terms."""
    found = _others(statement, made)
    if found is None:
        yield statement
    elif len(found.own) == 1:
        yield from _of_sides(found, made)
    elif not found.guards:
        yield from _of_rows(found, made)
    else:
        yield statement


def _others(statement: Statement, made: NewTemporaries) -> _Others | None:
    """What a statement leaves out; None where it is of another form."""
    unequal = [each for each in statement.guards if each.relation is Relation.NE]
    extents = extents_of(statement.iterators)
    target = statement.target
    if statement.reducer not in _JOINED or len(unequal) != 1:
        return None
    if not covers_plainly(target, made.extents(target.tensor), extents):
        return None
    if any(any(loads(value)) for value in polynomials(statement)):
        return None
    writers = [each for each in made.op.statements if each.target.tensor == target.tensor]
    if len(writers) > 1:
        return None
    fixed = frozenset[str]().union(*(index.value.symbols for index in target.indices))
    (guard,) = unequal
    free = dict.fromkeys(extents.keys() - fixed, ZERO)
    bound = dict.fromkeys(extents.keys() & fixed, ZERO)
    for sign in (1, -1):
        own = digits(guard.value.substitute(free) * -sign, extents)
        other = digits(guard.value.substitute(bound) * sign, extents)
        if own and other and [extents[name] for name in own] == [extents[name] for name in other]:
            break
    else:
        return None
    guards = tuple(each for each in statement.guards if each is not guard)
    used = [*expression_polynomials(statement.body), *(each.value for each in guards)]
    if any(not value.symbols.isdisjoint(own) for value in used):
        return None
    terms = product(extents[name] for name in own)
    if {*other} != {*free} or (terms.is_constant and terms.constant <= FEW):
        return None
    known = {each.name: each for each in statement.iterators}
    return _Others(
        statement, tuple(known[name] for name in own), tuple(known[name] for name in other), guards
    )


def _of_sides(found: _Others, made: NewTemporaries) -> Iterable[Statement]:
    """The statement as two sides and what joins them."""
    statement = found.statement
    (own,), (other,) = found.own, found.other
    # In memory, so that the two sides are kernels of their own: each goes in its own direction.
    iterators = _as_read(found)
    before = _cells(statement, "before", iterators, made, stored=True)
    after = _cells(statement, "after", iterators, made)
    gap = symbol(own.name) - symbol(other.name) - 1
    for side, guard in ((before, gap), (after, -gap - 2)):
        yield replace(statement, target=side, guards=(*found.guards, Condition(guard)))
    yield _joined(found, before, after)


def _of_rows(found: _Others, made: NewTemporaries) -> Iterable[Statement]:
    """The statement as one of other rows, one of other cells in the row, and what joins them."""
    statement = found.statement
    (*rows, own), (*other_rows, other) = found.own, found.other
    extents = extents_of(statement.iterators)
    moved = {b.name: symbol(a.name) for a, b in zip(rows, other_rows, strict=True)}
    within = replace(
        statement,
        iterators=tuple(each for each in statement.iterators if each not in other_rows),
        guards=(),
        body=substitute_expression(statement.body, moved),
    )
    around = tuple(each for each in found.iterators if each is not own)
    row = _cells(statement, "rows", around, made)
    yield replace(
        within, target=row, iterators=tuple(each for each in within.iterators if each is not own)
    )
    cells = _cells(statement, "cells", found.iterators, made)
    unequal = Condition(symbol(other.name) - symbol(own.name), Relation.NE)
    yield from _parts(replace(within, target=cells, guards=(unequal,)), made)
    others = _cells(statement, "others", around, made)
    here, there = (position([e.name for e in each], extents) for each in (rows, other_rows))
    back = {a.name: symbol(b.name) for a, b in zip(rows, other_rows, strict=True)}
    indices = tuple(Index(index.value.substitute(back)) for index in row.indices)
    of_rows = replace(
        statement,
        target=others,
        iterators=tuple(each for each in statement.iterators if each not in (own, other)),
        guards=(Condition(there - here, Relation.NE),),
        body=Read(Access(row.tensor, indices)),
    )
    yield from _parts(of_rows, made)
    yield _joined(found, others, cells)


def _as_read(found: _Others) -> Sequence[Iterator]:
    """The iterators of cells in the order in which terms lie in memory."""
    here = {b.name: symbol(a.name) for a, b in zip(found.own, found.other, strict=True)}
    body = substitute_expression(found.statement.body, here)
    places = {name: at for at, name in enumerate([BATCH_ITERATOR, *symbols_as_read(body)])}
    return sorted(found.iterators, key=lambda each: places.get(each.name, 1))


def _cells(
    statement: Statement,
    what: str,
    iterators: Sequence[Iterator],
    made: NewTemporaries,
    *,
    stored: bool = False,
) -> Access:
    """The cells of a new temporary with one for each point of iterators."""
    places = [(each.extent, symbol(each.name)) for each in iterators]
    return made.cells(statement.target.tensor, what, places, stored=stored)


def _joined(found: _Others, one: Access, other: Access) -> Statement:
    """The statement that joins two temporaries."""
    body = Apply(_JOINED[found.statement.reducer], (Read(one), Read(other)))
    return replace(
        found.statement,
        reducer=Reducer.ASSIGN,
        iterators=found.iterators,
        guards=(),
        body=body,
        is_exclusive=True,
    )
