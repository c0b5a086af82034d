"""What a statement or an expression is made of: nodes, polynomials, tensors that are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opgen.algebra.poly import Poly
from opgen.ir.notation import Access, Apply, Constant, Expr, Index, Statement, Value, reads


def nodes(expr: Expr) -> Iterator[Expr]:
    """Every node of an expression, outermost first."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Apply):
            waiting.extend(reversed(node.arguments))


def literals(expr: Expr) -> tuple[str, ...]:
    """Its numbers as they are spelled: 2 and 2.0 are equal, and so are 0.0 and -0.0."""
    return tuple(repr(node.value) for node in nodes(expr) if isinstance(node, Constant))


def expression_polynomials(expr: Expr) -> Iterator[Poly]:
    """Every polynomial of an expression: of its indices and of its integer values."""
    for access in reads(expr):
        yield from access_polynomials(access)
    yield from (node.value for node in nodes(expr) if isinstance(node, Value))


def access_polynomials(access: Access) -> Iterator[Poly]:
    """The indices of an access."""
    return (index.value for index in access.indices)


def polynomials(statement: Statement) -> Iterator[Poly]:
    """Every polynomial of a statement but the extents of its iterators."""
    yield from access_polynomials(statement.target)
    for guard in statement.guards:
        yield guard.value
    if statement.position is not None:
        yield statement.position
    yield from expression_polynomials(statement.body)


def values_of(statement: Statement) -> Iterator[Poly]:
    """The integers of a statement besides the indices of its accesses."""
    yield from (guard.value for guard in statement.guards)
    yield from () if statement.position is None else (statement.position,)
    yield from (node.value for node in nodes(statement.body) if isinstance(node, Value))


def loads(value: Poly) -> Iterator[Access]:
    """The integers that a polynomial reads from tensors, also those inside of others."""
    for atom in value.loads:
        yield Access(atom.name, tuple(Index(arg) for arg in atom.args))


def all_reads(statement: Statement) -> Iterator[Access]:
    """Every access of a statement but its target: of the body, and the loads in polynomials."""
    yield from reads(statement.body)
    for value in polynomials(statement):
        yield from loads(value)


def symbols_of(values: Iterable[Poly]) -> list[str]:
    """The symbols of polynomials, in order of the first that has each."""
    return list(dict.fromkeys(name for value in values for name in sorted(value.symbols)))


def symbols_as_read(expr: Expr) -> list[str]:
    """The symbols of an expression as they stand in the tensor of most dims that it reads, then the
    others."""
    accesses = sorted(reads(expr), key=lambda access: -len(access.indices))
    values = [value for access in accesses for value in access_polynomials(access)]
    return symbols_of([*values, *expression_polynomials(expr)])


def is_checked(statement: Statement) -> bool:
    """Whether an index of a read is checked at run time: messages show it as the spec has it."""
    indices = (index for access in all_reads(statement) for index in access.indices)
    return any(index.value.is_data_dependent for index in indices)
