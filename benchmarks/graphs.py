"""Ops whose indices tensors hold: graphs, experts and meshes, for `everyday.py`."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from written import Written

_NODES: Final = 1000
_EDGES: Final = 40000
_TO: Final = (_NODES, (_EDGES,))


def _sums(rows: Tensor, to: Tensor, count: int) -> Tensor:
    return rows.new_zeros(count, rows.shape[1]).index_add(0, to, rows)


def _largest(rows: Tensor, to: Tensor, count: int) -> Tensor:
    start = rows.new_full((count, rows.shape[1]), -torch.inf)
    return start.scatter_reduce(0, to[:, None].expand_as(rows), rows, "amax")


def _softmax(s: Tensor, to: Tensor) -> Tensor:
    e = torch.exp(s - _largest(s, to, _NODES).detach()[to])
    return e / _sums(e, to, _NODES)[to]


def _corners(x: Tensor, a: Tensor, i: Tensor, j: Tensor) -> Tensor:
    (_, channels, height, width), (batches, points, near) = x.shape, i.shape
    inside = (i < height) & (j < width)
    at = i.clamp(max=height - 1) * width + j.clamp(max=width - 1)
    at = at.reshape(batches, 1, -1).expand(-1, channels, -1)
    found = x.flatten(2).gather(2, at).reshape(batches, channels, points, near)
    return (found * (a * inside)[:, None]).sum(3)


GRAPHS: Final = (
    Written(
        "messages",
        "x: float[N,D], s[E], i: int[E], j: int[E]) -> y[N,D]\n  y[j[e],d] += s[e]*x[i[e],d]",
        ((_NODES, 32), (_EDGES,), _TO, _TO),
        lambda x, s, i, j: _sums(s[:, None] * x[i], j, len(x)),
    ),
    Written(
        "graph layer",
        "x: float[N,D], w[O,D], i: int[E], j: int[E]) -> y[N,O]\n  y[j[e],o] += w[o,d]*x[i[e],d]",
        ((_NODES, 32), (32, 32), _TO, _TO),
        lambda x, w, i, j: _sums(x[i] @ w.T, j, len(x)),
    ),
    Written(
        "maxima of neighbours",
        "x: float[N,D], i: int[E], j: int[E]) -> y[N,D]\n  y[j[e],d] max= x[i[e],d]",
        ((_NODES, 32), _TO, _TO),
        lambda x, i, j: _largest(x[i], j, len(x)),
    ),
    Written(
        "softmax over edges",
        "s: float[E,H], j: int[E]; N: size) -> y[E,H]\n  tmp top[N,H], z[N,H]\n"
        "  top[j[e],h] max= s[e,h]\n"
        "  p[e,h] = exp(s[e,h] - top[j[e],h])\n  z[j[e],h] += p[e,h]\n"
        "  y[e,h] = p[e,h] / z[j[e],h]",
        ((_EDGES, 4), _TO),
        _softmax,
        {"N": _NODES},
    ),
    Written(
        "experts",
        "x: float[B,T,D], w[N,D,O], r: int[B]) -> y[B,T,O]\n"
        "  y[b,t,o] = sum(d) x[b,t,d]*w[r[b],d,o]",
        ((16, 64, 64), (4, 64, 64), (4, (16,))),
        lambda x, w, r: torch.bmm(x, w[r]),
    ),
    Written(
        "convolution of a mesh",
        "x: float[B,C,V], w[O,C,K], i: int[V,K]) -> y[B,O,V]\n"
        "  y[b,o,v] = sum(c,k) x[b,c,i[v,k]]*w[o,c,k]",
        ((4, 32, _NODES), (64, 32, 9), (_NODES, (_NODES, 9))),
        lambda x, w, i: torch.einsum("bcvk,ock->bov", x[:, :, i], w),
    ),
    Written(
        "four corners of places",
        "x: float[N,C,H,W], a[N,P,4], i: int[N,P,4], j: int[N,P,4]) -> y[N,C,P]\n"
        "  y[n,c,p] = sum(q) a[n,p,q]*x[n,c, i[n,p,q] ?0, j[n,p,q] ?0]",
        ((4, 16, 64, 64), (4, 4096, 4), (65, (4, 4096, 4)), (65, (4, 4096, 4))),
        _corners,
    ),
    Written(
        "products of pairs of features",
        "x: float[B,N,D], i: int[P], j: int[P]) -> y[B,P]\n"
        "  y[b,p] = sum(d) x[b,i[p],d]*x[b,j[p],d]",
        ((256, 27, 32), (27, (351,)), (27, (351,))),
        lambda x, i, j: torch.bmm(x, x.mT)[:, i, j],
    ),
    Written(
        "sums of embeddings",
        "w: float[V,D], i: int[B,T]) -> y[B,D]\n  y[b,d] = sum(t) w[i[b,t],d]",
        ((_NODES, 64), (_NODES, (512, 20))),
        lambda w, i: F.embedding_bag(i, w, mode="sum"),
    ),
)
