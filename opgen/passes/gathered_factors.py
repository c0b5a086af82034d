"""Factors that are looked up are gathered before they are multiplied.

Before, what is sent along the edges of a graph:

    y[m,f] = sum(e) w[f,e] * x[src[m],e]

After:

    x_gathered[m,e] = x[src[m],e]
    y[m,f] = sum(e) w[f,e] * x_gathered[m,e]

What is left is a product of matrices, which kernels and libraries are fast at, and so are its
gradients. It is worth it where each cell that is looked up is multiplied for several cells of the
result, which the other factor has and it has not: a copy is a small part of the work then. Cells
that are looked up and added alone stay as they are, as in `sum(m) p[n,m] * x[i[n,m],f]`.

Gradients make such copies by themselves, and keep those that are factors (`passes.copies`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from opgen.algebra.poly import symbol
from opgen.ir.factors import factors_of
from opgen.ir.indices import digits, extents_of
from opgen.ir.notation import (
    Access,
    Boundary,
    Expr,
    Index,
    Read,
    Reducer,
    Statement,
    Table,
    map_expression,
)
from opgen.ir.notation import Iterator as Loop
from opgen.passes.cells import (
    are_sizes,
    cells_of,
    is_multiplied_again,
    is_plain_sum,
    moving,
    names_of,
)
from opgen.passes.new_temporaries import NewTemporaries


def with_gathered_factors(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement, behind those that gather its factors."""
    if not is_plain_sum(statement, made):
        return (statement,)
    before, names = [], names_of(statement)
    factors = _tensors(statement, made)
    for image in factors:
        weights = [e for e in factors if e != image and is_multiplied_again(image, e, statement)]
        if weights and any(index.value.is_data_dependent for index in image.indices):
            found = _gathered(image, moving(weights[0], names), statement, made)
            if found is not None:
                before.append(found[0])
                statement = replace(statement, body=_with_read(statement.body, image, found[1]))
    return (*before, statement)


def _tensors(statement: Statement, made: NewTemporaries) -> list[Access]:
    """What is read of tensors as factors of the terms, none of it the target."""
    factors = (each.value for each in factors_of(statement.body)[1] if not each.divides)
    found = dict.fromkeys(each.access for each in factors if isinstance(each, Read))
    target = statement.target.tensor
    tensors = ((each, made.tensor(each.tensor)) for each in found if each.tensor != target)
    return [each for each, tensor in tensors if not isinstance(tensor, Table)]


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dim of what is gathered: what goes through it, and the index at which it is read again."""

    loop: Loop
    read: Index


def _gathered(
    image: Access, others: Set[str], statement: Statement, made: NewTemporaries
) -> tuple[Statement, Access] | None:
    """The statement that writes out what is looked up, and how that is read; None where some of it
    may be absent, or where nobody knows whether there is a cell for each value of the iterators.

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
    read = Read(replace(image, indices=tuple(source)))
    about = (Reducer.ASSIGN, tuple(each.loop for each in found), (), read)
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


def _with_read(body: Expr, old: Access, new: Access) -> Expr:
    """An expression that reads another access in place of one."""

    def change(node: Expr) -> Expr | None:
        return Read(new) if isinstance(node, Read) and node.access == old else None

    return map_expression(body, change)
