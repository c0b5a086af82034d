"""The tensors that two ops compute by the same statements, from the same inputs and tables.

A gradient computes again what it needs of the op that it is of. Of the gradient of
`z[n,o] = sum(d) x[n,d] * k[o,d]`, `y[n,o] = max(z[n,o] + b[o], 0)` for `k`

    z[n,o] = sum(d) x[n,d] * k[o,d]
    grad_z[n,o] = select(z[n,o] + b[o] < 0, 0, grad_y[n,o])
    grad_k[o,d] = sum(n) x[n,d] * grad_z[n,o]

`z` is alike. Names tell which tensors may be the same, since derivatives leave them as they are.
"""

from __future__ import annotations

from dataclasses import replace

from opgen.ir.notation import Op, Statement
from opgen.ir.walk import all_reads, literals


def alike(one: Op, other: Op) -> frozenset[str]:
    """The temporaries and outputs of an op that the other one has, too."""
    found = _Alike(one, other)
    return frozenset(name for name in {e.target.tensor for e in one.statements} if found.has(name))


class _Alike:
    """What is known of the tensors of two ops."""

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
