"""Both iterators of a composed dim as one, where something belongs to the outer one alone.

The channels of a group have a mean and a variance in common:

    mu[n,g]        = sum(c,h,w) x[n,(g c),h,w]
    y[n,(g c),h,w] = (x[n,(g c),h,w] - mu[n,g]) / sqrt(variance[n,g] + eps)

Of an image in channels-last format neighbours in memory are channels, and those of a group are too
few for vectors. As statements

    part[n,k]      = sum(h,w) x[n,k,h,w]            mu[n,g] = sum(c) part[n,(g c)]
    each[n,(g c)]  = mu[n,g]
    other[n,(g c)] = sqrt(variance[n,g] + eps)
    y[n,k,h,w]     = (x[n,k,h,w] - each[n,k]) / other[n,k]

all channels of a pixel are one row. The temporaries have a cell for each channel of an image, and
those for a group are computed once, not for each pixel. Rows along an image lose nothing.

What holds of both iterators alone, such as a filter of a group's channel, keeps a statement as it
is, and so does a reduction other than a sum.

Before: an op. After: an op with the same cells, up to the order of a sum. This is for the CPU, see
`opgen.programs`: blocks of threads of a GPU share a group's sum as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator as Iterable
from dataclasses import dataclass, field, replace

from opgen.algebra.poly import Poly, symbol
from opgen.ir.indices import digits, extents_of
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Boundary,
    Constant,
    Expr,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    map_expression,
    reads,
    substitute_access,
    substitute_expression,
)
from opgen.ir.walk import (
    access_polynomials,
    expression_polynomials,
    literals,
    loads,
    polynomials,
    symbols_of,
)
from opgen.passes.new_temporaries import NewTemporaries


def with_whole_dims(op: Op) -> Op:
    """The op with temporaries for what the cells of a composed dim have of their own."""
    made = _Made(NewTemporaries.of(op))
    return made.temporaries.op_with(part for each in op.statements for part in made.of(each))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The iterators of a composed dim of a statement."""

    statement: Statement
    outer: Iterator
    inner: Iterator
    temporaries: NewTemporaries
    long: frozenset[str]
    """The iterators that a shape has the extent of, which is no attribute."""

    @property
    def index(self) -> Poly:
        """The index that has both."""
        return self.first + symbol(self.inner.name)

    @property
    def first(self) -> Poly:
        """The same for the first of the inner ones."""
        return symbol(self.outer.name) * self.inner.extent

    def is_split_in(self, value: Poly) -> bool:
        """Whether an index or a number has one of them, other than as a digit beside the other."""
        names = {self.outer.name, self.inner.name}
        return value != self.index and not value.symbols.isdisjoint(names)

    def is_of_outer(self, expr: Expr) -> bool:
        """Whether an expression is a value for each of the outer iterator, none of it outside."""
        used = symbols_of(expression_polynomials(expr))
        return (
            self.outer.name in used
            and self.inner.name not in used
            and self.temporaries.is_always_there(expr, self.statement)
            and self.are_few(used)
        )

    def are_few(self, names: Collection[str]) -> bool:
        """Whether cells for these iterators and the inner one are fewer than those of a tensor that
        is read: it has rows of any length, or images, for each of them."""
        cells = {self.inner.name, *(each.name for each in self.iterators(names))}
        read = (symbols_of(access_polynomials(each)) for each in reads(self.statement.body))
        return any(
            cells.issubset(each) and not self.long.isdisjoint({*each} - cells) for each in read
        )

    def iterators(self, names: Collection[str]) -> tuple[Iterator, ...]:
        """Those of the statement that have one of these names, in the order of the names."""
        by_name = {each.name: each for each in self.statement.iterators}
        return tuple(by_name[name] for name in dict.fromkeys(names) if name in by_name)


