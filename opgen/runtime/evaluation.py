"""One call of one op: shapes and types found and checked, outputs allocated, kernels run."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from opgen.runtime import (
    build,
    checks,
    cuda,
    eager,
    joined,
    leading,
    library_call,
    prelude,
    special,
    unrounded_source,
)
from opgen.runtime.description import GENERIC, Input, Output, Shape, Shapes
from opgen.runtime.layout import memory_format, merges
from opgen.runtime.record import record
from opgen.runtime.schema import Numbers

if TYPE_CHECKING:
    from opgen.runtime.library_plan import Plan
    from opgen.runtime.library_product import Multiplication
    from opgen.runtime.operation import Operation

MOST_KNOWN = 1024
"""For how many sets of types and values an op remembers its kernels."""

Tensors = Sequence[torch.Tensor | None]
Outputs = tuple[torch.Tensor, ...]
Operands = dict[str, torch.Tensor]


@record
class Types:
    """The element types of a call."""

    shared: str
    real: str
    wide: str
    found: dict[str, str]
    integers: dict[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        """What the C source is compiled for."""
        return (self.shared, self.real, *self.integers.values())

    def widened(self, dtype: str) -> str:
        """The type of a temporary."""
        if dtype in GENERIC:
            return self.wide
        return self.real if dtype in checks.FLOATING else "i64"

    def bindings(self) -> str:
        """The types as definitions in front of a source."""
        return prelude.bindings(self.shared, self.real, self.integers)


@record
class Call:
    """A checked call: everything but the numbers in the tensors.

    Those in `unrounded` are float32, and the kernels round them to the type that is shared.
    """

    operation: Operation
    tensors: Tensors
    values: Sequence[Numbers]
    device: torch.device
    leading: Shape
    shapes: Shapes
    types: Types
    unrounded: tuple[str, ...] = ()

    def format_of(self, rank: int) -> torch.memory_format:
        """The memory format of an output: that of the first input of its rank.

        A gradient follows what flows back, which is the last input: a filter says nothing of the
        image that it was applied to. A part of another op follows its largest one.
        """
        is_forward = self.operation.is_public or self.operation.is_keeping
        tensors = self.tensors if is_forward else self.tensors[::-1]
        if self.operation.is_stage:
            tensors = self._from_largest()
        return memory_format(rank, tensors)

    def _from_largest(self) -> Tensors:
        """Its tensors from the largest one on, but for the filter of a convolution."""
        names = self.operation.convolution
        pairs = zip(self.operation.inputs, self.tensors, strict=True)
        found = [
            x for each, x in pairs if x is not None and not (names and each.name == names.weight)
        ]
        return sorted(found, key=lambda x: -x.numel())


# ---------------------------------------------------------------------------- before the kernels
def prepare(operation: Operation, tensors: Tensors, values: Sequence[Numbers]) -> Call:
    """Check a call against the declaration of its op; raises what is wrong with it."""
    name, inputs = operation.name, operation.inputs
    device = checks.tensors(name, inputs, tensors)
    leading = checks.leading_shape(name, inputs, tensors)
    checks.sizes(name, operation.attributes, values)
    shapes = operation.shapes(*flat_shapes(inputs, tensors), *values)
    for size, value in shapes.integers.items():
        checks.fits(name, size, value)
    for output, shape in zip(operation.outputs, shapes.outputs, strict=True):
        checks.addressable(name, output.name, shape)
    checks.indexable(name, operation.reach, shapes.integers)
    types = _types(operation, tensors)
    return Call(operation, tensors, values, device, tuple(leading), shapes, types)


def flat_shapes(inputs: Sequence[Input], tensors: Tensors) -> list[Shape | None]:
    """The shapes of inputs with their batch dims made one."""
    return [
        None if tensor is None else flat_shape(declared, tensor.shape)
        for declared, tensor in zip(inputs, tensors, strict=True)
    ]


def flat_shape(declared: Input, shape: Shape) -> Shape:
    """A shape with its batch dims made one."""
    if not declared.batched:
        return tuple(shape)
    split = len(shape) - len(declared.dims) + 1
    count = 1
    for size in shape[:split]:
        count *= size
    return (count, *shape[split:])


def _types(operation: Operation, tensors: Tensors) -> Types:
    shared, found = checks.element_types(
        operation.name, operation.inputs, tensors, operation.floating
    )
    shared = shared or "f32"
    declared = [(each.name, each.dtype) for each in operation.inputs]
    declared += [(each.name, each.dtype) for each in operation.outputs]
    for name, dtype in declared:
        generic = {"same": shared, "float": shared, "int": "i64"}.get(dtype, dtype)
        found.setdefault(name, generic)
    real = "f64" if "f64" in found.values() else "f32"
    wide = real if shared in checks.FLOATING else "i64"
    integers = {name: found[name] for name, dtype in declared if dtype == "int"}
    return Types(shared, real, wide, found, integers)


def empty_outputs(call: Call) -> tuple[torch.Tensor, ...]:
    """New tensors for the results; also the whole answer where only shapes are asked for."""
    return tuple(
        _empty_output(call, output, shape)
        for output, shape in zip(call.operation.outputs, call.shapes.outputs, strict=True)
    )


def _empty_output(call: Call, output: Output, shape: Shape) -> torch.Tensor:
    is_unrounded = output.name in call.unrounded
    dtype = checks.TORCH_DTYPES["f32" if is_unrounded else call.types.found[output.name]]
    if output.batched:
        shape = (*call.leading, *shape[1:])
    format_ = call.format_of(len(shape))
    return torch.empty(shape, dtype=dtype, device=call.device, memory_format=format_)


# ---------------------------------------------------------------------------- the kernels
class Known(Protocol):
    """Where calls are entered that were checked and succeeded, to be looked up next time."""

    def enter(self, call: Call, outputs: Outputs, operands: Operands) -> None:
        """One that C kernels computed."""

    def enter_launched(
        self, call: Call, outputs: Outputs, operands: Operands, launched: cuda.Launched
    ) -> None:
        """One that CUDA kernels computed."""

    def enter_library(self, call: Call, plan: Plan | Multiplication, output: torch.Tensor) -> None:
        """One that PyTorch's library computed."""


