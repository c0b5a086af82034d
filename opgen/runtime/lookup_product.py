"""Products of matrices of PyTorch's library as the table of `lookup_table` takes them: integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from opgen.runtime import cuda, lookup_moves
from opgen.runtime.lookup_product_source import PRODUCT, Multiplied

if TYPE_CHECKING:
    from opgen.runtime.library_product import Multiplication

_ABSENT = -1


def words(
    plan: Multiplication, tensors: Sequence[torch.Tensor | None], output: torch.Tensor
) -> list[int] | None:
    """How a call is computed; None for what Python prepares."""
    if cuda.computes(output.device):
        return None
    given = [each for each in (plan.left, plan.right, plan.bias) if each is not None]
    moves: list[int] = []
    for factor in given:
        tensor = tensors[factor.at]
        if tensor is None:
            continue  # a bias
        move = lookup_moves.arranging(tensor, factor.arrangement, torch.contiguous_format)
        if move is None:
            return None
        rank = len(plan.found)
        *head, sizes, strides = *move[: -2 * rank], [*move[-2 * rank : -rank]], [*move[-rank:]]
        if factor.is_turned:
            for each in (sizes, strides):
                each[-2:] = each[:-3:-1]
        if factor is not plan.bias and sizes[0] < plan.found[0] and rank > 2:
            sizes[0], strides[0] = plan.found[0], 0
        moves += [*head, *sizes, *strides]
    found = torch.empty(plan.found, device="meta", dtype=output.dtype)
    back = lookup_moves.restoring(found, plan.restored, plan.format, plan.shape)
    if back is None:
        return None
    bias = _ABSENT if plan.bias is None or tensors[plan.bias.at] is None else plan.bias.at
    about = Multiplied(
        kind=PRODUCT,
        left=plan.left.at,
        right=plan.right.at,
        bias=bias,
        bytes=output.element_size(),
    )
    return [*about, *moves, *back, found.dim(), *found.shape, *found.stride()]
