"""Memory formats: an op gives its outputs that of its first input of the same rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(rank: int, tensors: Iterable[torch.Tensor | None]) -> torch.memory_format:
    """The format of an output of this rank; contiguous where no input says otherwise."""
    if rank in _FORMATS:
        for tensor in tensors:
            if tensor is not None and tensor.dim() == rank:
                if is_channels_last(tensor.shape, tensor.stride()):
                    return _FORMATS[rank]
                break
    return torch.contiguous_format


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides grow from the channels over the image to the batch, as PyTorch decides it.

    A shape that fits both formats, such as one channel, has the contiguous one.
    """
    if strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least:
            return False
        if axis == 0 and least == strides[1]:
            return False
        least = strides[axis]
        if shape[axis] > 1:
            least = least * shape[axis]
    return True
