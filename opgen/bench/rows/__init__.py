"""All rows, in the order of the tables."""

from __future__ import annotations

from collections.abc import Iterator

from opgen.bench.row import Row
from opgen.bench.rows import convolution, depth_to_space, shift_sum, unfold, upsampling


def every_row() -> Iterator[Row]:
    """Every row, built when it is measured."""
    for module in (shift_sum, upsampling, convolution, unfold, depth_to_space):
        yield from module.rows()
