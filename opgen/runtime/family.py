"""The ops of one generated module, and the way to derivatives that it does not hold."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from opgen.runtime import generated
from opgen.runtime.description import JOINT, Gradient
from opgen.runtime.lookup_library import LOCK
from opgen.runtime.operation import Operation

_Wanted = tuple[tuple[str, ...], tuple[bool, ...]]
"""The path to an op with several gradients, and which of those it is, see `derived_source`."""

_Key = tuple[tuple[str, ...], tuple[str, ...]]
"""The path to a gradient, and temporaries of the op before it."""

_Parts = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], bool]
"""The path to an op, the positions of statements that are apart, and whether the call is one in
bfloat16, see `stages_source`."""

_Stage = tuple[Operation, int | None, bool, bool]
"""A part of an op, the position of the statement if it is one that is apart, whether the result of
that has 32 bits, and whether it is one of 16 that the op before has, too."""


@dataclass(eq=False)
class Family:
    """Ops by name. `spec` is what they were generated from."""

    spec: str
    spec_name: str
    operations: dict[str, Operation] = field(default_factory=dict)
    _derived: dict[tuple[str, ...], tuple[Operation, Gradient]] = field(default_factory=dict)
    _together: dict[_Wanted, tuple[Operation, Gradient] | None] = field(default_factory=dict)
    _of_dims: dict[tuple[str, ...], Operation | None] = field(default_factory=dict)
    _keeping: dict[_Key, Operation | None] = field(default_factory=dict)
    _of_kept: dict[_Key, tuple[Operation, tuple[str, ...]] | None] = field(default_factory=dict)
    _stages: dict[_Parts, tuple[_Stage, ...]] = field(default_factory=dict)

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
            found = self._derive(operation, path)
            assert found is not None, "every single input has a gradient"
            self._derived[path] = found
        return self._derived[path]

    def joint_gradient(
        self, operation: Operation, names: Sequence[str]
    ) -> tuple[Operation, Gradient] | None:
        """The op that computes these gradients together; None where each has an op of its own.

        A module that was written with gradients holds those that are worth it. Others ask opgen;
        only for all inputs of an op of the spec, since there are so many other sets.
        """
        key = JOINT.join(names)
        link = operation.gradients.get(key)
        if link is not None:
            return self.operations[link.op], link
        every = [each.name for each in operation.inputs if operation.is_differentiable(each)]
        if operation.gradients or not operation.is_public or len(names) < 2 or names != every:
            return None
        return self._derived_together(operation, names)

    def siblings(
        self, operation: Operation, names: Sequence[str]
    ) -> tuple[Operation, Gradient] | None:
        """The op with these gradients as outputs, if one CUDA kernel may compute several of them.

        No module holds such ops, so without opgen each gradient has an op of its own.
        """
        if not operation.is_public or len(names) < 2:
            return None
        return self._derived_together(operation, names, True)

    def partners(
        self, operation: Operation, names: Sequence[str]
    ) -> tuple[Operation, Gradient] | None:
        """The op with these gradients as outputs, whether or not they share anything.

        None without opgen, as no module holds such ops.
        """
        return self._derived_together(operation, names, False, True)

    def with_leading_dims(self, operation: Operation, count: int) -> Operation | None:
        """The op with so many leading dims in place of one, as `opgen.on_demand.leading_source`
        makes it; None without opgen, and where it makes none."""
        first, *steps = operation.path
        path = (f"{first}...{count}", *steps)
        with LOCK:  # several threads may meet such a call first
            if path not in self._of_dims:
                self._of_dims[path] = self._made_of_dims(path)
            return self._of_dims[path]

    def stages(
        self,
        operation: Operation,
        apart: tuple[int, ...],
        own: tuple[int, ...],
        are_halves: bool,
    ) -> tuple[_Stage, ...]:
        """The ops that compute an op one after the other, as `opgen.on_demand.stages_source` makes
        them, or `halves_source`; none without opgen, or beside one that is older than these."""
        about = operation.path, apart, own
        key = (*about, are_halves)
        with LOCK:
            if key not in self._stages:
                self._stages[key] = ()
                maker = "halves_source" if are_halves else "stages_source"
                module = self._module(maker, *about)
                if module is not None:
                    ops, wide = module.FAMILY.operations, getattr(module, "WIDE", ())
                    again = getattr(module, "AGAIN", ())
                    self._stages[key] = tuple(
                        (ops[name], at, name in wide, name in again) for name, at in module.STAGES
                    )
            return self._stages[key]

    def keeping(self, operation: Operation, names: tuple[str, ...]) -> Operation | None:
        """The op that gives these temporaries beside its outputs, as
        `opgen.on_demand.keeping_source` makes it; None without opgen."""
        key = operation.path, names
        with LOCK:
            if key not in self._keeping:
                self._keeping[key] = None
                module = self._module("keeping_source", *key)
                if module is not None:
                    (self._keeping[key],) = module.FAMILY.operations.values()
            return self._keeping[key]

    def of_kept(
        self, path: tuple[str, ...], names: tuple[str, ...]
    ) -> tuple[Operation, tuple[str, ...]] | None:
        """The gradient at the end of a path as an op that reads some of these temporaries of the op
        before it, as `opgen.on_demand.kept_source` makes it, and which; None where it reads none of
        them, and without opgen."""
        key = path, names
        with LOCK:
            if key not in self._of_kept:
                self._of_kept[key] = None
                module = self._module("kept_source", *key)
                if module is not None and module.KEPT:
                    (found,) = module.FAMILY.operations.values()
                    self._of_kept[key] = found, module.KEPT
            return self._of_kept[key]

    def _module(self, maker: str, *about: object) -> types.ModuleType | None:
        """A module that a function of `opgen.on_demand` makes of the spec; None without opgen, or
        beside one that is older than this."""
        try:
            text = generated.source(maker, self.spec, self.spec_name, *about)
        except ImportError:
            return None
        return generated.load(text, self.spec_name)

    def _made_of_dims(self, path: tuple[str, ...]) -> Operation | None:
        try:
            text = generated.source("leading_source", self.spec, self.spec_name, path)
        except ImportError:
            return None
        if not text:
            return None
        (operation,) = generated.load(text, self.spec_name).FAMILY.operations.values()
        return cast("Operation", operation)

    def _derived_together(
        self, operation: Operation, names: Sequence[str], *which: bool
    ) -> tuple[Operation, Gradient] | None:
        """The op with these gradients as outputs; None without opgen, or where it makes none.

        `which` are the last arguments of `opgen.on_demand.derived_source`. Without opgen the
        gradients of single inputs, which are asked for next, say what is missing.
        """
        path = (*operation.path, JOINT.join(names))
        wanted = path, which
        if wanted not in self._together:
            try:
                self._together[wanted] = self._derive(operation, path, *which)
            except RuntimeError:
                self._together[wanted] = None
        return self._together[wanted]

    def _derive(
        self, operation: Operation, path: tuple[str, ...], *which: bool
    ) -> tuple[Operation, Gradient] | None:
        """Derive an op with opgen itself, which a module does not need for anything else."""
        try:
            text = generated.source("derived_source", self.spec, self.spec_name, path, *which)
        except ImportError as error:
            raise RuntimeError(
                f"{operation.name}: its gradient with respect to '{path[-1]}' is not part of the "
                f"generated module, and opgen, which would derive it, cannot be imported ({error})"
            ) from error
        module = generated.load(text, self.spec_name)
        if module.LINK is None:
            return None
        link = Gradient(*module.LINK)
        return module.FAMILY.operations[link.op], link
