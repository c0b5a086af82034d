"""Where extremes were: what the forward pass knows, and gradients look for otherwise.

The gradient of `y[n,i] = max(k in 3) x[n, 2*i + k ?0]` gives what flows back to the first term that
held the maximum,

    first_y[n,i] = argmax(k in 3; k) x[n, 2*i + k ?0]
    grad_x[n, 2*i + k ?drop] += select(first_y[n,i] == k, grad_y[n,i], 0) for k in 3

An op that keeps `first_y` computes it beside the maximum, in the same pass, and saves the gradient
one over all windows. An output of the op may tell as much, as

    index[n,i] = argmax(k in 3; 2*i + k) x[n, 2*i + k ?0]

does: it is the place of the cell in `x` that `grad_x` gets it for, so that the gradient is

    grad_x[n, index[n,i] ?drop] += grad_y[n,i] if index[n,i] >= 0

That is so where the position of a term is the place of what it reads, within the last dims of that
tensor or in others that follow each other, and terms outside are none: a place stands for one term.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, load, poly, symbol
from opgen.ir.indices import covers_plainly, digits_of, extents_of
from opgen.ir.notation import (
    Access,
    Boundary,
    DType,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    reads,
    substitute_access,
    substitute_expression,
)
from opgen.ir.walk import expression_polynomials
from opgen.passes.chosen_terms import asked_for
from opgen.passes.reducers import ARGUMENT_OF, Names, Weights
from opgen.passes.without_effect import without_effect


def with_positions(op: Op) -> Op:
    """The op with temporaries of the positions that its gradients look for."""
    weights = Weights(op, Names(op))
    found = [weights.of(each) for each in _extremes(op)]
    return replace(
        op,
        temporaries=(*op.temporaries, *(each for one in found for each in one.temporaries)),
        statements=(*op.statements, *(each for one in found for each in one.statements)),
    )


def positions(op: Op) -> tuple[str, ...]:
    """The names of those temporaries that no output tells."""
    told = {each.extreme for each in _places(op)}
    more = with_positions(op).statements[len(op.statements) :]
    pairs = zip(_extremes(op), more, strict=True)
    return tuple(each.target.tensor for extreme, each in pairs if extreme.target.tensor not in told)


def telling(op: Op) -> tuple[str, ...]:
    """The outputs that tell such positions."""
    return tuple(dict.fromkeys(each.output.tensor for each in _places(op)))


def told(op: Op, forward: Op, names: Collection[str]) -> tuple[Op, tuple[str, ...]]:
    """The derived op that reads those of the named outputs of `forward` that tell a position, in
    place of looking for that; and which these are."""
    known = with_positions(forward)
    more = known.statements[len(forward.statements) :]
    firsts = dict(zip((each.target.tensor for each in _extremes(forward)), more, strict=True))
    read: list[str] = []
    for each in _places(forward):
        first = firsts[each.extreme]
        own = [each for each in op.statements if each.target.tensor == first.target.tensor]
        if each.output.tensor in names and own == [first]:
            found = _at_places(op, first, each)
            if found is not None:
                op = found
                read.append(each.output.tensor)
    return op, tuple(read)


def _extremes(op: Op) -> list[Statement]:
    """Statements of extremes that alone write a tensor, on which an output may depend."""
    targets = [each.target.tensor for each in op.statements]
    alone = without_effect(op)
    return [
        each
        for each in op.statements
        if each.reducer in ARGUMENT_OF
        and targets.count(each.target.tensor) == 1
        and each.target.tensor not in alone
        and _has_terms(op, each)
    ]


def _has_terms(op: Op, statement: Statement) -> bool:
    """Whether a cell has several terms, in a tensor of which each cell is written."""
    extents = extents_of(statement.iterators)
    dims = op.extents(statement.target.tensor)
    fixed = {name for index in statement.target.indices for name in index.value.symbols}
    return covers_plainly(statement.target, dims, extents) and not extents.keys() <= fixed


# ---------------------------------------------------------------------------- outputs that tell
@dataclass(frozen=True, slots=True)
class _Places:
    """An output that holds, for each cell of an extreme, the place of the term that it is.

    A place counts the cells of dims from `begin` on, before `end`, of what is read.
    """

    output: Access
    extreme: str
    term: Access
    begin: int
    end: int


def _places(op: Op) -> list[_Places]:
    """The outputs of an op that tell positions."""
    return [found for extreme in _extremes(op) for found in list(_of_extreme(op, extreme))[:1]]


def _of_extreme(op: Op, extreme: Statement) -> Iterator[_Places]:
    results = {each.name: each for each in op.outputs}
    targets = [each.target.tensor for each in op.statements]
    if not isinstance(extreme.body, Read):
        return
    for each in op.statements:
        name = each.target.tensor
        if each.reducer is not ARGUMENT_OF[extreme.reducer] or targets.count(name) != 1:
            continue
        same = _renamed(each, extreme)
        # A narrower one may not hold all places.
        if name not in results or results[name].dtype is not DType.I64:
            continue
        if same is None or same.position is None:
            continue
        alike = replace(extreme, target=same.target, reducer=same.reducer, position=same.position)
        if same != alike or same.target.indices != extreme.target.indices:
            continue
        dims = _dims_of(op, extreme.body.access, same.position)
        if dims is not None:
            yield _Places(same.target, extreme.target.tensor, extreme.body.access, *dims)


def _renamed(statement: Statement, other: Statement) -> Statement | None:
    """The statement with the names of iterators of another one, in the order of these."""
    pairs = list(zip(statement.iterators, other.iterators, strict=False))
    if len(statement.iterators) != len(other.iterators):
        return None
    names = {mine.name: symbol(theirs.name) for mine, theirs in pairs}
    return replace(
        statement,
        target=substitute_access(statement.target, names),
        iterators=tuple(replace(mine, name=theirs.name) for mine, theirs in pairs),
        guards=tuple(each.substitute(names) for each in statement.guards),
        body=substitute_expression(statement.body, names),
        position=None if statement.position is None else statement.position.substitute(names),
        is_exclusive=other.is_exclusive,
    )


def _dims_of(op: Op, term: Access, position: Poly) -> tuple[int, int] | None:
    """The dims of what is read whose cells a position counts; None where it counts none."""
    extents = op.extents(term.tensor)
    for end in range(len(extents), 0, -1):
        for begin in range(end):
            indices = term.indices[begin:end]
            if any(each.boundary not in (Boundary.NONE, Boundary.ZERO) for each in indices):
                continue
            place = poly(0)
            for index, extent in zip(indices, extents[begin:end], strict=True):
                place = place * extent + index.value
            if place == position:
                return begin, end
    return None


# ---------------------------------------------------------------------------- gradients
def _at_places(op: Op, first: Statement, places: _Places) -> Op | None:
    """The op with what it asks a position for at the places that an output holds; None where that
    is not all that it does with it."""
    name = first.target.tensor
    statements = []
    for each in op.statements:
        if each == first:
            continue
        if all(access.tensor != name for access in reads(each.body)):
            statements.append(each)
            continue
        found = _at_place(op, each, first, places)
        if found is None:
            return None
        statements.append(found)
    temporaries = tuple(each for each in op.temporaries if each.name != name)
    return replace(op, temporaries=temporaries, statements=tuple(statements))


def _at_place(op: Op, statement: Statement, first: Statement, places: _Places) -> Statement | None:
    """A statement that adds what flows back to the cell at a place."""
    free = extents_of(statement.iterators).keys() - {
        name for index in first.target.indices for name in index.value.symbols
    }
    asked = asked_for(statement.body)
    if asked is None or asked[:2] != (first.target, first.position):
        return None
    value = asked[2]
    elsewhere = list(expression_polynomials(value))
    elsewhere += [guard.value for guard in statement.guards]
    target, term = statement.target, places.term
    if statement.reducer is not Reducer.ADD or not _is_same_cell(target, term):
        return None
    begin, end = places.begin, places.end
    elsewhere += [index.value for index in (*target.indices[:begin], *target.indices[end:])]
    if any(not free.isdisjoint(each.symbols) for each in elsewhere):
        return None
    place = load(places.output.tensor, (index.value for index in places.output.indices))
    extents = op.extents(target.tensor)
    found = (Index(each, Boundary.DROP) for each in digits_of(place, extents[begin:end]))
    indices = (*target.indices[:begin], *found, *target.indices[end:])
    return replace(
        statement,
        target=replace(target, indices=indices),
        iterators=tuple(each for each in statement.iterators if each.name not in free),
        guards=(*statement.guards, Condition(place)),
        body=value,
    )


def _is_same_cell(target: Access, term: Access) -> bool:
    """Whether the cells that are written are those that a term reads, and none outside."""
    return len(target.indices) == len(term.indices) and all(
        mine.value == theirs.value and mine.boundary in (Boundary.NONE, Boundary.DROP)
        for mine, theirs in zip(target.indices, term.indices, strict=True)
    )