class HandsOn:
    """Hands on what is entered to what is made when there is something to enter."""

    def known(self) -> Known | None:
        """Where calls are entered; None where they cannot be."""
        raise NotImplementedError

    def enter(self, call: Call, outputs: Outputs, operands: Operands) -> None:
        """See `Known`."""
        known = self.known()
        if known is not None:
            known.enter(call, outputs, operands)

    def enter_launched(
        self, call: Call, outputs: Outputs, operands: Operands, launched: cuda.Launched
    ) -> None:
        """See `Known`."""
        known = self.known()
        if known is not None:
            known.enter_launched(call, outputs, operands, launched)

    def enter_library(self, call: Call, plan: Plan | Multiplication, output: torch.Tensor) -> None:
        """See `Known`."""
        known = self.known()
        if known is not None:
            known.enter_library(call, plan, output)


def evaluate(
    operation: Operation,
    tensors: Tensors,
    values: Sequence[Numbers],
    known: Known | None = None,
) -> Outputs:
    """The outputs of a call; raises what is wrong with it. `known` hears of success."""
    plan, call = library_call.known(operation, tensors, values), None
    if plan is None:
        call = prepare(operation, tensors, values)
        plan = library_call.planned(call)
    if plan is not None:
        found = library_call.computed(plan, tensors)
        if found is not None:
            if call is not None and known is not None:
                known.enter_library(call, plan, found)
            return (found,)
        known = None  # the next call like this one may well be the library's
    call = prepare(operation, tensors, values) if call is None else call
    return computed(leading.of_dims(call), known)


