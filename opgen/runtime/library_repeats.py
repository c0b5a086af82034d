"""Single channels with a few results each, in channels-last format: each channel several times.

That is for those that have no tiles (`convolution_tiles`): for three and four results, for two of
bfloat16 or from fewer channels than a vector has results, and on processors without AVX512.

The library has kernels for groups of one channel and one result. For groups of one channel and two
results it fills 2 of the 16 places of its vectors. With every channel of the image as often as it
has results, which is one pass over it, groups are single again: 64 images of 128 channels of 7 by 7
take a quarter of the time forward, copy included, and a third backward, where the gradient of the
image is the sum of those of its copies. From 8 results on the copy takes what is gained, with steps
of two pixels too, as images are larger than results, and for single taps. The gradients of windows
of 5 by 5 take longer so. Gradients of 16 bits would be rounded before they are added, and float16
has no such kernels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from opgen.runtime.special import LARGE

if TYPE_CHECKING:
    from opgen.runtime.description import Convolution
    from opgen.runtime.library import Case

MOST = 4
"""The most results of a channel."""

_VECTOR = 16
"""The fewest results that fill a vector of the library."""

_FEWEST_TAPS, _TAPS, _TAPS_OF_GRADIENTS = 4, 49, 9
"""The smallest windows, and the largest forward and backward."""


def repeats(case: Case, dtype: torch.dtype, names: Convolution, *, is_public: bool) -> int:
    """How many times each channel of the image is to be there; 1 for images as they are."""
    count = case.weight[0] // case.groups
    if case.weight[1] != 1 or not 1 < count <= MOST or case.weight[0] < _VECTOR:
        return 1
    if case.format != torch.channels_last or len(case.stride) != 2:
        return 1
    if max(*case.stride, *case.dilation) > 1 or math.prod(case.result) < LARGE:
        return 1
    is_forward = names.target == names.result
    if not is_forward and is_public:
        return 1  # a transposed convolution
    if dtype not in ((torch.float32, torch.bfloat16) if is_forward else (torch.float32,)):
        return 1
    taps = _TAPS if is_forward else _TAPS_OF_GRADIENTS
    return count if _FEWEST_TAPS <= math.prod(case.weight[2:]) <= taps else 1


def repeated(images: torch.Tensor, count: int) -> torch.Tensor:
    """Images in channels-last format with each channel so many times, one beside the other."""
    batch, channels, *pixels = images.shape
    shape = (batch, channels * count, *pixels)
    found = torch.empty(
        shape, dtype=images.dtype, device=images.device, memory_format=torch.channels_last
    )
    for copy in range(count):
        found[:, copy::count].copy_(images)
    return found


def summed(gradients: torch.Tensor, count: int) -> torch.Tensor:
    """The gradient of images from that of repeated ones."""
    first, second, *others = (gradients[:, copy::count] for copy in range(count))
    batch, channels, *pixels = gradients.shape
    shape = (batch, channels // count, *pixels)
    found = torch.empty(
        shape, dtype=first.dtype, device=first.device, memory_format=torch.channels_last
    )
    torch.add(first, second, out=found)
    for more in others:
        found.add_(more)
    return found
