"""Convolution by plain loops, every weight adding its shifted image to the output."""

import numpy as np


def unfold_conv(x, weight, dilation=(1, 1), padding=(0, 0), stride=(1, 1)):
    """For every weight, add it times the pixels it meets."""
    N, _, H, W = x.shape
    O, _, K, L = weight.shape
    OH = (H + 2 * padding[0] - dilation[0] * (K - 1) - 1) // stride[0] + 1
    OW = (W + 2 * padding[1] - dilation[1] * (L - 1) - 1) // stride[1] + 1
    y = np.zeros((N, O, OH, OW), x.dtype)
    for o, c, k, m in np.ndindex(weight.shape):
        for n in range(N):
            for i in range(OH):
                for j in range(OW):
                    row = i * stride[0] + k * dilation[0] - padding[0]
                    column = j * stride[1] + m * dilation[1] - padding[1]
                    if 0 <= row < H and 0 <= column < W:
                        y[n, o, i, j] += weight[o, c, k, m] * x[n, c, row, column]
    return y
