"""Eager calls at the speed of PyTorch's own ops: what was checked once is looked up.

Each op has a twin in the dispatcher that knows nothing of autograd or transforms and runs calls
that the C library of `lookup_table` has seen (`lookup_library` loads it); `lookup_caller` goes to
it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import lookup_convolution, lookup_launch, lookup_library, lookup_product
from opgen.runtime.evaluation import Call, compiled
from opgen.runtime.library_product import Multiplication
from opgen.runtime.lookup_library import LOCK, Table, define
from opgen.runtime.lookup_table import MAX_ENTRIES, MAX_NUMBERS, MAX_RANK, MAX_TENSORS
from opgen.runtime.record import record
from opgen.runtime.schema import Number, flatten

if TYPE_CHECKING:
    from opgen.runtime.cuda import Launched
    from opgen.runtime.library_plan import Plan
    from opgen.runtime.lookup_casts_source import Cast
    from opgen.runtime.operation import Operation


@record
class Twin:
    """The op of the dispatcher that runs calls that were seen before."""

    operation: Operation
    name: str
    table: Table
    call: Callable[..., Any]
    fixed: dict[tuple[int, ...], Callable[..., Any]]
    is_cast: bool  # whether autocast casts its tensors
    outputs: int

    def for_integers(self, integers: tuple[int, ...]) -> Callable[..., Any] | None:
        """The same for some values of the integers, of tensors and floats alone.

        The first ones are ops of their own, since fewer arguments are faster to hand over; for
        others the integers are handed over from here. None where there are too many of both.
        """
        with LOCK:
            return self._for_integers(integers)

    def _for_integers(self, integers: tuple[int, ...]) -> Callable[..., Any] | None:
        if integers not in self.fixed:
            if not integers:
                self.fixed[integers] = self.call
            elif len(self.fixed) >= _MOST_KNOWN:
                return None
            elif len(self.fixed) >= _MOST_FIXED:
                self.fixed[integers] = self._with(integers)
            else:
                name = f"{self.name}_{len(self.fixed)}"
                about = self.table, integers, self.is_cast, self.outputs
                made = _define(self.operation, name, *about)
                if made is None:
                    return None
                self.fixed[integers] = made
        return self.fixed[integers]

    def _with(self, integers: tuple[int, ...]) -> Callable[..., Any]:
        """The general op with these integers put where its attributes are."""
        count, general, left = len(self.operation.inputs), self.call, iter(integers)
        numbers: list[int | None] = []
        for attribute in self.operation.attributes:
            for _ in range(attribute.length or 1):
                numbers.append(None if attribute.type == "float" else next(left))
        if None not in numbers:
            return lambda *tensors: general(*tensors, *integers)

        def call(*given: Any) -> Any:
            floats = iter(given[count:])
            every = [next(floats) if number is None else number for number in numbers]
            return general(*given[:count], *every)

        return call

    def enter(
        self, call: Call, outputs: Sequence[torch.Tensor], operands: dict[str, torch.Tensor]
    ) -> None:
        """Let the next call like this one be looked up, if it is of a kind that can be."""
        self._enter(call, call.tensors, outputs, outputs, operands, ())

    def enter_launched(
        self,
        call: Call,
        outputs: Sequence[torch.Tensor],
        operands: dict[str, torch.Tensor],
        launched: Launched,
        given: Sequence[torch.Tensor | None] | None = None,
    ) -> None:
        """The same for a call that CUDA kernels computed.

        What is `given` to the next one are these tensors, of which those of `call` are casts.
        """
        given = call.tensors if given is None else given
        if _have_too_many_dims((*call.tensors, *outputs)):
            return
        if not self.table.has_room() or not lookup_library.launches():
            return
        program = lookup_launch.program(call, given, outputs, operands, launched)
        if program is not None:
            words, workspace = program
            numbers = flatten(call.values)
            self.table.enter(given, numbers, outputs, None, words, (), workspace)

    def enter_cast(
        self,
        call: Call,
        given: Sequence[torch.Tensor | None],
        output: torch.Tensor,
        operands: dict[str, torch.Tensor],
        cast: Cast,
    ) -> bool:
        """Let a call with these tensors be looked up that goes in pieces; whether it can be.

        `call` and its operands are those of a piece after its cast, and `output` is the whole one.
        """
        part = operands[call.operation.outputs[0].name]
        return self._enter(call, given, (part,), (output,), operands, cast)

    def _enter(
        self,
        call: Call,
        given: Sequence[torch.Tensor | None],
        parts: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        operands: dict[str, torch.Tensor],
        cast: Sequence[int],
    ) -> bool:
        if _have_too_many_dims((*call.tensors, *outputs)) or len(operands) > 4 * MAX_TENSORS:
            return False
        layout = _layout(call, parts, operands)
        if layout is None:
            return False
        addresses, workspace, constants = layout
        integers = [*call.shapes.integers.values()]
        for operand in operands.values():
            integers.extend(operand.stride())
        kernel = ctypes.cast(compiled(call, operands).function, ctypes.c_void_p)
        numbers = flatten(call.values)
        memory = addresses, workspace, constants
        self.table.enter(given, numbers, outputs, kernel, integers, *memory, cast)
        return True

    def enter_library(self, call: Call, plan: Plan | Multiplication, output: torch.Tensor) -> None:
        """The same for a call that PyTorch's library computed, with this output."""
        library = self.table.library
        if isinstance(plan, Multiplication):
            is_connected = library.has_products
            integers = lookup_product.words(plan, call.tensors, output)
        else:
            is_connected = library.has_convolutions
            integers = lookup_convolution.forward(plan, call.tensors)
        if integers is not None and is_connected:
            self.table.enter(call.tensors, flatten(call.values), (output,), None, integers)

    def enter_series(
        self,
        tensors: Sequence[torch.Tensor | None],
        numbers: Sequence[Number],
        outputs: Sequence[torch.Tensor],
        integers: Sequence[int],
    ) -> bool:
        """The same for a call in stages, see `lookup_series`; whether it can be."""
        if _have_too_many_dims((*tensors, *outputs)) or not self.table.has_room():
            return False
        self.table.enter(tensors, numbers, outputs, None, integers)
        return True


