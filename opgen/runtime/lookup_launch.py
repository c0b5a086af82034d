"""Launches of CUDA kernels as the table of `lookup_table` takes them: integers.

A call that is made in Python first finds which kernels there are, on what grids and with what
arguments, which takes ten times as long as PyTorch needs for an op. All of it depends on shapes,
strides, types, the device, and on how tensors are aligned: a call like it has the same launches,
with addresses and numbers of its own. Inputs that are cast before are copies of another type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, assert_never

import torch

from opgen.runtime import cuda, lookup_library, special
from opgen.runtime.cuda import Launched, Memory, Number
from opgen.runtime.lookup_launch_source import (
    CONSTANT,
    COPY,
    FAULT,
    INPUT,
    LAUNCH,
    MAX_ARGUMENTS,
    MAX_COPIES,
    NUMBER,
    OUTPUT,
    WORKSPACE,
    Program,
)

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call

_PIECE: Final = 512
"""Pieces of the workspace begin at multiples of so many bytes, as PyTorch's own tensors do: kernels
were compiled for what these are aligned to."""

_STAND_INS: Final[dict[tuple[torch.device, torch.dtype, float], list[torch.Tensor]]] = {}
"""What stands for absent inputs: tensors full of a default, each at least twice as large as the one
before. Entries have their addresses, so they are never freed."""


def program(
    call: Call,
    given: Sequence[torch.Tensor | None],
    outputs: Sequence[torch.Tensor],
    operands: Mapping[str, torch.Tensor],
    launched: Launched,
) -> tuple[list[int], int] | None:
    """The integers of an entry, and the bytes of its workspace; None for what Python prepares.

    An entry is `given` these tensors, of which those of the call are casts or the same.
    """
    if any(len(each.arguments) > MAX_ARGUMENTS for each in launched.launches):
        return None
    laid_out = _present(call, launched.copies)
    copies = _copies(call, operands, laid_out)
    if copies is None:
        return None
    origins = _Origins(call, given, outputs, laid_out, launched.fault)
    launches: list[int] = []
    for each in launched.launches:
        handle = cuda.function(launched.source, each.kernel, launched.device)
        launches += [handle, *each.blocks, *each.threads, len(each.arguments)]
        for argument in each.arguments:
            origin = origins.of(argument)
            if origin is None:
                return None
            launches += origin
    copies += [_cast(call, at) for at in origins.casts]
    if len(copies) > MAX_COPIES:
        return None
    device = launched.device
    about = Program(
        kind=LAUNCH,
        device_type=lookup_library.device_type(device),
        device_index=torch.cuda.current_device() if device.index is None else device.index,
        copies=len(copies),
        launches=len(launched.launches),
        checks=launched.fault is not None,
    )
    return [*about, *(word for copy in copies for word in copy), *launches], origins.workspace


def _cast(call: Call, at: int) -> list[int]:
    """How an input is cast, in the same integers as `_copies` has."""
    tensor = call.tensors[at]
    assert tensor is not None
    dtype = lookup_library.dtype_number(tensor.dtype)
    return [at, dtype, tensor.dim(), *tensor.shape, *tensor.stride()]


def _present(call: Call, copies: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The copies of inputs that are there; what stands for absent ones is copied once for all."""
    tensors = zip(call.operation.inputs, call.tensors, strict=True)
    present = {declared.name for declared, tensor in tensors if tensor is not None}
    return {name: copy for name, copy in copies.items() if name in present}


