"""Hand-written gradients name an op of the file whose signature fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opgen.errors import Diagnostic, Edit, Source, Span
from opgen.ir.notation import Op
from opgen.lang import syntax
from opgen.lang.environment import Fault, closest
from opgen.lang.repairs import removed


def gradient_faults(file: syntax.File, ops: Iterable[Op], source: Source) -> list[Diagnostic]:
    """The faults of every `gradient` clause of a file with these ops."""
    by_name = {op.name: op for op in ops}
    definitions = {definition.name.text: definition for definition in file.definitions}
    faults: list[Diagnostic] = []
    for definition in file.definitions:
        for clause in definition.clauses:
            if isinstance(clause, syntax.GradientBy):
                try:
                    _check(clause, definition, definitions, by_name)
                except Fault as fault:
                    # Without the clause the gradient is derived, which is always right.
                    derived = removed(clause.span, source)
                    faults.append(fault.suggesting(derived).diagnostic)
    return faults


def _check(
    clause: syntax.GradientBy,
    definition: syntax.Definition,
    definitions: dict[str, syntax.Definition],
    by_name: dict[str, Op],
) -> None:
    op = by_name[definition.name.text]
    inputs = {tensor.name: tensor for tensor in op.inputs}
    tensor = inputs.get(clause.input.text)
    if tensor is None or tensor.nograd or tensor.dtype.is_integer:
        raise _no_gradient(clause, definition, op)
    other = by_name.get(clause.op.text)
    if other is None:
        close = closest(clause.op.text, [name for name in by_name if name != op.name])
        raise Fault(
            "unknown-op",
            f"this file defines no op '{clause.op.text}'",
            clause.op.span,
            notes=("a hand-written gradient is an op of the same file",),
            advice=f"did you mean '{close}'?"
            if close
            else "define it, or remove the clause: then the gradient is derived",
            replacement=(clause.op.span, close) if close else None,
        )
    spans = _spans(definitions[other.name])
    _check_reads(clause, op, other, spans)
    if len(other.outputs) != 1 or other.outputs[0].dims != tensor.dims:
        raise _unfit(
            clause,
            f"'{other.name}' must have one output with the shape of '{tensor.name}'",
            (spans[other.outputs[-1].name], "written here"),
            "declare it with the same dims, size names included",
        )
    known = {attribute.name for attribute in op.attributes} | set(op.sizes)
    for attribute in other.attributes:
        if attribute.name not in known:
            raise _unfit(
                clause,
                f"'{other.name}' has the attribute '{attribute.name}', which '{op.name}' has not",
                (spans[attribute.name], "declared here"),
                f"a gradient gets the attributes and sizes of its op: {', '.join(sorted(known))}",
            )


def _check_reads(clause: syntax.GradientBy, op: Op, other: Op, spans: Mapping[str, Span]) -> None:
    """Raise what is wrong with the inputs of a hand-written gradient."""
    expected = {f"grad_{output.name}": output for output in op.outputs}
    expected |= {tensor.name: tensor for tensor in op.inputs}
    for given in other.inputs:
        wanted = expected.get(given.name)
        if wanted is None:
            close = closest(given.name, expected)
            raise _unfit(
                clause,
                f"'{other.name}' reads '{given.name}', which '{op.name}' cannot give it",
                (spans[given.name], "read here"),
                f"it may read {', '.join(expected)}",
                None if close is None else (spans[given.name], close),
            )
        if wanted.dims != given.dims:
            raise _unfit(
                clause,
                f"'{other.name}' reads '{given.name}' with another shape than it has in "
                f"'{op.name}'",
                (spans[given.name], "read here"),
                "declare it with the same dims, size names included",
            )


def _no_gradient(clause: syntax.GradientBy, definition: syntax.Definition, op: Op) -> Fault:
    name = clause.input.text
    spans = _spans(definition)
    tensor = next((tensor for tensor in op.inputs if tensor.name == name), None)
    differentiable = [t.name for t in op.inputs if not t.nograd and not t.dtype.is_integer]
    if tensor is None:
        reason = f"'{name}' is no input of '{op.name}'"
    elif tensor.nograd:
        reason = f"'{name}' is marked `nograd`, so it has no gradient"
    else:
        reason = f"'{name}' holds integers, so it has no gradient"
    close = closest(name, differentiable) if tensor is None else None
    return Fault(
        "gradient-of-nothing",
        reason,
        clause.input.span,
        *((at, "declared here") for at in [spans.get(name)] if at is not None),
        advice=f"did you mean '{close}'?" if close else "remove the clause",
        replacement=None if close is None else (clause.input.span, close),
    )


def _unfit(
    clause: syntax.GradientBy,
    headline: str,
    label: tuple[Span, str],
    advice: str,
    edit: Edit | None = None,
) -> Fault:
    return Fault(
        "gradient-signature",
        headline,
        clause.op.span,
        label,
        advice=advice + "; or remove the clause: then the gradient is derived",
        replacement=edit,
    )


def _spans(definition: syntax.Definition) -> dict[str, Span]:
    """Where the names of a signature stand."""
    tensors = (*definition.inputs, *definition.outputs)
    names = [*(t.name for t in tensors), *(a.name for a in definition.attributes)]
    return {name.text: name.span for name in names}
