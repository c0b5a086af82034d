"""Channels to pixel blocks and back, by plain loops over the pixels of the large image."""

import numpy as np


def _channel(c, row, column, channels, r, mode):
    """The channel that holds pixel (row, column) of the blocks of channel c."""
    if mode == "CRD":
        return c * r * r + row * r + column
    if mode == "DCR":
        return row * r * channels + column * channels + c
    raise ValueError(mode)


def depth_to_space(x, r=2, mode="CRD"):
    """Gather every pixel of the large image from its channel."""
    N, depth, H, W = x.shape
    C = depth // (r * r)
    y = np.zeros((N, C, H * r, W * r), x.dtype)
    for n in range(N):
        for c in range(C):
            for row in range(H * r):
                for column in range(W * r):
                    source = _channel(c, row % r, column % r, C, r, mode)
                    y[n, c, row, column] = x[n, source, row // r, column // r]
    return y


def space_to_depth(x, r=2, mode="CRD"):
    """Send every pixel of the large image to its channel."""
    N, C, rows, columns = x.shape
    y = np.zeros((N, C * r * r, rows // r, columns // r), x.dtype)
    for n in range(N):
        for c in range(C):
            for row in range(rows):
                for column in range(columns):
                    target = _channel(c, row % r, column % r, C, r, mode)
                    y[n, target, row // r, column // r] = x[n, c, row, column]
    return y
