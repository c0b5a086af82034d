"""Cost volume by plain loops over displacements."""

import numpy as np


def correlation(f, g, radius=4, dilation=1):
    """The mean over channels of f at a pixel times g at the displaced pixel."""
    N, C, H, W = f.shape
    displacements = [
        (dilation * dy, dilation * dx)
        for dy in range(-radius, radius + 1)
        for dx in range(-radius, radius + 1)
    ]
    y = np.zeros((N, len(displacements), H, W), f.dtype)
    for n in range(N):
        for channel, (dy, dx) in enumerate(displacements):
            for h in range(H):
                for w in range(W):
                    if 0 <= h + dy < H and 0 <= w + dx < W:
                        total = 0
                        for c in range(C):
                            total += f[n, c, h, w] * g[n, c, h + dy, w + dx]
                        y[n, channel, h, w] = total / C
    return y
