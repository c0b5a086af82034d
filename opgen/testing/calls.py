"""Calls of an op as data: what hypothesis draws, a failure shows and a replay repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from opgen.ir.binding import Array
from opgen.ir.notation import Access, Boundary, DType, Op, Tensor, reads
from opgen.testing.cases import Case
from opgen.testing.layouts import arranged

FLOATING: Final = ("float64", "float32", "float16", "bfloat16")
INTEGERS: Final = ("int64", "int32", "int16", "int8", "uint8")

_DECLARED: Final[dict[DType, str]] = {
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
    DType.U8: "uint8",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.BOOL: "bool",
}


@dataclass(frozen=True)
class Call:
    """One call of an op.

    `dtype` is the type of undeclared tensors; `layouts` says how inputs, then gradients that come
    in, lie in memory (contiguous where it says nothing); `seed` makes the numbers, all of them
    between 0.5 and 2 if `positive`.
    """

    case: Case
    dtype: str = "float64"
    layouts: tuple[str, ...] = ()
    seed: int = 0
    positive: bool = False
    device: str = field(default="cpu", compare=False)

    def inputs(self, op: Op) -> dict[str, torch.Tensor]:
        """The tensors of the call by name."""
        numbers = np.random.default_rng(self.seed)
        found = {}
        for at, tensor in enumerate(op.inputs):
            if tensor.name in self.case.absent:
                continue
            shape = self.case.shape(op, tensor)
            name = self.dtype_of(tensor)
            if is_floating(name):
                found[tensor.name] = self._floats(shape, name, numbers, at)
                continue
            low, high = (0, 1) if name == "bool" else _range(op, tensor, self.case)
            low = max(low, 0) if name == "uint8" else low
            values = numbers.integers(low, max(low, high), shape, endpoint=True)
            found[tensor.name] = self._placed(torch.from_numpy(np.asarray(values)), name, at)
        return found

    def like(self, tensor: torch.Tensor, number: int, place: int | None = None) -> torch.Tensor:
        """Other random numbers for a tensor, such as a gradient that comes in.

        `number` tells two apart; it lies in memory as the tensor at `place`, or at `number`.
        """
        numbers = np.random.default_rng((self.seed, number))
        dtype = str(tensor.dtype).removeprefix("torch.")
        place = number if place is None else place
        return self._floats(tuple(tensor.shape), dtype, numbers, place)

    def dtype_of(self, tensor: Tensor) -> str:
        """The type of an input in this call."""
        if tensor.dtype.is_generic:
            return self.dtype
        if tensor.dtype is DType.INT:
            return "int32" if self.seed % 2 else "int64"
        return _DECLARED[tensor.dtype]

    def _floats(
        self, shape: tuple[int, ...], dtype: str, numbers: np.random.Generator, at: int
    ) -> torch.Tensor:
        values = numbers.uniform(0.5, 2, shape) if self.positive else numbers.normal(size=shape)
        return self._placed(torch.from_numpy(np.asarray(values)), dtype, at)

    def _placed(self, values: torch.Tensor, dtype: str, at: int) -> torch.Tensor:
        tensor = values.to(dtype=getattr(torch, dtype), device=self.device)
        return arranged(tensor, self.layouts[at]) if at < len(self.layouts) else tensor


def is_floating(dtype: str) -> bool:
    """Whether a type of torch, by its name, is one of real numbers."""
    return dtype in FLOATING


def arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Tensors for the references: floats in double precision, integers as they are."""
    return {name: array(tensor) for name, tensor in tensors.items()}


def array(tensor: torch.Tensor) -> Array:
    """One tensor for the references."""
    tensor = tensor.detach().cpu()
    found: Array = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    return np.array(found, order="C")


def double(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """One tensor of floats for the references."""
    return np.asarray(array(tensor), np.float64)


def _range(op: Op, tensor: Tensor, case: Case) -> tuple[int, int]:
    """The least and greatest value of an integer input.

    Where it is an index without a boundary mode it stays inside of the dims it indexes, with a mode
    it also leaves them.
    """
    symbols = case.symbols(op)
    low, high = -4, 4
    for access in _accesses(op):
        extents = op.extents(access.tensor)
        for index, extent in zip(access.indices, extents, strict=True):
            loaded = list(index.value.loads)
            if tensor.name not in [atom.name for atom in loaded]:
                continue
            size = extent.evaluate(symbols)
            if index.boundary is Boundary.NONE:
                return 0, size - 1
            low, high = min(low, -size - 1), max(high, size + 1)
            if index.boundary in (Boundary.REFLECT, Boundary.SYMMETRIC):
                return 0, size - 1
    return low, high


def _accesses(op: Op) -> list[Access]:
    return [access for each in op.statements for access in (each.target, *reads(each.body))]
