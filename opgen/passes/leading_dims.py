"""The same op with so many leading dims in place of `...`.

Before: `x[...,H,W]`, whose leading dims kernels see as one. Those of an image in channels-last
format are none, so that such images are copied. After: `x[B1,B2,H,W]`, in which every dim has a
stride of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import symbol
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Dim,
    Expr,
    Index,
    Iterator,
    Op,
    Read,
    Statement,
    Tensor,
    map_expression,
)
from opgen.ir.walk import all_reads, polynomials
from opgen.passes.new_temporaries import all_names


def with_leading_dims(op: Op, count: int) -> Op | None:
    """The op with `count` dims and iterators for each `...`; None if it uses them as a number.

    Its name and those of tensors, sizes and attributes stay as they are: messages have them.
    """
    taken = all_names(op)
    numbers = range(1, count + 1)
    sizes = [fresh_name(f"B{number}", taken) for number in numbers]
    split = _Split(op, sizes, [fresh_name(f"b{number}", taken) for number in numbers])
    statements = [split.statement(each) for each in op.statements]
    if any(each is None for each in statements) or not _is_apart(op):
        return None
    return replace(
        op,
        inputs=tuple(map(split.tensor, op.inputs)),
        outputs=tuple(map(split.tensor, op.outputs)),
        temporaries=tuple(map(split.tensor, op.temporaries)),
        sizes=(*sizes, *(name for name in op.sizes if name != BATCH)),
        statements=tuple(each for each in statements if each is not None),
        gradients=(),
    )


def _is_apart(op: Op) -> bool:
    """Whether nothing but the first dims of tensors says how many there are."""
    values = [let.value for let in op.lets]
    values += [each.condition.value for each in op.constraints]
    for tensor in (*op.inputs, *op.outputs, *op.temporaries):
        values += [dim.extent for dim in tensor.dims[1 if tensor.batched else 0 :]]
    return not any(BATCH in value.symbols for value in values)


@dataclass(frozen=True, slots=True)
class _Split:
    """Puts sizes and iterators in the places of the one for all leading dims."""

    op: Op
    sizes: Sequence[str]
    iterators: Sequence[str]

    def tensor(self, tensor: Tensor) -> Tensor:
        if not tensor.batched:
            return tensor
        return replace(tensor, dims=(*(Dim(symbol(n)) for n in self.sizes), *tensor.dims[1:]))

    def statement(self, statement: Statement) -> Statement | None:
        """None if the iterator over the batch is more than an index of its own dim."""
        iterators: list[Iterator] = []
        for each in statement.iterators:
            if each.name == BATCH_ITERATOR and each.extent == symbol(BATCH):
                names = zip(self.iterators, self.sizes, strict=True)
                iterators += [Iterator(name, symbol(size)) for name, size in names]
            elif BATCH in each.extent.symbols:
                return None
            else:
                iterators.append(each)
        changed = replace(
            statement,
            target=self.access(statement.target),
            iterators=tuple(iterators),
            body=map_expression(statement.body, self.read),
        )
        used = frozenset[str]().union(*(value.symbols for value in polynomials(changed)))
        accesses = (changed.target, *all_reads(changed))
        is_whole = all(len(each.indices) == self.rank(each.tensor) for each in accesses)
        return changed if is_whole and used.isdisjoint((BATCH, BATCH_ITERATOR)) else None

    def rank(self, name: str) -> int:
        """How many dims a tensor has then."""
        tensor = self.op.tensor(name)
        if isinstance(tensor, Tensor):
            return len(self.tensor(tensor).dims)
        return len(tensor.shape)

    def read(self, expr: Expr) -> Expr | None:
        return Read(self.access(expr.access)) if isinstance(expr, Read) else None

    def access(self, access: Access) -> Access:
        """The access with an index for each dim, where its first one is the batch's iterator."""
        tensor = self.op.tensor(access.tensor)
        if not (isinstance(tensor, Tensor) and tensor.batched):
            return access
        first, *others = access.indices
        if first != Index(symbol(BATCH_ITERATOR)):
            return access
        indices = (Index(symbol(name)) for name in self.iterators)
        return replace(access, indices=(*indices, *others))
