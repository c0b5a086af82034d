"""Slopes by difference quotients, with a bound for their error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

_STEP: Final = 2.0**-10
_ROUNDING: Final = 1e-13  # of the size of the values, more than a few hundred roundings


def slope(value: Callable[[float], tuple[float, float]]) -> tuple[float, float] | None:
    """The derivative at 0 and how far off it may be; None at a kink or without finite values.

    `value` gives the function and the sum of the absolute terms it is made of. Central quotients at
    two steps are extrapolated, which leaves the fourth power of the step; their difference is far
    above that error.
    """
    found = [value(step) for step in (0.0, _STEP, -_STEP, _STEP / 2, -_STEP / 2)]
    if not all(math.isfinite(number) for pair in found for number in pair):
        return None
    base, up, down, near_up, near_down = (number for number, _ in found)
    size = max(absolute for _, absolute in found)
    coarse = (up - down) / (2 * _STEP)
    fine = (near_up - near_down) / _STEP
    result = (4 * fine - coarse) / 3
    rounding = _ROUNDING * size / _STEP
    # On a smooth function the quotients to both sides approach each other with the step.
    gap = abs(up - 2 * base + down) / _STEP
    near_gap = abs(near_up - 2 * base + near_down) / (_STEP / 2)
    if near_gap > 0.6 * gap + rounding:
        return None
    difference = abs(fine - coarse)
    if difference > 1e-3 * (abs(result) + size):
        return None
    return result, 2 * difference + rounding + 1e-12 * size
