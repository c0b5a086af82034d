"""Sub-pixel convolution by plain loops: a convolution, then its channels sorted into blocks."""

import numpy as np


def conv_depth_to_space(x, weight, bias=None, r=2, padding=(0, 0)):
    """Convolve, then move channel (o, row, column) to that pixel of every block of channel o."""
    N, C, H, W = x.shape
    depth, _, K, L = weight.shape
    OH, OW = H + 2 * padding[0] - K + 1, W + 2 * padding[1] - L + 1
    y = np.zeros((N, depth // (r * r), OH * r, OW * r), x.dtype)
    for n in range(N):
        for f in range(depth):
            for i in range(OH):
                for j in range(OW):
                    total = 0 if bias is None else bias[f]
                    for c in range(C):
                        for k in range(K):
                            for m in range(L):
                                h, w = i + k - padding[0], j + m - padding[1]
                                if 0 <= h < H and 0 <= w < W:
                                    total += x[n, c, h, w] * weight[f, c, k, m]
                    o, block = divmod(f, r * r)
                    y[n, o, i * r + block // r, j * r + block % r] = total
    return y
