"""Products of float32 numbers on a GPU: in TF32, or not; opgen's and those of all others alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import torch

FACTORS: Final = torch.float16
"""A type with the precision of factors in TF32: 10 bits of fraction."""


@contextlib.contextmanager
def tf32(*, allowed: bool) -> Iterator[None]:
    """TF32 in products and convolutions, or not.

    PyTorch's own default is half of it: convolutions are in TF32, products of matrices are not.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = allowed
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def of_factors(device: torch.device) -> torch.dtype | None:
    """The type in whose precision float32 factors are multiplied; None for float32 itself."""
    return FACTORS if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else None
