"""Columns of thin tensors, each in a row of its own.

Points, boxes and the like lie one behind the other, with three or four numbers each. What goes from
one to the next, as every pair of them does,

    y[n,m] = sum(k in 3) (a[n,k] - b[m,k])**2

finds a number in every third place of memory, which is not what vectors load. As statements

    b_columns[k,m] = b[m,k]
    y[n,m] = sum(k in 3) (a[n,k] - b_columns[k,m])**2

it takes a tenth of the time: the copy is small beside the pairs. Where sums are added to the
numbers, as gradients of pairs are,

    grad_b[m,k] = sum(n) -2*(a[n,k] - b[m,k])*grad_y[n,m]
    grad_a[n,2] += sum(m) b[m,3]*grad_y[n,m]

they have places of their own first, a row for each column:

    grad_b_columns[k,m] = sum(n) -2*(a[n,k] - b_columns[k,m])*grad_y[n,m]
    grad_b[m,k] = grad_b_columns[k,m]
    grad_a_column[n] = sum(m) b_columns[3,m]*grad_y[n,m]
    grad_a[n,2] += grad_a_column[n]

So it is with integers that say where a few numbers of each point are, as the corners around a place
in an image, `y[c,p] = sum(q in 4) a[p,q]*x[c, i[p,q] ?0, j[p,q] ?0]`: read for each channel anew,
from `i_columns[q,p]`, they take a tenth of the time.

How many numbers there are may be known of a call alone: `x[N,K]` with K = 3 has kernels of its own,
as a window has.

Before: an op. After: an op with the same numbers. This is for the CPU; threads of a GPU that load
neighbouring points find all of them in the same few lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.poly import Atom, Kind, Poly, load, of_atom, poly, rebuild, symbol
from opgen.ir.indices import extents_of, is_plainly_inside
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Boundary,
    DType,
    Expr,
    Index,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    map_expression,
    reads,
)
from opgen.passes.cells import in_order_of, moving, names_of, two_factors
from opgen.passes.new_temporaries import NewTemporaries
from opgen.passes.specialise import specialise

_THIN: Final = 8
"""How many numbers a point has at most: as many rows are loaded side by side."""

_ROUNDED: Final = (DType.F16, DType.BF16)
"""Types that would round what is added up in places of its own."""


def with_thin_columns(op: Op, tensors: Collection[str] | None = None) -> Op:
    """The op with temporaries for columns that statements with more iterators go along; only of
    these tensors, if any are given."""
    columns = _Columns(NewTemporaries.of(op), tensors)
    statements: list[Statement] = []
    for at, statement in enumerate(op.statements):
        before, changed = columns.of(statement)
        statements += (*before, changed)
        name = statement.target.tensor
        if all(each.target.tensor != name for each in op.statements[at + 1 :]):
            statements += columns.added.pop(name, ())
    return columns.made.op_with(statements)


def thin_tensors(op: Op, sizes: Collection[str]) -> frozenset[str]:
    """Those with a last dim that is known, or one of these sizes."""
    tensors = (*op.inputs, *op.outputs, *op.temporaries)
    lasts = {each.name: each.dims[-1].extent for each in tensors if each.dims}
    return frozenset(
        name for name, last in lasts.items() if last.is_constant or last.symbol in sizes
    )


def thin_sizes(op: Op) -> tuple[str, ...]:
    """The sizes for which columns would be rows, if they were known and small: of what is summed
    for each pair of points."""
    found = []
    for size in dict.fromkeys(name for each in op.statements for name in _summed(each)):
        if size not in op.sizes:
            continue
        known = specialise(op, {size: _THIN})
        if with_thin_columns(known, thin_tensors(op, (size,))) is not known:
            found.append(size)
    return tuple(found)


def _summed(statement: Statement) -> Iterable[str]:
    """The extents of what is joined, and the last index of what is read."""
    joined = {each.name: each.extent.symbol or "" for each in statement.iterators}
    for name in moving(statement.target, joined.keys()):
        del joined[name]
    lasts = (each.indices[-1].value.symbol for each in reads(statement.body) if each.indices)
    return (joined[name] for name in lasts if name in joined)


@dataclass
class _Columns:
    """The tensors that may be thin, the copies of them, the places of their own that sums have by
    tensor and last index, and the statements that add these to what they are sums of."""

    made: NewTemporaries
    tensors: Collection[str] | None
    copies: dict[str, Access] = field(default_factory=dict)
    places: dict[tuple[str, Poly], Access] = field(default_factory=dict)
    added: dict[str, list[Statement]] = field(default_factory=dict)

    def of(self, statement: Statement) -> tuple[list[Statement], Statement]:
        """The copies that a statement is the first to need, and the statement with them."""
        before: list[Statement] = []
        factors = two_factors(statement, self.made)
        if factors is not None and not any(map(_is_looked_up, factors)):
            return before, statement  # a product of matrices has kernels of its own
        if _is_looked_up(statement.target):
            return before, statement  # points are gone through as they lie in memory
        along = self._along(statement)
        cells = along & {index.value.symbol or "" for index in statement.target.indices[-2:]}

        def read(expr: Expr) -> Expr | None:
            match expr:
                case Read(access=access) if self._is_gone_along(access, along, statement):
                    if access.tensor not in self.copies:
                        before.append(self._copy(access.tensor))
                    copy = self.copies[access.tensor]
                    return Read(replace(copy, indices=_turned(access.indices)))
                case Read(access=access) if _is_looked_up(access):
                    indices = (replace(e, value=looked_up(e.value)) for e in access.indices)
                    return Read(replace(access, indices=tuple(indices)))
                case _:
                    return None

        def looked_up(value: Poly) -> Poly:
            return value.map_atoms(column) if value.is_data_dependent else value

        def column(atom: Atom) -> Poly:
            args = tuple(map(looked_up, atom.args))
            access = Access(atom.name, tuple(map(Index, args)))
            if atom.kind is not Kind.LOAD or not self._is_gone_along(access, cells, statement):
                return rebuild(atom, args) if args != atom.args else of_atom(atom)
            if access.tensor not in self.copies:
                before.append(self._copy(access.tensor))
            *outer, row, last = args
            return load(self.copies[access.tensor].tensor, (*outer, last, row))

        body, target = map_expression(statement.body, read), self._target(statement, along)
        if target is not statement.target:
            iterators = in_order_of(target, statement.iterators)
            statement = replace(statement, target=target, iterators=iterators)
        return before, replace(statement, body=body)

    def _along(self, statement: Statement) -> frozenset[str]:
        """The iterators that neighbours in memory are numbered by, or ought to be: those of tensors
        that are not thin; and where all that is read is, those of sums in places of their own, or
        what is joined."""
        long = {each.name for each in statement.iterators if not each.extent.is_constant}
        others = [each for each in reads(statement.body) if not self._is_thin(each.tensor)]
        lasts = {each.indices[-1].value.symbol for each in others if each.indices}
        found = frozenset(name for name in lasts if name in long)
        if not found and self._has_own_places(statement):
            found = frozenset({statement.target.indices[-2].value.symbol or ""} & long)
        if not found:
            found = frozenset(long - moving(statement.target, long))
        if not self._is_thin(statement.target.tensor) and statement.target.indices:
            found |= {statement.target.indices[-1].value.symbol or ""} & long
        return found

    def _is_thin(self, name: str) -> bool:
        """Whether the last dim of a tensor is a known and small one, of several."""
        if self.tensors is not None and name not in self.tensors:
            return False
        extents = self.made.extents(name)
        last = extents[-1] if len(extents) > 1 else poly(0)
        return last.is_constant and 2 <= last.constant <= _THIN

    def _is_gone_along(self, access: Access, along: frozenset[str], statement: Statement) -> bool:
        """Whether a column of a thin tensor is read in order, and again and again."""
        tensor = self.made.tensor(access.tensor)
        if not isinstance(tensor, Tensor) or tensor.default is not None:
            return False
        if not self._is_thin(tensor.name) or not self._is_column(access, statement):
            return False
        extents = extents_of(statement.iterators)
        *outer, _ = zip(access.indices, self.made.extents(tensor.name), strict=True)
        if not all(_is_gone_through(index, extent, extents) for index, extent in outer):
            return False
        is_again = bool(_many(statement) - moving(access, extents.keys()))
        return access.indices[-2].value.symbol in along and is_again

    def _is_column(self, access: Access, statement: Statement) -> bool:
        """Whether the last index is fixed, or goes through the few columns."""
        *_, extent = self.made.extents(access.tensor)
        *_, row, last = access.indices
        is_plain = row.boundary is last.boundary is Boundary.NONE
        return is_plain and is_plainly_inside(last.value, extent, extents_of(statement.iterators))

    def _copy(self, name: str) -> Statement:
        """The statement that copies the columns of a tensor."""
        cell, iterators = self._cell(name)
        *outer, row, last = zip(self.made.extents(name), cell, strict=True)
        places = ((extent, index.value) for extent, index in (*outer, last, row))
        copy = self.made.cells(name, "columns", places, stored=True)
        self.copies[name] = copy
        body, iterators = Read(Access(name, cell)), in_order_of(copy, iterators)
        return Statement(copy, Reducer.ASSIGN, iterators, (), body, is_exclusive=True)

    def _cell(self, name: str) -> tuple[tuple[Index, ...], tuple[Iterator, ...]]:
        """Any cell of a tensor, and the iterators that number them."""
        iterators = []
        for at, extent in enumerate(self.made.extents(name)):
            is_batch = at == 0 and extent.symbol == BATCH
            own = BATCH_ITERATOR if is_batch else fresh_name(f"i{at}", self.made.taken)
            iterators.append(Iterator(own, extent))
        return tuple(Index(symbol(each.name)) for each in iterators), tuple(iterators)

    def _target(self, statement: Statement, along: frozenset[str]) -> Access:
        """Where a statement adds to: places of its own for a column."""
        target = statement.target
        if not self._has_own_places(statement):
            return target
        *_, row, last = target.indices
        if last.value.is_constant:
            return self._column(target)
        if row.value.symbol not in along:
            return target
        key = target.tensor, poly(-1)
        if key not in self.places:
            cell, iterators = self._cell(target.tensor)
            *wider, rows, columns = zip(self.made.extents(target.tensor), cell, strict=True)
            cells = ((extent, index.value) for extent, index in (*wider, columns, rows))
            found = self.made.cells(target.tensor, "columns", cells, stored=True)
            self._hold(key, found, cell, iterators)
        return replace(self.places[key], indices=_turned(target.indices))

    def _has_own_places(self, statement: Statement) -> bool:
        """Whether a statement adds many terms to each of some columns."""
        target = self.made.tensor(statement.target.tensor)
        assert isinstance(target, Tensor)
        moves = moving(statement.target, names_of(statement))
        is_sum = bool(_many(statement) - moves)
        return (
            statement.reducer is Reducer.ADD
            and is_sum
            and target.dtype not in _ROUNDED
            and self._is_thin(target.name)
            and self._is_column(statement.target, statement)
        )

    def _column(self, target: Access) -> Access:
        """The places of a fixed column."""
        *outer, last = target.indices
        key = target.tensor, last.value
        if key not in self.places:
            cell, iterators = self._cell(target.tensor)
            cells = zip(self.made.extents(target.tensor)[:-1], cell[:-1], strict=True)
            places = ((extent, index.value) for extent, index in cells)
            found = self.made.cells(target.tensor, "column", places, stored=True)
            self._hold(key, found, (*cell[:-1], last), iterators[:-1])
        return replace(self.places[key], indices=tuple(outer))

    def _hold(
        self,
        key: tuple[str, Poly],
        places: Access,
        cell: tuple[Index, ...],
        iterators: Iterable[Iterator],
    ) -> None:
        """Keep places of their own, and the statement that adds them to cells of a tensor."""
        name, _ = key
        self.places[key] = places
        added = Statement(Access(name, cell), Reducer.ADD, tuple(iterators), (), Read(places))
        self.added.setdefault(name, []).append(added)


def _many(statement: Statement) -> frozenset[str]:
    """The iterators that have more values than a point has numbers, as far as is known."""
    extents = extents_of(statement.iterators)
    return frozenset(n for n, e in extents.items() if not e.is_constant or e.constant > _THIN)


def _is_looked_up(access: Access) -> bool:
    """Whether a tensor holds an index."""
    return any(index.value.is_data_dependent for index in access.indices)


def _is_gone_through(index: Index, extent: Poly, extents: Mapping[str, Poly]) -> bool:
    """Whether all of a dim is read."""
    if index.value.is_constant and extent != 1:
        return False
    return is_plainly_inside(index.value, extent, extents)


def _turned(indices: tuple[Index, ...]) -> tuple[Index, ...]:
    """Indices with the last two the other way round."""
    *outer, row, last = indices
    return (*outer, last, row)
