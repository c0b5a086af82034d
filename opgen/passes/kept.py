"""Gradients that read temporaries of the forward pass in place of computing them again.

Before, the gradient of a convolution with a ReLU:

    z[n,o,h,w] = sum(c, i, j) x[n,c, h+i-1 ?0, w+j-1 ?0] * k[o,c,i,j]
    grad_z[n,o,h,w] = select(z[n,o,h,w] + b[o] < 0, 0, grad_y[n,o,h,w])
    ...

After: the same without its first statement, and `z` is an input.

An op that keeps `z` has it as an output. Of any op those temporaries are worth it that are totals:
sums or the like with fewer dims than what they are of, which take as long as all else. So are the
positions of extremes, which only gradients look for, see `passes.kept_positions`.

Where all that a temporary is multiplied by was divided by a sum, gradients read the quotient if an
output is that, see `passes.kept_quotients`: of `y[b,d] = p[b,d] / s[b]` they read `y`, and compute
no exponential.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from opgen.ir.family import Keepable
from opgen.ir.notation import Apply, Op, Reducer, Statement, reads
from opgen.ir.walk import nodes
from opgen.passes.alike import alike
from opgen.passes.assemble import Parts, assemble
from opgen.passes.kept_positions import positions, telling, told, with_positions
from opgen.passes.kept_quotients import quotients, without_quotient
from opgen.passes.stages import plain

_CHEAP = frozenset({"add", "sub", "mul", "neg", "max", "min", "abs", "select"})
"""What takes no longer than a product."""


def keepable(op: Op) -> Keepable:
    """What may be kept of a call of an op; nothing where an author wrote its gradients."""
    if op.gradients:
        return Keepable()
    return Keepable(_totals(op), positions(op), telling(op))


def _totals(op: Op) -> tuple[str, ...]:
    return tuple(
        each.name
        for each in op.temporaries
        if each.dtype.is_generic
        and any(
            _is_joined(statement) or _has_more_dims(op, statement)
            for statement in op.statements
            if statement.target.tensor == each.name
        )
    )


def _is_joined(statement: Statement) -> bool:
    """Whether a tensor says which points join in a cell, as those of the edges to a node."""
    indices = (index.value for index in statement.target.indices)
    return statement.reducer is not Reducer.ASSIGN and any(i.is_data_dependent for i in indices)


def _has_more_dims(op: Op, statement: Statement) -> bool:
    """Whether what a statement reads has dims that its target has not."""
    rank = len(statement.target.indices)
    return len(statement.iterators) > rank and any(
        len(op.extents(access.tensor)) > rank for access in reads(statement.body)
    )


def keeping(op: Op, names: Collection[str]) -> Op:
    """The op with temporaries of these names, or of positions, as further outputs."""
    known = with_positions(op)
    kept = tuple(plain(known, each.name) for each in known.temporaries if each.name in names)
    more = known.statements[len(op.statements) :]
    return replace(
        op,
        name=f"{op.name}_keeping",
        outputs=(*op.outputs, *kept),
        temporaries=tuple(each for each in op.temporaries if each.name not in names),
        statements=(*op.statements, *(each for each in more if each.target.tensor in names)),
        gradients=(),
    )


def with_kept(op: Op, forward: Op, names: Collection[str]) -> tuple[Op, tuple[str, ...]]:
    """The derived op with those of the named tensors of `forward` as inputs, the last but what
    flows back, that it reads; and which these are.

    They are temporaries that both compute by the same statements, and outputs that tell others.
    """
    op, places = told(op, forward, names)
    forward = with_positions(forward)
    same = alike(op, forward)
    kept = {each.name: each for each in op.temporaries if each.name in names}
    kept = {name: plain(op, name) for name in kept if name in same}
    found = [
        each
        for each in quotients(forward)
        if each.output.tensor in names
        and each.divisor.tensor in kept
        and _is_worth_it(op, each.dividend.tensor, same)
    ]
    statements = [each for each in op.statements if each.target.tensor not in kept]
    own = {each.name for each in op.temporaries} - kept.keys()
    for each in found:
        without = without_quotient(statements, each, own)
        if without is not None:
            statements = without
            places = (*places, each.output.tensor)
            kept.pop(each.dividend.tensor, None)
    kept |= {name: plain(forward, name) for name in places}
    written = {each.target.tensor for each in statements}
    of_forward = {each.name for each in forward.inputs}
    given = [each for each in op.inputs if each.name in of_forward]
    flowing = [each for each in op.inputs if each.name not in of_forward]
    parts = Parts(
        f"{op.name}_of_kept",
        op.doc,
        (given or flowing)[0].name,
        (*given, *kept.values(), *flowing),
        op.outputs,
        tuple(each for each in op.temporaries if each.name in written),
        tuple(statements),
    )
    derived = assemble(op, parts)
    read = tuple(each.name for each in derived.inputs if each.name in kept)
    return derived, read


def _is_worth_it(op: Op, dividend: str, same: Collection[str]) -> bool:
    """Whether a derived op computes the dividend with functions that take their time."""
    return dividend in same and any(
        isinstance(node, Apply) and node.primitive not in _CHEAP
        for statement in op.statements
        if statement.target.tensor == dividend
        for node in nodes(statement.body)
    )
