"""The faults of a name or a function that cannot stand in an index: what was probably meant."""

from __future__ import annotations

from typing import Final

from opgen.algebra.poly import poly
from opgen.errors import Edit, Span
from opgen.ir.notation import BATCH_ITERATOR, DType, Table, Tensor
from opgen.ir.primitives import PRIMITIVES, Precedence
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault, closest
from opgen.lang.scope import Scope

_FUNCTIONS: Final = frozenset(
    row.symbol for row in PRIMITIVES.values() if row.precedence is Precedence.PRIMARY
)


def function_in_index(call: syntax.Call, scope: Scope) -> Fault:
    """The fault of a function that does not give an integer."""
    name, text = call.function.text, scope.environment.text
    advice = "indices are made of + - * // % min max and integer tensors"
    edit: Edit | None = None
    match name, call.arguments:
        case "range", (argument,):
            advice = "a range from 0 is written as its extent alone, such as `n in N`"
            edit = (call.span, text(scope.environment.enclosed(argument.span)))
        case "abs", (argument,):
            inside = text(scope.environment.enclosed(argument.span))
            advice = "an absolute value is max(i, -i)"
            edit = (call.span, f"max({inside}, -({inside}))")
        case "select", _:
            advice = "write one statement per case, with its condition after `if`"
        case _:
            pass
    return Fault(
        "function-in-index",
        f"`{name}(...)` does not give an index",
        call.span,
        advice=advice,
        replacement=edit,
    )


def without_index(tensor: Tensor | Table, span: Span, scope: Scope) -> Fault:
    """The fault of a tensor's bare name, with the access that was probably meant."""
    environment, name = scope.environment, tensor.name
    meant = _plain_access(tensor, scope)
    return Fault(
        "tensor-without-index",
        f"'{name}' is a tensor, and is read with an index for every dim",
        span,
        (environment.declared_at[name], f"declared {environment.shape(tensor)}"),
        notes=("a bare name is a size, an attribute or an iterator",),
        advice=f"write {meant or environment.shape(tensor).lower()}",
        replacement=None if meant is None else (span, meant),
    )


def _plain_access(tensor: Tensor | Table, scope: Scope) -> str | None:
    """The tensor indexed with iterators in scope whose ranges are its extents."""
    if isinstance(tensor, Table):
        return None
    indices: list[str] = []
    for dim in tensor.dims:
        fitting = [n for n, e in scope.iterators.items() if e == dim.extent and n not in indices]
        if not fitting:
            return None
        indices.append(fitting[0])
    shown = ("..." if name == BATCH_ITERATOR else name for name in indices)
    return f"{tensor.name}[{','.join(shown)}]"


def unknown_name(name: str, span: Span, scope: Scope) -> Fault:
    """The fault of a bare name that means nothing here."""
    environment = scope.environment
    known = [*environment.integers(), *scope.iterators]
    # Where iterators stand, a single letter is one of them, not its size in another case.
    close = closest(name, known) if len(name) > 2 or not scope.iterators else None
    if close is not None:
        advice, edits = f"did you mean '{close}'?", [(span, close)]
    elif scope.iterators:
        advice, edits = "an iterator stands on the left, after `for`, or in a reduction", []
    else:
        advice = f"define it, `let {name} = ...`, or pass it as an attribute, `; {name}: size`"
        edits = [edit for edit in (environment.new_attribute(f"{name}: size"),) if edit]
    return Fault(
        "unknown-name",
        f"'{name}' is no size, attribute or iterator here",
        span,
        advice=advice,
        alternatives=edits,
        consequence=name in environment.failed,
    )


def float_tensor(tensor: Tensor | Table, span: Span, scope: Scope) -> Fault:
    """The fault of values where integers are needed."""
    environment, name = scope.environment, tensor.name
    declared = environment.declared_at[name]
    undeclared = isinstance(tensor, Tensor) and tensor.dtype is DType.SAME
    if scope.guard:
        return Fault(
            "value-in-condition",
            f"a condition compares indices, and '{name}' holds values",
            span,
            (declared, "declared here"),
            advice="choose by value with select(condition, value, otherwise)",
        )
    return Fault(
        "float-in-index",
        f"'{name}' holds no integers, so it cannot stand in an index",
        span,
        (declared, "declared here"),
        advice=f"declare it as an integer tensor, {name}: int[...]"
        if isinstance(tensor, Tensor)
        else "write its entries as integers",
        replacement=(Span(declared.end, declared.end), ": int") if undeclared else None,
    )


def boundary_in_index(
    tensor: Tensor | Table, axis: int, item: syntax.IndexItem, scope: Scope
) -> Fault:
    """The fault of a boundary mode inside an index."""
    assert isinstance(item, syntax.PlainIndex)
    extent = tensor.dims[axis].extent if isinstance(tensor, Tensor) else poly(tensor.shape[axis])
    index = scope.environment.text(scope.environment.enclosed(item.value.span))
    clamped = f"max(min({index}, {extent - 1}), 0)"
    return Fault(
        "boundary-in-index",
        f"'{tensor.name}' stands in an index here, where its own index takes no boundary mode",
        item.span,
        advice=f"clamp by hand, {clamped}, or add a condition after `if`",
        replacement=(item.span, clamped),
    )


def unknown_tensor(expression: syntax.Subscript, environment: Environment) -> Fault:
    """The fault of reading a tensor that was never declared or written."""
    name, span = expression.name.text, expression.name.span
    if environment.is_known(name) and name not in environment.failed:
        return Fault(
            "not-a-tensor",
            f"'{name}' is a size or attribute, not a tensor",
            expression.span,
            (environment.declared_at[name], "declared here"),
            advice=f"it is one number: write {name}",
            replacement=(expression.span, name),
        )
    if name in environment.later:
        return Fault(
            "read-before-written",
            f"'{name}' is read before any statement writes it",
            span,
            (environment.later[name], "written only here"),
            advice="statements run from top to bottom: move this one down",
        )
    definition = environment.definition
    inputs = definition.inputs if definition is not None else ()
    if name not in environment.failed and name in [tensor.name.text for tensor in inputs]:
        return data_dependent(name, expression.span)  # only lets are read before the inputs
    close = closest(name, environment.tensors)
    advice = f"did you mean '{close}'?" if close else "declare it among the inputs"
    edit = None if close is None else (span, close)
    if name in _FUNCTIONS and len(expression.indices) == 1:
        advice = "functions are called with round brackets"
        inside = environment.text(Span(span.end + 1, expression.span.end - 1))
        edit = (expression.span, f"{name}({inside})")
    return Fault(
        "unknown-tensor",
        f"'{name}' is no tensor of this op and was not written before",
        span,
        advice=advice,
        replacement=edit,
        consequence=name in environment.failed,
    )


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 dim`, `2 dims`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def data_dependent(name: str, span: Span, edit: Edit | None = None) -> Fault:
    """The fault of a size or range that the values of a tensor would decide."""
    return Fault(
        "data-dependent-size",
        f"a size or range cannot depend on what '{name}' holds",
        span,
        notes=("sizes are fixed before anything is computed",),
        advice=f"let the range be a size and add a condition, such as `if k < {name}[...]`",
        replacement=edit,
    )
