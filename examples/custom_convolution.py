"""A custom convolution, unfold, operation, fold, as one op.

Patch-based denoising: every patch of an image is written in a dictionary of patterns, small
coefficients are shrunk away, and the patches are put back where they came from, overlaps added.
With PyTorch this is `F.unfold`, two matrix products around a soft threshold, and `F.fold`, with
columns of K*K times the image on both sides. As one op no columns are stored, and the gradients of
the patterns and the thresholds are derived.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from photograph import photograph
from torch import Tensor

import opgen

SPEC = """
## Soft-thresholded patches: analyse every patch with the patterns `d`, shrink, synthesise, overlap.
##
## PyTorch: `F.fold(D.T @ F.softshrink(D @ F.unfold(x, K), t), (H, W), K)`, one threshold a pattern
op denoise(x: float[N,C,H,W], d[O,C,K,L], threshold[O]) -> y[N,C,H,W]
  where K >= 1, L >= 1
  let OH = H - K + 1, OW = W - L + 1
  tmp code[N,O,OH,OW], kept[N,O,OH,OW]
  code[n,o,i,j] = sum(c,k,l) x[n,c, i + k, j + l] * d[o,c,k,l]
  kept[n,o,i,j] = sign(code[n,o,i,j]) * max(abs(code[n,o,i,j]) - threshold[o], 0)
  y[n,c, i + k, j + l] += kept[n,o,i,j] * d[o,c,k,l]
"""

Denoise = Callable[[Tensor, Tensor, Tensor], Tensor]


def columns_denoise(x: Tensor, d: Tensor, threshold: Tensor) -> Tensor:
    """The same by columns."""
    size = (d.shape[2], d.shape[3])
    matrix = d.flatten(1)
    code = matrix @ F.unfold(x, size)
    kept = code.sign() * (code.abs() - threshold[:, None]).clamp_min(0)
    return F.fold(matrix.T @ kept, (x.shape[2], x.shape[3]), size)


def cosines(size: int) -> Tensor:
    """Patterns of the discrete cosine transform; with a threshold of 0 the inside is unchanged."""
    at = torch.arange(size, dtype=torch.float32)
    waves = ((2 * at[None] + 1) * at[:, None] * math.pi / (2 * size)).cos()
    waves = F.normalize(waves, dim=1)
    patterns = torch.einsum("ik,jl->ijkl", waves, waves).reshape(-1, 1, size, size)
    return patterns / size


@dataclass(frozen=True)
class Result:
    """Agreement of both ways, and the error of the image before and after training."""

    value_difference: float
    gradient_difference: float
    noisy: float
    first: float
    last: float


def run(size: int = 128, kernel: int = 6, steps: int = 5) -> Result:
    """Compare both ways, then train patterns and thresholds on a noisy photograph."""
    denoise: Denoise = opgen.compile(SPEC).denoise
    clean = photograph(size).mean(dim=0)[None, None]
    noise = 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    noisy = clean + noise
    # At the border fewer patches overlap: compare what lies inside.
    inside = (..., slice(kernel, -kernel), slice(kernel, -kernel))
    patterns = cosines(kernel).requires_grad_()
    threshold = torch.full((patterns.shape[0],), 0.2 / kernel).requires_grad_()

    def error(method: Denoise) -> tuple[Tensor, Tensor]:
        result = method(noisy, patterns, threshold)
        return result, (result - clean)[inside].square().mean()

    values, gradients = [], []
    for method in (denoise, columns_denoise):
        value, loss = error(method)
        values.append(value.detach())
        gradients.append(torch.autograd.grad(loss, (patterns, threshold)))
    optimiser = torch.optim.Adam([patterns, threshold], lr=1e-3)
    losses = []
    for _ in range(steps + 1):
        optimiser.zero_grad()
        _, loss = error(denoise)
        losses.append(loss.item())
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return Result(
        relative(values[0], values[1]),
        max(relative(a, b) for a, b in zip(*gradients, strict=True)),
        float(noise[inside].square().mean()),
        losses[0],
        losses[-1],
    )


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((a - b).abs().max() / b.abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how well both ways agree, and what training gained."""
    parser = argparse.ArgumentParser(description="Denoise by patches, in one op.")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--kernel", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(arguments)
    size, kernel = options.size, options.kernel
    print(f"a photograph of {size} x {size}, {kernel * kernel} patterns of {kernel} x {kernel}")
    result = run(size, kernel, options.steps)
    print(
        f"against F.unfold and F.fold: values differ by {result.value_difference:.1e}, "
        f"gradients by {result.gradient_difference:.1e}"
    )
    print(
        f"mean square error: noisy {result.noisy:.5f}, cosines {result.first:.5f}, "
        f"after {options.steps} steps {result.last:.5f}"
    )


if __name__ == "__main__":
    main()
