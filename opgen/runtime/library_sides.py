"""Images that windows leave farther on one side than on the other, for libraries.

The library has as many zeros before an image as behind it, but for less than a stride. A causal
filter leaves its image at the beginning alone, and windows of 4 pixels that keep its size leave it
by one more at the end. Such an image goes through the library with zeros around it, and without
what no window reaches, as one that is not padded; its gradient is that of the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from opgen.runtime.record import replaced

if TYPE_CHECKING:
    from opgen.runtime.library import Case


def evened(case: Case) -> Case | None:
    """The same convolution of an image that windows never leave; None where that has no pixel of
    the image, or steps are none."""
    if min((*case.stride, *case.dilation)) < 1:
        return None
    pixels, sides = [], []
    for image, result, taps, stride, padding, dilation in zip(
        *(case.image[2:], case.result[2:], case.weight[2:]),
        *(case.stride, case.padding, case.dilation),
        strict=True,
    ):
        reach = (result - 1) * stride + (taps - 1) * dilation + 1
        before, behind = padding, reach - padding - image
        if image + min(0, before) + min(0, behind) < 1:
            return None
        pixels.append(reach)
        sides.append((before, behind))
    return replaced(
        case,
        image=(*case.image[:2], *pixels),
        padding=(0,) * len(pixels),
        sides=tuple(number for each in reversed(sides) for number in each),
    )


def with_sides(image: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
    """An image with so many zeros before and behind it, last dim first, or so much less."""
    return functional.pad(image, tuple(sides))


def without_sides(image: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
    """The image that was given sides, of one that has them: 0 in what was left out."""
    return functional.pad(image, tuple(-number for number in sides))