@dataclass
class _Made:
    """The temporaries that were made so far.

    `held` are those that hold the value of an expression: by the expression, its literals, and what
    their cells are numbered by. They hold it to the end, as nothing is written once it was read.
    """

    temporaries: NewTemporaries
    held: dict[tuple[Expr, tuple[str, ...], tuple[Iterator, ...]], Access] = field(
        default_factory=dict
    )

    def of(self, statement: Statement) -> tuple[Statement, ...]:
        """The statement as several, if it has a pair of iterators that one can stand for."""
        pair = next(filter(self.is_worth_it, _pairs(self.temporaries, statement)), None)
        return (statement,) if pair is None else tuple(self.as_whole(pair))

    def is_worth_it(self, pair: _Pair) -> bool:
        """Whether the outer iterator has something of its own, and all else belongs to both."""
        statement = pair.statement
        left = map_expression(
            statement.body, lambda each: Constant(0) if pair.is_of_outer(each) else None
        )
        others = (guard.value for guard in statement.guards)
        values = (*expression_polynomials(left), *others)
        target = symbols_of(access_polynomials(statement.target))
        is_sum = pair.inner.name not in target
        is_of_outer = is_sum and pair.outer.name in target
        is_split = any(map(pair.is_split_in, access_polynomials(statement.target)))
        return (
            (left != statement.body or is_of_outer or self.is_plain_sum(pair))
            and (not is_sum or statement.reducer is Reducer.ADD)
            and (not is_of_outer or pair.are_few(target))
            and (is_of_outer or not is_split)
            and not any(map(pair.is_split_in, values))
            and statement.position is None
            and not any(any(loads(value)) for value in polynomials(statement))
            and all(map(self.temporaries.is_generic, (statement.target, *reads(statement.body))))
        )

    def is_plain_sum(self, pair: _Pair) -> bool:
        """Whether it is a sum of rows or images for each cell of the composed dim."""
        target = symbols_of(access_polynomials(pair.statement.target))
        is_of_both = pair.inner.name in target and pair.outer.name in target
        return is_of_both and pair.statement.reducer is Reducer.ADD and pair.are_few(target)

    def as_whole(self, pair: _Pair) -> Iterable[Statement]:
        """The statement with one iterator for both, behind the values of the outer one for each."""
        statement = pair.statement
        name = fresh_name(f"{pair.outer.name}_{pair.inner.name}", {*self.temporaries.taken})
        both = Iterator(name, pair.outer.extent * pair.inner.extent)
        by_both = {pair.inner.name: symbol(name) - pair.first}
        values: list[Statement] = []

        def held(expr: Expr) -> Expr | None:
            return Read(self.value(pair, expr, values)) if pair.is_of_outer(expr) else None

        target = statement.target
        indices = symbols_of(access_polynomials(target))
        ends = pair.outer.name in indices and pair.inner.name not in indices
        if ends:
            target = self.temporary(target.tensor, "parts", pair, indices)
        named = (both if each == pair.outer else each for each in statement.iterators)
        whole = replace(
            statement,
            target=substitute_access(target, by_both),
            iterators=tuple(each for each in named if each != pair.inner),
            body=substitute_expression(map_expression(statement.body, held), by_both),
        )
        yield from values
        yield whole
        if ends:
            iterators = (*pair.iterators(indices), pair.inner)
            yield replace(statement, iterators=iterators, guards=(), body=Read(target))

    def value(self, pair: _Pair, expr: Expr, statements: list[Statement]) -> Access:
        """Cells that hold a value of the outer iterator once for each of both, by these two."""
        used = symbols_of(expression_polynomials(expr))
        iterators = pair.iterators((*used, pair.inner.name))
        key = expr, literals(expr), iterators
        if key not in self.held:
            held = self.temporary(pair.statement.target.tensor, "each", pair, used)
            self.held[key] = held
            statement = Statement(held, Reducer.ASSIGN, iterators, (), expr, is_exclusive=True)
            statements.append(statement)
        return self.held[key]

    def temporary(self, near: str, what: str, pair: _Pair, names: Collection[str]) -> Access:
        """The cells of a new temporary, one for each of some iterators, and of a pair."""
        cells = (
            (pair.outer.extent * pair.inner.extent, pair.index)
            if each == pair.outer
            else (each.extent, symbol(each.name))
            for each in pair.iterators(names)
        )
        return self.temporaries.cells(near, what, cells)


def _pairs(temporaries: NewTemporaries, statement: Statement) -> Iterable[_Pair]:
    """The pairs of iterators that are an index together."""
    extents = extents_of(statement.iterators)
    by_name = {each.name: each for each in statement.iterators}
    accesses = (statement.target, *reads(statement.body))
    indices = (index for access in accesses for index in access.indices)
    long = frozenset(
        each.name for each in statement.iterators if each.extent.symbol in temporaries.op.sizes
    )
    seen = set()
    for index in indices:
        found = digits(index.value, extents)
        if found is None or len(found) != 2 or index.boundary is not Boundary.NONE:
            continue
        if found not in seen:
            seen.add(found)
            outer, inner = found
            yield _Pair(statement, by_name[outer], by_name[inner], temporaries, long)
