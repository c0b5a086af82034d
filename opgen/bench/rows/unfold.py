"""Unfold, product, fold, after the seed "Speedup F.unfold and F.fold"."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from opgen.bench import specs
from opgen.bench.row import Contender, Row, Shape, Workload, text

OUTPUTS = 15
BATCHES = (2, 256, 512)


def rows() -> Iterator[Row]:
    """10 channels of 50 by 50, windows of 3 by 3, batches as in the seed."""
    tiny = (2, 3, 6, 7)
    for batch in BATCHES:
        shape, quick = (batch, 10, 50, 50), batch == 256
        brief = (64, 10, 50, 50) if quick else None
        for name, make in (("unfold", unfold), ("fold", fold)):
            yield Row(
                f"{name} 3x3 {text(shape)}",
                shape,
                tiny,
                make,
                "unfold",
                moves=True,
                quick=quick,
                brief=brief,
            )
        name = f"unfold, matmul, fold in one spec {text(shape)}"
        yield Row(name, shape, tiny, product, "unfold", quick=quick, brief=brief)


def unfold(shape: Shape, device: torch.device) -> Workload:
    """Columns of windows."""
    spec = specs.load("unfold")
    x = torch.randn(shape, device=device)

    def windows(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        wide = F.pad(x, (1, 1, 1, 1))
        s = wide.stride()
        return wide.as_strided((n, c, 3, 3, h, w), (*s[:2], *s[2:], *s[2:])).reshape(
            n, 9 * c, h * w
        )

    def columns(x: Tensor) -> Tensor:
        return F.unfold(x, 3, padding=1)

    return Workload(
        (x,),
        lambda x: spec.unfold(x, kernel_size=3, padding=1),
        (Contender("F.unfold", columns), Contender("as_strided", windows, _added)),
        points=9 * x.numel(),
        compiled=columns,
        linear=True,
    )


def _added(cotangent: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """The gradient of unfolding as nine slices."""
    return (_overlap(cotangent, (x.shape[2], x.shape[3])),)


def _overlap(columns: Tensor, size: tuple[int, int]) -> Tensor:
    """Fold by nine slices, each added where it came from."""
    height, width = size
    n, c = columns.shape[0], columns.shape[1] // 9
    parts = columns.view(n, c, 3, 3, height, width)
    wide = columns.new_zeros(n, c, height + 2, width + 2)
    for i in range(3):
        for j in range(3):
            wide[:, :, i : i + height, j : j + width] += parts[:, :, i, j]
    return wide[:, :, 1:-1, 1:-1].contiguous()


def fold(shape: Shape, device: torch.device) -> Workload:
    """Columns back into images, overlaps added."""
    spec = specs.load("unfold")
    batch, channels, height, width = shape
    size = (height, width)
    x = torch.randn(batch, 9 * channels, height * width, device=device)

    def images(x: Tensor) -> Tensor:
        return F.fold(x, size, 3, padding=1)

    return Workload(
        (x,),
        lambda x: spec.fold(x, output_size=size, kernel_size=3, padding=1),
        (Contender("F.fold", images), Contender("nine slices", lambda x: _overlap(x, size))),
        points=x.numel(),
        compiled=images,
        linear=True,
    )


# ---------------------------------------------------------------------------- the user's module
def product(shape: Shape, device: torch.device) -> Workload:
    """A module of three calls as one spec, which has no columns.

    Beside what PyTorch offers stands the module with opgen's unfold and fold around its product:
    it writes the columns, which none of the convolutions does.
    """
    spec, whole = specs.load("unfold"), specs.load("unfold_conv")
    batch, channels, height, width = shape
    x = torch.randn(shape, device=device)
    weight = torch.randn(OUTPUTS, channels, 3, 3, device=device)

    def opgen(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = whole.unfold_conv(x, weight, padding=1)
        return result

    def in_three(
        unfold: Callable[..., Tensor], fold: Callable[..., Tensor]
    ) -> Callable[[Tensor, Tensor], Tensor]:
        def module(x: Tensor, weight: Tensor) -> Tensor:
            columns = unfold(x, kernel_size=3, padding=1)
            product = columns.transpose(1, 2).matmul(weight.flatten(1).t()).transpose(1, 2)
            return fold(product, output_size=tuple(x.shape[2:]), kernel_size=1)

        return module

    def product_first(x: Tensor, weight: Tensor) -> Tensor:
        return (weight.flatten(1) @ F.unfold(x, 3, padding=1)).view(-1, OUTPUTS, *x.shape[2:])

    def conv2d(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=1)

    return Workload(
        (x, weight),
        opgen,
        (
            Contender("the seed's module", in_three(F.unfold, F.fold)),
            Contender("with opgen's unfold and fold", in_three(spec.unfold, spec.fold)),
            Contender("weight @ columns", product_first),
            Contender("F.conv2d", conv2d),
            Contender("F.conv2d, no library", conv2d, settings=_without_library(device)),
        ),
        points=batch * OUTPUTS * height * width * channels * 9,
        differentiable=(0, 1),
        compiled=conv2d,
        contraction=True,
    )


def _without_library(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """The convolution without cuDNN or oneDNN."""
    if device.type == "cuda":
        return lambda: torch.backends.cudnn.flags(enabled=False)
    return _without_onednn


@contextmanager
def _without_onednn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says every time that there is no Intel GPU
        with torch.backends.mkldnn.flags(enabled=False):
            yield
