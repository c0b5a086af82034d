"""Layer and group normalisation by plain loops."""

import math

import numpy as np


def _statistics(values):
    """Mean and biased variance of a list."""
    mean = sum(values) / len(values)
    squares = 0
    for value in values:
        squares += (value - mean) * (value - mean)
    return mean, squares / len(values)


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """Normalise every row of the last dimension."""
    y = np.zeros(x.shape, x.dtype)
    for row in np.ndindex(x.shape[:-1]):
        if x.shape[-1] == 0:
            continue
        mean, variance = _statistics(list(x[row]))
        for d in range(x.shape[-1]):
            value = (x[(*row, d)] - mean) / math.sqrt(variance + eps)
            value *= 1 if weight is None else weight[d]
            y[(*row, d)] = value + (0 if bias is None else bias[d])
    return y


def group_norm(x, weight=None, bias=None, *, num_groups, eps=1e-5):
    """Normalise every group of channels of every image."""
    N, channels, H, W = x.shape
    per_group = channels // num_groups
    y = np.zeros(x.shape, x.dtype)
    for n in range(N):
        for g in range(num_groups):
            members = [
                (n, c, h, w)
                for c in range(g * per_group, (g + 1) * per_group)
                for h in range(H)
                for w in range(W)
            ]
            if not members:
                continue
            mean, variance = _statistics([x[at] for at in members])
            for at in members:
                value = (x[at] - mean) / math.sqrt(variance + eps)
                value *= 1 if weight is None else weight[at[1]]
                y[at] = value + (0 if bias is None else bias[at[1]])
    return y
