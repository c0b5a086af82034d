"""The tensors that two ops compute by the same statements, from the same inputs and tables.

A gradient computes again what it needs of the op that it is of. Of the gradient of
`z[n,o] = sum(d) x[n,d] * k[o,d]`, `y[n,o] = max(z[n,o] + b[o], 0)` for `k`

    z[n,o] = sum(d) x[n,d] * k[o,d]
    grad_z[n,o] = select(z[n,o] + b[o] < 0, 0, grad_y[n,o])
    grad_k[o,d] = sum(n) x[n,d] * grad_z[n,o]

`z` is alike. Names tell which tensors may be the same, since derivatives leave them as they are.
What a gradient is given of the temporaries of its op is the same by itself (`passes.kept`), and a
tensor that is another one, cell by cell, may stand for that: derivatives read the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opgen.ir.notation import Boundary, Expr, Op, Read, Reducer, Statement, map_expression
from opgen.ir.walk import all_reads, literals


def alike(one: Op, other: Op) -> frozenset[str]:
    """The temporaries and outputs of an op that the other one has, too."""
    found = _Alike(one, other)
    return frozenset(name for name in {e.target.tensor for e in one.statements} if found.has(name))


class _Alike:
    """What is known of the tensors of two ops."""

    def __init__(self, one: Op, other: Op) -> None:
        self._one, self._other = one, other
        made = {each.name for each in (*other.inputs, *other.temporaries, *other.outputs)}
        self._given = {each.name for each in one.inputs} & made
        self._given |= {each.name for each in one.tables} & {each.name for each in other.tables}
        self._known: dict[str, bool] = {}
        self._copies = _copies(one), _copies(other)

    def has(self, name: str) -> bool:
        """Whether both have the tensor."""
        if name not in self._known:
            mine, others = self._copies
            own, theirs = _writers(self._one, name, mine), _writers(self._other, name, others)
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


def _writers(op: Op, name: str, copies: Mapping[str, str]) -> list[Statement]:
    """The statements that write a tensor, reading what is copied in place of copies."""

    def change(expr: Expr) -> Expr | None:
        if isinstance(expr, Read) and expr.access.tensor in copies:
            return Read(replace(expr.access, tensor=copies[expr.access.tensor]))
        return None

    found = [each for each in op.statements if each.target.tensor == name]
    return [
        replace(each, is_exclusive=False, body=map_expression(each.body, change)) for each in found
    ]


def _copies(op: Op) -> dict[str, str]:
    """The temporaries of reals that are another tensor, cell by cell, and which."""
    generic = {each.name for each in (*op.inputs, *op.temporaries) if each.dtype.is_generic}
    found: dict[str, str] = {}
    for temporary in op.temporaries:
        match [each for each in op.statements if each.target.tensor == temporary.name]:
            case [Statement(reducer=Reducer.ASSIGN, guards=(), body=Read(access)) as statement]:
                indices, cells = statement.target.indices, op.extents(temporary.name)
                names = [index.value.symbol for index in indices]
                extents = {each.name: each.extent for each in statement.iterators}
                is_whole = len(set(names)) == len(names) == len(extents) and list(cells) == [
                    extents.get(name or "") for name in names
                ]
                is_plain = all(each.boundary is Boundary.NONE for each in indices)
                is_whole = is_whole and is_plain and op.extents(access.tensor) == cells
                if access.indices == indices and is_whole and access.tensor in generic:
                    found[temporary.name] = found.get(access.tensor, access.tensor)
            case _:
                pass
    return found


def _literals(statement: Statement) -> tuple[str, ...]:
    return literals(statement.body)
