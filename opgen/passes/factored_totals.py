"""Factors of a cell go behind the sum up to it, in gradients, and of three and more tensors.

The gradients of `y[n,i] = sum(j in I if j <= i) w[j]*x[n,j]` are

    grad_x[n,j] = sum(i if i >= j) w[j] * grad_y[n,i]
    grad_w[j]   = sum(n, i if i >= j) x[n,j] * grad_y[n,i]

where every cell multiplies all terms by a number of its own. As

    totals[n,j] = sum(i if i >= j) grad_y[n,i]
    grad_x[n,j] = w[j] * totals[n,j]
    grad_w[j]   = sum(n) x[n,j] * totals[n,j]

cells have the terms of their neighbours and one more, which takes linear time, see
`passes.running_totals`. These are other roundings, as those of `passes.factored_sums` are, and like
these they are for what opgen derived and nothing is decided by, on the CPU. So it is for sums of a
spec of three and more tensors, whose factors are multiplied in another order without a condition,
too:

    y[t,e] = sum(s,d if s <= t) q[t,d]*k[s,d]*v[s,e]

has a matrix of totals up to each t, of `k[s,d]*v[s,e]`, that a kernel goes on with from t to t; it
takes no memory for each of them.

Before: an op. After: an op with the same values but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from dataclasses import dataclass, field, replace

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, symbol
from opgen.algebra.prove import is_nonnegative
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Access,
    Boundary,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    reads,
)
from opgen.ir.walk import (
    expression_polynomials,
    literals,
    loads,
    polynomials,
    symbols_as_read,
    symbols_of,
)
from opgen.passes.factored_sums import deciding
from opgen.passes.new_temporaries import NewTemporaries
from opgen.passes.up_to import has_functions, up_to


def with_factored_totals(op: Op, fewest: int = 1) -> Op:
    """The op with temporaries for sums up to a cell without the factors of that cell, where so many
    factors read tensors at least."""
    exact = deciding(op)
    exact |= {each.target.tensor for each in op.statements if _readers(each) < fewest}
    factored = _Factored(NewTemporaries.of(op), facts_of(op))
    return factored.made.op_with(
        part
        for each in op.statements
        for part in ((each,) if each.target.tensor in exact else factored.of(each))
    )


@dataclass(frozen=True, slots=True)
class _Totals:
    """A statement whose terms are products, of factors of `cell` and of `core`.

    The guard says which values of the iterator `moving` there are for one of the cell.
    """

    statement: Statement
    guard: Condition
    moving: Iterator
    negative: bool
    cell: tuple[Factor, ...]
    core: tuple[Factor, ...]

    @property
    def inner(self) -> tuple[Iterator, ...]:
        """The iterators to sum over first: no factor of the cell moves with them."""
        target = (index.value for index in self.statement.target.indices)
        outer = {*symbols_of(target), *_symbols(self.cell)}
        return tuple(each for each in self.statement.iterators if each.name not in outer)

    @property
    def kept(self) -> tuple[Iterator, ...]:
        """The iterators of totals, as they are read."""
        row = [name for name in self.guard.value.symbols if name != self.moving.name]
        order = [BATCH_ITERATOR]
        for name in symbols_as_read(product_of(self.core)):
            order += row if name == self.moving.name else [name]
        known = [each for each in self.statement.iterators if each.name in order]
        known = [each for each in known if each not in self.inner]
        return tuple(sorted(known, key=lambda each: order.index(each.name)))


@dataclass
class _Factored:
    """The totals that were made so far, by what they are sums of."""

    made: NewTemporaries
    facts: Facts
    held: dict[tuple[object, ...], Access] = field(default_factory=dict)

    def of(self, statement: Statement) -> Iterable[Statement]:
        """The statement, or one that multiplies totals, behind these."""
        found = self.totals(statement)
        if found is None:
            yield statement
            return
        core = product_of(found.core)
        key = core, literals(core), found.guard, found.kept, found.inner
        if key not in self.held:
            cells = [(each.extent, symbol(each.name)) for each in found.kept]
            is_slow = any(has_functions(each.value) for each in found.cell)
            near = statement.target.tensor
            total = self.made.cells(near, "totals", cells, stored=is_slow)
            yield Statement(
                total,
                Reducer.ADD,
                (*found.kept, *found.inner),
                (found.guard,),
                core,
                is_exclusive=True,
            )
            self.held[key] = total
        value = Factor(Read(self.held[key]))
        yield replace(
            statement,
            iterators=tuple(each for each in statement.iterators if each not in found.inner),
            guards=self.has_terms(found),
            body=product_of((value, *found.cell), negative=found.negative),
        )

    def has_terms(self, found: _Totals) -> tuple[Condition, ...]:
        """What is so where a cell has any terms: a sum of none is 0, whatever it would be
        multiplied with."""
        step = found.guard.value.step_in(found.moving.name)
        best = found.moving.extent - 1 if step == 1 else ZERO
        some = found.guard.substitute({found.moving.name: best})
        left = (each for each in found.statement.iterators if each not in found.inner)
        inside = with_iterators(self.facts, left)
        return () if is_nonnegative(some.value, inside) else (some,)

    def totals(self, statement: Statement) -> _Totals | None:
        """The parts of a statement; None where it is of another form."""
        target = statement.target
        used = (target, *reads(statement.body))
        bound = up_to(statement)
        if statement.reducer is not Reducer.ADD or bound is None:
            return None
        if not all(map(self.made.is_generic, used)):
            return None
        if any(any(loads(value)) for value in polynomials(statement)):
            return None
        if any(index.boundary is not Boundary.NONE for each in used for index in each.indices):
            return None
        negative, factors = factors_of(statement.body)
        core = tuple(each for each in factors if bound.moving.name in _symbols((each,)))
        rest = tuple(each for each in factors if each not in core)
        if not core or bound.cell in _symbols(core) or bound.cell not in _symbols(rest):
            return None
        return _Totals(statement, bound.guard, bound.moving, negative, rest, core)


def _readers(statement: Statement) -> int:
    """How many factors read tensors."""
    _, factors = factors_of(statement.body)
    return sum(any(True for _ in reads(each.value)) for each in factors)


def _symbols(factors: Iterable[Factor] | tuple[Factor, ...]) -> tuple[str, ...]:
    """The symbols of factors, in the order in which they stand there."""
    return tuple(symbols_of(v for each in factors for v in expression_polynomials(each.value)))
