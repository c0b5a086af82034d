"""Softmax by plain loops."""

import math

import numpy as np


def softmax(x):
    """Exponentials of a row over their sum; the largest element is taken off first."""
    y = np.zeros(x.shape, x.dtype)
    for row in np.ndindex(x.shape[:-1]):
        exponentials = []
        for d in range(x.shape[-1]):
            exponentials.append(math.exp(x[(*row, d)] - max(x[row])))
        for d in range(x.shape[-1]):
            y[(*row, d)] = exponentials[d] / sum(exponentials)
    return y
