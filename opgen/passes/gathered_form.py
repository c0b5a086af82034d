"""Derived statements as people would write them: the cell on the left, the points on the right.

    grad_x[b,c,h, v - c*step ?drop] += grad_y[b,0,h,v]
    grad_x[b,c,h,w]                  = grad_y[b,0,h, w + c*step]

Before: statements of any form. After: every index of a target that is a shifted iterator is a bare
one, wherever a single substitution achieves that. The cells, and the terms of every cell, are the
same. What the range of the iterator said that went away is proved, or said by `?0` where its index
leaves the tensor, or by a guard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from opgen.algebra.facts import Facts
from opgen.algebra.fibre_ranks import Rank, rank_of
from opgen.algebra.poly import Poly, symbol, symbol_atom
from opgen.algebra.prove import implies
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.indices import digits, extents_of, is_plainly_inside
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Boundary,
    Expr,
    Index,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    map_expression,
    reads,
    substitute_expression,
)
from opgen.passes.gather import Inside, annihilating, inside_conditions, known_names


@dataclass(frozen=True, slots=True)
class GatheredForm:
    """A statement in gather form, and what was put in place of the iterators that went away.

    Values are in terms of the statement. An iterator whose name went to a coordinate has another
    one in `solved`. There is none where the statement is unchanged.
    """

    statement: Statement
    solved: tuple[tuple[str, Poly], ...] = ()


def gathered_form(op: Op) -> Op:
    """The same op, with statements in gather form where that is a matter of substitution."""
    return replace(op, statements=tuple(form.statement for form in gathered_forms(op)))


def gathered_forms(op: Op) -> tuple[GatheredForm, ...]:
    """The statements of `gathered_form`, with what was substituted."""
    facts = facts_of(op)
    targets = [statement.target.tensor for statement in op.statements]
    return tuple(
        _rewritten(op, statement, facts, targets.count(statement.target.tensor) == 1)
        for statement in op.statements
    )


def _rewritten(op: Op, statement: Statement, facts: Facts, alone: bool) -> GatheredForm:
    """The statement in gather form, or unchanged. `alone`: nothing else writes its tensor."""
    unchanged = GatheredForm(statement)
    if statement.reducer is not Reducer.ADD:
        return unchanged
    result = statement
    values: list[tuple[str, Poly]] = []
    for axis in range(len(statement.target.indices)):
        if not _is_plain(op, result, axis):
            solved = _solved(op, result, axis, facts)
            if solved is None:
                return unchanged
            choice, result = solved
            gone = choice.iterator.name
            values = [(name, value.substitute({gone: choice.value})) for name, value in values]
            values.append((gone, choice.value))
    own = _own(result)
    if result is statement or len(own) != len(set(own)):
        return unchanged
    result = _in_order(result, own)
    if alone and set(own) == {iterator.name for iterator in result.iterators}:
        result = replace(result, reducer=Reducer.ASSIGN)
    taken = {*known_names(op), *(iterator.name for iterator in result.iterators)}
    return GatheredForm(result, tuple((fresh_name(name, taken), value) for name, value in values))


def _is_plain(op: Op, statement: Statement, axis: int) -> bool:
    """Whether an index is a bare iterator, a composite one, or a number."""
    index = statement.target.indices[axis]
    extent = op.extents(statement.target.tensor)[axis]
    return index.boundary in (Boundary.NONE, Boundary.DROP) and is_plainly_inside(
        index.value, extent, extents_of(statement.iterators)
    )


# ---------------------------------------------------------------------------- one index
@dataclass(frozen=True, slots=True)
class _Choice:
    """An iterator to solve for: `iterator == value` at the new coordinate."""

    iterator: Iterator
    coordinate: Iterator
    value: Poly
    rank: Rank


def _solved(
    op: Op, statement: Statement, axis: int, facts: Facts
) -> tuple[_Choice, Statement] | None:
    """The statement with a bare coordinate as this index; None if no substitution does it."""
    candidates = [
        (choice, _substituted(statement, axis, choice)) for choice in _choices(op, statement, axis)
    ]
    for choice, changed in candidates:
        inside = inside_conditions(choice.value, choice.iterator.extent)
        known = with_iterators(facts, changed.iterators).with_conditions(*changed.guards)
        if all(implies(known, condition) for condition in inside):
            return choice, changed
    # Rather a condition than a `?0` with a loop over what is long.
    longest = [each for each in candidates if each[0].rank == candidates[0][0].rank]
    for choice, changed in longest:
        absent = _with_zero_outside(op, changed, choice)
        if absent is not None:
            return choice, absent
    for choice, changed in longest:
        inside = inside_conditions(choice.value, choice.iterator.extent)
        return choice, replace(changed, guards=(*changed.guards, *inside))
    return None


def _choices(op: Op, statement: Statement, axis: int) -> Iterable[_Choice]:
    """Iterators that stand in this index with a factor of 1 or -1, and in no other.

    What runs along the dim comes first, as in the fibre solver, so that a window is what is summed
    over. Of equals those of the last read do. In a derived statement that is the incoming gradient,
    and solving for its iterators gives the form that is known from books: a convolution with
    `n - k`.
    """
    target = statement.target
    index = target.indices[axis]
    if index.boundary not in (Boundary.NONE, Boundary.DROP):
        return
    extent = op.extents(target.tensor)[axis]
    size = (extent.symbol or "").lower()
    others = [i.value for at, i in enumerate(target.indices) if at != axis]
    last: dict[str, int] = {}
    for at, access in enumerate(reads(statement.body)):
        last |= {name: at for read in access.indices for name in read.value.symbols}
    formulas = [(let.name, let.value) for let in op.lets]

    ranks = {
        iterator.name: rank_of(iterator.extent, (extent,), op.sizes, formulas)
        for iterator in statement.iterators
    }
    last_first = sorted(statement.iterators, key=lambda iterator: -last.get(iterator.name, -1))
    for iterator in sorted(last_first, key=lambda iterator: ranks[iterator.name], reverse=True):
        taken = {*known_names(op), *(i.name for i in statement.iterators if i != iterator)}
        name = fresh_name(size if size.isidentifier() else f"u{axis}", taken)
        split = index.value.linear_in(symbol_atom(iterator.name))
        if split is None or any(iterator.name in value.symbols for value in others):
            continue
        factor, rest = split
        if factor in (1, -1) and iterator.name not in rest.symbols:
            coordinate = Iterator(name, extent)
            value = factor * (symbol(name) - rest)
            yield _Choice(iterator, coordinate, value, ranks[iterator.name])


def _substituted(statement: Statement, axis: int, choice: _Choice) -> Statement:
    values = {choice.iterator.name: choice.value}
    indices = list(statement.target.indices)
    indices[axis] = Index(symbol(choice.coordinate.name))
    return replace(
        statement,
        target=replace(statement.target, indices=tuple(indices)),
        iterators=tuple(
            choice.coordinate if iterator == choice.iterator else iterator
            for iterator in statement.iterators
        ),
        guards=tuple(guard.substitute(values) for guard in statement.guards),
        body=substitute_expression(statement.body, values),
    )


def _with_zero_outside(op: Op, statement: Statement, choice: _Choice) -> Statement | None:
    """With `?0` on reads at the solved iterator, if that says all that its range said."""
    name = choice.coordinate.name
    extents = {
        (access, axis): op.extents(access.tensor)[axis]
        for access in reads(statement.body)
        for axis in range(len(access.indices))
    }
    strict = [
        (access, axis)
        for access, axis in extents
        if access.indices[axis].boundary is Boundary.NONE
        and not access.indices[axis].value.symbols.isdisjoint({name})
    ]
    exact = [
        place
        for place in strict
        if place[0].indices[place[1]].value == choice.value
        and extents[place] == choice.iterator.extent
    ]
    if not exact or strict != exact:
        return None
    marked = replace(statement, body=_mark(statement.body, exact))
    needed = annihilating(marked)
    if any(Inside(_marked(access, exact), axis) not in needed for access, axis in exact):
        return None
    return marked


def _mark(body: Expr, places: list[tuple[Access, int]]) -> Expr:
    def change(node: Expr) -> Expr | None:
        return Read(_marked(node.access, places)) if isinstance(node, Read) else None

    return map_expression(body, change)


def _marked(access: Access, places: list[tuple[Access, int]]) -> Access:
    indices = tuple(
        replace(index, boundary=Boundary.ZERO) if (access, axis) in places else index
        for axis, index in enumerate(access.indices)
    )
    return replace(access, indices=indices)


# ---------------------------------------------------------------------------- order
def _own(statement: Statement) -> tuple[str, ...]:
    """The iterators of plain target indices, in the order in which they stand there."""
    extents = extents_of(statement.iterators)
    return tuple(
        name for index in statement.target.indices for name in digits(index.value, extents) or ()
    )


def _in_order(statement: Statement, own: tuple[str, ...]) -> Statement:
    """The iterators of the target first; a sum does not depend on their order."""
    extents = extents_of(statement.iterators)
    rest = tuple(iterator for iterator in statement.iterators if iterator.name not in own)
    first = tuple(Iterator(name, extents[name]) for name in own)
    return replace(statement, iterators=(*first, *rest))
