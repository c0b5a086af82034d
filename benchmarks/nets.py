"""Layers of known nets, opgen beside PyTorch's op of the same name: where it pays, and where not.

    python benchmarks/nets.py [PATTERN] [--device cuda] [--threads N] [--seconds S]
        [--write-readme]

The rows of `opgen bench` are what five people asked about. These are shapes that nobody chose for
opgen: layers as they stand in nets that many use, and ops of the specs that PyTorch has kernels of
its own for. Forward, and the gradients of all inputs, in both formats; in one process and by turns.
What is printed is the time of PyTorch's op over that of opgen: above 1 opgen is faster.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from opgen.bench import specs, tables
from opgen.bench.beside import THEIRS, main
from opgen.bench.row import Contender, Shape, Workload

README: Final = Path(__file__).parent / "README.md"


@dataclass(frozen=True)
class Layer:
    """An op of a spec with some inputs, and what PyTorch has instead."""

    name: str
    spec: str
    op: str
    shapes: tuple[Shape, ...]
    theirs: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    terms: int = 1
    """How many each cell of the result is a sum of."""
    is_image: bool = True
    """Whether it is measured in channels-last format as well."""

    @property
    def label(self) -> str:
        """The name, and the shapes of the inputs."""
        sizes = (",".join(map(str, shape)) for shape in self.shapes)
        return f"{self.name} [{'] ['.join(sizes)}]"

    def workload(self, format_: torch.memory_format) -> Workload:
        """The layer with numbers, images in a format."""
        op = getattr(specs.load(self.spec), self.op)
        is_tuple = self.op == "max_pool2d"  # it gives places as well

        def own(*inputs: Tensor) -> Tensor:
            found: Any = op(*inputs, **self.attributes)
            result: Tensor = found[0] if is_tuple else found
            return result

        inputs = tuple(map(torch.randn, self.shapes))
        inputs = tuple(
            each.contiguous(memory_format=format_) if each.dim() == 4 else each for each in inputs
        )
        with torch.no_grad():
            cells = own(*inputs).numel()
        largest = max(cells, *(each.numel() for each in inputs))
        everywhere = tuple(range(len(inputs)))
        points = largest * max(self.terms, cells // min(each.numel() for each in inputs) + 1)
        return Workload(inputs, own, (Contender(THEIRS, self.theirs),), points, everywhere)


def _convolution(name: str, image: Shape, weight: Shape, **attributes: Any) -> Layer:
    op = f"conv{len(image) - 2}d"
    terms = math.prod(weight[1:])
    theirs = functools.partial(getattr(F, op), **attributes)
    shapes, is_image = (image, weight), len(image) == 4
    return Layer(name, "conv", op, shapes, theirs, attributes, terms, is_image)


def _transposed(name: str, image: Shape, weight: Shape, **attributes: Any) -> Layer:
    op = f"conv_transpose{len(image) - 2}d"
    terms = weight[0] * math.prod(weight[2:])
    theirs = functools.partial(getattr(F, op), **attributes)
    shapes, is_image = (image, weight), len(image) == 4
    return Layer(name, "conv_transpose", op, shapes, theirs, attributes, terms, is_image)


def _convolutions() -> Iterator[Layer]:
    yield _convolution("ResNet, stem", (4, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3)
    yield _convolution("ResNet, 3x3", (4, 64, 56, 56), (64, 64, 3, 3), padding=1)
    yield _convolution("ResNet, 1x1", (4, 256, 56, 56), (64, 256, 1, 1))
    yield _convolution("ResNet, 1x1 with a stride", (4, 256, 56, 56), (512, 256, 1, 1), stride=2)
    grouped = (256, 8, 3, 3)
    yield _convolution("ResNeXt", (4, 128, 56, 56), (128, 4, 3, 3), padding=1, groups=32)
    yield _convolution(
        "ResNeXt with a stride", (4, 256, 56, 56), grouped, padding=1, stride=2, groups=32
    )
    yield _convolution("ViT, patches", (4, 3, 224, 224), (384, 3, 16, 16), stride=16)
    yield _convolution("ConvNeXt, stem", (4, 3, 224, 224), (96, 3, 4, 4), stride=4)
    yield _convolution("ConvNeXt, first", (4, 96, 56, 56), (96, 1, 7, 7), padding=3, groups=96)
    yield _convolution("ConvNeXt, last", (1, 768, 7, 7), (768, 1, 7, 7), padding=3, groups=768)
    for channels, size, window, stride in (
        *((96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 5, 2), (240, 28, 3, 2), (240, 28, 5, 1)),
        *((672, 14, 5, 2), (960, 7, 3, 1)),
    ):
        yield _convolution(
            f"EfficientNet, {window}x{window} with stride {stride}",
            *((4, channels, size, size), (channels, 1, window, window)),
            stride=stride,
            padding=window // 2,
            groups=channels,
        )
    yield _convolution("DeepLab, dilated", (4, 64, 32, 32), (64, 64, 3, 3), padding=4, dilation=4)
    yield _convolution("SRResNet, last", (1, 32, 256, 256), (3, 32, 9, 9), padding=4)
    yield _convolution("SSIM, grey", (8, 1, 256, 256), (1, 1, 11, 11), padding=5)
    yield _convolution("SSIM, colours", (4, 3, 512, 512), (3, 1, 5, 5), padding=2, groups=3)
    yield _convolution("wav2vec, stem", (4, 1, 16000), (64, 1, 10), stride=5)
    yield _convolution("TCN", (8, 128, 512), (128, 128, 3), padding=4, dilation=4)
    yield _convolution("Conformer", (8, 256, 400), (256, 1, 31), padding=15, groups=256)
    yield _convolution("Mamba", (4, 1536, 512), (1536, 1, 4), padding=3, groups=1536)
    yield _convolution("video, 3x3x3", (1, 3, 8, 64, 64), (32, 3, 3, 3, 3), padding=1)
    yield _transposed("U-Net, up", (2, 128, 64, 64), (128, 64, 2, 2), stride=2)
    yield _transposed("DCGAN", (8, 256, 8, 8), (256, 128, 4, 4), stride=2, padding=1)
    yield _transposed("DCGAN, last", (4, 64, 32, 32), (64, 3, 4, 4), stride=2, padding=1)
    yield _transposed("FCN, single", (1, 21, 64, 64), (21, 1, 4, 4), stride=2, padding=1, groups=21)
    yield _transposed("HiFi-GAN, up", (1, 128, 100), (128, 64, 16), stride=8, padding=4)


def _resized(size: tuple[int, int], mode: str, **more: Any) -> Callable[..., Tensor]:
    return lambda x: F.interpolate(x, size, mode=mode, **more)


def _scaled(factor: int, mode: str) -> Callable[..., Tensor]:
    return lambda x: F.interpolate(x, scale_factor=factor, mode=mode)


def _columns(op: str, shape: Shape, attributes: dict[str, Any]) -> tuple[Any, ...]:
    theirs = functools.partial(getattr(F, op), **attributes)
    return "unfold", op, (shape,), theirs, attributes


def _movements() -> Iterator[Layer]:
    features = (4, 64, 56, 56)
    for mode in ("nearest", "bilinear"):
        spec = f"upsample_{mode}"
        yield Layer(f"{mode} by 2", spec, spec, (features,), _scaled(2, mode), terms=4)
    yield Layer(
        "bicubic by 4",
        *("upsample_bicubic", "upsample_bicubic", ((4, 3, 64, 64),), _scaled(4, "bicubic")),
        {"scale_factor": 4},
        terms=16,
    )
    size, name = (100, 100), "upsample_nearest"
    yield Layer(
        "nearest to a size",
        *(name, f"{name}_size", (features,), _resized(size, "nearest")),
        {"output_size": size},
    )
    # PyTorch has the places of cells in float32, off by a rounding of the size of the image: by as
    # much as the rounding of a sum of so many terms, squared.
    name = "upsample_bilinear"
    yield Layer(
        "bilinear, aligned",
        *(name, f"{name}_size", (features,), _resized(size, "bilinear", align_corners=True)),
        {"output_size": size, "align_corners": True},
        terms=56**2,
    )
    size = (224, 224)
    yield Layer(
        "bilinear, smaller",
        *(name, f"{name}_size", ((4, 3, 512, 512),), _resized(size, "bilinear")),
        {"output_size": size},
        terms=512**2,
    )
    columns: dict[str, Any] = {"kernel_size": 3, "padding": 1}
    yield Layer("unfold 3x3", *_columns("unfold", features, columns))
    columns = {"kernel_size": 16, "stride": 16}
    yield Layer("ViT, unfold", *_columns("unfold", (8, 3, 224, 224), columns))
    columns = {"output_size": (224, 224), **columns}
    yield Layer("MAE, fold", *_columns("fold", (8, 768, 196), columns), is_image=False)
    shuffled = ((1, 27, 180, 320),)
    yield Layer(
        "ESPCN, pixel shuffle",
        *("depth_to_space", "depth_to_space", shuffled, lambda x: F.pixel_shuffle(x, 3)),
        {"r": 3},
    )
    yield Layer(
        "ShuffleNet",
        *("channel_shuffle", "channel_shuffle", ((4, 240, 28, 28),)),
        lambda x: F.channel_shuffle(x, 3),
        {"groups": 3},
    )
    yield Layer(
        "Swin, shift",
        *("roll", "roll", ((8, 96, 56, 56),), lambda x: torch.roll(x, (3, 3), (2, 3))),
        {"shifts": (3, 3)},
    )
    for mode, op in (("constant", "zero"), ("reflect", "reflect"), ("circular", "circular")):
        yield Layer(
            f"padding, {op}",
            *("pad", f"pad_{op}", (features,), _padded(mode)),
            {"padding": (3, 3, 3, 3)},
            terms=9,
        )


def _padded(mode: str) -> Callable[..., Tensor]:
    return lambda x: F.pad(x, (3, 3, 3, 3), mode=mode)


def _reductions() -> Iterator[Layer]:
    window = {"kernel_size": 3, "stride": 2, "padding": 1}
    images = ((4, 64, 112, 112),)
    yield Layer(
        "average of 3x3",
        *("pool", "avg_pool2d", images, lambda x: F.avg_pool2d(x, 3, 2, 1), window),
        terms=9,
    )
    yield Layer(
        "maximum of 3x3", "pool", "max_pool2d", images, lambda x: F.max_pool2d(x, 3, 2, 1), window
    )
    tokens, width = (8, 196, 768), (768,)
    yield Layer(
        "ViT, layer norm",
        *("norm", "layer_norm", (tokens, width, width)),
        lambda x, weight, bias: F.layer_norm(x, width, weight, bias),
        terms=768,
        is_image=False,
    )
    yield Layer(
        "UNet, group norm",
        *("norm", "group_norm", ((4, 128, 32, 32), (128,), (128,))),
        lambda x, weight, bias: F.group_norm(x, 32, weight, bias),
        {"num_groups": 32},
        terms=4096,
    )
    for name, shape in (("ViT, softmax", (8, 12, 196, 196)), ("GPT-2, softmax", (64, 50257))):
        yield Layer(
            name,
            *("softmax", "softmax", (shape,), lambda x: torch.softmax(x, -1)),
            terms=shape[-1],
            is_image=False,
        )


LAYERS: Final = (*_convolutions(), *_movements(), *_reductions())


if __name__ == "__main__":
    sys.exit(main(LAYERS, tables.NETS, README, __doc__))
