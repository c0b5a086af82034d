"""Factors that are looked up are gathered before they are multiplied.

Before, what is sent along the edges of a graph:

    y[m,f] = sum(e) w[f,e] * x[src[m],e]

After:

    x_gathered[m,e] = x[src[m],e]
    y[m,f] = sum(e) w[f,e] * x_gathered[m,e]

What is left is a product of matrices, which kernels and libraries are fast at, and so are its
gradients. It is worth it where each cell that is looked up is multiplied for several cells of the
result, which the other factor has and it has not: a copy is a small part of the work then. Cells
that are looked up and added alone stay as they are, as in `sum(m) p[n,m] * x[i[n,m],f]`. A factor
with no other iterators than these is multiplied on the way.

Gradients make such copies by themselves, and keep those that are factors (`passes.copies`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from opgen.algebra.poly import symbol
from opgen.ir.factors import Factor, factors_of, product_of, times
from opgen.ir.indices import ANYWHERE, digits, extents_of
from opgen.ir.notation import (
    Access,
    Boundary,
    Index,
    Read,
    Reducer,
    Statement,
    Table,
    reads,
)
from opgen.ir.notation import Iterator as Loop
from opgen.passes.cells import (
    are_sizes,
    cells_of,
    in_steps,
    is_multiplied_again,
    is_plain_sum,
    moving,
    names_of,
    some_of,
)
from opgen.passes.new_temporaries import NewTemporaries


def with_gathered_factors(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that gather its factors."""
    return in_steps(statement, lambda each: _step(each, made))


def _step(statement: Statement, made: NewTemporaries) -> tuple[Statement, Statement] | None:
    """The statement that gathers a factor, and the one with that in its place."""
    if not is_plain_sum(statement, made):
        return None
    names, (negative, factors) = names_of(statement), factors_of(statement.body)
    places = _tensors(statement, factors, made)
    for at, image in places.items():
        weights = [e for e in places.values() if is_multiplied_again(image, e, statement)]
        if not weights or not any(index.value.is_data_dependent for index in image.indices):
            continue
        if is_checked(image) and _may_be_none(statement):
            continue
        own = [e for e, small in places.items() if e != at and _is_scale(small, image, statement)]
        more = [factors[each] for each in own]
        found = _gathered(image, more, moving(weights[0], names), statement, made)
        if found is None:
            continue
        first, read = found
        left = [Factor(Read(read)) if place == at else each for place, each in enumerate(factors)]
        left = [each for place, each in enumerate(left) if place not in own]
        return first, replace(statement, body=product_of(left, negative=negative))
    return None


def _is_scale(small: Access, image: Access, statement: Statement) -> bool:
    """Whether a factor is there without being asked, and the same for a cell that is looked up."""
    names = names_of(statement)
    windows = (index for index in image.indices if index.boundary is not Boundary.NONE)
    is_cell = all(index.value.is_data_dependent for index in windows)
    is_there = all(index.boundary is not Boundary.ZERO for index in small.indices)
    is_there = is_there and not is_checked(small)
    return is_cell and is_there and moving(small, names) <= moving(image, names)


def is_checked(image: Access) -> bool:
    """Whether an index that is read may be outside: a call is refused then that looks for it."""
    return any(
        index.value.is_data_dependent and index.boundary not in ANYWHERE for index in image.indices
    )


def _may_be_none(statement: Statement) -> bool:
    """Whether a tensor may say that a point has no term, of which no factor is looked up: it is
    written nowhere, or another factor is absent there. What borders leave out is not of interest:
    others within the same window look."""
    read = (index for each in reads(statement.body) for index in each.indices)
    left_out = (
        *(index for index in statement.target.indices if index.boundary is Boundary.DROP),
        *(index for index in read if index.boundary is Boundary.ZERO),
    )
    return any(index.value.is_data_dependent for index in left_out)


def _tensors(
    statement: Statement, factors: Sequence[Factor], made: NewTemporaries
) -> dict[int, Access]:
    """The factors that are read of tensors, none of it the target, by their places."""
    found = {
        at: each.value.access
        for at, each in enumerate(factors)
        if isinstance(each.value, Read) and not each.divides
    }
    target = statement.target.tensor
    return {
        at: each
        for at, each in found.items()
        if each.tensor != target and not isinstance(made.tensor(each.tensor), Table)
    }


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dim of what is gathered: what goes through it, and the index at which it is read again."""

    loop: Loop
    read: Index


def _gathered(
    image: Access,
    more: Sequence[Factor],
    others: Set[str],
    statement: Statement,
    made: NewTemporaries,
) -> tuple[Statement, Access] | None:
    """The statement that writes out what is looked up, times more, and how that is read; None where
    some of it may be absent, or nobody knows whether iterators have cells for all of their values.

    Dims that windows slide along are taken as they are, others as far as iterators go.
    """
    names, loops = names_of(statement), {each.name: each for each in statement.iterators}
    whole, cells = cells_of(image, names, made)
    dims: dict[str, _Dim] = {}
    source = []
    for index, cell, loop in zip(image.indices, whole.indices, cells, strict=True):
        own = sorted(index.value.symbols & names)
        is_looked_up = index.value.is_data_dependent
        if is_looked_up and index.boundary is Boundary.ZERO:
            return None  # an absent factor is no zero: a term without it is none
        is_plain = index.boundary is Boundary.NONE and digits(
            index.value, extents_of(loops.values())
        )
        if is_looked_up or is_plain or not own:
            source.append(index)
            dims |= {n: _Dim(loops[n], Index(symbol(n))) for n in own if n not in dims}
        else:
            source.append(cell)
            dims[loop.name] = _Dim(loop, index)
    is_window = not dims.keys() <= names
    order = list(dims) if is_window else _in_order(tuple(dims), others, statement)
    found = [dims[name] for name in order]
    if not are_sizes((each.loop for each in found), made):
        return None
    target = made.cells(
        image.tensor, "gathered", [(e.loop.extent, symbol(e.loop.name)) for e in found], stored=True
    )
    read = times(Read(replace(image, indices=tuple(source))), more)
    # Where there is nothing to multiply no index is looked at.
    around = [each for each in statement.iterators if each.name not in moving(image, names)]
    guards = some_of(around) if is_checked(image) else ()
    about = (Reducer.ASSIGN, tuple(each.loop for each in found), guards, read)
    gathered = Statement(target, *about, span=statement.span, is_exclusive=True)
    return gathered, Access(target.tensor, tuple(each.read for each in found))


def _in_order(names: tuple[str, ...], others: Set[str], statement: Statement) -> tuple[str, ...]:
    """The iterators of an access as dims of a factor: those that are summed stand together, last if
    the last one is among them, else before all that the result alone has."""
    out = moving(statement.target, names_of(statement))
    shared = tuple(name for name in names if name in out and name in others)
    summed = tuple(name for name in names if name not in out)
    own = tuple(name for name in names if name in out and name not in others)
    return (*shared, *own, *summed) if names[-1] in summed else (*shared, *summed, *own)
