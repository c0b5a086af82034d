"""Convolution by plain loops over an image that is padded first."""

import numpy as np


def _windows(size, kernel, stride, dilation):
    """How many windows fit into a padded line."""
    count = 0
    while count * stride + dilation * (kernel - 1) < size:
        count += 1
    return count


def conv1d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Slide the kernel along a padded line."""
    N, channels, W = x.shape
    outputs, group_channels, L = weight.shape
    group_outputs = outputs // groups
    padded = np.zeros((N, channels, W + 2 * padding), x.dtype)
    for n in range(N):
        for c in range(channels):
            for w in range(W):
                padded[n, c, w + padding] = x[n, c, w]
    y = np.zeros((N, outputs, _windows(W + 2 * padding, L, stride, dilation)), x.dtype)
    for n, o, j in np.ndindex(y.shape):
        first = o // group_outputs * group_channels
        total = 0 if bias is None else bias[o]
        for c in range(group_channels):
            for m in range(L):
                total += weight[o, c, m] * padded[n, first + c, j * stride + m * dilation]
        y[n, o, j] = total
    return y


def conv2d(x, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """Slide the kernel over a padded image."""
    N, channels, H, W = x.shape
    outputs, group_channels, K, L = weight.shape
    group_outputs = outputs // groups
    rows, columns = H + 2 * padding[0], W + 2 * padding[1]
    padded = np.zeros((N, channels, rows, columns), x.dtype)
    for n, c, h, w in np.ndindex(x.shape):
        padded[n, c, h + padding[0], w + padding[1]] = x[n, c, h, w]
    OH = _windows(rows, K, stride[0], dilation[0])
    OW = _windows(columns, L, stride[1], dilation[1])
    y = np.zeros((N, outputs, OH, OW), x.dtype)
    for n, o, i, j in np.ndindex(y.shape):
        first = o // group_outputs * group_channels
        total = 0 if bias is None else bias[o]
        for c in range(group_channels):
            for k in range(K):
                for m in range(L):
                    row, column = i * stride[0] + k * dilation[0], j * stride[1] + m * dilation[1]
                    total += weight[o, c, k, m] * padded[n, first + c, row, column]
        y[n, o, i, j] = total
    return y


def conv3d(x, weight, bias=None, stride=(1, 1, 1), padding=(0, 0, 0), dilation=(1, 1, 1), groups=1):
    """Slide the kernel through a padded volume."""
    outputs, group_channels = weight.shape[:2]
    group_outputs = outputs // groups
    size = tuple(n + 2 * p for n, p in zip(x.shape[2:], padding, strict=True))
    padded = np.zeros(x.shape[:2] + size, x.dtype)
    for n, c, d, h, w in np.ndindex(x.shape):
        padded[n, c, d + padding[0], h + padding[1], w + padding[2]] = x[n, c, d, h, w]
    windows = tuple(
        _windows(size[axis], weight.shape[2 + axis], stride[axis], dilation[axis])
        for axis in range(3)
    )
    y = np.zeros((x.shape[0], outputs, *windows), x.dtype)
    for n, o, *start in np.ndindex(y.shape):
        first = o // group_outputs * group_channels
        total = 0 if bias is None else bias[o]
        for c in range(group_channels):
            for tap in np.ndindex(weight.shape[2:]):
                at = tuple(start[a] * stride[a] + tap[a] * dilation[a] for a in range(3))
                total += weight[(o, c, *tap)] * padded[(n, first + c, *at)]
        y[(n, o, *start)] = total
    return y
