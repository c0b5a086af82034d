"""Ops as text that is equal where what they compute is equal: what a registered name is made from.

Everything of an op is in it but its name, its documentation, the names of its tensors, places in
the spec, and texts that only people read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from opgen.algebra.poly import Poly
from opgen.ir.notation import Op
from opgen.passes.derive import canonical


def fingerprint(op: Op, ops: Mapping[str, Op]) -> str:
    """A hash of what an op computes and of its gradients; `ops` are the ops of the file by name."""
    return hashlib.sha256(_described(op, ops, ()).encode()).hexdigest()[:32]


def _described(op: Op, ops: Mapping[str, Op], outer: tuple[str, ...]) -> str:
    """An op and the ops that were written as its gradients, and theirs."""
    parts = [_text(canonical(op))]
    parts += [tensor.name for tensor in op.inputs if tensor.nograd]
    for gradient in op.gradients:
        parts.append(gradient.input)
        other = ops.get(gradient.op)
        # An op may be its own gradient, directly or in a circle.
        if other is None or gradient.op in outer:
            parts.append(gradient.op)
        else:
            parts.append(_described(other, ops, (*outer, gradient.op)))
    return "\n".join(parts)


def _text(value: object) -> str:
    """A value of the notation, without the fields that do not take part in comparisons, and without
    those that say how something is computed."""
    if isinstance(value, Poly):
        return f"<{value}>"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    if is_dataclass(value):
        named = (each for each in fields(value) if each.compare and "how" not in each.metadata)
        compared = (getattr(value, each.name) for each in named)
        return f"{type(value).__name__}({','.join(map(_text, compared))})"
    return repr(value)
