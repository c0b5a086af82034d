"""What a proof about a statement needs at hand, and where its outcome is kept.

A condition that speaks of sizes and attributes only cannot be settled before the call: it becomes a
launch check with the same message. Everything else is proved for all sizes or refused, with the
smallest shape and index that break it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Kind, Poly, poly
from opgen.algebra.prove import counterexample, implies
from opgen.errors import Edit, Span
from opgen.ir.context import with_iterators
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Constraint,
    Expr,
    Index,
    Read,
    Statement,
    Table,
    Tensor,
    Value,
)
from opgen.lang.attribute_bounds import above, missing_bound, nonpositive
from opgen.lang.environment import Environment, Fault


@dataclass(frozen=True)
class Obligations:
    """The proofs of one op. `faults` and `launch_checks` grow as statements are checked.

    `examples` keeps the counterexamples found, since several parts of a message speak of one.
    """

    facts: Facts
    environment: Environment
    faults: list[Fault]
    launch_checks: list[Constraint]
    examples: dict[tuple[Facts, Condition], dict[str, int] | None] = field(default_factory=dict)

    def statement_facts(self, statement: Statement) -> Facts:
        """What holds at a point of a statement's box where its guards hold."""
        facts = with_iterators(self.facts, statement.iterators)
        return facts.with_conditions(*statement.guards)

    def presence(self, expr: Expr) -> tuple[Condition, ...]:
        """Conditions under which an expression is not absent, for `?0` reads that annihilate it."""
        match expr:
            case Read(access=access):
                extents = self.extents(access)
                return tuple(
                    condition
                    for index, extent in zip(access.indices, extents, strict=True)
                    if index.boundary is Boundary.ZERO
                    for condition in (
                        Condition(index.value),
                        Condition(extent - 1 - index.value),
                    )
                )
            case Apply(primitive="mul", arguments=(left, right)):
                return (*self.presence(left), *self.presence(right))
            case Apply(primitive="neg", arguments=(argument,)):
                return self.presence(argument)
            case Apply(primitive="div", arguments=(numerator, _)):
                return self.presence(numerator)
            case _:
                return ()

    def extents(self, access: Access) -> tuple[Poly, ...]:
        match self.environment.tensors[access.tensor]:
            case Tensor(dims=dims):
                return tuple(dim.extent for dim in dims)
            case Table(shape=shape):
                return tuple(poly(extent) for extent in shape)
            case unexpected:
                assert_never(unexpected)

    def is_launch_condition(self, condition: Condition) -> bool:
        """Whether it is about sizes and attributes alone, and some call can meet it."""
        known = self.facts.symbols
        return bool(condition.value.symbols) and condition.value.symbols <= set(known)

    def launch_check(self, condition: Condition, text: str) -> None:
        if all(check.condition != condition for check in self.launch_checks):
            self.launch_checks.append(Constraint(condition, text, derived=True))

    def example(self, condition: Condition, facts: Facts) -> dict[str, int] | None:
        """The smallest sizes and indices at which the condition fails, if some were found.

        One where every attribute is positive is preferred: others are rarely meant to be passed.
        """
        if (facts, condition) in self.examples:
            return self.examples[facts, condition]
        names = [name for name in facts.symbols if name not in self.facts.symbols]
        values = counterexample(condition, facts, names)
        unusual = [] if values is None else nonpositive(values, facts, self.environment)
        if unusual:
            usual = facts.with_conditions(*above(unusual, 1))
            values = counterexample(condition, usual, names) or values
        self.examples[facts, condition] = values
        return values

    def most_telling(self, conditions: Sequence[Condition], facts: Facts) -> Condition:
        """The one to show of several that fail: the first that fails for positive attributes."""
        for condition in conditions:
            values = self.example(condition, facts)
            if values is not None and not nonpositive(values, facts, self.environment):
                return condition
        return conditions[0]

    def missing_bound(
        self,
        condition: Condition,
        facts: Facts,
        proves: Callable[[tuple[Condition, ...]], bool],
    ) -> tuple[str, Edit | None] | None:
        """The `where` for attributes, as words and an edit, that a proof lacks.

        `condition` is what fails, `proves` whether all that is to be proved follows under bounds.
        """
        return missing_bound(self.example(condition, facts), facts, self.environment, proves)

    def smallest(
        self,
        condition: Condition,
        facts: Facts,
        shown: Sequence[tuple[str, Poly]] = (),
    ) -> tuple[str, ...]:
        """`smallest case: W = 1, v = 0; the index is 1`, or nothing where no small case fails."""
        values = self.example(condition, facts)
        if values is None:
            return ()
        polynomials = (condition.value, *(value for _, value in shown))
        numbers = ((what, evaluated(value, values)) for what, value in shown)
        results = ", ".join(f"{what} is {number}" for what, number in numbers if number is not None)
        parts = (assignments(values, polynomials, facts), results)
        return ("smallest case: " + "; ".join(filter(None, parts)),)


