"""Super-resolution by 4: an EDSR-like net whose two upsampling stages are one op each.

A stage is a convolution, a pixel shuffle and a leaky ReLU of slope 0.1. Framework code runs three
ops and writes the tensor with r*r times the channels; the spec below writes pixels straight away.
The net is trained twice from the same weights on pieces of a photograph, with this op and with
PyTorch's own ops.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from photograph import patches
from torch import Tensor, nn

import opgen

SPEC = """
## A sub-pixel stage: convolution, pixel shuffle, leaky ReLU.
##
## PyTorch: `F.leaky_relu(F.pixel_shuffle(F.conv2d(x, weight, bias, padding=1), r), slope)`
op upsample(x: float[N,Ci,H,W], weight[(Co r r),Ci,3,3], bias[(Co r r)]; r = 2, slope = 0.1)
    -> y[N,Co,(H r),(W r)]
  where r >= 1
  tmp z[N,Co,(H r),(W r)]
  z[n,o,(i a),(j b)] = bias[(o a b)]
      + sum(c,k,l) x[n,c, i + k - 1 ?0, j + l - 1 ?0] * weight[(o a b),c,k,l]  for i in H, j in W
  y[n,o,h,w] = select(z[n,o,h,w] > 0, z[n,o,h,w], slope * z[n,o,h,w])
"""

Stage = Callable[[Tensor, Tensor, Tensor], Tensor]


def torch_stage(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The stage by PyTorch's own ops."""
    return F.leaky_relu(F.pixel_shuffle(F.conv2d(x, weight, bias, padding=1), 2), 0.1)


class Upsample(nn.Module):
    """A stage with its parameters; `stage` computes it."""

    def __init__(self, features: int, stage: Stage) -> None:
        super().__init__()
        convolution = nn.Conv2d(features, 4 * features, 3, padding=1)
        self.weight, self.bias, self.stage = convolution.weight, convolution.bias, stage

    def forward(self, x: Tensor) -> Tensor:
        """From [N,C,H,W] to [N,C,2H,2W]."""
        assert self.bias is not None
        return self.stage(x, self.weight, self.bias)


class Block(nn.Module):
    """A residual block of EDSR: no normalisation."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, features, 3, padding=1)
        self.second = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        result: Tensor = x + self.second(F.relu(self.first(x)))
        return result


def network(features: int, blocks: int, stage: Stage) -> nn.Sequential:
    """From [N,3,H,W] to [N,3,4H,4W]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, features, 3, padding=1),
        *(Block(features) for _ in range(blocks)),
        Upsample(features, stage),
        Upsample(features, stage),
        nn.Conv2d(features, 3, 3, padding=1),
    )


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
    features: int = 32,
    blocks: int = 4,
    size: int = 24,
    steps: int = 6,
    dtype: torch.dtype = torch.float32,
) -> Result:
    """Train both nets on the same batches."""
    fine = patches(4, 4 * size).to(dtype)
    coarse = F.interpolate(fine, scale_factor=0.25, mode="bicubic", antialias=True)

    def losses(stage: Stage) -> list[float]:
        net = network(features, blocks, stage).to(dtype)
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
        found = []
        for _ in range(steps):
            optimiser.zero_grad()
            loss = F.l1_loss(net(coarse), fine)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            found.append(loss.item())
        return found

    return Result(losses(opgen.compile(SPEC).upsample), losses(torch_stage))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both losses."""
    parser = argparse.ArgumentParser(description="Train a super-resolution net in two ways.")
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--size", type=int, default=24, help="of the coarse images")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--double", action="store_true", help="train in double precision")
    options = parser.parse_args(arguments)
    dtype = torch.float64 if options.double else torch.float32
    size = options.size
    print(f"4 pieces of a photograph: {size} x {size} to {4 * size} x {4 * size}, ", end="")
    print(f"{options.features} features")
    result = train(options.features, options.blocks, size, options.steps, dtype)
    for name, losses in (("opgen", result.opgen), ("torch", result.torch)):
        print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f} in {len(losses)} steps")
    print(f"largest relative difference of the losses: {result.difference:.1e}")


if __name__ == "__main__":
    main()
