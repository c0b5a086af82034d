"""Tensors seen with other dims: taken apart, their parts in another order, and joined again.

`y[n,o,(i a),(j b)]` as `[n,(o a b),i,j]` is a strided view of y where memory allows it, else a
copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from opgen.runtime.description import Shape


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The parts of each dim of a tensor, numbered in that order, and those of each other dim."""

    parts: Sequence[Shape]
    order: Sequence[Sequence[int]]

    @property
    def split(self) -> Shape:
        """All parts in order: the shape of the tensor taken apart."""
        return tuple(itertools.chain.from_iterable(self.parts))

    @property
    def moved(self) -> tuple[int, ...]:
        """All parts in the other order."""
        return tuple(itertools.chain.from_iterable(self.order))

    @property
    def shape(self) -> Shape:
        """The shape with the other dims."""
        split = self.split
        return tuple(math.prod(split[part] for part in parts) for parts in self.order)

    def arranged(self, tensor: torch.Tensor, format_: torch.memory_format) -> torch.Tensor:
        """The tensor with the other dims; a copy, if it must be one, is in that format."""
        moved = tensor.reshape(self.split).permute(self.moved)
        return _joined(moved, self.shape, format_)

    def restored(self, tensor: torch.Tensor, format_: torch.memory_format) -> torch.Tensor:
        """The other way: a tensor with the other dims as one with its own."""
        split = self.split
        taken_apart = tensor.reshape([split[part] for part in self.moved])
        back = sorted(range(len(split)), key=self.moved.__getitem__)
        shape = [math.prod(parts) for parts in self.parts]
        return _joined(taken_apart.permute(back), shape, format_)


def _joined(
    parts: torch.Tensor, shape: Sequence[int], format_: torch.memory_format
) -> torch.Tensor:
    """Consecutive dims joined into those of a shape."""
    try:
        return parts.view(shape)
    except RuntimeError:  # they do not lie one behind the other in memory
        out = torch.empty(shape, dtype=parts.dtype, device=parts.device, memory_format=format_)
        _copy(out.view(parts.shape), parts)
        return out


_SHORT = 32
"""How many elements in the two innermost dims `copy_` is slow for: it goes through them at once."""


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """`target.copy_(source)`, a slice at a time where the innermost dims are short."""
    sizes = zip(target.stride(), target.shape, range(target.dim()), strict=True)
    inner = sorted(each for each in sizes if each[1] > 1)[:2]
    if len(inner) < 2 or inner[0][1] * inner[1][1] >= _SHORT:
        target.copy_(source)
        return
    dim = inner[0][2]
    for part, own in zip(target.unbind(dim), source.unbind(dim), strict=True):
        _copy(part, own)
