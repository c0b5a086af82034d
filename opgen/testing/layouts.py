"""Ways in which the elements of a tensor may lie in memory."""

from __future__ import annotations

from typing import Final

import torch

LAYOUTS: Final = ("contiguous", "transposed", "sliced", "expanded", "channels_last")
"""Simplest first."""


def arranged(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The tensor in another layout, with the same values but where it is expanded.

    `expanded` repeats the first slice of the last dim of several elements, at stride 0;
    `channels_last` is transposed memory where the tensor has not four dims.
    """
    match layout:
        case "contiguous":
            return tensor
        case "transposed":
            return transposed(tensor)
        case "sliced":
            return spread(tensor)
        case "expanded":
            return repeated(tensor)
        case "channels_last" if tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        case "channels_last":
            return transposed(tensor)
        case unexpected:
            raise ValueError(f"there is no layout {unexpected!r}, only {', '.join(LAYOUTS)}")


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, the first dim the fastest."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every second element of a larger tensor, at an offset."""
    wide = torch.full(
        [2 * n + 1 for n in tensor.shape], 7, dtype=tensor.dtype, device=tensor.device
    )
    view = wide[tuple(slice(1, 2 * n + 1, 2) for n in tensor.shape)]
    view.copy_(tensor)
    return view


def repeated(tensor: torch.Tensor) -> torch.Tensor:
    """The first slice of the last dim of several elements, at stride 0."""
    for axis in reversed(range(tensor.dim())):
        if tensor.shape[axis] > 1:
            return tensor.narrow(axis, 0, 1).expand(tensor.shape)
    return tensor
