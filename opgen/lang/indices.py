"""Index expressions and accesses to polynomials.

An *index* is an integer polynomial over sizes, attributes and iterators; anything else in its place
is a fault that says what to write instead.
"""

from __future__ import annotations

from typing import Final, assert_never

from opgen.algebra.poly import Kind, Poly, load, maximum, minimum, poly, symbol
from opgen.errors import Source, Span
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Access,
    AttributeType,
    Boundary,
    Index,
    Table,
    Tensor,
)
from opgen.lang import syntax
from opgen.lang.environment import Divisor, Environment, Fault
from opgen.lang.index_faults import (
    boundary_in_index,
    count,
    data_dependent,
    float_tensor,
    function_in_index,
    unknown_name,
    unknown_tensor,
    without_index,
)
from opgen.lang.limits import bounded, expandable
from opgen.lang.scope import Scope

MAX_EXPONENT: Final = 16


def index_polynomial(expression: syntax.Expression, scope: Scope) -> Poly:
    """An index expression as a polynomial. Raises Fault where it is not one."""
    match expression:
        case syntax.Number(value=int() as value):
            return poly(value)
        case syntax.Number(value=number, span=span):
            raise Fault(
                "float-in-index",
                f"an index is an integer, and {scope.environment.text(span)} is a float",
                span,
                advice="write an integer; `//` divides and rounds down, such as n//2",
                replacement=(span, str(int(number))) if number == int(number) else None,
            )
        case syntax.Truth(value=truth):
            return poly(int(truth))
        case syntax.NameUse(name=name, span=span):
            return integer_name(name, span, scope)
        case syntax.Subscript():
            return _integer_load(expression, scope)
        case syntax.Unary(operand=operand):
            return -index_polynomial(operand, scope)
        case syntax.Binary():
            return _index_binary(expression, scope)
        case syntax.Call(function=function, arguments=arguments, span=span):
            if function.text in ("min", "max") and len(arguments) >= 2:
                values = [index_polynomial(argument, scope) for argument in arguments]
                return minimum(*values) if function.text == "min" else maximum(*values)
            raise function_in_index(expression, scope)
        case syntax.Reduction(reducer=reducer, span=span):
            raise Fault(
                "reduction-in-index",
                f"'{reducer.text}' reduces values, it cannot stand in an index",
                span,
                advice="declare an integer temporary, such as tmp s: int[N], write the result to "
                "it and index with that",
            )
        case syntax.Infinity(span=span):
            raise Fault(
                "not-an-index",
                "an index is an integer, and `inf` is none",
                span,
                advice="the last index of a dim of extent N is N - 1",
            )
        case syntax.Text(span=span):
            raise Fault(
                "not-an-index",
                "an index is an integer, and this is a string",
                span,
                advice="strings are the values of choice attributes, and are only compared",
            )
        case syntax.Comparison(span=span) | syntax.Logical(span=span):
            raise Fault(
                "condition-in-index",
                "a condition is not an index",
                span,
                advice="put the condition after `if` and write one statement per case",
            )
        case unexpected:
            assert_never(unexpected)


