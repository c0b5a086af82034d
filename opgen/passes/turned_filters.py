"""Convolutions that go backwards through their filter go forwards through it, turned around.

Before:

    y[b,o,t] = sum(c,i) x[b,c, t - i ?0] * w[o,c,i]

After:

    w_turned[o,c,i] = w[o,c, K - 1 - i]
    y[b,o,t] = sum(c,i) x[b,c, t + i - K + 1 ?0] * w_turned[o,c,i]

The first form is that of a filter of signals, and of a causal one; libraries have the second. What
is turned is small beside the work that it is for where channels meet in the sums: other filters
stay, with which kernels are as fast in either form.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from opgen.algebra.poly import Poly, symbol, symbol_atom
from opgen.ir.indices import extents_of
from opgen.ir.notation import (
    Access,
    Expr,
    Read,
    Reducer,
    Statement,
    Table,
    map_expression,
    substitute_access,
)
from opgen.passes.cells import cells_of, is_dense, moving, names_of, plain_dims, two_factors
from opgen.passes.new_temporaries import NewTemporaries


def with_turned_filters(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind the one that turns its filter around."""
    factors = two_factors(statement, made)
    if factors is None or any(isinstance(made.tensor(a.tensor), Table) for a in factors):
        return (statement,)
    (left, right), names, target = factors, names_of(statement), statement.target
    for weight, other in ((left, right), (right, left)):
        for image, result in ((other, target), (target, other)):
            taps = _taps(image, weight, statement, made) - moving(result, names)
            if taps and is_dense(image, weight, result, names - taps):
                return _turned(statement, image, weight, taps, made)
    return (statement,)


def _taps(image: Access, weight: Access, statement: Statement, made: NewTemporaries) -> Set[str]:
    """The iterators that number a whole dim of the filter, have part in no other one, and go
    backwards through a window."""
    extents, sizes = extents_of(statement.iterators), made.extents(weight.tensor)
    found = set()
    for axis, name in plain_dims(weight, extents.keys()).items():
        own, windows = (
            [index.value for index in access.indices if name in index.value.symbols]
            for access in (weight, image)
        )
        if sizes[axis] != extents[name] or len(own) != 1 or len(windows) != 1:
            continue
        if _is_backward(windows[0], name, extents.keys()):
            found.add(name)
    return found


def _is_backward(value: Poly, name: str, names: Set[str]) -> bool:
    split = value.linear_in(symbol_atom(name))
    if split is None or not split[0].is_constant or split[0].constant >= 0:
        return False
    return not split[1].symbols.isdisjoint(names)


def _turned(
    statement: Statement, image: Access, weight: Access, taps: Set[str], made: NewTemporaries
) -> tuple[Statement, ...]:
    names, extents = names_of(statement), extents_of(statement.iterators)
    cell, iterators = cells_of(weight, names, made)
    backward = {name: extents[name] - 1 - symbol(name) for name in taps}
    source = Read(substitute_access(cell, backward))
    draft = Statement(cell, Reducer.ASSIGN, iterators, (), source, is_exclusive=True)
    if not made.is_always_there(Read(cell), draft):
        return (statement,)
    cells = [(each.extent, symbol(each.name)) for each in iterators]
    target = made.cells(weight.tensor, "turned", cells, stored=True)

    values = {weight: replace(weight, tensor=target.tensor)}
    values[image] = substitute_access(image, backward)

    def change(node: Expr) -> Expr | None:
        return Read(values.get(node.access, node.access)) if isinstance(node, Read) else None

    return (
        replace(draft, target=target, span=statement.span),
        replace(
            statement,
            target=values.get(statement.target, statement.target),
            body=map_expression(statement.body, change),
        ),
    )
