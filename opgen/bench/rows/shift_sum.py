"""The coded-aperture measurement and its pseudo-inverse, after the seed "shift and sum".

Methods 1 to 3 are the user's and the answer's code; `addcmul_` and `as_strided` are what a reader
who knows PyTorch well would write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from opgen.bench import specs
from opgen.bench.row import Contender, Direction, Function, Row, Shape, Workload

STEP: Final = 2
BOTH: Final = frozenset(Direction)
FORWARD: Final = frozenset({Direction.FORWARD})
_FEW: Final = 64
_MANY_CHANNELS: Final = (
    "method 2: too slow for 512 channels, as in the seed",
    "method 1, backward: autograd makes a tensor of the size of x for each of 512 channels",
)


def rows() -> Iterator[Row]:
    """28 channels as in the camera, and 512."""
    yield Row(
        "shift_sum A, 28 channels",
        (16, 28, 256, 256),
        (2, 5, 4, 16),
        measurement,
        "shift_sum",
        moves=True,
        quick=True,
        brief=(4, 28, 256, 256),
    )
    yield Row(
        "shift_sum A, 512 channels",
        (2, 512, 256, 256),
        (1, 9, 4, 16),
        measurement,
        "shift_sum",
        moves=True,
        on_gpu=(16, 512, 256, 256),
        omitted=_MANY_CHANNELS,
    )
    yield Row(
        "shift_sum A_pinv, 28 channels",
        (16, 28, 256, 256),
        (2, 5, 4, 16),
        pseudo_inverse,
        "shift_sum",
        moves=True,
        quick=True,
        brief=(4, 28, 256, 256),
    )
    yield Row(
        "shift_sum A_pinv, 512 channels",
        (2, 512, 256, 256),
        (1, 9, 4, 16),
        pseudo_inverse,
        "shift_sum",
        moves=True,
        on_gpu=(16, 512, 256, 256),
        omitted=_MANY_CHANNELS,
    )


def width(channels: int, columns: int) -> int:
    """The columns of the measurement."""
    return columns + (channels - 1) * STEP


# ---------------------------------------------------------------------------- A
def measurement(shape: Shape, device: torch.device) -> Workload:
    """`A(x, mask)`, gradients for both."""
    _, channels, height, columns = shape
    spec = specs.load("shift_sum")
    x = torch.randn(shape, device=device)
    mask = torch.rand(1, 1, height, columns, device=device) + 0.1
    few = channels <= _FEW
    contenders = [
        Contender("method 1", method_1, directions=BOTH if few else FORWARD),
        Contender("method 3", scattered(shape, device)),
        Contender("addcmul_ of slices", slices, slices_gradients),
    ]
    if few:
        contenders.append(Contender("method 2", convolved(channels, device)))
    return Workload(
        (x, mask),
        lambda x, mask: spec.shift_sum_masked(x, mask, step=STEP),
        tuple(contenders),
        points=x.numel(),
        differentiable=(0, 1),
        compiled=padded if few else gathered,
    )


def method_1(x: Tensor, mask: Tensor) -> Tensor:
    """Multiply, then add slice by slice."""
    z = x * mask
    y = _zeros(x)
    for c in range(x.shape[1]):
        y[..., c * STEP : c * STEP + x.shape[3]] += z[:, c : c + 1]
    return y


def convolved(channels: int, device: torch.device) -> Function:
    """Method 2: a convolution with a filter of zeros and ones."""
    filter_ = filter_of(channels, device)
    return lambda x, mask: F.conv2d(x * mask, filter_, padding=(0, (channels - 1) * STEP))


def filter_of(channels: int, device: torch.device) -> Tensor:
    """The filter of method 2."""
    found = torch.zeros(1, channels, 1, (channels - 1) * STEP + 1, device=device)
    for c in range(channels):
        found[:, channels - c - 1, :, c * STEP] = 1
    return found


def scattered(shape: Shape, device: torch.device) -> Function:
    """Method 3: `scatter_add_` with indices made beforehand."""
    batch, channels, height, columns = shape
    out = width(channels, columns)
    c, h, w = (torch.arange(n, device=device) for n in (channels, height, columns))
    indices = w + c.view(channels, 1, 1) * STEP + h.view(1, height, 1) * out
    flat = indices.view(1, -1).expand(batch, channels * height * columns)

    def method_3(x: Tensor, mask: Tensor) -> Tensor:
        y = torch.zeros(batch, height * out, device=device)
        y.scatter_add_(1, flat, (x * mask).view(batch, -1))
        return y.view(batch, 1, height, out)

    return method_3


def slices(x: Tensor, mask: Tensor) -> Tensor:
    """Multiply and add at once, slice by slice: no product of the size of `x`."""
    y = _zeros(x)
    for c in range(x.shape[1]):
        y[..., c * STEP : c * STEP + x.shape[3]].addcmul_(x[:, c : c + 1], mask)
    return y


def slices_gradients(cotangent: Tensor, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Written out with a view in which channels overlap: autograd copies every slice."""
    shifted = _overlapping(cotangent, x.shape)
    return shifted * mask, (shifted * x).sum((0, 1), keepdim=True)


