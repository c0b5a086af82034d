"""Calls under autocast without its casts: kernels round float32 to bfloat16 themselves.

A cast is a pass over memory and a new tensor, which takes as long as half of what an op that moves
data does. So a large input is given to kernels as it is, where these load every element about once
(`opgen.passes.unrounded`), and gradients come from kernels in the type that is wanted. Where they
load it more often it is cast piece by piece, see `lookup_casts`. Inputs that a backward pass reads
are cast and kept, as are small ones: that costs little, and what is kept takes half of the memory.
Everything else, such as what a library computes, is cast as ever.

Autograd sees a cast input and its cast both: the gradient of the last order goes to the input
itself, and where it is to be differentiated again it goes to the cast, of which PyTorch knows the
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import (
    autograd,
    compat,
    evaluation,
    kept_memory,
    library_call,
    lookup,
    lookup_autograd,
    lookup_caller,
    lookup_casts,
    lookup_library,
    primals,
    special,
)
from opgen.runtime.description import GENERIC
from opgen.runtime.primals import Kind
from opgen.runtime.record import record, replaced
from opgen.runtime.schema import Number, told_apart, unflatten
from opgen.runtime.special import NotMadeError
from opgen.runtime.toolchain import NoCompilerError, find_compiler

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call
    from opgen.runtime.lookup_autograd import Step
    from opgen.runtime.operation import Operation

_MOST = 1024
_NARROW, _WIDE = torch.bfloat16, torch.float32

Tensors = Sequence[torch.Tensor | None]
Numbers = tuple[Number, ...]


# ---------------------------------------------------------------------------- one op
@dataclass
class _Kernels(evaluation.HandsOn):
    """The calls of an op whose kernels round float32: large inputs, or of a gradient its outputs.

    `refused` are calls that need casts.
    """

    operation: Operation
    refused: set[Any] = field(default_factory=set)
    fixed: dict[Numbers, Callable[..., Any]] = field(default_factory=dict)
    _twins: list[lookup.Twin | None] = field(default_factory=list)

    @property
    def twin(self) -> lookup.Twin | None:
        """What runs calls that were seen before; None where calls cannot be looked up."""
        if not self._twins:
            with lookup_library.LOCK:
                if not self._twins:
                    name = f"{self.operation.registered_name}_unrounded"
                    self._twins.append(lookup.twin(self.operation, name, is_cast=False))
        return self._twins[0]

    def __call__(self, tensors: Tensors, numbers: Numbers) -> tuple[torch.Tensor, ...] | None:
        """The outputs, of which large ones of a gradient are float32; None where casts are needed.

        Inputs that the op does not round are bfloat16, if their type is not declared.
        """
        if lookup_library.build_meanwhile():
            return self.made(tensors, numbers)  # kernels are compiled beside that library
        if self.twin is None:
            return None
        key = _key(tensors, numbers) if self.refused else None
        if key in self.refused:
            return None
        call_fixed = self.fixed.get(numbers)
        result = (call_fixed or self._fixed(numbers))(*tensors)
        if lookup_library.is_answered(result):
            return (result,) if isinstance(result, torch.Tensor) else tuple(result)
        return self.made(tensors, numbers)

    def made(self, tensors: Tensors, numbers: Numbers) -> tuple[torch.Tensor, ...] | None:
        """The same for a call that was not seen before, which is looked up or refused then."""
        found: tuple[torch.Tensor, ...] | None = None
        call = self.checked(tensors, numbers)
        if call is not None:
            try:
                return evaluation.computed(call, self)
            except NotMadeError:
                found, is_entered = self.cast(tensors, numbers)
                if is_entered:
                    return found
        if len(self.refused) >= _MOST:
            self.refused.clear()
        self.refused.add(_key(tensors, numbers))
        return found

    def known(self) -> lookup.Twin | None:
        """See `HandsOn`."""
        return self.twin

    def cast(
        self, tensors: Tensors, numbers: Numbers
    ) -> tuple[tuple[torch.Tensor, ...] | None, bool]:
        """The outputs by kernels that need casts, and whether the next such call is looked up."""
        if not self.operation.is_public or len(self.operation.outputs) != 1:
            return None, False
        narrow = [
            x if x is None or declared.dtype not in GENERIC else kept_memory.cast(x, _NARROW)
            for declared, x in zip(self.operation.inputs, tensors, strict=True)
        ]
        attributes = unflatten(self.operation.attributes, numbers)
        call = evaluation.prepare(self.operation, narrow, attributes)
        outputs = evaluation.computed(call)
        if self.twin is None:
            return outputs, False
        return outputs, lookup_casts.enter(self.twin, call, tensors, outputs[0])

    def _fixed(self, numbers: Numbers) -> Callable[..., Any]:
        """The twin with these numbers: fewer arguments are faster to hand over."""
        assert self.twin is not None
        integers = tuple(number for number in numbers if isinstance(number, int))
        found, general = None, self.twin.call
        if len(integers) == len(numbers):
            found = self.twin.for_integers(integers)
        if found is None:
            return lambda *tensors: general(*tensors, *numbers)
        self.fixed[numbers] = found
        return found

    def checked(self, tensors: Tensors, numbers: Numbers) -> Call | None:
        """The call, if it may be one; raises what is wrong with it."""
        call = narrow_call(self.operation, tensors, numbers)
        if call.types.key[:2] != ("bf16", "f32") or self.operation.faults:
            return None
        if library_call.is_asked(call) or not _has_compiler():
            return None
        if self.operation.is_public:
            declared = zip(self.operation.inputs, tensors, strict=True)
            names = [each.name for each, x in declared if each.dtype in GENERIC and _is_wide(x)]
        else:
            shapes = zip(self.operation.outputs, call.shapes.outputs, strict=True)
            names = [o.name for o, shape in shapes if o.dtype in GENERIC and _is_large(shape)]
        return replaced(call, tensors=tensors, unrounded=tuple(names)) if names else None


def narrow_call(operation: Operation, tensors: Tensors, numbers: Numbers) -> Call:
    """The checked call after all casts, on tensors that hold nothing."""
    like = [
        torch.empty_strided(x.shape, x.stride(), dtype=_NARROW)
        if x is not None and declared.dtype in GENERIC
        else x
        for declared, x in zip(operation.inputs, tensors, strict=True)
    ]
    return evaluation.prepare(operation, like, unflatten(operation.attributes, numbers))


_KERNELS: dict[str, _Kernels] = {}


def _kernels(operation: Operation) -> _Kernels:
    name = operation.registered_name
    if name not in _KERNELS:
        with lookup_library.LOCK:
            if name not in _KERNELS:
                _KERNELS[name] = _Kernels(operation)
    return _KERNELS[name]


def _key(tensors: Tensors, numbers: Numbers) -> Any:
    given = [None if each is None else (each.shape, each.stride(), each.dtype) for each in tensors]
    return numbers, *given


def _is_wide(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.dtype is _WIDE


def _is_large(shape: Sequence[int]) -> bool:
    size = 1
    for extent in shape:
        size *= extent
    return size >= special.LARGE


def _has_compiler() -> bool:
    try:
        find_compiler()
    except NoCompilerError:
        return False
    return True


# ---------------------------------------------------------------------------- calls
def caller(operation: Operation) -> Callable[[Numbers, Tensors], Any]:
    """A function of numbers and plain tensors on the CPU; None where autocast is to cast first.

    It is asked where autocast is on.
    """
    generic = [at for at, each in enumerate(operation.inputs) if each.dtype in GENERIC]
    are_recorded = compat.are_recorded
    is_single = len(operation.outputs) == 1
    has_gradient = is_single and operation.outputs[0].dtype in GENERIC
    record = _recorded(operation)

    def call(numbers: Numbers, tensors: Tensors) -> Any:
        if torch.get_autocast_dtype("cpu") is not _NARROW:
            return None
        is_large = False
        for at in generic:
            tensor = tensors[at]
            if tensor is None:
                continue
            if tensor.layout is not torch.strided or tensor.is_nested:
                return None
            if not compat.has_memory(tensor):
                return None
            if tensor.dtype is _WIDE:
                is_large = is_large or tensor.numel() >= special.LARGE
            elif tensor.dtype is not _NARROW:
                return None
        if not is_large:
            return None
        if are_recorded(*tensors):
            return record(numbers, tensors) if has_gradient else None
        given = list(tensors)
        for at in generic:
            tensor = given[at]
            if tensor is not None and tensor.dtype is _WIDE and tensor.numel() < special.LARGE:
                given[at] = tensor.to(_NARROW)
        outputs = _kernels(operation)(given, numbers)
        if outputs is None:
            return None
        return outputs[0] if is_single else outputs

    return call


# ---------------------------------------------------------------------------- autograd
@record
class _About:
    """What a recorded call leaves beside tensors.

    `cast` says which inputs were cast, `wide` which others are float32 and were not; `kept` are
    those whose casts, or which themselves, are saved.
    """

    numbers: Numbers
    shapes: tuple[Any, ...]
    kept: tuple[int, ...]
    wanted: tuple[bool, ...]
    cast: tuple[bool, ...]
    wide: tuple[bool, ...]


def _recorded(operation: Operation) -> Callable[[Numbers, Tensors], Any]:
    """A function that calls an op with one output and records the call; None where casts do it."""
    count = len(operation.inputs)
    generic = [each.dtype in GENERIC for each in operation.inputs]
    apply = _function(operation)
    is_library: dict[Any, bool] = {}

    def record(numbers: Numbers, tensors: Tensors) -> Any:
        key = _key(tensors, numbers)
        goes_there = is_library.get(key)
        if goes_there is None:
            if len(is_library) >= _MOST:
                is_library.clear()
            goes_there = library_call.is_asked(narrow_call(operation, tensors, numbers))
            is_library[key] = goes_there
        if goes_there:
            return None
        wanted = tuple([x is not None and x.requires_grad for x in tensors])
        kept = primals.needed(operation, wanted, forward_mode=False)
        before: list[Any] = [None] * count
        given = list(tensors)
        for at, tensor in enumerate(tensors):
            if tensor is None or not generic[at] or tensor.dtype is not _WIDE:
                continue
            if at in kept or tensor.numel() < special.LARGE:
                before[at], given[at] = tensor, kept_memory.cast(tensor, _NARROW)
        about = _About(
            numbers,
            tuple([None if x is None else x.shape for x in tensors]),
            kept,
            wanted,
            tuple([x is not None for x in before]),
            tuple([each and _is_wide(x) for each, x in zip(generic, given, strict=True)]),
        )
        return apply(about, *before, *given)

    return record


def _function(operation: Operation) -> Callable[..., Any]:
    """The recorded function of a call: inputs that were cast, and then what the op is given."""
    count = len(operation.inputs)
    plans = lookup_autograd.Plans()

    def forward(ctx: Any, about: _About, *tensors: Any) -> Any:
        given = tensors[count:]
        ctx.about = about
        if about.kept:
            ctx.save_for_backward(*[given[at] for at in about.kept])
        if any(about.wide):
            outputs = _kernels(operation)(given, about.numbers)
            if outputs is not None:
                return outputs[0]
            pairs = zip(given, about.wide, strict=True)
            given = tuple([kept_memory.cast(x, _NARROW) if is_wide else x for x, is_wide in pairs])
        torch.set_autocast_enabled("cpu", False)
        try:
            return operation.derived_call(given, about.numbers)
        finally:
            torch.set_autocast_enabled("cpu", True)

    def backward(ctx: Any, cotangent: Any) -> Any:
        about: _About = ctx.about
        saved = ctx.saved_tensors if about.kept else ()
        before: list[Any] = [None] * count
        steps: tuple[Step, ...] | None = ()
        if _is_quick(cotangent):
            key = about.wanted, about.shapes, told_apart(about.numbers)
            steps = plans.get(key)
            if steps is None:
                arguments = operation, about.wanted, about.shapes, about.numbers
                steps = lookup_autograd.plan(*arguments, is_last=True, on_cpu=True)
                plans.add(key, steps)
            cotangent = autograd.without_repeats(cotangent, saved)
        if not steps:
            call = about.numbers, about.shapes, about.kept
            point = lookup_autograd.point_of(operation, *call, saved, (Kind.of(cotangent),))
            found = autograd.gradients(point, about.wanted, (cotangent,))
            pairs = zip(found, about.wide, strict=True)
            wide = [x.to(_WIDE) if is_wide and x is not None else x for x, is_wide in pairs]
            return (None, *before, *wide)

        def instead(step: Step, given: list[Any]) -> tuple[torch.Tensor, ...] | None:
            if not all(about.cast[at] or about.wide[at] for at in step.together or (step.at,)):
                return None
            return _kernels(step.derived)(given, step.numbers)

        found = lookup_autograd.computed(
            *(steps, (cotangent,), about.kept, saved, count), is_quick=True, instead=instead
        )
        for at, gradient in enumerate(found):
            if about.cast[at]:
                before[at], found[at] = _widened(gradient), None
            elif about.wide[at]:
                found[at] = _widened(gradient)
        return (None, *before, *found)

    return lookup_autograd.function_of(operation, forward, backward)


def _is_quick(cotangent: Any) -> bool:
    """Whether a gradient is the last one, and nothing but plain tensors is in play."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not lookup_caller.is_plain():
        return False
    is_on_cpu = type(cotangent) is torch.Tensor and cotangent.is_cpu
    return is_on_cpu and compat.has_memory(cotangent)


def _widened(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else kept_memory.cast(gradient, _WIDE)