def integer_name(name: str, span: Span, scope: Scope) -> Poly:
    """The symbol of a bare name. Raises the Fault that fits what the name really is."""
    environment = scope.environment
    if name in scope.iterators:
        return symbol(name)
    attribute = environment.attributes.get(name)
    if attribute is not None and attribute.length is not None:
        raise Fault(
            "tuple-attribute",
            f"'{name}' is a tuple of {attribute.length}, and one number is needed here",
            span,
            (environment.declared_at[name], "declared here"),
            advice=f"name one element, {name}[0] to {name}[{attribute.length - 1}]",
            replacement=(span, f"{name}[0]"),
        )
    if attribute is not None and attribute.type is AttributeType.FLOAT:
        raise Fault(
            "float-in-index",
            f"'{name}' is a float attribute and cannot stand in an index",
            span,
            (environment.declared_at[name], "declared here"),
            advice=f"declare it as an integer, such as {name}: int = 1",
        )
    if attribute is not None and attribute.type is AttributeType.CHOICE:
        choices = ", ".join(f'"{choice}"' for choice in attribute.choices)
        raise Fault(
            "choice-in-index",
            f"'{name}' is one of the strings {choices}, not a number",
            span,
            (environment.declared_at[name], "declared here"),
            advice="write one statement per case, each with its condition, such as "
            f'`if {name} == "{attribute.choices[0]}"`',
        )
    if environment.is_integer(name):
        return symbol(name)
    if name in environment.tensors:
        raise without_index(environment.tensors[name], span, scope)
    if name in environment.later:
        raise Fault(
            "unknown-name",
            f"'{name}' is used before it is defined",
            span,
            (environment.later[name], "defined only here"),
            advice="every `let` uses only what stands above it",
        )
    raise unknown_name(name, span, scope)


def size_polynomial(expression: syntax.Expression, scope: Scope) -> Poly:
    """An extent: an index expression of sizes and attributes, not of what tensors hold."""
    value = index_polynomial(expression, scope)
    refuse_loads(value, expression.span)
    return expandable(value, scope.environment.formulas, expression.span)


def refuse_loads(value: Poly, span: Span) -> None:
    """Raises Fault if a polynomial that is needed before the op runs depends on tensors."""
    for atom in value.all_atoms():
        if atom.kind is Kind.LOAD:
            raise data_dependent(atom.name, span)


def _integer_load(expression: syntax.Subscript, scope: Scope) -> Poly:
    name, span = expression.name.text, expression.span
    attribute = scope.environment.attributes.get(name)
    if attribute is not None:
        return _tuple_element(expression, scope)
    tensor = scope.environment.tensors.get(name)
    if tensor is None:
        raise unknown_tensor(expression, scope.environment)
    integer = tensor.integer if isinstance(tensor, Table) else tensor.dtype.is_integer
    if not integer:
        raise float_tensor(tensor, span, scope)
    access = convert_access(expression, scope)
    for axis, (item, index) in enumerate(zip(expression.indices, access.indices, strict=True)):
        if index.boundary is not Boundary.NONE:
            raise boundary_in_index(tensor, axis, item, scope)
    return load(name, (index.value for index in access.indices))


def _tuple_element(expression: syntax.Subscript, scope: Scope) -> Poly:
    name = expression.name.text
    attribute = scope.environment.attributes[name]
    if attribute.length is None:
        raise Fault(
            "not-a-tensor",
            f"'{name}' is an attribute, not a tensor",
            expression.span,
            (scope.environment.declared_at[name], "declared here"),
            advice=f"it is one number: write {name}",
            replacement=(expression.span, name),
        )
    match expression.indices:
        case (syntax.PlainIndex(value=syntax.Number(value=int() as position), boundary=""),) if (
            position < attribute.length
        ):
            return symbol(f"{name}[{position}]")
        case _:
            last = f"{name}[{attribute.length - 1}]"
            literal_position = not any(
                isinstance(item, syntax.PlainIndex) and not isinstance(item.value, syntax.Number)
                for item in expression.indices
            )
            raise Fault(
                "tuple-attribute",
                f"'{name}' is a tuple of {attribute.length} and has no element "
                f"{scope.environment.text(expression.span).removeprefix(name)}"
                if literal_position
                else f"'{name}' is a tuple of {attribute.length} and takes a literal position",
                expression.span,
                (scope.environment.declared_at[name], "declared here"),
                advice=f"name one element, {name}[0] to {last}"
                + ("" if literal_position else "; what is indexed by iterators is a tensor"),
                replacement=(expression.span, last) if literal_position else None,
            )


