"""Recognise a convolution by its index maps, whatever the spec calls it.

The relation of a convolution has three tensors and can be solved for each of them, so one pattern
finds the forward op, the transposed one, and both gradients:

    result[n, (g o), i_1, i_2, ...]
    image [n, (g c), i_1*s_1 - p_1 + k_1*d_1, ...]      `?0` where it is read, `?drop` as a target
    weight[(g o), c, k_1, k_2, ...]
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly, poly, symbol, symbol_atom
from opgen.ir.convolution import Convolution, Role
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    DType,
    Op,
    Read,
    Reducer,
    Statement,
    substitute_access,
)

_GENERIC = frozenset({DType.SAME, DType.FLOAT})
_RANKS = (3, 4, 5)
_PLAIN = frozenset({Boundary.NONE})
_READ = frozenset({Boundary.NONE, Boundary.ZERO})
_WRITTEN = frozenset({Boundary.NONE, Boundary.DROP})


def convolution(op: Op) -> Convolution | None:
    """The op as a convolution; None if it is anything else, or does anything beside it."""
    product = _product(op)
    if product is None or not _is_generic(op, product):
        return None
    accesses = (product.target, *product.factors)
    for order in itertools.permutations(range(3)):
        found = _in_roles(op, product, *(accesses[at] for at in order))
        if found is not None:
            target = tuple(Role)[order.index(0)]
            return replace(found, target=target) if _fits(product, found, target) else None
    return None


# ---------------------------------------------------------------------------- the sum of products
@dataclass(frozen=True, slots=True)
class _Product:
    """`target += factors[0] * factors[1]`, and what is added to each cell."""

    target: Access
    factors: tuple[Access, Access]
    extents: Mapping[str, Poly]
    bias: Access | None = None


def _product(op: Op) -> _Product | None:
    """The op as one sum of products, with or without a bias."""
    if len(op.outputs) != 1:
        return None
    match op.statements:
        case (statement,) if not op.temporaries:
            return _sum(statement)
        case (Statement() as first, Statement(body=Read(access=bias)) as second) if (
            not op.temporaries and second.reducer is Reducer.ADD
        ):
            return _with_bias(op, _sum(first), second, second.target, bias)
        case (
            Statement() as first,
            Statement(
                body=Apply(primitive="add", arguments=(Read(access=left), Read(access=right)))
            ) as second,
        ) if second.reducer is Reducer.ASSIGN and len(op.temporaries) == 1:
            bias, total = (left, right) if right.tensor == first.target.tensor else (right, left)
            return _with_bias(op, _sum(first), second, total, bias)
        case _:
            return None


def _sum(statement: Statement) -> _Product | None:
    match statement.body:
        case Apply(primitive="mul", arguments=(Read(access=left), Read(access=right))) if (
            statement.reducer is Reducer.ADD and not statement.guards
        ):
            extents = {iterator.name: iterator.extent for iterator in statement.iterators}
            return _Product(statement.target, (left, right), extents)
        case _:
            return None


def _with_bias(
    op: Op, product: _Product | None, added: Statement, total: Access, bias: Access
) -> _Product | None:
    """The sum and then a statement that adds a bias to `total`, both over the same cells."""
    if product is None or added.guards or bias.tensor == total.tensor:
        return None
    names: dict[str, Poly] = {}
    for mine, theirs in zip(product.target.indices, total.indices, strict=True):
        if theirs.boundary is not Boundary.NONE:
            return None
        own = theirs.value.symbol
        if own is not None and own not in names:
            names[own] = mine.value
        elif theirs.value.substitute(names) != mine.value:
            # A composite dim: its iterators are taken to be the same in both.
            same = {each.name for each in added.iterators} & product.extents.keys()
            names.update({name: symbol(name) for name in same})
            if theirs.value.substitute(names) != mine.value:
                return None
    extents = {each.name: each.extent for each in added.iterators}
    for name, value in names.items():
        bare = value.symbol
        if bare is not None and product.extents.get(bare) != extents.get(name):
            return None
    if not _covers(op, added.target, extents):
        return None
    target = product.target
    if added.target.tensor != target.tensor:
        target = substitute_access(added.target, names)
    return replace(product, target=target, bias=substitute_access(bias, names))


def _covers(op: Op, access: Access, extents: Mapping[str, Poly]) -> bool:
    """Whether every cell of a tensor is reached once: dims are iterators or pairs of them."""
    found: list[str] = []
    for index, extent in zip(access.indices, op.extents(access.tensor), strict=True):
        dim = _channels(index.value, extents)
        if dim is None or index.boundary is not Boundary.NONE:
            return False
        names = [dim.own] if dim.group is None else [dim.group, dim.own]
        found += names
        if functools.reduce(operator.mul, (extents[name] for name in names)) != extent:
            return False
    return sorted(found) == sorted(extents)


def _is_generic(op: Op, product: _Product) -> bool:
    """Whether all tensors are used, and are of one type that a call chooses."""
    used = {access.tensor for access in (product.target, *product.factors)}
    if product.bias is not None:
        used.add(product.bias.tensor)
    tensors = (*op.inputs, *op.outputs)
    return used == {tensor.name for tensor in tensors} and all(
        tensor.dtype in _GENERIC and not tensor.batched for tensor in tensors
    )


# ---------------------------------------------------------------------------- roles
def _in_roles(
    op: Op, product: _Product, result: Access, image: Access, weight: Access
) -> Convolution | None:
    """The product with its tensors in these roles; None where an index does not fit."""
    rank = len(result.indices)
    if rank not in _RANKS or {len(image.indices), len(weight.indices)} != {rank}:
        return None
    extents = product.extents
    r, x, w = ([index.value for index in access.indices] for access in (result, image, weight))
    batch, channel = _bare(r[0], extents), _bare(w[1], extents)
    inner = [_bare(value, extents) for value in r[2:]]
    taps = [_bare(value, extents) for value in w[2:]]
    if batch is None or channel is None or x[0] != r[0] or w[0] != r[1]:
        return None
    outputs, inputs = _channels(r[1], extents), _channels(x[1], extents)
    if outputs is None or inputs is None or inputs.own != channel:
        return None
    if outputs.group != inputs.group:
        return None
    steps = [_step(*each, extents) for each in zip(x[2:], inner, taps, strict=True)]
    found = [step for step in steps if step is not None]
    names = [batch, channel, outputs.own, *inner, *taps]
    names += [] if outputs.group is None else [outputs.group]
    if len(found) < len(steps) or len(set(names)) < len(names) or set(names) != extents.keys():
        return None
    groups = poly(1) if outputs.group is None else extents[outputs.group]
    size = [extents[name] for name in (*inner, *taps) if name is not None]
    many, few = groups * extents[outputs.own], groups * extents[channel]
    wanted = (
        (result, [extents[batch], many, *size[: rank - 2]]),
        (image, [extents[batch], few]),
        (weight, [many, extents[channel], *size[rank - 2 :]]),
    )
    for access, dims in wanted:
        if list(op.extents(access.tensor)[: len(dims)]) != dims:
            return None
    return Convolution(
        Role.RESULT,
        result.tensor,
        image.tensor,
        weight.tensor,
        None if product.bias is None else product.bias.tensor,
        groups,
        tuple(step.stride for step in found),
        tuple(step.padding for step in found),
        tuple(step.dilation for step in found),
    )


def _bare(value: Poly, extents: Mapping[str, Poly]) -> str | None:
    return value.symbol if value.symbol in extents else None


@dataclass(frozen=True, slots=True)
class _Channels:
    """A dim of channels: the iterator over those of a group, and the one over groups if any."""

    own: str
    group: str | None


def _channels(value: Poly, extents: Mapping[str, Poly]) -> _Channels | None:
    names = sorted(value.symbols & extents.keys())
    if len(names) == 1 and value == symbol(names[0]):
        return _Channels(names[0], None)
    if len(names) == 2:
        for own, group in (names, reversed(names)):
            if value == symbol(group) * extents[own] + symbol(own):
                return _Channels(own, group)
    return None


@dataclass(frozen=True, slots=True)
class _Step:
    stride: Poly
    padding: Poly
    dilation: Poly


def _step(
    value: Poly, inner: str | None, tap: str | None, extents: Mapping[str, Poly]
) -> _Step | None:
    """`inner*stride - padding + tap*dilation` with factors that are no iterators."""
    if inner is None or tap is None:
        return None
    along = value.linear_in(symbol_atom(inner))
    across = None if along is None else along[1].linear_in(symbol_atom(tap))
    if along is None or across is None:
        return None
    stride, dilation, rest = along[0], across[0], across[1]
    if any(not each.symbols.isdisjoint(extents) for each in (stride, dilation, rest)):
        return None
    return _Step(stride, -rest, dilation)


def _fits(product: _Product, found: Convolution, target: Role) -> bool:
    """Whether boundaries and bias are those of a convolution."""
    for access in (product.target, *product.factors):
        spatial = _PLAIN
        if access.tensor == found.image:
            spatial = _WRITTEN if target is Role.IMAGE else _READ
        boundaries = [index.boundary for index in access.indices]
        if not _PLAIN.issuperset(boundaries[:2]) or not spatial.issuperset(boundaries[2:]):
            return False
    if product.bias is None:
        return True
    indices = [(index.value, index.boundary) for index in product.bias.indices]
    channels: Sequence[object] = [(product.target.indices[1].value, Boundary.NONE)]
    return target is not Role.WEIGHT and indices == channels
