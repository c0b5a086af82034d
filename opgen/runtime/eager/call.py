"""One call of an op in plain PyTorch operations: its tensors, integers and numbers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch

from opgen.runtime.eager.operands import (
    Operand,
    clamp,
    drop,
    fill,
    reflect,
    symmetric,
    wrap,
    zero,
)
from opgen.runtime.eager.points import Points, boxes
from opgen.runtime.eager.terms import (
    PRIMITIVES,
    Term,
    apply,
    floor_div,
    limited,
    maximum,
    minimum,
    number,
)

__all__ = [
    "PRIMITIVES",
    "Call",
    "Operand",
    "apply",
    "clamp",
    "drop",
    "fill",
    "floor_div",
    "limited",
    "maximum",
    "minimum",
    "reflect",
    "run",
    "symmetric",
    "warn_once",
    "wrap",
    "zero",
]


class Call:
    """What the function of an op works on: the tensors, integers and numbers of one call."""

    def __init__(
        self,
        op: str,
        tensors: Mapping[str, torch.Tensor],
        integers: Mapping[str, int],
        numbers: Mapping[str, float],
    ) -> None:
        self.op = op
        self._tensors = tensors
        self._integers = integers
        self._numbers = numbers
        self._outputs: list[tuple[torch.Tensor, Operand]] = []
        self._device = next(iter(tensors.values())).device
        is_double = any(tensor.dtype == torch.float64 for tensor in tensors.values())
        self._real = torch.float64 if is_double else torch.float32

    # ------------------------------------------------------------ values
    def integers(self, *names: str) -> tuple[int, ...]:
        """Sizes and attributes."""
        return tuple(self._integers[name] for name in names)

    def attribute(self, name: str) -> Term:
        """A float attribute."""
        return self.number(self._numbers[name])

    def number(self, value: int | float) -> Term:
        """A number as the values of the op are computed with."""
        return number(value, self._real, self._device)

    def points(self, *extents: int) -> Iterator[Points]:
        """All points of a box in lexicographic order, in parts that memory can hold."""
        like = self.number(0)
        for box in boxes(extents):
            iterators = []
            for axis, (start, stop) in enumerate(box):
                shape = [1] * len(box)
                shape[axis] = stop - start
                values = torch.arange(start, stop, device=self._device)
                iterators.append(Term(values.view(shape), self._real))
            yield Points(self.op, iterators, [stop - start for start, stop in box], like)

    # ------------------------------------------------------------ tensors
    def input(self, name: str) -> Operand:
        """An input."""
        return Operand(name, self._tensors[name], self._real)

    def table(self, name: str, shape: tuple[int, ...], values: tuple[int | float, ...]) -> Operand:
        """A constant table of the spec."""
        whole = all(isinstance(value, int) for value in values)
        dtype = torch.int64 if whole else self._real
        data = torch.tensor(values, dtype=dtype, device=self._device).view(shape)
        return Operand(name, data, self._real)

    def output(self, name: str, reducer: str) -> Operand:
        """An output, holding what its reducer starts from; it is converted when the call ends."""
        tensor = self._tensors[name]
        wide = self._wide(tensor)
        start = _identity(reducer, tensor.dtype)
        data = torch.full(tensor.shape, start, dtype=wide, device=self._device)
        operand = Operand(name, data, self._real)
        self._outputs.append((tensor, operand))
        return operand

    def temporary(
        self, name: str, reducer: str, shape: tuple[int, ...], like: str | None = None
    ) -> Operand:
        """A temporary of the type in which elements of `like` are computed, else of reals.

        `like` is the name of a tensor of the call, or "int".
        """
        dtype = self._real
        if like is not None:
            dtype = torch.int64 if like == "int" else self._wide(self._tensors[like])
        data = torch.full(shape, _identity(reducer, dtype), dtype=dtype, device=self._device)
        return Operand(name, data, self._real)

    def _wide(self, tensor: torch.Tensor) -> torch.dtype:
        return self._real if tensor.is_floating_point() else torch.int64

    def finish(self) -> None:
        """Convert what was computed to the element types of the outputs."""
        for tensor, operand in self._outputs:
            tensor.copy_(_narrowed(operand.data, tensor.dtype))


def _identity(reducer: str, dtype: torch.dtype) -> int | float:
    """What a cell that nothing has joined holds."""
    match reducer:
        case "=" | "sum":
            return 0
        case "prod":
            return 1
        case "argmax" | "argmin":
            return -1
        case "max" | "min":
            if dtype == torch.bool:
                return int(reducer == "min")
            if dtype.is_floating_point:
                return float("-inf" if reducer == "max" else "inf")
            limits = torch.iinfo(dtype)
            return limits.min if reducer == "max" else limits.max
        case unexpected:
            raise AssertionError(unexpected)


def _narrowed(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values rounded once; integers wrap around, bool is != 0."""
    if dtype == torch.bool:
        return values != 0
    if values.dtype == torch.float64 and dtype in (torch.float16, torch.bfloat16):
        # By way of float32, rounded to odd: a second rounding then sees that the first was inexact.
        single = values.to(torch.float32)
        up, down = single.new_tensor(torch.inf), single.new_tensor(-torch.inf)
        other = torch.nextafter(single, torch.where(values > single, up, down))
        is_even = single.view(torch.int32) & 1 == 0
        inexact = single.isfinite() & (single != values)
        values = torch.where(inexact & is_even, other, single)
    return values.to(dtype)


# ---------------------------------------------------------------------------- the entry
def run(
    op: str,
    body: Callable[[Call], None],
    tensors: Mapping[str, torch.Tensor],
    integers: Mapping[str, int],
    numbers: Mapping[str, float],
) -> None:
    """Compute the outputs of a call into the tensors that stand for them.

    `body` is the printed function of the op; `tensors` are inputs and outputs by name, of any
    strides, and may hold others. Raises IndexError where an index read from a tensor is outside.
    """
    with torch.no_grad():
        call = Call(op, tensors, integers, numbers)
        body(call)
        call.finish()


@functools.cache
def warn_once(reason: str) -> None:
    """Say why ops are slow on this machine, once in a process."""
    warnings.warn(
        f"{reason}. Without one ops of opgen run on the CPU as plain PyTorch operations, which "
        "gives the same results much more slowly.",
        RuntimeWarning,
        stacklevel=2,
    )
