"""How a cell that is reduced depends on each of the bodies that join it.

sum, =       by the factor 1
max, min     by 1 at the first point in iteration order that holds the extreme, else by 0.
             An integer temporary finds that point again: the argmax of the same bodies. It
             skips absent bodies and prefers NaN as max does, and is -1 where there is none.
prod         by the product of all other bodies, a temporary with one cell for every point. It
             multiplies over a second copy of the reduced iterators: exact where bodies are zero,
             and of the language again, hence differentiable. It is quadratic work, but for what
             `passes.all_but_one` and `passes.products_between` make of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.build import of_polynomial
from opgen.ir.indices import covers_plainly, extents_of, fixed_iterators, fold, position
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Apply,
    Boundary,
    Constant,
    Dim,
    DType,
    Expr,
    Index,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    substitute_expression,
)
from opgen.passes.new_temporaries import all_names

_READ_AS: Final = {Boundary.DROP: Boundary.ZERO}
_WRITTEN_AS: Final = {Boundary.ZERO: Boundary.DROP, Boundary.FILL: Boundary.DROP}


def read_of(target: Access, tensor: str) -> Access:
    """The same cells of another tensor, read where `target` writes."""
    return _moved(target, tensor, _READ_AS)


def write_of(read: Access, tensor: str) -> Access:
    """The same cells of another tensor, written where `read` reads: the transposed mode."""
    return _moved(read, tensor, _WRITTEN_AS)


def _moved(access: Access, tensor: str, modes: dict[Boundary, Boundary]) -> Access:
    indices = tuple(
        replace(index, boundary=modes.get(index.boundary, index.boundary), fill=None)
        for index in access.indices
    )
    return Access(tensor, indices, access.span)


class Names:
    """Names that are not taken yet; `_` is appended while one is."""

    def __init__(self, op: Op) -> None:
        self._taken = all_names(op) | {attribute.name for attribute in op.attributes}

    def fresh(self, name: str) -> str:
        """The name, or the first free one like it."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Weight:
    """What the derivative of a cell with respect to a body is multiplied by, and where it counts.

    `statements` compute the `temporaries` that it reads.
    """

    factors: tuple[Expr, ...] = ()
    conditions: tuple[Expr, ...] = ()
    statements: tuple[Statement, ...] = ()
    temporaries: tuple[Tensor, ...] = ()


