"""Neighbouring dims that an op goes through as if they were one.

    y[n,o,h,w] = max(z[n,o,h,w] + b[o], 0)

Nothing here tells rows of an image from one another: where they adjoin in memory, a call with H = 1
and as many columns as there are pixels computes the same cells. Of images of 7 by 7 that is one row
of 49 cells in place of seven that fill no vector. The mean of an image is of this kind as well; a
sum may be added up in another order.

What joins dims is read off the index maps: in every access of a statement they are the same plain
iterators, whole dims one behind the other, which stand nowhere else, and nothing asks for their
sizes but for the product of all.
"""

from __future__ import annotations

from collections.abc import Mapping

from opgen.algebra.poly import Poly
from opgen.ir.family import JoinedDims
from opgen.ir.indices import extents_of
from opgen.ir.notation import Access, AttributeType, Boundary, Op, Statement, reads
from opgen.ir.walk import values_of


def joined_dims(op: Op) -> JoinedDims | None:
    """The longest row of dims of a tensor that may be joined, the last ones first; None where there
    are no two."""
    for sizes in _rows(op):
        places = _places(op, sizes)
        if places is not None and _is_joined(op, sizes, places):
            return JoinedDims(sizes, tuple(places.items()))
    return None


def _rows(op: Op) -> list[tuple[str, ...]]:
    """All rows of neighbouring dims that are sizes by themselves: the longest ones first, then the
    last ones of the tensors with most dims."""
    sizes = {*op.sizes, *(e.name for e in op.attributes if e.type is AttributeType.SIZE)}
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for tensor in sorted((*op.outputs, *op.inputs), key=lambda each: -len(each.dims)):
        names = [extent.symbol for extent in op.extents(tensor.name)]
        for first in range(len(names)):
            for end in range(first + 2, len(names) + 1):
                row = tuple(name for name in names[first:end] if name in sizes)
                if len(set(row)) == end - first:
                    found.setdefault(row, (first - end, len(names) - end))
    return sorted(found, key=found.__getitem__)


def _places(op: Op, sizes: tuple[str, ...]) -> dict[str, int] | None:
    """Where tensors have the dims; None where one has some of them, or has them in another way."""
    names = frozenset(sizes)
    places: dict[str, int] = {}
    for tensor in (*op.inputs, *op.outputs, *op.temporaries):
        extents = [dim.extent for dim in tensor.dims]
        known = [extent.symbol for extent in extents]
        touched = [at for at, extent in enumerate(extents) if not names.isdisjoint(extent.symbols)]
        if not touched:
            continue
        first = touched[0]
        if touched != list(range(first, first + len(sizes))):
            return None
        if tuple(known[first : first + len(sizes)]) != sizes:
            return None
        if any(tensor.dims[at].parts for at in touched):
            return None
        places[tensor.name] = first
    return places


def _is_joined(op: Op, sizes: tuple[str, ...], places: Mapping[str, int]) -> bool:
    names = frozenset(sizes)
    elsewhere = [let.value for let in op.lets]
    elsewhere += [each.condition.value for each in op.constraints]
    if any(not names.isdisjoint(value.symbols) for value in elsewhere):
        return False
    return all(_goes_through(statement, sizes, places) for statement in op.statements)


def _goes_through(statement: Statement, sizes: tuple[str, ...], places: Mapping[str, int]) -> bool:
    """Whether a statement has whole dims in all tensors that have them, or nothing of them."""
    extents = extents_of(statement.iterators)
    names, count = frozenset(sizes), len(sizes)
    along = [name for name, extent in extents.items() if not names.isdisjoint(extent.symbols)]
    if along and tuple(extents[name].symbol for name in along) != sizes:
        # In whatever order they are named, there is one for each of the sizes.
        by_size = {extents[name].symbol: name for name in along}
        if len(along) != count or set(by_size) != set(sizes):
            return False
        along = [by_size[size] for size in sizes]
    left: list[Poly] = list(values_of(statement))
    for access in (statement.target, *reads(statement.body)):
        place = places.get(access.tensor)
        if place is not None:
            if not along or not _is_whole(access, place, along):
                return False
            left += [
                each.value
                for at, each in enumerate(access.indices)
                if not place <= at < place + count
            ]
        else:
            left += [each.value for each in access.indices]
    return not any(_knows(value, names, frozenset(along)) for value in left)


def _is_whole(access: Access, place: int, along: list[str]) -> bool:
    own = access.indices[place : place + len(along)]
    is_plain = all(index.boundary is Boundary.NONE for index in own)
    return is_plain and [index.value.symbol for index in own] == along


def _knows(value: Poly, sizes: frozenset[str], along: frozenset[str]) -> bool:
    """Whether an integer depends on the dims in any other way than by how many cells they have."""
    if not along.isdisjoint(value.symbols) or any(atom.args for atom in value.all_atoms()):
        return not (sizes | along).isdisjoint(value.symbols)
    for monomial in value.terms:
        powers = [sum(atom.name == size for atom in monomial) for size in sorted(sizes)]
        if len(set(powers)) > 1:
            return True
    return False
