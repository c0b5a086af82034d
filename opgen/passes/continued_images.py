"""Images that go on beyond their ends are written out before a convolution reads them.

Before:

    y[b,o,t] = sum(c,i) x[b,c, t + i - 1 ?wrap] * w[o,c,i]

After, where i has K values:

    x_continued[b,c,t] = x[b,c, t - 1 ?wrap]     for t in T + K - 1
    y[b,o,t] = sum(c,i) x_continued[b,c, t + i] * w[o,c,i]

The modes are `?clamp`, `?reflect`, `?symmetric` and `?wrap`, which bring an index inside. Libraries
have no convolution with these, and a kernel would look for the cell at every term: a filter of 3 by
3 on each channel takes a sixth of the time with the copy. Filters along one dim stay as they are if
channels do not meet in the sums: they are about as fast as the copy. So do filters that are tables,
whose terms are written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ONE, ZERO, Poly, maximum, symbol, symbol_atom
from opgen.algebra.prove import implies, sign
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.indices import FOLDED, digits, extents_of, index_conditions, product
from opgen.ir.notation import (
    Access,
    Boundary,
    Expr,
    Index,
    Iterator,
    Read,
    Reducer,
    Statement,
    Table,
    map_expression,
)
from opgen.passes.cells import (
    are_gone_along,
    cells_of,
    is_dense,
    names_of,
    reaches_through,
    steps_of,
    taps_of,
    two_factors,
)
from opgen.passes.new_temporaries import NewTemporaries

_LONGEST_STEP: Final = 16
"""How far a window of a dim without end may go for each step."""


def with_continued_images(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind the one that writes its image out."""
    factors = two_factors(statement, made)
    if factors is None or any(isinstance(made.tensor(a.tensor), Table) for a in factors):
        return (statement,)
    names, target = names_of(statement), statement.target
    for weight, image in (factors, factors[::-1]):
        taps = taps_of(image, weight, target, statement)
        is_dense_one = bool(taps) and is_dense(image, weight, target, names - taps)
        is_worth_it = is_dense_one or (len(taps) > 1 and are_gone_along(image, statement))
        if is_worth_it and made.is_whole(image.tensor):
            return _continued(statement, image, made)
    return (statement,)


def _continued(statement: Statement, image: Access, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement alone where its image ends, or nobody knows how far it would go on."""
    facts, extents = facts_of(made.op), made.extents(image.tensor)
    cell, iterators = cells_of(image, names_of(statement), made)
    loops, source, windows = list(iterators), list(cell.indices), list(image.indices)
    guards: list[Condition] = []
    for axis, index in enumerate(image.indices):
        if index.boundary not in FOLDED:
            if _is_part(index.value, extents[axis], statement, made):
                return (statement,)
            continue
        reach = _reach(index, extents_of(statement.iterators), facts)
        if reach is None:
            return (statement,)
        least, count = reach
        if not implies(facts, Condition(count)):
            count = maximum(count, ZERO)  # no dim is less than nothing
        is_there = Condition(extents[axis] - 1)
        if not implies(facts, is_there) and is_there not in guards:
            guards.append(is_there)
        loops[axis] = Iterator(iterators[axis].name, count)
        source[axis] = replace(index, value=symbol(iterators[axis].name) + least)
        windows[axis] = Index(index.value - least)
    if windows == list(image.indices):
        return (statement,)
    inside = with_iterators(facts, loops).with_conditions(*guards)
    for index, extent in zip(source, extents, strict=True):
        if not all(implies(inside, each) for each in index_conditions(index, extent)):
            return (statement,)

    cells = [(each.extent, symbol(each.name)) for each in loops]
    target = made.cells(image.tensor, "continued", cells, stored=True)
    read = Read(Access(image.tensor, tuple(source)))
    window = Access(target.tensor, tuple(windows))

    def change(node: Expr) -> Expr | None:
        return Read(window) if isinstance(node, Read) and node.access == image else None

    return (
        Statement(
            target,
            Reducer.ASSIGN,
            tuple(loops),
            tuple(guards),
            read,
            is_exclusive=True,
            span=statement.span,
        ),
        replace(statement, body=map_expression(statement.body, change)),
    )


def _is_part(value: Poly, extent: Poly, statement: Statement, made: NewTemporaries) -> bool:
    """Whether few cells of a dim may be read, as of one that is fixed or read from a tensor."""
    extents = extents_of(statement.iterators)
    numbered = digits(value, extents)
    if value.is_data_dependent:
        return True
    if numbered is None:
        return not reaches_through(value, extent, extents, made)
    return product(extents[name] for name in numbered) != extent


def _reach(index: Index, extents: Mapping[str, Poly], facts: Facts) -> tuple[Poly, Poly] | None:
    """The least value of a sum of iterators, and how many there are from it to the greatest; None
    where these may be many times the cells of the dim, since steps are attributes or long."""
    value, steps = index.value, steps_of(index.value, extents)
    is_near = index.boundary in (Boundary.REFLECT, Boundary.SYMMETRIC)
    if not is_near and (steps is None or max(map(abs, steps.values()), default=0) > _LONGEST_STEP):
        return None
    least, count = value, ONE
    for name in sorted(value.symbols & extents.keys()):
        split = least.linear_in(symbol_atom(name))
        if split is None or not split[0].symbols.isdisjoint(extents):
            return None
        step, least = split
        last = step * (extents[name] - 1)
        match sign(step, facts):
            case 1:
                count += last
            case -1:
                count, least = count - last, least + last
            case _:
                return None
    return None if not least.symbols.isdisjoint(extents) else (least, count)
