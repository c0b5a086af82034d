"""Ops under `torch.vmap`.

The mapped dim becomes a batch dim where the op has them, is folded into a dim along which the op
works slice by slice where there is one, and else is looped over, which is right for every op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from opgen.runtime.record import record

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

Dims = Sequence[int | None]


def rule(current: Callable[[], Operation], overload: Callable[..., Any]) -> Callable[..., Any]:
    """The function that computes a mapped call: outputs, and the mapped dim of each."""

    def mapped(info: Any, in_dims: Dims, *arguments: Any) -> Any:
        operation = current()
        call = _Mapped(operation, overload, info.batch_size, tuple(in_dims), arguments)
        if info.batch_size == 0:
            return call.nothing()
        for axes in operation.parallel:
            if call.fits(axes):
                return call.folded(axes)
        return call.looped()

    return mapped


@record
class _Mapped:
    """One mapped call."""

    operation: Operation
    overload: Callable[..., Any]
    size: int
    dims: tuple[int | None, ...]
    arguments: tuple[Any, ...]

    def fits(self, axes: Mapping[str, int]) -> bool:
        """Whether all mapped tensors have the dim along which the op works slice by slice."""
        return all(
            dim is None or declared.name in axes
            for declared, dim in zip(self.operation.inputs, self.dims, strict=False)
        )

    def folded(self, axes: Mapping[str, int]) -> Any:
        """One call, the mapped dim folded into a parallel one."""
        given = list(self.arguments)
        for at, declared in enumerate(self.operation.inputs):
            tensor, axis = given[at], axes.get(declared.name)
            if tensor is not None and axis is not None:
                given[at] = self._fold(at, declared.batched, axis)
        result = self.overload(*given)
        outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        unfolded = []
        for output, about in zip(outputs, self.operation.outputs, strict=True):
            axis = axes[about.name]
            if axis > 0 or not about.batched:
                axis += self._batch_dims() - 1 if about.batched else 0
                output = output.unflatten(axis, (self.size, -1)).movedim(axis, 0)
            unfolded.append(output)
        return _mapped_result(unfolded)

    def _fold(self, at: int, batched: bool, axis: int) -> torch.Tensor:
        """An input with its mapped dim folded into an axis, counted with one batch dim."""
        tensor, dim = self.arguments[at], self.dims[at]
        if dim is None:
            tensor = tensor.unsqueeze(0).expand(self.size, *tensor.shape)
            dim = 0
        tensor = tensor.movedim(dim, 0)
        if batched and axis == 0:
            return cast(torch.Tensor, tensor)  # one more batch dim
        axis += self._batch_dims() - 1 if batched else 0
        return cast(torch.Tensor, tensor.movedim(0, axis).flatten(axis, axis + 1))

    def _batch_dims(self) -> int:
        """How many dims the leading `...` stands for in one slice."""
        for declared, given, dim in zip(
            self.operation.inputs, self.arguments, self.dims, strict=False
        ):
            if declared.batched and given is not None:
                rank: int = given.dim() - (dim is not None)
                return rank - len(declared.dims) + 1
        return 0

    def looped(self) -> Any:
        """One call for each slice."""
        results = []
        for at in range(self.size):
            result = self.overload(*self._slice(at))
            results.append((result,) if isinstance(result, torch.Tensor) else tuple(result))
        return _mapped_result([torch.stack(each) for each in zip(*results, strict=True)])

    def _slice(self, at: int) -> list[Any]:
        return [
            given if dim is None else given.select(dim, at)
            for given, dim in zip(self.arguments, self.dims, strict=True)
        ]

    def nothing(self) -> Any:
        """The result for no slices: only shapes matter, as for one slice."""
        given = [
            torch.empty_like(each, device="meta") if isinstance(each, torch.Tensor) else each
            for each in self.arguments
        ]
        for at, dim in enumerate(self.dims):
            if dim is not None:
                shape = list(given[at].shape)
                del shape[dim]
                given[at] = given[at].new_empty(shape)
        result = self.overload(*given)
        outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        like = next(each for each in self.arguments if isinstance(each, torch.Tensor))
        return _mapped_result(
            [torch.empty((0, *o.shape), dtype=o.dtype, device=like.device) for o in outputs]
        )


def _mapped_result(outputs: Sequence[torch.Tensor]) -> Any:
    """Outputs mapped along their first dim."""
    if len(outputs) == 1:
        return outputs[0], 0
    return tuple(outputs), (0,) * len(outputs)
