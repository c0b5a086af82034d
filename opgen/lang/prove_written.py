"""A temporary is read only where an earlier statement wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol
from opgen.algebra.prove import floor_div, implies
from opgen.errors import Span
from opgen.ir.context import with_iterators
from opgen.ir.indices import fold
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Index,
    Parameter,
    Read,
    Reducer,
    Statement,
    Value,
)
from opgen.lang.environment import Fault
from opgen.lang.lower import Lowered
from opgen.lang.obligations import (
    Obligations,
    assignments,
    complements,
    evaluated,
    excludes,
    loads,
    truths,
)
from opgen.lang.repairs import accumulated_at

Writers = dict[str, list[Statement]]
"""The earlier statements that write each tensor."""


def written_before_read(obligations: Obligations, lowered: Lowered, writers: Writers) -> None:
    """Every temporary is read only where an earlier statement wrote it."""
    statement = lowered.statement
    facts = obligations.statement_facts(statement)
    # A statement that reads what it writes is reported for that.
    writers = {name: w for name, w in writers.items() if name != statement.target.tensor}
    # Guards that depend on data may be evaluated in any order, so none of them protects another.
    plain = (guard for guard in statement.guards if not guard.value.is_data_dependent)
    unguarded = with_iterators(obligations.facts, statement.iterators).with_conditions(*plain)
    guards = [guard.value for guard in statement.guards]
    _written_loads(obligations, guards, unguarded, writers, statement.span)
    _written_indices(obligations, statement.target, facts, writers)
    if statement.position is not None:
        _written_loads(obligations, [statement.position], facts, writers, statement.span)
    _written_expression(obligations, statement.body, facts, facts, writers, statement.span)


def _written_expression(
    obligations: Obligations,
    expr: Expr,
    facts: Facts,
    outer: Facts,
    writers: Writers,
    span: Span | None,
) -> None:
    """`facts` may use the presence of sibling factors; `outer` may not.

    Loaded integers are read before it is known whether a factor is absent.
    """
    match expr:
        case Read(access=access):
            _written_indices(obligations, access, outer, writers)
            if access.tensor in writers:
                _written_access(obligations, access, facts, writers[access.tensor])
        case Apply(primitive="mul", arguments=(left, right)):
            below_left = facts.with_conditions(*obligations.presence(right))
            below_right = facts.with_conditions(*obligations.presence(left))
            _written_expression(obligations, left, below_left, outer, writers, span)
            _written_expression(obligations, right, below_right, outer, writers, span)
        case Apply(primitive="select", arguments=(test, chosen, otherwise)):
            _written_expression(obligations, test, facts, outer, writers, span)
            for branch, outcome in ((chosen, True), (otherwise, False)):
                known = truths(test, outcome=outcome)
                inner, outer_inner = facts.with_conditions(*known), outer.with_conditions(*known)
                _written_expression(obligations, branch, inner, outer_inner, writers, span)
        case Apply(arguments=arguments):
            for argument in arguments:
                _written_expression(obligations, argument, facts, outer, writers, span)
        case Value(value=value):
            _written_loads(obligations, [value], outer, writers, span)
        case Constant() | Parameter():
            pass
        case unexpected:
            assert_never(unexpected)


def _written_indices(
    obligations: Obligations, access: Access, facts: Facts, writers: Writers
) -> None:
    """The integers that the indices of an access load."""
    for index in access.indices:
        span = index.span or access.span
        _written_loads(obligations, [index.value], facts, writers, span)


def _written_loads(
    obligations: Obligations,
    values: Sequence[Poly],
    facts: Facts,
    writers: Writers,
    span: Span | None,
) -> None:
    for access in loads(values, span):
        _written_indices(obligations, access, facts, writers)
        if access.tensor in writers:
            _written_access(obligations, access, facts, writers[access.tensor])


def _written_access(
    obligations: Obligations, access: Access, facts: Facts, writers: list[Statement]
) -> None:
    if any(writer.reducer is not Reducer.ASSIGN for writer in writers):
        return  # a reduction defines every cell, with its identity where nothing contributes
    extents = obligations.extents(access)
    folded = replace(
        access,
        indices=tuple(
            Index(fold(index, extent), span=index.span)
            for index, extent in zip(access.indices, extents, strict=True)
        ),
    )
    # An index that a mode leaves out reads no cell, one that a mode moves is moved inside, and one
    # that depends on data is checked at run time.
    inside = facts.with_conditions(
        *(
            condition
            for index, cell, extent in zip(access.indices, folded.indices, extents, strict=True)
            if index.boundary is not Boundary.NONE or index.value.is_data_dependent
            for condition in (Condition(cell.value), Condition(extent - 1 - cell.value))
        )
    )
    missing = _uncovered(obligations, folded, inside, writers)
    if missing is None:
        return
    condition, facts_there = missing
    obligations.faults.append(
        Fault(
            "read-before-written",
            f"'{access.tensor}' is read where it may not have been written",
            access.span or Span(0, 0),
            *((w.target.span, "written here") for w in writers[:2] if w.target.span),
            notes=_unwritten_cell(folded, condition, facts_there, obligations),
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
    where = _written_where(writer, access, facts)
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


def _written_where(writer: Statement, access: Access, facts: Facts) -> tuple[Condition, ...] | None:
    """Conditions on the indices of `access` under which `writer` wrote that cell.

    None where the target is not made of plain iterators, constants and shifted iterators, whose
    image is a box, and where the writer runs over an empty range, so that it writes nothing.
    """
    values: dict[str, Poly] = {}
    fixed: list[Condition] = []
    extents = {iterator.name: iterator.extent for iterator in writer.iterators}
    if any(extent.is_constant and extent.constant <= 0 for extent in extents.values()):
        return None
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
                quotient = floor_div(remaining, extents[name], facts)
                digit = remaining - quotient * extents[name]
                if name in values:  # it stands twice: the cells where both agree are written
                    fixed.append(Condition(digit - values[name], Relation.EQ))
                else:
                    values[name] = digit
                remaining = quotient
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
