"""The same op with the dims of some tensors in another order: that of their memory.

Schedules take the last dim of a tensor to have consecutive addresses. For an image in channels-last
format that is the second dim, so such a tensor is given as `x[N,H,W,C]`; its strides are passed in
that order as well, and nothing downstream knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from opgen.algebra.poly import Atom, Kind, Poly, of_atom, poly, rebuild
from opgen.ir.loops import Program, Workspace
from opgen.ir.notation import Access, Apply, Expr, Op, Read, Statement, Tensor, Value, reads
from opgen.ir.walk import all_reads

Orders = Mapping[str, tuple[int, ...]]
"""The axes of tensors from the slowest to the fastest, for those that are not in declared order."""

_Item = TypeVar("_Item")

_IMAGES = (4, 5)
"""Ranks of tensors that PyTorch has a channels-last format for."""


def channels_last(op: Op, layout: int) -> dict[str, tuple[int, ...]]:
    """The orders for a call whose images are in channels-last format.

    Bit i of `layout` says it of the i-th of all inputs and outputs. Where there is one, inputs that
    `_packed` names begin with their channels, and are given with those last. Tensors that `_filled`
    names stay in declared order.
    """
    orders = {
        tensor.name: (0, *range(2, len(tensor.dims)), 1)
        for at, tensor in enumerate((*op.inputs, *op.outputs))
        if layout >> at & 1
    }
    if orders:
        ranks = {tensor.name: len(tensor.dims) for tensor in op.inputs}
        orders |= {name: (*range(1, ranks[name]), 0) for name in _packed(op) if name not in orders}
    return {name: order for name, order in orders.items() if name not in _filled(op)}


def with_filters_of_groups(op: Op, orders: Orders) -> dict[str, tuple[int, ...]]:
    """The orders with filters of several groups, in channels-last format, like those in any other.

    A filter in that format is given with its second dim last, along the channels of a group: a sum
    over many finds them side by side. With several groups it is neighbouring cells that lie in
    neighbouring channels, unless these go along that dim. `op` is the special one.
    """
    found = dict(orders)
    packed = _packed(op)
    images = found.keys() - set(packed)
    ranks = {tensor.name: len(tensor.dims) for tensor in op.inputs}
    for statement in op.statements:
        accesses = (statement.target, *reads(statement.body))
        long = {each.name for each in statement.iterators if each.extent != poly(1)}
        channels = [a.indices[1].value.symbols & long for a in accesses if a.tensor in images]
        for access in accesses:
            name = access.tensor
            if name not in packed or name not in found or not channels:
                continue
            first, second, *_ = (index.value.symbols for index in access.indices)
            of_target = statement.target.indices[1:2]
            if any(second & index.value.symbols & long for index in of_target):
                continue
            if first & frozenset[str].intersection(*map(frozenset, channels)):
                found[name] = (*range(1, ranks[name]), 0)
    return found


def with_columns(op: Op, orders: Orders) -> dict[str, tuple[int, ...]]:
    """The orders with other ones of filters whose second dim goes along the channels of a result.

    In the gradient of a grouped convolution for its image neighbouring cells of a group then read
    neighbours of the filter, as those of the convolution do. `op` is the special one: where groups
    have one channel, or there is one group, the filter stays as it is.
    """
    found = dict(orders)
    for statement in op.statements:
        target = statement.target
        if orders.get(target.tensor, (1,))[0] != 0:
            continue
        long = {each.name for each in statement.iterators if each.extent != poly(1)}
        channels = target.indices[1].value.symbols & long
        for access in reads(statement.body):
            order = orders.get(access.tensor, (0,))
            if order[0] == 0 or len(order) < 2:
                continue
            first, second, *_ = (index.value.symbols & channels for index in access.indices)
            if first and second and first.isdisjoint(second):
                found[access.tensor] = (0, *range(2, len(order)), 1)
    return found


def of_images(orders: Orders) -> Orders:
    """The orders of images alone: filters are as they are."""
    return {name: order for name, order in orders.items() if order[0] == 0}


def with_temporaries(op: Op, orders: Orders, program: Program) -> dict[str, tuple[int, ...]]:
    """The orders with those of temporaries that have the channels of an image in such an order.

    Kernels that walk along the channels of the image then find those of the temporary side by side.
    `program` says which temporaries are stored.
    """
    stored = {operand.name for operand in program.operands}
    found = dict(orders)
    ranks = {
        each.name: len(each.dims)
        for each in op.temporaries
        if len(each.dims) in _IMAGES and not each.batched and each.name in stored
    }
    ranks = {name: rank for name, rank in ranks.items() if name not in _filled(op)}
    images = {name for name, order in orders.items() if order[0] == 0}
    accesses = [(each.target, *all_reads(each)) for each in op.statements]
    while True:
        more = {
            access.tensor
            for together in accesses
            for access in together
            if access.tensor in ranks.keys() - images
            and any(
                other.tensor in images and other.indices[1].value == access.indices[1].value
                for other in together
            )
        }
        if not more:
            return found
        images |= more
        found |= {name: (0, *range(2, ranks[name]), 1) for name in sorted(more)}


def with_workspaces(orders: Orders, workspaces: Iterable[Workspace]) -> dict[str, tuple[int, ...]]:
    """The orders with those of the wide copies of outputs, which have their dims."""
    return {**orders, **{w.name: orders[w.output] for w in workspaces if w.output in orders}}


def _filled(op: Op) -> frozenset[str]:
    """Tensors that are read with several `?(v)`, of which the first one that is outside decides."""
    accesses = [access for statement in op.statements for access in all_reads(statement)]
    fills = [
        (each.tensor, {repr(i.fill) for i in each.indices if i.fill is not None})  # -0.0 is not 0.0
        for each in accesses
    ]
    return frozenset(name for name, values in fills if len(values) > 1)


def _loaded(op: Op) -> frozenset[str]:
    """Tensors that are read as part of an index."""
    polynomials = [
        value
        for statement in op.statements
        for value in (
            *(guard.value for guard in statement.guards),
            *(
                index.value
                for access in (statement.target, *reads(statement.body))
                for index in access.indices
            ),
        )
    ]
    return frozenset(atom.name for value in polynomials for atom in value.loads)


def _packed(op: Op) -> tuple[str, ...]:
    """Inputs with a first dim that goes along the channels of images: the filters of a convolution.

    No other dim of theirs does, so that with the channels last they are read like an image.
    """
    if any(tensor.batched for tensor in (*op.inputs, *op.outputs)) or _loaded(op):
        return ()
    images = {t.name for t in (*op.inputs, *op.outputs) if len(t.dims) in _IMAGES}
    accesses = [(s, a) for s in op.statements for a in (s.target, *reads(s.body))]
    found = dict.fromkeys(tensor.name for tensor in op.inputs if len(tensor.dims) > 1)
    for name in list(found):
        for statement, access in accesses:
            if access.tensor == name and not _leads(statement, access, images - {name}):
                del found[name]
                break
    return tuple(found)


def _leads(statement: Statement, access: Access, images: set[str]) -> bool:
    """Whether the first index goes along the channels of an image, and no other one does."""
    channels = frozenset[str]().union(
        *(
            each.indices[1].value.symbols
            for each in (statement.target, *reads(statement.body))
            if each.tensor in images
        )
    )
    first, *others = (index.value.symbols for index in access.indices)
    shared = channels & first & {iterator.name for iterator in statement.iterators}
    return bool(shared) and all(map(shared.isdisjoint, others))


def relayout(op: Op, orders: Orders) -> Op:
    """The op with these tensors in these orders. It is meant for scheduling."""
    if not orders:
        return op
    return replace(
        op,
        inputs=tuple(_tensor(tensor, orders) for tensor in op.inputs),
        outputs=tuple(_tensor(tensor, orders) for tensor in op.outputs),
        temporaries=tuple(_tensor(tensor, orders) for tensor in op.temporaries),
        statements=tuple(
            replace(
                statement,
                target=_access(statement.target, orders),
                guards=tuple(
                    replace(each, value=_integer(each.value, orders)) for each in statement.guards
                ),
                body=_expression(statement.body, orders),
                position=_position(statement.position, orders),
            )
            for statement in op.statements
        ),
    )


def _tensor(tensor: Tensor, orders: Orders) -> Tensor:
    return replace(tensor, dims=_ordered(tensor.dims, orders.get(tensor.name)))


def _access(access: Access, orders: Orders) -> Access:
    indices = tuple(
        replace(each, value=_integer(each.value, orders)) if each.value.is_data_dependent else each
        for each in access.indices
    )
    return replace(access, indices=_ordered(indices, orders.get(access.tensor)))


def _position(position: Poly | None, orders: Orders) -> Poly | None:
    return None if position is None else _integer(position, orders)


def _integer(value: Poly, orders: Orders) -> Poly:
    """The integer, with what it reads from tensors in their orders."""

    def change(atom: Atom) -> Poly:
        args = tuple(_integer(each, orders) for each in atom.args)
        if atom.kind is Kind.LOAD:
            args = _ordered(args, orders.get(atom.name))
        return rebuild(atom, args) if args != atom.args else of_atom(atom)

    return value.map_atoms(change) if value.is_data_dependent else value


def _expression(expr: Expr, orders: Orders) -> Expr:
    match expr:
        case Read(access=access):
            return Read(_access(access, orders))
        case Value(value=value):
            return Value(_integer(value, orders))
        case Apply(primitive=primitive, arguments=arguments):
            return Apply(primitive, tuple(_expression(each, orders) for each in arguments))
        case _:
            return expr


def _ordered(items: Sequence[_Item], order: tuple[int, ...] | None) -> tuple[_Item, ...]:
    return tuple(items) if order is None else tuple(items[at] for at in order)
