"""The faults of an access: what was probably meant."""

from __future__ import annotations

from typing import Final

from opgen.errors import Span
from opgen.ir.notation import Boundary, Index, Table, Tensor
from opgen.ir.primitives import PRIMITIVES, Precedence
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault, closest
from opgen.lang.index_faults import data_dependent

_FUNCTIONS: Final = frozenset(
    row.symbol for row in PRIMITIVES.values() if row.precedence is Precedence.PRIMARY
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


def wrong_rank(
    expression: syntax.Subscript, tensor: Tensor | Table, rank: int, environment: Environment
) -> Fault:
    """The fault of more or fewer indices than dims."""
    name, given = expression.name.text, len(expression.indices)
    return Fault(
        "wrong-rank",
        f"'{name}' has {count(rank, 'dim')}, but is indexed with {given}",
        expression.span,
        (environment.declared_at[name], f"declared {environment.shape(tensor)}"),
        advice="write one index for every dim"
        if given < rank
        else f"remove {count(given - rank, 'index', 'indices')}, or declare more dims",
    )


def misplaced_boundary(
    index: Index, expression: syntax.Subscript, environment: Environment
) -> Fault:
    """The fault of a boundary mode of writes on a read, or of one of reads on a write."""
    roles, instead = "read, and this is a write", "?drop"
    match index.boundary:
        case Boundary.DROP:
            mode, roles, instead = "?drop", "write, and this is a read", "?0"
        case Boundary.ZERO:
            mode = "?0"
        case _:
            mode = "?(value)"
    span = index.span or expression.span
    suffix = Span(environment.source.text.rindex("?", span.start, span.end), span.end)
    return Fault(
        "misplaced-boundary",
        f"`{mode}` says what happens outside in a {roles}",
        suffix,
        advice=f"write `{instead}`",
        replacement=(suffix, instead),
    )


def misplaced_batch(
    tensor: Tensor | Table, axis: int, span: Span, environment: Environment
) -> Fault:
    """The fault of `...` where a tensor has no batch dims."""
    return Fault(
        "misplaced-batch",
        f"'...' stands for leading batch dims, which '{tensor.name}' has not here",
        span,
        (environment.declared_at[tensor.name], f"declared {environment.shape(tensor)}"),
        advice=f"declare it with `...` first, {tensor.name}[...,N], or name an index"
        if axis == 0
        else "write '...' first",
    )


def composite_mismatch(
    item: syntax.Composite, tensor: Tensor | Table, axis: int, environment: Environment
) -> Fault:
    """The fault of a composite index whose parts are not those of its dim."""
    parts = tensor.dims[axis].parts if isinstance(tensor, Tensor) else ()
    given = environment.text(item.span)
    if parts:
        declared = f"({' '.join(map(str, parts))})"
        headline = (
            f"dim {axis} of '{tensor.name}' is declared {declared}, so its index has "
            f"{len(parts)} parts, and {given} has {len(item.parts)}"
        )
        advice = f"write one part for each of {declared}"
    else:
        declared = str(tensor.dims[axis].extent) if isinstance(tensor, Tensor) else "of a table"
        headline = (
            f"dim {axis} of '{tensor.name}' is {declared}, not composite, and its index is {given}"
        )
        advice = "declare the dim with the same parts, such as (C r), or write the position c*r + i"
    return Fault(
        "composite-mismatch",
        headline,
        item.span,
        *environment.dim_label(tensor.name, axis, "declared here"),
        advice=advice,
    )


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 dim`, `2 dims`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
