"""A temporary is read only where an earlier statement wrote it."""

from __future__ import annotations

from collections.abc import Sequence

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol
from opgen.algebra.prove import implies
from opgen.errors import Span
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Expr,
    Read,
    Reducer,
    Statement,
)
from opgen.lang.environment import Fault
from opgen.lang.lower import Lowered
from opgen.lang.obligations import (
    Obligations,
    assignments,
    complements,
    evaluated,
    excludes,
    truths,
)
from opgen.lang.repairs import accumulated_at


def written_before_read(
    obligations: Obligations, lowered: Lowered, writers: dict[str, list[Statement]]
) -> None:
    """Every temporary is read only where an earlier statement wrote it."""
    statement = lowered.statement
    facts = obligations.statement_facts(statement)
    # A statement that reads what it writes is reported for that.
    writers = {name: w for name, w in writers.items() if name != statement.target.tensor}
    _written_expression(obligations, statement.body, facts, writers)


def _written_expression(
    obligations: Obligations, expr: Expr, facts: Facts, writers: dict[str, list[Statement]]
) -> None:
    match expr:
        case Read(access=access) if access.tensor in writers:
            _written_access(obligations, access, facts, writers[access.tensor])
        case Apply(primitive="mul", arguments=(left, right)):
            below_left = facts.with_conditions(*obligations.presence(right))
            below_right = facts.with_conditions(*obligations.presence(left))
            _written_expression(obligations, left, below_left, writers)
            _written_expression(obligations, right, below_right, writers)
        case Apply(primitive="select", arguments=(test, chosen, otherwise)):
            _written_expression(obligations, test, facts, writers)
            holds = truths(test)
            _written_expression(obligations, chosen, facts.with_conditions(*holds), writers)
            fails = truths(test, outcome=False)
            _written_expression(obligations, otherwise, facts.with_conditions(*fails), writers)
        case Apply(arguments=arguments):
            for argument in arguments:
                _written_expression(obligations, argument, facts, writers)
        case _:
            pass


def _written_access(
    obligations: Obligations, access: Access, facts: Facts, writers: list[Statement]
) -> None:
    if any(writer.reducer is not Reducer.ASSIGN for writer in writers):
        return  # a reduction defines every cell, with its identity where nothing contributes
    inside = facts.with_conditions(
        *(
            condition
            for index, extent in zip(access.indices, obligations.extents(access), strict=True)
            if index.boundary is not Boundary.NONE
            for condition in (Condition(index.value), Condition(extent - 1 - index.value))
        )
    )
    missing = _uncovered(obligations, access, inside, writers)
    if missing is None:
        return
    condition, facts_there = missing
    obligations.faults.append(
        Fault(
            "read-before-written",
            f"'{access.tensor}' is read where it may not have been written",
            access.span or Span(0, 0),
            *((w.target.span, "written here") for w in writers[:2] if w.target.span),
            notes=_unwritten_cell(access, condition, facts_there, obligations),
            advice="read it under the condition it is written, write every cell, or write it with "
            "`+=`, which leaves 0 elsewhere",
            replacement=accumulated_at(writers[0].target.span, obligations.environment),
        )
    )


def _unwritten_cell(
    access: Access, condition: Condition | None, facts: Facts, obligations: Obligations
) -> tuple[str, ...]:
    """`smallest case: N = 1, n = 0; g[0] is not written`."""
    values = None if condition is None else obligations.example(condition, facts)
    if values is None or condition is None:
        return ("it could not be proved that every cell read was written",)
    indices = [index.value for index in access.indices]
    shown = assignments(values, (condition.value, *indices), facts)
    case = [f"smallest case: {shown}"] if shown else []  # else it is so in every call
    numbers = [evaluated(index, values) for index in indices]
    if None not in numbers:
        cell = ",".join(map(str, numbers))
        case.append(f"{access.tensor}[{cell}] is read and was not written")
    return ("; ".join(case),)


def _uncovered(
    obligations: Obligations, access: Access, facts: Facts, writers: Sequence[Statement]
) -> tuple[Condition | None, Facts] | None:
    """A condition that fails somewhere a cell is read and nothing wrote it, or None."""
    if not writers:
        return None, facts
    writer, *others = writers
    where = _written_where(writer, access)
    if where is None:
        return _uncovered(obligations, access, facts, others)
    for condition in where:
        if implies(facts, condition):
            continue
        for complement in complements(condition):
            there = facts.with_conditions(complement)
            if _contradictory(there):
                continue
            missing = (
                _uncovered(obligations, access, there, others) if others else (condition, facts)
            )
            if missing is not None:
                return (condition, facts) if missing[0] is None else missing
    return None


def _contradictory(facts: Facts) -> bool:
    return implies(facts, Condition(poly(-1))) or _violates_own(facts)


def _violates_own(facts: Facts) -> bool:
    last = facts.conditions[-1]
    return any(
        excludes(facts, other)
        for other in facts.conditions[:-1]
        if not other.value.symbols.isdisjoint(last.value.symbols)
    )


def _written_where(writer: Statement, access: Access) -> tuple[Condition, ...] | None:
    """Conditions on the indices of `access` under which `writer` wrote that cell.

    None where the target is not made of plain iterators, constants and shifted iterators, whose
    image is a box.
    """
    values: dict[str, Poly] = {}
    fixed: list[Condition] = []
    extents = {iterator.name: iterator.extent for iterator in writer.iterators}
    for target, read in zip(writer.target.indices, access.indices, strict=True):
        moving = [name for name in target.value.symbols if name in extents]
        if not moving:
            fixed.append(Condition(read.value - target.value, Relation.EQ))
            continue
        shift = target.value - symbol(moving[0])
        if len(moving) != 1 or moving[0] in values or moving[0] in shift.symbols:
            whole = _mixed_radix(target.value, moving, extents)
            if whole is None:
                return None
            remaining = read.value
            for name in reversed(whole):
                values[name] = remaining % extents[name]
                remaining = remaining // extents[name]
            continue
        values[moving[0]] = read.value - shift
    if set(values) != set(extents):
        return None
    box = [
        condition
        for name, value in values.items()
        for condition in (Condition(value), Condition(extents[name] - 1 - value))
    ]
    guards = [guard.substitute(values) for guard in writer.guards]
    return (*fixed, *box, *guards)


def _mixed_radix(
    value: Poly, moving: Sequence[str], extents: dict[str, Poly]
) -> tuple[str, ...] | None:
    """The order in which the iterators are the digits of `value`, most significant first."""
    names = sorted(moving)
    for first in names:
        order, rest = _digits(value, first, [n for n in names if n != first], extents)
        if rest:
            return order
    return None


def _digits(
    value: Poly, last: str, others: list[str], extents: dict[str, Poly]
) -> tuple[tuple[str, ...], bool]:
    """Whether `value` is `prefix * extent(last) + last` with a prefix of the same kind."""
    prefix, remainder = value // extents[last], value % extents[last]
    if not others:
        return (last,), value == symbol(last)
    if remainder != symbol(last) and value - symbol(last) != prefix * extents[last]:
        quotient = (value - symbol(last)) // extents[last]
        if quotient * extents[last] != value - symbol(last):
            return (), False
        prefix = quotient
    for name in others:
        order, good = _digits(prefix, name, [n for n in others if n != name], extents)
        if good:
            return (*order, last), True
    return (), False
