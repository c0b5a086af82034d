"""Ops made known to PyTorch: one op of the dispatcher for each, with a kernel for every need.

The name ends in a hash of what the op computes, so two modules generated from one spec share an
op, and programs saved with it find it again. The kernels look up the operation in every call: the
module that was imported last serves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from opgen.runtime import autocast, autograd, lookup, lookup_caller, lookup_library, namespace, vmap
from opgen.runtime.evaluation import HandsOn, empty_outputs, prepare
from opgen.runtime.record import record
from opgen.runtime.schema import NAMESPACE, schema, unflatten
from opgen.runtime.stages import evaluate

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

_LIBRARY = cast(Any, torch.library.Library)(NAMESPACE, "FRAGMENT")
_OPERATIONS: dict[str, Operation] = {}
_NAMESPACE = namespace.install(NAMESPACE, _OPERATIONS)
_TWINS: dict[str, lookup.Twin | None] = {}


def register(operation: Operation) -> Callable[..., Any]:
    """The op of the dispatcher that runs an operation; defined when it is asked for first."""
    name = operation.registered_name
    is_known = name in _OPERATIONS
    _OPERATIONS[name] = operation
    # Another copy of this runtime in the same process may have defined the same op.
    if not is_known and not _NAMESPACE.has(name):
        _define(name, operation)
    overload: Callable[..., Any] = getattr(_NAMESPACE, name).default
    return overload


def twin(name: str) -> lookup.Twin | None:
    """The twin of an op, made when it is asked for first; None where there is none."""
    if name not in _TWINS:
        if not lookup_caller.is_plain():
            return None
        operation = _OPERATIONS.get(name)
        if operation is None:
            return None  # it belongs to another copy of this runtime
        with lookup_library.LOCK:
            if name not in _TWINS:
                _TWINS[name] = lookup.twin(operation, name, operation.is_public)
    return _TWINS[name]


def _define(name: str, operation: Operation) -> None:
    _LIBRARY.define(f"{name}{schema(operation)}", tags=(torch.Tag.pt2_compliant_tag,))
    overload = getattr(_NAMESPACE, name).default
    qualified = f"{NAMESPACE}::{name}"

    def current() -> Operation:
        return _OPERATIONS[name]

    def looked_up(*arguments: Any) -> Any:
        if not lookup_library.is_suspended() and lookup_library.build_meanwhile():
            tensors, values = _split(current(), arguments)
            return _result(evaluate(current(), tensors, values, _Later(name)))
        seen = None if lookup_library.is_suspended() else twin(name)
        if seen is not None:
            result = seen.call(*arguments)
            if lookup_library.is_answered(result):
                return result
        tensors, values = _split(current(), arguments)
        return _result(evaluate(current(), tensors, values, seen))

    def kernel(*arguments: Any) -> Any:
        tensors, values = _split(current(), arguments)
        return _result(evaluate(current(), tensors, values))

    def shapes_only(*arguments: Any) -> Any:
        tensors, values = _split(current(), arguments)
        return _result(empty_outputs(prepare(current(), tensors, values)))

    _LIBRARY.impl(name, looked_up, "CPU")
    _LIBRARY.impl(name, looked_up, "CUDA")
    if all(declared.default is not None for declared in operation.inputs):
        # A call without tensors has no device to be dispatched on.
        _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, shapes_only, lib=_LIBRARY)
    _LIBRARY.impl(name, autograd.kernel(current, overload), "Autograd")
    torch.library.register_vmap(qualified, vmap.rule(current, overload), lib=_LIBRARY)
    if operation.is_public:
        # Tensors of derived ops were cast on the way forward.
        for device_type in ("cpu", "cuda"):
            kernel_ = autocast.kernel(current, overload, device_type)
            _LIBRARY.impl(name, kernel_, f"Autocast{device_type.upper()}")


@record
class _Later(HandsOn):
    """The twin of an op, made when there is something to enter."""

    name: str

    def known(self) -> lookup.Twin | None:
        """See `HandsOn`."""
        return twin(self.name)


def _split(operation: Operation, arguments: Sequence[Any]) -> tuple[Any, Any]:
    """Tensors and the values of attributes."""
    count = len(operation.inputs)
    return arguments[:count], unflatten(operation.attributes, arguments[count:])


def _result(outputs: tuple[torch.Tensor, ...]) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs
