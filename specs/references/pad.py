"""Padding by plain loops; every mode moves a coordinate step by step until it is inside."""

import numpy as np


def _pad(x, padding, source):
    """Read each output pixel from `source(coordinate, size)`; None is zero."""
    *batch, H, W = x.shape
    left, right, top, bottom = padding
    y = np.zeros((*batch, top + H + bottom, left + W + right), x.dtype)
    for n in np.ndindex(*batch):
        for i in range(top + H + bottom):
            for j in range(left + W + right):
                h, w = source(i - top, H), source(j - left, W)
                if h is not None and w is not None:
                    y[(*n, i, j)] = x[(*n, h, w)]
    return y


def pad_zero(x, padding):
    """Zero outside."""
    return _pad(x, padding, lambda at, size: at if 0 <= at < size else None)


def pad_reflect(x, padding):
    """Mirrors stand at the centres of the first and the last pixel."""

    def source(at, size):
        while not 0 <= at < size:
            at = -at if at < 0 else 2 * (size - 1) - at
        return at

    return _pad(x, padding, source)


def pad_replicate(x, padding):
    """The nearest pixel."""

    def source(at, size):
        while at < 0:
            at += 1
        while at >= size:
            at -= 1
        return at

    return _pad(x, padding, source)


def pad_circular(x, padding):
    """The image repeats."""

    def source(at, size):
        while at < 0:
            at += size
        while at >= size:
            at -= size
        return at

    return _pad(x, padding, source)
