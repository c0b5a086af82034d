"""Sums into cells that a quotient chooses, point by point: on the CPU.

The gradient of a resizing to any size adds every pixel of the result to the few of the image that
it was made of,

    grad_x[n,c, i*H//OH, j*W//OW] += grad_y[n,c,i,j]

A cell that looks for its terms divides for each that may be one, and asks whether it is. A point
knows its cells. So the points of an image are gone through as they lie in memory, each adds to its
cells, and quotients and weights that depend on a row or a column alone are in tables, see
`emit.loop_tables`. What makes an image another one, `n` and `c` here, is an index itself, so that
the points of two images share no cells and threads have images of their own. Every cell gets its
terms in an order that does not depend on threads: results are the same in every run. A single image
of one channel is one thread's.

So do points whose cells a tensor chooses and a mode brings inside; or whose cells are a few around
a place that it holds, `grad_x[c, i[p] + k ?drop] += a[p,k]*grad_y[c,p]` with k in 2; and the terms
of sums over ranges that tensors hold, as those of segments,

    grad_x[p,d] += grad_y[r,d] if p >= at[r], p < at[r+1]

of which a cell would ask all: a range goes through its own cells (`passes.point_ranges`).

And so do points that choose single cells, of which each is the greatest or the least,

    y[j[m]] max= x[m]

which is one pass over the points, where lists of them (`passes.buckets`) take three. Rows of cells
have lists, whose cells threads share: so do cells whose first extreme point is asked for as well.

On a GPU a cell still looks for its terms. There points are threads of their own, which would add in
any order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from opgen.algebra.poly import Kind, Poly, poly, symbol, symbol_atom
from opgen.ir.indices import FOLDED
from opgen.ir.notation import (
    AttributeType,
    Boundary,
    DType,
    Iterator,
    Op,
    Reducer,
    Statement,
    Table,
    Tensor,
)
from opgen.passes.point_ranges import range_of

_SHORT: Final = 16
"""Up to so many values of an iterator are enumerated for a cell: they are a window."""


def with_scatters(op: Op) -> Op:
    """The op with marks at the statements whose points are to look for their cells."""
    statements = tuple(
        replace(each, is_scattered=True) if _is_better_scattered(op, each) else each
        for each in op.statements
    )
    return op if statements == op.statements else replace(op, statements=statements)


def is_rounded(target: Tensor | Table) -> bool:
    """Whether sums into a tensor are to be rounded once, by cells that look for their terms: what
    is declared as float32 is computed in float64 by some calls."""
    return isinstance(target, Tensor) and target.dtype is DType.F32


def _is_better_scattered(op: Op, statement: Statement) -> bool:
    """Whether cells would look for terms, and an iterator of images is an index by itself."""
    if _is_single_extreme(op, statement):
        return True
    if statement.reducer is not Reducer.ADD or is_rounded(op.tensor(statement.target.tensor)):
        return False
    values = [index.value for index in statement.target.indices]
    if any(value.is_data_dependent for value in values):
        # Others are solved for an iterator, or scattered without being asked to.
        indices = statement.target.indices
        is_folded = any(i.value.is_data_dependent and i.boundary in FOLDED for i in indices)
        return is_folded or any(_is_window_of_points(op, statement, value) for value in values)
    if _is_of_ranges(statement):
        return True
    names = {each.name for each in statement.iterators if _is_long(op, each)}
    return any(_is_resized(value, names) for value in values) and any(
        values.count(symbol(name)) == 1 and sum(name in value.symbols for value in values) == 1
        for name in names
    )


def _is_window_of_points(op: Op, statement: Statement, value: Poly) -> bool:
    """Whether an index is one of a few around a place that a tensor holds for each of the terms."""
    plain = (i.value for i in statement.target.indices if not i.value.is_data_dependent)
    cell = frozenset[str]().union(*(index.symbols for index in plain))
    read = frozenset[str]().union(*(atom.symbols for atom in value.loads))
    own = {each.name: each for each in statement.iterators if each.name in value.symbols}
    beside = [each for name, each in own.items() if name not in read]
    is_of_terms = any(_is_long(op, own[name]) for name in read & own.keys() - cell)
    return is_of_terms and bool(beside) and not any(_is_long(op, each) for each in beside)


def _is_single_extreme(op: Op, statement: Statement) -> bool:
    """Whether a cell that is an extreme is chosen by a number for its last index.

    Its type is that of the call: a declared one may not be what is computed with.
    """
    target = statement.target
    tensor = op.tensor(target.tensor)
    if statement.reducer not in (Reducer.MAX, Reducer.MIN) or not target.indices:
        return False
    chosen = [each for each in target.indices if each.value.is_data_dependent]
    return (
        isinstance(tensor, Tensor)
        and tensor.dtype.is_generic
        and target.indices[-1] in chosen
        and all(each.boundary in (Boundary.NONE, Boundary.DROP) for each in chosen)
        and [each.target.tensor for each in op.statements].count(target.tensor) == 1
        and not any(each.reducer.is_argument for each in op.statements)
    )


def _is_of_ranges(statement: Statement) -> bool:
    """Whether an index of the target is bounded by what a tensor holds for each of its terms."""
    indices = [index.value for index in statement.target.indices]
    inside = frozenset[str]().union(*(value.symbols for value in indices))
    terms = {each.name for each in statement.iterators} - inside
    for name in {value.symbol for value in indices}:
        asked = [] if name is None else list(range_of(name, statement.guards))
        sides = [is_lower for _, bound, is_lower in asked if not terms.isdisjoint(bound.symbols)]
        if True in sides and False in sides:
            return True
    return False


def _is_long(op: Op, iterator: Iterator) -> bool:
    """Whether an iterator may go through a dim, and not only through a factor."""
    if iterator.extent.is_constant:
        return iterator.extent.constant > _SHORT
    factors = (each.symbols for each in op.attributes if each.type is AttributeType.INT)
    return iterator.extent.symbol is not None and not any(
        iterator.extent.symbol in symbols for symbols in factors
    )


def _is_resized(value: Poly, names: set[str]) -> bool:
    """Whether an index has a multiple of an iterator divided by something.

    The values of an iterator that have one quotient are a range where no multiple is divided.
    """
    return any(
        _is_multiple(atom.args[0], name)
        for atom in value.all_atoms()
        if atom.kind is Kind.FLOOR_DIV
        for name in sorted(names & atom.args[0].symbols)
    )


def _is_multiple(dividend: Poly, name: str) -> bool:
    split = dividend.linear_in(symbol_atom(name))
    if split is None or name in split[1].symbols:
        return False
    return split[0] not in (poly(0), poly(1), poly(-1))
