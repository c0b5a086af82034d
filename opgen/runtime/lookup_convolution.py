"""Convolutions of PyTorch's library as the table of `lookup_table` takes them: a list of integers.

In this order: the positions of what is convolved, of an image, of the weight and of the bias, -1
for what is not there; whether the convolution is transposed, its groups, its spatial dims; what a
number that is not finite looks like, how large one is, and how many the weight has; whether the
weight, or its gradient, must be finite; strides, paddings, dilations and output paddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from opgen.runtime.library import Case
    from opgen.runtime.library_call import Plan

_EXPONENTS = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
"""The bits that are all set in infinity and NaN, and in no other number."""

_MOST_CHECKED = 2**20
"""Bytes of a weight beyond which several threads look through it faster than one."""

_ABSENT = -1


def forward(plan: Plan, tensors: Sequence[torch.Tensor | None]) -> list[int] | None:
    """A convolution, or a transposed one, of tensors as they are; None for what Python prepares."""
    source = plan.image or plan.result
    if source is None or plan.weight is None or not _is_direct(plan):
        return None
    is_transposed = plan.image is None
    if is_transposed and not plan.is_forward:
        return None
    weight = tensors[plan.weight.at]
    is_checked = is_transposed or any(plan.case.padding)
    if weight is None or not _can_be_checked(weight, is_checked):
        return None
    bias = None if plan.bias is None or tensors[plan.bias.at] is None else plan.bias.at
    places = (source.at, _ABSENT, plan.weight.at, _ABSENT if bias is None else bias)
    return _described(places, plan.case, is_transposed, weight, is_checked, False)


def gradients(for_image: Plan, for_weight: Plan, weight: torch.Tensor) -> list[int] | None:
    """The gradients of image and weight, from the cotangent, the image and the weight."""
    plans = (for_image, for_weight)
    if not all(map(_is_direct, plans)) or for_weight.is_uneven or for_image.is_forward:
        return None
    if for_image.geometry != for_weight.geometry or for_image.bias is not None:
        return None
    if not _can_be_checked(weight, True):
        return None
    is_padded = any(for_weight.case.padding)
    return _described((0, 1, 2, _ABSENT), for_weight.case, False, weight, True, is_padded)


def _is_direct(plan: Plan) -> bool:
    """Whether the tensors of a plan are those of the library."""
    operands = (plan.result, plan.image, plan.weight, plan.bias)
    is_arranged = any(each is not None and each.arrangement is not None for each in operands)
    return not is_arranged and plan.restored is None and not plan.is_wide


def _can_be_checked(weight: torch.Tensor, is_checked: bool) -> bool:
    """Whether its numbers are those of one small piece of memory, without gaps."""
    if weight.dtype not in _EXPONENTS:
        return False
    if not is_checked:
        return True
    format_ = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
    is_dense = weight.is_contiguous() or weight.is_contiguous(memory_format=format_)
    return is_dense and weight.numel() * weight.element_size() <= _MOST_CHECKED


def _described(
    places: Sequence[int],
    case: Case,
    is_transposed: bool,
    weight: torch.Tensor,
    checks_weight: bool,
    checks_gradient: bool,
) -> list[int]:
    more = case.output_padding if is_transposed else (0,) * len(case.stride)
    return [
        *places,
        int(is_transposed),
        case.groups,
        len(case.stride),
        *(_EXPONENTS[weight.dtype], weight.element_size(), weight.numel()),
        *(int(checks_weight), int(checks_gradient)),
        *(*case.stride, *case.padding, *case.dilation, *more),
    ]
