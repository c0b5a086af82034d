"""Calls whose leading dims lie in memory as no single dim would, such as images in channels-last
format: computed by an op that has a dim for each, without copies.

Kernels of an op with `...` see its leading dims as one. Where these do not merge, inputs were
copied, and outputs back. opgen makes the op with so many dims when such a call is met that is
worth kernels of its own; without opgen, and for others, tensors are copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from opgen.runtime import cuda, generated
from opgen.runtime.description import Shape
from opgen.runtime.layout import merges
from opgen.runtime.record import replaced
from opgen.runtime.special import LARGE, Images

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call

MOST = 4
"""The most leading dims of such an op."""


def of_dims(call: Call) -> Call:
    """The same call of the op that has its leading dims, or the call itself."""
    count = len(call.leading)
    if not 2 <= count <= MOST or not generated.is_installed() or not _is_worth_it(call):
        return call
    operation = call.operation.with_leading_dims(count)
    if operation is None:
        return call
    shapes = [None if tensor is None else tensor.shape for tensor in call.tensors]
    return replaced(
        call, operation=operation, leading=(), shapes=operation.shapes(*shapes, *call.values)
    )


def _is_worth_it(call: Call) -> bool:
    """Whether the leading dims of a large tensor do not merge, nor those of any other.

    Where neither the last dim nor that of channels is consecutive, as in rows of a transposed
    tensor, or that differs from tensor to tensor, a copy is what kernels read quickly.
    """
    if call.operation.faults or not (call.device.type == "cpu" or cuda.computes(call.device)):
        return False
    pairs = zip(call.operation.inputs, call.tensors, strict=True)
    tensors = [each for declared, each in pairs if declared.batched and each is not None]
    largest = max((each.numel() for each in tensors), default=0)
    return largest >= LARGE and all(_is_apart(each, call.leading) for each in tensors)


def _is_apart(tensor: torch.Tensor, leading: Shape) -> bool:
    """Whether a tensor has these leading dims, which do not merge, and consecutive elements."""
    if tuple(tensor.shape[: len(leading)]) != leading or merges(leading, tensor.stride()):
        return False
    return tensor.stride(-1) == 1 or Images((tensor,)).layout is not None
