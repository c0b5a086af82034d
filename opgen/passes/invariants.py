"""Functions of few cells, computed once and not for each of many.

    y[n,c,h,w] = x[n,c,h,w] * sigmoid(s[n,c])

has an exponential for every row of an image, and in channels-last format for every pixel. As

    each[n,c]  = sigmoid(s[n,c])
    y[n,c,h,w] = x[n,c,h,w] * each[n,c]

it has one for every channel. What is the same along one row alone is left: a kernel computes it
once for each row anyway. So has `sin(2**l * x[n,i])` one power for every l, whatever n is.

Before: an op. After: an op with the same values. This is for the CPU; on a GPU such a kernel waits
for memory, and another one costs a launch.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from dataclasses import dataclass, field, replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Kind, symbol
from opgen.algebra.prove import implies
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.notation import (
    Access,
    Apply,
    Expr,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    map_expression,
    reads,
)
from opgen.ir.primitives import PRIMITIVES
from opgen.ir.walk import (
    access_polynomials,
    expression_polynomials,
    literals,
    loads,
    nodes,
    polynomials,
    symbols_of,
)
from opgen.passes.cells import are_sizes
from opgen.passes.new_temporaries import NewTemporaries

_QUICK = frozenset({"div"})
"""Primitives of floats that take little longer than a product."""


def with_invariants(op: Op) -> Op:
    """The op with temporaries for functions of fewer iterators than their statements have."""
    invariants = _Invariants(NewTemporaries.of(op))
    return invariants.temporaries.op_with(
        part for each in op.statements for part in invariants.of(each)
    )


@dataclass
class _Invariants:
    """The temporaries of values by expression, its literals, and what their cells are numbered by.

    They hold the values to the end, as nothing is written once it was read.
    """

    temporaries: NewTemporaries
    held: dict[tuple[Expr, tuple[str, ...], tuple[Iterator, ...]], Access] = field(
        default_factory=dict
    )

    def of(self, statement: Statement) -> Iterable[Statement]:
        """The statement, behind those that write what it reads in place of functions."""
        used = (statement.target, *reads(statement.body))
        is_checked = any(any(loads(value)) for value in polynomials(statement))
        if is_checked or not all(map(self.temporaries.is_generic, used)):
            yield statement
            return
        values: list[Statement] = []

        def read(expr: Expr) -> Expr | None:
            if not takes_functions(expr):
                return None
            iterators = _numbering(expr, statement, self.temporaries.op.sizes)
            if iterators is None or not self.is_there(expr, iterators, statement):
                return None
            return Read(self.value(expr, iterators, statement, values))

        body = map_expression(statement.body, read)
        yield from values
        yield replace(statement, body=body)

    def is_there(self, expr: Expr, iterators: tuple[Iterator, ...], statement: Statement) -> bool:
        """Whether a value is one for all values of iterators; one that reads nothing has some."""
        if any(True for _ in reads(expr)):
            return self.temporaries.is_always_there(expr, statement)
        is_table = bool(iterators) and are_sizes(iterators, self.temporaries)
        return is_table and are_numbers(expr, iterators, self.temporaries.op)

    def value(
        self,
        expr: Expr,
        iterators: tuple[Iterator, ...],
        statement: Statement,
        values: list[Statement],
    ) -> Access:
        """Cells that hold a value, one for each of some iterators."""
        key = expr, literals(expr), iterators
        if key not in self.held:
            cells = [(each.extent, symbol(each.name)) for each in iterators]
            held = self.temporaries.cells(statement.target.tensor, "once", cells)
            self.held[key] = held
            values.append(Statement(held, Reducer.ASSIGN, iterators, (), expr, is_exclusive=True))
        return self.held[key]


def takes_functions(expr: Expr) -> bool:
    """Whether a value takes more than sums, products and quotients."""
    primitives = (node.primitive for node in nodes(expr) if isinstance(node, Apply))
    return any(PRIMITIVES[name].needs_float and name not in _QUICK for name in primitives)


def are_numbers(expr: Expr, iterators: tuple[Iterator, ...], op: Op) -> bool:
    """Whether the integers of a value that reads no tensor are numbers for all values of iterators,
    whatever conditions hold: whether nothing is divided by 0."""
    divisors = {
        atom.args[1]
        for number in expression_polynomials(expr)
        for atom in number.all_atoms()
        if atom.kind is Kind.FLOOR_DIV
    }
    facts = with_iterators(facts_of(op), iterators)
    return all(implies(facts, Condition(each - 1)) for each in divisors)


def _numbering(
    expr: Expr, statement: Statement, sizes: tuple[str, ...]
) -> tuple[Iterator, ...] | None:
    """The iterators that a value depends on; None if there is no tensor of which it is the same for
    many rows."""
    moving = {each.name: each for each in statement.iterators}
    used = [name for name in symbols_of(expression_polynomials(expr)) if name in moving]
    long = {name for name, each in moving.items() if each.extent.symbol in sizes}
    reads_none = not any(True for _ in reads(expr))
    for access in reads(statement.body):
        symbols = {*used} if reads_none else set(symbols_of(access_polynomials(access)))
        *outer, _ = access.indices or (None,)
        rows = set(symbols_of(index.value for index in outer if index is not None))
        if symbols.issuperset(used) and not long.isdisjoint(rows.difference(used)):
            return tuple(moving[name] for name in used)
    return None
