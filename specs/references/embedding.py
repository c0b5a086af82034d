"""Table lookup by plain loops."""

import numpy as np


def embedding(indices, weight):
    """Copy the row that every element of `indices` names."""
    y = np.zeros((*indices.shape, weight.shape[1]), weight.dtype)
    for at in np.ndindex(indices.shape):
        for e in range(weight.shape[1]):
            y[(*at, e)] = weight[indices[at], e]
    return y
