"""Sums with a filter along each dim of an image go along one dim after the other.

Before:

    y[b,c,h,v] = sum(i,j) x[b,c, h + i - 1 ?0, v + j - 1 ?0] * f[i] * g[j]

After:

    y_part[b,c,i2,v] = sum(j) x[b,c,i2, v + j - 1 ?0] * g[j]
    y[b,c,h,v] = sum(i) y_part[b,c, h + i - 1 ?0, v] * f[i]

What was a term for each pair of taps is one for each tap of each, as in a Gaussian blur; and of
three factors no gradient is a sum that kernels are fast at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from opgen.algebra.poly import symbol, symbol_atom
from opgen.algebra.prove import all_nonnegative, implies
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.factors import Factor, factors_of, product_of
from opgen.ir.indices import extents_of, index_conditions
from opgen.ir.notation import (
    Access,
    Boundary,
    Index,
    Iterator,
    Read,
    Reducer,
    Statement,
    Table,
    reads,
)
from opgen.passes.cells import (
    are_gone_along,
    are_sizes,
    cells_of,
    has_cells,
    in_steps,
    is_inside,
    is_plain_sum,
    moving,
    names_of,
    plain_dims,
    some_of,
)
from opgen.passes.new_temporaries import NewTemporaries


def with_separate_dims(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that go along other dims of its image first."""
    return in_steps(statement, lambda each: _step(each, made))


@dataclass(frozen=True, slots=True)
class _Windows:
    """The dims of an image along which a filter slides: the iterators of its taps, and by dim the
    one that they slide along."""

    taps: Set[str]
    along: dict[int, str]


def _step(statement: Statement, made: NewTemporaries) -> tuple[Statement, Statement] | None:
    """The sum along some dims of an image, and the statement with that in place of the image."""
    negative, factors = factors_of(statement.body)
    if not is_plain_sum(statement, made):
        return None
    if any(each.divides or not isinstance(each.value, Read) for each in factors):
        return None
    read = [access for each in factors for access in reads(each.value)]
    if any(index.value.is_data_dependent for access in read for index in access.indices):
        return None
    # The last dim of the last image: its rows lie in memory as they are gone along.
    for at, image in reversed([*enumerate(read)]):
        for place, weight in reversed([*enumerate(read)]):
            others = [each for p, each in enumerate(read) if p not in (at, place)]
            if at == place or not others or not _are_plain((statement.target, weight, *others)):
                continue
            windows = _windows(statement, image, weight, others)
            if windows is None or not _may_be_first(statement, image, weight, made):
                continue
            parts = _split(statement, image, weight, windows, made)
            if parts is None:
                continue
            first, total = parts
            left = [Factor(Read(total)) if p == at else each for p, each in enumerate(factors)]
            del left[place]
            inner = tuple(e for e in statement.iterators if e.name in windows.taps)
            rest = tuple(e for e in statement.iterators if e.name not in windows.taps)
            body = product_of(left, negative=negative)
            # A sum of nothing is 0, whatever number it would be multiplied with.
            known = with_iterators(facts_of(made.op), rest)
            guards = tuple(each for each in some_of(inner) if not implies(known, each))
            return first, replace(statement, iterators=rest, guards=guards, body=body)
    return None


def _windows(
    statement: Statement, image: Access, weight: Access, others: Sequence[Access]
) -> _Windows | None:
    """The dims along which a filter slides that others do not slide along; None where there are
    none, or nobody slides along another dim."""
    names = names_of(statement)
    elsewhere = frozenset[str]().union(*(moving(a, names) for a in (statement.target, *others)))
    taps = (moving(weight, names) & moving(image, names)) - elsewhere
    along: dict[int, str] = {}
    is_other = False
    for axis, index in enumerate(image.indices):
        found = index.value.symbols & names
        slides = found - taps
        if found & taps:
            if len(found) != 2 or len(slides) != 1:
                return None
            along[axis] = next(iter(slides))
        elif len(found) == 2 and found - moving(statement.target, names):
            is_other = True
    plain = {*plain_dims(image, names).values()}
    is_alone = moving(weight, names) - taps <= plain
    return _Windows(taps, along) if taps and is_other and is_alone else None


def _may_be_first(
    statement: Statement, image: Access, weight: Access, made: NewTemporaries
) -> bool:
    """Whether all cells of the image are there, most are read, and the filter is all gone along."""
    tensors = (made.tensor(each.tensor) for each in (image, weight))
    return (
        not any(isinstance(each, Table) for each in tensors)
        and all(made.is_whole(each.tensor) and made.is_generic(each) for each in (image, weight))
        and has_cells(image, statement, made)
        and are_gone_along(image, statement)
        and is_inside(weight, statement, made)
    )


def _are_plain(accesses: Iterable[Access]) -> bool:
    """Whether none may be outside: no term is absent for all of a row, nor written nowhere."""
    return all(index.boundary is Boundary.NONE for each in accesses for index in each.indices)


def _split(
    statement: Statement, image: Access, weight: Access, windows: _Windows, made: NewTemporaries
) -> tuple[Statement, Access] | None:
    """The sum for each cell of the image in its other dims, and the cell of it that is read; None
    where one of these sums may read what is not there, or have no terms."""
    extents = extents_of(statement.iterators)
    cell, iterators = cells_of(image, names_of(statement), made)
    loops, source, read = list(iterators), list(cell.indices), list(image.indices)
    for axis, name in windows.along.items():
        loops[axis] = Iterator(name, extents[name])
        source[axis], read[axis] = image.indices[axis], Index(symbol(name))
    inner = tuple(each for each in statement.iterators if each.name in windows.taps)
    if not are_sizes((*loops, *inner), made):
        return None
    facts = with_iterators(facts_of(made.op), (*loops, *inner))
    for axis, extent in enumerate(made.extents(image.tensor)):
        index = source[axis]
        if axis not in windows.along:
            continue
        if index.boundary is Boundary.ZERO:
            least, greatest = index.value, index.value
            for each in inner:
                split = index.value.linear_in(symbol_atom(each.name))
                if each.name not in index.value.symbols:
                    continue
                if split is None or split[0] not in (1, -1):
                    return None
                ends = split[1], split[1] + split[0] * (each.extent - 1)
                least, greatest = ends if split[0] == 1 else ends[::-1]
            if not all_nonnegative((extent - 1, extent - 1 - least, greatest), facts):
                return None
        elif not all(implies(facts, each) for each in index_conditions(index, extent)):
            return None
    # Where there are no terms at all, what no term reads is in no sum of a gradient.
    known = {each.name for each in (*loops, *inner)}
    rest = some_of(each for each in statement.iterators if each.name not in known)
    guards = tuple(each for each in rest if not implies(facts, each))
    cells = [(each.extent, symbol(each.name)) for each in loops]
    total = made.cells(statement.target.tensor, "part", cells)
    body = product_of([Factor(Read(Access(image.tensor, tuple(source)))), Factor(Read(weight))])
    first = Statement(
        total,
        Reducer.ADD,
        (*loops, *inner),
        guards,
        body,
        is_exclusive=True,
        span=statement.span,
    )
    return first, Access(total.tensor, tuple(read))