def _index_binary(expression: syntax.Binary, scope: Scope) -> Poly:
    left = index_polynomial(expression.left, scope)
    operator = expression.operator
    if operator == "/":
        raise Fault(
            "division-in-index",
            "`/` is real division and does not give an index",
            expression.span,
            advice="floor division is written `//`",
            replacement=(_operator(expression, scope), "//"),
        )
    if operator == "**":
        match expression.right:
            case syntax.Number(value=int() as exponent) if 0 <= exponent <= MAX_EXPONENT:
                result = poly(1)
                for _ in range(exponent):
                    result = bounded(result * left, expression.span)
                return result
            case _:
                raise Fault(
                    "exponent-in-index",
                    f"an exponent in an index is a literal from 0 to {MAX_EXPONENT}",
                    expression.right.span,
                    advice="write the product out, or pass the power itself as an attribute",
                )
    right = index_polynomial(expression.right, scope)
    match operator:
        case "+":
            return bounded(left + right, expression.span)
        case "-":
            return bounded(left - right, expression.span)
        case "*":
            return bounded(left * right, expression.span)
        case "//" | "%":
            if right.is_constant and right.constant <= 0:
                raise Fault(
                    "divisor-not-positive",
                    f"the divisor of `{operator}` must be positive, this one is {right}",
                    expression.right.span,
                    notes=("`//` and `%` are floor operations, defined for positive divisors",),
                    advice="divide by 1 or more"
                    if right.constant == 0
                    else "negate the numerator instead",
                )
            scope.environment.divisors.append(Divisor(right, expression.right.span))
            return bounded(left // right if operator == "//" else left % right, expression.span)
    raise AssertionError(operator)


def _operator(expression: syntax.Binary, scope: Scope) -> Span:
    """Where the operator of a binary expression stands."""
    left = scope.environment.enclosed(expression.left.span)
    start = scope.environment.source.text.index(expression.operator, left.end)
    return Span(start, start + len(expression.operator))


# ---------------------------------------------------------------------------- accesses


def refuse_access(expression: syntax.Subscript, environment: Environment) -> None:
    """Raises Fault on an unknown tensor or a wrong number of indices."""
    name, given = expression.name.text, len(expression.indices)
    if name in environment.attributes:
        return  # an element of a tuple
    tensor = environment.tensors.get(name)
    if tensor is None:
        raise unknown_tensor(expression, environment)
    rank = len(tensor.dims) if isinstance(tensor, Tensor) else len(tensor.shape)
    if given != rank:
        raise Fault(
            "wrong-rank",
            f"'{name}' has {count(rank, 'dim')}, but is indexed with {given}",
            expression.span,
            (environment.declared_at[name], f"declared {environment.shape(tensor)}"),
            advice="write one index for every dim"
            if given < rank
            else f"remove {count(given - rank, 'index', 'indices')}, or declare more dims",
        )


def read_access(expression: syntax.Subscript, scope: Scope) -> Access:
    """A read. Raises Fault on the boundary modes of writes."""
    access = convert_access(expression, scope)
    for index in access.indices:
        if index.boundary is Boundary.DROP:
            raise _misplaced(
                index,
                "?drop",
                "write, and this is a read",
                "?0",
                expression,
                scope.environment.source,
            )
    return access


def written_access(expression: syntax.Subscript, scope: Scope) -> Access:
    """The target of a statement. Raises Fault on the boundary modes of reads."""
    access = convert_access(expression, scope)
    for index in access.indices:
        if index.boundary in (Boundary.ZERO, Boundary.FILL):
            mode = "?0" if index.boundary is Boundary.ZERO else "?(value)"
            raise _misplaced(
                index,
                mode,
                "read, and this is a write",
                "?drop",
                expression,
                scope.environment.source,
            )
    return access


def _misplaced(
    index: Index, mode: str, role: str, instead: str, expression: syntax.Subscript, source: Source
) -> Fault:
    span = index.span or expression.span
    suffix = Span(source.text.rindex("?", span.start, span.end), span.end)
    return Fault(
        "misplaced-boundary",
        f"`{mode}` says what happens outside in a {role}",
        suffix,
        advice=f"write `{instead}`",
        replacement=(suffix, instead),
    )


def convert_access(expression: syntax.Subscript, scope: Scope) -> Access:
    """An access with one index per dim. Raises Fault on a wrong rank or a bad composite."""
    refuse_access(expression, scope.environment)
    name = expression.name.text
    tensor = scope.environment.tensors.get(name)
    if tensor is None:
        raise unknown_tensor(expression, scope.environment)
    indices = tuple(
        _convert_index(item, tensor, axis, scope) for axis, item in enumerate(expression.indices)
    )
    return Access(name, indices, expression.span)


def _convert_index(
    item: syntax.IndexItem, tensor: Tensor | Table, axis: int, scope: Scope
) -> Index:
    match item:
        case syntax.BatchDims(span=span):
            if not (isinstance(tensor, Tensor) and tensor.batched and axis == 0):
                raise Fault(
                    "misplaced-batch",
                    f"'...' stands for leading batch dims, which '{tensor.name}' has not here",
                    span,
                    (
                        scope.environment.declared_at[tensor.name],
                        f"declared {scope.environment.shape(tensor)}",
                    ),
                    advice=f"declare it with `...` first, {tensor.name}[...,N], or name an index"
                    if axis == 0
                    else "write '...' first",
                )
            return Index(symbol(BATCH_ITERATOR), span=span)
        case syntax.Composite(parts=parts):
            extents = composite_extents(item, tensor, axis, scope.environment)
            value = poly(0)
            for part, extent in zip(parts, extents, strict=True):
                if isinstance(part, syntax.Number):
                    digit = poly(int(part.value))
                else:
                    digit = integer_name(part.text, part.span, scope)
                value = value * extent + digit
            return Index(value, span=item.span)
        case syntax.PlainIndex(value=expression, boundary=boundary, fill=fill):
            value = index_polynomial(expression, scope)
            if boundary == "?(":
                assert fill is not None
                return Index(
                    value, Boundary.FILL, _fill(fill, item, tensor, axis, scope), item.span
                )
            return Index(value, Boundary(boundary), span=item.span)
        case unexpected:
            assert_never(unexpected)


def composite_extents(
    item: syntax.Composite, tensor: Tensor | Table, axis: int, environment: Environment
) -> tuple[Poly, ...]:
    """The declared factors a composite index pairs with."""
    parts = tensor.dims[axis].parts if isinstance(tensor, Tensor) else ()
    if len(parts) == len(item.parts):
        return parts
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
    raise Fault(
        "composite-mismatch",
        headline,
        item.span,
        *environment.dim_label(tensor.name, axis, "declared here"),
        advice=advice,
    )


def _fill(
    fill: syntax.Expression,
    item: syntax.PlainIndex,
    tensor: Tensor | Table,
    axis: int,
    scope: Scope,
) -> float:
    try:
        return literal(fill)
    except Fault as fault:
        index, value = scope.environment.text(item.value.span), scope.environment.text(fill.span)
        extent = tensor.dims[axis].extent if isinstance(tensor, Tensor) else tensor.shape[axis]
        advice = (
            f"any value fills by select(0 <= {index} < {extent}, {tensor.name}[{index} ?0], "
            f"{value})"
        )
        raise fault.advising(advice) from None


def literal(expression: syntax.Expression) -> float:
    """A number written out, for `?(value)`; an int stays one, so that integers can be filled."""
    match expression:
        case syntax.Number(value=value):
            return value
        case syntax.Infinity():
            return float("inf")
        case syntax.Unary(operand=operand):
            return -literal(operand)
        case _:
            raise Fault(
                "fill-not-literal",
                "`?(...)` takes a number written out, and this is none",
                expression.span,
            )
