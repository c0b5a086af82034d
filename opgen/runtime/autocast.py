"""Ops under `torch.autocast`: floating tensors are cast to the type that is active.

Eager and compiled calls pass here alike. As for PyTorch's own ops, float64 is left alone, and so
are tensors whose type the spec declares. Eager calls on the CPU that can do without the casts are
made by `unrounded`, which is asked first; their results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import compat, kept_memory
from opgen.runtime.description import GENERIC, Input

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation


def kernel(
    current: Callable[[], Operation], overload: Callable[..., Any], device_type: str
) -> Callable[..., Any]:
    """The kernel of an op for the autocast key of a device."""

    def cast_and_call(*arguments: Any) -> Any:
        given = cast(current().inputs, arguments, device_type, torch.Tensor.to)
        with compat.without_autocast(device_type):
            return overload(*given)

    return cast_and_call


def eager(
    operation: Operation, function: Callable[..., Any], device_type: str
) -> Callable[..., Any]:
    """What a function of an op's arguments computes on a device under autocast.

    The same casts as `kernel` makes, without the dispatcher: `function` finds autocast off. It is
    for plain tensors, and where no mode or transform is active.
    """

    # PyTorch keeps the memory of CUDA tensors itself.
    convert = kept_memory.cast if device_type == "cpu" else torch.Tensor.to

    def call(*arguments: Any) -> Any:
        given = cast(operation.inputs, arguments, device_type, convert)
        torch.set_autocast_enabled(device_type, False)
        try:
            return function(*given)
        finally:
            torch.set_autocast_enabled(device_type, True)

    return call


def cast(
    inputs: Sequence[Input],
    arguments: Sequence[Any],
    device_type: str,
    convert: Callable[[torch.Tensor, torch.dtype], torch.Tensor],
) -> list[Any]:
    """The arguments of an op, of which tensors are converted if all that share a type may be."""
    shared = [
        (at, tensor)
        for at, (declared, tensor) in enumerate(zip(inputs, arguments, strict=False))
        if declared.dtype in GENERIC and tensor is not None
    ]
    given = list(arguments)
    if all(_is_eligible(tensor, device_type) for _, tensor in shared):
        dtype = torch.get_autocast_dtype(device_type)
        for at, tensor in shared:
            given[at] = convert(tensor, dtype)
    return given


def _is_eligible(tensor: torch.Tensor, device_type: str) -> bool:
    floating = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return floating and tensor.device.type == device_type
