"""Syntax to notation: names, ranges, shapes and proofs. Every fault of a file in one error.

Holds afterwards: each `Op` is closed (every name resolved, every temporary declared), every access
is proved inside its tensor or covered by a constraint that the call checks, every `=` writes each
cell at most once, every size follows from the input shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from opgen.errors import Diagnostic, OpgenError, Source, Span
from opgen.ir.context import facts_of
from opgen.ir.notation import (
    Constraint,
    Gradient,
    Op,
    Statement,
)
from opgen.lang import prove_divisors, syntax
from opgen.lang.aliases import Measure, expand_aliases, measure
from opgen.lang.dataflow import order_faults, rewritten
from opgen.lang.environment import Divisor, Environment, Fault
from opgen.lang.gradients import gradient_faults
from opgen.lang.kinds import resolve_types
from opgen.lang.lower import Lowered, Lowering
from opgen.lang.obligations import Obligations
from opgen.lang.prove_accesses import in_range
from opgen.lang.prove_extents import not_negative
from opgen.lang.prove_writes import disjoint, injective
from opgen.lang.prove_written import written_before_read
from opgen.lang.repairs import removed
from opgen.lang.signature import Signature
from opgen.lang.unused import unused_faults


def check(file: syntax.File, source: Source) -> tuple[Op, ...]:
    """The ops of a file, proved. Raises OpgenError with every fault found."""
    faults: list[Diagnostic] = []
    ops: list[Op] = []
    if not file.definitions:
        faults.append(
            Fault(
                "empty-spec",
                "the file defines no op",
                Span(0, 1),
                advice="an op begins with `op name(x[N]) -> y[N]`",
            ).diagnostic
        )
    seen: dict[str, Span] = {}
    names = frozenset(definition.name.text for definition in file.definitions)
    for definition in file.definitions:
        name = definition.name
        if name.text in seen:
            faults.append(
                Fault(
                    "duplicate-name",
                    f"'{name.text}' is defined twice",
                    (name.span, "again here"),
                    (seen[name.text], "first defined here"),
                    advice="give one of them another name",
                ).diagnostic
            )
        seen.setdefault(name.text, name.span)
        checker = _Checker(definition, source, names)
        op = checker.check()
        faults.extend(checker.faults)
        if op is not None:
            ops.append(op)
    if not faults and not any(definition.damaged for definition in file.definitions):
        faults.extend(gradient_faults(file, ops, source))
    if faults:
        raise OpgenError(faults, source)
    return tuple(ops)


class _Checker:
    """One definition. Stages stop where a later one would only repeat the faults of an earlier."""

    def __init__(self, definition: syntax.Definition, source: Source, ops: frozenset[str]) -> None:
        self.definition = definition
        self.source = source
        self.signature = Signature(source)
        self.signature.environment.ops = ops
        self.faults: list[Diagnostic] = self.signature.faults

    def check(self) -> Op | None:
        self.signature.environment.failed.update(self.definition.lost)
        self.signature.read(self.definition)
        sound = not self.faults and not self.definition.damaged
        signature_divisors = _take_divisors(self.signature.environment)
        lowered = self._lower()
        complete = not self.faults
        if not sound:
            return None
        op = self._assemble([entry.statement for entry, _ in lowered])
        if complete:
            entries = [entry for entry, _ in lowered]
            found = order_faults(op, entries, self.definition, self.signature.environment)
            self.faults.extend(fault.diagnostic for fault in found)
        op = self._prove(op, lowered, signature_divisors, complete)
        if self.faults:
            return None
        try:
            op = resolve_types(op, self.signature.environment)
        except Fault as fault:
            self.faults.append(fault.diagnostic)
            return None
        unused = unused_faults(op, self.definition, self.signature.environment)
        self.faults.extend(fault.diagnostic for fault in unused)
        return None if unused else op

    # ------------------------------------------------------------ statements
    def _lower(self) -> list[tuple[Lowered, tuple[Divisor, ...]]]:
        """Statements in execution order, each with the divisors that stand in it."""
        environment = self.signature.environment
        inputs = frozenset(tensor.name for tensor in self.signature.inputs)
        lowering = Lowering(environment, inputs)
        self._announce_targets()
        out: list[tuple[Lowered, tuple[Divisor, ...]]] = []
        aliases: dict[str, syntax.Expression] = {}
        sizes: dict[str, Measure] = {}
        pending: Span | None = None
        for clause in self.definition.clauses:
            try:
                match clause:
                    case syntax.With(bindings=bindings):
                        for binding in bindings:
                            if environment.is_known(binding.name.text):
                                raise environment.shadowed(binding.name, "alias")
                            size = measure((binding.value,), sizes, binding.span)
                            sizes[binding.name.text] = size
                            value = expand_aliases(binding.value, aliases)
                            aliases[binding.name.text] = value
                        pending = clause.span
                    case syntax.Statement():
                        used, aliases, pending = aliases, {}, None
                        used_sizes, sizes = sizes, {}
                        measure(_expressions(clause), used_sizes, clause.span)
                        entries = lowering.lower(clause, used)
                        divisors = _take_divisors(environment)
                        out.extend((entry, divisors) for entry in entries)
                    case _:
                        pass
            except Fault as fault:
                if not fault.consequence:
                    self.faults.append(fault.diagnostic)
                if isinstance(clause, syntax.With):
                    environment.failed |= {b.name.text for b in clause.bindings} - aliases.keys()
                if isinstance(clause, syntax.Statement):
                    environment.failed.add(clause.target.name.text)
                    environment.later.pop(clause.target.name.text, None)
                _take_divisors(environment)
        if pending is not None and not self.definition.damaged:
            dangling = Fault(
                "dangling-with",
                "no statement follows this `with`",
                pending,
                notes=("aliases hold for the next statement only",),
                advice="move it before the statement that uses them, or remove it",
                replacement=removed(pending, self.source),
            )
            self.faults.append(dangling.diagnostic)
        self.signature.temporaries.extend(lowering.temporaries)
        return out

    def _announce_targets(self) -> None:
        """Tell which names statements will define, so that one that reads them before is told."""
        environment = self.signature.environment
        for clause in self.definition.clauses:
            if isinstance(clause, syntax.Statement):
                name = clause.target.name
                known = name.text in environment.declared_at or name.text in environment.failed
                if not known:
                    environment.later.setdefault(name.text, name.span)

    def _assemble(self, statements: list[Statement]) -> Op:
        signature = self.signature
        return Op(
            self.definition.name.text,
            tuple(signature.inputs),
            tuple(signature.attributes),
            tuple(signature.outputs),
            tuple(signature.environment.sizes),
            tuple(signature.lets),
            tuple(signature.constraints),
            tuple(signature.tables),
            tuple(signature.temporaries),
            tuple(statements),
            tuple(
                Gradient(clause.input.text, clause.op.text)
                for clause in self.definition.clauses
                if isinstance(clause, syntax.GradientBy)
            ),
            self.definition.doc,
        )

    # ------------------------------------------------------------ proofs
    def _prove(
        self,
        op: Op,
        lowered: list[tuple[Lowered, tuple[Divisor, ...]]],
        signature_divisors: tuple[Divisor, ...],
        complete: bool,
    ) -> Op:
        environment = self.signature.environment
        found: list[Fault] = []
        checks: list[Constraint] = []
        # Divisors first: what a launch check says of them is known in every later proof.
        obligations = Obligations(facts_of(op), environment, found, checks)
        settled = prove_divisors.in_signature(obligations, op, signature_divisors)
        op = replace(op, constraints=(*op.constraints, *checks))
        obligations = Obligations(facts_of(op), environment, found, checks)
        dividing: list[Lowered] = []
        for entry, divisors in lowered:
            before = len(found)
            prove_divisors.in_statement(obligations, entry.statement, divisors, settled)
            if len(found) == before:
                not_negative(obligations, entry.statement)
                dividing.append(entry)  # else its indices have no value
        op = replace(op, constraints=_merged(op.constraints, checks))
        obligations = Obligations(facts_of(op), environment, found, checks)
        for entry in dividing:
            in_range(obligations, entry)
            if entry.exclusive:
                injective(obligations, entry)
        entries = [entry for entry, _ in lowered]
        self._prove_between(entries, obligations, complete, rewritten(op) if complete else ())
        self.faults.extend(_distinct(fault.diagnostic for fault in found))
        return replace(op, constraints=_merged(op.constraints, checks))

    @staticmethod
    def _prove_between(
        entries: list[Lowered],
        obligations: Obligations,
        complete: bool,
        reported: Collection[str],
    ) -> None:
        """Obligations between statements: disjoint `=`, and temporaries written before read.

        Tensors that are `reported` to be written like variables are: what they need is another
        name, not other cells.
        """
        writers: dict[str, list[Statement]] = {}
        exclusive: dict[str, list[Lowered]] = {}
        for entry in entries:
            if complete:  # else the statement that writes it may be the one at fault
                written_before_read(obligations, entry, writers)
            name = entry.statement.target.tensor
            if entry.exclusive and name not in reported:
                for earlier in exclusive.get(name, []):
                    disjoint(obligations, earlier, entry)
                exclusive.setdefault(name, []).append(entry)
            writers.setdefault(name, []).append(entry.statement)


def _expressions(statement: syntax.Statement) -> list[syntax.Expression]:
    """The expressions of a statement, its target included."""
    found = [statement.target, statement.value, statement.condition]
    found += [domain.extent for domain in statement.domains]
    return [expression for expression in found if expression is not None]


def _take_divisors(environment: Environment) -> tuple[Divisor, ...]:
    taken = tuple(environment.divisors)
    environment.divisors.clear()
    return taken


def _merged(
    constraints: tuple[Constraint, ...], checks: list[Constraint]
) -> tuple[Constraint, ...]:
    """The constraints with the launch checks that are new."""
    return tuple(dict.fromkeys((*constraints, *checks)))


def _distinct(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each fault once: one index expanded from an alias may fail in several places."""
    return list({(d.code, d.labels): d for d in diagnostics}.values())
