"""Rules for `DTensor`, from what the generator proved about an op.

A dim along which the op works slice by slice may be spread over the devices of a mesh, if its size
divides evenly: what is uneven is gathered first. Where the op is linear, sums that are still to be
made pass through it. Everything else is replicated.

The rules are given to PyTorch when a `DTensor` first meets an op: a program that uses none of
`torch.distributed` does not load it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from opgen.runtime import compat
from opgen.runtime.description import Input, Output

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

Placements = list[Any]
Rule = tuple[Placements, Placements]


_REGISTERED: set[str] = set()


def register(operation: Operation) -> None:
    """Tell PyTorch how calls on DTensors may be spread, if this process knows DTensors."""
    if operation.registered_name in _REGISTERED or "torch.distributed.tensor" not in sys.modules:
        return
    _REGISTERED.add(operation.registered_name)
    overload = operation.overload
    experimental = compat.find("torch.distributed.tensor.experimental", "register_sharding")
    experimental(overload)(lambda *arguments: _rules(operation, arguments))
    # Left alone, PyTorch would take calls that differ in a SymInt for the same call.
    propagator = compat.find(
        "torch.distributed.tensor", "DTensor._op_dispatcher.sharding_propagator"
    )
    info = compat.find("torch.distributed.tensor._op_schema", "RuntimeSchemaInfo")
    propagator.op_to_schema_info[overload] = info(len(operation.inputs), needs_pytree=True)


def _rules(operation: Operation, arguments: Sequence[Any]) -> list[Rule]:
    """Acceptable placements of outputs and inputs on one dim of a mesh."""
    tensor = cast(Any, torch.distributed).tensor
    specs = dict(zip((each.name for each in operation.inputs), arguments, strict=False))
    rest: Placements = [None] * (len(arguments) - len(operation.inputs))

    def rule(placement: Callable[[str], Any]) -> Rule:
        outputs = [placement(each.name) for each in operation.outputs]
        inputs = [
            None if specs[each.name] is None else placement(each.name) for each in operation.inputs
        ]
        return outputs, [*inputs, *rest]

    found = [rule(lambda _: tensor.Replicate())]
    for axes in operation.parallel:
        sharded = _axes(operation, axes, specs)
        if sharded is not None:
            found.append(rule(_sharded(sharded)))
    for names in operation.linear:
        if _is_linear(operation, names, specs):
            found.append(rule(_partial(operation, names)))
    return found


def _sharded(axes: Mapping[str, int]) -> Callable[[str], Any]:
    tensor = cast(Any, torch.distributed).tensor
    return lambda name: tensor.Shard(axes[name]) if name in axes else tensor.Replicate()


def _partial(operation: Operation, names: Sequence[str]) -> Callable[[str], Any]:
    tensor = cast(Any, torch.distributed).tensor
    summed = {*names, *(each.name for each in operation.outputs)}
    return lambda name: tensor.Partial() if name in summed else tensor.Replicate()


def _is_linear(operation: Operation, names: Sequence[str], specs: Mapping[str, Any]) -> bool:
    """Whether sums pass through this call; an absent input counts unless it stands for zeros."""
    for declared in operation.inputs:
        if declared.name in names and specs[declared.name] is None and declared.default != 0:
            return False
    return any(specs[name] is not None for name in names)


def _axes(
    operation: Operation, axes: Mapping[str, int], specs: Mapping[str, Any]
) -> dict[str, int] | None:
    """The dim of every tensor that is spread; None where it cannot be cut evenly."""
    batch_dims = 0
    for declared in operation.inputs:
        spec = specs[declared.name]
        if declared.batched and spec is not None:
            batch_dims = len(spec.shape) - len(declared.dims) + 1
    found: dict[str, int] = {}
    tensors: tuple[Input | Output, ...] = (*operation.inputs, *operation.outputs)
    for each in tensors:
        axis = axes.get(each.name)
        if axis is None:
            continue
        if each.batched and axis == 0 and batch_dims == 0:
            return None  # no batch dim to cut
        found[each.name] = axis + (batch_dims - 1 if each.batched and axis > 0 else 0)
    for declared in operation.inputs:
        spec = specs[declared.name]
        if spec is not None and declared.name in found:
            size = spec.shape[found[declared.name]]
            # Every dim of the mesh may be asked for at once.
            if size == 0 or size % spec.mesh.size() != 0:
                return None
    return found
