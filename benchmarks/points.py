"""Ops of all pairs of points or boxes, for `everyday.py`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from written import Written


def _nearest(a: Tensor, b: Tensor) -> Tensor:
    pairs = (a[:, :, None] - b[:, None]).square().sum(3)
    return pairs.amin(2).mean(1) + pairs.amin(1).mean(1)


def _overlaps(a: Tensor, b: Tensor) -> Tensor:
    left, right = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
    both = (right - left).clamp(0).prod(2)
    areas = [(each[:, 2:] - each[:, :2]).prod(1).abs() for each in (a, b)]
    return both / (areas[0][:, None] + areas[1] - both + 1)


def _forces(p: Tensor, q: Tensor) -> Tensor:
    apart = p[None] - p[:, None]
    squares = apart.square().sum(2) + 0.1
    return ((q / squares**1.5)[..., None] * apart).sum(1)


POINTS: Final = (
    Written(
        "distances of points",
        "a: float[B,N,3], b[B,M,3]) -> y[B,N,M]\n"
        "  y[i,n,m] = sqrt((sum(k) (a[i,n,k] - b[i,m,k])**2) + 0.01)",
        ((4, 256, 3), (4, 256, 3)),
        lambda a, b: ((a[:, :, None] - b[:, None]).square().sum(3) + 0.01).sqrt(),
    ),
    Written(
        "distance to the nearest point",
        "a: float[B,N,D], b[B,M,D]) -> y[B]\n  where N >= 1, M >= 1\n"
        "  d[i,n] = min(m) (sum(k) (a[i,n,k] - b[i,m,k])**2)\n"
        "  e[i,m] = min(n) (sum(k) (a[i,n,k] - b[i,m,k])**2)\n"
        "  y[i] = (mean(n) d[i,n]) + (mean(m) e[i,m])",
        ((4, 512, 3), (4, 512, 3)),
        _nearest,
    ),
    Written(
        "overlaps of boxes",
        "a: float[N,4], b[M,4]) -> y[N,M]\n"
        "  i[n,m] = max(min(a[n,2],b[m,2]) - max(a[n,0],b[m,0]), 0)\n"
        "         * max(min(a[n,3],b[m,3]) - max(a[n,1],b[m,1]), 0)\n"
        "  y[n,m] = i[n,m]/(abs((a[n,2]-a[n,0])*(a[n,3]-a[n,1]))\n"
        "      + abs((b[m,2]-b[m,0])*(b[m,3]-b[m,1])) - i[n,m] + 1)",
        ((512, 4), (512, 4)),
        _overlaps,
    ),
    Written(
        "forces between points",
        "p: float[N,3], q[N]) -> y[N,3]\n"
        "  r[n,m] = (sum(k) (p[m,k] - p[n,k])**2) + 0.1\n"
        "  y[n,k] = sum(m) q[m]*(p[m,k] - p[n,k])/(r[n,m]*sqrt(r[n,m]))",
        ((768, 3), (768,)),
        _forces,
    ),
)