def computed(call: Call, known: Known | None = None) -> Outputs:
    """The outputs of a checked call, by kernels of its op. `known` hears of success."""
    operation = call.operation
    outputs = empty_outputs(call)
    places = places_of(call, outputs)
    operands = operands_of(call, places)
    is_direct = all(map(operator.is_, places, outputs))
    if cuda.computes(call.device):
        launched = run_on_cuda(call, operands)
        is_known_by_shapes = is_direct and launched.lasting
        if known is not None and is_known_by_shapes and not cuda.is_capturing():
            known.enter_launched(call, outputs, operands, launched)
    elif call.device.type == "cpu":
        call, operands = joined.of_call(call, operands)
        if run_on_cpu(call, operands) and is_direct and known is not None:
            known.enter(call, outputs, operands)
    else:
        raise RuntimeError(f"{operation.name}: there are no kernels for device {call.device}")
    for output, place in zip(outputs, places, strict=True):
        if place is not output:
            output.copy_(place)
    return outputs


def places_of(call: Call, outputs: Outputs) -> Outputs:
    """Where kernels write the outputs."""
    return tuple(
        _place(tensor, output, call.leading)
        for tensor, output in zip(outputs, call.operation.outputs, strict=True)
    )


def _place(tensor: torch.Tensor, output: Output, leading: Shape) -> torch.Tensor:
    """Where kernels write an output: they see its batch dims as one, which channels-last ones are
    not. A copy takes less time than to run the kernels on parts of a batch."""
    if not output.batched or merges(leading, tensor.stride()):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def operands_of(call: Call, outputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every tensor that kernels take, in their order: inputs, outputs, temporaries."""
    operation, types = call.operation, call.types
    on_gpu = cuda.computes(call.device)
    found: dict[str, torch.Tensor] = {}
    for declared, tensor in zip(operation.inputs, call.tensors, strict=True):
        if tensor is None:
            shape = call.shapes.optional[declared.name]
            dtype = dtype_of(call, declared.name)
            found[declared.name] = default_tensor(declared, shape, dtype, call.device)
        else:
            found[declared.name] = flattened(tensor.resolve_neg(), declared)
    for output, tensor, shape in zip(operation.outputs, outputs, call.shapes.outputs, strict=True):
        found[output.name] = tensor.view(shape) if output.batched else tensor
    for temporary, shape in zip(operation.temporaries, call.shapes.temporaries, strict=True):
        if temporary.cpu_only if on_gpu else temporary.gpu_only:
            continue
        dtype_name = types.widened(temporary.dtype)
        shared = temporary.workspace_of
        if shared is not None and types.found[shared] == dtype_name:
            found[temporary.name] = found[shared]
        else:
            checks.addressable(operation.name, temporary.name, shape)
            found[temporary.name] = torch.empty(
                shape,
                dtype=checks.TORCH_DTYPES[dtype_name],
                device=call.device,
                memory_format=_format_of_temporary(call, len(shape)),
            )
    return found


def _format_of_temporary(call: Call, rank: int) -> torch.memory_format:
    """That of the images of the call, where kernels on the CPU walk along their channels.

    It decides nothing but how fast they are, as they take tensors with any strides. Kernels in CUDA
    lay out contiguous ones as they need them, see `cuda_operands`.
    """
    return torch.contiguous_format if cuda.computes(call.device) else call.format_of(rank)


def dtype_of(call: Call, name: str) -> torch.dtype:
    """The element type of an input or output, also of an input that is absent."""
    return checks.TORCH_DTYPES[call.types.found[name]]


def default_tensor(
    declared: Input, shape: Shape, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """What stands for an input that is absent: one element with strides 0."""
    assert declared.default is not None
    return torch.full((), declared.default, dtype=dtype, device=device).expand(shape)


def flattened(tensor: torch.Tensor, declared: Input) -> torch.Tensor:
    """The tensor with its batch dims made one; copied where their strides do not allow it."""
    shape = flat_shape(declared, tensor.shape)
    return tensor.reshape(shape) if declared.batched else tensor


def run_on_cpu(call: Call, operands: Mapping[str, torch.Tensor]) -> bool:
    """Run the C kernels; False where there is no compiler and PyTorch's own ops were used."""
    integers = [*call.shapes.integers.values()]
    for tensor in operands.values():
        integers.extend(tensor.stride())
    numbers = _numbers(call)
    try:
        kernels = compiled(call, operands)
    except build.NoCompilerError as error:
        eager.warn_once(str(error))
        operation = call.operation
        eager.run(operation.name, operation.eager, operands, call.shapes.integers, numbers)
        return False
    fault = kernels(operands.values(), integers, [*numbers.values()])
    _raise_fault(call.operation, fault)
    return True


def _numbers(call: Call) -> dict[str, float]:
    """The float attributes by name."""
    return {
        attribute.name: value
        for attribute, value in zip(call.operation.attributes, call.values, strict=True)
        if isinstance(value, float)
    }


def images_of(call: Call, operands: Mapping[str, torch.Tensor]) -> special.Images:
    """The inputs and outputs of a call, as kernels see them: with batch dims made one."""
    operation = call.operation
    inputs = (
        None if tensor is None else operands[declared.name]
        for declared, tensor in zip(operation.inputs, call.tensors, strict=True)
    )
    return special.Images((*inputs, *(operands[output.name] for output in operation.outputs)))


def compiled(call: Call, operands: Mapping[str, torch.Tensor]) -> Compiled:
    """The C kernels for the element types of a call, its attributes, and some of its sizes."""
    operation = call.operation
    values = special.values_of(operation, call.shapes.integers, images_of(call, operands))
    key = (*call.types.key, *call.unrounded), values
    found = operation.compiled.get(key)
    if found is None:
        source = special.source_of(operation, values, call.unrounded)
        helpers = call.types.bindings() + (unrounded_source.unrounded() if call.unrounded else "")
        found = Compiled(build.library(prelude.C + helpers + source), operation.sources.entry)
        if len(operation.compiled) >= MOST_KNOWN:
            operation.compiled.clear()  # attributes that are new in every call share one library
        operation.compiled[key] = found
    return found


class Compiled:
    """The entry function of a library; see `prelude` for what it is given."""

    def __init__(self, library: ctypes.CDLL, entry: str) -> None:
        self._library = library  # keeps it loaded
        self.function = getattr(library, entry)
        self.function.restype = ctypes.c_int64
        self.function.argtypes = [ctypes.c_void_p] * 4

    def __call__(
        self,
        tensors: Iterable[torch.Tensor],
        integers: Sequence[int],
        numbers: Sequence[float],
    ) -> tuple[int, int, int]:
        addresses = [tensor.data_ptr() for tensor in tensors]
        fault = (ctypes.c_int64 * 3)()
        self.function(
            (ctypes.c_void_p * len(addresses))(*addresses),
            (ctypes.c_int64 * len(integers))(*integers),
            (ctypes.c_double * len(numbers))(*numbers),
            fault,
        )
        return fault[0], fault[1], fault[2]


def run_on_cuda(call: Call, operands: Mapping[str, torch.Tensor]) -> cuda.Launched:
    """Launch the CUDA kernels; gives what was launched."""
    from opgen.runtime import cuda_call  # an eighth of the time of importing a module

    operation, device = call.operation, call.device
    if operation.faults and cuda.is_capturing():
        raise cuda.CudaError(
            f"{operation.name}: what its indices are is checked after the kernels ran, which a "
            "CUDA graph that is being captured cannot wait for; call it outside of the capture, "
            "or give the reads that depend on a tensor a boundary, such as ?clamp, in the spec"
        )
    fault = torch.zeros(3, dtype=torch.int64, device=device) if operation.faults else None
    try:
        launched = cuda_call.launches(call, operands, _numbers(call), fault)
        cuda.launch(launched)
    except cuda.CudaError as error:
        raise cuda.CudaError(f"{operation.name}: {error}") from error
    if fault is not None:
        number, index, extent = fault.tolist()
        _raise_fault(operation, (number, index, extent))
    return launched


def _raise_fault(operation: Operation, fault: tuple[int, int, int]) -> None:
    number, index, extent = fault
    if number:
        about = operation.faults[number - 1]
        raise checks.outside(operation.name, about.tensor, about.axis, about.access, index, extent)
