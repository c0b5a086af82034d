"""An op of a generated module at run time: arguments to tensors to kernels, and its gradients."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from opgen.runtime import build, checks, cuda, eager, prelude
from opgen.runtime.description import (
    Attribute,
    Fault,
    Gradient,
    Input,
    Launch,
    Output,
    Shapes,
    Temporary,
)

AttributeValue = int | float | bool | str | tuple[int, ...] | None
Numbers = int | float | tuple[int, ...]
ShapeFunction = Callable[..., Shapes]


@dataclass(frozen=True, slots=True)
class Sources:
    """The generated kernels: C with its entry function, and CUDA."""

    c: str
    entry: str
    cuda: str


@dataclass(eq=False)
class Family:
    """The ops of one generated module, and the way to derivatives that it does not hold."""

    spec: str
    spec_name: str
    operations: dict[str, Operation] = field(default_factory=dict)
    _derived: dict[tuple[str, ...], tuple[Operation, Gradient]] = field(default_factory=dict)

    def add(self, operation: Operation) -> Operation:
        """Make an op known to the ops whose gradient it computes."""
        self.operations[operation.name] = operation
        return operation

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
            compiler = importlib.import_module("opgen.compiler")
        except ImportError as error:
            raise RuntimeError(
                f"{operation.name}: its gradient with respect to '{path[-1]}' is not part of the "
                f"generated module, and opgen, which would derive it, cannot be imported ({error})"
            ) from error
        derived: tuple[Operation, Gradient] = compiler.derived(self.spec, self.spec_name, path)
        return derived


@dataclass(frozen=True, eq=False)
class Operation:
    """One op, forward or derived.

    `path` says how it was derived: the op of the spec, then the input of each differentiation.
    """

    name: str
    path: tuple[str, ...]
    family: Family
    inputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Output, ...]
    temporaries: tuple[Temporary, ...]
    shapes: ShapeFunction
    eager: Callable[[eager.Call], None]
    sources: Sources
    launches: tuple[Launch, ...]
    floating: bool  # whether undeclared tensors must have a floating type
    faults: tuple[Fault, ...] = ()
    gradients: Mapping[str, Gradient] = field(default_factory=dict)
    _compiled: dict[tuple[str, ...], _Compiled] = field(default_factory=dict)

    # ------------------------------------------------------------ calls
    def __call__(
        self, tensors: Sequence[torch.Tensor | None], attributes: Sequence[AttributeValue]
    ) -> tuple[torch.Tensor, ...]:
        """Check, compute, record for autograd; tensors and attributes in declared order."""
        checks.tensors(self.name, self.inputs, tensors)
        values = tuple(
            checks.attribute_value(self.name, attribute, value)
            for attribute, value in zip(self.attributes, attributes, strict=True)
        )
        return self.apply(tensors, values)

    def apply(
        self, tensors: Sequence[torch.Tensor | None], values: Sequence[Numbers]
    ) -> tuple[torch.Tensor, ...]:
        """The outputs for checked attributes, recorded for autograd."""
        if torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in tensors
        ):
            record = cast(Callable[..., tuple[torch.Tensor, ...]], _Function.apply)
            return record(self, tuple(values), *tensors)
        return self.compute(tensors, values).outputs

    # ------------------------------------------------------------ one evaluation
    def compute(
        self, tensors: Sequence[torch.Tensor | None], values: Sequence[Numbers]
    ) -> Evaluation:
        """Run the kernels."""
        device = checks.tensors(self.name, self.inputs, tensors)
        leading = checks.leading_shape(self.name, self.inputs, tensors)
        flat = [
            None if tensor is None else _flattened(tensor, declared)
            for declared, tensor in zip(self.inputs, tensors, strict=True)
        ]
        given = [None if tensor is None else tuple(tensor.shape) for tensor in flat]
        shapes = self.shapes(*given, *values)
        for name, value in shapes.integers.items():
            checks.fits(self.name, name, value)
        types = self._types(flat)
        everything = self._operands(flat, shapes, types, device)
        if device.type == "cpu":
            self._run_on_cpu(everything, shapes, values, types, device)
        elif device.type == "cuda":
            self._run_on_cuda(everything, shapes, values, types, device)
        elif device.type != "meta":
            raise RuntimeError(f"{self.name}: there are no kernels for device {device}")
        outputs = tuple(
            _restored(everything[declared.name], leading, declared.batched)
            for declared in self.outputs
        )
        inputs = tuple(
            _restored(everything[declared.name], leading, declared.batched)
            if tensor is None
            else tensor
            for declared, tensor in zip(self.inputs, tensors, strict=True)
        )
        return Evaluation(outputs, inputs, shapes.integers)

    def _types(self, tensors: Sequence[torch.Tensor | None]) -> _Types:
        shared, found = checks.element_types(self.name, self.inputs, tensors, self.floating)
        shared = shared or "f32"
        declared = [(each.name, each.dtype) for each in self.inputs]
        declared += [(each.name, each.dtype) for each in self.outputs]
        for name, dtype in declared:
            generic = {"same": shared, "float": shared, "int": "i64"}.get(dtype, dtype)
            found.setdefault(name, generic)
        real = "f64" if "f64" in found.values() else "f32"
        wide = real if shared in checks.FLOATING else "i64"
        integers = {name: found[name] for name, dtype in declared if dtype == "int"}
        return _Types(shared, real, wide, found, integers)

    def _operands(
        self,
        tensors: Sequence[torch.Tensor | None],
        shapes: Shapes,
        types: _Types,
        device: torch.device,
    ) -> dict[str, torch.Tensor]:
        """Every tensor that kernels take, in their order: inputs, outputs, temporaries."""
        found: dict[str, torch.Tensor] = {}

        def empty(name: str, shape: Sequence[int], dtype: str) -> torch.Tensor:
            checks.addressable(self.name, name, shape)
            return torch.empty(shape, dtype=checks.TORCH_DTYPES[dtype], device=device)

        for declared, tensor in zip(self.inputs, tensors, strict=True):
            if tensor is None:
                assert declared.default is not None
                kind = checks.TORCH_DTYPES[types.found[declared.name]]
                # One element with strides 0: reads like a full tensor, costs nothing.
                element = torch.full((), declared.default, dtype=kind, device=device)
                tensor = element.expand(shapes.optional[declared.name])
            found[declared.name] = tensor.detach()
        for output, shape in zip(self.outputs, shapes.outputs, strict=True):
            found[output.name] = empty(output.name, shape, types.found[output.name])
        for temporary, shape in zip(self.temporaries, shapes.temporaries, strict=True):
            dtype = types.widened(temporary.dtype)
            shared = temporary.workspace_of
            if shared is not None and types.found[shared] == dtype:
                found[temporary.name] = found[shared]
            else:
                found[temporary.name] = empty(temporary.name, shape, dtype)
        return found

    # ------------------------------------------------------------ kernels
    def _run_on_cpu(
        self,
        tensors: Mapping[str, torch.Tensor],
        shapes: Shapes,
        values: Sequence[Numbers],
        types: _Types,
        device: torch.device,
    ) -> None:
        compiled = self._compiled.get(types.key)
        if compiled is None:
            source = prelude.C + types.bindings() + self.sources.c
            try:
                library = build.library(source)
            except build.NoCompilerError as error:
                eager.warn_once(str(error))
                parameters = self._numbers(values)
                eager.run(self.name, self.eager, tensors, shapes.integers, parameters)
                return
            compiled = _Compiled(library, self.sources.entry)
            self._compiled[types.key] = compiled
        integers = [*shapes.integers.values()]
        for tensor in tensors.values():
            integers.extend(tensor.stride())
        numbers = [value for value in values if isinstance(value, float)]
        self._raise_fault(compiled(tensors.values(), integers, numbers), tensors)

    def _run_on_cuda(
        self,
        tensors: Mapping[str, torch.Tensor],
        shapes: Shapes,
        values: Sequence[Numbers],
        types: _Types,
        device: torch.device,
    ) -> None:
        fault = torch.zeros(3, dtype=torch.int64, device=device) if self.faults else None
        numbers = self._numbers(values)
        launches = []
        for launch, cells in zip(self.launches, shapes.cells, strict=True):
            if launch.converts is not None:
                workspace, output = launch.converts
                if tensors[workspace] is tensors[output]:
                    continue
            arguments: list[int | float] = []
            for name in launch.tensors:
                arguments += [tensors[name].data_ptr(), *tensors[name].stride()]
            arguments += [shapes.integers[name] for name in launch.integers]
            arguments += [numbers[name] for name in launch.numbers]
            if launch.faults:
                assert fault is not None
                arguments.append(fault.data_ptr())
            launches.append((launch.kernel, cells, tuple(arguments)))
        source = prelude.cuda(types.found.values()) + types.bindings() + self.sources.cuda
        cuda.launch(source, device, launches)
        if fault is not None:
            number, index, extent = fault.tolist()
            self._raise_fault((number, index, extent), tensors)

    def _numbers(self, values: Sequence[Numbers]) -> dict[str, float]:
        """The float attributes by name."""
        return {
            attribute.name: value
            for attribute, value in zip(self.attributes, values, strict=True)
            if isinstance(value, float)
        }

    def _raise_fault(
        self, fault: tuple[int, int, int], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        number, index, extent = fault
        if number:
            about = self.faults[number - 1]
            raise checks.outside(self.name, about.tensor, about.axis, about.access, index, extent)

    # ------------------------------------------------------------ gradients
    def gradient(self, name: str) -> tuple[Operation, Gradient]:
        """The op that computes the gradient of an input, and how it is called."""
        return self.family.gradient(self, name)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a call gives: outputs, inputs with absent ones filled in, integers by name."""

    outputs: tuple[torch.Tensor, ...]
    inputs: tuple[torch.Tensor, ...]
    integers: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Types:
    """The element types of a call."""

    shared: str
    real: str
    wide: str
    found: dict[str, str]
    integers: dict[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        return (self.shared, self.real, *self.integers.values())

    def widened(self, dtype: str) -> str:
        """The type of a temporary."""
        if dtype in ("same", "float"):
            return self.wide
        return self.real if dtype in checks.FLOATING else "i64"

    def bindings(self) -> str:
        """The types as definitions in front of a source."""
        return prelude.bindings(self.shared, self.real, self.integers)


class _Compiled:
    """The entry function of a library; see `prelude` for what it is given."""

    def __init__(self, library: ctypes.CDLL, entry: str) -> None:
        self._library = library  # keeps it loaded
        self._function = getattr(library, entry)
        self._function.restype = ctypes.c_int64
        self._function.argtypes = [ctypes.c_void_p] * 4

    def __call__(
        self,
        tensors: Iterable[torch.Tensor],
        integers: Sequence[int],
        numbers: Sequence[float],
    ) -> tuple[int, int, int]:
        addresses = [tensor.data_ptr() for tensor in tensors]
        fault = (ctypes.c_int64 * 3)()
        self._function(
            (ctypes.c_void_p * len(addresses))(*addresses),
            (ctypes.c_int64 * len(integers))(*integers),
            (ctypes.c_double * len(numbers))(*numbers),
            fault,
        )
        return fault[0], fault[1], fault[2]


def _flattened(tensor: torch.Tensor, declared: Input) -> torch.Tensor:
    """The tensor with its batch dims made one, and with its sign applied."""
    tensor = tensor.resolve_neg()
    if not declared.batched:
        return tensor
    rank = len(declared.dims)
    split = tensor.dim() - rank + 1
    count = 1
    for size in tensor.shape[:split]:
        count *= size
    return tensor.reshape((count, *tensor.shape[split:]))


def _restored(tensor: torch.Tensor, leading: torch.Size, batched: bool) -> torch.Tensor:
    """The tensor with its batch dim made the leading dims of the call again."""
    return tensor.reshape((*leading, *tensor.shape[1:])) if batched else tensor


class _Context(torch.autograd.function.FunctionCtx):
    """What the forward pass leaves for the backward pass."""

    operation: Operation
    values: tuple[Numbers, ...]
    integers: dict[str, int]
    saved_tensors: tuple[torch.Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _Function(torch.autograd.Function):
    """Autograd for every op: the backward pass calls derived ops, which are recorded again."""

    @staticmethod
    def forward(
        ctx: _Context,
        operation: Operation,
        values: tuple[Numbers, ...],
        *tensors: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        evaluation = operation.compute(tensors, values)
        ctx.operation, ctx.values, ctx.integers = operation, values, evaluation.integers
        ctx.save_for_backward(*evaluation.inputs)
        fixed = [output for output in evaluation.outputs if not output.is_floating_point()]
        ctx.mark_non_differentiable(*fixed)
        return evaluation.outputs

    @staticmethod
    def backward(ctx: _Context, *cotangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        operation = ctx.operation
        tensors = {
            declared.name: tensor
            for declared, tensor in zip(operation.inputs, ctx.saved_tensors, strict=True)
        }
        tensors |= {
            f"grad {declared.name}": tensor
            for declared, tensor in zip(operation.outputs, cotangents, strict=True)
        }
        known: dict[str, Numbers] = dict(ctx.integers)
        known |= {
            attribute.name: value
            for attribute, value in zip(operation.attributes, ctx.values, strict=True)
        }
        gradients: list[torch.Tensor | None] = []
        for declared, needed in zip(operation.inputs, ctx.needs_input_grad[2:], strict=True):
            if not needed or declared.nograd:
                gradients.append(None)
                continue
            derived, link = operation.gradient(declared.name)
            given = [tensors[name] for name in link.tensors]
            values = [known[attribute.name] for attribute in derived.attributes]
            gradients.append(derived.apply(given, values)[0])
        return (None, None, *gradients)
