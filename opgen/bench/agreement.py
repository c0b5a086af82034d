"""Whether a contender computes what opgen computes, within what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from opgen.bench.faults import DisagreementError

_ROUNDINGS: Final = 4.0
"""Results may differ by so many roundings of the largest value, in the type that stores them."""


def tolerance(
    found: Tensor,
    expected: Tensor,
    points: int,
    depth: int = 1,
    between: torch.dtype | None = None,
    factors: torch.dtype | None = None,
) -> float:
    """The greatest difference that two right results may have.

    `points` counts the terms of all sums of a result, `depth` the sums that follow each other,
    `between` is the type of what is stored between ops, if it is another (autocast), and `factors`
    a type in whose precision factors are multiplied, if it is less (TF32).

    A sum of `k` random terms in a type of precision `eps` carries an error of about `eps * sqrt(k)`
    relative to the largest of many such sums (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.5); sums of 16-bit tensors run in 32 bits, so that only storing counts
    there. Four of each are allowed, since algorithms such as Winograd's lose a little more.

    A factor that is rounded, or cut off, is wrong by at most `eps` of itself, and so each product
    by twice that; but these errors are as random as the terms. A sum of terms `t` then carries one
    of `eps * sqrt(sum t**2)`, and that root is what sums of random terms are in size: relative to
    the largest of many, the error is about `eps` for any number of terms. Those of several layers
    are independent of each other, and add up as their squares. A term left out changes such a sum
    by `1 / sqrt(k)` of its size, one tap in nine by a third.
    """
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    terms = max(1.0, points / max(1, expected.numel()))
    kept = {found.dtype, expected.dtype, between or expected.dtype}
    stored = max(torch.finfo(dtype).eps for dtype in kept)
    summed = max(_summing(found.dtype), _summing(expected.dtype))
    multiplied = 0.0 if factors is None else torch.finfo(factors).eps
    rounded = depth * (stored + summed * math.sqrt(terms)) + math.sqrt(depth) * multiplied
    return scale * _ROUNDINGS * rounded


def _summing(dtype: torch.dtype) -> float:
    """The precision of a sum of numbers of this type."""
    return torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype).eps


def check(
    name: str,
    found: Sequence[Tensor],
    expected: Sequence[Tensor],
    points: int,
    depth: int = 1,
    between: torch.dtype | None = None,
    factors: torch.dtype | None = None,
) -> None:
    """DisagreementError, with where and by how much, unless all results are as opgen's."""
    for at, (mine, theirs) in enumerate(zip(expected, found, strict=True)):
        what = f"result {at + 1} of {name}"
        if mine.shape != theirs.shape:
            raise DisagreementError(
                f"{what} has shape {list(theirs.shape)}, opgen's has {list(mine.shape)}"
            )
        wide = torch.promote_types(mine.dtype, theirs.dtype)
        difference = (mine.to(wide) - theirs.to(wide)).abs_()
        allowed = tolerance(theirs, mine, points, depth, between, factors)
        # Written so that a NaN in either is refused too.
        if difference.numel() and not float(difference.max()) <= allowed:
            cell = [int(i) for i in torch.unravel_index(difference.argmax(), difference.shape)]
            place = tuple(cell)
            raise DisagreementError(
                f"{what} is {theirs[place].item():.9g} at {cell}, opgen's is "
                f"{mine[place].item():.9g}; rounding explains a difference of {allowed:.2g}"
            )
