"""Convolutions that may go by tiles: comparisons with PyTorch, and which tiles were heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from opgen.runtime import convolution_tiles, library_call
from opgen.runtime.convolution_tiles import Target, Tiles

LAST = torch.channels_last

HAS_VECTORS = torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Elsewhere the library computes, and the same numbers are checked."""
EVERY = set(Target) if HAS_VECTORS else set[Target]()


@contextmanager
def forgotten_plans() -> Iterator[None]:
    """No call is known before or after it."""
    for plans in library_call._KNOWN.values():
        plans.clear()
    yield
    for plans in library_call._KNOWN.values():
        plans.clear()


def listening(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """What goes by tiles from Python; later calls like these are looked up."""
    found: list[Target] = []
    computed = convolution_tiles.computed

    def heard_first(plan: Tiles, *arguments: Any) -> Tensor | None:
        found.append(plan.target)
        return computed(plan, *arguments)

    monkeypatch.setattr(convolution_tiles, "computed", heard_first)
    return found


def check(
    found: Tensor, wanted: Tensor, format_: torch.memory_format = torch.contiguous_format
) -> None:
    """Whether numbers are those of sums in float32, of which the exact ones are given."""
    if found.dim() != 4:
        format_ = torch.contiguous_format
    assert found.shape == wanted.shape and found.is_contiguous(memory_format=format_)
    scale = max(wanted.abs().max().item(), 1)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=4e-6 * scale)


def check_calls(
    function: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
    leaves: Sequence[Tensor],
    format_: torch.memory_format = torch.contiguous_format,
    **about: Any,
) -> None:
    """Whether results and gradients are those of PyTorch in float64: in Python, and looked up."""
    wide = exact(*leaves)
    wanted = theirs(*wide, **about)
    cotangent = torch.randn(wanted.shape).contiguous(memory_format=format_)
    gradients = torch.autograd.grad(wanted, wide, cotangent.double())
    for _ in range(3):
        y = function(*leaves, **about)
        check(y, wanted, format_)
        found = torch.autograd.grad(y, leaves, cotangent)
        for got, expected in zip(found, gradients, strict=True):
            check(got, expected, format_)


def leaf(*shape: int, format_: torch.memory_format = torch.contiguous_format) -> Tensor:
    """Random numbers, whose gradients are asked for."""
    return torch.randn(shape).contiguous(memory_format=format_).requires_grad_()


def exact(*tensors: Tensor) -> list[Tensor]:
    """The same numbers in float64."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]
