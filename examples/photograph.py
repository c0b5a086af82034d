"""The photograph that the examples work on: a cat, 256 x 256 (Stefan van der Walt, CC0)."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

PATH = Path(__file__).resolve().parent / "images" / "cat.ppm"


def photograph(size: int = 256) -> Tensor:
    """The whole photograph as [3,size,size], red, green and blue in [0, 1]."""
    kind, extents, largest, pixels = PATH.read_bytes().split(b"\n", 3)
    assert (kind, largest) == (b"P6", b"255")
    width, height = map(int, extents.split())
    whole = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(height, width, 3)
    image = whole.permute(2, 0, 1)[None] / 255
    if size != height:
        image = F.interpolate(image, (size, size), mode="bilinear", antialias=True)
    return image[0].contiguous()


def patches(count: int, size: int) -> Tensor:
    """Square pieces of the photograph, [count,3,size,size], always the same ones."""
    image = photograph()
    corners = torch.Generator().manual_seed(1)
    room = image.shape[-1] - size + 1
    places = torch.randint(room, (count, 2), generator=corners).tolist()
    return torch.stack([image[:, i : i + size, j : j + size] for i, j in places])
