"""A MobileNet-style classifier: depthwise and pointwise convolutions of specs/conv.op.

The net learns by how many right angles pieces of a photograph were turned. It is trained twice
from the same weights and on the same batches, once with `conv2d` of opgen and once with PyTorch's;
the losses of all steps must agree.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from photograph import patches
from torch import Tensor, nn

import opgen

SPEC = Path(__file__).resolve().parent.parent / "specs" / "conv.op"
CLASSES = 4

Convolution = Callable[..., Tensor]
"""Takes x, weight, and stride, padding and groups by name."""


class Separable(nn.Module):
    """A 3x3 convolution of every channel for itself, then a 1x1 convolution across channels."""

    def __init__(self, inputs: int, outputs: int, stride: int, convolution: Convolution) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, groups=inputs, bias=False).weight
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False).weight
        self.first, self.second = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.stride, self.convolution = stride, convolution

    def forward(self, x: Tensor) -> Tensor:
        """From [N,C,H,W] to [N,outputs,H/stride,W/stride]."""
        groups = x.shape[1]
        x = self.convolution(x, self.depthwise, stride=self.stride, padding=1, groups=groups)
        x = F.relu6(self.first(x))
        return F.relu6(self.second(self.convolution(x, self.pointwise)))


def network(width: int, convolution: Convolution) -> nn.Sequential:
    """From images [N,3,H,W] to scores [N,CLASSES]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU6(),
        Separable(width, 2 * width, 1, convolution),
        Separable(2 * width, 4 * width, 2, convolution),
        Separable(4 * width, 4 * width, 1, convolution),
        Separable(4 * width, 8 * width, 2, convolution),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, CLASSES),
    )


def batch(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Pieces of a photograph; the class is by how many right angles each is turned."""
    labels = torch.arange(count) % CLASSES
    turned = [p.rot90(int(k), (1, 2)) for p, k in zip(patches(count, size), labels, strict=True)]
    return torch.stack(turned), labels


@dataclass(frozen=True)
class Result:
    """The losses of every step."""

    opgen: list[float]
    torch: list[float]

    @property
    def difference(self) -> float:
        """The largest relative difference."""
        return max(abs(a - b) / b for a, b in zip(self.opgen, self.torch, strict=True))


def train(
    width: int = 16,
    size: int = 64,
    count: int = 16,
    steps: int = 5,
    dtype: torch.dtype = torch.float32,
) -> Result:
    """Train both nets."""
    pictures, labels = batch(count, size)

    def losses(convolution: Convolution) -> list[float]:
        net = network(width, convolution).to(dtype)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        found = []
        for _ in range(steps):
            optimiser.zero_grad()
            loss = F.cross_entropy(net(pictures.to(dtype)), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            found.append(loss.item())
        return found

    return Result(losses(opgen.load(SPEC).conv2d), losses(F.conv2d))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both losses."""
    parser = argparse.ArgumentParser(description="Train a depthwise-separable net in two ways.")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--count", type=int, default=16, help="images of the batch")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--double", action="store_true", help="train in double precision")
    options = parser.parse_args(arguments)
    dtype = torch.float64 if options.double else torch.float32
    print(f"{options.count} pieces of {options.size} x {options.size}, turned in {CLASSES} ways")
    result = train(options.width, options.size, options.count, options.steps, dtype)
    for name, losses in (("opgen", result.opgen), ("torch", result.torch)):
        print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f} in {len(losses)} steps")
    print(f"largest relative difference of the losses: {result.difference:.1e}")


if __name__ == "__main__":
    main()
