"""Convolutions with many groups, after the seed "depthwise separable convolution".

Its stack of ten layers with 1, 2, 4 and 256 groups, the sizes its readers complain of, and the
filter shared by expanding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from opgen.bench import specs
from opgen.bench.row import Contender, Function, Row, Shape, Workload, text
from opgen.bench.rows import pyinn


@dataclass(frozen=True)
class Convolution:
    """The weights and attributes of one: `groups` 0 is depthwise."""

    kernel: int
    groups: int = 0
    outputs: int = 1
    """Output channels for each input channel."""
    padding: int = 0
    layers: int = 1

    def groups_of(self, channels: int) -> int:
        """The number of groups for so many input channels."""
        return self.groups or channels


LAYOUTS = {"": torch.contiguous_format, " channels_last": torch.channels_last}


def rows() -> Iterator[Row]:
    """Every convolution contiguous, and channels_last."""
    for layout in LAYOUTS:
        for groups in (1, 2, 4, 256):
            convolution = Convolution(3, groups, padding=1, layers=10)
            name = f"10 layers of 256 channels, groups {groups}"
            tiny = (1, 256 if groups == 256 else 8, 4, 4)
            yield _row(name, (8, 256, 28, 28), tiny, convolution, layout)
        for groups in (16, 32):
            convolution = Convolution(3, groups, padding=1)
            quick = groups == 32
            name = f"grouped 3x3, groups {groups}"
            yield _row(name, (8, 256, 56, 56), (1, 64, 5, 6), convolution, layout, quick=quick)
        convolution = Convolution(3, outputs=2, padding=1)
        yield _row(
            "depthwise 3x3, multiplier 2", (8, 256, 56, 56), (2, 5, 6, 7), convolution, layout
        )
        yield _row("depthwise 3x3 to 256", (64, 128, 7, 7), (2, 5, 6, 7), convolution, layout)
        yield _row(
            "depthwise 5x5, padding 4",
            (1, 50000, 9, 9),
            (1, 20, 9, 9),
            Convolution(5, padding=4),
            layout,
            (Contender("F.conv_transpose2d", _mirrored),),
        )
        for kernel in (3, 5, 7, 31):
            convolution = Convolution(kernel, padding=kernel // 2)
            shape, quick = (8, 1024, 20, 20), kernel in (3, 31)
            name = f"depthwise {kernel}x{kernel}"
            yield _row(name, shape, (1, 4, 6, 6), convolution, layout, quick=quick)
        yield Row(
            f"depthwise 3x3 and pointwise {text((8, 1024, 20, 20))}{layout}",
            (8, 1024, 20, 20),
            (2, 5, 4, 4),
            functools.partial(separable, layout=layout),
            "convolution",
        )
        for one_spec in (False, True):
            how = "one spec" if one_spec else "expanded"
            yield Row(
                f"shared filter 3x3, {how} {text((64, 128, 7, 7))}{layout}",
                (64, 128, 7, 7),
                (2, 5, 6, 7),
                functools.partial(shared, layout=layout, one_spec=one_spec),
                "convolution",
                quick=one_spec and not layout,
            )
    yield Row(
        f"depthwise conv1d, 7 taps {text((16, 512, 1024))}",
        (16, 512, 1024),
        (2, 5, 16),
        depthwise_1d,
        "convolution",
        quick=True,
    )


def _row(
    name: str,
    shape: Shape,
    tiny: Shape,
    convolution: Convolution,
    layout: str,
    others: tuple[Contender, ...] = (),
    *,
    quick: bool = False,
) -> Row:
    make = functools.partial(_workload, convolution=convolution, layout=layout, others=others)
    name = f"{name} {text(shape)}{layout}"
    return Row(name, shape, tiny, make, "convolution", quick=quick and not layout)


def _workload(
    shape: Shape,
    device: torch.device,
    *,
    convolution: Convolution,
    layout: str,
    others: tuple[Contender, ...],
) -> Workload:
    spec = specs.load("conv")
    channels, kernel = shape[1], convolution.kernel
    groups = convolution.groups_of(channels)
    attributes = {"padding": convolution.padding, "groups": groups}
    x = torch.randn(shape, device=device).contiguous(memory_format=LAYOUTS[layout])
    inside, out = channels // groups, channels * convolution.outputs
    scale = (inside * kernel * kernel) ** -0.5  # a layer keeps the size of its numbers
    weights = tuple(
        torch.randn(out, inside, kernel, kernel, device=device) * scale
        for _ in range(convolution.layers)
    )

    def stack(conv2d: Callable[..., Tensor]) -> Function:
        def run(x: Tensor, *weights: Tensor) -> Tensor:
            for weight in weights:
                x = conv2d(x, weight, **attributes)
            return x

        return run

    by_hand = []
    depthwise = groups == channels == out
    if device.type == "cuda" and depthwise and not layout and convolution.layers == 1:
        # Its kernels are of contiguous images.
        hand = functools.partial(pyinn.depthwise, padding=convolution.padding)
        by_hand = [Contender("kernels of pyinn", hand)]

    rows, columns = (n + 2 * convolution.padding - kernel + 1 for n in shape[2:])
    return Workload(
        (x, *weights),
        stack(spec.conv2d),
        (Contender("F.conv2d", stack(F.conv2d)), *others, *by_hand),
        points=shape[0] * out * rows * columns * inside * kernel * kernel * convolution.layers,
        differentiable=tuple(range(1 + len(weights))),
        compiled=stack(F.conv2d),
        depth=convolution.layers,
        contraction=True,
    )


def _mirrored(x: Tensor, weight: Tensor) -> Tensor:
    """Padding by all but one of the taps is a transposed convolution with mirrored filters."""
    return F.conv_transpose2d(x, weight.flip(2, 3), groups=x.shape[1])


def separable(shape: Shape, device: torch.device, *, layout: str) -> Workload:
    """Depthwise 3x3, then pointwise to as many channels: two calls in either case."""
    spec = specs.load("conv")
    channels = shape[1]
    x = torch.randn(shape, device=device).contiguous(memory_format=LAYOUTS[layout])
    depthwise = torch.randn(channels, 1, 3, 3, device=device) / 3
    pointwise = torch.randn(channels, channels, 1, 1, device=device) * channels**-0.5

    def pair(conv2d: Callable[..., Tensor]) -> Function:
        def run(x: Tensor, depthwise: Tensor, pointwise: Tensor) -> Tensor:
            return conv2d(conv2d(x, depthwise, padding=1, groups=channels), pointwise)

        return run

    return Workload(
        (x, depthwise, pointwise),
        pair(spec.conv2d),
        (Contender("F.conv2d", pair(F.conv2d)),),
        points=x.numel() * (9 + channels),
        differentiable=(0, 1, 2),
        compiled=pair(F.conv2d),
        depth=2,
        contraction=True,
    )


def shared(shape: Shape, device: torch.device, *, layout: str, one_spec: bool) -> Workload:
    """One filter for all channels, two results for each, as asked and answered in the seed.

    As an op of its own with a filter of 3x3, or by a general convolution of an expanded weight.
    """
    batch, channels, height, width = shape
    x = torch.randn(shape, device=device).contiguous(memory_format=LAYOUTS[layout])
    weight = torch.randn(3, 3, device=device)

    def expanded(conv2d: Callable[..., Tensor]) -> Function:
        def run(x: Tensor, weight: Tensor) -> Tensor:
            filters = weight.expand(2 * channels, 1, 3, 3)
            return conv2d(x, filters, padding=1, groups=channels)

        return run

    def images(x: Tensor, weight: Tensor) -> Tensor:
        y = F.conv2d(x.reshape(batch * channels, 1, height, width), weight[None, None], padding=1)
        return y.view(batch, channels, height, width).repeat_interleave(2, dim=1)

    if one_spec:
        own = specs.load("shared_filter").shared_filter

        def opgen(x: Tensor, weight: Tensor) -> Tensor:
            result: Tensor = own(x, weight, multiplier=2, padding=1)
            return result
    else:
        opgen = expanded(specs.load("conv").conv2d)
    return Workload(
        (x, weight),
        opgen,
        (
            Contender("F.conv2d, expanded", expanded(F.conv2d)),
            Contender("channels as images", images),
        ),
        points=2 * 9 * x.numel(),
        differentiable=(0, 1),
        compiled=expanded(F.conv2d),
        contraction=True,
    )


def depthwise_1d(shape: Shape, device: torch.device) -> Workload:
    """Seven taps, padding 3."""
    spec = specs.load("conv")
    channels = shape[1]
    attributes = {"padding": 3, "groups": channels}

    def conv1d(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv1d(x, weight, padding=3, groups=channels)

    def conv2d(x: Tensor, weight: Tensor) -> Tensor:
        wide = F.conv2d(x[:, :, None], weight[:, :, None], padding=(0, 3), groups=channels)
        return wide[:, :, 0]

    return Workload(
        (torch.randn(shape, device=device), torch.randn(channels, 1, 7, device=device)),
        lambda x, weight: spec.conv1d(x, weight, **attributes),
        (Contender("F.conv1d", conv1d), Contender("F.conv2d, one row", conv2d)),
        points=7 * shape[0] * shape[1] * shape[2],
        differentiable=(0, 1),
        compiled=conv1d,
        contraction=True,
    )
