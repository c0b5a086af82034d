"""Calls on a GPU under autocast, as entries of a table: without casts, or these are copies of it.

To cast from Python takes longer than the kernel of a small op. Kernels that load few elements for a
cell round them themselves (`passes.cuda_unrounded`); for others the table casts as it copies. What
the first call of a kind found out is entered for the tensors that it was given, in a table for each
type that they are cast to, since whether autocast is on, and for which type, is nothing that a
table looks at.

Calls that are recorded for autograd are cast from Python: autograd is to see the casts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import (
    autocast,
    checks,
    compat,
    cuda,
    evaluation,
    library_call,
    lookup,
    lookup_library,
    registration,
)
from opgen.runtime.lookup_table import MAX_ENTRIES
from opgen.runtime.record import record, replaced
from opgen.runtime.schema import Number, unflatten
from opgen.runtime.special import NotMadeError

if TYPE_CHECKING:
    from opgen.runtime.cuda import Launched
    from opgen.runtime.evaluation import Call, Operands, Outputs
    from opgen.runtime.library_plan import Plan
    from opgen.runtime.library_product import Multiplication
    from opgen.runtime.operation import Operation

_DEVICE = "cuda"
_DTYPES = frozenset(checks.DTYPES)
_NARROW = ("f16", "bf16")
_MOST = MAX_ENTRIES
"""For how many kinds of calls an op remembers that they were tried, and how they are looked up."""

Tensors = Sequence[torch.Tensor | None]
Numbers = tuple[Number, ...]


def caller(operation: Operation) -> Callable[[Numbers, Tensors], Any]:
    """A function of numbers and plain CUDA tensors: the result; None where Python is to cast.

    It is asked where autocast is on. Modules of one spec share what was entered.
    """
    with lookup_library.LOCK:
        return _CASTS.setdefault(operation.registered_name, _Casts(operation)).call


@dataclass
class _Casts:
    """The calls of an op under autocast, and those that were tried."""

    operation: Operation
    twins: dict[torch.dtype, lookup.Twin | None] = field(default_factory=dict)
    fixed: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    tried: set[Any] = field(default_factory=set)

    def call(self, numbers: Numbers, tensors: Tensors) -> Any:
        """See `caller`."""
        if lookup_library.is_suspended() or lookup_library.build_meanwhile():
            return None
        if compat.are_recorded(*tensors):
            return None
        if not all(map(_can_be_entered, tensors)):
            return None
        dtype = torch.get_autocast_dtype(_DEVICE)
        floats = [number for number in numbers if type(number) is float]
        integers = tuple([n for n in numbers if type(n) is not float]) if floats else numbers
        twin = self.fixed.get((dtype, integers))
        if twin is not None:
            result = twin(*tensors, *floats)
            if lookup_library.is_answered(result):
                return result
        key = dtype, numbers, *[None if x is None else _kind(x) for x in tensors]
        if key in self.tried or cuda.is_capturing():
            return None
        if len(self.tried) >= _MOST:
            self.tried.clear()
        found = self._first(dtype, integers, numbers, tensors)
        self.tried.add(key)  # not what raised
        return found

    def _first(
        self, dtype: torch.dtype, integers: tuple[Any, ...], numbers: Numbers, tensors: Tensors
    ) -> Any:
        """A call of a kind that was not tried yet, which is entered if it can be."""
        found = self.twin(dtype)
        given = autocast.cast(self.operation.inputs, tensors, _DEVICE, torch.Tensor.to)
        if found is None or all(x is y for x, y in zip(given, tensors, strict=True)):
            return None
        twin = found.for_integers(integers)
        if twin is not None:
            if len(self.fixed) >= _MOST:
                self.fixed.clear()
            self.fixed[dtype, integers] = twin
        attributes = unflatten(self.operation.attributes, numbers)
        known = _Entering(found, tensors)
        with compat.without_autocast(_DEVICE):
            outputs = self._without_casts(tensors, given, attributes, known)
            if outputs is None:
                outputs = evaluation.evaluate(self.operation, given, attributes, known)
        return outputs[0] if len(outputs) == 1 else outputs

    def _without_casts(
        self,
        tensors: Tensors,
        given: Tensors,
        attributes: Sequence[Any],
        known: evaluation.Known,
    ) -> Outputs | None:
        """The outputs by kernels that round float32 themselves; None where casts are needed."""
        call = evaluation.prepare(self.operation, given, attributes)
        cast = [
            (declared.name, wide)
            for declared, wide, narrow in zip(self.operation.inputs, tensors, given, strict=True)
            if wide is not narrow
        ]
        are_wide = all(wide is not None and wide.dtype is torch.float32 for _, wide in cast)
        is_known = call.types.shared in _NARROW and call.types.real == "f32" and are_wide
        if not is_known or self.operation.faults or library_call.is_asked(call):
            return None
        names = tuple(name for name, _ in cast)
        rounding = replaced(call, tensors=tensors, unrounded=names)
        if not _are_taken_as_they_are(rounding, call):
            return None
        try:
            return evaluation.computed(rounding, known)
        except NotMadeError:
            return None

    def twin(self, dtype: torch.dtype) -> lookup.Twin | None:
        """What runs calls that were seen before whose tensors are cast to a type."""
        with lookup_library.LOCK:
            if dtype not in self.twins:
                name = f"{self.operation.registered_name}_{str(dtype).removeprefix('torch.')}"
                self.twins[dtype] = lookup.twin(self.operation, name, is_cast=False)
            return self.twins[dtype]


def _are_taken_as_they_are(rounding: Call, call: Call) -> bool:
    """Whether kernels have inputs where they lie, and results the format that casts give.

    What is copied first is cast at once by the table. A cast of a view has no gaps, so that it may
    be in another format.
    """
    inputs = zip(call.operation.inputs, rounding.tensors, strict=True)
    given = [(declared, x) for declared, x in inputs if declared.name in rounding.unrounded]
    for declared, x in given:
        assert x is not None, "what is absent has no type"
        if evaluation.flattened(x.resolve_neg(), declared).data_ptr() != x.data_ptr():
            return False
    pairs = zip(call.operation.outputs, call.shapes.outputs, strict=True)
    before = len(call.leading) - 1
    ranks = {len(shape) + before * output.batched for output, shape in pairs}
    return all(rounding.format_of(rank) == call.format_of(rank) for rank in ranks)


_CASTS: dict[str, _Casts] = {}
"""By the names of ops, each of which the dispatcher knows once."""


def _can_be_entered(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor has its numbers in memory, of a type that kernels know."""
    if tensor is None:
        return True
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.dtype not in _DTYPES:
        return False
    return compat.has_memory(tensor) and not compat.is_zero_tensor(tensor)


def _kind(tensor: torch.Tensor) -> Any:
    """What decides whether a call can be looked up."""
    return tensor.shape, tensor.stride(), tensor.dtype, lookup_library.place_of(tensor)


@record
class _Entering:
    """Where a call is entered for the tensors before their casts."""

    twin: lookup.Twin
    given: Tensors

    def enter(self, call: Call, outputs: Outputs, operands: Operands) -> None:
        """Of C kernels: none, since tensors are on a GPU."""

    def enter_launched(
        self, call: Call, outputs: Outputs, operands: Operands, launched: Launched
    ) -> None:
        """See `lookup.Twin`."""
        self.twin.enter_launched(call, outputs, operands, launched, self.given)

    def enter_library(self, call: Call, plan: Plan | Multiplication, output: torch.Tensor) -> None:
        """Of PyTorch's library: as a call of the casts, which are made in Python again."""
        twin = registration.twin(call.operation.registered_name)
        if twin is not None:
            twin.enter_library(call, plan, output)
