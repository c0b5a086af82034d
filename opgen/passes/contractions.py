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
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from collections.abc import Iterator as Iterable
from dataclasses import dataclass, replace
from itertools import combinations

from opgen.algebra.poly import ONE, ZERO, symbol
from opgen.ir.factors import Factor, factors_of, is_number, product_of
from opgen.ir.indices import digits, extents_of, is_plainly_inside
from opgen.ir.notation import Access, Boundary, Iterator, Parameter, Read, Reducer, Statement, reads
from opgen.ir.walk import expression_polynomials
from opgen.passes.cells import are_sizes, in_steps, is_inside, is_plain_sum, names_of, some_of
from opgen.passes.new_temporaries import NewTemporaries


def with_contractions(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that sum products of some of its factors first."""
    return in_steps(statement, lambda each: _step(each, made))


@dataclass(frozen=True, slots=True)
class _Group:
    """Factors to be multiplied first, by position: the iterators they move with, and those of these
    that nothing else moves with."""

    places: tuple[int, ...]
    moving: Set[str]
    summed: Set[str]

    @property
    def rank(self) -> tuple[bool, int, tuple[int, ...]]:
        """What is least for the group that comes first."""
        return not self.summed, len(self.moving), self.places


def _step(statement: Statement, made: NewTemporaries) -> tuple[Statement, Statement] | None:
    """The sum of some factors, and the statement with that in their place."""
    if not is_plain_sum(statement, made):
        return None
    negative, factors = factors_of(statement.body)
    found = min(_groups(statement, factors, made), key=lambda each: each.rank, default=None)
    if found is None:
        return None
    kept = found.moving - found.summed
    own = tuple(e for e in _in_order(statement, factors, found) if e.name in kept)
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
    """The iterators of a statement as the dims of a temporary: first those of the target, or where
    there is a window, as those of the tensor are that it goes through."""
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
    return statement.iterators


def _groups(
    statement: Statement, factors: Sequence[Factor], made: NewTemporaries
) -> Iterable[_Group]:
    """The groups of factors that may be computed first."""
    names, tables = names_of(statement), {table.name for table in made.op.tables}
    moving = [_moving(each, names) for each in factors]
    if any(each is None for each in moving):
        return
    known = [each for each in moving if each is not None]
    tensors = [
        at
        for at, each in enumerate(factors)
        if isinstance(each.value, Read)
        and not each.divides
        and each.value.access.tensor not in tables
        and made.is_generic(each.value.access)
    ]
    read = [access for each in factors for access in reads(each.value)]
    most = max(_dims(access, statement) for access in (statement.target, *read))
    fixed = frozenset[str]().union(*(i.value.symbols for i in statement.target.indices)) & names
    cells = [fixed, *(known[at] for at in tensors)]
    alone = [(at,) for at in tensors] if len(tensors) > 1 else []
    pairs = [*combinations(tensors, 2)] if len(tensors) > 2 else []
    for places in (*alone, *pairs):
        own = frozenset[str]().union(*(known[at] for at in places))
        rest = fixed.union(*(each for at, each in enumerate(known) if at not in places))
        group = _Group(places, own, own - rest)
        if own < names:
            is_less = bool(group.summed) or len(places) > 1
        else:  # it takes as long as the whole sum, which needs no large temporary
            is_small = any(own & rest <= each for each in cells)
            is_less = bool(group.summed) and is_small and len(places) > 1
        loops = (each for each in statement.iterators if each.name in own)
        if (
            (is_less and len(own & rest) <= most)
            and are_sizes(loops, made)
            and _may_come_first(statement, factors, group, made)
        ):
            yield group


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
    """Whether an access needs no other factor that is absent where it leaves its tensor."""
    extents = extents_of(statement.iterators)
    return made.is_whole(access.tensor) and all(
        index.boundary is Boundary.ZERO
        or (index.boundary is Boundary.NONE and is_plainly_inside(index.value, extent, extents))
        for index, extent in zip(access.indices, made.extents(access.tensor), strict=True)
    )


def _moving(factor: Factor, names: Collection[str]) -> Set[str] | None:
    """The iterators that a factor moves with; None where a tensor is part of an index."""
    numbers = [*expression_polynomials(factor.value)]
    if any(each.is_data_dependent for each in numbers):
        return None
    return frozenset[str]().union(*(each.symbols for each in numbers)).intersection(names)
