"""An op for particular values of its attributes and windows: a simpler op of the same language.

With `stride = 1` an index equation has a unit coefficient instead of a congruence, with `mode = 0`
a statement disappears, with `K = 3` a loop has three terms that can be written out. Nothing
downstream knows that an op is special; its sizes and attributes are just constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly, symbol, symbol_atom
from opgen.ir.indices import extents_of
from opgen.ir.notation import (
    AttributeType,
    Dim,
    Iterator,
    Op,
    Statement,
    Tensor,
    reads,
    substitute_access,
    substitute_expression,
)
from opgen.passes.simplify import simplify_expression

_FIXED: Final = (AttributeType.INT, AttributeType.BOOL, AttributeType.CHOICE)


def attributes_of(op: Op) -> tuple[str, ...]:
    """The symbols of attributes that take few values in a program: all but sizes and floats."""
    return tuple(
        name
        for attribute in op.attributes
        if attribute.type in _FIXED
        for name in attribute.symbols
    )


def default_values(op: Op) -> dict[str, int] | None:
    """The values of `attributes_of` where the caller gives none; None if one must be given."""
    values: dict[str, int] = {}
    for attribute in op.attributes:
        if attribute.type not in _FIXED:
            continue
        default = attribute.default
        if default is None:
            return None
        if isinstance(default, str):
            default = attribute.choices.index(default)
        numbers = default if isinstance(default, tuple) else (default,) * len(attribute.symbols)
        values.update(zip(attribute.symbols, map(int, numbers), strict=True))
    return values


def counts_of(op: Op) -> tuple[str, ...]:
    """Attributes that only say how often loops over outputs run, as the groups of a convolution.

    Nothing is gained by a kernel for each of their values, but for 1.
    """
    return tuple(
        name
        for name in attributes_of(op)
        if not any(name in let.value.symbols for let in op.lets)
        and all(_only_counts(name, statement) for statement in op.statements)
    )


def _only_counts(name: str, statement: Statement) -> bool:
    """Whether a symbol is the extent of iterators of the output, and nothing else."""
    kept = frozenset[str]().union(*(i.value.symbols for i in statement.target.indices))
    for iterator, extent in extents_of(statement.iterators).items():
        if name in extent.symbols and (extent.symbol != name or iterator not in kept):
            return False
    other = {name: symbol("another")}
    return (
        substitute_access(statement.target, other) == statement.target
        and substitute_expression(statement.body, other) == statement.body
        and not any(name in guard.value.symbols for guard in statement.guards)
        and (statement.position is None or name not in statement.position.symbols)
    )


def windows_of(op: Op) -> tuple[str, ...]:
    """The sizes of windows that slide over another dim, such as the extents of a filter.

    A window's iterator is summed over and stands beside another one in an index, as in
    `x[i*stride + k]`; not as a digit, `x[g*C + c]`, nor beside its own dim, `x[c, v - c*step]`.
    """
    found: dict[str, None] = {}
    for statement in op.statements:
        extents = extents_of(statement.iterators)
        kept = frozenset[str]().union(*(i.value.symbols for i in statement.target.indices))
        for access in reads(statement.body):
            bare = {index.value.symbol for index in access.indices}
            for index in access.indices:
                inside = [name for name in extents if name in index.value.symbols]
                for name in inside:
                    size = extents[name].symbol
                    if name in kept or name in bare or size not in op.sizes or len(inside) < 2:
                        continue
                    if not _is_digit(index.value, inside, size):
                        found[size] = None
        found.update(dict.fromkeys(_windows_written(statement, op)))
    return tuple(found)


def _windows_written(statement: Statement, op: Op) -> Iterable[str]:
    """The sizes of windows that are spread: that of `k` in `y[n, i*stride + k] += x[n,i] * w[k]`.

    What tells `k` from `i` is that it stands in tensors that all outputs `n` share.
    """
    extents = extents_of(statement.iterators)
    bare = [{index.value.symbol for index in access.indices} for access in reads(statement.body)]
    kept = {index.value.symbol for index in statement.target.indices} & extents.keys()
    own = frozenset(name for access in bare if kept <= access for name in access)
    for index in statement.target.indices:
        inside = [name for name in extents if name in index.value.symbols]
        windows = [name for name in inside if name not in own and any(name in a for a in bare)]
        if not kept or own.isdisjoint(inside):
            continue
        for name in windows:
            size = extents[name].symbol
            if size in op.sizes and not _is_digit(index.value, inside, size):
                yield size


def given_sizes(op: Op, public: Op) -> tuple[str, ...]:
    """Sizes of an op that attributes alone decide in the op of the spec it was derived from.

    With `let K = kernel_size[0]` the gradient of an unfolding is given K, of few values as well.
    """
    attributes = set(attributes_of(public))
    decided = [
        let.name for let in public.lets if let.value.symbols and let.value.symbols <= attributes
    ]
    given = {each.name for each in op.attributes if each.type is AttributeType.SIZE}
    given.update(op.sizes)
    return tuple(name for name in decided if name in given)


def factors_of(op: Op) -> tuple[str, ...]:
    """Sizes that are factors of composite dims: the channels of a group, say."""
    parts = (
        part.symbol
        for tensor in (*op.inputs, *op.outputs)
        for dim in tensor.dims
        if len(dim.parts) > 1
        for part in dim.parts
    )
    return tuple(dict.fromkeys(name for name in parts if name in op.sizes))


def lengths_of(op: Op) -> tuple[str, ...]:
    """Sizes of the last two dims of tensors that have more: the lengths of rows and columns.

    A length may also be what a caller asks for, as with `let W = output_size[1]`.
    """
    found: dict[str, None] = {}
    asked = {s for each in op.attributes if each.type is AttributeType.SIZE for s in each.symbols}
    known = {*op.sizes, *(let.name for let in op.lets if let.value.symbol in asked)}
    for tensor in (*op.inputs, *op.outputs):
        if len(tensor.dims) < 3:
            continue
        for dim in tensor.dims[-2:]:
            found.update(dict.fromkeys(part.symbol for part in dim.parts if part.symbol))
            if dim.extent.symbol:
                found[dim.extent.symbol] = None
    return tuple(name for name in found if name in known)


def rows_of_points(op: Op) -> tuple[str, ...]:
    """Sizes of the rows of tensors of which another tensor says where a row is, `x[i[e],d]`.

    A point loops over one row: a short one takes less time than to find out that it is short.
    """
    found: dict[str, None] = {}
    for statement in op.statements:
        extents = extents_of(statement.iterators)
        for access in (statement.target, *reads(statement.body)):
            *places, last = (poly(0), *(index.value for index in access.indices))
            size = extents[last.symbol].symbol if last.symbol in extents else None
            if size in op.sizes and any(place.is_data_dependent for place in places):
                found[size] = None
    return tuple(found)


def sizes_of_products(op: Op) -> frozenset[str]:
    """Sizes that a product of matrices has: of what two tensors are read by, each of which has an
    iterator that the other one has not."""
    found = set[str]()
    for statement in op.statements:
        extents = extents_of(statement.iterators)
        names = [
            extents.keys()
            & frozenset[str]().union(*(index.value.symbols for index in each.indices))
            for each in reads(statement.body)
        ]
        for one, other in itertools.combinations(names, 2):
            if one - other and other - one:
                found.update(str(extents[name].symbol) for name in one | other)
    return frozenset(found)


def _is_digit(value: Poly, names: Iterable[str], size: str) -> bool:
    """Whether an iterator is a digit beside others: these count in multiples of its own extent."""
    for name in names:
        split = value.linear_in(symbol_atom(name))
        if split is None or size in split[0].symbols:
            return True
    return False


def specialise(op: Op, values: Mapping[str, int]) -> Op:
    """The op with sizes and attributes of these names replaced by these values.

    It is meant for scheduling: it no longer has the attributes, and it has the documentation, the
    constraints and the gradients of no op.
    """
    known = {name: poly(value) for name, value in values.items()}
    for let in op.lets:
        value = let.value.substitute(known)
        if value.is_constant:
            known[let.name] = value
    statements = tuple(_statement(statement, known) for statement in op.statements)
    possible = [s for s in statements if not any(map(_never, s.guards))]
    written = {statement.target.tensor for statement in possible}
    return replace(
        op,
        inputs=tuple(_tensor(tensor, known) for tensor in op.inputs),
        outputs=tuple(_tensor(tensor, known) for tensor in op.outputs),
        temporaries=tuple(_tensor(tensor, known) for tensor in op.temporaries),
        # Of one with several numbers some may be left open.
        attributes=tuple(a for a in op.attributes if not known.keys() >= set(a.symbols)),
        sizes=tuple(name for name in op.sizes if name not in known),
        lets=tuple(replace(let, value=let.value.substitute(known)) for let in op.lets),
        constraints=tuple(
            replace(each, condition=each.condition.substitute(known)) for each in op.constraints
        ),
        # A tensor must be written by someone, if only with the identity of its reducer.
        statements=tuple(s for s in statements if s in possible or s.target.tensor not in written),
        gradients=(),
        doc="",
    )


def _tensor(tensor: Tensor, known: dict[str, Poly]) -> Tensor:
    dims = tuple(
        Dim(dim.extent.substitute(known), tuple(part.substitute(known) for part in dim.parts))
        for dim in tensor.dims
    )
    return replace(tensor, dims=dims)


def _statement(statement: Statement, known: dict[str, Poly]) -> Statement:
    guards = (guard.substitute(known) for guard in statement.guards)
    position = statement.position
    return replace(
        statement,
        target=substitute_access(statement.target, known),
        iterators=tuple(Iterator(i.name, i.extent.substitute(known)) for i in statement.iterators),
        guards=tuple(guard for guard in guards if not _always(guard)),
        body=simplify_expression(substitute_expression(statement.body, known)),
        position=None if position is None else position.substitute(known),
    )


def _always(guard: Condition) -> bool:
    return guard.value.is_constant and guard.holds({})


def _never(guard: Condition) -> bool:
    return guard.value.is_constant and not guard.holds({})
