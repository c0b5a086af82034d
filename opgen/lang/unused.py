"""What an op declares or computes and nobody uses: a name that was forgotten, or left behind.

An input may be unused, since a caller may pass it by convention, as to a hand-written gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from opgen.errors import Edit, Span
from opgen.ir.notation import Op
from opgen.ir.walk import all_reads
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault
from opgen.lang.repairs import removed

UNUSED: Final = frozenset({"never-read", "unused-name"})
"""The codes of these faults."""


def unused_faults(op: Op, definition: syntax.Definition, environment: Environment) -> list[Fault]:
    """A fault for every temporary that no statement reads, and for every name used nowhere."""
    return [*_unread(op, environment), *_unmentioned(definition, environment)]


def _unread(op: Op, environment: Environment) -> Iterator[Fault]:
    read = {access.tensor for statement in op.statements for access in all_reads(statement)}
    outputs = ", ".join(f"'{tensor.name}'" for tensor in op.outputs)
    for temporary in op.temporaries:
        if temporary.name not in read:
            yield Fault(
                "never-read",
                f"'{temporary.name}' is written, but no statement reads it",
                environment.declared_at[temporary.name],
                notes=(f"only the outputs leave the op: {outputs}",),
                advice="read it, declare it among the outputs, or remove it",
            )


def _unmentioned(definition: syntax.Definition, environment: Environment) -> Iterator[Fault]:
    text = _text(definition, environment)
    declarations = [
        (a.name, "attribute", _without_attribute(a, definition, environment))
        for a in definition.attributes
    ]
    for clause in definition.clauses:
        if isinstance(clause, syntax.Let):
            spans = [environment.enclosed(b.span) for b in clause.bindings]
            for at, binding in enumerate(clause.bindings):
                edit = (
                    _without(spans, at)
                    if len(spans) > 1
                    else removed(clause.span, environment.source)
                )
                declarations.append((binding.name, "let", edit))
        if isinstance(clause, syntax.Const):
            edit = removed(clause.span, environment.source)
            declarations.append((clause.name, "table", edit))
    for name, what, edit in declarations:
        if len(re.findall(rf"\b{name.text}\b", text)) < 2:
            yield Fault(
                "unused-name",
                f"the {what} '{name.text}' is used nowhere",
                name.span,
                advice="use it, or remove it",
                replacement=edit,
            )


def _text(definition: syntax.Definition, environment: Environment) -> str:
    """The text of an op without strings and comments."""
    text, start = environment.source.text, definition.span.start
    end = re.compile(r"^[ \t]*op\b", re.MULTILINE).search(text, start)
    return re.sub(r'"[^"\n]*"|#[^\n]*', "", text[start : end.start() if end else len(text)])


def _without(spans: Sequence[Span], at: int) -> Edit:
    """Without one of several that are separated by commas."""
    if at:
        return Span(spans[at - 1].end, spans[at].end), ""
    return Span(spans[0].start, spans[1].start), ""


def _without_attribute(
    attribute: syntax.AttributeDeclaration,
    definition: syntax.Definition,
    environment: Environment,
) -> Edit:
    spans = [environment.enclosed(other.span) for other in definition.attributes]
    if len(spans) > 1:
        return _without(spans, definition.attributes.index(attribute))
    start = environment.source.text.rindex(";", 0, attribute.span.start)
    return Span(start, spans[0].end), ""
