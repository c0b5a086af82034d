"""Cells that a tensor chooses have their points in a list, where they would look for them: on the
CPU.

Before, what reaches a node of a graph, and the point that holds the maximum:

    y[dst[m],f] max= h[m,f]
    first[v,f] = argmax(m if dst[m] == v; m) h[m,f]

A cell asks every point whether it is one of its own, which is as much work as there are pairs of
cells and points. After: two temporaries of integers, `y_order` and `y_ends`. The first has the
points of cell 0, of cell 1 and so on, each in their order; the second says where those of each cell
end. A counting sort fills both, and cells go through their own points alone (`bucket_loops`).

A cell may be chosen by several numbers, `y[i[m],j[m]] max= ...`, and each image may have points of
its own, `y[b, i[b,m], f] max= ...`: then there is a list for each. Statements that choose by the
same numbers share one. What scatters has none: there a point adds to its cell in memory, or joins
in it (`passes.scatters`).

On a GPU cells look for their points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.condition import Relation
from opgen.algebra.poly import Poly, symbol, symbol_atom
from opgen.ir.indices import product
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Boundary,
    Buckets,
    Dim,
    DType,
    Iterator,
    Op,
    Reducer,
    Statement,
    Tensor,
)
from opgen.passes.cells import plain_dims
from opgen.passes.new_temporaries import NewTemporaries

_ATOMIC: Final = (Reducer.ADD, Reducer.ASSIGN)
"""What points can do to cells that they choose."""


def with_buckets(op: Op) -> Op:
    """The op with marks at statements whose cells go through lists, and these as temporaries."""
    made = NewTemporaries.of(op)
    known: dict[_Key, Buckets] = {}
    statements = []
    for each in op.statements:
        found = None if each.is_scattered else choices(each, op.extents(each.target.tensor))
        if found is not None:
            each = replace(each, buckets=_shared(found, each.target.tensor, made, known))
        statements.append(each)
    return made.op_with(statements)


@dataclass(frozen=True, slots=True)
class Choices:
    """How points choose cells: `values` are indices of the `dims` of the target, which have
    `counts` cells; they depend on the `points` iterators, and on the `others`, each of which is an
    index of the target by itself, that of one of the `rows`."""

    dims: tuple[int, ...]
    values: tuple[Poly, ...]
    counts: tuple[Poly, ...]
    points: tuple[Iterator, ...]
    others: tuple[Iterator, ...]
    rows: tuple[int, ...]


def choices(statement: Statement, extents: Sequence[Poly]) -> Choices | None:
    """How the points of a statement choose their cells, by numbers in tensors; None where they do
    not, or where a point knows its cell and adds to it."""
    names = {each.name for each in statement.iterators}
    plain = {name: axis for axis, name in plain_dims(statement.target, names).items()}
    indices, same = statement.target.indices, _same(statement, plain)
    chosen = {at: i.value for at, i in enumerate(indices) if i.value.is_data_dependent}
    if any(indices[at].boundary not in (Boundary.NONE, Boundary.DROP) for at in chosen):
        return None
    if chosen and statement.reducer in _ATOMIC:
        return None
    if not chosen and statement.reducer is not Reducer.ASSIGN:
        chosen = _asked_for(statement, plain)
    chosen = {axis: value.substitute(same) for axis, value in chosen.items()}
    used = frozenset[str]().union(*(value.symbols for value in chosen.values())) & names
    points = tuple(e for e in statement.iterators if e.name in used and e.name not in plain)
    others = tuple(e for e in statement.iterators if e.name in used and e.name in plain)
    moving = {each.name for each in points}
    elsewhere = (index.value for at, index in enumerate(indices) if at not in chosen)
    if (
        not points
        or BATCH_ITERATOR in used
        or any(plain[each.name] in chosen for each in others)
        or any(not moving.isdisjoint(value.symbols) for value in elsewhere)
    ):
        return None
    dims = tuple(sorted(chosen))
    values, counts = (tuple(chosen[at] for at in dims), tuple(extents[at] for at in dims))
    rows = tuple(plain[each.name] for each in others)
    return Choices(dims, values, counts, points, others, rows)


def _same(statement: Statement, plain: Mapping[str, int]) -> dict[str, Poly]:
    """Iterators that guards ask to be others, which are indices of the target."""
    found: dict[str, Poly] = {}
    for guard in statement.guards:
        for each in statement.iterators:
            if guard.relation is not Relation.EQ or each.name in plain or each.name in found:
                continue
            split = guard.value.linear_in(symbol_atom(each.name))
            other = None if split is None else (-split[0] * split[1]).symbol
            if split is not None and split[0] in (1, -1) and other is not None and other in plain:
                found[each.name] = symbol(other)
    return found


def _asked_for(statement: Statement, plain: Mapping[str, int]) -> dict[int, Poly]:
    """The values that indices are asked to have: `i[m]` in `y[v] = max(m if i[m] == v) x[m]`."""
    found: dict[int, Poly] = {}
    for guard in statement.guards:
        if guard.relation is not Relation.EQ or not guard.value.is_data_dependent:
            continue
        for name, axis in plain.items():
            split = guard.value.linear_in(symbol_atom(name))
            if split is None or axis in found or name in split[1].symbols:
                continue
            factor, rest = split
            if factor in (1, -1):
                found[axis] = -rest if factor == 1 else rest
                break
    return found


_Key = tuple[object, ...]


def _shared(found: Choices, near: str, made: NewTemporaries, known: dict[_Key, Buckets]) -> Buckets:
    """The lists of these choices, which others may have as well."""
    key = (found.values, found.counts, found.points, found.others)
    if key not in known:
        rows = [Dim(each.extent) for each in found.others]
        counts = product(each.extent for each in found.points), product(found.counts)
        names = []
        for what, count in zip(("order", "ends"), counts, strict=True):
            names.append(fresh_name(f"{near}_{what}", made.taken))
            made.made.append(Tensor(names[-1], (*rows, Dim(count)), DType.I64, stored=True))
        known[key] = Buckets(*names)
    return known[key]
