"""Haar wavelets by plain loops, the four subbands of every 2 by 2 block written out."""

import numpy as np


def haar(x):
    """The sum and the three differences of every block, halved."""
    N, C, rows, columns = x.shape
    y = np.zeros((N, 4 * C, rows // 2, columns // 2), x.dtype)
    for n in range(N):
        for c in range(C):
            for h in range(rows // 2):
                for w in range(columns // 2):
                    top_left, top_right = x[n, c, 2 * h, 2 * w], x[n, c, 2 * h, 2 * w + 1]
                    low_left, low_right = x[n, c, 2 * h + 1, 2 * w], x[n, c, 2 * h + 1, 2 * w + 1]
                    y[n, 4 * c + 0, h, w] = (top_left + top_right + low_left + low_right) / 2
                    y[n, 4 * c + 1, h, w] = (top_left - top_right + low_left - low_right) / 2
                    y[n, 4 * c + 2, h, w] = (top_left + top_right - low_left - low_right) / 2
                    y[n, 4 * c + 3, h, w] = (top_left - top_right - low_left + low_right) / 2
    return y


def haar_inverse(x):
    """Each pixel of a block from its four subbands."""
    N, bands, H, W = x.shape
    y = np.zeros((N, bands // 4, 2 * H, 2 * W), x.dtype)
    for n in range(N):
        for c in range(bands // 4):
            for h in range(H):
                for w in range(W):
                    mean, across, down, both = (x[n, 4 * c + band, h, w] for band in range(4))
                    y[n, c, 2 * h, 2 * w] = (mean + across + down + both) / 2
                    y[n, c, 2 * h, 2 * w + 1] = (mean - across + down - both) / 2
                    y[n, c, 2 * h + 1, 2 * w] = (mean + across - down - both) / 2
                    y[n, c, 2 * h + 1, 2 * w + 1] = (mean - across - down + both) / 2
    return y
