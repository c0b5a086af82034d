"""Statements as written to statements of the notation.

What the notation does not have is taken apart here: aliases are expanded, a reduction that is not
the whole right-hand side becomes a temporary of its own, `mean` becomes a sum divided by the count,
free names on the right of `+=` become iterators.

Holds afterwards: every name is resolved, every iterator has an extent, every access has the rank
of its tensor. Nothing is proved yet: see `lang.prove`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly, symbol
from opgen.errors import Span
from opgen.ir.indices import is_plainly_inside
from opgen.ir.notation import (
    BATCH_ITERATOR,
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
    Table,
    Tensor,
    Value,
    reads,
)
from opgen.lang import syntax
from opgen.lang.access_faults import unknown_tensor
from opgen.lang.aliases import expand_aliases
from opgen.lang.conditions import conditions
from opgen.lang.environment import Environment, Fault
from opgen.lang.indices import index_polynomial, refuse_access, written_access
from opgen.lang.ranges import calls, free_names, resolve, subscripts
from opgen.lang.repairs import chosen_by_value, renamed
from opgen.lang.scope import Scope
from opgen.lang.statement_faults import (
    duplicate_iterator,
    free_iterators,
    missing_position,
    outside_reduction,
    reduced_names,
    reductions,
    undeclared_temporary,
    unexpected_position,
    unknown_reducer,
)
from opgen.lang.values import refuse_bare_reduction, value_expression, value_of

_OPERATORS: Final = {
    "=": Reducer.ASSIGN,
    "+=": Reducer.ADD,
    "max=": Reducer.MAX,
    "min=": Reducer.MIN,
}
_REDUCERS: Final = {
    "sum": Reducer.ADD,
    "prod": Reducer.MULTIPLY,
    "max": Reducer.MAX,
    "min": Reducer.MIN,
    "argmax": Reducer.ARGMAX,
    "argmin": Reducer.ARGMIN,
}


@dataclass(frozen=True, slots=True)
class Lowered:
    """A statement, and what its proof obligations need to know beyond it.

    `exclusive`: it was written with `=`, so cells must not be written twice. `own` counts the
    leading iterators that are not reduced.
    """

    statement: Statement
    exclusive: bool
    own: int
    written_as: syntax.Statement | None = None


@dataclass
class Lowering:
    """Lowers the statements of one op in order; temporaries join the environment as they appear."""

    environment: Environment
    inputs: frozenset[str]
    declared: dict[str, Span]  # temporaries of `tmp` clauses and outputs, by name
    temporaries: list[Tensor] = field(default_factory=list)
    _made: dict[tuple[object, ...], Access] = field(default_factory=dict)
    _pending: list[Lowered] = field(default_factory=list)
    _own: dict[str, Span] = field(default_factory=dict)  # iterators of the statement in hand

    def lower(
        self, statement: syntax.Statement, aliases: Mapping[str, syntax.Expression]
    ) -> list[Lowered]:
        """The statement and the temporaries it needs, in execution order. Raises Fault."""
        self._pending = []
        _refuse_alias_iterators(statement, aliases, self.environment)
        statement = _expand(statement, aliases)
        self._refuse_accesses(statement)
        domains = self._own_iterators(statement)
        self._own = {domain.name.text: domain.name.span for domain in domains}
        body = [statement.value] + ([statement.condition] if statement.condition else [])
        extents = resolve(domains, statement, body, self.environment)
        scope = Scope(self.environment, extents, reduce=self._reduction_as_temporary)
        guards = self._guards(statement, scope)
        self._ensure_target(statement, extents)
        target = written_access(statement.target, scope)
        scope = scope.guarded(guards)
        own = tuple(Iterator(name, extent) for name, extent in extents.items())
        operator = _OPERATORS[statement.operator]

        exclusive = operator is Reducer.ASSIGN
        covers = not guards and self._covers(target, extents)
        merged = self._merge(statement, operator, covers)
        if merged is not None:
            reduction, reducer = merged
            parts = self._reduction_parts(reduction, scope)
            lowered = Statement(
                target,
                reducer,
                (*own, *parts.iterators),
                (*guards, *parts.guards),
                parts.body,
                parts.position,
                statement.span,
                exclusive,
            )
        else:
            value = value_expression(statement.value, scope)
            lowered = Statement(
                target, operator, own, guards, value, None, statement.span, exclusive
            )
        return [*self._pending, Lowered(lowered, exclusive, len(own), statement)]

    def _guards(self, statement: syntax.Statement, scope: Scope) -> tuple[Condition, ...]:
        if statement.condition is None:
            return ()
        try:
            return conditions(statement.condition, scope)
        except Fault as fault:
            if fault.diagnostic.code in ("value-in-condition", "condition-not-conjunction"):
                fault.suggesting(chosen_by_value(statement, self.environment))
            raise

    def _refuse_accesses(self, statement: syntax.Statement) -> None:
        """Names and ranks first: a misspelt tensor would leave its iterators without a range."""
        name = statement.target.name
        environment = self.environment
        if name.text in self.inputs or isinstance(environment.tensors.get(name.text), Table):
            raise Fault(
                "write-to-input",
                f"'{name.text}' is read only",
                name.span,
                (environment.declared_at[name.text], "declared here"),
                advice="write to an output or to a temporary of another name",
            )
        if name.text in environment.tensors:
            refuse_access(statement.target, environment)
        elif name.text in environment.failed:
            raise unknown_tensor(statement.target, environment)
        for part in (statement.value, statement.condition):
            for subscript in subscripts(part) if part is not None else ():
                refuse_access(subscript, environment)

    # ------------------------------------------------------------ the left-hand side
    def _own_iterators(self, statement: syntax.Statement) -> list[syntax.Domain]:
        environment = self.environment
        explicit = {domain.name.text: domain for domain in statement.domains}
        found: dict[str, syntax.Domain] = {}
        for name, span in free_names(statement.target, environment):
            found.setdefault(
                name, explicit.get(name) or syntax.Domain(syntax.Name(name, span), None, span)
            )
        for domain in statement.domains:
            self._refuse_known(domain.name, statement.span)
            found.setdefault(domain.name.text, domain)
        free: dict[str, Span] = {}
        parts = [statement.value] + ([statement.condition] if statement.condition else [])
        for part in parts:
            for call in calls(part):
                refuse_bare_reduction(call, found, environment)  # else its iterators are free
            for name, span in free_names(part, environment):
                if name == BATCH_ITERATOR and name not in found and statement.operator == "=":
                    raise Fault(
                        "batch-reduced",
                        "'...' stands on the right but not on the left",
                        span,
                        notes=("with `=` every iterator of the right stands on the left",),
                        advice="write '...' on the left too, or sum over the batch with `+=`",
                    )
                if name not in found and name not in environment.tensors:
                    free.setdefault(name, span)
        if free and statement.operator == "=":
            raise self._free(statement, free, found)
        for name, span in free.items():
            found[name] = syntax.Domain(syntax.Name(name, span), None, span)
        return list(found.values())

    def _free(
        self,
        statement: syntax.Statement,
        free: Mapping[str, Span],
        found: Mapping[str, syntax.Domain],
    ) -> Fault:
        reduced = reduced_names(statement.value)
        for name, span in free.items():
            if name in reduced:
                return outside_reduction(statement, name, span, self.environment)
        return free_iterators(statement, free, found, self.environment)

    def _refuse_known(self, name: syntax.Name, within: Span) -> None:
        if self.environment.is_known(name.text):
            fault = self.environment.shadowed(name, "iterator")
            raise fault.suggesting(renamed(within, name.text, self.environment))

    def _ensure_target(self, statement: syntax.Statement, extents: Mapping[str, Poly]) -> None:
        """Check that the target may be written; infer the dims of a new temporary."""
        name = statement.target.name
        environment = self.environment
        if name.text in environment.tensors:
            return
        if environment.is_known(name.text):
            environment.declare(name.text, name.span, "temporary")  # raises: the name is taken
        dims = []
        for item in statement.target.indices:
            match item:
                case syntax.PlainIndex(value=syntax.NameUse(name=used), boundary="") if (
                    used in extents
                ):
                    dims.append(Dim(extents[used]))
                case syntax.BatchDims():
                    dims.append(Dim(extents[BATCH_ITERATOR]))
                case syntax.Composite(parts=parts) if all(
                    isinstance(part, syntax.Name) and part.text in extents for part in parts
                ):
                    factors = tuple(
                        extents[part.text] for part in parts if isinstance(part, syntax.Name)
                    )
                    product = poly(1)
                    for factor in factors:
                        product = product * factor
                    dims.append(Dim(product, factors))
                case _:
                    raise undeclared_temporary(statement, item, extents, environment)
        environment.declare(name.text, name.span, "temporary")
        environment.later.pop(name.text, None)
        tensor = Tensor(name.text, tuple(dims), DType.SAME)
        environment.tensors[name.text] = tensor
        self.temporaries.append(tensor)

    # ------------------------------------------------------------ reductions
    @staticmethod
    def _merge(
        statement: syntax.Statement, operator: Reducer, covers: bool
    ) -> tuple[syntax.Reduction, Reducer] | None:
        """The reduction that is the whole right-hand side, if the statement can take it over.

        A cell that is not written is 0 by `=`, but the identity by max: where the statement may
        not cover its target, the reduction needs a temporary of its own.
        """
        value = statement.value
        if not isinstance(value, syntax.Reduction) or value.reducer.text not in _REDUCERS:
            return None
        reducer = _REDUCERS[value.reducer.text]
        if operator is Reducer.ASSIGN:
            return (value, reducer) if reducer is Reducer.ADD or covers else None
        return (value, reducer) if reducer is operator else None

    def _covers(self, target: Access, extents: Mapping[str, Poly]) -> bool:
        """Whether the indices plainly run over every cell."""
        tensor = self.environment.tensors[target.tensor]
        assert isinstance(tensor, Tensor)
        expand = self.environment.expand_lets
        ranges = {name: expand(extent) for name, extent in extents.items()}
        return all(
            extent == 1
            if index.value.is_constant
            else is_plainly_inside(index.value, extent, ranges)
            for index, extent in (
                (index, expand(dim.extent))
                for index, dim in zip(target.indices, tensor.dims, strict=True)
            )
        )

    def _reduction_parts(self, reduction: syntax.Reduction, scope: Scope) -> _Parts:
        name = reduction.reducer
        if name.text not in syntax.REDUCERS:
            raise unknown_reducer(reduction, self.environment)
        for domain in reduction.domains:
            self._refuse_known(domain.name, reduction.span)
            if domain.name.text in scope.iterators:
                raise Fault(
                    "shadowed-iterator",
                    f"'{domain.name.text}' is already an iterator here",
                    domain.name.span,
                    *((at, "of this one") for at in [self._own.get(domain.name.text)] if at),
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
        return _Parts(
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

    def _reduction_as_temporary(self, reduction: syntax.Reduction, scope: Scope) -> Expr:
        """Called for a reduction inside a value: its result is read from a temporary."""
        parts = self._reduction_parts(reduction, scope)
        if reduction.reducer.text != "mean":
            return Read(
                self._temporary(_REDUCERS[reduction.reducer.text], parts, scope, reduction.span)
            )
        total = Read(self._temporary(Reducer.ADD, parts, scope, reduction.span))
        if parts.guards:
            ones = replace(parts, body=Constant(1))
            count: Expr = Read(self._temporary(Reducer.ADD, ones, scope, reduction.span))
        else:
            product = poly(1)
            for iterator in parts.iterators:
                product = product * iterator.extent
            count = value_of(product)
        return Apply("div", (total, count))

    def _temporary(self, reducer: Reducer, parts: _Parts, scope: Scope, span: Span) -> Access:
        bound = {iterator.name for iterator in parts.iterators}
        used = symbols(parts.body) | _condition_symbols(parts.guards)
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
            self._pending.append(Lowered(statement, True, len(free)))
        return self._made[identity]

    def _fresh_name(self) -> str:
        number = 1
        while f"_t{number}" in self.environment.declared_at:
            number += 1
        return f"_t{number}"


@dataclass(frozen=True, slots=True)
class _Parts:
    iterators: tuple[Iterator, ...]
    guards: tuple[Condition, ...]
    body: Expr
    position: Poly | None


def _expand(
    statement: syntax.Statement, aliases: Mapping[str, syntax.Expression]
) -> syntax.Statement:
    target = expand_aliases(statement.target, aliases)
    assert isinstance(target, syntax.Subscript)
    return replace(
        statement,
        target=target,
        value=expand_aliases(statement.value, aliases),
        domains=tuple(
            replace(domain, extent=domain.extent and expand_aliases(domain.extent, aliases))
            for domain in statement.domains
        ),
        condition=None
        if statement.condition is None
        else expand_aliases(statement.condition, aliases),
    )


def _refuse_alias_iterators(
    statement: syntax.Statement,
    aliases: Mapping[str, syntax.Expression],
    environment: Environment,
) -> None:
    """An alias is text put in place of a name, so the name cannot be an iterator as well."""
    parts = [statement.value] + ([statement.condition] if statement.condition else [])
    heads = [reduction for part in parts for reduction in reductions(part)]
    domains = [(d.name, r.span) for r in heads for d in r.domains]
    domains += [(domain.name, statement.span) for domain in statement.domains]
    for name, within in domains:
        if name.text in aliases:
            raise Fault(
                "shadowed-name",
                f"'{name.text}' is an alias by `with` and cannot be an iterator of the same "
                "statement",
                name.span,
                (aliases[name.text].span, "the alias stands for this"),
                advice="give one of them another name",
                replacement=renamed(within, name.text, environment),
            )


def symbols(expr: Expr) -> frozenset[str]:
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
