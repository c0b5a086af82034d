"""Bilinear resizing by plain loops: at most four pixels, weights from exact positions."""

import math
from fractions import Fraction

import numpy as np


def _neighbours(position, size, exact):
    """The two pixels around a position, and their weights; the edge pixels continue outside."""
    position = min(max(position, Fraction(0)), Fraction(size - 1))
    low = math.floor(position)
    high = min(low + 1, size - 1)
    part = position - low
    return (
        ((low, 1 - part), (high, part)) if exact else ((low, float(1 - part)), (high, float(part)))
    )


def _sample(x, rows, columns):
    """Sample at every pair of a row position and a column position."""
    N, C, H, W = x.shape
    exact = x.dtype == object
    y = np.zeros((N, C, len(rows), len(columns)), x.dtype)
    for n, c, i, j in np.ndindex(y.shape):
        total = 0
        for h, row_weight in _neighbours(rows[i], H, exact):
            for w, column_weight in _neighbours(columns[j], W, exact):
                total += row_weight * column_weight * x[n, c, h, w]
        y[n, c, i, j] = total
    return y


def _half_pixel(size, output_size):
    """Positions of the output centres where the image corners coincide."""
    ratio = Fraction(size, output_size) if output_size else Fraction(0)
    return [(i + Fraction(1, 2)) * ratio - Fraction(1, 2) for i in range(output_size)]


def _corners(size, output_size):
    """Positions of the output centres where the centres of the corner pixels coincide."""
    if output_size == 1:
        return [Fraction(0)]
    return [i * Fraction(size - 1, output_size - 1) for i in range(output_size)]


def upsample_bilinear(x, scale_factor=2):
    """Half-pixel centres, integer factor."""
    H, W = x.shape[2:]
    return _sample(x, _half_pixel(H, H * scale_factor), _half_pixel(W, W * scale_factor))


def upsample_bilinear_size(x, output_size, align_corners=False):
    """Any output size."""
    positions = _corners if align_corners else _half_pixel
    H, W = x.shape[2:]
    return _sample(x, positions(H, output_size[0]), positions(W, output_size[1]))
