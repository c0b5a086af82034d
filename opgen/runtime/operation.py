"""An op of a generated module: its description, and what happens when it is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import (
    checks,
    compat,
    eager,
    library_call,
    lookup,
    lookup_autograd,
    lookup_caller,
    lookup_cuda_casts,
    lookup_kept,
    lookup_library,
    registration,
    sharding,
    stages,
    unrounded,
)
from opgen.runtime.description import (
    GENERIC,
    KEEPING,
    STAGE,
    Attribute,
    Convolution,
    CudaKernels,
    Fault,
    Gradient,
    Input,
    MatrixProduct,
    Output,
    Shape,
    Shapes,
    Sources,
    Special,
    Temporary,
)
from opgen.runtime.evaluation import Compiled, flat_shape
from opgen.runtime.record import record
from opgen.runtime.schema import Number, Numbers, flatten, registered_name, unflatten
from opgen.runtime.special import Chosen, Values

if TYPE_CHECKING:
    from opgen.runtime.family import Family
    from opgen.runtime.stages import Stages


@dataclass(frozen=True, eq=False)
class Operation:
    """One op, forward or derived.

    `path` says how it was derived: the op of the spec, then the input of each differentiation.
    `parallel` and `linear` are what is known about its slices and sums, see `description`. No index
    exceeds `reach`, a sum of products: how often each counts, and the integers of `Shapes` that it
    is of, each with its magnitude, which is at least 1.
    """

    name: str
    digest: str
    path: tuple[str, ...]
    family: Family
    inputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Output, ...]
    temporaries: tuple[Temporary, ...]
    shapes: Callable[..., Shapes]
    reach: tuple[tuple[int, tuple[str, ...]], ...]
    eager: Callable[[eager.Call], None]
    sources: Sources
    cuda: CudaKernels
    floating: bool  # whether undeclared tensors must have a floating type
    faults: tuple[Fault, ...] = ()
    gradients: Mapping[str, Gradient] = field(default_factory=dict)
    parallel: tuple[Mapping[str, int], ...] = ()
    linear: tuple[tuple[str, ...], ...] = ()
    special: Special | None = None  # None where no kernels can be made
    convolution: Convolution | None = None
    product: MatrixProduct | None = None
    apart: tuple[int, ...] = ()  # statements that by themselves are products, see `stages`
    totals: tuple[str, ...] = ()  # temporaries that may be kept for gradients, see `lookup_kept`
    positions: tuple[str, ...] = ()  # positions of extremes that may be kept,
    telling: tuple[str, ...] = ()  # and outputs that tell these
    # Sizes of dims that may be one, and where tensors have the first of them, see `joined`.
    joined: tuple[tuple[str, ...], Mapping[str, int]] | None = None
    compiled: dict[tuple[tuple[str, ...], Values], Compiled] = field(default_factory=dict)
    chosen: Chosen = field(default_factory=dict)
    small: set[Values] = field(default_factory=set)
    admitted: set[Values] = field(default_factory=set)
    special_cuda: dict[Values, CudaKernels] = field(default_factory=dict)
    unrounded_cuda: dict[tuple[Values, tuple[str, ...]], CudaKernels | None] = field(
        default_factory=dict
    )
    staged: dict[Any, Stages | None] = field(default_factory=dict)
    _dispatch: list[_Dispatch] = field(default_factory=list)

    def register(self) -> None:
        """Make the op known to the dispatcher of PyTorch."""
        self._dispatch[:] = [_Dispatch.of(self)]
        if self.is_public:
            # Written once here: a compiler that traces a call must not meet it. Derived ops are
            # called by others of their family, and a module may hold dozens of them.
            assert callable(self.call)

    @functools.cached_property
    def registered_name(self) -> str:
        """The name of the op in the dispatcher."""
        return registered_name(self)

    @property
    def overload(self) -> Callable[..., Any]:
        """The op of the dispatcher: tensors, then attributes as single numbers."""
        return self._dispatch[0].overload

    @property
    def may_be_asked_of_library(self) -> bool:
        """Whether it is of a form that PyTorch's own library computes."""
        return self.convolution is not None or self.product is not None

    @property
    def is_public(self) -> bool:
        """Whether it is an op of the spec, not a derived one."""
        return len(self.path) == 1

    @property
    def may_keep(self) -> bool:
        """Whether there may be more than inputs to be kept for its gradients."""
        has_some = bool(self.apart or self.totals or self.positions or self.telling)
        return has_some and self.is_public and len(self.flowing) == 1

    @functools.cached_property
    def flowing(self) -> tuple[int, ...]:
        """The positions of the outputs that have a derivative."""
        outputs = enumerate(self.outputs)
        return tuple(at for at, each in outputs if each.dtype in (*GENERIC, *checks.FLOATING))

    @property
    def is_stage(self) -> bool:
        """Whether it is a part of another op, see `stages`."""
        return self.path[-1].startswith(STAGE)

    @property
    def is_keeping(self) -> bool:
        """Whether it is an op of the spec that gives some temporaries as well."""
        return self.path[-1].startswith(KEEPING)

    # ------------------------------------------------------------ calls
    @functools.cached_property
    def call(self) -> Callable[..., Any]:
        """Check and compute: a function of tensors and then attributes, in declared order.

        Gives one tensor, or a tuple where the op has several outputs.
        """
        return lookup_caller.public_caller(self, self._dispatch[0].ways)

    @property
    def derived_call(self) -> Callable[[Sequence[Any], Sequence[Number]], Any]:
        """The same for tensors and single numbers that are known to fit."""
        return self._dispatch[0].derived

    @property
    def twin(self) -> lookup.Twin | None:
        """What runs calls of it that were seen before; None where there is nothing."""
        return self._dispatch[0].ways.twin()

    def apply(
        self, tensors: Sequence[torch.Tensor | None], numbers: Sequence[Number]
    ) -> tuple[torch.Tensor, ...]:
        """The outputs for checked attributes, as single numbers, with everything recorded."""
        result = self.derived_call(tensors, numbers)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    # ------------------------------------------------------------ derivatives
    def gradient(self, name: str) -> tuple[Operation, Gradient]:
        """The op that computes the gradient of an input, and how it is called."""
        return self.family.gradient(self, name)

    def joint_gradient(self, names: Sequence[str]) -> tuple[Operation, Gradient] | None:
        """The op that computes several gradients at once, an output for each, if there is one."""
        return self.family.joint_gradient(self, names)

    def siblings(self, names: Sequence[str]) -> tuple[Operation, Gradient] | None:
        """The same op where one CUDA kernel may compute several gradients."""
        return self.family.siblings(self, names)

    def partners(self, names: Sequence[str]) -> tuple[Operation, Gradient] | None:
        """The same op where it need not share any work."""
        return self.family.partners(self, names)

    def with_leading_dims(self, count: int) -> Operation | None:
        """The op with so many dims in place of its leading ones, if that can be had."""
        return self.family.with_leading_dims(self, count)

    def is_differentiable(self, declared: Input) -> bool:
        """Whether an input has a gradient."""
        return not declared.nograd and declared.dtype in (*GENERIC, *checks.FLOATING)

    def shapes_of(self, shapes: Sequence[Shape | None], numbers: Sequence[Number]) -> Shapes:
        """What the shapes of the inputs of a call imply, batch dims made one."""
        flat = [
            None if shape is None else flat_shape(declared, shape)
            for declared, shape in zip(self.inputs, shapes, strict=True)
        ]
        return self.shapes(*flat, *unflatten(self.attributes, numbers))

    def symbols(
        self, shapes: Sequence[Shape | None], numbers: Sequence[Number]
    ) -> tuple[dict[str, Numbers], dict[str, Shape]]:
        """Sizes and attributes of a call by name, and the shapes of optional inputs."""
        values = unflatten(self.attributes, numbers)
        leading: Shape = ()
        for declared, shape in zip(self.inputs, shapes, strict=True):
            if shape is not None and declared.batched:
                leading = tuple(shape[: len(shape) - len(declared.dims) + 1])
        found = self.shapes_of(shapes, numbers)
        known: dict[str, Numbers] = dict(found.integers)
        known |= {each.name: value for each, value in zip(self.attributes, values, strict=True)}
        optional = {
            each.name: (*leading, *shape[1:]) if each.batched else shape
            for each in self.inputs
            if (shape := found.optional.get(each.name)) is not None
        }
        return known, optional


