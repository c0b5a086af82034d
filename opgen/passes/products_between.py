"""Gradients of cumulative products, of the products between a term and the cells that have it.

The gradient of `y[r,n] = prod(m in N if m <= n) a[r,m]` gives each term, of every cell that has it,
the product of all others,

    others_y[r,n,m] = prod(m_ if m_ <= n and m_ != m) a[r,m_]
    grad_a[r,m]     = sum(n if n >= m) others_y[r,n,m] * grad_y[r,n]

Those before the term are the same for all these cells. What is left are those between the two:

    before[r,m]     = prod(m_ if m_ < m) a[r,m_]
    between[r,n,m]  = prod(m_ if m_ <= n and m_ > m) a[r,m_]
    totals[r,m]     = sum(n if n >= m) between[r,n,m] * grad_y[r,n]
    grad_a[r,m]     = before[r,m] * totals[r,m]

which is no less work as it stands, but `passes.carried_totals` computes the totals of a row one
from the other, and needs no products between for that: the gradient takes linear time. Products
from a cell to the end, `m >= n`, are the mirror image, and of `m < n` the last cell has no terms.

Nothing is divided, so that zeros are what they were. These are other roundings, as those of
`passes.factored_totals` are: an infinite factor is multiplied with sums, of which some term may be
0, and is infinite where a term by itself would be NaN. So this is for what opgen derived and
nothing is decided by, on the CPU. On a GPU a row in one go would have too few threads.

Before: an op. After: an op with the same values but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from dataclasses import dataclass, field, replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.algebra.prove import is_nonnegative
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.indices import covers_plainly, extents_of
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
    substitute_access,
    substitute_expression,
)
from opgen.ir.walk import (
    expression_polynomials,
    literals,
    loads,
    polynomials,
    symbols_as_read,
    symbols_of,
)
from opgen.passes.all_but_one import FEW
from opgen.passes.factored_sums import deciding
from opgen.passes.new_temporaries import NewTemporaries
from opgen.passes.up_to import up_to


def with_products_between(op: Op) -> Op:
    """The op with products between a term and a cell, where it has those of all other terms."""
    made, exact = NewTemporaries.of(op), deciding(op)
    found: dict[str, _Others] = {}
    for statement in op.statements:
        others = _others(statement, made)
        if others is not None and _is_summed_only(others, made, exact):
            found[others.name] = others
    if not found:
        return op
    apart = _Apart(made, facts_of(op), found)
    changed = made.op_with(part for each in op.statements for part in apart.of(each))
    return replace(
        changed,
        temporaries=tuple(each for each in changed.temporaries if each.name not in found),
    )


@dataclass(frozen=True, slots=True)
class _Others:
    """A statement that gives a term, `own`, the product of all others that a cell has.

    `guard` says which values of the iterator `other` the cell `cell` has, from the first term on
    where it is a prefix.
    """

    statement: Statement
    guard: Condition
    cell: str
    own: Iterator
    other: Iterator
    is_prefix: bool

    @property
    def name(self) -> str:
        """The tensor of these products."""
        return self.statement.target.tensor

    @property
    def term(self) -> Condition:
        """Which terms the cell has."""
        return self.guard.substitute({self.other.name: symbol(self.own.name)})

    @property
    def rows(self) -> tuple[Iterator, ...]:
        """The iterators of terms, as these lie in memory."""
        here = substitute_expression(self.statement.body, {self.other.name: symbol(self.own.name)})
        places = {name: at for at, name in enumerate([BATCH_ITERATOR, *symbols_as_read(here)])}
        left = (e for e in self.statement.iterators if e.name not in (self.cell, self.other.name))
        return tuple(sorted(left, key=lambda each: places.get(each.name, 1)))


def _others(statement: Statement, made: NewTemporaries) -> _Others | None:
    """What a statement is a product of; None where it is of another form."""
    target, extents = statement.target, extents_of(statement.iterators)
    unequal = [each for each in statement.guards if each.relation is Relation.NE]
    rest = tuple(each for each in statement.guards if each.relation is not Relation.NE)
    bound = up_to(replace(statement, guards=rest))
    if statement.reducer is not Reducer.MULTIPLY or len(unequal) != 1 or bound is None:
        return None
    if any(any(loads(value)) for value in polynomials(statement)):
        return None
    if any(index.value.symbol not in extents for index in target.indices):
        return None
    if not covers_plainly(target, made.extents(target.tensor), extents):
        return None
    other, (guard,) = bound.moving, unequal
    names = [name for name in extents if name in guard.value.symbols - {other.name}]
    cells = {name for name in extents if name != other.name}
    if len(names) != 1 or cells != {*symbols_of(index.value for index in target.indices)}:
        return None
    (own,) = (each for each in statement.iterators if each.name == names[0])
    gap = symbol(own.name) - symbol(other.name)
    few = own.extent.is_constant and own.extent.constant <= FEW
    if (
        guard.value not in (gap, -gap)
        or own.extent != other.extent
        or own.name == bound.cell
        or few
    ):
        return None
    if not {own.name, bound.cell}.isdisjoint(symbols_of(expression_polynomials(statement.body))):
        return None
    return _Others(statement, bound.guard, bound.cell, own, other, bound.is_prefix)


def _is_summed_only(others: _Others, made: NewTemporaries, exact: frozenset[str]) -> bool:
    """Whether all that is made of these products are sums over the cells that have a term."""
    writers = [each for each in made.op.statements if each.target.tensor == others.name]
    readers = [each for each in made.op.statements if _reads(each, others.name)]
    return (
        len(writers) == 1
        and bool(readers)
        and any(each.name == others.name for each in made.op.temporaries)
        and all(each.target.tensor not in exact for each in readers)
        and all(_sum(each, others, made) is not None for each in readers)
    )


def _reads(statement: Statement, name: str) -> bool:
    return any(access.tensor == name for access in reads(statement.body))


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum over the cells that have a term: factors that move with the cell, and the others.

    `values` are what the iterators of the products are here.
    """

    statement: Statement
    values: dict[str, str]
    negative: bool
    core: tuple[Factor, ...]
    rest: tuple[Factor, ...]


