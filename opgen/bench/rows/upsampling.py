"""Upsampling by two, after the seed "reduce latency in ConvTranspose2d".

Its four modules: nearest, bilinear, a depthwise 3x3 convolution for comparison, and a depthwise
transposed one, each of the last two also with the BatchNorm2d that follows it there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from opgen.bench import specs
from opgen.bench.row import Contender, Function, Row, Shape, Workload, text

CHANNELS = 2048
Maker = Callable[[Tensor], Workload]


def rows() -> Iterator[Row]:
    """Every module and size; layouts and mixed precision for some batches."""
    for size in (8, 16):
        for name, make in MODULES.items():
            bare = "Norm" not in name
            for batch in (8, 16, 32, 64) if bare else (8, 64):
                yield _row(name, make, batch, size)
            for batch in (8, 64) if bare else (8,):
                yield _row(name, make, batch, size, channels_last=True)
            if bare:
                yield _row(name, make, 8, size, autocast=True)
            yield _row(name, make, 8, size, autocast=True, channels_last=True)


def _row(
    name: str,
    make: Maker,
    batch: int,
    size: int,
    *,
    channels_last: bool = False,
    autocast: bool = False,
) -> Row:
    shape = (batch, CHANNELS, size, size)
    words = [name, text(shape)]
    words += ["channels_last"] * channels_last + ["autocast"] * autocast
    return Row(
        " ".join(words),
        shape,
        (2, 6, 4, 4),
        functools.partial(_workload, make, channels_last=channels_last, autocast=autocast),
        "upsampling",
        moves=name in ("nearest", "transposed 2x2"),
        quick=batch == size == 8
        and "Norm" not in name
        and not autocast
        and (not channels_last or name == "depthwise 3x3"),
    )


def _workload(
    make: Maker, shape: Shape, device: torch.device, *, channels_last: bool, autocast: bool
) -> Workload:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(shape, device=device).contiguous(memory_format=layout)
    found = make(x)
    if not autocast:
        return found
    return dataclasses.replace(found, autocast=torch.get_autocast_dtype(device.type))


# ---------------------------------------------------------------------------- modules
def nearest(x: Tensor) -> Workload:
    """Every pixel four times."""
    spec = specs.load("upsample_nearest")

    def interpolate(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="nearest")

    def expanded(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x[:, :, :, None, :, None].expand(n, c, h, 2, w, 2).reshape(n, c, 2 * h, 2 * w)

    def pooled(cotangent: Tensor, _x: Tensor) -> tuple[Tensor, ...]:
        return (F.avg_pool2d(cotangent, 2, divisor_override=1),)

    return Workload(
        (x,),
        lambda x: spec.upsample_nearest(x, scale_factor=2),
        (
            Contender("F.interpolate", interpolate),
            Contender("expand, reshape", expanded, pooled),
        ),
        points=4 * x.numel(),
        compiled=interpolate,
        linear=True,
    )


def bilinear(x: Tensor) -> Workload:
    """Separable, edges continued."""
    spec = specs.load("upsample_bilinear")
    rows, columns = (_interpolation(n, x) for n in x.shape[2:])

    def interpolate(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear")

    def products(x: Tensor) -> Tensor:
        return rows @ (x @ columns.T)

    def products_gradients(cotangent: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        wide = cotangent.to(x.dtype)
        return ((rows.T @ wide) @ columns,)

    return Workload(
        (x,),
        lambda x: spec.upsample_bilinear(x, scale_factor=2),
        (
            Contender("F.interpolate", interpolate),
            Contender("two matrix products", products, products_gradients),
        ),
        points=16 * x.numel(),
        compiled=interpolate,
        linear=True,
    )


def _interpolation(size: int, like: Tensor) -> Tensor:
    """The matrix that doubles a row of so many pixels."""
    unit = torch.eye(size)[None]
    return F.interpolate(unit, scale_factor=2, mode="linear")[0].T.contiguous().to(like.device)


def depthwise(x: Tensor) -> Workload:
    """3x3, padding 1."""
    spec = specs.load("conv")
    channels = x.shape[1]

    def conv2d(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=1, groups=channels)

    return Workload(
        (x, torch.randn(channels, 1, 3, 3, device=x.device)),
        lambda x, weight: spec.conv2d(x, weight, padding=1, groups=channels),
        (Contender("F.conv2d", conv2d), Contender("nine slices", nine_slices)),
        points=9 * x.numel(),
        differentiable=(0, 1),
        compiled=conv2d,
        contraction=True,
    )


def nine_slices(x: Tensor, weight: Tensor) -> Tensor:
    """The depthwise convolution as nine shifted products."""
    height, width = x.shape[2:]
    wide = F.pad(x, (1, 1, 1, 1))
    y = wide[:, :, :height, :width] * weight[:, 0, 0, 0, None, None]
    for i in range(3):
        for j in range(3):
            if (i, j) != (0, 0):
                at = wide[:, :, i : i + height, j : j + width]
                y = y.addcmul_(at, weight[:, 0, i, j, None, None])
    return y


def transposed(x: Tensor) -> Workload:
    """2x2, stride 2: every pixel becomes a scaled block."""
    spec = specs.load("conv_transpose")
    channels = x.shape[1]

    def conv_transpose2d(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv_transpose2d(x, weight, stride=2, groups=channels)

    def products(x: Tensor, weight: Tensor) -> Tensor:
        n, c, h, w = x.shape
        blocks = x[:, :, :, None, :, None] * weight[:, 0][None, :, None, :, None, :]
        return blocks.reshape(n, c, 2 * h, 2 * w)

    return Workload(
        (x, torch.randn(channels, 1, 2, 2, device=x.device)),
        lambda x, weight: spec.conv_transpose2d(x, weight, stride=2, groups=channels),
        (
            Contender("F.conv_transpose2d", conv_transpose2d),
            Contender("broadcast product", products),
        ),
        points=4 * x.numel(),
        differentiable=(0, 1),
        compiled=products,
    )


def normalised(make: Maker, x: Tensor) -> Workload:
    """With BatchNorm2d behind it, in training mode, as in the seed."""
    bare = make(x)
    scale = torch.rand(x.shape[1], device=x.device) + 0.5
    shift = torch.randn(x.shape[1], device=x.device)

    def followed(function: Function) -> Function:
        def both(*inputs: Tensor) -> Tensor:
            *rest, scale, shift = inputs
            return F.batch_norm(function(*rest), None, None, scale, shift, training=True)

        return both

    assert bare.compiled is not None
    inputs = (*bare.inputs, scale, shift)
    return dataclasses.replace(
        bare,
        inputs=inputs,
        opgen=followed(bare.opgen),
        contenders=tuple(
            dataclasses.replace(contender, function=followed(contender.function))
            for contender in bare.contenders
        ),
        differentiable=tuple(range(len(inputs))),
        compiled=followed(bare.compiled),
        mixing=x.shape[0] * x.shape[2] * x.shape[3],
        depth=2,
    )


MODULES: dict[str, Maker] = {
    "nearest": nearest,
    "bilinear": bilinear,
    "depthwise 3x3": depthwise,
    "depthwise 3x3, BatchNorm2d": functools.partial(normalised, depthwise),
    "transposed 2x2": transposed,
    "transposed 2x2, BatchNorm2d": functools.partial(normalised, transposed),
}