@record
class _Dispatch:
    """The op of the dispatcher, the ways to run it, and what calls it for derivatives."""

    overload: Callable[..., Any]
    ways: lookup_caller.Ways
    derived: Callable[..., Any]

    @staticmethod
    def of(operation: Operation) -> _Dispatch:
        """Register an op."""
        overload, name = registration.register(operation), operation.registered_name
        inputs, count = operation.inputs, len(operation.inputs)

        def check(*arguments: Any) -> tuple[Number, ...]:
            if not torch.compiler.is_compiling():
                checks.tensors(operation.name, inputs, arguments[:count])
                sharding.register(operation)
            values = [
                checks.attribute_value(operation.name, attribute, value)
                for attribute, value in zip(operation.attributes, arguments[count:], strict=True)
            ]
            return tuple(flatten(values))

        def in_full(*arguments: Any) -> Any:
            numbers = check(*arguments)
            return overload(*arguments[:count], *numbers)

        def twin() -> lookup.Twin | None:
            return registration.twin(name)

        def run(*arguments: Any) -> Any:
            found = twin()
            if found is not None:
                result = found.call(*arguments)
                if lookup_library.is_answered(result):
                    return result
            checks.tensors(operation.name, inputs, arguments[:count])
            with compat.below_autograd():
                return overload(*arguments)

        library = stages.caller(operation) or library_call.caller(operation)
        keeps = lookup_kept.Keeps.of(operation) if operation.may_keep else None
        record = lookup_autograd.recorded(operation, run, library, keeps)
        rounding = unrounded.caller(operation) if operation.is_public else None
        on_gpu = lookup_cuda_casts.caller(operation) if operation.is_public else None
        ways = lookup_caller.Ways(
            *(check, in_full, overload, record, twin, library, rounding, on_gpu),
            keeps=keeps is not None,
        )
        return _Dispatch(overload, ways, lookup_caller.derived_caller(ways, operation.is_public))
