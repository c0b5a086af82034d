"""im2col and col2im by plain loops over the list of window positions."""

import numpy as np


def _starts(size, kernel, dilation, padding, stride):
    """Where the windows along one dimension start; negative inside the padding."""
    starts = []
    start = -padding
    while start + dilation * (kernel - 1) < size + padding:
        starts.append(start)
        start += stride
    return starts


def _cells(size, kernel_size, dilation, padding, stride):
    """(row of the columns within a channel, column, image row, image column) inside the image."""
    tops = _starts(size[0], kernel_size[0], dilation[0], padding[0], stride[0])
    lefts = _starts(size[1], kernel_size[1], dilation[1], padding[1], stride[1])
    cells = []
    for k in range(kernel_size[0]):
        for m in range(kernel_size[1]):
            for i, top in enumerate(tops):
                for j, left in enumerate(lefts):
                    h, w = top + k * dilation[0], left + m * dilation[1]
                    if 0 <= h < size[0] and 0 <= w < size[1]:
                        cells.append((k * kernel_size[1] + m, i * len(lefts) + j, h, w))
    return cells, len(tops) * len(lefts)


def unfold(x, kernel_size, dilation=(1, 1), padding=(0, 0), stride=(1, 1)):
    """Copy the pixels of every window into its column."""
    *batch, C, H, W = x.shape
    cells, columns = _cells((H, W), kernel_size, dilation, padding, stride)
    taps = kernel_size[0] * kernel_size[1]
    y = np.zeros((*batch, C * taps, columns), x.dtype)
    for n in np.ndindex(*batch):
        for c in range(C):
            for tap, column, h, w in cells:
                y[(*n, c * taps + tap, column)] = x[(*n, c, h, w)]
    return y


def fold(x, output_size, kernel_size, dilation=(1, 1), padding=(0, 0), stride=(1, 1)):
    """Add every column to the pixels of its window."""
    *batch, rows, _ = x.shape
    cells, _ = _cells(output_size, kernel_size, dilation, padding, stride)
    taps = kernel_size[0] * kernel_size[1]
    y = np.zeros((*batch, rows // taps, *output_size), x.dtype)
    for n in np.ndindex(*batch):
        for c in range(rows // taps):
            for tap, column, h, w in cells:
                y[(*n, c, h, w)] += x[(*n, c * taps + tap, column)]
    return y
