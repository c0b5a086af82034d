"""An op as several ops, one after the other, of which some are products and nothing else.

Before:

    op conv_relu(x[N,C,H,W], k[O,C,3,3], b[O]) -> y[N,O,H,W]
      tmp z[N,O,H,W]
      z[n,o,h,w] = sum(c, i in 3, j in 3) x[n,c, h+i-1 ?0, w+j-1 ?0] * k[o,c,i,j]
      y[n,o,h,w] = max(z[n,o,h,w] + b[o], 0)

After: an op of `x` and `k` that computes `z`, and one of `z` and `b` that computes `y`. What stands
between them in memory is what the op has as a temporary anyway, so nothing is computed that was
not, and in the same types but for calls in bfloat16. The first one is a convolution, which those
may compute who have a fast one at hand.

Statements that are no such products go together where they can, as one op that is computed like any
other. A product that adds to a tensor which others write to as well becomes a tensor of its own,
which a statement adds.

Calls in bfloat16 have stages of their own, between which some tensors keep the 32 bits that they
have within an op, see `opgen.passes.halves`. A derivative that computes a tensor of its op again
gives it the bits that it has in the stages of that op: `max(z[n,o] + b[o], 0)` passes a gradient
where it was positive, whatever else is done with `z`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from opgen.ir.notation import (
    Apply,
    Dim,
    DType,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
)
from opgen.ir.walk import all_reads
from opgen.passes.alike import alike
from opgen.passes.assemble import Parts, assemble
from opgen.passes.convolution import convolution
from opgen.passes.halves import wide_between
from opgen.passes.matrix_product import matrix_product
from opgen.passes.own_targets import with_own_targets


@dataclass(frozen=True, slots=True)
class Stage:
    """One of several ops, and the position of the statement in the whole if it is one apart.

    A product whose result `is_wide` is to be computed in 32 bits, of factors with 16. One that
    `is_rounded_again` has 16, since the op that this one is derived from computes it so.
    """

    op: Op
    statement: int | None
    is_wide: bool = False
    is_rounded_again: bool = False


_INTEGERS = (DType.INT, DType.I64)
"""Types of integers that temporaries have in all their bits."""


def products_of(op: Op) -> tuple[int, ...]:
    """The positions of the statements that by themselves are products a library may compute.

    None of an op with nothing beside it, which is one itself, or with hand-written gradients.
    """
    if len(op.statements) < 2 or op.gradients or not _is_in_order(op):
        return ()
    if not all(each.dtype.is_generic or each.dtype in _INTEGERS for each in op.temporaries):
        return ()  # a temporary has more bits than a tensor of such a type
    found = []
    for at, statement in enumerate(op.statements):
        if _has_form(statement):
            alone = _assembled(op, op.name, [statement], [statement.target.tensor])
            if convolution(alone) is not None or matrix_product(alone) is not None:
                found.append(at)
    return tuple(found)


def stages(
    op: Op, apart: Collection[int], *, are_halves: bool = False, origin: Op | None = None
) -> tuple[Stage, ...]:
    """The ops that compute an op, in order; each of the statements `apart` is one.

    Their inputs and outputs have the names of the tensors that they are. If `are_halves` they are
    those for calls in bfloat16; `origin` is then the op that this one is derived from, if it is.
    """
    whole = op
    op, products = with_own_targets(whole, apart)
    wide = wide_between(op, products) if are_halves else frozenset()
    again: frozenset[str] = frozenset()
    if are_halves and origin is not None:
        there, products_there = with_own_targets(origin, _apart_there(whole, apart, origin))
        again, wide_there = alike(op, there), wide_between(there, products_there)
        wide, again = wide - again | wide_there & again, again - wide_there
    units = _units(op, products)
    made: list[tuple[list[Statement], int | None]] = []
    known = {tensor.name for tensor in op.inputs} | {table.name for table in op.tables}
    while units:
        for unit in [each for each in units if each.product is not None and each.needs <= known]:
            made.append((list(unit.statements), unit.product))
            known.add(unit.target)
            units.remove(unit)
        together: list[Statement] = []
        for unit in [each for each in units if each.product is None]:
            if unit.needs <= known:
                together += unit.statements
                known.add(unit.target)
                units.remove(unit)
        if together:
            made.append((together, None))
    return tuple(_staged(op, made, wide, again))


def _apart_there(op: Op, apart: Collection[int], origin: Op) -> list[int]:
    """The products that the op which an op is derived from has apart, if it has those apart that
    this one has, and none that this one has within other stages."""
    within = {
        replace(each, is_exclusive=False)
        for at, each in enumerate(op.statements)
        if at not in apart
    }
    return [
        at
        for at in products_of(origin)
        if replace(origin.statements[at], is_exclusive=False) not in within
    ]


# ---------------------------------------------------------------------------- statements
def _has_form(statement: Statement) -> bool:
    """Whether a statement may be a product: it sums what two tensors have, times each other."""
    match statement.body:
        case Apply(primitive="mul", arguments=(Read(), Read())):
            return statement.reducer is Reducer.ADD and not statement.guards
        case _:
            return False


def _is_in_order(op: Op) -> bool:
    """Whether every tensor is whole before another one is computed from it."""
    last = {each.target.tensor: at for at, each in enumerate(op.statements)}
    return all(
        last.get(name, -1) < at or name == statement.target.tensor
        for at, statement in enumerate(op.statements)
        for name in _needs(statement)
    )


def _needs(statement: Statement) -> set[str]:
    """The tensors and tables that a statement reads."""
    return {access.tensor for access in all_reads(statement)}


# ---------------------------------------------------------------------------- units
@dataclass(frozen=True, slots=True)
class _Unit:
    """Statements that go together: a product, and its position, or all that write to one tensor."""

    target: str
    statements: tuple[Statement, ...]
    needs: frozenset[str]
    product: int | None


def _units(op: Op, products: Mapping[str, int]) -> list[_Unit]:
    found = []
    for name in dict.fromkeys(each.target.tensor for each in op.statements):
        own = tuple(each for each in op.statements if each.target.tensor == name)
        needs = frozenset[str]().union(*map(_needs, own)) - {name}
        found.append(_Unit(name, own, needs, products.get(name)))
    return found


def _staged(
    op: Op,
    made: Sequence[tuple[Sequence[Statement], int | None]],
    wide: frozenset[str],
    again: frozenset[str],
) -> Iterator[Stage]:
    """An op for each group of statements; products have all their tensors in one type."""
    results = {tensor.name for tensor in op.outputs}
    for at, (statements, product) in enumerate(made):
        later = {name for others, _ in made[at + 1 :] for each in others for name in _needs(each)}
        targets = dict.fromkeys(each.target.tensor for each in statements)
        outputs = [name for name in targets if name in later or name in results]
        if outputs:
            declared = wide if product is None else ()
            name = f"{op.name}_stage_{at + 1}"
            staged = _assembled(op, name, statements, outputs, declared)
            apart = frozenset(outputs[:1] if product is not None else ())
            yield Stage(staged, product, bool(apart & wide), bool(apart & again))


def _assembled(
    op: Op,
    name: str,
    statements: Sequence[Statement],
    outputs: Sequence[str],
    wide: Collection[str] = (),
) -> Op:
    """The op of these statements, whose other tensors are inputs; those that are `wide` are
    declared so."""
    targets = {each.target.tensor for each in statements}
    everything = (*op.inputs, *op.temporaries, *op.outputs)
    handed = {each.name: plain(op, each.name) for each in everything}
    handed |= {each: replace(handed[each], dtype=DType.F32) for each in wide}
    parts = Parts(
        name,
        "",
        op.inputs[0].name if op.inputs else "",
        tuple(each for name, each in handed.items() if name not in targets),
        tuple(handed[each] for each in outputs),
        tuple(each for each in op.temporaries if each.name in targets and each.name not in outputs),
        tuple(statements),
    )
    return assemble(op, parts)


def plain(op: Op, name: str) -> Tensor:
    """A tensor of an op as one that is handed on: with dims of one size each."""
    tensor = op.tensor(name)
    assert isinstance(tensor, Tensor)
    return replace(tensor, dims=tuple(Dim(dim.extent) for dim in tensor.dims), default=None)
