"""Tensors with other dims, as lists of integers for `lookup_moves_source`: views and copies."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opgen.runtime.arrangement import Arrangement

_LEAST_RUN = 16
"""How many elements are to lie one behind the other, before and after: PyTorch's own copy has loops
for single ones."""

_FEW = 2**12
"""Elements of a tensor that may lie in any way, such as a bias."""

MOST_IN_TURN = 4
"""How many runs may become one, an element of each in turn."""

NONE = (-1,)
"""A tensor that stays as it is."""

VIEW = -2
"""Stands before the rank, the sizes and the strides of a view."""

Dim = tuple[int, int, int]
"""A size, and the steps in what is read and in what is written."""


def arranging(
    tensor: torch.Tensor, arrangement: Arrangement | None, format_: torch.memory_format
) -> Sequence[int] | None:
    """How a tensor becomes one with the other dims; what is new memory is in that format.

    None if its dims cannot be taken apart where they lie, or PyTorch's own copy is better.
    """
    if arrangement is None:
        return NONE
    return _move(tensor, arrangement.split, arrangement.moved, arrangement.shape, format_)


def restoring(
    tensor: torch.Tensor,
    arrangement: Arrangement | None,
    format_: torch.memory_format,
    shape: Sequence[int] | None = None,
) -> Sequence[int] | None:
    """The other way, as `Arrangement.restored`; with another shape of as many elements, if any."""
    if arrangement is None:
        return NONE
    split = [arrangement.split[part] for part in arrangement.moved]
    back = sorted(range(len(split)), key=arrangement.moved.__getitem__)
    whole = arrangement.whole if shape is None else shape
    return _move(tensor, split, back, whole, format_, is_result=True)


def _move(
    tensor: torch.Tensor,
    split: Sequence[int],
    order: Sequence[int],
    shape: Sequence[int],
    format_: torch.memory_format,
    *,
    is_result: bool = False,
) -> Sequence[int] | None:
    """From the parts of a tensor, in that order, to a tensor of that shape.

    A result is in that format, also where another view of it would do.
    """
    new = torch.empty(tuple(shape), device="meta", dtype=tensor.dtype, memory_format=format_)
    like = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
    try:
        parts = like.view(tuple(split)).permute(tuple(order))
        whole = new.view(parts.shape)
    except RuntimeError:
        return None
    view = _view(parts, new.shape)
    if view is not None and not is_result:
        return VIEW, view.dim(), *view.shape, *view.stride()
    if view is not None and view.is_contiguous(memory_format=format_):
        return VIEW, new.dim(), *new.shape, *new.stride()  # they may differ in dims of one element
    dims = steps(parts, whole)
    if not is_quick(dims, new.element_size()) and new.numel() > _FEW:
        return None
    return (*listed(dims), new.dim(), *new.shape, *new.stride())


def _view(parts: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    try:
        return parts.view(shape)
    except RuntimeError:  # they do not lie one behind the other in memory
        return None


def steps(source: torch.Tensor, target: torch.Tensor) -> list[Dim]:
    """How to go through two tensors of one shape, by the steps in the second one."""
    together = zip(source.shape, source.stride(), target.stride(), strict=True)
    joined: list[Dim] = []
    for size, one, other in sorted((x for x in together if x[0] > 1), key=lambda each: -each[2]):
        if joined and joined[-1][1:] == (size * one, size * other):
            joined[-1] = (joined[-1][0] * size, one, other)
        else:
            joined.append((size, one, other))
    return joined


def listed(dims: Sequence[Dim]) -> tuple[int, ...]:
    """The integers that a move begins with."""
    return (len(dims), *(number for each in dims for number in each))


def is_quick(dims: Sequence[Dim], bytes_: int) -> bool:
    """Whether elements of that size are moved in runs, or a few runs become one in turn."""
    if dims and dims[-1][1:] == (1, 1) and dims[-1][0] >= _LEAST_RUN:
        return True
    if len(dims) < 3 or bytes_ not in (2, 4):
        return False
    (cells, apart, across), (rows, _, run) = dims[-2:]
    return (apart, across, run) == (1, rows, 1) and rows <= MOST_IN_TURN and cells >= _LEAST_RUN
