"""Shift convolution by plain loops: move every channel, then mix."""

import numpy as np


def shift_conv(x, offset, weight):
    """y at a pixel sees channel c of x at that pixel plus the channel's offset."""
    N, C, H, W = x.shape
    y = np.zeros((N, weight.shape[0], H, W), x.dtype)
    for n in range(N):
        for c in range(C):
            for h in range(H):
                for w in range(W):
                    target_row, target_column = h - offset[c, 0], w - offset[c, 1]
                    if 0 <= target_row < H and 0 <= target_column < W:
                        for o in range(weight.shape[0]):
                            y[n, o, target_row, target_column] += weight[o, c] * x[n, c, h, w]
    return y
