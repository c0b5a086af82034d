"""The net of the seed "subpixel layer": residual blocks, two stages of convolution and shuffle.

The user's complaint was the copies that changed the layout around the shuffle. opgen has
convolution and shuffle of a stage as one op; everything else is PyTorch's in both nets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from opgen.bench import specs
from opgen.bench.row import Contender, Direction, Function, Row, Shape, Workload, text

FEATURES = 64
LAYERS = ((3, 64), (64, 64), (64, 64), (64, 64), (64, 64), (64, 64), (64, 128), (32, 64), (16, 3))
"""Channels in and out of every convolution."""
_BENT = (
    "others, backward, in TF32: where a number near 0 is rounded to the other side, the slope of a "
    "leaky ReLU jumps, and gradients differ by a twentieth of the largest",
)
LAYOUTS = {"": torch.contiguous_format, " channels_last": torch.channels_last}


def rows() -> Iterator[Row]:
    """At the size of the seed, forward; and at a sixteenth of it, with gradients."""
    for layout in LAYOUTS:
        make = functools.partial(net, layout=layout)
        for shape, directions in (
            ((1, 3, 720, 1280), (Direction.FORWARD,)),
            ((1, 3, 180, 320), tuple(Direction)),
        ):
            yield Row(
                f"EDSR-like net {text(shape)}{layout}",
                shape,
                (1, 3, 5, 6),
                make,
                "nets",
                quick=bool(layout) and len(directions) > 1,
                brief=(1, 3, 45, 80),
                directions=directions,
                traced=True,
                grows=len(directions) > 1,
                omitted=_BENT if len(directions) > 1 else (),
            )


def net(shape: Shape, device: torch.device, *, layout: str) -> Workload:
    """From [1,3,H,W] to [1,3,4H,4W]; gradients for the image and all weights."""
    spec = specs.load("conv_depth_to_space")
    x = torch.rand(shape, device=device).contiguous(memory_format=LAYOUTS[layout])
    weights = [
        (torch.randn(out, into, 3, 3, device=device) * (9 * into) ** -0.5).contiguous(
            memory_format=LAYOUTS[layout]
        )
        for into, out in LAYERS
    ]

    def stage(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = spec.conv_depth_to_space(x, weight, r=2, padding=1)
        return result

    def pixel_shuffle(x: Tensor, weight: Tensor) -> Tensor:
        return F.pixel_shuffle(_convolution(x, weight), 2)

    pixels = shape[0] * shape[2] * shape[3]
    scales = (1, 1, 1, 1, 1, 1, 1, 4, 16)
    return Workload(
        (x, *weights),
        forward(stage),
        (Contender("F.pixel_shuffle", forward(pixel_shuffle)),),
        points=9 * pixels * sum(a * b * s for (a, b), s in zip(LAYERS, scales, strict=True)),
        differentiable=tuple(range(1 + len(weights))),
        compiled=forward(pixel_shuffle),
        depth=len(LAYERS),
        contraction=True,
        combined=True,
        bent=True,
    )


def forward(stage: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """The net with one way to compute a stage."""

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        head, *body, last, first_stage, second_stage, tail = weights
        start = x = _convolution(x, head)
        for first, second in zip(body[::2], body[1::2], strict=True):
            x = x + _convolution(F.leaky_relu(_convolution(x, first), 0.1), second)
        x = start + _convolution(x, last)
        x = stage(stage(x, first_stage), second_stage)
        return _convolution(x, tail)

    return run


def _convolution(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)
