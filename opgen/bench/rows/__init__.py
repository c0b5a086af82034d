"""All rows, in the order of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opgen.bench.row import Row
from opgen.bench.rows import convolution, depth_to_space, nets, shift_sum, unfold, upsampling

QUICKLY_COMPILED: Final = (
    "bilinear [8,2048,8,8]",
    "depth_to_space r=2 CRD [8,64,180,320] float32",
)
"""The rows in which torch.compile takes part in quick mode."""


def every_row() -> Iterator[Row]:
    """Every row, built when it is measured."""
    for module in (shift_sum, upsampling, convolution, unfold, depth_to_space, nets):
        yield from module.rows()
