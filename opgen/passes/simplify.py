"""Notation to notation of the same meaning: exact folding of expressions, and no dead statements.

Before: any op. After: the same inputs, attributes and outputs, the same value in every cell
including infinities and NaN, and the same absent reads. What is folded is exact in every number
type:

* arithmetic of integers, sizes, attributes and iterators alone becomes one polynomial, as where a
  spec is read, so that printed text reads back as the same tree;
* the factor 1, a double sign, a selection by a literal;
* a temporary that only renames cells of another tensor (`passes.copies`).

Floats are never reassociated, and `0 * x`, `x + 0` and `x ** 1` stay: x may be infinite, -0.0 or
absent. The zeros that differentiation creates say that nothing depends; they are never built
(`passes.chain_rule`), so nobody has to fold them later on the ground of a wrong identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, maximum, minimum, poly
from opgen.ir.build import of_polynomial
from opgen.ir.notation import Apply, Constant, Expr, Op, Statement, Value
from opgen.ir.primitives import PRIMITIVES
from opgen.ir.primitives import Kind as ResultKind
from opgen.ir.walk import all_reads, loads
from opgen.passes.copies import forward_copies


def simplify(op: Op) -> Op:
    """The op with simplified bodies, without true guards, plain copies and dead temporaries."""
    op = replace(op, statements=tuple(map(_simplify_statement, op.statements)))
    op = forward_copies(op)
    statements = _live_statements(op.statements, tuple(output.name for output in op.outputs))
    written = {statement.target.tensor for statement in statements}
    return replace(
        op,
        statements=statements,
        temporaries=tuple(tensor for tensor in op.temporaries if tensor.name in written),
    )


def _simplify_statement(statement: Statement) -> Statement:
    return replace(
        statement,
        guards=tuple(guard for guard in statement.guards if not _always_true(guard)),
        body=simplify_expression(statement.body),
    )


def _always_true(guard: Condition) -> bool:
    return guard.value.is_constant and guard.holds({})


# ---------------------------------------------------------------------------- dead code
def _live_statements(
    statements: tuple[Statement, ...], outputs: tuple[str, ...]
) -> tuple[Statement, ...]:
    """The statements on whose effect one of the tensors `outputs` depends, in order."""
    needed = set(outputs)
    kept = []
    for statement in reversed(statements):
        if statement.target.tensor in needed:
            kept.append(statement)
            needed.update(access.tensor for access in all_reads(statement))
    return tuple(reversed(kept))


# ---------------------------------------------------------------------------- expressions
def simplify_expression(expr: Expr) -> Expr:
    """An expression with the same value and the same absence at every point."""
    match expr:
        case Value(value=value):
            return of_polynomial(value)
        case Apply(primitive=name, arguments=arguments):
            return _fold(name, tuple(simplify_expression(argument) for argument in arguments))
        case _:
            return expr


def _fold(name: str, arguments: tuple[Expr, ...]) -> Expr:
    folded = _fold_integers(name, arguments)
    if folded is not None:
        return folded
    match name, arguments:
        case "neg", (Constant(value=value),):
            return Constant(-value)
        case "neg", (Apply(primitive="neg", arguments=(inner,)),):
            return inner
        case "mul", (Constant(value=1 as one), other) | (other, Constant(value=1 as one)):
            # 1.0 is left alone: it makes a float of an integer.
            if isinstance(one, int) and not _is_boolean(other):
                return other
        case "select", (Constant(value=condition), first, second):
            return first if condition else second
    return Apply(name, arguments)


def _is_boolean(expr: Expr) -> bool:
    return isinstance(expr, Apply) and PRIMITIVES[expr.primitive].kind is ResultKind.BOOLEAN


_INTEGER_ARITHMETIC: Final[dict[str, Callable[..., Poly]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "min": minimum,
    "max": maximum,
}
_MAX_EXPONENT: Final = 16


def _fold_integers(name: str, arguments: tuple[Expr, ...]) -> Expr | None:
    """Arithmetic that involves no tensor as one polynomial, a comparison of literals as 0 or 1."""
    operands = [integer_polynomial(argument) for argument in arguments]
    values = [operand for operand in operands if operand is not None]
    if len(values) != len(operands):
        return None
    if name in _INTEGER_ARITHMETIC:
        return of_polynomial(_INTEGER_ARITHMETIC[name](*values))
    if name == "pow" and values[1].is_constant and 0 <= values[1].constant <= _MAX_EXPONENT:
        result = poly(1)
        for _ in range(values[1].constant):
            result = result * values[0]
        return of_polynomial(result)
    row = PRIMITIVES[name]
    if row.kind is ResultKind.BOOLEAN and all(value.is_constant for value in values):
        return Constant(int(row.function(*(value.constant for value in values))))
    return None


def integer_polynomial(expr: Expr) -> Poly | None:
    """The polynomial of an integer that involves no tensor, None for another expression."""
    match expr:
        case Constant(value=int() as number):
            return poly(number)
        case Value(value=value) if not any(loads(value)):
            return value
        case _:
            return None
