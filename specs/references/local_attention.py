"""Local attention by plain loops over the neighbours of every position."""

import math

import numpy as np


def local_attention(q, k, v, radius=1, dilation=1, scale=1.0):
    """The mean of the neighbours' values, weighted by the exponentials of their scores."""
    B, A, T, E = q.shape
    y = np.zeros(v.shape, v.dtype)
    for b in range(B):
        for a in range(A):
            for t in range(T):
                reach = range(t - radius * dilation, t + radius * dilation + 1, dilation)
                neighbours = [u for u in reach if 0 <= u < T]
                scores = []
                for u in neighbours:
                    score = 0.0
                    for e in range(E):
                        score += q[b, a, t, e] * k[b, a, u, e]
                    scores.append(scale * score)
                weights = [math.exp(score - max(scores)) for score in scores]
                for f in range(v.shape[3]):
                    total = 0.0
                    for weight, u in zip(weights, neighbours, strict=True):
                        total += weight * v[b, a, u, f]
                    y[b, a, t, f] = total / sum(weights)
    return y
