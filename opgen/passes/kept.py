"""A gradient that reads temporaries of the forward pass in place of computing them again.

Before, the gradient of a convolution with a ReLU:

    z[n,o,h,w] = sum(c, i, j) x[n,c, h+i-1 ?0, w+j-1 ?0] * k[o,c,i,j]
    grad_z[n,o,h,w] = select(z[n,o,h,w] + b[o] >= 0, grad_y[n,o,h,w], 0)
    ...

After: the same without its first statement, and `z` is an input.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from opgen.ir.notation import Op, Statement
from opgen.ir.walk import all_reads, literals
from opgen.passes.assemble import Parts, assemble
from opgen.passes.stages import plain


def with_kept(op: Op, forward: Op, names: Collection[str]) -> tuple[Op, tuple[str, ...]]:
    """The derived op with those of the named temporaries as inputs, the last but what flows back,
    that it reads and that `forward` computes by the same statements; and which these are."""
    same = _Same(op, forward)
    kept = [each for each in op.temporaries if each.name in names and same.has(each.name)]
    found = {each.name for each in kept}
    of_forward = {each.name for each in forward.inputs}
    given = [each for each in op.inputs if each.name in of_forward]
    flowing = [each for each in op.inputs if each.name not in of_forward]
    parts = Parts(
        f"{op.name}_of_kept",
        op.doc,
        (given or flowing)[0].name,
        (*given, *(plain(op, each.name) for each in kept), *flowing),
        op.outputs,
        tuple(each for each in op.temporaries if each.name not in found),
        tuple(each for each in op.statements if each.target.tensor not in found),
    )
    derived = assemble(op, parts)
    read = tuple(each.name for each in derived.inputs if each.name in found)
    return derived, read


class _Same:
    """Which tensors two ops compute by the same statements from the same inputs."""

    def __init__(self, one: Op, other: Op) -> None:
        self._one, self._other = one, other
        self._given = {each.name for each in one.inputs} & {each.name for each in other.inputs}
        self._given |= {each.name for each in one.tables} & {each.name for each in other.tables}
        self._known: dict[str, bool] = {}

    def has(self, name: str) -> bool:
        """Whether both have the tensor."""
        if name not in self._known:
            own, theirs = _writers(self._one, name), _writers(self._other, name)
            self._known[name] = (
                bool(own)
                and own == theirs
                and list(map(_literals, own)) == list(map(_literals, theirs))
                and self._one.extents(name) == self._other.extents(name)
                and all(
                    access.tensor in self._given or access.tensor == name or self.has(access.tensor)
                    for each in own
                    for access in all_reads(each)
                )
            )
        return self._known[name]


def _writers(op: Op, name: str) -> list[Statement]:
    found = [each for each in op.statements if each.target.tensor == name]
    return [replace(each, is_exclusive=False) for each in found]


def _literals(statement: Statement) -> tuple[str, ...]:
    return literals(statement.body)
