"""Reads that give the identity of their reduction outside, as reads that are absent there.

`max(i) x[n + i ?(-inf)]` and `max(i) x[n + i ?0]` are one maximum: a term that is -inf changes it
as little as one that is skipped. Kernels skip terms without asking in every cell, where a value
that is chosen is asked for. What a spec means does not change: undeclared tensors are floating
still, which the -inf had said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from opgen.ir.notation import (
    Boundary,
    DType,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
)

_IDENTITIES: Final[Mapping[Reducer, float]] = {Reducer.MAX: -math.inf, Reducer.MIN: math.inf}


def without_identities(op: Op) -> Op:
    """The op with reads that are absent in place of those that give an identity."""
    statements = tuple(_skipping(op, statement) for statement in op.statements)
    if statements == op.statements:
        return op
    return replace(
        op,
        inputs=tuple(map(_floating, op.inputs)),
        outputs=tuple(map(_floating, op.outputs)),
        temporaries=tuple(map(_floating, op.temporaries)),
        statements=statements,
    )


def _skipping(op: Op, statement: Statement) -> Statement:
    match statement:
        case Statement(reducer=reducer, body=Read(access=access)) if reducer in _IDENTITIES:
            tensor = op.tensor(access.tensor)
            if not isinstance(tensor, Tensor) or tensor.dtype.is_integer:
                return statement  # the value is real, and the tensor is not
            identity = _IDENTITIES[reducer]
            indices = tuple(_absent(index, identity) for index in access.indices)
            return replace(statement, body=Read(replace(access, indices=indices)))
        case _:
            return statement


def _absent(index: Index, identity: float) -> Index:
    if index.boundary is not Boundary.FILL or index.fill != identity:
        return index
    return replace(index, boundary=Boundary.ZERO, fill=None)


def _floating(tensor: Tensor) -> Tensor:
    return replace(tensor, dtype=DType.FLOAT) if tensor.dtype is DType.SAME else tensor
