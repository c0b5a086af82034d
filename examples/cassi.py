"""Snapshot spectral imaging (CASSI): reconstruct a cube from one coded, sheared measurement.

A coded aperture masks the scene, a prism shifts every spectral channel, and the sensor sums them:
`shift_sum_masked` of specs/shift_sum.op. From one image of 256 x 310 pixels the cube of 28 channels
is found by regularised least squares, `|A x - y|^2 + weight * |D x|^2` with differences D along all
three axes, by conjugate gradients. Every product with the transpose of A is a gradient of opgen's.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from photograph import photograph
from torch import Tensor

import opgen

SPEC = Path(__file__).resolve().parent.parent / "specs" / "shift_sum.op"
STEP = 2


@dataclass(frozen=True)
class Result:
    """Peak signal-to-noise ratios in dB, and the relative residual of the normal equations."""

    pseudo_inverse: float
    least_squares: float
    residual: float
    consistency: float


def scene(channels: int, size: int) -> Tensor:
    """The photograph as [1,channels,size,size] in [0, 1]: smooth spectra of its three colours."""
    wavelength = torch.linspace(450, 650, channels)  # nm
    peaks = torch.tensor([620.0, 540.0, 460.0])[:, None]  # of red, green and blue
    spectra = torch.exp(-(((wavelength - peaks) / 50) ** 2))
    cube = torch.einsum("ck,cij->kij", spectra / spectra.sum(dim=0), photograph(size))
    return cube[None].contiguous()


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, steps: int
) -> tuple[Tensor, float]:
    """Solve `product(x) = right` for a symmetric positive product; the relative residual too."""
    x, residual = torch.zeros_like(right), right
    direction, square = residual, residual.square().sum()
    first = square
    for _ in range(steps):
        image = product(direction)
        length = square / (direction * image).sum()
        x, residual = x + length * direction, residual - length * image
        square, before = residual.square().sum(), square
        direction = residual + square / before * direction
    return x, math.sqrt(float(square / first))


def psnr(found: Tensor, truth: Tensor) -> float:
    """Peak signal-to-noise ratio for a peak of 1, in dB."""
    return -10 * math.log10(float((found - truth).square().mean()))


def reconstruct(channels: int = 28, size: int = 256, steps: int = 60) -> Result:
    """Measure a scene, reconstruct it in two ways, and compare."""
    generator = torch.Generator().manual_seed(0)
    ops = opgen.load(SPEC)
    truth = scene(channels, size)
    mask = 0.05 + 0.95 * (torch.rand(1, 1, size, size, generator=generator) < 0.5).float()

    def measured(x: Tensor) -> Tensor:
        result: Tensor = ops.shift_sum_masked(x, mask, step=STEP)
        return result

    def penalty(x: Tensor) -> Tensor:
        spectral, spatial = 0.5, 0.02
        return (
            spectral * x.diff(dim=1).square().sum()
            + spatial * x.diff(dim=2).square().sum()
            + spatial * x.diff(dim=3).square().sum()
        )

    def normal(x: Tensor) -> Tensor:
        """`(A'A + D'D) x`, the gradient of half the quadratic form."""
        x = x.detach().requires_grad_()
        energy = (measured(x).square().sum() + penalty(x)) / 2
        (gradient,) = torch.autograd.grad(energy, x)
        return gradient

    y = measured(truth)
    start: Tensor = ops.shift_sum_pinv(y, mask, C=channels, step=STEP)
    zero = torch.zeros_like(truth, requires_grad=True)
    (right,) = torch.autograd.grad((measured(zero) * y).sum(), zero)
    found, residual = conjugate_gradients(normal, right, steps)
    return Result(
        psnr(start, truth),
        psnr(found, truth),
        residual,
        float((measured(start) - y).abs().max() / y.abs().max()),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what was measured and how well it was reconstructed."""
    parser = argparse.ArgumentParser(description="Reconstruct a spectral cube from one image.")
    parser.add_argument("--channels", type=int, default=28)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args(arguments)
    width = options.size + (options.channels - 1) * STEP
    print(
        f"one image of {options.size} x {width} of a cube of "
        f"{options.channels} x {options.size} x {options.size}"
    )
    result = reconstruct(options.channels, options.size, options.steps)
    print(f"pseudo-inverse: reproduces the image to {result.consistency:.1e}, ", end="")
    print(f"cube at {result.pseudo_inverse:.1f} dB")
    print(f"least squares, {options.steps} steps of conjugate gradients: ", end="")
    print(f"residual {result.residual:.1e}, cube at {result.least_squares:.1f} dB")


if __name__ == "__main__":
    main()
