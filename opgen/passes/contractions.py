"""Sums of products of three and more tensors are added up two tensors at a time.

Before:

    y[b,o,h,v] = sum(c,i,j) x[b,c, h + i - 1 ?0, v + j - 1 ?0] * d[c,i,j] * w[o,c]

After:

    y_part[b,c,h,v] = sum(i,j) x[b,c, h + i - 1 ?0, v + j - 1 ?0] * d[c,i,j]
    y[b,o,h,v] = sum(c) y_part[b,c,h,v] * w[o,c]

Two sums of fewer loops take the place of one, and each is a product that kernels or libraries are
fast at, as its gradients are. What is summed first are iterators that two of the tensors move with,
and neither another one nor the result. Where there are none two of them may be multiplied, which
move with fewer than all: `b[j,r]*c[k,r]` in `sum(r) a[i,r]*b[j,r]*c[k,r]`, which is a product of
matrices then. A sum that only one tensor has a part in is done before, where others repeat it.

Which come first is not for opgen to know where sizes are those of a call: those of the fewest
loops, and from the left, as `einsum` does. What stands in parentheses is computed as it stands. No
temporary has more dims than a tensor which the sum reads or writes, and none that all loops would
be needed for has more cells: of `sum(i,j) a[n,i]*w[k,i,j]*b[n,j]` a and b are multiplied first.

A tensor that is looked up, `w[r[t,k],d,o]`, is multiplied last: two others are before, for all o.

There are two exceptions, where nothing is a window, and sizes of a call count as typical ones:

- One dim more than any tensor has is right where all loops at once are much more work than the two
  sums: the cores of a tensor train, `sum(i,j,r) x[b,i,j]*g[i,m,r]*h[r,j,n]`, where `x*g` has b, j,
  m and r. It is what parentheses would make of it. One dim it is, however many steps there are: the
  cells of a temporary are never more than the work that adds them up, and there is less of that.
- Where all loops are needed anyway, the sum that leaves fewer cells than a product would is first:
  of `sum(j,l) w[v,j]*a[j,i,l]*p[v,l]`, where i and l go to 4, `w*a` is 16 numbers for each v.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from opgen.algebra.poly import ONE, ZERO, symbol
from opgen.ir.factors import Factor, factors_of, is_number, product_of
from opgen.ir.indices import digits, extents_of, is_plainly_inside
from opgen.ir.notation import Access, Boundary, Iterator, Parameter, Read, Reducer, Statement, reads
from opgen.ir.walk import expression_polynomials
from opgen.passes.cells import (
    are_many,
    are_sizes,
    in_steps,
    is_inside,
    is_plain_sum,
    names_of,
    some_of,
)
from opgen.passes.new_temporaries import NewTemporaries

_TYPICAL: Final = 64
"""What a size that only a call knows counts as, beside those that a spec says."""

_LESS: Final = 4
"""So many times less work is worth a temporary of more dims than any tensor."""


def with_contractions(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that sum products of some of its factors first."""
    # Of the sum as it is written: what steps have made is no reason for still more dims.
    most = max(_dims(each, statement) for each in (statement.target, *reads(statement.body)))
    return in_steps(statement, lambda each: _step(each, most, made))


@dataclass(frozen=True, slots=True)
class _Group:
    """Factors to be multiplied first, by position: the iterators they move with, and those of these
    that nothing else moves with. Those that other factors and the target move with are the rest."""

    places: tuple[int, ...]
    moving: Set[str]
    rest: Set[str]

    @property
    def summed(self) -> Set[str]:
        """The iterators that are summed first."""
        return self.moving - self.rest

    @property
    def kept(self) -> Set[str]:
        """The iterators that number the cells of what is computed first."""
        return self.moving & self.rest

    def rank(self, most: int) -> tuple[bool, bool, int, tuple[int, ...]]:
        """What is least for the group that comes first."""
        return not self.summed, len(self.kept) > most, len(self.moving), self.places


