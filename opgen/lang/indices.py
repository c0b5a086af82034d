"""Index expressions and accesses to polynomials.

An *index* is an integer polynomial over sizes, attributes and iterators; anything else in its place
is a fault that says what to write instead.
"""

from __future__ import annotations

from typing import Final, assert_never

from opgen.algebra.poly import Kind, Poly, load, maximum, minimum, poly, symbol
from opgen.errors import Span
from opgen.ir.notation import BATCH_ITERATOR, Access, Boundary, Index, Table, Tensor
from opgen.lang import syntax
from opgen.lang.access_faults import (
    composite_mismatch,
    misplaced_batch,
    misplaced_boundary,
    unknown_tensor,
    wrong_rank,
)
from opgen.lang.environment import Divisor, Environment, Fault
from opgen.lang.index_faults import (
    attribute_in_index,
    boundary_in_index,
    data_dependent,
    division_in_index,
    divisor_not_positive,
    element_of_number,
    float_tensor,
    function_in_index,
    no_element,
    no_index,
    unknown_name,
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
        case syntax.Call(function=function, arguments=arguments):
            if function.text in ("min", "max") and len(arguments) >= 2:
                values = [index_polynomial(argument, scope) for argument in arguments]
                return minimum(*values) if function.text == "min" else maximum(*values)
            raise function_in_index(expression, scope)
        case (
            syntax.Number()
            | syntax.Reduction()
            | syntax.Infinity()
            | syntax.Text()
            | syntax.Comparison()
            | syntax.Logical()
        ):
            raise no_index(expression, scope.environment, in_cell=bool(scope.iterators))
        case unexpected:
            assert_never(unexpected)


def integer_name(name: str, span: Span, scope: Scope) -> Poly:
    """The symbol of a bare name. Raises the Fault that fits what the name really is."""
    environment = scope.environment
    if name in scope.iterators:
        return symbol(name)
    attribute = environment.attributes.get(name)
    fault = None if attribute is None else attribute_in_index(attribute, span, environment)
    if fault is not None:
        raise fault
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
        raise element_of_number(expression, scope.environment)
    match expression.indices:
        case (syntax.PlainIndex(value=syntax.Number(value=int() as position), boundary=""),) if (
            position < attribute.length
        ):
            return symbol(f"{name}[{position}]")
        case _:
            raise no_element(expression, attribute.length, scope.environment)


def _index_binary(expression: syntax.Binary, scope: Scope) -> Poly:
    left = index_polynomial(expression.left, scope)
    operator = expression.operator
    if operator == "/":
        raise division_in_index(expression, scope.environment)
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
                raise divisor_not_positive(expression, right.constant)
            scope.environment.divisors.append(Divisor(right, expression.right.span, scope.place))
            return bounded(left // right if operator == "//" else left % right, expression.span)
    raise AssertionError(operator)


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
        raise wrong_rank(expression, tensor, rank, environment)


def read_access(expression: syntax.Subscript, scope: Scope) -> Access:
    """A read. Raises Fault on the boundary modes of writes."""
    access = convert_access(expression, scope)
    for index in access.indices:
        if index.boundary is Boundary.DROP:
            raise misplaced_boundary(index, expression, scope.environment)
    return access


def written_access(expression: syntax.Subscript, scope: Scope) -> Access:
    """The target of a statement. Raises Fault on the boundary modes of reads."""
    access = convert_access(expression, scope)
    for index in access.indices:
        if index.boundary in (Boundary.ZERO, Boundary.FILL):
            raise misplaced_boundary(index, expression, scope.environment)
    return access


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
                raise misplaced_batch(tensor, axis, span, scope.environment)
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
    raise composite_mismatch(item, tensor, axis, environment)


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
