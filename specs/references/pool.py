"""Pooling by plain loops over the cells of every window."""

import math

import numpy as np


def _starts(size, kernel, stride, padding, dilation, ceil_mode):
    """Where the windows along one dimension start; negative inside the padding."""
    steps = (size + 2 * padding - dilation * (kernel - 1) - 1) / stride
    count = (math.ceil(steps) if ceil_mode else math.floor(steps)) + 1
    starts = [i * stride - padding for i in range(count)]
    # A window of which the image and the padding before it see nothing is no window.
    return [start for start in starts if start < size]


def avg_pool2d(x, kernel_size, stride, padding=(0, 0), ceil_mode=False, count_include_pad=True):
    """The mean over the cells of a window that count."""
    N, C, H, W = x.shape
    tops = _starts(H, kernel_size[0], stride[0], padding[0], 1, ceil_mode)
    lefts = _starts(W, kernel_size[1], stride[1], padding[1], 1, ceil_mode)
    y = np.zeros((N, C, len(tops), len(lefts)), x.dtype)
    for n, c, i, j in np.ndindex(y.shape):
        total, inside, padded = 0, 0, 0
        for h in range(tops[i], tops[i] + kernel_size[0]):
            for w in range(lefts[j], lefts[j] + kernel_size[1]):
                if 0 <= h < H and 0 <= w < W:
                    total += x[n, c, h, w]
                    inside += 1
                if h < H + padding[0] and w < W + padding[1]:
                    padded += 1
        y[n, c, i, j] = total / (padded if count_include_pad else inside)
    return y


def max_pool2d(x, kernel_size, stride, padding=(0, 0), dilation=(1, 1), ceil_mode=False):
    """The largest pixel of a window and where it is; the first of equals; NaN is largest."""
    N, C, H, W = x.shape
    tops = _starts(H, kernel_size[0], stride[0], padding[0], dilation[0], ceil_mode)
    lefts = _starts(W, kernel_size[1], stride[1], padding[1], dilation[1], ceil_mode)
    least = np.iinfo(x.dtype).min if np.issubdtype(x.dtype, np.integer) else -math.inf
    y = np.full((N, C, len(tops), len(lefts)), least, x.dtype)
    index = np.full(y.shape, -1, np.int64)
    for n, c, i, j in np.ndindex(y.shape):
        for k in range(kernel_size[0]):
            for m in range(kernel_size[1]):
                h, w = tops[i] + k * dilation[0], lefts[j] + m * dilation[1]
                if not (0 <= h < H and 0 <= w < W):
                    continue
                pixel, best = x[n, c, h, w], y[n, c, i, j]
                first_nan = pixel != pixel and best == best
                if index[n, c, i, j] < 0 or pixel > best or first_nan:
                    y[n, c, i, j] = pixel
                    index[n, c, i, j] = h * W + w
    return y, index