def _step(
    statement: Statement, most: int, made: NewTemporaries
) -> tuple[Statement, Statement] | None:
    """The sum of some factors, and the statement with that in their place."""
    if not is_plain_sum(statement, made):
        return None
    negative, factors = factors_of(statement.body)
    groups = _groups(statement, factors, most, made)
    found = min(groups, key=lambda each: each.rank(most), default=None)
    if found is None:
        return None
    own = tuple(e for e in _in_order(statement, factors, found) if e.name in found.kept)
    inner = tuple(e for e in statement.iterators if e.name in found.summed)
    cells = [(each.extent, symbol(each.name)) for each in own] or [(ONE, ZERO)]
    total = made.cells(statement.target.tensor, "part", cells)
    first = Statement(
        total,
        Reducer.ADD if inner else Reducer.ASSIGN,
        (*own, *inner),
        (),
        product_of([factors[at] for at in found.places]),
        span=statement.span,
        is_exclusive=True,
    )
    at, *others = found.places
    left = [Factor(Read(total)) if place == at else each for place, each in enumerate(factors)]
    left = [each for place, each in enumerate(left) if place not in others]
    rest = tuple(each for each in statement.iterators if each.name not in found.summed)
    # A sum of nothing is 0, whatever number it would be multiplied with, and wherever added.
    is_free = is_inside(statement.target, statement, made) and all(map(is_number, left))
    is_free = is_free and not any(isinstance(each.value, Parameter) for each in left)
    guards = () if is_free else some_of(inner)
    body = product_of(left, negative=negative)
    return first, replace(statement, iterators=rest, guards=guards, body=body)


def _in_order(
    statement: Statement, factors: Sequence[Factor], group: _Group
) -> tuple[Iterator, ...]:
    """The iterators of a statement as the dims of a temporary: first those of the target, and then
    as another factor has them, with which they are summed; or where there is a window, as those of
    the tensor are that it goes through."""
    extents = extents_of(statement.iterators)
    for at in group.places:
        for access in reads(factors[at].value):
            order = [index.value.symbols & group.moving for index in access.indices]
            windows = [
                names
                for names, index in zip(order, access.indices, strict=True)
                if digits(index.value, extents) is None
            ]
            if any(len(names) > 1 and names & group.summed for names in windows):
                place = {name: axis for axis, names in enumerate(order) for name in names}
                return tuple(
                    sorted(statement.iterators, key=lambda e: place.get(e.name, len(place)))
                )
    fixed = frozenset[str]().union(*(i.value.symbols for i in statement.target.indices))
    later = [
        name
        for at, each in enumerate(factors)
        if at not in group.places
        for access in reads(each.value)
        for index in access.indices
        for name in digits(index.value, extents) or ()
        if name not in fixed
    ]
    places = {name: at for at, name in enumerate(dict.fromkeys(later))}
    return tuple(sorted(statement.iterators, key=lambda e: places.get(e.name, -1)))


def _groups(
    statement: Statement, factors: Sequence[Factor], most: int, made: NewTemporaries
) -> list[_Group]:
    """The groups of factors that may be computed first."""
    names, tables = names_of(statement), {table.name for table in made.op.tables}
    known = [_moving(each, names) for each in factors]
    looked_up = {at for at, each in enumerate(factors) if _is_looked_up(each)}
    tensors = [
        at
        for at, each in enumerate(factors)
        if isinstance(each.value, Read)
        and at not in looked_up
        and not each.divides
        and each.value.access.tensor not in tables
        and made.is_generic(each.value.access)
    ]
    fixed = frozenset[str]().union(*(i.value.symbols for i in statement.target.indices)) & names
    cells = [fixed, *(known[at] for at in tensors)]
    alone = [(at,) for at in tensors] if len(tensors) > 1 and not looked_up else []
    pairs = [*combinations(tensors, 2)] if len(tensors) + len(looked_up) > 2 else []
    found: list[_Group] = []
    others: list[_Group] = []
    for places in (*alone, *pairs):
        own = frozenset[str]().union(*(known[at] for at in places))
        rest = fixed.union(*(each for at, each in enumerate(known) if at not in places))
        group = _Group(places, own, rest)
        loops = (each for each in statement.iterators if each.name in own)
        if not are_sizes(loops, made) or not _may_come_first(statement, factors, group, made):
            continue
        if looked_up:  # of few factors of a cell, as between four pixels, no product is worth it
            later = (e.extent for e in statement.iterators if e.name in group.kept - fixed)
            is_less = own < names and len(group.kept) <= most and are_many(later)
        elif own < names:
            is_less = bool(group.summed) or len(places) > 1
            is_less = is_less and len(group.kept) <= most
        else:  # it takes as long as the whole sum, which needs no large temporary
            is_small = any(group.kept <= each for each in cells)
            is_less = bool(group.summed) and is_small and len(places) > 1
            is_less = is_less and len(group.kept) <= most
        (found if is_less else others).append(group)
    if all(_is_plain(access, statement) for access in (statement.target, *reads(statement.body))):
        found += [each for each in others if _is_worth_more(each, found, most, statement)]
    return found


