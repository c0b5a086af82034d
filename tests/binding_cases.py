"""Ops of different kinds, each beside what PyTorch has, for the tests of the binding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

import catalogue_torch as equivalents
import opgen
from catalogue import SPECS

Function = Callable[..., Tensor]


_FILES = ("shift_sum", "depth_to_space", "conv", "upsample_bilinear", "pool", "embedding")
_MODULES = {name: opgen.load(SPECS / f"{name}.op") for name in (*_FILES, "norm", "softmax")}


def spec(name: str) -> ModuleType:
    """The module of a spec file, derivatives on demand."""
    return _MODULES[name]


def real(*shape: int, seed: int = 0) -> Tensor:
    """Numbers of which no two are alike."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


@dataclass(frozen=True)
class Op:
    """A function of floating tensors, what PyTorch computes for them, and tensors to try."""

    name: str
    ours: Function
    reference: Function
    tensors: tuple[Tensor, ...]
    registered: Callable[[], tuple[object, tuple[object, ...]]]
    """The op of the dispatcher, and a call of it."""

    def __repr__(self) -> str:
        return self.name

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """New tensors that ask for a gradient."""
        return tuple(tensor.clone().requires_grad_() for tensor in self.tensors)


INDICES = torch.tensor([[3, 0, 1], [1, 1, 2]])


def _of(file: str, op: str, *call: object) -> Callable[[], tuple[object, tuple[object, ...]]]:
    return lambda: (getattr(spec(file), f"_{op}").overload, call)


def _shift_sum(x: Tensor) -> Tensor:
    return equivalents.shift_sum(x, step=2)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In several steps: second derivatives of `F.layer_norm` are wrong in PyTorch 2.13."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + 1e-3) * weight + bias


def _first(result: tuple[Tensor, ...]) -> Tensor:
    return result[0]


IMAGE, KERNEL, BIAS = real(2, 2, 4, 3), real(3, 2, 2, 2), real(3)
ROWS, SCALE = real(2, 3, 4), real(4)

OPS = (
    Op(
        "shift_sum",
        lambda x: spec("shift_sum").shift_sum(x, step=2),
        _shift_sum,
        (real(2, 3, 2, 3),),
        _of("shift_sum", "shift_sum", real(2, 3, 2, 3), 2),
    ),
    Op(
        "depth_to_space",
        lambda x: spec("depth_to_space").depth_to_space(x, r=2),
        lambda x: F.pixel_shuffle(x, 2),
        (real(1, 4, 2, 3),),
        _of("depth_to_space", "depth_to_space", real(1, 4, 2, 3), 2, 0),
    ),
    Op(
        "conv2d",
        lambda x, w, b: spec("conv").conv2d(x, w, b, stride=(1, 2), padding=1),
        lambda x, w, b: F.conv2d(x, w, b, stride=(1, 2), padding=1),
        (IMAGE, KERNEL, BIAS),
        _of("conv", "conv2d", IMAGE, KERNEL, BIAS, 1, 2, 1, 1, 1, 1, 1),
    ),
    Op(
        "conv2d without bias",
        lambda x, w: spec("conv").conv2d(x, w),
        F.conv2d,
        (IMAGE, KERNEL),
        _of("conv", "conv2d", IMAGE, KERNEL, None, 1, 1, 0, 0, 1, 1, 1),
    ),
    Op(
        "upsample_bilinear",
        lambda x: spec("upsample_bilinear").upsample_bilinear(x, scale_factor=2),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        (real(1, 2, 2, 3),),
        _of("upsample_bilinear", "upsample_bilinear", real(1, 2, 2, 3), 2),
    ),
    Op(
        "max_pool2d",
        lambda x: _first(spec("pool").max_pool2d(x, kernel_size=2, stride=1, padding=1)),
        lambda x: F.max_pool2d(x, 2, 1, 1),
        (real(1, 2, 3, 3),),
        _of("pool", "max_pool2d", real(1, 2, 3, 3), 2, 2, 1, 1, 1, 1, 1, 1, 0),
    ),
    Op(
        "embedding",
        lambda weight: spec("embedding").embedding(INDICES.to(weight.device), weight),
        lambda weight: F.embedding(INDICES, weight),
        (real(4, 2),),
        _of("embedding", "embedding", INDICES, real(4, 2)),
    ),
    Op(
        "layer_norm",
        lambda x, w, b: spec("norm").layer_norm(x, w, b, eps=1e-3),
        _layer_norm,
        (ROWS, SCALE, real(4, seed=1)),
        _of("norm", "layer_norm", ROWS, SCALE, None, 1e-3),
    ),
    Op(
        "softmax",
        lambda x: spec("softmax").softmax(x),
        lambda x: F.softmax(x, -1),
        (real(2, 3),),
        _of("softmax", "softmax", real(2, 3)),
    ),
)


def op(name: str) -> Op:
    """The op of that name."""
    (found,) = (each for each in OPS if each.name == name)
    return found
