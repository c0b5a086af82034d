"""Temporaries that passes add to an op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from opgen.algebra.poly import Poly
from opgen.ir.indices import covers_plainly, extents_of, is_plainly_inside
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Boundary,
    Dim,
    Expr,
    Index,
    Op,
    Reducer,
    Statement,
    Table,
    Tensor,
    reads,
)


def all_names(op: Op) -> set[str]:
    """All names of an op: those of tensors and tables, sizes, lets, attributes and iterators."""
    names = {each.name for each in (*op.inputs, *op.outputs, *op.temporaries)}
    names |= {*(table.name for table in op.tables), *op.sizes, *(let.name for let in op.lets)}
    names |= {each for attribute in op.attributes for each in attribute.symbols}
    return names | {each.name for statement in op.statements for each in statement.iterators}


@dataclass
class NewTemporaries:
    """Those that were made so far, and the names that are taken."""

    op: Op
    taken: set[str]
    made: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, op: Op) -> NewTemporaries:
        """None yet."""
        return cls(op, all_names(op))

    def cells(
        self,
        near: str,
        what: str,
        indices: Iterable[tuple[Poly, Poly]],
        *,
        stored: bool = False,
        carried: bool = False,
    ) -> Access:
        """The cells of a new one, named after a tensor and of its type: extents and indices.

        One that is `stored` is no other one seen differently, in gradients either.
        """
        found = tuple(indices)
        tensor = self.tensor(near)
        assert isinstance(tensor, Tensor)
        name = fresh_name(f"{near}_{what}", self.taken)
        dims = tuple(Dim(extent) for extent, _ in found)
        self.made.append(Tensor(name, dims, tensor.dtype, stored=stored, carried=carried))
        return Access(name, tuple(Index(index) for _, index in found))

    def op_with(self, statements: Iterable[Statement]) -> Op:
        """The op with these statements, and with what was made; itself if nothing differs."""
        changed = tuple(statements)
        if changed == self.op.statements:
            return self.op
        temporaries = (*self.op.temporaries, *self.made)
        return replace(self.op, temporaries=temporaries, statements=changed)

    def is_always_there(self, expr: Expr, statement: Statement) -> bool:
        """Whether a value reads cells of tensors, all of them inside at every point of the box.

        What a guard or a condition of the statement keeps inside is not: the value is computed
        without these. Nor is a cell that is written under conditions alone: these need not hold
        where there are no such points.
        """
        extents = extents_of(statement.iterators)
        accesses = tuple(reads(expr))
        if not all(self.is_whole(access.tensor) for access in accesses):
            return False
        return bool(accesses) and all(
            index.boundary is Boundary.NONE and is_plainly_inside(index.value, extent, extents)
            for access in accesses
            for index, extent in zip(access.indices, self.extents(access.tensor), strict=True)
        )

    def is_whole(self, name: str) -> bool:
        """Whether all cells of a tensor have numbers, whatever else there is."""
        return all(
            not each.guards
            and covers_plainly(each.target, self.extents(name), extents_of(each.iterators))
            for each in self.op.statements
            if each.target.tensor == name and each.reducer is Reducer.ASSIGN
        )

    def tensor(self, name: str) -> Tensor | Table:
        """A tensor or table, made here or not."""
        made = next((each for each in self.made if each.name == name), None)
        return self.op.tensor(name) if made is None else made

    def extents(self, name: str) -> tuple[Poly, ...]:
        """The extents of a tensor, made here or not."""
        for each in self.made:
            if each.name == name:
                return tuple(dim.extent for dim in each.dims)
        return self.op.extents(name)

    def is_generic(self, access: Access) -> bool:
        """Whether a tensor is of the type that a call has, as temporaries are."""
        if any(access.tensor == each.name for each in self.made):
            return True
        tensor = self.op.tensor(access.tensor)
        return isinstance(tensor, Tensor) and tensor.dtype.is_generic