def _sum(statement: Statement, others: _Others, made: NewTemporaries) -> _Sum | None:
    """A statement that reads products as such a sum; None where it is of another form."""
    used = (statement.target, *reads(statement.body))
    if statement.reducer is not Reducer.ADD or len(statement.guards) != 1:
        return None
    if not all(map(made.is_generic, used)):
        return None
    if any(any(loads(value)) for value in polynomials(statement)):
        return None
    if any(index.boundary is not Boundary.NONE for each in used for index in each.indices):
        return None
    negative, factors = factors_of(statement.body)
    (first, *more) = [each for each in factors if others.name in _tensors(each)]
    if more or first.divides or not isinstance(first.value, Read):
        return None
    read = [index.value.symbol for index in first.value.access.indices]
    named = [index.value.symbol for index in others.statement.target.indices]
    values = {a: b for a, b in zip(named, read, strict=True) if a is not None and b is not None}
    extents = extents_of(statement.iterators)
    theirs = extents_of(others.statement.iterators)
    if len({*values.values()}) != len(named) or not {*values.values()} <= {*extents}:
        return None
    if any(extents[here] != theirs[there] for there, here in values.items()):
        return None
    cell, own = values[others.cell], values[others.own.name]
    (guard,) = statement.guards
    if guard != others.term.substitute({others.cell: symbol(cell), others.own.name: symbol(own)}):
        return None
    if cell in symbols_of(index.value for index in statement.target.indices):
        return None
    left = [each for each in factors if each is not first]
    core = tuple(each for each in left if cell in _symbols(each))
    known = {*values.values()} - {own}
    if any(not extents.keys() & _symbols(each) <= known for each in core):
        return None
    rest = tuple(each for each in left if each not in core)
    return _Sum(statement, values, negative, core, rest)


def _tensors(factor: Factor) -> set[str]:
    return {access.tensor for access in reads(factor.value)}


def _symbols(factor: Factor) -> set[str]:
    return {*symbols_of(expression_polynomials(factor.value))}