@dataclass
class Weights:
    """The weights of the statements of one op; a temporary that several share is made once."""

    op: Op
    names: Names
    _winners: dict[str, str] = field(default_factory=dict)

    def of(self, statement: Statement) -> Weight:
        """The weight of a statement that writes numbers."""
        match statement.reducer:
            case Reducer.ASSIGN | Reducer.ADD:
                return Weight()
            case Reducer.MAX | Reducer.MIN:
                return self._of_extreme(statement)
            case Reducer.MULTIPLY:
                return self._of_product(statement)
            case Reducer.ARGMAX | Reducer.ARGMIN:
                raise AssertionError("a position has no derivative")

    # ------------------------------------------------------------ max and min
    def _of_extreme(self, statement: Statement) -> Weight:
        writers = [s for s in self.op.statements if s.target.tensor == statement.target.tensor]
        weights = []
        if len(writers) > 1:
            weights.append(self._winning_statement(statement, writers))
        weights.append(self._first_point(statement))
        return Weight(
            conditions=tuple(c for weight in weights for c in weight.conditions),
            statements=tuple(s for weight in weights for s in weight.statements),
            temporaries=tuple(t for weight in weights for t in weight.temporaries),
        )

    def _first_point(self, statement: Statement) -> Weight:
        """Which point of this statement holds the extreme of its bodies."""
        target = statement.target
        extents = extents_of(statement.iterators)
        fixed = fixed_iterators(target, extents)
        free = [i.name for i in statement.iterators if i.name not in fixed]
        if not free:
            return Weight()
        where = position(free, extents)
        tensor = Tensor(
            self.names.fresh(f"first_{target.tensor}"), self._dims(target.tensor), DType.I64
        )
        finder = replace(
            self._by_cell(statement, tensor.name),
            reducer=ARGUMENT_OF[statement.reducer],
            position=where,
        )
        found = Apply("eq", (Read(read_of(target, tensor.name)), of_polynomial(where)))
        return Weight((), (found,), (finder,), (tensor,))

    def _by_cell(self, statement: Statement, tensor: str) -> Statement:
        """The statement into another tensor, over all its cells.

        Argmax has no accumulating form: `y[i + k] max= ...` becomes `[u] ... if i + k == u`. So it
        does where a mode brings what is outside to a cell: that cell is the one compared.
        """
        extents = extents_of(statement.iterators)
        dims = self.op.extents(statement.target.tensor)
        if covers_plainly(statement.target, dims, extents):
            return replace(statement, target=replace(statement.target, tensor=tensor))
        cells = self.cells(self._dims(statement.target.tensor))
        target = Access(tensor, tuple(Index(symbol(cell.name)) for cell in cells))
        same_cell = [
            Condition(fold(index, extent) - symbol(cell.name), Relation.EQ)
            for index, extent, cell in zip(statement.target.indices, dims, cells, strict=True)
            if cell.name != BATCH_ITERATOR
        ]
        # A target without leading dims is joined by all of them.
        rest = (i for i in statement.iterators if i not in cells)
        return replace(
            statement,
            target=target,
            iterators=(*cells, *rest),
            guards=(*same_cell, *statement.guards),
        )

    def _winning_statement(self, statement: Statement, writers: list[Statement]) -> Weight:
        """Which of several statements holds the extreme: the first among equals, as in a call."""
        name = statement.target.tensor
        number = poly(writers.index(statement))
        if name in self._winners:
            return Weight(conditions=(self._wins(statement, number),))
        dims = self._dims(name)
        best = Tensor(
            self.names.fresh(f"each_{name}"),
            (*dims, Dim(poly(len(writers)))),
            self._tensor(name).dtype,
        )
        winner = Tensor(self.names.fresh(f"winner_{name}"), dims, DType.I64)
        self._winners[name] = winner.name
        statements = [
            replace(
                writer,
                target=Access(
                    best.name, (*writer.target.indices, Index(poly(n))), writer.target.span
                ),
            )
            for n, writer in enumerate(writers)
        ]
        cells = self.cells(dims)
        which = Iterator(self.names.fresh("n"), poly(len(writers)))
        cell = tuple(Index(symbol(iterator.name)) for iterator in cells)
        finder = Statement(
            Access(winner.name, cell),
            ARGUMENT_OF[statement.reducer],
            (*cells, which),
            (),
            Read(Access(best.name, (*cell, Index(symbol(which.name))))),
            symbol(which.name),
            statement.span,
        )
        condition = self._wins(statement, number)
        return Weight((), (condition,), (*statements, finder), (best, winner))

    def _wins(self, statement: Statement, number: Poly) -> Expr:
        winner = read_of(statement.target, self._winners[statement.target.tensor])
        return Apply("eq", (Read(winner), Constant(number.constant)))

    # ------------------------------------------------------------ prod
    def _of_product(self, statement: Statement) -> Weight:
        extents = extents_of(statement.iterators)
        shared = {*fixed_iterators(statement.target, extents), BATCH_ITERATOR}
        free = [i for i in statement.iterators if i.name not in shared]
        if not free:
            return Weight()
        copies = {i.name: Iterator(self.names.fresh(i.name), i.extent) for i in free}
        other = {name: symbol(copy.name) for name, copy in copies.items()}
        guards = [guard.substitute(other) for guard in statement.guards]
        for index in statement.target.indices:
            if not index.value.symbols.isdisjoint(other):
                same_cell = index.value.substitute(other) - index.value
                guards.append(Condition(same_cell, Relation.EQ))
        here = position(copies, extents)
        guards.append(Condition(here.substitute(other) - here, Relation.NE))
        points = sorted(statement.iterators, key=lambda i: i.name != BATCH_ITERATOR)
        tensor = Tensor(
            self.names.fresh(f"others_{statement.target.tensor}"),
            tuple(Dim(iterator.extent) for iterator in points),
            self._tensor(statement.target.tensor).dtype,
        )
        point = Access(tensor.name, tuple(Index(symbol(iterator.name)) for iterator in points))
        product = replace(
            statement,
            target=point,
            iterators=(*points, *copies.values()),
            guards=tuple(guards),
            body=substitute_expression(statement.body, other),
        )
        return Weight((Read(point),), (), (product,), (tensor,))

    # ------------------------------------------------------------ helpers
    def _tensor(self, name: str) -> Tensor:
        tensor = self.op.tensor(name)
        assert isinstance(tensor, Tensor)
        return tensor

    def _dims(self, name: str) -> tuple[Dim, ...]:
        return self._tensor(name).dims

    def cells(self, dims: Iterable[Dim]) -> tuple[Iterator, ...]:
        """New iterators over all cells of a tensor."""
        return tuple(
            Iterator(BATCH_ITERATOR, dim.extent)
            if dim.extent.symbol == BATCH
            else Iterator(self.names.fresh("u"), dim.extent)
            for dim in dims
        )


ARGUMENT_OF: Final = {Reducer.MAX: Reducer.ARGMAX, Reducer.MIN: Reducer.ARGMIN}
