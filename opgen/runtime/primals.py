"""What is kept of a call for its derivatives, and what these read: the point of differentiation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import checks, compat
from opgen.runtime.description import GENERIC, Shape
from opgen.runtime.evaluation import default_tensor
from opgen.runtime.record import record
from opgen.runtime.schema import Number

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation


# ---------------------------------------------------------------------------- what is kept
@record
class Kind:
    """What a tensor looks like."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> Kind:
        """What this one looks like."""
        return Kind(tensor.shape, tensor.dtype, tensor.device)


def save(ctx: Any, operation: Operation, arguments: Sequence[Any], result: Any) -> None:
    """Leave on `ctx` what `Point.of` reads in a derivative of the call."""
    outputs = (result,) if isinstance(result, torch.Tensor) else result
    count = len(operation.inputs)
    tensors = arguments[:count]
    ctx.operation, ctx.numbers = operation, arguments[count:]
    ctx.shapes = tuple(None if tensor is None else tensor.shape for tensor in tensors)
    ctx.outputs = tuple(map(Kind.of, outputs))
    ctx.set_materialize_grads(False)
    forward_mode = (
        compat.transforms_are_active()
        or compat.dual_level_is_active()
        or bool(compat.dispatch_modes())
    )
    ctx.kept = needed(operation, ctx.needs_input_grad, forward_mode=forward_mode)
    kept = [tensors[at] for at in ctx.kept]
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)
    ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))


def needed(
    operation: Operation, needs_input_grad: Sequence[bool], *, forward_mode: bool
) -> tuple[int, ...]:
    """The inputs that derivatives read; all of them where a derivative is not known yet.

    Where somebody looks at what is kept, derivatives are found first: checkpointing runs a call
    again, after backward passes of other calls, and wants to see as many tensors as before.
    """
    key = _key(operation, needs_input_grad, forward_mode)
    found = _KEPT.get(key)
    if found is None:
        names = _names_needed(operation, needs_input_grad, forward_mode)
        if names is None and compat.saved_tensors_are_hooked():
            with contextlib.suppress(RuntimeError):  # nothing can be derived, now or later
                _derive(operation, needs_input_grad)
            names = _names_needed(operation, needs_input_grad, forward_mode)
        every = range(len(operation.inputs))
        if names is None:
            return tuple(every)
        found = tuple(at for at in every if operation.inputs[at].name in names)
        _KEPT[key] = found
    return found


def _derive(operation: Operation, needs_input_grad: Sequence[bool]) -> None:
    for declared, wanted in zip(operation.inputs, needs_input_grad, strict=False):
        if wanted and operation.is_differentiable(declared):
            operation.gradient(declared.name)


def is_known(operation: Operation, needs_input_grad: Sequence[bool]) -> bool:
    """Whether what `needed` says of backward passes is final."""
    return _key(operation, needs_input_grad, forward_mode=False) in _KEPT


_Key = tuple[str, tuple[bool, ...], bool]


def _key(operation: Operation, needs_input_grad: Sequence[bool], forward_mode: bool) -> _Key:
    """Which derivatives of which op; attributes, which may follow the inputs, have none."""
    wanted = tuple(needs_input_grad[: len(operation.inputs)])
    return operation.registered_name, wanted, forward_mode


_KEPT: dict[_Key, tuple[int, ...]] = {}
"""Inputs that are kept, by op. Modules may share an op of which they know different derivatives;
checkpointing wants the same tensors kept however the op is reached."""


def _names_needed(
    operation: Operation, needs_input_grad: Sequence[bool], forward_mode: bool
) -> set[str] | None:
    """The inputs that derivatives read; None where a derivative is not known yet."""
    needed: set[str] = set()
    for declared, wanted in zip(operation.inputs, needs_input_grad, strict=False):
        if operation.is_differentiable(declared) and (wanted or forward_mode):
            link = operation.family.known_gradient(operation, declared.name)
            if link is None:
                return None
            needed.update(link.tensors)
    return needed


@record
class Point:
    """Where an op is differentiated: its inputs by name, as far as they were kept."""

    operation: Operation
    numbers: Sequence[Number]
    shapes: Sequence[Shape | None]
    tensors: Mapping[str, torch.Tensor | None]
    outputs: Sequence[Kind]

    @staticmethod
    def of(ctx: Any, seen: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> Point:
        """The point that a forward call left; `seen` is applied to the tensors it kept."""
        operation: Operation = ctx.operation
        tensors = {
            operation.inputs[at].name: None if tensor is None else seen(tensor)
            for at, tensor in zip(ctx.kept, ctx.saved_tensors, strict=True)
        }
        return Point(operation, ctx.numbers, ctx.shapes, tensors, ctx.outputs)


# ---------------------------------------------------------------------------- what is read
def with_zeros(
    point: Point, cotangents: Sequence[torch.Tensor | None]
) -> Callable[[str], torch.Tensor]:
    """Cotangents by the name of their output; zero where the loss does not depend on it."""
    names = [output.name for output in point.operation.outputs]

    def cotangent(name: str) -> torch.Tensor:
        at = names.index(name)
        given = cotangents[at] if cotangents else None
        return zeros(point.outputs[at]) if given is None else given

    return cotangent


def zeros(kind: Kind) -> torch.Tensor:
    """Zeros that take no memory."""
    return torch.zeros((), dtype=kind.dtype, device=kind.device).expand(kind.shape)


COTANGENT = "grad "
"""Before the name of an output, where the cotangent of that is meant."""


def tensor_of(
    point: Point,
    optional: Mapping[str, Shape],
    cotangent: Callable[[str], torch.Tensor],
    source: str,
) -> torch.Tensor:
    """What a derived op reads: a cotangent, or an input of the op that is differentiated."""
    if is_cotangent(source):
        return cotangent(source.removeprefix(COTANGENT))
    tensor = point.tensors[source]
    return _default(point, optional, source) if tensor is None else tensor


def _default(point: Point, optional: Mapping[str, Shape], name: str) -> torch.Tensor:
    """What stands for an input that was left out."""
    operation = point.operation
    declared = next(each for each in operation.inputs if each.name == name)
    if declared.dtype in GENERIC:
        same = zip(operation.outputs, point.outputs, strict=True)
        dtype = next(kind.dtype for output, kind in same if output.dtype in GENERIC)
    else:
        dtype = checks.TORCH_DTYPES["i64" if declared.dtype == "int" else declared.dtype]
    return default_tensor(declared, optional[name], dtype, point.outputs[0].device)


def is_cotangent(source: str) -> bool:
    """Whether a gradient reads the cotangent of an output there."""
    return source.startswith(COTANGENT)


def shape_of(point: Point, optional: Mapping[str, Shape], source: str) -> Shape:
    """The shape of what a gradient reads."""
    operation = point.operation
    if is_cotangent(source):
        names = [COTANGENT + each.name for each in operation.outputs]
        return point.outputs[names.index(source)].shape
    names = [each.name for each in operation.inputs]
    shape = point.shapes[names.index(source)]
    return optional[source] if shape is None else shape
