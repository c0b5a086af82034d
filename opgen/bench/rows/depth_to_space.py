"""Blocks of channels to blocks of pixels and back, after the seed "subpixel layer"."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from opgen.bench import specs
from opgen.bench.row import Contender, Function, Row, Shape, Workload, text

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUTS = {"": torch.contiguous_format, " channels_last": torch.channels_last}
MODES = ("CRD", "DCR")


def rows() -> Iterator[Row]:
    """Both directions, block sizes, orders, layouts and types; then convolutions before them."""
    for layout in LAYOUTS:
        for dtype in DTYPES:
            for r in (2, 4):
                for mode in MODES:
                    yield from _pair(r, mode, layout, dtype)
    for layout in LAYOUTS:
        yield Row(
            f"convolution and shuffle in one spec {text((1, 64, 180, 320))}{layout}",
            (1, 64, 180, 320),
            (1, 4, 5, 6),
            functools.partial(sub_pixel, layout=layout),
            "depth_to_space",
        )


def _pair(r: int, mode: str, layout: str, dtype: str) -> Iterator[Row]:
    for name, make, shape, tiny in (
        ("depth_to_space", depth_to_space, (8, 64, 180, 320), (2, 2 * r * r, 3, 4)),
        ("space_to_depth", space_to_depth, (8, 4, 720, 1280), (2, 2, 3 * r, 4 * r)),
    ):
        if name == "space_to_depth":
            shape = (8, 64 // (r * r), 180 * r, 320 * r)
        yield Row(
            f"{name} r={r} {mode} {text(shape)} {dtype}{layout}",
            shape,
            tiny,
            functools.partial(make, r=r, mode=mode, layout=layout, dtype=dtype),
            "depth_to_space",
            moves=True,
            quick=r == 2
            and mode == "CRD"
            and dtype == "float32"
            and (not layout or name == "depth_to_space"),
            brief=(2, *shape[1:]),
        )


def _image(shape: Shape, device: torch.device, layout: str, dtype: str) -> Tensor:
    x = torch.randn(shape, device=device).to(DTYPES[dtype])
    return x.contiguous(memory_format=LAYOUTS[layout])


# ---------------------------------------------------------------------------- the index maps
def _blocks(x: Tensor, r: int, mode: str) -> Tensor:
    """The channels of `x[N,C r r,H,W]` taken apart, in the order n, c, h, i, w, j."""
    n, channels, h, w = x.shape
    c = channels // (r * r)
    if mode == "CRD":
        return x.view(n, c, r, r, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.view(n, r, r, c, h, w).permute(0, 3, 4, 1, 5, 2)


def _pixels(y: Tensor, r: int, mode: str) -> Tensor:
    """The pixels of `y[N,C,H r,W r]` taken apart, in the order of the channels n, c, i, j, h, w."""
    n, c, height, width = y.shape
    parts = y.view(n, c, height // r, r, width // r, r)
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    return parts.permute(order)


def _like(x: Tensor, shape: Shape) -> Tensor:
    """An empty tensor in the layout of `x`."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)


def _to_space(x: Tensor, r: int, mode: str) -> Tensor:
    """One strided copy."""
    n, channels, h, w = x.shape
    c = channels // (r * r)
    y = _like(x, (n, c, h * r, w * r))
    y.view(n, c, h, r, w, r).copy_(_blocks(x, r, mode))
    return y


def _to_depth(y: Tensor, r: int, mode: str) -> Tensor:
    """One strided copy."""
    n, c, height, width = y.shape
    h, w = height // r, width // r
    x = _like(y, (n, c * r * r, h, w))
    order = (n, c, r, r, h, w) if mode == "CRD" else (n, r, r, c, h, w)
    x.view(order).copy_(_pixels(y, r, mode))
    return x


def _slices(x: Tensor, r: int, mode: str) -> Tensor:
    """A copy for each of the `r*r` positions in a block."""
    n, channels, h, w = x.shape
    c = channels // (r * r)
    y = _like(x, (n, c, h * r, w * r))
    for i in range(r):
        for j in range(r):
            at = i * r + j
            part = x[:, at :: r * r] if mode == "CRD" else x[:, at * c : (at + 1) * c]
            y[:, :, i::r, j::r] = part
    return y


