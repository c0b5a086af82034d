"""Dims that adjoin in memory as one dim, for ops that go through them as if they were one.

Kernels of the CPU go along rows. Of an image of 7 by 7 pixels these are seven, each of which fills
no vector, where 49 pixels lie side by side: bias and ReLU of [32,512,7,7] took 3.3 ms with rows of
7, and takes 0.05 with rows of 49. Which dims may be joined is known of an op
(`opgen.passes.joined_dims`), whether they adjoin and rows are short of a call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from opgen.runtime.layout import merges
from opgen.runtime.record import replaced

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call


_SHORT = 128
"""Up to how many bytes rows are short. With rows of 28 numbers in float32 a call takes 0.6 to 0.9
of the time, with rows of 56 about as long, and half of it in bfloat16."""


def of_call(
    call: Call, operands: Mapping[str, torch.Tensor]
) -> tuple[Call, dict[str, torch.Tensor]]:
    """The call and its operands with dims joined: of size 1 but for the last one; the same where
    that is no row of memory in all tensors, or rows are long."""
    joined = call.operation.joined
    if joined is None:
        return call, dict(operands)
    names, places = joined
    sizes = [call.shapes.integers[name] for name in names]
    joint = [1] * (len(sizes) - 1) + [math.prod(sizes)]
    found = dict(operands)
    for name, first in places.items():
        if name in found:  # some temporaries are those of a GPU
            made = _joined(found[name], first, sizes, joint)
            if made is None:
                return call, dict(operands)
            found[name] = made
    integers = call.shapes.integers | dict(zip(names, joint, strict=True))
    return replaced(call, shapes=replaced(call.shapes, integers=integers)), found


def _joined(
    tensor: torch.Tensor, first: int, sizes: Sequence[int], joint: Sequence[int]
) -> torch.Tensor | None:
    """A tensor with the dims from the first one on joined; None where that is not worth it."""
    end = first + len(sizes)
    before, own, behind = (
        tensor.stride()[part] for part in (slice(first), slice(first, end), slice(end, None))
    )
    steps = [step for size, step in zip(sizes, own, strict=True) if size != 1]
    if len(steps) < 2 or steps[-1] != 1 or not merges(sizes, own):
        return None
    if sizes[-1] * tensor.element_size() > _SHORT:
        return None
    shape = (*tensor.shape[:first], *joint, *tensor.shape[end:])
    return tensor.as_strided(shape, (*before, *(joint[-1] for _ in joint[1:]), 1, *behind))
