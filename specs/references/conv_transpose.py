"""Transposed convolution by plain loops: paint everything on a large canvas, then crop it."""

import numpy as np


def conv_transpose1d(
    x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    """Paint kernels on a line and cut `padding` off both ends."""
    N, channels, W = x.shape
    _, group_outputs, L = weight.shape
    group_channels = channels // groups
    size = (W - 1) * stride + dilation * (L - 1) + 1 + output_padding
    canvas = np.zeros((N, groups * group_outputs, size), x.dtype)
    for n in range(N):
        for c in range(channels):
            for o in range(group_outputs):
                target = c // group_channels * group_outputs + o
                for w in range(W):
                    for m in range(L):
                        canvas[n, target, w * stride + m * dilation] += x[n, c, w] * weight[c, o, m]
    y = np.zeros((N, groups * group_outputs, size - 2 * padding), x.dtype)
    for n, o, j in np.ndindex(y.shape):
        y[n, o, j] = canvas[n, o, j + padding]
        if bias is not None:
            y[n, o, j] += bias[o]
    return y


def conv_transpose2d(
    x,
    weight,
    bias=None,
    stride=(1, 1),
    padding=(0, 0),
    output_padding=(0, 0),
    groups=1,
    dilation=(1, 1),
):
    """Paint kernels on a canvas and cut `padding` off its four sides."""
    N, channels, H, W = x.shape
    _, group_outputs, K, L = weight.shape
    group_channels = channels // groups
    rows = (H - 1) * stride[0] + dilation[0] * (K - 1) + 1 + output_padding[0]
    columns = (W - 1) * stride[1] + dilation[1] * (L - 1) + 1 + output_padding[1]
    canvas = np.zeros((N, groups * group_outputs, rows, columns), x.dtype)
    for n, c, h, w in np.ndindex(x.shape):
        for o in range(group_outputs):
            target = c // group_channels * group_outputs + o
            for k in range(K):
                for m in range(L):
                    row, column = h * stride[0] + k * dilation[0], w * stride[1] + m * dilation[1]
                    canvas[n, target, row, column] += x[n, c, h, w] * weight[c, o, k, m]
    shape = (N, groups * group_outputs, rows - 2 * padding[0], columns - 2 * padding[1])
    y = np.zeros(shape, x.dtype)
    for n, o, i, j in np.ndindex(shape):
        y[n, o, i, j] = canvas[n, o, i + padding[0], j + padding[1]]
        if bias is not None:
            y[n, o, i, j] += bias[o]
    return y