def _is_worth_more(
    group: _Group, others: Sequence[_Group], most: int, statement: Statement
) -> bool:
    """Whether what is computed first may have more dims, or cells, than tensors have: whether it is
    much less work than the whole sum, or of fewer cells than the products that other groups are."""
    names = names_of(statement)
    if not group.summed or len(group.places) < 2:
        return False
    if group.moving < names:
        work = _count(group.moving, statement) + _count(group.rest, statement)
        is_little = _count(names, statement) >= _LESS * work
        return is_little and len(group.kept) <= most + 1
    products = [_count(each.kept, statement) for each in others if not each.summed]
    is_least = any(products) and _count(group.kept, statement) < min(products)
    return is_least and len(group.kept) <= most


def _count(names: Set[str], statement: Statement) -> int:
    """How many points some iterators have, nearly."""
    extents = (each.extent for each in statement.iterators if each.name in names)
    return math.prod(each.constant if each.is_constant else _TYPICAL for each in extents)


def _is_plain(access: Access, statement: Statement) -> bool:
    """Whether no index is a window, and none is outside."""
    extents = extents_of(statement.iterators)
    return all(
        index.boundary is Boundary.NONE and digits(index.value, extents) is not None
        for index in access.indices
    )


def _dims(access: Access, statement: Statement) -> int:
    """How many dims a tensor has, where each part of a composite one is one."""
    extents = extents_of(statement.iterators)
    return sum(len(digits(index.value, extents) or ("",)) for index in access.indices)


def _may_come_first(
    statement: Statement, factors: Sequence[Factor], group: _Group, made: NewTemporaries
) -> bool:
    """Whether all that the factors read is there, or absent by itself, apart from each other.

    What is not summed reads each cell at one point: else the product would have more cells than a
    tensor has.
    """
    together = [access for at in group.places for access in reads(factors[at].value)]
    apart = [a for at, f in enumerate(factors) if at not in group.places for a in reads(f.value)]
    if not all(_is_there(access, statement, made) for access in (*together, *apart)):
        return False
    # What is written nowhere, or is no term, would be in sums of gradients.
    others = [] if group.summed else apart
    outside = (index for access in (statement.target, *others) for index in access.indices)
    if any(index.boundary is not Boundary.NONE for index in outside):
        return False
    if any(index.boundary is Boundary.ZERO for access in together for index in access.indices):
        # Terms may be absent for all that is summed, and what is left infinite there.
        left = (each for at, each in enumerate(factors) if at not in group.places)
        if len(group.places) == 1 or not all(map(is_number, left)):
            return False
    if group.summed:
        return True
    indices = [index for access in together for index in access.indices]
    return all(
        index.boundary is Boundary.NONE and len(index.value.symbols & group.moving) < 2
        for index in indices
    )


def _is_there(access: Access, statement: Statement, made: NewTemporaries) -> bool:
    """Whether an access needs no other factor that is absent where it leaves its tensor. Where it
    is looked up outside a call is refused, whatever else there is."""
    extents = extents_of(statement.iterators)
    return made.is_whole(access.tensor) and all(
        index.boundary is Boundary.NONE
        if index.value.is_data_dependent
        else index.boundary is Boundary.ZERO
        or (index.boundary is Boundary.NONE and is_plainly_inside(index.value, extent, extents))
        for index, extent in zip(access.indices, made.extents(access.tensor), strict=True)
    )


def _is_looked_up(factor: Factor) -> bool:
    """Whether a tensor is part of an index of it."""
    return any(each.is_data_dependent for each in expression_polynomials(factor.value))


def _moving(factor: Factor, names: Collection[str]) -> Set[str]:
    """The iterators that a factor moves with."""
    numbers = expression_polynomials(factor.value)
    return frozenset[str]().union(*(each.symbols for each in numbers)).intersection(names)
