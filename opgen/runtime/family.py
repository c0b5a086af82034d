"""The ops of one generated module, and the way to derivatives that it does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from opgen.runtime import generated
from opgen.runtime.description import Gradient
from opgen.runtime.operation import Operation


@dataclass(eq=False)
class Family:
    """Ops by name. `spec` is what they were generated from."""

    spec: str
    spec_name: str
    operations: dict[str, Operation] = field(default_factory=dict)
    _derived: dict[tuple[str, ...], tuple[Operation, Gradient]] = field(default_factory=dict)

    def add(self, operation: Operation) -> Operation:
        """Make an op known to PyTorch, and to the ops whose gradient it computes."""
        self.operations[operation.name] = operation
        operation.register()
        return operation

    def known_gradient(self, operation: Operation, name: str) -> Gradient | None:
        """How the op is called that computes the gradient of an input, if it is at hand."""
        link = operation.gradients.get(name)
        if link is None and (*operation.path, name) in self._derived:
            _, link = self._derived[*operation.path, name]
        return link

    def gradient(self, operation: Operation, name: str) -> tuple[Operation, Gradient]:
        """The op that computes the gradient of an input of `operation`, and how it is called."""
        link = operation.gradients.get(name)
        if link is not None:
            return self.operations[link.op], link
        path = (*operation.path, name)
        if path not in self._derived:
            self._derived[path] = self._derive(operation, path)
        return self._derived[path]

    def _derive(self, operation: Operation, path: tuple[str, ...]) -> tuple[Operation, Gradient]:
        """Derive an op with opgen itself, which a module does not need for anything else."""
        try:
            text = generated.source("derived_source", self.spec, self.spec_name, path)
        except ImportError as error:
            raise RuntimeError(
                f"{operation.name}: its gradient with respect to '{path[-1]}' is not part of the "
                f"generated module, and opgen, which would derive it, cannot be imported ({error})"
            ) from error
        module = generated.load(text, self.spec_name)
        link = Gradient(*module.LINK)
        return module.FAMILY.operations[link.op], link
