"""Statements as written to statements of the notation.

What the notation does not have is taken apart here: aliases are expanded, free names on the right
of `+=` become iterators, and a reduction that is not the whole right-hand side becomes a temporary
of its own, see `lang.reductions`.

Holds afterwards: every name is resolved, every iterator has an extent, every access has the rank
of its tensor. Nothing is proved yet: that is for the modules `prove_*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly
from opgen.errors import Span
from opgen.ir.indices import is_plainly_inside
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Access,
    Dim,
    DType,
    Iterator,
    Reducer,
    Statement,
    Table,
    Tensor,
)
from opgen.lang import syntax
from opgen.lang.access_faults import unknown_tensor
from opgen.lang.aliases import expand_statement
from opgen.lang.conditions import conditions
from opgen.lang.environment import Environment, Fault
from opgen.lang.indices import refuse_access, written_access
from opgen.lang.ranges import calls, free_names, resolve, subscripts
from opgen.lang.reductions import REDUCERS, Reductions, refuse_known
from opgen.lang.repairs import chosen_by_value
from opgen.lang.scope import Scope
from opgen.lang.statement_faults import (
    free_iterators,
    outside_reduction,
    reduced_names,
    undeclared_temporary,
)
from opgen.lang.values import refuse_bare_reduction, value_expression

_OPERATORS: Final = {
    "=": Reducer.ASSIGN,
    "+=": Reducer.ADD,
    "max=": Reducer.MAX,
    "min=": Reducer.MIN,
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
    temporaries: list[Tensor] = field(default_factory=list)
    reductions: Reductions = field(init=False)

    def __post_init__(self) -> None:
        self.reductions = Reductions(self.environment, self.temporaries)

    def lower(
        self, statement: syntax.Statement, aliases: Mapping[str, syntax.Expression]
    ) -> list[Lowered]:
        """The statement and the temporaries it needs, in execution order. Raises Fault."""
        statement = expand_statement(statement, aliases, self.environment)
        self._refuse_accesses(statement)
        domains = self._own_iterators(statement)
        self.reductions.begin({domain.name.text: domain.name.span for domain in domains})
        body = [statement.value] + ([statement.condition] if statement.condition else [])
        extents = resolve(domains, statement, body, self.environment)
        scope = Scope(self.environment, extents, reduce=self.reductions.as_temporary)
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
            parts = self.reductions.parts(reduction, scope)
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
        return [
            *(Lowered(each, True, len(each.target.indices)) for each in self.reductions.pending),
            Lowered(lowered, exclusive, len(own), statement),
        ]

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
            refuse_known(domain.name, statement.span, environment)
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

    @staticmethod
    def _merge(
        statement: syntax.Statement, operator: Reducer, covers: bool
    ) -> tuple[syntax.Reduction, Reducer] | None:
        """The reduction that is the whole right-hand side, if the statement can take it over.

        A cell that is not written is 0 by `=`, but the identity by max: where the statement may
        not cover its target, the reduction needs a temporary of its own.
        """
        value = statement.value
        if not isinstance(value, syntax.Reduction) or value.reducer.text not in REDUCERS:
            return None
        reducer = REDUCERS[value.reducer.text]
        if operator is Reducer.ASSIGN:
            return (value, reducer) if reducer is Reducer.ADD or covers else None
        return (value, reducer) if reducer is operator else None

    def _covers(self, target: Access, extents: Mapping[str, Poly]) -> bool:
        """Whether the indices plainly run over every cell, each iterator along one dim."""
        tensor = self.environment.tensors[target.tensor]
        assert isinstance(tensor, Tensor)
        expand = self.environment.expand_lets
        ranges = {name: expand(extent) for name, extent in extents.items()}
        moving = [name for i in target.indices for name in i.value.symbols & extents.keys()]
        return len(moving) == len(set(moving)) and all(
            extent == 1
            if index.value.is_constant
            else is_plainly_inside(index.value, extent, ranges)
            for index, extent in (
                (index, expand(dim.extent))
                for index, dim in zip(target.indices, tensor.dims, strict=True)
            )
        )
