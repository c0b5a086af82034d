"""Sums over points of which a number chose one: what that point gives.

The gradient of the distance to the nearest of some points,

    d[n] = min(m) (sum(k) (a[n,k] - b[m,k])**2)

gives what flows back to the pair that held the minimum, and 0 to all others:

    grad_t[n,m] = select(first[n] == m, grad_d[n], 0)
    grad_a[n,k] = sum(m) 2*(a[n,k] - b[m,k])*grad_t[n,m]
    grad_b[m,k] = sum(n) -2*(a[n,k] - b[m,k])*grad_t[n,m]

The number says which pair it is, so that a sum over pairs is its term, and a sum for every point is
what the few that chose it add:

    grad_a[n,k] = 2*(a[n,k] - b[first[n],k])*grad_d[n]
    grad_b[first[n],k] += -2*(a[n,k] - b[first[n],k])*grad_d[n]

So are sums that a spec has of what an input chooses, as `y[v] = sum(m) select(i[m] == v, x[m], 0)`:
`y[i[m]] += x[m]`.

That is as much work as there are points, where it was that of all pairs. The terms that are left
out are 0; where what they are multiplied by is infinite or not a number, they had no number.

The numbers are given, as those that a forward pass kept, and what they choose from is of any size:
`passes.chosen_terms` has windows of few terms. This is for the CPU, where points that add to the
same cells do it in their order.

Before: an op. After: an op with the same values, where factors are finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, load, symbol
from opgen.ir.build import select
from opgen.ir.indices import covers_plainly, extents_of
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
    Value,
    map_expression,
    reads,
    substitute_access,
    substitute_expression,
)
from opgen.ir.walk import access_polynomials, all_reads, expression_polynomials
from opgen.passes.cells import in_order_of, plain_dims
from opgen.passes.chosen_terms import asked_for, is_given
from opgen.passes.scatters import is_rounded


def with_chosen_points(op: Op) -> Op:
    """The op where sums over all that a number chooses from have one term for each number."""
    choices: dict[str, _Choice] = {}
    statements: list[Statement] = []
    for statement in op.statements:
        changed = _of_chosen(op, statement, choices)
        choice = _choice(op, changed)
        if choice is not None:
            choices[changed.target.tensor] = choice
        statements.append(changed)
    if tuple(statements) == op.statements:
        return op
    return _without_unread(replace(op, statements=tuple(statements)), choices)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A temporary that is `value` where `number` is the index of one axis, and 0 elsewhere. `names`
    are the iterators of its axes, of which one is `chosen`."""

    names: tuple[str, ...]
    chosen: str
    number: Access
    value: Expr


def _choice(op: Op, statement: Statement) -> _Choice | None:
    """The choice that a statement makes of all cells of a temporary."""
    found, name = asked_for(statement.body), statement.target.tensor
    names = tuple(index.value.symbol or "" for index in statement.target.indices)
    extents = extents_of(statement.iterators)
    if found is None or statement.guards or sorted(names) != sorted(extents):
        return None
    if not covers_plainly(statement.target, op.extents(name), extents):
        return None  # elsewhere nothing says what numbers there are
    if all(each.name != name for each in op.temporaries) or is_rounded(op.tensor(name)):
        return None
    if sum(each.target.tensor == name for each in op.statements) > 1:
        return None
    if any(index.boundary is not Boundary.NONE for index in statement.target.indices):
        return None
    number, place, value = found
    chosen = place.symbol
    if chosen is None or chosen not in extents or extents[chosen].is_constant:
        return None
    if statement.reducer not in (Reducer.ASSIGN, Reducer.ADD) or not is_given(op, number):
        return None
    if any(each.is_data_dependent or chosen in each.symbols for each in access_polynomials(number)):
        return None
    if any(each.is_data_dependent for each in expression_polynomials(value)):
        return None
    return _Choice(names, chosen, number, value)


def _of_chosen(op: Op, statement: Statement, choices: Mapping[str, _Choice]) -> Statement:
    """The statement with one point for each number; or with a choice of its own, where each cell of
    a temporary is made of one of another that is a choice."""
    own = _own_choice(op, statement)
    if own is not None:
        return _at_number(statement, *own)
    found = [each for each in reads(statement.body) if each.tensor in choices]
    if len(found) != 1 or not _vanishes_with(statement.body, found[0]):
        return statement
    (access,) = found
    placed = _placed(choices[access.tensor], access, statement)
    if placed is None:
        return statement
    number, chosen, value = placed
    body = map_expression(statement.body, lambda expr: value if expr == Read(access) else None)
    if statement.reducer not in (Reducer.ASSIGN, Reducer.ADD):
        return statement
    names = {index.value.symbol for index in statement.target.indices}
    if names == {each.name for each in statement.iterators} and not statement.guards:
        is_chosen = Apply("eq", (Read(number), Value(symbol(chosen))))
        return replace(statement, body=select(is_chosen, body, Constant(0)))
    is_spread = any(chosen in each.symbols for each in access_polynomials(statement.target))
    if is_spread and is_rounded(op.tensor(statement.target.tensor)):
        return statement
    if statement.reducer is not Reducer.ADD:
        return statement
    return _at_number(statement, number, chosen, body)


