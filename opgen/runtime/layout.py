"""Memory formats: an op gives its outputs that of its first input of the same rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch

from opgen.runtime import compat

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Those with the channels last, by rank."""


def memory_format(rank: int, tensors: Iterable[torch.Tensor | None]) -> torch.memory_format:
    """The format of an output of this rank; contiguous where no input says otherwise."""
    if rank in FORMATS:
        for tensor in tensors:
            if tensor is not None and tensor.dim() == rank:
                if any(map(_is_unknown, (*tensor.shape, *tensor.stride()))):
                    return _format_of_unknown_sizes(tensor)
                if is_channels_last(tensor.shape, tensor.stride()):
                    return FORMATS[rank]
                break
    return torch.contiguous_format


def _is_unknown(size: int | torch.SymInt) -> bool:
    return isinstance(size, torch.SymInt) and compat.is_unknown(size)


def _format_of_unknown_sizes(tensor: torch.Tensor) -> torch.memory_format:
    """The format of a tensor whose sizes only a running program has, where its strides tell it.

    RuntimeError where they do not: the strides that a compiler is told must be those of kernels.
    """
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    for format_ in (torch.contiguous_format, FORMATS[tensor.dim()]):
        alike = torch.empty_like(tensor, memory_format=format_).stride()
        pairs = zip(tensor.stride(), alike, strict=True)
        if all(guard_or_false(own == other) for own, other in pairs):
            return format_
    raise RuntimeError(
        f"the memory format of a tensor of shape {tuple(tensor.shape)} is not known before the "
        "program runs, and that of the result depends on it; call .contiguous() on it first"
    )


def merges(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether dims lie in memory as one dim would; strides may be given for more of them."""
    dims = [pair for pair in zip(shape, strides, strict=False) if pair[0] != 1]
    return 0 in shape or all(
        outer == size * inner for (_, outer), (size, inner) in itertools.pairwise(dims)
    )


def in_its_own_tensor(
    found: torch.Tensor, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """What a library gave, as a tensor of this shape that is no view of another.

    A view that was made while nothing is recorded may not be changed in place later, when
    something is; nobody who called an op expects one.
    """
    if not found._is_view() and found.shape == tuple(shape) and found.stride() == tuple(strides):
        return found
    own = torch.empty(0, dtype=found.dtype, device=found.device)
    place = found.untyped_storage(), found.storage_offset()
    return own.set_(*place, tuple(shape), tuple(strides))


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
