"""Places of a convolution's results that show whether what it multiplies is finite.

A product with infinity or NaN is infinite or NaN, and so is every sum with such a term, in whatever
order it is computed (IEEE 754, 6.1 and 6.2). A cell for which no tap of the window lies in the
padding is a sum with every number that the filter has for its channel: if it is finite, they are.
The converse does not hold, since sums overflow and images may have such numbers themselves: then
whoever asks has to look at the filter.

With `o` for a pixel of the result, `h` for one of the image and `i` for a tap, one spatial dim of a
convolution has the terms `h = o*stride - padding + i*dilation` that lie in the image.

The gradient of the filter at a tap is a sum, over all images and pixels `o`, of products of the
cotangent there and the image at `h`. Where windows move by one pixel and the result is as large as
the image, the tap with `i*dilation = padding` has `h = o`: every pixel of both, and none of the
padding. For a channel of the result and one of the image, the gradient has a sum with all the
numbers of the two there. If it is finite for every channel of the result with the first one of the
image in its group, and for every channel of the image with the first one of the result, all numbers
of cotangent and image are finite. Whatever zeros of the padding these met, the products are zeros,
and the gradient has the terms of the op alone. If other taps are not finite, such terms or sums of
them overflowed. That they may do in one order and not in another, as where there is no padding and
nothing is looked at. But if this tap is not finite, numbers of every tap may come from zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opgen.runtime.library import Case

Place = tuple[int, ...]


def pixel_of_result(case: Case) -> Place | None:
    """The first pixel of the result whose windows have no tap in the padding; None without one."""
    found = []
    for image, result, taps, stride, padding, dilation in _dims(case):
        pixel = -(-padding // stride)
        if pixel >= result or pixel * stride - padding + dilation * (taps - 1) >= image:
            return None
        found.append(pixel)
    return tuple(found)


def pixel_of_image(case: Case) -> Place | None:
    """The first pixel of the image that every tap meets in some window; None without one.

    Where windows move by more than one pixel there is none: each tap meets some pixels only.
    """
    found = []
    for image, result, taps, stride, padding, dilation in _dims(case):
        pixel = max(0, dilation * (taps - 1) - padding)
        if stride != 1 or pixel >= image or pixel + padding >= result:
            return None
        found.append(pixel)
    return tuple(found)


def tap_of_weight(case: Case) -> Place | None:
    """The tap that meets every pixel of image and result, each once; None without one.

    Where windows move by more than one pixel there is none, as in `pixel_of_image`.
    """
    found = []
    for image, result, taps, stride, padding, dilation in _dims(case):
        tap = padding // dilation
        if stride != 1 or result != image or tap * dilation != padding or tap >= taps:
            return None
        found.append(tap)
    return tuple(found)


def _dims(case: Case) -> Iterator[tuple[int, int, int, int, int, int]]:
    sizes = (case.image[2:], case.result[2:], case.weight[2:])
    return zip(*sizes, case.stride, case.padding, case.dilation, strict=True)
