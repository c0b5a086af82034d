"""Copies of tensors with other dims, as lists of integers for `lookup_moves_source`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from enum import Enum

import torch

from opgen.runtime.arrangement import Arrangement

_LEAST_RUN = 16
"""How many elements are to lie one behind the other, before and after: PyTorch's own copy has loops
for single ones."""

_FEW = 2**12
"""Elements of a tensor that may lie in any way, such as a bias."""

NONE = (-1,)
"""A tensor that stays as it is."""


class NoMove(Enum):
    """Why a tensor does not become another one by a move."""

    NEEDLESS = "a view of it has the other dims"
    IMPOSSIBLE = "its dims cannot be taken apart where they lie, or PyTorch's own copy is better"


def arranging(
    tensor: torch.Tensor, arrangement: Arrangement | None, format_: torch.memory_format
) -> Sequence[int] | NoMove:
    """How a tensor becomes one with the other dims, which is new memory in that format."""
    if arrangement is None:
        return NONE
    return _move(tensor, arrangement.split, arrangement.moved, arrangement.shape, format_)


def restoring(
    tensor: torch.Tensor, arrangement: Arrangement | None, format_: torch.memory_format
) -> Sequence[int] | NoMove:
    """The other way, as `Arrangement.restored`."""
    if arrangement is None:
        return NONE
    split = [arrangement.split[part] for part in arrangement.moved]
    back = sorted(range(len(split)), key=arrangement.moved.__getitem__)
    return _move(tensor, split, back, arrangement.whole, format_)


def _move(
    tensor: torch.Tensor,
    split: Sequence[int],
    order: Sequence[int],
    shape: Sequence[int],
    format_: torch.memory_format,
) -> Sequence[int] | NoMove:
    """From the parts of a tensor, in that order, to a tensor of that shape."""
    new = torch.empty(tuple(shape), device="meta", memory_format=format_)
    like = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
    try:
        parts = like.view(tuple(split)).permute(tuple(order))
        whole = new.view(parts.shape)
    except RuntimeError:
        return NoMove.IMPOSSIBLE
    with contextlib.suppress(RuntimeError):
        parts.view(new.shape)
        return NoMove.NEEDLESS
    steps = zip(parts.shape, parts.stride(), whole.stride(), strict=True)
    dims = sorted((each for each in steps if each[0] > 1), key=lambda each: -each[2])
    joined: list[tuple[int, int, int]] = []
    for size, source, target in dims:
        if joined and joined[-1][1:] == (size * source, size * target):
            joined[-1] = (joined[-1][0] * size, source, target)
        else:
            joined.append((size, source, target))
    run = joined[-1][0] if joined and joined[-1][1:] == (1, 1) else 1
    if run < _LEAST_RUN and new.numel() > _FEW:
        return NoMove.IMPOSSIBLE
    words = (number for each in joined for number in each)
    return (len(joined), *words, new.dim(), *new.shape, *new.stride())