def _have_too_many_dims(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether there is no room for one of them in a key."""
    return any(x is not None and x.dim() > MAX_RANK for x in tensors)


def _layout(
    call: Call, outputs: Sequence[torch.Tensor], operands: dict[str, torch.Tensor]
) -> tuple[list[int], int, bytes] | None:
    """Where the addresses of operands come from, the bytes of the workspace, and constants.

    None if an input was copied, which the table does not do.
    """
    operation = call.operation
    addresses: list[int] = []
    constants = b""
    for at, (declared, tensor) in enumerate(zip(operation.inputs, call.tensors, strict=True)):
        operand = operands[declared.name]
        if tensor is None:
            addresses += [3, len(constants)]
            element = operand.as_strided((1,), (1,)).view(torch.uint8)
            constants += bytes(element.tolist()).ljust(8, b"\0")
        elif operand.data_ptr() != tensor.data_ptr():
            return None
        else:
            addresses += [0, at]
    for at in range(len(outputs)):
        addresses += [1, at]
    names = [output.name for output in operation.outputs]
    workspace = 0
    for temporary in operation.temporaries:
        if temporary.gpu_only:
            continue
        operand = operands[temporary.name]
        shared = [at for at, name in enumerate(names) if operands[name] is operand]
        if shared:
            addresses += [1, shared[0]]
        else:
            addresses += [2, workspace]
            size = operand.numel() * operand.element_size()
            workspace += -(-size // 64) * 64
    return addresses, workspace, constants


_MOST_FIXED = 16
"""For how many values of its integers an op has a twin: as many as most nets have."""

_MOST_KNOWN = MAX_ENTRIES
"""For how many values a call is looked up at all."""


def twin(operation: Operation, name: str, is_cast: bool, more: int = 0) -> Twin | None:
    """A new twin of an op, under that name in a namespace of its own; None if it has none.

    It has so many `more` outputs than the op, see `lookup_series`.
    """
    numbers = sum(attribute.length or 1 for attribute in operation.attributes)
    outputs = len(operation.outputs) + more
    tensors = max(len(operation.inputs), outputs)
    if numbers > MAX_NUMBERS or tensors > MAX_TENSORS:
        return None
    if all(declared.default is not None for declared in operation.inputs):
        return None  # a call may have no tensor to be dispatched on
    table = Table.new()
    call = None if table is None else _define(operation, name, table, None, is_cast, outputs)
    if table is None or call is None:
        return None
    return Twin(operation, name, table, call, {}, is_cast, outputs)


def _define(
    operation: Operation,
    name: str,
    table: Table,
    integers: tuple[int, ...] | None,
    is_cast: bool,
    outputs: int,
) -> Callable[..., Any] | None:
    """A new twin; with `integers`, they are no arguments."""
    kinds = [0 if declared.default is None else 1 for declared in operation.inputs]
    whole = 2 if integers is None else 4
    for attribute in operation.attributes:
        kinds += [3 if attribute.type == "float" else whole] * (attribute.length or 1)
    left = iter(integers or ())
    constants = [next(left) if kind == 4 else 0 for kind in kinds]
    return define(name, table, kinds, constants, outputs, is_cast)