def padded(x: Tensor, mask: Tensor) -> Tensor:
    """A sum of padded channels: what torch.compile makes the most of for few channels."""
    last = x.shape[1] - 1
    z = x * mask
    terms = [F.pad(z[:, c : c + 1], (c * STEP, (last - c) * STEP)) for c in range(x.shape[1])]
    return torch.stack(terms).sum(0)


def gathered(x: Tensor, mask: Tensor) -> Tensor:
    """Reads by index, zero outside: a graph whose size does not depend on the channels."""
    channels, columns = x.shape[1], x.shape[3]
    c, v = (torch.arange(n, device=x.device) for n in (channels, width(channels, columns)))
    w = v - c[:, None] * STEP
    inside = (w >= 0) & (w < columns)
    z = (x * mask)[:, c[:, None], :, w.clamp(0, columns - 1)]
    return torch.where(inside[..., None, None], z, 0.0).sum(0).permute(1, 2, 0)[:, None]


def _zeros(x: Tensor) -> Tensor:
    batch, channels, height, columns = x.shape
    return torch.zeros(batch, 1, height, width(channels, columns), device=x.device)


def _overlapping(y: Tensor, shape: Shape) -> Tensor:
    """The slices of every channel as one view of `y[B,1,H,V]`."""
    return y.as_strided(shape, (y.stride(0), STEP * y.stride(3), y.stride(2), y.stride(3)))


# ---------------------------------------------------------------------------- A_pinv
def pseudo_inverse(shape: Shape, device: torch.device) -> Workload:
    """`A_pinv(y, mask)`, gradients for both. `shape` is that of the result."""
    batch, channels, height, columns = shape
    spec = specs.load("shift_sum")
    y = torch.randn(batch, 1, height, width(channels, columns), device=device)
    mask = torch.rand(1, 1, height, columns, device=device) + 0.5
    alpha = _counts(shape, device)
    few = channels <= _FEW

    def method_1(y: Tensor, mask: Tensor) -> Tensor:
        z = y / alpha
        parts = [z[..., c * STEP : c * STEP + columns] for c in range(channels)]
        return torch.cat(parts, dim=1) / mask

    def method_2(y: Tensor, mask: Tensor) -> Tensor:
        return F.conv_transpose2d(y / alpha, filter_, padding=(0, (channels - 1) * STEP)) / mask

    def view(y: Tensor, mask: Tensor) -> Tensor:
        return _overlapping(y / alpha, shape) / mask

    def view_gradients(cotangent: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        reciprocal = mask.reciprocal()
        masks = (_overlapping(y / alpha, shape) * cotangent).sum((0, 1), keepdim=True)
        return slices(cotangent, reciprocal) / alpha, -masks * reciprocal * reciprocal

    contenders = [
        Contender("method 1", method_1, directions=BOTH if few else FORWARD),
        Contender("overlapping view", view, view_gradients),
    ]
    if few:
        filter_ = filter_of(channels, device)
        contenders.append(Contender("method 2", method_2))
    return Workload(
        (y, mask),
        lambda y, mask: spec.shift_sum_pinv(y, mask, C=channels, step=STEP),
        tuple(contenders),
        points=batch * channels * height * columns,
        differentiable=(0, 1),
        compiled=view,
    )


def _counts(shape: Shape, device: torch.device) -> Tensor:
    """How many channels reach each column."""
    channels, columns = shape[1], shape[3]
    alpha = torch.zeros(width(channels, columns), device=device)
    for c in range(channels):
        alpha[c * STEP : c * STEP + columns] += 1
    return alpha
