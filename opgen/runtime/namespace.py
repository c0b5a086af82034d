"""`torch.ops.opgen`, where an op that is not registered yet is derived when it is asked for.

Compilers keep graphs on disk, and files of exported programs hold ops by name. Both may name a
derivative that this process had no use for so far. Its name tells from which op it was derived,
and by which inputs; if the hash at the end is right too, it is the op that was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from opgen.runtime import compat

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

_Base: Any = compat.find("torch._ops", "_OpNamespace")


class Namespace(_Base):  # type: ignore[misc]
    """The ops of one namespace of the dispatcher."""

    __module__ = _Base.__module__  # part of the names that exported programs hold

    def __init__(self, name: str, operations: Mapping[str, Operation]) -> None:
        super().__init__(name)
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or not self._derive(name):
                raise
            return super().__getattr__(name)

    def has(self, name: str) -> bool:
        """Whether an op is registered; none is derived."""
        try:
            super().__getattr__(name)
        except AttributeError:
            return False
        return True

    def _derive(self, name: str) -> bool:
        """Derive the op of that name; False if none of this process leads to it."""
        if name in self._operations:
            return False  # it is being defined, and PyTorch asks whether it is there already
        wanted, _, _ = name.rpartition("_")
        for operation in list(self._operations.values()):
            if operation.is_public and _derive_along(operation, wanted):
                break
        return name in self._operations


def _derive_along(operation: Operation, wanted: str) -> bool:
    """Derive gradients from an op to the one with that readable name."""
    if operation.name == wanted:
        return True
    for declared in operation.inputs:
        start = f"{operation.name}_grad_{declared.name}"
        leads = wanted == start or wanted.startswith(f"{start}_")
        if leads and operation.is_differentiable(declared):
            derived, _ = operation.gradient(declared.name)
            # A gradient that is an op by another name was registered with that op.
            if derived.name == start and _derive_along(derived, wanted):
                return True
    return False


def install(name: str, operations: Mapping[str, Operation]) -> Namespace:
    """Put a namespace in the place of the plain one."""
    namespace = Namespace(name, operations)
    cast(Callable[..., None], setattr)(torch.ops, name, namespace)
    return namespace
