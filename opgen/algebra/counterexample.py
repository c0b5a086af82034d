"""The smallest sizes and indices at which a condition fails, for diagnostics.

Candidates are tried in order of the sum of their sizes and attributes, so that the first one found
is the smallest shape that shows the fault, and at that shape the first index in iteration order.
Shapes with an empty dim come last: they show a fault badly. A let takes the value of its formula.
What the condition does not depend on is chosen afterwards, as small as the rest allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, symbol_atom

_EFFORT: Final = 8_000  # points and conditions tried before the search gives up
_LARGEST_RANGE: Final = 4096  # values of one index tried


def counterexample(
    violated: Condition, facts: Facts, iterators: Sequence[str]
) -> dict[str, int] | None:
    """Values of all symbols at which the facts hold and the condition does not, or None.

    `iterators` are those symbols of the facts that are indices; they come after sizes. None means
    that no small example exists or that the search was given up. Loaded integers are not searched.
    """
    for smallest_size in (1, 0):
        search = _Search(violated, facts, iterators, smallest_size)
        try:
            found = next(search.solutions(), None)
        except _GiveUp:
            continue
        if found is not None:
            return found
    return None


class _GiveUp(Exception):  # noqa: N818 - control flow inside the search
    pass


class _Search:
    def __init__(
        self, violated: Condition, facts: Facts, iterators: Sequence[str], smallest_size: int
    ) -> None:
        self.facts = facts
        self.effort = _EFFORT
        self.least = dict(facts.floors)
        for name, declared in facts.parameters:
            if declared == 0:
                self.least[name] = max(self.least[name], smallest_size)
        definitions = dict(facts.definitions)
        everything = list(dict.fromkeys((*facts.symbols, *sorted(violated.value.symbols))))
        relevant = _needed(violated.value.symbols, facts, iterators)
        self.definitions = definitions
        self.violated = violated
        sizes = [n for n in everything if n not in definitions and n not in iterators]
        indices = [n for n in everything if n in iterators and n not in definitions]
        self.sizes = [n for n in sizes if n in relevant]
        self.indices = [n for n in indices if n in relevant]
        self.other_sizes = [n for n in sizes if n not in relevant]
        self.other_indices = [n for n in indices if n not in relevant]
        self.conditions = facts.conditions
        self.linear = {name: _bounds(name, facts) for name in indices}

    def solutions(self) -> Iterator[dict[str, int]]:
        for values in self.assignments({}, self.sizes):
            for found in self.index_values(values, self.indices):
                if self.fails(self.violated, found):
                    yield from self.completed(found)

    def completed(self, values: dict[str, int]) -> Iterator[dict[str, int]]:
        for more in self.assignments(values, self.other_sizes):
            yield from self.index_values(more, self.other_indices)

    # ------------------------------------------------------------------ sizes and attributes
    def assignments(self, fixed: dict[str, int], names: list[str]) -> Iterator[dict[str, int]]:
        """Values of free symbols by growing sum of their distances from the least."""
        if not names:
            extended = self.with_definitions(fixed)
            if extended is not None:
                yield extended
            return
        for total in itertools.count():
            self.spend()
            for values in self.with_sum(fixed, names, total):
                self.spend()
                extended = self.with_definitions(values)
                if extended is not None:
                    yield extended

    def with_sum(
        self, values: dict[str, int], names: list[str], total: int
    ) -> Iterator[dict[str, int]]:
        name, *rest = names
        for spent in range(total + 1) if rest else (total,):
            for value in self.values_at(name, spent):
                chosen = {**values, name: value}
                if self.consistent(chosen, name):
                    if rest:
                        yield from self.with_sum(chosen, rest, total - spent)
                    else:
                        yield chosen

    def values_at(self, name: str, distance: int) -> tuple[int, ...]:
        floor = self.least.get(name)
        if floor is not None:
            return (floor + distance,)
        return (distance, -distance) if distance else (0,)

    def with_definitions(self, values: dict[str, int]) -> dict[str, int] | None:
        """With every let whose formula has values; None if something known fails."""
        values = dict(values)
        for name, formula in self.definitions.items():
            if name in values or not formula.symbols <= values.keys():
                continue
            try:
                values[name] = formula.evaluate(values)
            except (KeyError, ValueError, ZeroDivisionError):
                return None
            if not self.consistent(values, name):
                return None
        return values

    # ------------------------------------------------------------------ indices
    def index_values(self, values: dict[str, int], names: list[str]) -> Iterator[dict[str, int]]:
        """Values of the indices within their bounds, in iteration order."""
        if not names:
            yield values
            return
        name, *rest = names
        low, high = self.bounds(name, values)
        for value in range(low, min(high, low + _LARGEST_RANGE) + 1):
            chosen = {**values, name: value}
            if self.consistent(chosen, name):
                yield from self.index_values(chosen, rest)

    def bounds(self, name: str, values: Mapping[str, int]) -> tuple[int, int]:
        """The range of an index that its bounds give."""
        low, high = self.least.get(name), None
        for direction, rest in self.linear[name]:
            if rest.symbols <= values.keys():
                try:
                    bound = -direction * rest.evaluate(values)
                except (KeyError, ValueError, ZeroDivisionError):
                    continue  # no value here, so no bound
                if direction > 0:
                    low = bound if low is None else max(low, bound)
                else:
                    high = bound if high is None else min(high, bound)
        if low is None:
            low = -4 if high is None else high - 8
        return low, low + 8 if high is None else high

    # ------------------------------------------------------------------ conditions
    def consistent(self, values: Mapping[str, int], newest: str) -> bool:
        """Whether what is known about the newest symbol holds, as far as it has values."""
        return not any(
            newest in condition.value.symbols
            and condition.value.symbols <= values.keys()
            and self.fails(condition, values)
            for condition in self.conditions
        )

    def spend(self) -> None:
        self.effort -= 1
        if self.effort < 0:
            raise _GiveUp

    def fails(self, condition: Condition, values: Mapping[str, int]) -> bool:
        self.spend()
        try:
            return not condition.holds(values)
        except (KeyError, ValueError, ZeroDivisionError):
            return False  # no value here: neither kept nor broken


def _bounds(name: str, facts: Facts) -> list[tuple[int, Poly]]:
    """What is known about a symbol in the form `direction * symbol + rest >= 0`, direction +-1."""
    found: list[tuple[int, Poly]] = []
    for condition in facts.conditions:
        split = condition.value.linear_in(symbol_atom(name))
        if split is None or condition.relation is Relation.NE or name in split[1].symbols:
            continue
        if split[0] in (1, -1):
            found.append((split[0].constant, split[1]))
            if condition.relation is Relation.EQ:
                found.append((-split[0].constant, -split[1]))
    return found


def _needed(start: frozenset[str], facts: Facts, iterators: Sequence[str]) -> set[str]:
    """The symbols whose values decide about `start`: formulas of lets and bounds of indices."""
    formulas = dict(facts.definitions)
    reached: set[str] = set()
    pending = sorted(start)
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        if name in formulas:
            pending += sorted(formulas[name].symbols)
        elif name in iterators:
            for condition in facts.conditions:
                if name in condition.value.symbols:
                    pending += sorted(condition.value.symbols)
    return reached
