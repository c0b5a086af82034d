"""Involution by plain loops over the pixels of the output."""

import numpy as np


def involution(x, weight, dilation=(1, 1), padding=(0, 0), stride=(1, 1)):
    """Every pixel brings its own kernel, one for all channels of a group."""
    N, channels, H, W = x.shape
    _, groups, K, L, OH, OW = weight.shape
    y = np.zeros((N, channels, OH, OW), x.dtype)
    for n in range(N):
        for channel in range(channels):
            group = channel // (channels // groups)
            for i in range(OH):
                for j in range(OW):
                    for k in range(K):
                        for m in range(L):
                            h = i * stride[0] + k * dilation[0] - padding[0]
                            w = j * stride[1] + m * dilation[1] - padding[1]
                            if 0 <= h < H and 0 <= w < W:
                                kernel = weight[n, group, k, m, i, j]
                                y[n, channel, i, j] += kernel * x[n, channel, h, w]
    return y
