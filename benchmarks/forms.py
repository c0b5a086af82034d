"""The same sums of products written in several ways, beside what PyTorch's users write.

    python benchmarks/forms.py [--seconds S]

A spec may put a factor where it likes: each form should be as fast as the others. Forward and the
gradients of all inputs, in one process and by turns; what is printed is the time of PyTorch's form
over that of opgen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

import opgen
from opgen.bench import timing
from opgen.bench.beside import THEIRS
from opgen.bench.calls import OPGEN, calls_of, surroundings
from opgen.bench.row import Contender, Direction, Workload

_WINDOW = "x[b,c,h+i-1 ?0,v+j-1 ?0]"
_SUM = "y[b,o,h,v] = sum(c,i,j) "


@dataclass(frozen=True, slots=True)
class Form:
    """A way to write an op: its tensors and statements, the shapes, and PyTorch's form."""

    label: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    eager: Callable[..., Tensor]


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * float(q.shape[-1]) ** -0.5
    attended: Tensor = scores.softmax(-1) @ v
    return attended


def _attended(scores: str, result: str) -> str:
    return (
        "q: float[B,N,D], k[B,M,D], v[B,M,D]) -> y[B,N,D]\n"
        f"  s[b,n,m] = {scores}\n  e[b,n,m] = exp(s[b,n,m] - (max(j) s[b,n,j]))\n"
        f"  t[b,n] = sum(m) e[b,n,m]\n  y[b,n,d] = {result}"
    )


def _convolved(term: str, more: str = "", where: str = "") -> str:
    total = _SUM.replace(") ", f"{where}) ")
    return f"x[B,C,H,W], w[O,C,3,3]{more}) -> y[B,O,H,W]\n  {total}{term}"


