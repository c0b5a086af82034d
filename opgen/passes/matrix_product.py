"""Recognise a product of matrices by its index maps, whatever the spec calls it.

    target[g, m, n] = sum(k) left[g, m, k] * right[g, k, n]

What an iterator is follows from the tensors that it indexes: g all three, m target and left, n
target and right, k left and right. Each may be several iterators, g none as well, and those of a
tensor may stand in any dims and order. A gradient of a product is another one.

Columns on both sides of the rows, as in `y[i,m,n]`, are no dim of a matrix. Where there is no g,
those before the rows are a batch, for all of which the left factor is the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from opgen.ir.arrangement import Arrangement
from opgen.ir.matrix_product import Matrices, MatrixProduct
from opgen.ir.notation import Access, Op
from opgen.passes.product import Extents, is_of_one_type, product_of, whole_digits

_Dims = Sequence[tuple[str, ...]]
"""The iterators that each index of a tensor is made of."""


def matrix_product(op: Op) -> MatrixProduct | None:
    """The op as a product of matrices; None if it is anything else, or does anything beside it.

    The columns are those that the target has side by side.
    """
    product = product_of(op)
    if product is None or not is_of_one_type(op, product):
        return None
    target, *factors = (
        _dims(op, access, product.extents) for access in (product.target, *product.factors)
    )
    left, right = factors
    if target is None or left is None or right is None:
        return None
    one, other = product.factors
    if (last := _last(target, left, right)) is not None and last in _names(left):
        (one, left), (other, right) = (other, right), (one, left)
    kinds = _kinds(_names(target), _names(left), _names(right))
    if kinds is None or {*itertools.chain(*kinds)} != product.extents.keys():
        return None
    batch, rows, columns, terms = kinds
    of_left = batch
    if not batch:
        batch, columns = _apart(_names(target), rows, columns)
    extents, bias, first = product.extents, None, 0 if batch else 1
    if product.bias is not None:
        own = _dims(op, product.bias, extents)
        shared = None if own is None else _shared(own, (batch, rows, columns))
        if own is None or shared is None:
            return None
        bias = _matrices(product.bias, own, shared[first:], extents)
    return MatrixProduct(
        _matrices(product.target, target, (batch, rows, columns)[first:], extents),
        _matrices(one, left, (of_left, rows, terms)[first:], extents),
        _matrices(other, right, (batch, terms, columns)[first:], extents),
        bias,
    )


def _apart(
    target: tuple[str, ...], rows: tuple[str, ...], columns: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns before all rows, and the others; all are others where they are on one side, or
    where rows and columns take turns: no part of the target is a matrix then."""
    first, last = min(map(target.index, rows)), max(map(target.index, rows))
    before = tuple(n for n in columns if target.index(n) < first)
    others = tuple(n for n in columns if n not in before)
    is_matrix = all(target.index(n) > last for n in others)
    return (before, others) if others and is_matrix else ((), columns)


def _last(target: _Dims, left: _Dims, right: _Dims) -> str | None:
    """The last iterator of the target that only one factor has."""
    single = [n for n in _names(target) if (n in _names(left)) != (n in _names(right))]
    return single[-1] if single else None


def _kinds(
    target: tuple[str, ...], left: tuple[str, ...], right: tuple[str, ...]
) -> tuple[tuple[str, ...], ...] | None:
    """The iterators of the batch, the rows, the columns and the terms; None where one is another,
    or where all there is are vectors."""
    batch = tuple(n for n in target if n in left and n in right)
    rows = tuple(n for n in target if n in left and n not in right)
    columns = tuple(n for n in target if n in right and n not in left)
    terms = tuple(n for n in left if n in right and n not in target)
    if not (rows and columns and terms):
        return None
    wanted = ((target, rows, columns), (left, rows, terms), (right, terms, columns))
    is_whole = all({*batch, *one, *other} == set(names) for names, one, other in wanted)
    return (batch, rows, columns, terms) if is_whole else None


def _dims(op: Op, access: Access, extents: Extents) -> _Dims | None:
    """What the indices of an access are made of; None where one is anything but whole dims, or
    where one iterator stands in two of them."""
    pairs = zip(access.indices, op.extents(access.tensor), strict=True)
    found = [whole_digits(index, extents, size) for index, size in pairs]
    dims = [each for each in found if each is not None]
    names = _names(dims)
    return dims if len(dims) == len(found) and len(set(names)) == len(names) else None


def _names(dims: _Dims) -> tuple[str, ...]:
    return tuple(itertools.chain(*dims))


def _shared(own: _Dims, cells: _Dims) -> _Dims | None:
    """The dims of cells, those empty that a bias has not; None if it has a part of one."""
    names = set(_names(own))
    found = [dim if set(dim) <= names else () for dim in cells]
    return found if names == set(_names(found)) else None


def _matrices(access: Access, own: _Dims, into: _Dims, extents: Extents) -> Matrices:
    """A tensor whose indices are made of these iterators, with dims that are made of those."""
    numbers = {name: at for at, name in enumerate(_names(own))}
    parts = tuple(tuple(extents[name] for name in dim) for dim in own)
    order = tuple(tuple(numbers[name] for name in dim) for dim in into)
    return Matrices(access.tensor, Arrangement(parts, order))
