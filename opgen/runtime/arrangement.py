"""Tensors seen with other dims: taken apart, their parts in another order, and joined again.

`y[n,o,(i a),(j b)]` as `[n,(o a b),i,j]` is a strided view of y where memory allows it, else a
copy. In channels-last format a copy goes from channel to channel, each of which lies elsewhere. But
the channels of a convolution may be computed in any order, if its filters are given in it: as
`[n,(a b o),i,j]` it is a copy of whole pixels, in two thirds of the time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from opgen.runtime.description import Shape
from opgen.runtime.record import record, replaced


@record
class Arrangement:
    """The parts of each dim of a tensor, numbered in that order, and those of each other dim."""

    parts: Sequence[Shape]
    order: Sequence[Sequence[int]]

    @property
    def split(self) -> Shape:
        """All parts in order: the shape of the tensor taken apart."""
        return tuple(itertools.chain.from_iterable(self.parts))

    def is_of(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape has the other dims as it is."""
        plain = tuple((at,) for at in range(len(shape)))
        return tuple(map(tuple, self.order)) == plain and self.shape == tuple(shape)

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(map(math.prod, self.parts))

    @property
    def moved(self) -> tuple[int, ...]:
        """All parts in the other order."""
        return tuple(itertools.chain.from_iterable(self.order))

    @property
    def keeps_order(self) -> bool:
        """Whether parts stand in the order that the tensor has them in, but for single ones."""
        split = self.split
        kept = [part for part in self.moved if split[part] != 1]
        return kept == sorted(kept)

    @property
    def keeps_order_of_pixels(self) -> bool:
        """The same for a tensor in channels-last format, whose second dim is the last in memory."""
        numbers = iter(range(len(self.split)))
        first, second, *others = [[next(numbers) for _ in dim] for dim in self.parts]
        split = self.split
        stored = [part for part in itertools.chain(first, *others, second) if split[part] != 1]
        return stored == [part for part in self.moved if split[part] != 1]

    @property
    def shape(self) -> Shape:
        """The shape with the other dims."""
        split = self.split
        return tuple(math.prod(split[part] for part in parts) for parts in self.order)

    def with_channels_as_stored(self, groups: int) -> tuple[Arrangement, Channels] | None:
        """The same with the channels of a group in the order that channels-last memory has them in.

        Then whole pixels of what is computed are consecutive in it. The order of what says the
        group stays. None if they stand so already, or if it is not known which they are.
        """
        if len(self.parts) < 2:
            return None
        batch, channels, *others = self.order
        split = self.split
        sizes = tuple(split[part] for part in channels)
        starts = (at for at in range(len(sizes)) if math.prod(sizes[:at]) == groups)
        count = next(starts, None)
        if count is None:
            return None
        numbers = iter(range(len(split)))
        first, second, *rest = [[next(numbers) for _ in dim] for dim in self.parts]
        places = list(itertools.chain(first, *rest, second))
        stored = (*channels[:count], *sorted(channels[count:], key=places.index))
        if stored == tuple(channels):
            return None
        moved = tuple(map(tuple(channels).index, stored))
        return replaced(self, order=(batch, stored, *others)), Channels(sizes, moved)

    def viewed(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor with the other dims, if a view of it has them."""
        try:
            return tensor.view(self.split).permute(self.moved).view(self.shape)
        except RuntimeError:  # its elements do not lie so
            return None

    def arranged(self, tensor: torch.Tensor, format_: torch.memory_format) -> torch.Tensor:
        """The tensor with the other dims; a copy, if it must be one, is in that format."""
        moved = tensor.reshape(self.split).permute(self.moved)
        return _joined(moved, self.shape, format_)

    def restored(self, tensor: torch.Tensor, format_: torch.memory_format) -> torch.Tensor:
        """The other way: a tensor with the other dims as one with its own."""
        split = self.split
        taken_apart = tensor.reshape([split[part] for part in self.moved])
        back = sorted(range(len(split)), key=self.moved.__getitem__)
        return _joined(taken_apart.permute(back), self.whole, format_)


@record
class Channels:
    """The parts of the channels of a convolution's result, and another order of them."""

    sizes: Shape
    moved: tuple[int, ...]

    def of(self, shape: Sequence[int]) -> Arrangement:
        """The first dim of a tensor of this shape, a weight or a bias, with that order."""
        count = len(self.sizes)
        others = range(count, count + len(shape) - 1)
        return Arrangement(
            (self.sizes, *((size,) for size in shape[1:])), (self.moved, *((at,) for at in others))
        )


def _joined(
    parts: torch.Tensor, shape: Sequence[int], format_: torch.memory_format
) -> torch.Tensor:
    """Consecutive dims joined into those of a shape."""
    try:
        return parts.view(shape)
    except RuntimeError:  # they do not lie one behind the other in memory
        out = torch.empty(shape, dtype=parts.dtype, device=parts.device, memory_format=format_)
        copy(out.view(parts.shape), parts)
        return out


_SHORT = 32
"""How many elements in the two innermost dims `copy_` is slow for: it goes through them at once."""


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """`target.copy_(source)`, a slice at a time where the innermost dims are short."""
    sizes = zip(target.stride(), target.shape, range(target.dim()), strict=True)
    inner = sorted(each for each in sizes if each[1] > 1)
    run = 1
    for stride, size, dim in inner:
        if stride != run or source.stride(dim) != run:
            break
        run *= size  # these dims are one to `copy_`
    if len(inner) < 2 or max(run, inner[0][1] * inner[1][1]) >= _SHORT:
        target.copy_(source)
        return
    dim = inner[0][2]
    for part, own in zip(target.unbind(dim), source.unbind(dim), strict=True):
        copy(part, own)
