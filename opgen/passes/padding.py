"""An op that reads one of its tensors in a copy with zeros around it.

`x[n,c, i + k - 2 ?0, j + l - 2 ?0]` becomes `x_padded[n,c, i + k, j + l]`, where no index is ever
outside. The copy is a temporary that nothing writes: see `passes.padded`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol, symbol_atom
from opgen.algebra.prove import implies
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.indices import extents_of
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Dim,
    Expr,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    reads,
)
from opgen.ir.notation import Iterator as IndexIterator
from opgen.passes.gather import known_names

MOST_CELLS: Final = 6144
"""The largest copy: it stays in the first-level cache."""

MOST_GROWTH: Final = 8
"""How many times as large as its source a copy may be: with more, most terms are products with 0.

So a 2x2 filter that is spread with a stride is no image to go around.
"""

VECTOR: Final = 4
"""Rows are filled up to a multiple of this: larger ones are whole vectors on few processors."""


@dataclass(frozen=True, slots=True)
class Padding:
    """An op that reads `name`, a tensor with zeros around its last dims, in place of `source`.

    Its first `leading` dims are those of the source; the others begin at `first` there.
    """

    op: Op
    name: str
    source: str
    factor: str
    leading: int
    first: tuple[int, ...]
    inside: tuple[tuple[int, int], ...]
    """The first and last index of the copy, in each of the other dims, that is in the source."""
    spare: int
    """How many cells behind the last one of a row can be computed as well, and thrown away."""


def padding(op: Op) -> Padding | None:
    """The padding of the one tensor that is read beyond its ends."""
    statements = tuple(_gathering(op, each) for each in op.statements)
    found = [
        (statement, access, factor)
        for statement in statements
        for access, factor in _products(statement)
        if any(index.boundary is Boundary.ZERO for index in access.indices)
    ]
    if len(found) != 1:
        return None
    ((statement, access, factor),) = found
    box = extents_of(statement.iterators)
    leading = min(at for at, i in enumerate(access.indices) if i.boundary is Boundary.ZERO)
    indices, sizes = access.indices[leading:], op.extents(access.tensor)[leading:]
    kept = frozenset[str]().union(*(index.value.symbols for index in statement.target.indices))
    moving = kept & frozenset[str]().union(*(index.value.symbols for index in indices))
    ranges = [_index_range(index.value, box) for index in indices]
    ends = [each for each in ranges if each is not None]
    if len(ends) < len(indices) or not _are_plain(op, access, factor, leading, moving):
        return None
    facts = with_iterators(facts_of(op), statement.iterators)
    if not (_is_inside(access, leading, op, facts) and _is_inside(factor, None, op, facts)):
        return None
    spare, step = _spare(indices[-1].value, moving, box)
    extents = [last - start + 1 for start, last in ends]
    extents[-1] += spare * step
    inside = tuple(
        (max(0, -start), min(last, size.constant - 1) - start)
        for (start, last), size in zip(ends, sizes, strict=True)
    )
    most = min(MOST_CELLS, MOST_GROWTH * math.prod(size.constant for size in sizes))
    if math.prod(extents) > most or any(last < start for start, last in inside):
        return None
    taken = {*known_names(op), *(t.name for t in (*op.inputs, *op.outputs, *op.temporaries))}
    name, first = fresh_name(f"{access.tensor}_padded", taken), tuple(each[0] for each in ends)
    dims = (*op.extents(access.tensor)[:leading], *map(poly, extents))
    moved = (Index(index.value - start) for index, start in zip(indices, first, strict=True))
    read = Access(name, (*access.indices[:leading], *moved))
    changed = replace(statement, body=_with_read(statement.body, access, read))
    padded = replace(
        op,
        temporaries=(*op.temporaries, Tensor(name, tuple(map(Dim, dims)))),
        statements=tuple(changed if each is statement else each for each in statements),
    )
    return Padding(padded, name, access.tensor, factor.tensor, leading, first, inside, spare)


def _is_inside(access: Access, end: int | None, op: Op, facts: Facts) -> bool:
    """Whether the indices of the first dims are inside at every point, also where a `?0` is not.

    What is absent for a `?0` need not have its other indices inside: of a copy that is never
    absent all places are read, and every term of the other factor.
    """
    sizes = op.extents(access.tensor)
    for index, size in zip(access.indices[:end], sizes[:end], strict=True):
        match index.boundary:
            case Boundary.NONE:
                ends = index.value, size - 1 - index.value
                if not all(implies(facts, Condition(each)) for each in ends):
                    return False
            case Boundary.ZERO | Boundary.FILL | Boundary.DROP:
                return False
            case Boundary.CLAMP | Boundary.REFLECT | Boundary.SYMMETRIC | Boundary.WRAP:
                pass  # lowered to an index that is inside
            case unexpected:
                assert_never(unexpected)
    return True


def _are_plain(
    op: Op, access: Access, factor: Access, leading: int, moving: frozenset[str]
) -> bool:
    """Whether images are small and apart, and the factor is the same for all cells of one.

    `moving` are the iterators of the cells that choose what is read of an image.
    """
    images = op.extents(access.tensor)[leading:]
    beyond = {index.boundary for index in access.indices[leading:]}
    inside = {index.boundary for index in factor.indices}
    symbols = frozenset[str]().union(*(index.value.symbols for index in factor.indices))
    tensors = [each for each in op.inputs if each.name in (access.tensor, factor.tensor)]
    return (
        leading >= 1
        and len(images) <= 2
        and all(size.is_constant for size in images)
        and beyond <= {Boundary.NONE, Boundary.ZERO}
        and inside <= {Boundary.NONE}
        and moving.isdisjoint(symbols)
        and len(tensors) == 2
        and all(each.dtype.is_generic for each in tensors)
    )


def _spare(value: Poly, kept: frozenset[str], extents: Mapping[str, Poly]) -> tuple[int, int]:
    """How many cells fill up the vectors of a row, and the step of the index between two of them.

    Without them the last cells of a row would be computed one by one.
    """
    names = sorted(kept & value.symbols)
    linear = value.linear_in(symbol_atom(names[0])) if len(names) == 1 else None
    if linear is None or not linear[0].is_constant or linear[0].constant < 1:
        return 0, 0
    return -extents[names[0]].constant % VECTOR, linear[0].constant


def _products(statement: Statement) -> Iterator[tuple[Access, Access]]:
    """The factors of a sum of products, either of them first."""
    match statement.body:
        case Apply(primitive="mul", arguments=(Read(access=left), Read(access=right))) if (
            statement.reducer is Reducer.ADD and not statement.guards
        ):
            yield left, right
            yield right, left
        case _:
            return


def _with_read(body: Expr, old: Access, new: Access) -> Apply:
    assert isinstance(body, Apply)
    return replace(
        body,
        arguments=tuple(
            Read(new) if isinstance(each, Read) and each.access == old else each
            for each in body.arguments
        ),
    )


def _index_range(value: Poly, extents: Mapping[str, Poly]) -> tuple[int, int] | None:
    """The least and the greatest value over the box; None where they are not known."""
    first, last, rest = 0, 0, value
    for name in sorted(value.symbols):
        linear = rest.linear_in(symbol_atom(name))
        extent = extents.get(name)
        if linear is None or extent is None or not extent.is_constant or extent.constant < 1:
            return None
        factor, rest = linear
        if not factor.is_constant:
            return None
        end = factor.constant * (extent.constant - 1)
        first, last = first + min(end, 0), last + max(end, 0)
    return (first + rest.constant, last + rest.constant) if rest.is_constant else None


def _gathering(op: Op, statement: Statement) -> Statement:
    """`y[i + k - p ?drop] += x[i] * w[k]` as `y[u] += x[u + p - k ?0] * w[k]`: the same terms.

    Only where i is the index of a whole dim of x, and of nothing else.
    """
    taken = {*known_names(op), *extents_of(statement.iterators)}
    for axis, index in enumerate(statement.target.indices):
        if index.boundary is Boundary.DROP:
            extents = extents_of(statement.iterators)
            names = [n for n in extents if n in index.value.symbols and extents[n].is_constant]
            names.sort(key=lambda name: -extents[name].constant)
            for name in names:
                changed = _solved(op, statement, axis, name, fresh_name(f"u{axis}", taken))
                if changed is not None:
                    statement = changed
                    break
    return statement


def _solved(op: Op, statement: Statement, axis: int, name: str, own: str) -> Statement | None:
    """The statement with `own`, the index of that axis of the target, in place of an iterator."""
    target = statement.target
    linear = target.indices[axis].value.linear_in(symbol_atom(name))
    uses = [(access, at) for access in reads(statement.body) for at in _axes_with(access, name)]
    if linear is None or linear[0] != 1 or name in linear[1].symbols:
        return None
    if statement.guards or len(uses) != 1:
        return None
    if list(_axes_with(target, name)) != [axis]:
        return None
    ((access, at),) = uses
    index, extent = access.indices[at], extents_of(statement.iterators)[name]
    is_whole = index.value.symbol == name and extent == op.extents(access.tensor)[at]
    if not is_whole or index.boundary is not Boundary.NONE or not _is_plain(statement.body):
        return None
    moved = Index(symbol(own) - linear[1], Boundary.ZERO)
    read = replace(access, indices=(*access.indices[:at], moved, *access.indices[at + 1 :]))
    here = (*target.indices[:axis], Index(symbol(own)), *target.indices[axis + 1 :])
    size = op.extents(target.tensor)[axis]
    return replace(
        statement,
        target=replace(target, indices=here),
        iterators=tuple(
            IndexIterator(own, size) if each.name == name else each for each in statement.iterators
        ),
        body=_with_read(statement.body, access, read),
    )


def _axes_with(access: Access, name: str) -> Iterator[int]:
    for axis, index in enumerate(access.indices):
        if name in index.value.symbols:
            yield axis


def _is_plain(body: Expr) -> bool:
    """Whether the iterators stand in the indices of two factors and nowhere else."""
    match body:
        case Apply(primitive="mul", arguments=(Read(), Read())):
            return True
        case _:
            return False
