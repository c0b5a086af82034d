"""The working state of the fibre solver: unknowns, what they must satisfy, what is settled.

The rules of `fibre_rules` and `fibre_bounds` change it step by step. Each change keeps the set of
points described: an unknown is replaced by an equal expression, an equation by an equivalent one,
or a loop is opened over all values an unknown can have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from opgen.algebra import prove
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.fibre_ranks import Rank, rank_of
from opgen.algebra.fibre_types import Definition, Loop, Problem
from opgen.algebra.inequality import cleared
from opgen.algebra.poly import Atom, Kind, Monomial, Poly, of_atom, rebuild, symbol

QUESTIONS: Final = 1500
"""Questions to the prover that one problem may cost; a convolution needs about a hundred."""


_SHORT: Final = 6
"""Values up to this length are written out wherever they are used."""


class GiveUp(Exception):  # noqa: N818 - control flow inside the solver, never seen outside
    """The problem is to be enumerated instead; the text says why."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A symbol to be solved for, with the range it is known to have.

    `order` is its place in the order of iteration; digits of one iterator follow each other.
    """

    name: str
    lower: Poly | None
    upper: Poly | None
    order: tuple[int, ...]
    original: bool = True

    @property
    def value(self) -> Poly:
        """It, as a polynomial."""
        return symbol(self.name)


@dataclass(frozen=True, slots=True)
class Linear:
    """An equation `sum of factor * unknown + rest == 0`.

    `opaque` are the unknowns that occur in another way: in a product of unknowns, or inside an
    atom. `rest` is free of unknowns if there are none.
    """

    factors: Mapping[str, Poly]
    rest: Poly
    opaque: frozenset[str]


class System:
    """See the module docstring. `facts` speak of known symbols only.

    A load has a value only where its indices are inside the tensor, and a division by an iterator
    only where the iterator is in its range. The conditions that see to that must not be left out
    because something evaluated later implies them. `fragile` tells whether the relation has such
    values, `safe_facts` are what is known without evaluating any, and `outer_facts[k]` those at
    loop level k. `divides` tells whether indices are quotients: then it takes long to try a point.
    """

    def __init__(self, problem: Problem, facts: Facts, cell_facts: Facts) -> None:
        iterators = {name for name, _ in problem.iterators}
        coordinates = {name for cell in problem.cells for name in cell.symbols}
        names = problem.outer_symbols.union(facts.symbols)
        self.parameters = names - iterators - coordinates.union(problem.coordinates)
        self.facts = cell_facts
        self.safe_facts = cell_facts
        self.outer_facts: list[Facts] = []
        self.unknowns: dict[str, Unknown] = {}
        self.equations: list[Poly] = []  # each == 0
        self.required: list[Poly] = []  # each >= 0
        self.implied: list[Poly] = []  # each >= 0, follows from `required` but helps bounds
        self.unequal: list[Poly] = []  # each != 0
        self.watched: list[Poly] = []  # under consideration, kept up to date
        self.solution: dict[str, Poly] = {}
        self.definitions: list[Definition] = []
        self.loops: list[Loop] = []
        self.conditions: list[Condition] = []
        self.rules: list[str] = []
        self._sizes = problem.sizes
        self._dims = tuple(
            (cell.symbols.intersection(problem.coordinates), index.extent)
            for cell, index in zip(problem.cells, problem.target, strict=True)
        )
        self._names = {*names, *iterators, *problem.reserved}
        self._questions = QUESTIONS
        self._boxes: tuple[Facts, tuple[Unknown, ...], Facts] | None = None
        values = [guard.value for guard in problem.guards]
        values += [index.value for index in problem.target]
        atoms = (atom for value in values for atom in value.all_atoms())
        self.divides = any(
            atom.kind is Kind.FLOOR_DIV and not iterators.isdisjoint(atom.symbols) for atom in atoms
        )
        self._fragility: dict[str, int] = {}  # of definitions
        self.fragile = True
        self.fragile = any(map(self.fragility, values))

    # ------------------------------------------------------------------ names and notes
    def fresh(self, base: str) -> str:
        """A new name that starts with `base`; an identifier, whatever the base is."""
        base = re.sub(r"\W+", "_", base)
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    def note(self, rule: str, text: str) -> None:
        """Record that a rule was applied."""
        self.rules.append(f"{rule}: {text}")

    # ------------------------------------------------------------------ the prover, metered
    def nonnegative(self, value: Poly, facts: Facts | None = None) -> bool:
        """Whether `value >= 0` is proved from what is known, or from given facts."""
        self._spend()
        return prove.is_nonnegative(value, facts or self.facts)

    def sign(self, value: Poly) -> int | None:
        """1 or -1 if that is the proved sign."""
        if value.is_constant:
            return (value.constant > 0) - (value.constant < 0) or None
        if self.nonnegative(value - 1):
            return 1
        return -1 if self.nonnegative(-value - 1) else None

    def quotient(self, a: Poly, b: Poly) -> Poly:
        """Floor of a / b, simplified with what is known."""
        self._spend()
        return prove.floor_div(a, b, self.facts)

    def _spend(self) -> None:
        self._questions -= 1
        if self._questions < 0:
            raise GiveUp("the relation is too involved to invert")

    @property
    def box_facts(self) -> Facts:
        """What is known, with the ranges of the unknowns."""
        unknowns = tuple(self.unknowns.values())
        if self._boxes is None or self._boxes[0] is not self.facts or self._boxes[1] != unknowns:
            facts = self.facts
            for unknown in unknowns:
                facts = facts.with_bounds(unknown.name, unknown.lower, unknown.upper)
            self._boxes = (self.facts, unknowns, facts)
        return self._boxes[2]

    # ------------------------------------------------------------------ growing
    def add_unknown(self, unknown: Unknown, *, required: bool) -> None:
        """A new unknown; its range is a requirement or merely a consequence of others."""
        self.unknowns[unknown.name] = unknown
        target = self.required if required else self.implied
        if unknown.lower is not None:
            target.append(unknown.value - unknown.lower)
        if unknown.upper is not None:
            target.append(unknown.upper - unknown.value)

    def require(self, value: Poly) -> None:
        """`value >= 0`, in parts without floors where possible."""
        for part in cleared(value):
            if not (part.is_constant and part.constant >= 0):
                self.required.append(part)

    def assume(self, condition: Condition) -> None:
        """A condition on known symbols: checked when the fibre is run, known from here on."""
        self.conditions.append(condition)
        self.learn(condition)

    def define(
        self, base: str, value: Poly, lower: Poly | None = None, upper: Poly | None = None
    ) -> Poly:
        """A name for a value of known symbols, of which proofs see the bounds only."""
        if value.is_constant or value.symbol is not None:
            return value
        for item in self.definitions:
            if item.value == value:
                return symbol(item.name)
        return self._define(self.fresh(base), value, lower, upper)

    def _define(self, name: str, value: Poly, lower: Poly | None, upper: Poly | None) -> Poly:
        self.definitions.append(Definition(name, value))
        self._fragility[name] = self.fragility(value)
        self._update(lambda facts: facts.with_definition(name, value, lower, upper))
        return symbol(name)

    def fix(self, name: str, value: Poly) -> None:
        """An unknown that can only have one value; a long one is computed once."""
        if length(value) <= _SHORT:
            self.substitute(name, value)
            return
        del self.unknowns[name]
        self.solution.setdefault(name, symbol(name))
        self._define(name, value, value, value)

    def open(self, loop: Loop) -> None:
        """A loop around everything still to be settled; its variable is known from here on."""
        self.loops.append(loop)
        del self.unknowns[loop.name]
        self.solution.setdefault(loop.name, symbol(loop.name))
        self.outer_facts.append(self.safe_facts)
        self._update(lambda facts: facts.with_symbol(loop.name, loop.lower, loop.upper))

    def learn(self, condition: Condition) -> None:
        """A condition that holds wherever the fibre is evaluated further."""
        self._update(
            lambda facts: facts.with_conditions(condition),
            safe=self.fragility(condition.value) == 0,
        )

    def _update(self, change: Callable[[Facts], Facts], *, safe: bool = True) -> None:
        same = self.facts is self.safe_facts
        self.facts = change(self.facts)
        if safe:
            self.safe_facts = self.facts if same else change(self.safe_facts)

    def facts_for(self, value: Poly) -> Facts:
        """What may be used to show that a requirement need not be checked."""
        if not self.fragile:
            return self.facts
        reach = self.reach(value)
        inside = [k for k, loop in enumerate(self.loops, start=1) if loop.name in reach]
        level = max(inside, default=0)
        return (*self.outer_facts, self.safe_facts)[level]

    def reach(self, value: Poly) -> set[str]:
        """The symbols a value depends on, also through definitions."""
        reached = set(value.symbols)
        for item in reversed(self.definitions):
            if item.name in reached:
                reached |= item.value.symbols
        return reached

    def fragility(self, value: Poly) -> int:
        """How deep values are nested that exist only under conditions; 0 if there are none."""
        if not self.fragile:
            return 0
        depths = [self._fragility[name] for name in value.symbols if name in self._fragility]
        for atom in value.atoms():
            inner = max(map(self.fragility, atom.args), default=0)
            divides = atom.kind is Kind.FLOOR_DIV and not atom.args[1].symbols <= self.parameters
            depths.append(inner + (atom.kind is Kind.LOAD or divides))
        return max(depths, default=0)

    # ------------------------------------------------------------------ replacing
    def substitute(self, name: str, value: Poly) -> None:
        """Eliminate an unknown that equals `value`."""
        values = {name: value}
        del self.unknowns[name]
        self._rewrite(lambda poly: poly.substitute(values))
        self.solution[name] = value

    def replace_atom(self, atom: Atom, value: Poly) -> None:
        """Replace an atom by an equal value, also inside other atoms."""
        self._rewrite(lambda poly: replaced(poly, atom, value))

    def _rewrite(self, change: Callable[[Poly], Poly]) -> None:
        self._spend()
        self.equations = [change(value) for value in self.equations]
        self.required = self._cleaned(map(change, self.required))
        self.implied = self._cleaned(map(change, self.implied))
        self.unequal = [change(value) for value in self.unequal]
        self.watched = [change(value) for value in self.watched]
        self.solution = {name: change(value) for name, value in self.solution.items()}

    @staticmethod
    def _cleaned(values: Iterable[Poly]) -> list[Poly]:
        parts = dict.fromkeys(part for value in values for part in cleared(value))
        return [part for part in parts if not (part.is_constant and part.constant >= 0)]

    # ------------------------------------------------------------------ looking
    def unknowns_of(self, value: Poly) -> list[str]:
        """The unknowns a value depends on, in order of iteration."""
        if self.unknowns.keys().isdisjoint(value.symbols):
            return []
        return [name for name in self.unknowns if name in value.symbols]

    def linear(self, value: Poly) -> Linear:
        """The value as a linear form in the unknowns."""
        factors: dict[str, dict[Monomial, int]] = {}
        rest: dict[Monomial, int] = {}
        opaque: set[str] = set()
        for monomial, coefficient in value.terms.items():
            touched = [atom for atom in monomial if not atom.symbols.isdisjoint(self.unknowns)]
            if not touched:
                rest[monomial] = coefficient
            elif len(touched) == 1 and touched[0].kind is Kind.SYMBOL:
                where = monomial.index(touched[0])
                shorter = monomial[:where] + monomial[where + 1 :]
                factors.setdefault(touched[0].name, {})[shorter] = coefficient
            else:
                rest[monomial] = coefficient
                for atom in touched:
                    opaque.update(atom.symbols & self.unknowns.keys())
        total = Poly(rest)
        for name in [name for name in factors if name in opaque]:
            total = total + Poly(factors.pop(name)) * symbol(name)
        ordered = {name: Poly(factors[name]) for name in self.unknowns if name in factors}
        return Linear(ordered, total, frozenset(opaque))

    def range(self, value: Poly) -> tuple[Poly | None, Poly | None]:
        """Least and greatest value over the ranges of the unknowns, where they can be told."""
        form = self.linear(value)
        low: Poly | None = form.rest
        high: Poly | None = form.rest
        for atom in form.rest.atoms():
            # A floor division is monotone, so its ends are those of its numerator.
            if atom.kind is not Kind.FLOOR_DIV or not self.unknowns_of(of_atom(atom)):
                continue
            split = form.rest.linear_in(atom)
            if split is None or not split[0].is_constant or self.unknowns_of(atom.args[1]):
                return None, None
            ends = [
                None if end is None else self.quotient(end, atom.args[1])
                for end in self.range(atom.args[0])
            ]
            if split[0].constant < 0:
                ends.reverse()
            low = None if low is None or ends[0] is None else replaced(low, atom, ends[0])
            high = None if high is None or ends[1] is None else replaced(high, atom, ends[1])
        for name, factor in form.factors.items():
            unknown = self.unknowns[name]
            if self.nonnegative(factor):
                ends = [unknown.lower, unknown.upper]
            elif self.nonnegative(-factor):
                ends = [unknown.upper, unknown.lower]
            else:
                return None, None
            low = None if low is None or ends[0] is None else low + factor * ends[0]
            high = None if high is None or ends[1] is None else high + factor * ends[1]
        if low is not None and self.unknowns_of(low):
            low = None
        if high is not None and self.unknowns_of(high):
            high = None
        return low, high

    def rank(self, name: str, equation: Poly) -> Rank:
        """How many values an unknown has, to compare with others of an equation."""
        unknown = self.unknowns[name]
        extent = None
        if unknown.lower is not None and unknown.upper is not None:
            extent = unknown.upper - unknown.lower + 1
        dims = [dim for cell, dim in self._dims if not cell.isdisjoint(equation.symbols)]
        return rank_of(extent, dims, self._sizes, self.facts.definitions)


def replaced(value: Poly, atom: Atom, by: Poly) -> Poly:
    """The value with an atom replaced, also inside other atoms."""
    if not atom.symbols <= value.symbols:
        return value

    def change(other: Atom) -> Poly:
        if other is atom:
            return by
        if other.kind is Kind.SYMBOL or not atom.symbols <= other.symbols:
            return of_atom(other)
        return rebuild(other, tuple(replaced(arg, atom, by) for arg in other.args))

    return value.map_atoms(change)


def length(value: Poly) -> int:
    """How much there is to compute."""
    return sum(
        1 + sum(1 + sum(map(length, atom.args)) for atom in monomial) for monomial in value.terms
    )


def equals_zero(value: Poly) -> Condition:
    """The condition `value == 0`."""
    return Condition(value, Relation.EQ)
