"""Products of float32 numbers on a GPU: in TF32, or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from opgen.bench.row import Contender


def in_tf32(contender: Contender) -> Contender:
    """The same with products in TF32, which has the precision of float16 (10 bits of fraction).

    Everything else runs without: cuDNN uses it by default, PyTorch's own products do not.
    """

    @contextlib.contextmanager
    def settings() -> Iterator[None]:
        with contender.settings(), tf32(allowed=True):
            yield

    return replace(
        contender, name=f"{contender.name}, TF32", settings=settings, precision=torch.float16
    )


@contextlib.contextmanager
def tf32(*, allowed: bool) -> Iterator[None]:
    """TF32 in products and convolutions, or not."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = allowed
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
