"""Temporaries that only rename cells of another tensor are read there instead.

Before: any op. After: an op of the same meaning in which no temporary is a plain copy
`t[i,j] = x[j, i + 1]`, as far as its readers can read x. Reverse sweeps make many of them: the
gradient of t in `y[i] = b[i] + t[i]` is a copy of that of y.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly
from opgen.ir.indices import extents_of
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Expr,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    map_expression,
    reads,
)
from opgen.ir.walk import loads, polynomials
from opgen.passes.cells import is_multiplied_again


def forward_copies(op: Op) -> Op:
    """The op without temporaries that are plain copies, but for those that are to be stored, and
    for those that are looked up to be multiplied, see `passes.gathered_factors`."""
    for tensor in op.temporaries:
        copy = None if tensor.stored else _copy(op, tensor.name)
        if copy is not None and all(copy.serves(statement) for statement in op.statements):
            if copy.is_looked_up and any(map(copy.is_factor, op.statements)):
                continue
            op = replace(
                op,
                statements=tuple(
                    copy.forwarded(statement)
                    for statement in op.statements
                    if statement.target.tensor != tensor.name
                ),
                temporaries=tuple(t for t in op.temporaries if t is not tensor),
            )
    return op


@dataclass(frozen=True, slots=True)
class _Copy:
    """`tensor[names] = source`. `moved` is the axis of the source that is an axis of the copy."""

    tensor: str
    names: tuple[str, ...]
    source: Access
    moved: tuple[int | None, ...]

    def serves(self, statement: Statement) -> bool:
        """Whether every read of the copy in a statement can be one of its source."""
        if any(load.tensor == self.tensor for v in polynomials(statement) for load in loads(v)):
            return False
        own = (access for access in reads(statement.body) if access.tensor == self.tensor)
        return all(
            index.boundary is Boundary.NONE or axis is not None
            for access in own
            for index, axis in zip(access.indices, self.moved, strict=True)
        )

    @property
    def is_looked_up(self) -> bool:
        """Whether a tensor says which cells of the source it is."""
        return any(index.value.is_data_dependent for index in self.source.indices)

    def is_factor(self, statement: Statement) -> bool:
        """Whether each cell of the copy is a factor of many terms in a product of matrices."""
        match statement.body:
            case Apply(primitive="mul", arguments=(Read(access=left), Read(access=right))):
                pairs = ((left, right), (right, left))
                return any(
                    image.tensor == self.tensor and is_multiplied_again(image, weight, statement)
                    for image, weight in pairs
                )
            case _:
                return False

    def forwarded(self, statement: Statement) -> Statement:
        """The statement with its source in place of the copy."""

        def change(expr: Expr) -> Expr | None:
            match expr:
                case Read(access=access) if access.tensor == self.tensor:
                    return Read(self._source_at(access))
                case _:
                    return None

        return replace(statement, body=map_expression(statement.body, change))

    def _source_at(self, access: Access) -> Access:
        values: dict[str, Poly] = {
            name: index.value for name, index in zip(self.names, access.indices, strict=True)
        }
        indices: list[Index] = [
            replace(index, value=index.value.substitute(values)) for index in self.source.indices
        ]
        for axis, index in zip(self.moved, access.indices, strict=True):
            if axis is not None:
                indices[axis] = index
        return Access(self.source.tensor, tuple(indices), access.span)


def _copy(op: Op, name: str) -> _Copy | None:
    """The copy that a temporary is, if it is one that never holds an absent element."""
    writers = [statement for statement in op.statements if statement.target.tensor == name]
    writer = writers[0]
    if len(writers) != 1 or writer.reducer is not Reducer.ASSIGN or writer.guards:
        return None
    if not isinstance(writer.body, Read):
        return None
    source = writer.body.access
    if any(index.boundary is Boundary.ZERO for index in source.indices):
        return None
    box = extents_of(writer.iterators)
    names = tuple(index.value.symbol or "" for index in writer.target.indices)
    covered = tuple(box.get(other) for other in names) == op.extents(name)
    if not covered or sorted(names) != sorted(box):
        return None
    moved = tuple(_axis(op, source, other, box[other]) for other in names)
    return _Copy(name, names, source, moved)


def _axis(op: Op, source: Access, name: str, extent: Poly) -> int | None:
    """The one axis of the source along which an iterator runs over the whole dim, if it does."""
    found = [axis for axis, index in enumerate(source.indices) if name in index.value.symbols]
    if len(found) != 1:
        return None
    index = source.indices[found[0]]
    whole = index.value.symbol == name and op.extents(source.tensor)[found[0]] == extent
    return found[0] if whole and index.boundary is Boundary.NONE else None
