"""Ops that take a minute to write, beside what PyTorch's users write: where it pays, where not.

    python benchmarks/everyday.py [PATTERN] [--device cuda] [--threads N] [--seconds S]
        [--write-readme]

Nobody asked about these, and no spec of `specs` is one of them: they are what comes to mind when
somebody has a tool for such ops. A line that is behind shows what opgen does badly. Forward, and
the gradients of all inputs of floats, images in both formats; in one process and by turns. What is
printed is the time of PyTorch's form over that of opgen: above 1 opgen is faster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from graphs import GRAPHS
from points import POINTS
from series import SERIES
from torch import Tensor
from written import Written

from opgen.bench import tables
from opgen.bench.beside import main

README: Final = Path(__file__).parent / "README.md"


def _wide(values: Tensor) -> Tensor:
    """One number for each channel, beside images."""
    return values[..., None, None]


def _rms(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5) * _wide(w)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), w.shape, w, b).permute(0, 3, 1, 2)


def _before(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1:], dtype=torch.bool, device=x.device).tril()


def _grn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    size = torch.sqrt((x * x).sum((2, 3), keepdim=True))
    return _wide(w) * (x * (size / (size.mean(1, keepdim=True) + 1e-6))) + _wide(b) + x


_IMAGES: Final = (4, 64, 56, 56)
_CHANNELS: Final = (64,)
_IMAGE: Final = "x: float[N,C,H,W]"
_SAME: Final = "-> y[N,C,H,W]\n "

NORMS: Final = (
    Written(
        "RMS norm of channels",
        f"{_IMAGE}, w[C]) {_SAME} square[n,h,i] = mean(c) x[n,c,h,i]**2\n"
        "  y[n,c,h,i] = x[n,c,h,i] * rsqrt(square[n,h,i] + 0.00001) * w[c]",
        (_IMAGES, _CHANNELS),
        _rms,
    ),
    Written(
        "layer norm of channels",
        f"{_IMAGE}, w[C], b[C]) {_SAME} mu[n,h,i] = mean(c) x[n,c,h,i]\n"
        "  s[n,h,i] = mean(c) (x[n,c,h,i] - mu[n,h,i])**2\n"
        "  y[n,c,h,i] = (x[n,c,h,i] - mu[n,h,i]) * rsqrt(s[n,h,i] + 0.00001) * w[c] + b[c]",
        (_IMAGES, _CHANNELS, _CHANNELS),
        _layer_norm,
    ),
    Written(
        "batch norm",
        f"{_IMAGE}, w[C], b[C]) {_SAME} mu[c] = mean(n,h,i) x[n,c,h,i]\n"
        "  s[c] = mean(n,h,i) (x[n,c,h,i] - mu[c])**2\n"
        "  y[n,c,h,i] = (x[n,c,h,i] - mu[c]) * rsqrt(s[c] + 0.00001) * w[c] + b[c]",
        (_IMAGES, _CHANNELS, _CHANNELS),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    ),
    Written(
        "global response norm",
        f"{_IMAGE}, w[C], b[C]) {_SAME} g[n,c] = sqrt(sum(h,i) x[n,c,h,i]**2)\n"
        "  m[n] = mean(c) g[n,c]\n"
        "  y[n,c,h,i] = w[c]*(x[n,c,h,i]*g[n,c]/(m[n] + 0.000001)) + b[c] + x[n,c,h,i]",
        (_IMAGES, _CHANNELS, _CHANNELS),
        _grn,
    ),
    Written(
        "softmax of channels",
        f"{_IMAGE}) {_SAME} p[n,h,w] = max(c) x[n,c,h,w]\n"
        "  e[n,c,h,w] = exp(x[n,c,h,w] - p[n,h,w])\n"
        "  y[n,c,h,w] = e[n,c,h,w] / (sum(k) e[n,k,h,w])",
        ((4, 21, 128, 128),),
        lambda x: F.softmax(x, 1),
    ),
    Written(
        "softmax of pixels",
        f"{_IMAGE}) {_SAME} p[n,c] = max(h,w) x[n,c,h,w]\n"
        "  e[n,c,h,w] = exp(x[n,c,h,w] - p[n,c])\n"
        "  y[n,c,h,w] = e[n,c,h,w] / (sum(i,j) e[n,c,i,j])",
        ((4, 32, 64, 64),),
        lambda x: F.softmax(x.flatten(2), 2).view_as(x),
    ),
    Written(
        "softmax of what comes before",
        "x: float[B,T,S]) -> y[B,T,S]\n  p[b,t] = max(s if s <= t) x[b,t,s]\n"
        "  e[b,t,s] = select(s <= t, exp(x[b,t,s] - p[b,t]), 0)\n"
        "  y[b,t,s] = e[b,t,s] / (sum(k) e[b,t,k])",
        ((32, 196, 196),),
        lambda x: F.softmax(x.masked_fill(~_before(x), -torch.inf), -1),
    ),
)

POINTWISE: Final = (
    Written(
        "gate of channels",
        f"{_IMAGE}, s[N,C]) {_SAME} y[n,c,h,w] = x[n,c,h,w] * sigmoid(s[n,c])",
        (_IMAGES, (4, 64)),
        lambda x, s: x * torch.sigmoid(_wide(s)),
    ),
    Written(
        "bias and ReLU",
        f"{_IMAGE}, b[C]) {_SAME} y[n,c,h,w] = max(x[n,c,h,w] + b[c], 0)",
        (_IMAGES, _CHANNELS),
        lambda x, b: F.relu(x + _wide(b)),
    ),
    Written(
        "bias and ReLU of few pixels",
        f"{_IMAGE}, b[C]) {_SAME} y[n,c,h,w] = max(x[n,c,h,w] + b[c], 0)",
        ((32, 512, 7, 7), (512,)),
        lambda x, b: F.relu(x + _wide(b)),
    ),
    Written(
        "PReLU",
        f"{_IMAGE}, a[C]) {_SAME} y[n,c,h,w] = select(x[n,c,h,w] > 0, x[n,c,h,w], a[c]*x[n,c,h,w])",
        (_IMAGES, _CHANNELS),
        F.prelu,
    ),
    Written(
        "GELU by tanh",
        "x: float[...,D]) -> y[...,D]\n"
        "  y[...,d] = 0.5*x[...,d]*(1 + tanh(0.7978845608*(x[...,d] + 0.044715*x[...,d]**3)))",
        ((2048, 512),),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    Written(
        "Mish",
        "x: float[...,D]) -> y[...,D]\n  y[...,d] = x[...,d]*tanh(log(1 + exp(x[...,d])))",
        ((2048, 512),),
        F.mish,
    ),
    Written(
        "shift of tokens",
        "x: float[B,T,D], m[D]) -> y[B,T,D]\n  y[b,t,d] = x[b,t,d]*m[d] + x[b,t-1 ?0,d]*(1 - m[d])",
        ((8, 256, 512), (512,)),
        lambda x, m: x * m + F.pad(x, (0, 0, 1, -1)) * (1 - m),
    ),
    Written(
        "Laplacian",
        f"{_IMAGE}) {_SAME} y[n,c,h,w] = 4*x[n,c,h,w] - x[n,c,h-1 ?clamp,w]\n"
        "      - x[n,c,h+1 ?clamp,w] - x[n,c,h,w-1 ?clamp] - x[n,c,h,w+1 ?clamp]",
        (_IMAGES,),
        lambda x: _laplacian(x, F.pad(x, (1, 1, 1, 1), mode="replicate")),
    ),
)


def _laplacian(x: Tensor, padded: Tensor) -> Tensor:
    middle = slice(1, -1)
    above, below = padded[:, :, :-2, middle], padded[:, :, 2:, middle]
    return 4 * x - above - below - padded[:, :, middle, :-2] - padded[:, :, middle, 2:]


def _relative(x: Tensor, b: Tensor) -> Tensor:
    rows = torch.arange(x.shape[2], device=x.device)[:, None]
    columns = torch.arange(x.shape[3], device=x.device)
    return x + b[:, rows - columns + x.shape[3]]


MOVES: Final = (
    Written(
        "transpose",
        "x: float[N,M]) -> y[M,N]\n  y[m,n] = x[n,m]",
        ((1024, 1024),),
        lambda x: x.t().contiguous().contiguous(),
    ),
    Written(
        "heads",
        "x: float[B,T,(H D)]; H: int) -> y[B,H,T,D]\n  where H >= 1\n  y[b,h,t,d] = x[b,t,(h d)]",
        ((8, 256, 512),),
        lambda x: x.unflatten(2, (8, -1)).transpose(1, 2).contiguous(),
        {"H": 8},
    ),
    Written(
        "heads of few numbers",
        "x: float[B,T,H,D]) -> y[B,H,T,D]\n  y[b,h,t,d] = x[b,t,h,d]",
        ((8, 384, 8, 32),),
        lambda x: x.transpose(1, 2).contiguous(),
    ),
    Written(
        "pixels as tokens",
        "x: float[B,D,T]) -> y[B,T,D]\n  y[b,t,d] = x[b,d,t]",
        ((8, 768, 196),),
        lambda x: x.transpose(1, 2).contiguous(),
    ),
    Written(
        "rows that are rolled",
        "x: float[B,N]; s: int) -> y[B,N]\n  y[b,n] = x[b, n - s ?wrap]",
        ((64, 4096),),
        lambda x: x.roll(100, 1),
        {"s": 100},
    ),
    Written(
        "differences around a row",
        "x: float[B,N]) -> y[B,N]\n  y[b,n] = x[b, n + 1 ?wrap] - 2*x[b,n] + x[b, n - 1 ?wrap]",
        ((64, 4096),),
        lambda x: x.roll(-1, 1) - 2 * x + x.roll(1, 1),
    ),
    Written(
        "relative positions",
        "x: float[B,H,T,S], b[H,R]) -> y[B,H,T,S]\n  where R >= T + S\n"
        "  y[n,h,i,j] = x[n,h,i,j] + b[h,i - j + S]",
        ((4, 8, 196, 196), (8, 400)),
        _relative,
    ),
    Written(
        "rows that are looked up",
        "x: float[N,D], i: i64[M]) -> y[M,D]\n  y[m,d] = x[i[m],d]",
        ((4096, 256), (4096, (8192,))),
        lambda x, i: x[i],
    ),
    Written(
        "cells that are looked up",
        "x: float[N,D], i: i64[N,K]) -> y[N,K]\n  y[n,k] = x[n,i[n,k]]",
        ((4096, 256), (256, (4096, 64))),
        lambda x, i: x.gather(1, i),
    ),
)

SUMS: Final = (
    Written(
        "cross entropy",
        "x: float[N,C], t: i64[N]) -> y[N]\n  p[n] = max(c) x[n,c]\n"
        "  y[n] = log(sum(c) exp(x[n,c] - p[n])) + p[n] - x[n,t[n]]",
        ((2048, 1000), (1000, (2048,))),
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
    ),
    Written(
        "squared distances",
        "x: float[N,D], z[M,D]) -> y[N,M]\n  y[n,m] = sum(d) (x[n,d] - z[m,d])**2",
        ((256, 64), (300, 64)),
        lambda x, z: ((x[:, None] - z) ** 2).sum(-1),
    ),
    Written(
        "absolute distances",
        "x: float[N,D], z[M,D]) -> y[N,M]\n  y[n,m] = sum(d) abs(x[n,d] - z[m,d])",
        ((256, 64), (300, 64)),
        lambda x, z: torch.cdist(x, z, 1),
    ),
    Written(
        "total variation",
        f"{_IMAGE}) -> y[N]\n  where H >= 1, W >= 1\n"
        "  y[n] += abs(x[n,c,h+1,w] - x[n,c,h,w]) for n, c, h in H-1, w\n"
        "  y[n] += abs(x[n,c,h,w+1] - x[n,c,h,w]) for n, c, h, w in W-1",
        ((4, 32, 64, 64),),
        lambda x: x.diff(dim=2).abs().sum((1, 2, 3)) + x.diff(dim=3).abs().sum((1, 2, 3)),
    ),
    Written(
        "mean of images",
        f"{_IMAGE}) -> y[N,C]\n  y[n,c] = mean(h,w) x[n,c,h,w]",
        ((16, 256, 28, 28),),
        lambda x: x.mean((2, 3)),
    ),
    Written(
        "maximum of channels",
        f"{_IMAGE}) -> y[N,H,W]\n  where C >= 1\n  y[n,h,w] = max(c) x[n,c,h,w]",
        (_IMAGES,),
        lambda x: x.amax(1),
    ),
    Written(
        "maximum of 2x2",
        "x: float[N,C,(H 2),(W 2)]) -> y[N,C,H,W]\n"
        "  y[n,c,h,w] = max(i in 2,j in 2) x[n,c,(h i),(w j)]",
        (_IMAGES,),
        lambda x: F.max_pool2d(x, 2),
    ),
    Written(
        "Huber loss",
        "x: float[N,D], z[N,D]) -> y[]\n"
        "  y[] = sum(n,d) select(abs(x[n,d] - z[n,d]) < 1, 0.5*(x[n,d] - z[n,d])**2,\n"
        "      abs(x[n,d] - z[n,d]) - 0.5)",
        ((2048, 512), (2048, 512)),
        lambda x, z: F.smooth_l1_loss(x, z, reduction="sum"),
    ),
    Written(
        "Gram matrices",
        f"{_IMAGE}) -> y[N,C,C]\n  y[n,c,d] = sum(h,w) x[n,c,h,w]*x[n,d,h,w]",
        (_IMAGES,),
        lambda x: torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)),
    ),
    Written(
        "average that decays",
        "x: float[B,T,D], k[K,D]) -> y[B,T,D]\n  y[b,t,d] = sum(j) x[b,t-j ?0,d]*k[j,d]",
        ((4, 256, 256), (8, 256)),
        lambda x, k: F.conv1d(
            F.pad(x.transpose(1, 2), (k.shape[0] - 1, 0)),
            k.flip(0).t()[:, None],
            groups=x.shape[2],
        ).transpose(1, 2),
    ),
)

PRODUCTS: Final = (
    Written(
        "convolution with ReLU",
        f"{_IMAGE}, w[O,C,3,3], b[O]) -> y[N,O,H,W]\n  tmp z[N,O,H,W]\n"
        "  z[n,o,h,v] = sum(c, i in 3, j in 3) x[n,c, h+i-1 ?0, v+j-1 ?0]*w[o,c,i,j]\n"
        "  y[n,o,h,v] = max(z[n,o,h,v] + b[o], 0)",
        (_IMAGES, (64, 64, 3, 3), _CHANNELS),
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
    ),
    Written(
        "channels, scaled, with SiLU",
        f"{_IMAGE}, w[O,C], s[O], b[O]) -> y[N,O,H,W]\n"
        "  z[n,o,h,v] = b[o] + s[o]*(sum(c) x[n,c,h,v]*w[o,c])\n"
        "  y[n,o,h,v] = z[n,o,h,v]*sigmoid(z[n,o,h,v])",
        (_IMAGES, (128, 64), (128,), (128,)),
        lambda x, w, s, b: F.silu(F.conv2d(x, _wide(w)) * _wide(s) + _wide(b)),
    ),
    Written(
        "linear layer with GELU",
        "x: float[N,D], w[M,D], b[M]) -> y[N,M]\n  z[n,m] = sum(d) x[n,d]*w[m,d]\n"
        "  y[n,m] = (z[n,m] + b[m])*sigmoid(1.702*(z[n,m] + b[m]))",
        ((512, 256), (512, 256), (512,)),
        lambda x, w, b: (lambda z: z * torch.sigmoid(1.702 * z))(F.linear(x, w, b)),
    ),
    Written(
        "linear layer of low rank",
        "x: float[N,D], a[R,D], w[M,R]) -> y[N,M]\n  z[n,r] = sum(d) x[n,d]*a[r,d]\n"
        "  y[n,m] = sum(r) z[n,r]*w[m,r]",
        ((2048, 512), (64, 512), (512, 64)),
        lambda x, a, w: F.linear(F.linear(x, a), w),
    ),
    Written(
        "attention",
        "q: float[B,N,D], k[B,M,D], v[B,M,E]) -> y[B,N,E]\n"
        "  a[b,n,m] = (sum(d) q[b,n,d]*k[b,m,d])/sqrt(D)\n  p[b,n] = max(m) a[b,n,m]\n"
        "  e[b,n,m] = exp(a[b,n,m] - p[b,n])\n"
        "  y[b,n,i] = (sum(m) e[b,n,m]*v[b,m,i])/(sum(m) e[b,n,m])",
        ((96, 196, 64), (96, 196, 64), (96, 196, 64)),
        lambda q, k, v: torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v,
    ),
)

OPS: Final = (*NORMS, *POINTWISE, *MOVES, *SUMS, *POINTS, *PRODUCTS, *GRAPHS, *SERIES)

if __name__ == "__main__":
    sys.exit(main(OPS, tables.EVERYDAY, README, __doc__))
