"""Ops along rows of numbers: running totals, gates and cells, for `everyday.py`."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from written import Written


def _swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, 1)
    return F.silu(gate) * value


def _lstm(g: Tensor, c: Tensor) -> Tensor:
    i, f, o, z = g.chunk(4, 1)
    return torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z))


def _cosines(x: Tensor) -> Tensor:
    k, t = torch.arange(129), torch.arange(x.shape[1])
    return x @ torch.cos(0.0245 * k * t[:, None])


SERIES: Final = (
    Written(
        "cumulative sums",
        "x: float[B,T]) -> y[B,T]\n  y[b,t] = sum(s in T if s <= t) x[b,s]",
        ((256, 1000),),
        lambda x: x.cumsum(1),
    ),
    Written(
        "cumulative sums of columns",
        "x: float[B,T,C]) -> y[B,T,C]\n  y[b,t,c] = sum(s in T if s <= t) x[b,s,c]",
        ((8, 512, 64),),
        lambda x: x.cumsum(1),
    ),
    Written(
        "cumulative maxima",
        "x: float[B,T]) -> y[B,T]\n  y[b,t] = max(s in T if s <= t) x[b,s]",
        ((256, 1000),),
        lambda x: x.cummax(1).values,
    ),
    Written(
        "sums over segments",
        "x: float[P,D], n: int[R]) -> y[R,D]\n  tmp at: i64[R]\n"
        "  at[r] = sum(q in R if q < r) n[q] for r in R\n"
        "  y[r,d] = sum(p if p >= at[r] and p < at[r] + n[r]) x[p,d]",
        ((20000, 32), (20, (1000,))),
        lambda x, n: torch.segment_reduce(x[: int(n.sum())], "sum", lengths=n),
    ),
    Written(
        "products of rows",
        "x: float[B,T]) -> y[B]\n  y[b] = prod(t) x[b,t]",
        ((2048, 64),),
        lambda x: x.prod(1),
    ),
    Written(
        "gate of halves",
        "x: float[N,(2 D)]) -> y[N,D]\n  y[n,d] = x[n,(0 d)]*sigmoid(x[n,(0 d)])*x[n,(1 d)]",
        ((512, 2048),),
        _swiglu,
    ),
    Written(
        "LSTM cell",
        "g: float[N,(4 D)], c[N,D]) -> y[N,D]\n"
        "  m[n,d] = sigmoid(g[n,(1 d)])*c[n,d] + sigmoid(g[n,(0 d)])*tanh(g[n,(3 d)])\n"
        "  y[n,d] = sigmoid(g[n,(2 d)])*tanh(m[n,d])",
        ((64, 2048), (64, 512)),
        _lstm,
    ),
    Written(
        "cross entropy with the diagonal",
        "s: float[N,N]) -> y[N]\n  y[n] = log(sum(m) exp(s[n,m])) - s[n,n]",
        ((512, 512),),
        lambda s: s.logsumexp(1) - s.diagonal(),
    ),
    Written(
        "cumulative products",
        "x: float[B,T]) -> y[B,T]\n  y[b,t] = prod(s in T if s <= t) x[b,s]",
        ((2048, 64),),
        lambda x: x.cumprod(1),
    ),
    Written(
        "Fourier transform",
        "x: float[B,T]; K: size) -> y[B,K]\n  y[b,k] = sum(t) x[b,t]*cos(0.0245*k*t) for k in K",
        ((256, 256),),
        _cosines,
        {"K": 129},
    ),
)