def _slices_back(y: Tensor, r: int, mode: str) -> Tensor:
    """The same from pixels to channels."""
    n, c, height, width = y.shape
    x = _like(y, (n, c * r * r, height // r, width // r))
    for i in range(r):
        for j in range(r):
            at = i * r + j
            part = x[:, at :: r * r] if mode == "CRD" else x[:, at * c : (at + 1) * c]
            part.copy_(y[:, :, i::r, j::r])
    return x


# ---------------------------------------------------------------------------- rows
def depth_to_space(
    shape: Shape, device: torch.device, *, r: int, mode: str, layout: str, dtype: str
) -> Workload:
    """Channels to pixels."""
    spec = specs.load("depth_to_space")
    x = _image(shape, device, layout, dtype)

    def reshaped(x: Tensor) -> Tensor:
        n, channels, h, w = x.shape
        return _blocks(x, r, mode).reshape(n, channels // (r * r), h * r, w * r)

    def shuffled(x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, r)

    return _moved(
        x,
        lambda x: spec.depth_to_space(x, r=r, mode=mode),
        Contender("F.pixel_shuffle", shuffled)
        if mode == "CRD"
        else Contender("view, permute, reshape", reshaped),
        Contender("one copy_", lambda x: _to_space(x, r, mode), _ignoring(_to_depth, r, mode)),
        Contender("slices", lambda x: _slices(x, r, mode), _ignoring(_slices_back, r, mode)),
    )


def space_to_depth(
    shape: Shape, device: torch.device, *, r: int, mode: str, layout: str, dtype: str
) -> Workload:
    """Pixels to channels."""
    spec = specs.load("depth_to_space")
    x = _image(shape, device, layout, dtype)

    def reshaped(y: Tensor) -> Tensor:
        n, c, height, width = y.shape
        return _pixels(y, r, mode).reshape(n, c * r * r, height // r, width // r)

    def unshuffled(y: Tensor) -> Tensor:
        return F.pixel_unshuffle(y, r)

    return _moved(
        x,
        lambda x: spec.space_to_depth(x, r=r, mode=mode),
        Contender("F.pixel_unshuffle", unshuffled)
        if mode == "CRD"
        else Contender("view, permute, reshape", reshaped),
        Contender("one copy_", lambda x: _to_depth(x, r, mode), _ignoring(_to_space, r, mode)),
        Contender("slices", lambda x: _slices_back(x, r, mode), _ignoring(_slices, r, mode)),
    )


def _ignoring(
    function: Callable[[Tensor, int, str], Tensor], r: int, mode: str
) -> Callable[..., tuple[Tensor, ...]]:
    """The gradient of a permutation of cells: its inverse, whatever the inputs."""
    return lambda cotangent, x: (function(cotangent, r, mode),)


def _moved(x: Tensor, opgen: Function, *contenders: Contender) -> Workload:
    return Workload(
        (x,),
        opgen,
        contenders,
        points=x.numel(),
        compiled=contenders[0].function,
        linear=True,
    )


def sub_pixel(shape: Shape, device: torch.device, *, layout: str) -> Workload:
    """Twice the channels by a 3x3 convolution, written as blocks of 2 by 2 pixels."""
    spec = specs.load("conv_depth_to_space")
    channels = shape[1]
    out = 2 * channels
    x = _image(shape, device, layout, "float32")
    weight = torch.randn(out, channels, 3, 3, device=device) * (9 * channels) ** -0.5
    bias = torch.randn(out, device=device)

    def two_calls(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.pixel_shuffle(F.conv2d(x, weight, bias, padding=1), 2)

    return Workload(
        (x, weight, bias),
        lambda x, weight, bias: spec.conv_depth_to_space(x, weight, bias, r=2, padding=1),
        (Contender("F.conv2d, F.pixel_shuffle", two_calls),),
        points=x.numel() // channels * out * channels * 9,
        differentiable=(0, 1, 2),
        compiled=two_calls,
        contraction=True,
    )
