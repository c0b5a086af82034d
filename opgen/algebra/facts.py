"""What is known about the symbols of an op while something is proved or solved.

A `Facts` is immutable. Adding to it gives a new one that knows everything the old one did, so what
was proved from the old one stays proved. It knows

    floors         constant lower bounds; symbols with one are called bounded below
    inequalities   polynomials that are >= 0
    definitions    formulas of symbols, used for sample points
    conditions     everything again as it was said, for the search of counterexamples

Floor divisions, minima and maxima are cleared out of inequalities where that is exact, so that
`V = a // b + c` becomes the two polynomial inequalities `b*(V - c) <= a < b*(V - c) + b`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opgen.algebra import samples
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.inequality import cleared
from opgen.algebra.poly import Atom, Kind, Monomial, Poly, of_atom, symbol
from opgen.algebra.samples import ENOUGH, Samples


@dataclass(frozen=True, slots=True)
class Bounds:
    """A symbol introduced with bounds, both inclusive; several hold together."""

    name: str
    lower: tuple[Poly, ...]
    upper: tuple[Poly, ...]


@dataclass(frozen=True, slots=True)
class Formula:
    """A symbol introduced with a formula."""

    name: str
    value: Poly


Step = Bounds | Formula | tuple[Condition, ...]


class Facts:
    """Immutable knowledge about symbols; see the module docstring."""

    __slots__ = (
        "_children",
        "_index",
        "_parent",
        "_samples",
        "_shifted_samples",
        "_slack",
        "_step",
        "conditions",
        "definitions",
        "factor_memo",
        "floors",
        "inequalities",
        "memo",
        "nested_memo",
        "parameters",
        "sign_memo",
        "symbols",
    )

    parameters: tuple[tuple[str, int | None], ...]
    symbols: tuple[str, ...]  # every symbol introduced so far, in order
    floors: Mapping[str, int]
    inequalities: tuple[Poly, ...]
    conditions: tuple[Condition, ...]
    definitions: tuple[tuple[str, Poly], ...]
    # Answers kept by `prove` and `search`.
    memo: dict[Poly, bool]
    factor_memo: dict[Atom, bool]
    nested_memo: dict[Atom, bool]
    sign_memo: dict[Poly, bool]

    def __init__(self) -> None:
        self.parameters = ()
        self.symbols = ()
        self.floors = {}
        self.inequalities = ()
        self.conditions = ()
        self.definitions = ()
        self.memo = {}
        self.factor_memo = {}
        self.nested_memo = {}
        self.sign_memo = {}
        self._children: dict[tuple[Step, tuple[Condition, ...]], Facts] = {}
        self._parent: Facts | None = None
        self._step: Step | None = None
        self._samples: Samples | None = None
        self._shifted_samples: Samples | None = None
        self._slack: tuple[Poly, ...] | None = None
        self._index: dict[Monomial, list[tuple[Poly, int]]] | None = None

    # ------------------------------------------------------------------ construction
    @staticmethod
    def of(
        parameters: Sequence[tuple[str, int | None]],
        definitions: Sequence[tuple[str, Poly]] = (),
        constraints: Sequence[Condition] = (),
    ) -> Facts:
        """Knowledge of an op: free symbols, its lets in order, and its launch conditions.

        A parameter comes with a constant lower bound, or None where nothing is known; a
        constraint that bounds a single symbol has the same effect.
        """
        facts = Facts()
        facts.parameters = tuple(parameters)
        facts.symbols = tuple(name for name, _ in parameters)
        facts.floors = {name: floor for name, floor in parameters if floor is not None}
        for name, value in definitions:
            facts = facts._with_equation(name, value)
        return facts.with_conditions(*constraints) if constraints else facts

    def with_bounds(self, name: str, lower: Poly | None, upper: Poly | None) -> Facts:
        """With `lower <= name <= upper`; a symbol met here for the first time is introduced."""
        return self.with_symbol(
            name,
            () if lower is None else (lower,),
            () if upper is None else (upper,),
        )

    def with_symbol(self, name: str, lower: Iterable[Poly], upper: Iterable[Poly]) -> Facts:
        """With `max(lower) <= name <= min(upper)`."""
        bounds = Bounds(name, tuple(lower), tuple(upper))
        value = symbol(name)
        conditions = [Condition(value - bound) for bound in bounds.lower]
        conditions += [Condition(bound - value) for bound in bounds.upper]
        if name in self.symbols:
            return self.with_conditions(*conditions)
        return self._child(bounds, conditions, name)

    def with_definition(
        self, name: str, value: Poly, lower: Poly | None = None, upper: Poly | None = None
    ) -> Facts:
        """With a new symbol of which proofs see only the bounds.

        Hiding a long formula behind its name keeps proofs short; sample points still use it.
        """
        own = symbol(name)
        conditions = [] if lower is None else [Condition(own - lower)]
        conditions += [] if upper is None else [Condition(upper - own)]
        return self._child(Formula(name, value), conditions, name)

    def with_conditions(self, *conditions: Condition) -> Facts:
        """With conditions that hold. NE helps only where the sign is plain."""
        return self._child(tuple(conditions), conditions)

    def _with_equation(self, name: str, value: Poly) -> Facts:
        equation = Condition(symbol(name) - value, Relation.EQ)
        return self._child(Formula(name, value), [equation], name)

    def _child(self, step: Step, learned: Sequence[Condition], name: str | None = None) -> Facts:
        """The one child that this step leads to, so that its answers and points are shared."""
        key = (step, tuple(learned))
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = Facts()
            child._parent, child._step = self, step
            child.parameters = self.parameters
            child.symbols = self.symbols if name is None else (*self.symbols, name)
            child.definitions = self.definitions
            if isinstance(step, Formula):
                child.definitions = (*self.definitions, (step.name, step.value))
            child.floors, child.inequalities = self.floors, self.inequalities
            child.conditions = self.conditions
            child._learn(learned)
        return child

    def _learn(self, conditions: Sequence[Condition]) -> None:
        """Only for an object under construction."""
        floors = dict(self.floors)
        known = dict.fromkeys(self.inequalities)
        for condition in conditions:
            for claim in self._claims(condition):
                for inequality in cleared(claim):
                    if not _constant_bound(inequality, floors):
                        known[inequality] = None
        self.conditions = (*self.conditions, *conditions)
        self.floors = floors
        self.inequalities = tuple(known)

    def _claims(self, condition: Condition) -> tuple[Poly, ...]:
        value = condition.value
        match condition.relation:
            case Relation.GE:
                return (value,)
            case Relation.EQ:
                return (value, -value)
            case Relation.NE:
                if self.plainly_nonnegative(value):
                    return (value - 1,)
                return (-value - 1,) if self.plainly_nonnegative(-value) else ()

    # ------------------------------------------------------------------ slack form
    # In slack form a bounded symbol stands for its distance from its floor, so that "all factors
    # are bounded and all coefficients >= 0" means nonnegative. Atoms keep their own meaning.
    def to_slack(self, value: Poly) -> Poly:
        """The same value over distances from floors."""
        return self._moved(value, 1)

    def from_slack(self, value: Poly) -> Poly:
        """The inverse of `to_slack`."""
        return self._moved(value, -1)

    def _moved(self, value: Poly, direction: int) -> Poly:
        floors = self.floors
        if not any(
            atom.kind is Kind.SYMBOL and floors.get(atom.name)
            for monomial in value.terms
            for atom in monomial
        ):
            return value
        return value.map_atoms(
            lambda atom: (
                of_atom(atom) + direction * floors.get(atom.name, 0)
                if atom.kind is Kind.SYMBOL
                else of_atom(atom)
            )
        )

    def plainly_nonnegative(self, value: Poly) -> bool:
        """Whether floors alone show `value >= 0`, without a search."""
        slack = self.to_slack(value)
        return all(
            coefficient >= 0
            and all(atom.kind is Kind.SYMBOL and atom.name in self.floors for atom in monomial)
            for monomial, coefficient in slack.terms.items()
        )

    @property
    def slack_inequalities(self) -> tuple[Poly, ...]:
        """The inequalities in slack form."""
        if self._slack is None:
            parent = self._parent
            if parent is not None and all(
                self.floors.get(name) == floor for name, floor in parent.floors.items()
            ):
                # Only symbols that the old inequalities do not mention can have got a floor.
                fresh = self.inequalities[len(parent.inequalities) :]
                unseen = [n for n in self.floors if n not in parent.floors]
                stale = any(
                    name in inequality.symbols
                    for name in unseen
                    for inequality in parent.inequalities
                )
                if not stale:
                    added = tuple(self.to_slack(value) for value in fresh)
                    self._slack = parent.slack_inequalities + added
                    return self._slack
            self._slack = tuple(self.to_slack(value) for value in self.inequalities)
        return self._slack

    @property
    def index(self) -> Mapping[Monomial, list[tuple[Poly, int]]]:
        """For each monomial, the slack inequalities it occurs in, with its coefficient there."""
        if self._index is None:
            self._index = {}
            for inequality in self.slack_inequalities:
                for monomial, coefficient in inequality.terms.items():
                    self._index.setdefault(monomial, []).append((inequality, coefficient))
        return self._index

    # ------------------------------------------------------------------ sample points
    @property
    def samples(self) -> Samples:
        """Points where everything known holds."""
        if self._samples is None:
            self._samples = self._make_samples()
        return self._samples

    def _make_samples(self) -> Samples:
        parent, step = self._parent, self._step
        if parent is None or step is None or self._parameters_only():
            drawn = self._draw(self.conditions, many=False)
            if drawn.alive.bit_count() < ENOUGH:
                drawn = self._draw(self.conditions, many=True).compressed()
            return drawn
        found = _sampled(parent.samples, step)
        if found.alive.bit_count() >= ENOUGH or parent.samples.alive.bit_count() < ENOUGH:
            return found
        # Conditions like divisibility rule out most points: start over from more of them.
        names = self._drawn_names()
        drawable = [c for c in self.conditions if c.value.symbols <= names]
        return self._replayed(drawable).compressed()

    def _replayed(self, conditions: Sequence[Condition]) -> Samples:
        parent, step = self._parent, self._step
        if parent is None or step is None or self._parameters_only():
            return self._draw(conditions, many=True)
        return _sampled(parent._replayed(conditions), step)

    def _drawn_names(self) -> set[str]:
        names = {name for name, _ in self.parameters}
        return names.union(name for name, _ in self.definitions)

    def _parameters_only(self) -> bool:
        return self._drawn_names().issuperset(self.symbols)

    def _draw(self, conditions: Sequence[Condition], *, many: bool) -> Samples:
        known = [c for c in conditions if c.value.symbols <= set(self.symbols)]
        return samples.draw(self.parameters, self.floors, self.definitions, known, many=many)

    def refutes(self, slack: Poly) -> bool:
        """Whether a sample point shows that a value in slack form can be negative."""
        if self._shifted_samples is None:
            self._shifted_samples = self.samples.shifted(self.floors)
        return self._shifted_samples.refutes(slack)


def _sampled(points: Samples, step: Step) -> Samples:
    match step:
        case Bounds(name, lower, upper):
            return points.extended(name, lower, upper)
        case Formula(name, value):
            return points.defined(name, value)
        case _:
            return points.filtered(step)


def _constant_bound(inequality: Poly, floors: dict[str, int]) -> bool:
    """Absorb what says no more than constant lower bounds of symbols; tell whether it did."""
    rest = inequality - inequality.constant
    if len(rest.terms) != 1:
        return not rest.terms
    ((monomial, coefficient),) = rest.terms.items()
    if coefficient <= 0 or any(atom.kind is not Kind.SYMBOL for atom in monomial):
        return False
    least = -(inequality.constant // coefficient)
    if len(monomial) == 1:
        name = monomial[0].name
        floors[name] = max(floors.get(name, least), least)
        return True
    if least >= 1 and all(floors.get(atom.name, -1) >= 0 for atom in monomial):
        # A positive product of nonnegative factors has positive factors.
        for atom in monomial:
            floors[atom.name] = max(floors[atom.name], 1)
        return least == 1
    return False