@dataclass
class _Apart:
    """The temporaries that were made so far, by what they are products and sums of."""

    made: NewTemporaries
    facts: Facts
    found: dict[str, _Others]
    sides: dict[str, tuple[Access, Access]] = field(default_factory=dict)
    held: dict[tuple[object, ...], Access] = field(default_factory=dict)

    def of(self, statement: Statement) -> Iterable[Statement]:
        """The statement, or those that do the same."""
        others = self.found.get(statement.target.tensor)
        if others is not None:
            yield from self.products(others)
            return
        for name in dict.fromkeys(access.tensor for access in reads(statement.body)):
            if name in self.found:
                found = _sum(statement, self.found[name], self.made)
                assert found is not None
                yield from self.totals(found, self.found[name])
                return
        yield statement

    def products(self, others: _Others) -> Iterable[Statement]:
        """Those on the one side of a term, and those between it and a cell."""
        statement, rows = others.statement, others.rows
        # In memory, as they are computed in the other direction than the totals.
        before = self.made.cells(others.name, "before", _places(rows), stored=True)
        cells = tuple(e for e in statement.iterators if e is not others.other)
        between = self.made.cells(others.name, "between", _places(cells), carried=True)
        self.sides[others.name] = before, between
        gap = symbol(others.own.name) - symbol(others.other.name)
        gap = gap if others.is_prefix else -gap
        yield replace(
            statement,
            target=before,
            iterators=(*rows, others.other),
            guards=(Condition(gap - 1),),
            is_exclusive=True,
        )
        yield replace(
            statement,
            target=between,
            guards=(others.guard, Condition(-gap - 1)),
            is_exclusive=True,
        )

    def totals(self, found: _Sum, others: _Others) -> Iterable[Statement]:
        """The sum as what is before a term times the totals of what is between."""
        statement = found.statement
        values = {name: symbol(here) for name, here in found.values.items()}
        before, between = (substitute_access(e, values) for e in self.sides[others.name])
        core = product_of((Factor(Read(between)), *found.core))
        back = {here: symbol(name) for name, here in found.values.items()}
        key = others.name, substitute_expression(core, back), literals(core)
        if key not in self.held:
            near = statement.target.tensor
            places = _places(others.rows)
            cells = self.made.cells(near, "totals", places, stored=not self.is_alone(found))
            cell = next(e for e in others.statement.iterators if e.name == others.cell)
            self.held[key] = cells
            yield Statement(
                cells,
                Reducer.ADD,
                (*others.rows, cell),
                (others.term,),
                substitute_expression(core, back),
                is_exclusive=True,
            )
        totals = substitute_access(self.held[key], values)
        factors = (*found.rest, Factor(Read(before)), Factor(Read(totals)))
        cell_here = found.values[others.cell]
        left = tuple(each for each in statement.iterators if each.name != cell_here)
        yield replace(
            statement,
            iterators=left,
            guards=self.has_cells(statement, cell_here, left),
            body=product_of(factors, negative=found.negative),
        )

    def is_alone(self, found: _Sum) -> bool:
        """Whether nothing else is computed for what the totals are part of, which might have loops
        of its own."""
        op, name = self.made.op, found.statement.target.tensor
        inputs = {each.name for each in op.inputs}
        return (
            any(each.name == name for each in op.outputs)
            and [each.target.tensor for each in op.statements].count(name) == 1
            and all(_tensors(each) <= inputs for each in found.rest)
        )

    def has_cells(
        self, statement: Statement, cell: str, left: tuple[Iterator, ...]
    ) -> tuple[Condition, ...]:
        """What is so where any cell has a term: a sum of none is 0, whatever is multiplied."""
        (guard,) = statement.guards
        extent = extents_of(statement.iterators)[cell]
        best = extent - 1 if guard.value.step_in(cell) == 1 else ZERO
        some = guard.substitute({cell: best})
        return () if is_nonnegative(some.value, with_iterators(self.facts, left)) else (some,)


def _places(iterators: Iterable[Iterator] | tuple[Iterator, ...]) -> list[tuple[Poly, Poly]]:
    """The extents and indices of a tensor with a cell for each point of iterators."""
    return [(each.extent, symbol(each.name)) for each in iterators]
