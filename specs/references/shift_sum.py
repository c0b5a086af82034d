"""Shift-and-sum by plain loops."""

import numpy as np


def shift_sum(x, step=1):
    """Add pixel (c, h, w) to column w + c*step."""
    B, C, H, W = x.shape
    y = np.zeros((B, 1, H, W + (C - 1) * step), x.dtype)
    for b in range(B):
        for c in range(C):
            for h in range(H):
                for w in range(W):
                    y[b, 0, h, w + c * step] += x[b, c, h, w]
    return y


def shift_sum_masked(x, mask, step=1):
    """Multiply every channel by the mask, then shift and sum."""
    B, C, H, W = x.shape
    masked = np.zeros(x.shape, x.dtype)
    for b in range(B):
        for c in range(C):
            for h in range(H):
                for w in range(W):
                    masked[b, c, h, w] = x[b, c, h, w] * mask[0, 0, h, w]
    return shift_sum(masked, step)


def shift_sum_pinv(y, mask=None, *, C, step=1):
    """Share every column equally among the channels that reach it, undo the mask."""
    B, _, H, V = y.shape
    W = V - (C - 1) * step
    reaching = [0] * V
    for c in range(C):
        for w in range(W):
            reaching[w + c * step] += 1
    x = np.zeros((B, C, H, W), y.dtype)
    for b in range(B):
        for c in range(C):
            for h in range(H):
                for w in range(W):
                    v = w + c * step
                    x[b, c, h, w] = y[b, 0, h, v] / reaching[v]
                    if mask is not None:
                        x[b, c, h, w] /= mask[0, 0, h, w]
    return x
