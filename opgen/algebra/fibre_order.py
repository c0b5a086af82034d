"""Arranging a solved system as steps: every condition as far out as it can stand."""

from __future__ import annotations

from opgen.algebra import prove
from opgen.algebra.condition import Condition
from opgen.algebra.fibre_system import System
from opgen.algebra.fibre_types import Definition, Fibre, Problem, Step
from opgen.algebra.poly import ONE, Poly, symbol_atom


def arranged(system: System, problem: Problem, fallback: str | None = None) -> Fibre:
    """The fibre of a system in which nothing is unknown any more."""
    outside = set(system.parameters)
    host: list[Definition] = []
    local: list[Definition] = []
    for item in _used_definitions(system, problem):
        if item.value.symbols <= outside:
            host.append(item)
            outside.add(item.name)
        else:
            local.append(item)
    return Fibre(
        coordinates=problem.coordinates,
        nonempty=problem.nonempty,
        host=tuple(host),
        steps=_steps(system, local, frozenset(outside)),
        solution=tuple((name, system.solution[name]) for name, _ in problem.iterators),
        rules=tuple(system.rules),
        ordered=_is_ordered(system, problem),
        fallback=fallback,
    )


def _is_ordered(system: System, problem: Problem) -> bool:
    """Whether the loops turn in the lexicographic order of the iterators.

    Each iterator in turn must follow the next few loops as a number follows its digits.
    """
    names = [loop.name for loop in system.loops]
    settled = 0
    for iterator, _ in problem.iterators:
        value = system.solution[iterator]
        reach = system.reach(value)
        inner = [k for k in range(settled, len(names)) if names[k] in reach]
        if not inner:
            continue
        if inner != list(range(settled, inner[-1] + 1)) or not _follows(system, value, inner):
            return False
        settled = inner[-1] + 1
    return settled == len(names)


def _follows(system: System, value: Poly, loops: list[int]) -> bool:
    factors: list[Poly] = []
    for k in loops:
        split = value.linear_in(symbol_atom(system.loops[k].name))
        if split is None:
            return False
        factors.append(split[0])
        value = split[1]
    turning = {system.loops[k].name for k in loops}
    if any(system.reach(part) & turning for part in (value, *factors)):
        return False
    least = ONE  # that the factor of the loop outside must be
    for k, factor in zip(reversed(loops), reversed(factors), strict=True):
        if not prove.is_nonnegative(factor - least, system.facts):
            return False
        span = _span(system, k, turning)
        if span is None:
            return k == loops[0]
        least = least + factor * span
    return True


def _span(system: System, k: int, turning: set[str]) -> Poly | None:
    """How far a loop's variable moves at most, whatever the loops `turning` do."""
    loop = system.loops[k]
    steady = [
        [bound for bound in bounds if not system.reach(bound) & turning]
        for bounds in (loop.lower, loop.upper)
    ]
    return steady[1][0] - steady[0][0] if all(steady) else None


def _used_definitions(system: System, problem: Problem) -> list[Definition]:
    needed: set[str] = set()
    for name, _ in problem.iterators:
        needed |= system.solution[name].symbols
    for condition in system.conditions:
        needed |= condition.value.symbols
    for loop in system.loops:
        for bound in (*loop.lower, *loop.upper):
            needed |= bound.symbols
    used: list[Definition] = []
    for item in reversed(system.definitions):
        if item.name in needed:
            needed |= item.value.symbols
            used.append(item)
    return used[::-1]


def _steps(
    system: System, definitions: list[Definition], outside: frozenset[str]
) -> tuple[Step, ...]:
    level = {loop.name: depth for depth, loop in enumerate(system.loops, start=1)}

    def depth(value: Poly) -> int:
        return max((level.get(name, 0) for name in value.symbols), default=0)

    for item in definitions:
        level[item.name] = depth(item.value)
    steps: list[Step] = []
    for current in range(len(system.loops) + 1):
        if current:
            steps.append(system.loops[current - 1])
        conditions = [c for c in dict.fromkeys(system.conditions) if depth(c.value) == current]
        local = [d for d in definitions if level[d.name] == current]
        # A fragile value comes after all conditions that are less so: they make it safe.
        values = [c.value for c in conditions] + [d.value for d in local]
        grades = set(map(system.fragility, values))
        for grade in sorted(grades):
            steps += _one_level(
                [c for c in conditions if system.fragility(c.value) == grade],
                [d for d in local if system.fragility(d.value) == grade],
                outside,
            )
    return tuple(steps)


def _one_level(
    conditions: list[Condition], definitions: list[Definition], outside: frozenset[str]
) -> list[Step]:
    """Conditions as early as their names allow, those on sizes and attributes first."""
    steps: list[Step] = []
    waiting = [item.name for item in definitions]
    left = sorted(conditions, key=lambda condition: not condition.value.symbols <= outside)
    for item in (*definitions, None):
        ready = [c for c in left if c.value.symbols.isdisjoint(waiting)]
        left = [c for c in left if c not in ready]
        steps += ready
        if item is not None:
            steps.append(item)
            waiting.remove(item.name)
    assert not left
    return steps