def _own_choice(op: Op, statement: Statement) -> tuple[Access, str, Expr] | None:
    """The number, the iterator that it is compared with, and the value, of a sum of what an input
    chooses for each of its terms; None where the cells of a term are not its own dim."""
    found = asked_for(statement.body)
    if found is None or statement.reducer is not Reducer.ADD or not is_given(op, found[0]):
        return None
    number, place, value = found
    chosen, extents, target = place.symbol, extents_of(statement.iterators), statement.target
    if chosen is None or chosen not in extents or extents[chosen].is_constant:
        return None
    numbers, values = access_polynomials(number), tuple(expression_polynomials(value))
    written = tuple(access_polynomials(target))
    elsewhere = (*numbers, *values, *written, *(guard.value for guard in statement.guards))
    if any(each.is_data_dependent for each in elsewhere):
        return None
    if any(chosen in each.symbols for each in numbers):
        return None
    inside = frozenset[str]().union(*(each.symbols for each in written))
    if chosen not in inside:
        return number, chosen, value
    is_plain = chosen in plain_dims(target, extents.keys()).values()
    is_alone = sum(chosen in each.symbols for each in written) == 1
    is_sum = not extents.keys() <= inside
    if is_plain and is_alone and is_sum and not is_rounded(op.tensor(target.tensor)):
        return number, chosen, value
    return None


def _vanishes_with(body: Expr, access: Access) -> bool:
    """Whether a value is 0 where what is read at an access is, up to what is infinite."""
    match body:
        case Read(access=found):
            return found == access
        case Apply(primitive="mul", arguments=arguments):
            return any(_vanishes_with(each, access) for each in arguments)
        case Apply(primitive="neg", arguments=(argument,)):
            return _vanishes_with(argument, access)
        case Apply(primitive="div", arguments=(dividend, divisor)):
            return access not in reads(divisor) and _vanishes_with(dividend, access)
        case Apply(primitive="select", arguments=(test, then, otherwise)):
            sides = all(
                _is_zero(each) or _vanishes_with(each, access) for each in (then, otherwise)
            )
            return access not in reads(test) and sides
        case _:
            return False


def _is_zero(value: Expr) -> bool:
    """Whether a value is the literal 0."""
    return isinstance(value, Constant) and value.value == 0


def _placed(
    choice: _Choice, access: Access, statement: Statement
) -> tuple[Access, str, Expr] | None:
    """The number, the iterator that it is compared with, and the value, where a statement reads a
    choice; None where it does not go through all that may be chosen."""
    values = dict(zip(choice.names, (each.value for each in access.indices), strict=True))
    chosen = values.pop(choice.chosen).symbol
    extents = extents_of(statement.iterators)
    if chosen is None or chosen not in extents:
        return None
    if any(index.boundary is not Boundary.NONE for index in access.indices):
        return None
    if any(chosen in each.symbols or each.is_data_dependent for each in values.values()):
        return None
    polynomials = (
        *access_polynomials(statement.target),
        *expression_polynomials(statement.body),
        *(guard.value for guard in statement.guards),
    )
    if any(each.is_data_dependent and chosen in each.symbols for each in polynomials):
        return None
    values[choice.chosen] = symbol(chosen)
    value = substitute_expression(choice.value, values)
    return substitute_access(choice.number, values), chosen, value


def _at_number(statement: Statement, number: Access, chosen: str, body: Expr) -> Statement:
    """The statement for the chosen term of a sum alone."""
    (extent,) = (each.extent for each in statement.iterators if each.name == chosen)
    place = load(number.tensor, (index.value for index in number.indices))
    values = {chosen: place}

    def read(expr: Expr) -> Expr | None:
        match expr:
            case Read(access=access):
                return Read(_moved(access, chosen, place, Boundary.ZERO))
            case Value(value=value):
                return Value(value.substitute(values))
            case _:
                return None

    target = _moved(statement.target, chosen, place, Boundary.DROP)
    guards = tuple(guard.substitute(values) for guard in statement.guards)
    return replace(
        statement,
        target=target,
        iterators=in_order_of(target, (i for i in statement.iterators if i.name != chosen)),
        guards=(*guards, Condition(place), Condition(extent - 1 - place)),
        body=map_expression(body, read),
        is_scattered=target is not statement.target,
        is_exclusive=statement.is_exclusive and target is statement.target,
    )


def _moved(access: Access, chosen: str, place: Poly, boundary: Boundary) -> Access:
    """An access at the chosen place, which is inside where the number is a place at all."""

    def moved(index: Index) -> Index:
        if chosen not in index.value.symbols:
            return index
        mode = boundary if index.boundary is Boundary.NONE else index.boundary
        return replace(index, value=index.value.substitute({chosen: place}), boundary=mode)

    if all(chosen not in index.value.symbols for index in access.indices):
        return access
    return replace(access, indices=tuple(map(moved, access.indices)))


def _without_unread(op: Op, choices: Mapping[str, _Choice]) -> Op:
    """The op without the choices that nothing reads any more."""
    while True:
        read = {each.tensor for statement in op.statements for each in all_reads(statement)}
        unread = {name for name in choices if name not in read}
        left = tuple(each for each in op.statements if each.target.tensor not in unread)
        if left == op.statements:
            return op
        temporaries = tuple(each for each in op.temporaries if each.name not in unread)
        op = replace(op, statements=left, temporaries=temporaries)
