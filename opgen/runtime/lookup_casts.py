"""Calls under autocast whose kernels need a cast input, as entries of `lookup_table`.

The first call of a kind is made in Python, with a cast; what it found out is entered, and later
calls are made in C, piece by piece (`lookup_casts_source`). A piece are some entries of the batch,
if the op is known to work on each of them by itself (`Operation.parallel`), else it is all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from opgen.runtime import evaluation
from opgen.runtime.lookup_casts_source import Cast

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call
    from opgen.runtime.lookup import Twin

_PIECE: Final = 2**21
"""The most bytes of a piece of bfloat16, if it can be cut. Filters of 3 by 3 for 2048 channels of
16 by 16 in channels-last format, where that is two of eight images, take as long in pieces of twice
as many, and a tenth longer in halves."""

_LEAST_PIECE: Final = 2**20
"""The fewest: threads may wait for each other twice in each. Eight images of 8 by 8 take a tenth
longer in pieces of half as many."""


def enter(
    twin: Twin, call: Call, given: Sequence[torch.Tensor | None], output: torch.Tensor
) -> bool:
    """Let calls with these tensors be looked up, if they can be; `call` has the cast one.

    They cannot be where several are cast, or where a tensor has gaps.
    """
    pairs = enumerate(zip(given, call.tensors, strict=True))
    at, *others = (i for i, (wide, narrow) in pairs if wide is not narrow)
    wide, narrow = given[at], call.tensors[at]
    if others or wide is None or narrow is None or wide.stride() != narrow.stride():
        return False
    is_batched = call.operation.inputs[at].batched or call.operation.outputs[0].batched
    if is_batched or not (_is_dense(wide) and _is_dense(output)):
        return False
    pieces = _pieces(call, at, narrow, output)
    tensors, part = list(call.tensors), output
    if pieces > 1:
        count = output.shape[0] // pieces
        tensors[at], part = narrow[:count], output[:count]
    one = evaluation.prepare(call.operation, tensors, call.values)
    cast = Cast(
        input=at,
        output=len(tensors),
        pieces=pieces,
        numbers=narrow.numel() // pieces,
        bytes=part.nbytes,
    )
    return twin.enter_cast(one, given, output, evaluation.operands_of(one, (part,)), cast)


def _pieces(call: Call, at: int, narrow: torch.Tensor, output: torch.Tensor) -> int:
    """How many pieces a call goes in, all of the same size."""
    names = {call.operation.inputs[at].name: 0, call.operation.outputs[0].name: 0}
    if names not in call.operation.parallel or not 0 < narrow.shape[0] == output.shape[0]:
        return 1
    if not (_goes_by_batch(narrow) and _goes_by_batch(output)):
        return 1
    size, batch = narrow.nbytes, narrow.shape[0]
    most = min(batch, size // _LEAST_PIECE)
    found = [pieces for pieces in range(1, most + 1) if batch % pieces == 0]
    return next((pieces for pieces in found if size <= pieces * _PIECE), max(found, default=1))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no gaps, in some order of its dims."""
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return 0 < tensor.numel() == reach + 1


def _goes_by_batch(tensor: torch.Tensor) -> bool:
    """Whether the entries of a batch lie one behind the other."""
    return tensor.stride(0) == tensor.numel() // tensor.shape[0]
