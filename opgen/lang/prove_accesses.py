"""Every access stays inside its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Final, assert_never

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol, symbol_atom
from opgen.algebra.prove import implies
from opgen.errors import Edit, Span
from opgen.ir.indices import extents_of, index_conditions, is_plainly_inside
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Index,
    Parameter,
    Read,
    Value,
)
from opgen.lang.environment import Environment, Fault
from opgen.lang.lower import Lowered
from opgen.lang.obligations import Obligations, loads, truths
from opgen.lang.repairs import required

Box = Mapping[str, Poly]
"""The extents of the iterators of a statement."""

_MOVED: Final = (Boundary.CLAMP, Boundary.WRAP)
_FREE: Final = (Boundary.ZERO, Boundary.FILL, Boundary.DROP)


def in_range(obligations: Obligations, lowered: Lowered) -> None:
    """Every access of a statement stays inside its tensor."""
    statement = lowered.statement
    facts = obligations.statement_facts(statement)
    box = extents_of(statement.iterators)
    _access(obligations, box, statement.target, facts, facts, role=_Role.WRITE)
    _expression(obligations, box, statement.body, facts, facts)
    for access in loads(
        (*(guard.value for guard in statement.guards), statement.position or poly(0)),
        statement.span,
    ):
        _access(obligations, box, access, facts, facts, role=_Role.INDEX)


class _Role(Enum):
    READ = "reads"
    WRITE = "writes"
    INDEX = "an index reads"  # takes no boundary mode


def _expression(obligations: Obligations, box: Box, expr: Expr, facts: Facts, outer: Facts) -> None:
    """`facts` may use the presence of sibling factors; `outer` may not (see `_access`)."""
    match expr:
        case Read(access=access):
            _access(obligations, box, access, facts, outer, role=_Role.READ)
        case Apply(primitive="mul", arguments=(left, right)):
            # A product with an absent factor is absent, so the other is read where it is not.
            _expression(
                obligations, box, left, facts.with_conditions(*obligations.presence(right)), outer
            )
            _expression(
                obligations, box, right, facts.with_conditions(*obligations.presence(left)), outer
            )
        case Apply(primitive="select", arguments=(test, chosen, otherwise)):
            _expression(obligations, box, test, facts, outer)
            holds = truths(test)
            _expression(
                obligations,
                box,
                chosen,
                facts.with_conditions(*holds),
                outer.with_conditions(*holds),
            )
            fails = truths(test, outcome=False)
            _expression(
                obligations,
                box,
                otherwise,
                facts.with_conditions(*fails),
                outer.with_conditions(*fails),
            )
        case Apply(arguments=arguments):
            for argument in arguments:
                _expression(obligations, box, argument, facts, outer)
        case Value(value=value):
            for access in loads((value,)):
                _access(obligations, box, access, outer, outer, role=_Role.INDEX)
        case Constant() | Parameter():
            pass
        case unexpected:
            assert_never(unexpected)


def _access(
    obligations: Obligations, box: Box, access: Access, facts: Facts, outer: Facts, *, role: _Role
) -> None:
    extents = obligations.extents(access)
    for axis, (index, extent) in enumerate(zip(access.indices, extents, strict=True)):
        # An index that is itself read from a tensor is evaluated before its siblings are.
        for inner in loads((index.value,), index.span or access.span):
            _access(obligations, box, inner, outer, outer, role=_Role.INDEX)
        moved = index.boundary in _MOVED
        if index.boundary in _FREE or (index.value.is_data_dependent and not moved):
            continue
        if index.boundary is Boundary.NONE and is_plainly_inside(index.value, extent, box):
            continue
        failing: list[Condition] = []
        for condition in index_conditions(index, extent):
            if implies(facts, condition):
                continue
            if obligations.is_launch_condition(condition):
                wanted = (
                    f"`{index.boundary.value}` needs a cell to move to: dim {axis} of "
                    f"{access.tensor} must not be empty"
                    if moved
                    else f"index {index.value} of dim {axis} of {access.tensor} must lie inside "
                    f"its extent {extent}"
                )
                obligations.launch_check(condition, wanted)
            else:
                failing.append(condition)
        if failing:
            fault = _out_of_range(obligations, access, axis, index, extent, failing, facts, role)
            obligations.faults.append(fault)


def _out_of_range(
    obligations: Obligations,
    access: Access,
    axis: int,
    index: Index,
    extent: Poly,
    failing: list[Condition],
    facts: Facts,
    role: _Role,
) -> Fault:
    environment, name = obligations.environment, access.tensor
    condition = obligations.most_telling(failing, facts)
    shown = (("the index", index.value), ("the extent", extent))
    notes = obligations.smallest(condition, facts, shown)
    span = index.span or access.span or Span(0, 0)
    label = environment.dim_label(name, axis, f"dim {axis} has extent {extent}")
    if index.boundary in (Boundary.REFLECT, Boundary.SYMMETRIC):
        return _reflected_too_far(obligations, access, axis, index, extent, notes, facts)
    notes = notes or ("it could not be proved for all sizes",)
    if environment.is_known(index.value.symbol or ""):
        notes = (*notes, f"'{index.value}' is a size or attribute here, not an iterator")
    headline = (
        f"{role.value} '{name}' outside dim {axis}: {index.value} is not always in [0, {extent})"
    )
    bound = obligations.missing_bound(
        condition,
        facts,
        lambda bounds: all(implies(facts.with_conditions(*bounds), c) for c in failing),
    )
    advice, edit = (
        bound
        or _miscounted(index, extent, span, facts, environment)
        or _outside(access, index, extent, span, role)
    )
    return Fault(
        "out-of-range", headline, span, *label, notes=notes, advice=advice, replacement=edit
    )


def _miscounted(
    index: Index, extent: Poly, span: Span, facts: Facts, environment: Environment
) -> tuple[str, Edit | None] | None:
    """What to write for an index of which no cell outside is meant."""
    value = index.value
    if value == extent and value.symbol is not None:
        iterator = f"{extent}".lower()
        advice = f"cells are named by an iterator, which runs from 0 up to {extent}"
        if not iterator.isidentifier() or environment.is_known(iterator):
            return advice, None
        return f"{advice}: write {iterator}", (span, iterator)
    falls = any(
        (value.step_in(name) or 0) < 0 for name in value.symbols if not environment.is_known(name)
    )
    before = value - 1
    if falls and all(
        implies(facts, each) for each in index_conditions(replace(index, value=before), extent)
    ):
        return f"the last cell has the index {extent - 1}: write {before}", (span, f"{before}")
    from_end = extent + value
    if implies(facts, Condition(-value - 1)):
        is_place = not from_end.is_constant or from_end.constant >= 0
        inside = index_conditions(replace(index, value=from_end), extent)
        if (value.is_constant and is_place) or all(implies(facts, each) for each in inside):
            advice = f"indices count from 0: write {from_end} to count from the end"
            return advice, (span, f"{from_end}")
        return f"it is below 0 in every case, and indices run from 0 to {extent - 1}", None
    above = value.is_constant and value.constant > 0
    if above and extent.is_constant and extent.constant >= 1:
        last = extent - 1
        return f"indices count from 0: the last one of this dim is {last}", (span, f"{last}")
    if not value.is_constant and implies(facts, Condition(value - extent)):
        return f"it is {extent} or more in every case, and indices run from 0 to {extent - 1}", None
    return None


def _outside(
    access: Access, index: Index, extent: Poly, span: Span, role: _Role
) -> tuple[str, Edit | None]:
    """How to say what happens outside."""
    if role is _Role.INDEX:
        clamped = f"max(min({index.value}, {extent - 1}), 0)"
        return f"add a condition after `if`, or clamp by hand: {clamped}", None
    suffix = "?drop" if role is _Role.WRITE else "?0"
    advice = f"say what happens outside: {index.value} {suffix}"
    if role is not _Role.WRITE:
        advice += ", or ?clamp ?reflect ?wrap ?(value)"
    beside = next((each for each in access.indices if each.boundary is not Boundary.NONE), None)
    if beside is not None:
        suffix = _mode(beside)
        advice = f"a mode is that of one index: write {index.value} {suffix}, as beside it"
    return advice, (Span(span.end, span.end), f" {suffix}")


def _mode(index: Index) -> str:
    """The mode of an index as a spec says it."""
    if index.boundary is Boundary.FILL:
        return f"?({index.fill:g})"
    return str(index.boundary.value)


def _reflected_too_far(
    obligations: Obligations,
    access: Access,
    axis: int,
    index: Index,
    extent: Poly,
    notes: tuple[str, ...],
    facts: Facts,
) -> Fault:
    """The fault of an index more than one extent away; the repair is a `where`, or a clamp."""
    environment, mode = obligations.environment, index.boundary.value
    span = index.span or access.span or Span(0, 0)
    least, greatest = (
        (1 - extent, 2 * extent - 2)
        if index.boundary is Boundary.REFLECT
        else (-extent, 2 * extent - 1)
    )
    bounds = [
        _at_worst(condition.value, obligations, facts)
        for condition in index_conditions(index, extent)
    ]
    demands = [b for b in bounds if b is not None and b.symbols]
    edits = [required((b,), environment) for b in demands]
    if len(demands) > 1:
        edits.append(required(demands, environment))
    return Fault(
        "reflected-too-far",
        f"`{mode}` reaches one reflection: {index.value} is not always in [{least}, {greatest}]",
        span,
        *environment.dim_label(access.tensor, axis, f"dim {axis} has extent {extent}"),
        notes=notes,
        advice="bound the sizes by a `where`, or continue the edge with ?clamp",
        alternatives=[edit for edit in edits if edit is not None],
    )


def _at_worst(value: Poly, obligations: Obligations, facts: Facts) -> Poly | None:
    """The least value over the iterators, where that is plain: linear, with constant factors."""
    lets = obligations.environment.lets
    while not value.symbols.isdisjoint(lets):
        value = value.substitute(lets)
    for name in facts.symbols:
        if name in obligations.facts.symbols or name not in value.symbols:
            continue
        split = value.linear_in(symbol_atom(name))
        if split is None or not split[0].is_constant:
            return None
        upper = _upper(name, facts)
        if split[0].constant < 0 and upper is None:
            return None
        value = split[1] if upper is None or split[0].constant > 0 else split[0] * upper + split[1]
        value = obligations.environment.expand_lets(value)
    return value


def _upper(name: str, facts: Facts) -> Poly | None:
    """The greatest value of an iterator: one less than its extent."""
    for condition in facts.conditions:
        rest = condition.value + symbol(name)
        if condition.relation is Relation.GE and name not in rest.symbols:
            return rest
    return None