def _copies(
    call: Call, operands: Mapping[str, torch.Tensor], copies: Mapping[str, torch.Tensor]
) -> list[list[int]] | None:
    """How inputs are copied: which one, then the type, rank, sizes and strides of its copy."""
    if not copies:
        return []
    results = (operands[output.name] for output in call.operation.outputs)
    images = special.Images((*call.tensors, *results))
    kernels = special.cuda_of(call.operation, call.shapes.integers, images, call.unrounded)
    orders = kernels.orders
    names = [each.name for each in call.operation.inputs]
    found = []
    for name, copy in copies.items():
        at = names.index(name)
        given = call.tensors[at]
        if given is None or given.dim() != copy.dim() or not _is_plain(given):
            return None
        strides = [0] * copy.dim()
        for dim, stride in zip(orders.get(name, range(copy.dim())), copy.stride(), strict=True):
            strides[dim] = stride
        dtype = lookup_library.dtype_number(given.dtype)
        found.append([at, dtype, given.dim(), *given.shape, *strides])
    return found


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its numbers are those in memory."""
    return not tensor.is_neg() and not tensor.is_conj()


class _Origins:
    """Where the arguments of launches come from, and what memory they need."""

    def __init__(
        self,
        call: Call,
        given: Sequence[torch.Tensor | None],
        outputs: Sequence[torch.Tensor],
        copies: Mapping[str, torch.Tensor],
        fault: torch.Tensor | None,
    ) -> None:
        self.inputs = {each.name: at for at, each in enumerate(call.operation.inputs)}
        self.defaults = [each.default for each in call.operation.inputs]
        self.tensors = call.tensors
        self.outputs = {each.data_ptr(): at for at, each in enumerate(outputs) if each.numel()}
        self.copies = copies
        self.given = given
        self.fault = fault
        self.casts: dict[int, int] = {}
        """Which copy the cast of an input is, for those that some launch has."""
        floats = [each.name for each in call.operation.attributes if each.type == "float"]
        self.numbers = {name: at for at, name in enumerate(floats)}
        self.places: dict[int, int] = {}
        """Of memory that only the launches know, by its address."""
        self.workspace = 0

    def of(self, argument: cuda.Argument) -> list[int] | None:
        """The origin of an argument; None if the next call could not have it from there."""
        match argument:
            case Memory(name=name, tensor=tensor):
                return self._memory(name, tensor)
            case Number(name=name):
                return [NUMBER, self.numbers[name]]
            case int(value):
                return [CONSTANT, value]
            case unexpected:
                assert_never(unexpected)

    def _memory(self, name: str | None, tensor: torch.Tensor) -> list[int] | None:
        address = tensor.data_ptr()
        if name in self.inputs:
            return self._input(name, tensor)
        if tensor is self.fault:
            return [FAULT, 0]
        if address in self.outputs:
            return [OUTPUT, self.outputs[address]]
        if not tensor.numel():
            return [CONSTANT, 0]
        if address not in self.places:
            self.places[address] = self.workspace
            size = tensor.element_size() * _span(tensor)
            self.workspace += -(-size // _PIECE) * _PIECE
        return [WORKSPACE, self.places[address]]

    def _input(self, name: str, tensor: torch.Tensor) -> list[int] | None:
        at = self.inputs[name]
        given, default, address = self.tensors[at], self.defaults[at], tensor.data_ptr()
        if given is None:
            assert default is not None
            return [CONSTANT, _stand_in(tensor, default).data_ptr()]
        # A launch before the one that an input was copied for has the input itself.
        if name in self.copies and self.copies[name].data_ptr() == address:
            return [COPY, list(self.copies).index(name)]
        if given.data_ptr() != address:
            return None
        if self.given[at] is given:
            return [INPUT, at]
        return [COPY, self.casts.setdefault(at, len(self.copies) + len(self.casts))]


def _stand_in(tensor: torch.Tensor, default: float) -> torch.Tensor:
    """A tensor that is never freed, of as much memory, which is full of a default.

    It is made on a thread of its own, where no memory is kept for a graph, and is finished before
    anything may read it, on whatever stream.
    """
    made = _STAND_INS.setdefault((tensor.device, tensor.dtype, default), [])
    size = max(1, _span(tensor))
    if not made or made[-1].numel() < size:
        room = max(size, 2 * made[-1].numel() if made else 0)
        made.append(lookup_library.elsewhere(lambda: _filled(room, default, tensor)))
    return made[-1]


def _filled(size: int, default: float, like: torch.Tensor) -> torch.Tensor:
    found = torch.full((size,), default, dtype=like.dtype, device=like.device)
    if found.is_cuda:
        torch.cuda.synchronize(found.device)
    return found


def _span(tensor: torch.Tensor) -> int:
    """How many elements the memory of a tensor has."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in strides)
