"""What makes an op a convolution, for those who have a fast one at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from opgen.algebra.poly import Poly
from opgen.ir.arrangement import Arrangement


class Role(Enum):
    """The tensors of a convolution.

        result[n,(g o),i] = sum(c,k) image[n,(g c), i*s - p + k*d] * weight[(g o),c,k]

    Any of them may be the one that an op computes: the image from the other two is a transposed
    convolution, the weight its gradient.
    """

    RESULT = "result"
    IMAGE = "image"
    WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class Convolution:
    """The names of tensors in their roles, which of them is computed, and the geometry.

    `bias` is added to what is computed, one number for each channel. `arrangements` are those of
    tensors whose dims are not already the dims of the convolution.
    """

    target: Role
    result: str
    image: str
    weight: str
    bias: str | None
    groups: Poly
    stride: tuple[Poly, ...]
    padding: tuple[Poly, ...]
    dilation: tuple[Poly, ...]
    arrangements: Mapping[str, Arrangement]
