"""The fibre solver: which points of a relation reach a given cell?

A statement relates the points `t` of a box to the cells `f(t)` of its target. To compute a cell by
gathering, the points with `f(t) = u` have to be listed for a given `u`; that list is the *fibre* of
`u`. The forward pass and adjoints of any order are fibres of the same relation under different
accesses, so this module is the only place where index maps are inverted.

`solve` works on sizes and attributes that are symbols. It turns the equations `f(t) = u` into
definitions, conditions and loops by rules that keep the set of points (`fibre_rules`), then bounds
the loops (`fibre_bounds`). Of several unknowns the long ones are solved for and the short ones kept
as loops (`fibre_ranks`). What it cannot invert it enumerates: the result is always right, only
slower, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from opgen.algebra import prove
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.fibre_bounds import open_loops, settle
from opgen.algebra.fibre_order import arranged
from opgen.algebra.fibre_rules import digits_of_iterators, range_of_watched, solve_equations
from opgen.algebra.fibre_system import GiveUp, System, Unknown, equals_zero
from opgen.algebra.fibre_types import (
    Definition,
    Fibre,
    Loop,
    Problem,
    Step,
    TargetIndex,
)
from opgen.algebra.inequality import cleared
from opgen.algebra.poly import (
    ZERO,
    Poly,
    maximum,
    minimum,
    select_zero,
    symbol,
)

__all__ = [
    "Definition",
    "Fibre",
    "Loop",
    "Problem",
    "Step",
    "TargetIndex",
    "points",
    "solve",
]


# ---------------------------------------------------------------------------- solving
def solve(problem: Problem, facts: Facts) -> Fibre:
    """The points that reach cell `problem.coordinates`; never fails, see `Fibre.fallback`."""
    assert len(problem.coordinates) == len(problem.target)
    system = System(problem, facts, _cell_facts(problem, facts))
    try:
        _pose(system, problem)
        solve_equations(system)
        while digits_of_iterators(system):
            solve_equations(system)
        open_loops(system)
        settle(system)
    except GiveUp as reason:
        return _enumeration(problem, facts, str(reason))
    return arranged(system, problem)


def _cell_facts(problem: Problem, facts: Facts) -> Facts:
    """What holds at a cell whose relation has points at all."""
    known = [Condition(extent - 1) for extent in problem.nonempty]
    known += [Condition(index.extent - 1) for index in problem.target]
    facts = facts.with_conditions(*known)
    for name, index in zip(problem.coordinates, problem.target, strict=True):
        if index.coordinate is None:
            facts = facts.with_bounds(name, ZERO, index.extent - 1)
        else:
            inside = (index.coordinate, index.extent - 1 - index.coordinate)
            facts = facts.with_conditions(*map(Condition, inside))
    return facts


def _pose(system: System, problem: Problem) -> None:
    """Write the problem as equations and requirements."""
    for position, (name, extent) in enumerate(problem.iterators):
        unknown = Unknown(name, ZERO, extent - 1, (position,))
        system.add_unknown(unknown, required=True)
    for guard in problem.guards:
        _pose_guard(system, guard)
    for index, cell in zip(problem.target, problem.cells, strict=True):
        if not index.clamp:
            system.equations.append(index.value - cell)
        system.watched.append(index.value)
    for name, extent in problem.iterators:
        if extent == 1:
            system.substitute(name, ZERO)
    for position, (index, cell) in enumerate(zip(problem.target, problem.cells, strict=True)):
        if index.clamp:
            _pose_clamp(system, position, index.extent - 1, cell)
    system.watched = []


def _pose_guard(system: System, guard: Condition) -> None:
    """A guard, unless it holds on the whole box anyway."""
    if prove.implies(system.box_facts, guard):
        return
    match guard.relation:
        case Relation.GE:
            for part in cleared(guard.value):
                if not prove.is_nonnegative(part, system.box_facts):
                    system.required.append(part)
        case Relation.EQ:
            system.equations.append(guard.value)
        case Relation.NE:
            system.unequal.append(guard.value)


def _pose_clamp(system: System, position: int, last: Poly, cell: Poly) -> None:
    """The fibre of a clamp is one interval: the edge cells also take what lies beyond them.

    lower edge   value >= least if cell == 0 else cell
    upper edge   value <= greatest if cell == last else cell
    """
    least, greatest = range_of_watched(system, position)
    value = system.watched[position]
    if least is None or greatest is None:
        system.required.append(select_zero(cell, ZERO, value - cell))
        system.required.append(select_zero(last - cell, ZERO, cell - value))
        return
    system.note("clamp", f"{value} in [{least}, {greatest}] clamped to {cell}")
    name = cell.symbol or "cell"
    low = high = cell
    if not system.nonnegative(least):
        edge = least if system.nonnegative(-least) else minimum(least, cell)
        low = system.define(f"{name}_low", select_zero(cell, edge, cell), edge, cell)
    if not system.nonnegative(last - greatest):
        edge = greatest if system.nonnegative(greatest - last) else maximum(greatest, cell)
        high = system.define(f"{name}_high", select_zero(last - cell, edge, cell), cell, edge)
    system.require(value - low)
    system.require(high - value)


def _enumeration(problem: Problem, facts: Facts, reason: str) -> Fibre:
    """Every point of the box, tested: right for every relation."""
    system = System(problem, facts, facts)
    for name, extent in problem.iterators:
        system.loops.append(Loop(name, (ZERO,), (extent - 1,), enumerated=True))
        system.solution[name] = symbol(name)
    system.conditions += problem.guards
    for index, cell in zip(problem.target, problem.cells, strict=True):
        value = index.value
        if index.clamp:
            value = minimum(maximum(value, ZERO), index.extent - 1)
        system.conditions.append(equals_zero(value - cell))
    return arranged(system, problem, fallback=reason)


# ---------------------------------------------------------------------------- running
def points(
    fibre: Fibre,
    sizes: Mapping[str, int],
    coordinates: tuple[int, ...],
    load: Callable[[str, tuple[int, ...]], int] | None = None,
) -> Iterator[dict[str, int]]:
    """Run a fibre: the points that reach one cell, in the order of its loops."""
    values = {**sizes, **dict(zip(fibre.coordinates, coordinates, strict=True))}
    if any(extent.evaluate(values, load) < 1 for extent in fibre.nonempty):
        return
    for item in fibre.host:
        values[item.name] = item.value.evaluate(values, load)
    for found in _run(fibre.steps, values, load):
        yield {name: value.evaluate(found, load) for name, value in fibre.solution}


def _run(
    steps: tuple[Step, ...],
    values: dict[str, int],
    load: Callable[[str, tuple[int, ...]], int] | None,
) -> Iterator[dict[str, int]]:
    for position, step in enumerate(steps):
        match step:
            case Definition(name, value):
                values[name] = value.evaluate(values, load)
            case Condition():
                if not step.holds(values, load):
                    return
            case Loop(name, lower, upper):
                low = max(bound.evaluate(values, load) for bound in lower)
                high = min(bound.evaluate(values, load) for bound in upper)
                for number in range(low, high + 1):
                    yield from _run(steps[position + 1 :], {**values, name: number}, load)
                return
    yield values