def evaluated(value: Poly, values: Mapping[str, int]) -> int | None:
    """The value at an example; None where it has none or depends on what a tensor holds."""
    if not value.symbols <= values.keys() or value.is_data_dependent:
        return None
    try:
        return value.evaluate(values)
    except (ValueError, ZeroDivisionError):
        return None


def assignments(values: Mapping[str, int], polynomials: Iterable[Poly], facts: Facts) -> str:
    """`W = 1, v = 0`: the symbols of some polynomials, and those that directly limit them."""
    asked = frozenset[str]().union(*(value.symbols for value in polynomials))
    linked = (c.value.symbols for c in facts.conditions if not c.value.symbols.isdisjoint(asked))
    relevant = asked.union(*linked)
    return ", ".join(f"{name} = {value}" for name, value in values.items() if name in relevant)


def loads(values: Iterable[Poly], span: Span | None = None) -> Iterator[Access]:
    """The integer tensors read inside polynomials, but not those inside of other reads.

    `span` is where the polynomials stand.
    """
    for value in values:
        for atom in value.atoms():
            if atom.kind is Kind.LOAD:
                yield Access(atom.name, tuple(Index(arg) for arg in atom.args), span)
            else:
                yield from loads(atom.args, span)


_TRUE_WHERE: Final = {
    "lt": lambda d: Condition(d - 1),
    "le": lambda d: Condition(d),
    "gt": lambda d: Condition(-d - 1),
    "ge": lambda d: Condition(-d),
    "eq": lambda d: Condition(d, Relation.EQ),
    "ne": lambda d: Condition(d, Relation.NE),
}


def truths(test: Expr, *, outcome: bool = True) -> tuple[Condition, ...]:
    """Conditions on indices that hold wherever a value-level test has this outcome.

    A conjunction that fails says nothing: any of its operands may be the one that failed, also one
    that is no condition on indices.
    """
    match test:
        case Apply(primitive="and", arguments=(left, right)) if outcome:
            return (*truths(left), *truths(right))
        case Apply(primitive=name, arguments=(left, right)) if name in _TRUE_WHERE:
            a, b = _polynomial(left), _polynomial(right)
            if a is None or b is None:
                return ()
            holds = _TRUE_WHERE[name](b - a)
            if outcome:
                return (holds,)
            fails = complements(holds)
            return fails if len(fails) == 1 else ()
        case _:
            return ()


def _polynomial(expr: Expr) -> Poly | None:
    match expr:
        case Value(value=value):
            return value
        case Constant(value=int() as number):
            return poly(number)
        case _:
            return None


def complements(condition: Condition) -> tuple[Condition, ...]:
    """Conditions one of which holds where the given one fails."""
    value = condition.value
    match condition.relation:
        case Relation.GE:
            return (Condition(-value - 1),)
        case Relation.EQ:
            return (Condition(value - 1), Condition(-value - 1))
        case Relation.NE:
            return (Condition(value, Relation.EQ),)
        case unexpected:
            assert_never(unexpected)


def excludes(facts: Facts, condition: Condition) -> bool:
    """Whether the facts make a condition impossible."""
    return any(implies(facts, complement) for complement in complements(condition))
