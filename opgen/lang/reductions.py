"""Reductions inside of values: each becomes a temporary that a statement of its own computes.

`mean` becomes a sum divided by the count.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly, symbol
from opgen.errors import Span
from opgen.ir.build import of_polynomial
from opgen.ir.notation import (
    Access,
    Apply,
    Constant,
    Dim,
    DType,
    Expr,
    Index,
    Iterator,
    Read,
    Reducer,
    Statement,
    Tensor,
    Value,
    reads,
)
from opgen.lang import syntax
from opgen.lang.conditions import conditions
from opgen.lang.environment import Environment, Fault
from opgen.lang.indices import index_polynomial
from opgen.lang.ranges import resolve
from opgen.lang.repairs import renamed
from opgen.lang.scope import Scope
from opgen.lang.statement_faults import (
    duplicate_iterator,
    missing_position,
    unexpected_position,
    unknown_reducer,
)
from opgen.lang.values import value_expression

REDUCERS: Final = {
    "sum": Reducer.ADD,
    "prod": Reducer.MULTIPLY,
    "max": Reducer.MAX,
    "min": Reducer.MIN,
    "argmax": Reducer.ARGMAX,
    "argmin": Reducer.ARGMIN,
}
"""The reducers of the notation by their names in a spec; `mean` is none of it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A reduction: its iterators, the conditions on them, the term, the position of argmax."""

    iterators: tuple[Iterator, ...]
    guards: tuple[Condition, ...]
    body: Expr
    position: Poly | None


@dataclass
class Reductions:
    """Lowers the reductions of an op; those that are the same share a temporary.

    `pending` are the statements that compute new temporaries for the statement in hand, and `own`
    is where the iterators of that one stand.
    """

    environment: Environment
    temporaries: list[Tensor]
    pending: list[Statement] = field(default_factory=list)
    own: dict[str, Span] = field(default_factory=dict)
    _made: dict[tuple[object, ...], Access] = field(default_factory=dict)

    def begin(self, own: dict[str, Span]) -> None:
        """Go on to a statement with these iterators."""
        self.pending, self.own = [], own

    def parts(self, reduction: syntax.Reduction, scope: Scope) -> Parts:
        """What a reduction reduces. Raises Fault."""
        name = reduction.reducer
        if name.text not in syntax.REDUCERS:
            raise unknown_reducer(reduction, scope)
        for domain in reduction.domains:
            refuse_known(domain.name, reduction.span, self.environment)
            if domain.name.text in scope.iterators:
                raise Fault(
                    "shadowed-iterator",
                    f"'{domain.name.text}' is already an iterator here",
                    domain.name.span,
                    *((at, "of this one") for at in [self.own.get(domain.name.text)] if at),
                    advice="give the reduced iterator another name, in its term as well",
                    replacement=renamed(reduction.span, domain.name.text, self.environment),
                )
        spelled = [domain.name.text for domain in reduction.domains]
        for domain in reduction.domains:
            if spelled.count(domain.name.text) > 1:
                raise duplicate_iterator(reduction, domain.name.text)
        inside = [reduction.body]
        inside += [part for part in (reduction.condition, reduction.position) if part is not None]
        extents = resolve(reduction.domains, None, inside, self.environment)
        inner = scope.inside(extents)
        guards = conditions(reduction.condition, inner) if reduction.condition else ()
        inner = inner.guarded(guards)
        return Parts(
            tuple(Iterator(name, extent) for name, extent in extents.items()),
            guards,
            value_expression(reduction.body, inner),
            self._position(reduction, inner),
        )

    @staticmethod
    def _position(reduction: syntax.Reduction, scope: Scope) -> Poly | None:
        is_argument = reduction.reducer.text in ("argmax", "argmin")
        if reduction.position is not None:
            if not is_argument:
                raise unexpected_position(reduction, scope.environment)
            return index_polynomial(reduction.position, scope)
        if not is_argument:
            return None
        if len(reduction.domains) != 1:
            raise missing_position(reduction, scope.iterators, scope.environment)
        return symbol(reduction.domains[0].name.text)

    def as_temporary(self, reduction: syntax.Reduction, scope: Scope) -> Expr:
        """The result of a reduction inside of a value, read from a temporary."""
        parts = self.parts(reduction, scope)
        if reduction.reducer.text != "mean":
            return Read(
                self._temporary(REDUCERS[reduction.reducer.text], parts, scope, reduction.span)
            )
        total = Read(self._temporary(Reducer.ADD, parts, scope, reduction.span))
        if parts.guards:
            ones = replace(parts, body=Constant(1))
            count: Expr = Read(self._temporary(Reducer.ADD, ones, scope, reduction.span))
        else:
            product = poly(1)
            for iterator in parts.iterators:
                product = product * iterator.extent
            count = of_polynomial(product)
        return Apply("div", (total, count))

    def _temporary(self, reducer: Reducer, parts: Parts, scope: Scope, span: Span) -> Access:
        bound = {iterator.name for iterator in parts.iterators}
        used = _symbols(parts.body) | _condition_symbols(parts.guards)
        if parts.position is not None:
            used |= parts.position.symbols
        free = [name for name in scope.iterators if name in used and name not in bound]
        # Guards around the reduction also guard the temporary, as far as they speak of its cells.
        outer = tuple(
            guard
            for guard in scope.guards
            if guard.value.symbols.isdisjoint(scope.iterators.keys() - set(free))
        )
        iterators = (*(Iterator(n, scope.iterators[n]) for n in free), *parts.iterators)
        guards = (*outer, *parts.guards)
        identity = (reducer, iterators, guards, parts.body, parts.position)
        if identity not in self._made:
            name = self._fresh_name()
            dtype = DType.I64 if reducer.is_argument else DType.SAME
            tensor = Tensor(name, tuple(Dim(scope.iterators[n]) for n in free), dtype)
            self.environment.declare(name, span, "temporary")
            self.environment.tensors[name] = tensor
            self.temporaries.append(tensor)
            access = Access(name, tuple(Index(symbol(n)) for n in free), span)
            self._made[identity] = access
            statement = Statement(
                access, reducer, iterators, guards, parts.body, parts.position, span, True
            )
            self.pending.append(statement)
        return self._made[identity]

    def _fresh_name(self) -> str:
        number = 1
        while f"_t{number}" in self.environment.declared_at:
            number += 1
        return f"_t{number}"


def refuse_known(name: syntax.Name, within: Span, environment: Environment) -> None:
    """Raises Fault where an iterator has the name of something else."""
    if environment.is_known(name.text):
        fault = environment.shadowed(name, "iterator")
        raise fault.suggesting(renamed(within, name.text, environment))


def _symbols(expr: Expr) -> frozenset[str]:
    """Every symbol an expression depends on."""
    found: frozenset[str] = frozenset()
    for access in reads(expr):
        for index in access.indices:
            found |= index.value.symbols
    return found | _value_symbols(expr)


def _value_symbols(expr: Expr) -> frozenset[str]:
    match expr:
        case Value(value=value):
            return value.symbols
        case Apply(arguments=arguments):
            return frozenset[str]().union(*map(_value_symbols, arguments))
        case _:
            return frozenset()


def _condition_symbols(guards: tuple[Condition, ...]) -> frozenset[str]:
    return frozenset[str]().union(*(guard.value.symbols for guard in guards))
