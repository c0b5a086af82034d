"""The faults of what cannot stand in an index: what was probably meant."""

from __future__ import annotations

from typing import Final, assert_never

from opgen.algebra.poly import poly
from opgen.errors import Edit, Span
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Attribute,
    AttributeType,
    DType,
    Table,
    Tensor,
)
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault, closest
from opgen.lang.scope import Scope

# ---------------------------------------------------------------------------- expressions
NoIndex = (
    syntax.Number
    | syntax.Reduction
    | syntax.Infinity
    | syntax.Text
    | syntax.Comparison
    | syntax.Logical
)
"""Expressions that are none in an index; numbers, where they are floats."""


def no_index(expression: NoIndex, environment: Environment, *, in_cell: bool) -> Fault:
    """The fault of an expression whose value is no integer; `in_cell`: iterators are known."""
    match expression:
        case syntax.Number(value=number, span=span):
            return Fault(
                "float-in-index",
                f"an index is an integer, and {environment.text(span)} is a float",
                span,
                advice="write an integer; `//` divides and rounds down, such as n//2",
                replacement=(span, str(int(number))) if number == int(number) else None,
            )
        case syntax.Reduction(reducer=reducer, span=span):
            advice = "declare an integer temporary, such as tmp s: int[N], write the result to "
            advice += "it and index with that"
            if not in_cell:
                advice = "sizes are known before anything is computed; what a reduction gives is "
                advice += f"a tensor, with an index for every dim: t[n] = {environment.text(span)}"
            return Fault(
                "reduction-in-index",
                f"'{reducer.text}' reduces values, it cannot stand in an index",
                span,
                advice=advice,
            )
        case syntax.Infinity(span=span):
            return Fault(
                "not-an-index",
                "an index is an integer, and `inf` is none",
                span,
                advice="the last index of a dim of extent N is N - 1",
            )
        case syntax.Text(span=span):
            return Fault(
                "not-an-index",
                "an index is an integer, and this is a string",
                span,
                advice="strings are the values of choice attributes, and are only compared",
            )
        case syntax.Comparison(span=span) | syntax.Logical(span=span):
            return Fault(
                "condition-in-index",
                "a condition is not an index",
                span,
                advice="put the condition after `if` and write one statement per case",
            )
        case unexpected:
            assert_never(unexpected)


def division_in_index(expression: syntax.Binary, environment: Environment) -> Fault:
    """The fault of real division."""
    left = environment.enclosed(expression.left.span)
    start = environment.source.text.index(expression.operator, left.end)
    return Fault(
        "division-in-index",
        "`/` is real division and does not give an index",
        expression.span,
        advice="floor division is written `//`",
        replacement=(Span(start, start + len(expression.operator)), "//"),
    )


def divisor_not_positive(expression: syntax.Binary, divisor: int) -> Fault:
    """The fault of a division by 0 or a negative number."""
    return Fault(
        "divisor-not-positive",
        f"the divisor of `{expression.operator}` must be positive, this one is {divisor}",
        expression.right.span,
        notes=("`//` and `%` are floor operations, defined for positive divisors",),
        advice="divide by 1 or more" if divisor == 0 else "negate the numerator instead",
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


# ---------------------------------------------------------------------------- names
def attribute_in_index(attribute: Attribute, span: Span, environment: Environment) -> Fault | None:
    """The fault of an attribute's bare name; None for one that is an integer."""
    name, declared = attribute.name, environment.declared_at[attribute.name]
    if attribute.length is not None:
        return Fault(
            "tuple-attribute",
            f"'{name}' is a tuple of {attribute.length}, and one number is needed here",
            span,
            (declared, "declared here"),
            advice=f"name one element, {name}[0] to {name}[{attribute.length - 1}]",
            replacement=(span, f"{name}[0]"),
        )
    if attribute.type is AttributeType.FLOAT:
        return Fault(
            "float-in-index",
            f"'{name}' is a float attribute and cannot stand in an index",
            span,
            (declared, "declared here"),
            advice=f"declare it as an integer, such as {name}: int = 1",
        )
    if attribute.type is AttributeType.CHOICE:
        choices = ", ".join(f'"{choice}"' for choice in attribute.choices)
        return Fault(
            "choice-in-index",
            f"'{name}' is one of the strings {choices}, not a number",
            span,
            (declared, "declared here"),
            advice="write one statement per case, each with its condition, such as "
            f'`if {name} == "{attribute.choices[0]}"`',
        )
    return None


def element_of_number(expression: syntax.Subscript, environment: Environment) -> Fault:
    """The fault of an index on an attribute that is one number."""
    name = expression.name.text
    return Fault(
        "not-a-tensor",
        f"'{name}' is an attribute, not a tensor",
        expression.span,
        (environment.declared_at[name], "declared here"),
        advice=f"it is one number: write {name}",
        replacement=(expression.span, name),
    )


def no_element(expression: syntax.Subscript, length: int, environment: Environment) -> Fault:
    """The fault of an index that names no element of a tuple."""
    name = expression.name.text
    last = f"{name}[{length - 1}]"
    literal_position = not any(
        isinstance(item, syntax.PlainIndex) and not isinstance(item.value, syntax.Number)
        for item in expression.indices
    )
    return Fault(
        "tuple-attribute",
        f"'{name}' is a tuple of {length} and has no element "
        f"{environment.text(expression.span).removeprefix(name)}"
        if literal_position
        else f"'{name}' is a tuple of {length} and takes a literal position",
        expression.span,
        (environment.declared_at[name], "declared here"),
        advice=f"name one element, {name}[0] to {last}"
        + ("" if literal_position else "; what is indexed by iterators is a tensor"),
        replacement=(expression.span, last) if literal_position else None,
    )


def without_index(tensor: Tensor | Table, span: Span, scope: Scope) -> Fault:
    """The fault of a tensor's bare name, with the access that was probably meant."""
    environment, name = scope.environment, tensor.name
    if scope.reduce is None and not scope.iterators and isinstance(tensor, Tensor):
        return Fault(
            "size-from-tensor",
            f"'{name}' is a tensor, and no size depends on what a tensor holds",
            span,
            (environment.declared_at[name], f"declared {environment.shape(tensor)}"),
            notes=("what a call computes is planned before its numbers are known",),
            advice=f"pass the number as a size, after `;`, in place of the tensor: {name}: size",
        )
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
    if name in _CONSTANTS:
        return _constant(name, span)
    known = [*environment.integers(), *scope.iterators]
    # Where iterators stand, a single letter is one of them, not its size in another case.
    close = closest(name, known) if len(name) > 2 or not scope.iterators else None
    if close is not None:
        advice, edits = f"did you mean '{close}'?", [(span, close)]
    elif scope.iterators:
        advice, edits = "an iterator stands on the left, after `for`, or in a reduction", []
        if environment.source.text[: span.start].rstrip(" \t").endswith("//"):
            advice += "; a comment begins with `#`"
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


_CONSTANTS: Final = {"True": "true", "False": "false", "None": None}


def _constant(name: str, span: Span) -> Fault:
    """The fault of a constant of Python by its name there."""
    meant = _CONSTANTS[name]
    return Fault(
        "unknown-name",
        f"'{name}' has no value in a spec",
        span,
        advice="a value is a number: write one" if meant is None else f"write `{meant}`",
        replacement=None if meant is None else (span, meant),
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