def _causal(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv1d(functional.pad(x, (w.shape[2] - 1, 0)), w.flip(2))


def _separable(x: Tensor, d: Tensor, w: Tensor) -> Tensor:
    channels = functional.conv2d(x, d[:, None], padding=1, groups=len(d))
    return functional.conv2d(channels, w[..., None, None])


def _circular(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv2d(functional.pad(x, (1, 1, 1, 1), "circular"), w)


def _of_each(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv2d(functional.pad(x, (1, 1, 1, 1), "reflect"), w[:, None], groups=len(w))


def _along_each(x: Tensor, f: Tensor, g: Tensor) -> Tensor:
    """Filters for rows and columns, the same for all channels: with `F.conv2d` it takes longer."""
    *_, height, width = x.shape
    image = functional.pad(x, (3, 3, 3, 3), "reflect")
    columns = reduce(torch.add, (f[i] * image[..., i : i + height, :] for i in range(7)))
    return reduce(torch.add, (g[j] * columns[..., j : j + width] for j in range(7)))


def _covariance(x: Tensor, z: Tensor, g: Tensor) -> Tensor:
    """The windowed mean of a product, as in SSIM."""
    window = (g[:, None] * g)[None, None].expand(x.shape[1], 1, -1, -1)
    return functional.conv2d(x * z, window, groups=x.shape[1])


def _of_blocks(x: Tensor, d: Tensor) -> Tensor:
    count, channels, height, width = x.shape
    parts = x.view(count, channels, height // 8, 8, width // 8, 8).transpose(3, 4)
    blocks: Tensor = d @ parts @ d.mT
    return blocks.transpose(3, 4).reshape(x.shape)


_X, _W = (4, 64, 56, 56), (64, 64, 3, 3)
_QKV = ((96, 196, 64),) * 3
_SCORES = "q[b,n,d]*k[b,m,d]"

FORMS = (
    Form(
        "convolution",
        _convolved(f"{_WINDOW}*w[o,c,i,j]"),
        (_X, _W),
        lambda x, w: functional.conv2d(x, w, padding=1),
    ),
    Form(
        "... with a number in the sum",
        _convolved(f"0.5*{_WINDOW}*w[o,c,i,j]"),
        (_X, _W),
        lambda x, w: 0.5 * functional.conv2d(x, w, padding=1),
    ),
    Form(
        "... divided by a number of each result",
        _convolved(f"{_WINDOW}*w[o,c,i,j]/n[o]", ", n[O]"),
        (_X, _W, (64,)),
        lambda x, w, n: functional.conv2d(x, w, padding=1) / n[:, None, None],
    ),
    Form(
        "... with a gain of each result",
        _convolved(f"s[o]*w[o,c,i,j]*{_WINDOW}", ", s[O]"),
        (_X, _W, (64,)),
        lambda x, w, s: functional.conv2d(x, w, padding=1) * s[:, None, None],
    ),
    Form(
        "... with a gain of each image and channel",
        _convolved(f"{_WINDOW}*s[b,c]*w[o,c,i,j]", ", s[B,C]"),
        (_X, _W, (4, 64)),
        lambda x, w, s: functional.conv2d(x * s[..., None, None], w, padding=1),
    ),
    Form(
        "... of each channel with a gain",
        f"x[B,C,H,W], w[C,3,3], s[C]) -> y[B,C,H,W]\n"
        f"  y[b,c,h,v] = sum(i,j) {_WINDOW}*w[c,i,j]*s[c]",
        (_X, (64, 3, 3), (64,)),
        lambda x, w, s: functional.conv2d(x, w[:, None], padding=1, groups=64) * s[:, None, None],
    ),
    Form(
        "... of what a ReLU gives",
        _convolved(f"relu({_WINDOW})*w[o,c,i,j]"),
        (_X, _W),
        lambda x, w: functional.conv2d(functional.relu(x), w, padding=1),
    ),
    Form(
        "... that goes backwards through its filter",
        _convolved("x[b,c,h-i+1 ?0,v-j+1 ?0]*w[o,c,i,j]"),
        (_X, _W),
        lambda x, w: functional.conv2d(x, w.flip(2, 3), padding=1),
    ),
    Form(
        "... that says where its image ends",
        _convolved("x[b,c,h+i-1,v+j-1]*w[o,c,i,j]", where=" if 0 <= h+i-1 < H and 0 <= v+j-1 < W"),
        (_X, _W),
        lambda x, w: functional.conv2d(x, w, padding=1),
    ),
    Form(
        "convolution of an image that goes on around",
        _convolved("x[b,c,h+i-1 ?wrap,v+j-1 ?wrap]*w[o,c,i,j]"),
        (_X, _W),
        _circular,
    ),
    Form(
        "... of each channel, mirrored",
        "x[B,C,H,W], w[C,3,3]) -> y[B,C,H,W]\n  where H >= 2, W >= 2\n"
        "  y[b,c,h,v] = sum(i,j) x[b,c,h+i-1 ?reflect,v+j-1 ?reflect]*w[c,i,j]",
        (_X, (64, 3, 3)),
        _of_each,
    ),
    Form(
        "blur along rows and columns in one sum",
        "x[B,C,H,W], f[7], g[7]) -> y[B,C,H,W]\n  where H >= 4, W >= 4\n"
        "  y[b,c,h,v] = sum(i,j) f[i]*g[j]*x[b,c,h+i-3 ?reflect,v+j-3 ?reflect]",
        ((8, 3, 256, 256), (7,), (7,)),
        _along_each,
    ),
    Form(
        "windowed mean of a product of two images, as in SSIM",
        "x[B,C,H,W], z[B,C,H,W], g[11]) -> y[B,C,H-10,W-10]\n"
        "  y[b,c,h,v] = sum(i,j) g[i]*g[j]*x[b,c,h+i,v+j]*z[b,c,h+i,v+j]",
        ((4, 3, 128, 128), (4, 3, 128, 128), (11,)),
        _covariance,
    ),
    Form(
        "transform of blocks of 8x8, as in JPEG",
        "x[B,C,(H 8),(W 8)], d[8,8]) -> y[B,C,(H 8),(W 8)]\n"
        "  y[b,c,(h u),(w v)] = sum(i,j) x[b,c,(h i),(w j)]*d[u,i]*d[v,j]",
        ((64, 3, 64, 64), (8, 8)),
        _of_blocks,
    ),
    Form(
        "causal convolution",
        "x[B,C,T], w[O,C,K]) -> y[B,O,T]\n  y[b,o,t] = sum(c,k if k <= t) x[b,c,t-k]*w[o,c,k]",
        ((8, 128, 512), (128, 128, 4)),
        _causal,
    ),
    Form(
        "depthwise and pointwise convolution in one sum",
        f"x[B,C,H,W], d[C,3,3], w[O,C]) -> y[B,O,H,W]\n  {_SUM}{_WINDOW}*d[c,i,j]*w[o,c]",
        (_X, (64, 3, 3), (64, 64)),
        _separable,
    ),
    Form(
        "two products of matrices in one sum, as in LoRA",
        "x[N,K], a[R,K], b[M,R]) -> y[N,M]\n  y[n,m] = sum(k,r) x[n,k]*a[r,k]*b[m,r]",
        ((512, 768), (16, 768), (768, 16)),
        lambda x, a, b: x @ a.mT @ b.mT,
    ),
    Form(
        "bilinear form of each result",
        "a[N,I], w[K,I,J], b[N,J]) -> y[N,K]\n  y[n,k] = sum(i,j) a[n,i]*w[k,i,j]*b[n,j]",
        ((64, 64), (64, 64, 64), (64, 64)),
        lambda a, w, b: functional.bilinear(a, b, w),
    ),
    Form(
        "attention without softmax, in one sum",
        "q[B,N,D], k[B,M,D], v[B,M,E]) -> y[B,N,E]\n"
        "  y[b,n,e] = sum(m,d) q[b,n,d]*k[b,m,d]*v[b,m,e]",
        ((8, 256, 32),) * 3,
        lambda q, k, v: torch.einsum("bnd,bmd,bme->bne", q, k, v),
    ),
    Form(
        "perceptron, with SiLU in its second sum",
        "x: float[N,K], a[J,K], w[M,J]) -> y[N,M]\n  h[n,j] = sum(k) x[n,k]*a[j,k]\n"
        "  y[n,m] = sum(j) h[n,j]*sigmoid(h[n,j])*w[m,j]",
        ((512, 256), (1024, 256), (256, 1024)),
        lambda x, a, w: functional.silu(x @ a.mT) @ w.mT,
    ),
    Form(
        "attention",
        _attended(f"(sum(d) {_SCORES})*rsqrt(D)", "(sum(m) e[b,n,m]*v[b,m,d])/t[b,n]"),
        _QKV,
        _attention,
    ),
    Form(
        "... divided in its sums",
        _attended(f"sum(d) {_SCORES}/sqrt(D)", "sum(m) e[b,n,m]/t[b,n]*v[b,m,d]"),
        _QKV,
        _attention,
    ),
    Form(
        "Gram matrices, divided in their sum",
        "x[B,C,H,W]) -> y[B,C,C]\n  y[b,i,j] = sum(h,w) x[b,i,h,w]*x[b,j,h,w]/(C*H*W)",
        (_X,),
        lambda x: x.flatten(2) @ x.flatten(2).mT / x[0].numel(),
    ),
    Form(
        "average of 3x3, divided in its sum",
        f"x[B,C,H,W]) -> y[B,C,H,W]\n  y[b,c,h,v] = sum(i in 3, j in 3) {_WINDOW}/9",
        ((4, 64, 112, 112),),
        lambda x: functional.avg_pool2d(x, 3, 1, 1),
    ),
)


def ratios(form: Form, budget: float) -> Iterator[float]:
    """PyTorch's time over that of opgen, forward and backward."""
    torch.manual_seed(0)
    function = opgen.compile(f"op written({form.text}\n").written
    inputs = tuple(torch.rand(shape) for shape in form.shapes)
    every = tuple(range(len(inputs)))
    eager = (Contender(THEIRS, form.eager),)
    workload = Workload(inputs, function, eager, points=1, differentiable=every)
    contenders = [Contender(OPGEN, workload.opgen), *workload.contenders]
    for direction in Direction:
        calls = calls_of(workload, contenders, direction)
        for own, theirs in zip(calls[OPGEN](), calls[THEIRS](), strict=True):
            torch.testing.assert_close(
                own, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max())
            )
        with surroundings(workload, direction):
            clock = timing.clock_of(torch.device("cpu"))
            rounds = timing.in_turn(calls, clock, budget, {OPGEN})
        yield median(rounds.seconds(THEIRS)) / median(rounds.seconds(OPGEN))


def main() -> int:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    budget = parser.parse_args().seconds
    for form in FORMS:
        figures = " | ".join(f"{ratio:.2f}" for ratio in ratios(form, budget))
        print(f"| {form.label} | {figures} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
