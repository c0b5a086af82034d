"""An op as one sum of products, through the temporaries in which its statements hand it on.

`columns[n,(c k),i] = x[n,c, i + k]` and then `sum(c,k) w[o,c,k] * columns[n,(c k),i]` is one sum of
products of x and w; so is a sum that a second statement spreads, or adds a bias to.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly, poly, symbol, symbol_atom
from opgen.ir.indices import extents_of
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Expr,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    map_expression,
    reads,
    substitute_access,
)
from opgen.ir.walk import loads, polynomials

Extents = Mapping[str, Poly]


@dataclass(frozen=True, slots=True)
class Product:
    """`target += factors[0] * factors[1]` over a box, and what is added once to each cell."""

    target: Access
    factors: tuple[Access, Access]
    extents: Extents
    bias: Access | None = None


def product_of(op: Op) -> Product | None:
    """The op as one sum of products; None if it is anything else, or does anything beside it."""
    if len(op.outputs) != 1:
        return None
    match _without_copies(op):
        case (only,):
            return _sum(only)
        case (first, Statement(guards=()) as second):
            product = _sum(first)
            if product is None:
                return None
            if first.target.tensor == second.target.tensor:
                return _with_addend(op, product, second)
            return _handed_on(op, product, second)
        case _:
            return None


def digits(value: Poly, extents: Extents) -> tuple[str, ...] | None:
    """The iterators of which an index is made, slowest first: `g, c` for `g*C + c` with c in C.

    None where it is anything but each of them times the extents of those behind it.
    """
    left = {name for name in extents if name in value.symbols}
    found: list[str] = []
    rest, factor = value, poly(1)
    while left:
        name = next((each for each in sorted(left) if _factor(value, each) == factor), None)
        if name is None:
            return None
        left.remove(name)
        found.insert(0, name)
        rest, factor = rest - symbol(name) * factor, factor * extents[name]
    return tuple(found) if rest == 0 else None


def whole_digits(index: Index, extents: Extents, size: Poly) -> tuple[str, ...] | None:
    """The iterators of an index that has every value of its dim once."""
    names = digits(index.value, extents)
    if names is None or index.boundary is not Boundary.NONE:
        return None
    count = functools.reduce(operator.mul, (extents[name] for name in names), poly(1))
    return names if count == size else None


def is_of_one_type(op: Op, product: Product) -> bool:
    """Whether all tensors are used, and are of one type that a call chooses."""
    used = {access.tensor for access in (product.target, *product.factors)}
    if product.bias is not None:
        used.add(product.bias.tensor)
    tensors = (*op.inputs, *op.outputs)
    return used == {tensor.name for tensor in tensors} and all(
        tensor.dtype.is_generic for tensor in (*tensors, *op.temporaries)
    )


def _factor(value: Poly, name: str) -> Poly | None:
    linear = value.linear_in(symbol_atom(name))
    return None if linear is None else linear[0]


# ---------------------------------------------------------------------------- statements
def _sum(statement: Statement) -> Product | None:
    match statement.body:
        case Apply(primitive="mul", arguments=(Read(access=left), Read(access=right))) if (
            statement.reducer is Reducer.ADD and not statement.guards
        ):
            return Product(statement.target, (left, right), extents_of(statement.iterators))
        case _:
            return None


def _with_addend(op: Op, product: Product, added: Statement) -> Product | None:
    """The sum, and a statement that adds a bias to each of its cells."""
    if added.reducer is not Reducer.ADD or not isinstance(added.body, Read):
        return None
    extents, bias = extents_of(added.iterators), added.body.access
    used = frozenset[str]().union(*(index.value.symbols for index in bias.indices))
    names: dict[str, Poly] = {}
    sizes = op.extents(added.target.tensor)
    for mine, theirs, size in zip(added.target.indices, product.target.indices, sizes, strict=True):
        own = whole_digits(mine, extents, size)
        if own is None or not names.keys().isdisjoint(own):
            return None
        same = _same(own, extents, digits(theirs.value, product.extents), product.extents)
        if same is None and not used.isdisjoint(own):
            return None
        # What does not choose the number that is added may be any cell of the dim.
        names |= dict.fromkeys(own, poly(0)) if same is None else same
    if names.keys() != extents.keys():
        return None
    return replace(product, bias=substitute_access(bias, names))


def _handed_on(op: Op, product: Product, second: Statement) -> Product | None:
    """The sum as a temporary, and the statement that writes it where it belongs."""
    match second:
        case Statement(reducer=Reducer.ASSIGN | Reducer.ADD, body=Read(access=total)):
            bias = None
        case Statement(
            reducer=Reducer.ASSIGN,
            body=Apply(primitive="add", arguments=(Read(access=left), Read(access=right))),
        ):
            bias, total = (left, right) if right.tensor == product.target.tensor else (right, left)
            if bias.tensor == total.tensor:
                return None
        case _:
            return None
    extents = extents_of(second.iterators)
    values = _cells_at(op, product.target, product.extents, total, extents)
    if total.tensor != product.target.tensor or values is None:
        return None
    taken = {*op.sizes, *extents, *(let.name for let in op.lets)}
    taken |= frozenset[str]().union(*(a.symbols for a in op.attributes))
    for name in product.extents.keys() - values.keys():
        own = fresh_name(name, taken)
        values[name] = symbol(own)
        extents = {**extents, own: product.extents[name]}
    left, right = (substitute_access(factor, values) for factor in product.factors)
    return Product(second.target, (left, right), extents, bias)


# ---------------------------------------------------------------------------- temporaries
def _without_copies(op: Op) -> tuple[Statement, ...]:
    """The statements without temporaries that hold elements of another tensor, or zeros.

    An element that is absent there is absent from a product, where the temporary would hold 0: the
    same, except beside numbers that are not finite.
    """
    statements = op.statements
    for tensor in op.temporaries:
        match [each for each in statements if each.target.tensor == tensor.name]:
            case [Statement(reducer=Reducer.ASSIGN, guards=(), body=Read()) as writer]:
                readers = [each for each in statements if _uses(each, tensor.name)]
                forwarded = _forwarded(op, writer, readers[0]) if len(readers) == 1 else None
                if forwarded is not None:
                    statements = tuple(
                        forwarded if each is readers[0] else each
                        for each in statements
                        if each is not writer
                    )
            case _:
                pass
    return statements


def _uses(statement: Statement, tensor: str) -> bool:
    in_indices = (load.tensor for value in polynomials(statement) for load in loads(value))
    return tensor in (*in_indices, *(access.tensor for access in reads(statement.body)))


def _forwarded(op: Op, writer: Statement, reader: Statement) -> Statement | None:
    """The reader with what the writer copies in place of the copy."""
    assert isinstance(writer.body, Read)
    source, copied = writer.body.access, writer.target
    extents = extents_of(reader.iterators)
    found: dict[Access, Access] = {}
    for access in reads(reader.body):
        if access.tensor == copied.tensor:
            values = _cells_at(op, copied, extents_of(writer.iterators), access, extents)
            if values is None or len(values) < len(writer.iterators):
                return None
            found[access] = substitute_access(source, values)

    def change(expr: Expr) -> Expr | None:
        match expr:
            case Read(access=access) if access in found:
                return Read(found[access])
            case _:
                return None

    return replace(reader, body=map_expression(reader.body, change))


def _cells_at(
    op: Op, written: Access, own: Extents, access: Access, extents: Extents
) -> dict[str, Poly] | None:
    """The iterators of `written` by those of `access`, where both are the same cell.

    Both are made of iterators with the same extents, and `written` reaches every cell once.
    """
    values: dict[str, Poly] = {}
    sizes = op.extents(written.tensor)
    for mine, theirs, size in zip(written.indices, access.indices, sizes, strict=True):
        names = whole_digits(mine, own, size)
        if names is None or theirs.boundary is not Boundary.NONE:
            return None
        same = _same(names, own, digits(theirs.value, extents), extents)
        if same is None or not values.keys().isdisjoint(same):
            return None
        values |= same
    return values


def _same(
    names: tuple[str, ...], own: Extents, others: tuple[str, ...] | None, extents: Extents
) -> dict[str, Poly] | None:
    """Iterators by others of the same extents, in this order."""
    if others is None or [own[name] for name in names] != [extents[other] for other in others]:
        return None
    return {name: symbol(other) for name, other in zip(names, others, strict=True)}
