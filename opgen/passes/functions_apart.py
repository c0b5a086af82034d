"""Functions of terms are computed before the sums up to each cell.

Before: `y[n,i] = sum(j in J if j <= i) exp(x[n,j])`. A sum goes from cell to cell, see
`passes.running_totals`, and would compute one exponential after the other. After:

    each[n,j] = exp(x[n,j])
    y[n,i]    = sum(j in J if j <= i) each[n,j]

where exponentials are vectors. This is for the CPU.

Before: an op. After: an op with the same values.
"""

from __future__ import annotations

from dataclasses import replace

from opgen.algebra.poly import symbol
from opgen.ir.notation import Boundary, Op, Read, Reducer, Statement, reads
from opgen.ir.walk import expression_polynomials, loads, polynomials, symbols_as_read
from opgen.passes.cells import are_sizes
from opgen.passes.new_temporaries import NewTemporaries
from opgen.passes.up_to import has_functions, up_to


def with_functions_apart(op: Op) -> Op:
    """The op with temporaries for functions that running totals are of."""
    made = NewTemporaries.of(op)
    return made.op_with(part for each in op.statements for part in _parts(each, made))


def _parts(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind one of its terms if these are functions."""
    bound, body = up_to(statement), statement.body
    names = symbols_as_read(body)
    loops = [each for each in statement.iterators if each.name in names]
    loops.sort(key=lambda each: names.index(each.name))
    if (
        bound is None
        or bound.cell in names
        or bound.moving.name not in names
        or statement.reducer.is_argument
        or not has_functions(body)
        or not all(map(made.is_generic, (statement.target, *reads(body))))
        or not are_sizes(loops, made)
        or any(any(loads(value)) for value in polynomials(statement))
        or any(bound.cell in value.symbols for value in expression_polynomials(body))
        or any(i.boundary is Boundary.ZERO for access in reads(body) for i in access.indices)
    ):
        return (statement,)
    cells = [(each.extent, symbol(each.name)) for each in loops]
    terms = made.cells(statement.target.tensor, "each", cells, stored=True)
    about = (terms, Reducer.ASSIGN, tuple(loops), (), body)
    first = Statement(*about, span=statement.span, is_exclusive=True)
    return first, replace(statement, body=Read(terms))
