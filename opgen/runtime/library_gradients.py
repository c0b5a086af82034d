"""Gradients of convolutions by PyTorch's library: both at once, one alone, in pieces."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from opgen.runtime.layout import memory_format

if TYPE_CHECKING:
    from opgen.runtime.library import Case, Sizes
    from opgen.runtime.library_call import Pair


def gradients(
    case: Case,
    result: torch.Tensor,
    image: torch.Tensor,
    weight: torch.Tensor,
    wanted: tuple[bool, bool],
) -> Pair:
    """The gradients of image and weight, those that are wanted.

    Of one that alone is wanted, the numbers are not read.
    """
    none = [0] * len(case.stride)
    geometry = (case.stride, case.padding, case.dilation, False, none, case.groups)
    found: list[torch.Tensor] = torch.ops.aten.convolution_backward.default(
        result, image, weight, None, *geometry, [*wanted, False]
    )
    return found[0], found[1]


def by_pieces(case: Case, result: torch.Tensor, image: torch.Tensor, weight: torch.Tensor) -> Pair:
    """Both gradients in channels-last format, as `lookup_convolution_source` computes them."""
    count = pieces(case, weight.dtype)
    found = []
    for first in range(0, len(image), count):
        some = [each[first : first + count] for each in (result, image)]
        copy, images = (each.contiguous(memory_format=torch.channels_last) for each in some)
        found.append(gradients(case, copy, images, weight, (True, True)))
    weights = [gradient for _, gradient in found]
    return torch.cat([gradient for gradient, _ in found]), functools.reduce(torch.add, weights)


def pieces(case: Case, dtype: torch.dtype) -> int:
    """How many images at once give both gradients: sums of several calls are those of float32."""
    return case.images_at_once if dtype == torch.float32 else case.image[0]


def is_channels_last(images: torch.Tensor) -> bool:
    """Whether nothing need be copied."""
    return images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)


def unread(shape: Sizes, like: torch.Tensor) -> torch.Tensor:
    """Memory that nobody touches, for a tensor of which the library looks at shape and format.

    Strides of 0 would make it copy them all.
    """
    format_ = memory_format(like.dim(), (like,))
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=format_)
