"""The functions behind ops: the shortest way that a call may take.

Where nothing but plain tensors and autograd is in play, a call goes to the twin of an op
(`lookup.Twin`), everywhere else to the op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import autocast, compat
from opgen.runtime.lookup_library import ask_python, is_suspended
from opgen.runtime.record import record
from opgen.runtime.schema import Number

if TYPE_CHECKING:
    from opgen.runtime.lookup import Twin
    from opgen.runtime.operation import Operation

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})


def is_plain() -> bool:
    """Whether nothing but plain tensors and autograd can be in play."""
    return not (
        is_suspended()
        or compat.transforms_are_active()
        or compat.dispatch_modes()
        or compat.function_modes_are_active()
        or compat.forward_ad._current_level >= 0
    )


@record
class Ways:
    """The ways to run an op, from the most general one to the fastest.

    `check` gives the numbers of a caller's arguments and raises what is wrong with these, `in_full`
    does so and runs the op on them; `overload` is the op of the dispatcher; `record` runs the twin
    and records the call for autograd; `library` gives what PyTorch's library computes for tensors
    and numbers that it knows, else None; `unrounded` what kernels do that need no casts under
    autocast, else None; `on_gpu` what a table does that casts CUDA tensors itself, else None.
    `keeps` says whether calls may keep more than inputs for their gradients.
    """

    check: Callable[..., tuple[Number, ...]]
    in_full: Callable[..., Any]
    overload: Callable[..., Any]
    record: Callable[..., Any]
    twin: Callable[[], Twin | None]
    library: Callable[[Sequence[Any], tuple[Number, ...]], Any] | None
    unrounded: Callable[[tuple[Number, ...], Sequence[Any]], Any] | None
    on_gpu: Callable[[tuple[Number, ...], Sequence[Any]], Any] | None
    keeps: bool


def derived_caller(ways: Ways, is_public: bool) -> Callable[[Sequence[Any], Sequence[Number]], Any]:
    """The function behind an op for tensors and numbers that are known to fit it.

    Autocast is for public ops: tensors of derived ones were cast on the way forward.
    """
    overload, record, twin_of, answer = ways.overload, ways.record, ways.twin, ask_python()
    library = ways.library
    are_recorded = compat.are_recorded
    is_compiling = torch.compiler.is_compiling

    def call(tensors: Sequence[Any], numbers: Sequence[Number]) -> Any:
        if is_compiling() or not is_plain():
            return overload(*tensors, *numbers)
        for tensor in tensors:
            if type(tensor) not in _PLAIN:
                return overload(*tensors, *numbers)
        if are_recorded(*tensors):
            if compat.autocast_is_active() or compat.is_jit_tracing():
                return overload(*tensors, *numbers)
            return record(None, tuple(numbers), *tensors)
        found = twin_of()
        if found is not None:
            result = found.call(*tensors, *numbers)
            if result is not answer and not (type(result) is tuple and result[0] is answer):
                return result
        is_cast = is_public and compat.autocast_is_active()
        if library is not None and not is_cast and not compat.is_jit_tracing():
            result = library(tensors, tuple(numbers))
            if result is not None:
                return result
        return overload(*tensors, *numbers)

    return call


def public_caller(operation: Operation, ways: Ways) -> Callable[..., Any]:
    """The function behind a public op: tensors and then attributes, in declared order.

    It is written out for the op's signature, as `dataclasses` does it: a loop over the arguments
    would take longer than PyTorch's own ops do. No text of a spec is in it.
    """
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(_caller_source(operation), namespace)
    make: Callable[..., Callable[..., Any]] = namespace["make"]
    choices = [
        {word: at for at, word in enumerate(attribute.choices)}
        for attribute in operation.attributes
    ]
    return make(
        ways,
        ask_python(),
        choices,
        torch.compiler.is_compiling,
        compat,
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch.Tensor,
        torch.nn.Parameter,
        is_suspended,
        torch.is_autocast_enabled,
        lambda call: [autocast.eager(operation, call, device) for device in ("cpu", "cuda")],
        ways.unrounded,
        ways.on_gpu,
    )


_CALLER = """
def make(ways, answer, choices, is_compiling, compat, is_grad_enabled, infers,
         Tensor, Parameter, suspended, autocasts, cast, unrounded, on_gpu):
    in_full, overload, record, find_twin = ways.in_full, ways.overload, ways.record, ways.twin
    transforms, modes = compat.transforms_are_active, compat.dispatch_modes
    function_modes, forward_ad = compat.function_modes_are_active, compat.forward_ad
    any_requires_grad = compat.any_requires_grad
    twins = {{}}

    autocast, tracing = compat.autocast_is_active, compat.is_jit_tracing
    library = ways.library

    def aside(numbers, {parameters}):
        if tracing() or suspended():
            return in_full({parameters})
        on_cpu, on_cuda = autocasts("cpu"), autocasts("cuda")
        for tensor in ({listed}):
            if tensor is not None:
                on_cpu, on_cuda = on_cpu and tensor.is_cpu, on_cuda and tensor.is_cuda
        if on_cuda:
            result = on_gpu(numbers, ({listed}))
            return cuda_cast({parameters}) if result is None else result
        result = unrounded(numbers, ({listed})) if on_cpu else None
        if result is not None:
            return result
        return cpu_cast({parameters}) if on_cpu else in_full({parameters})

    def first(integers, numbers, {parameters}):
        if autocast():
            ways.check({parameters})  # numbers that no call had yet
            result = aside(numbers, {parameters})
        elif ways.keeps and is_grad_enabled() and {wanted} and not infers() and not tracing():
            ways.check({parameters})
            result = record(None, numbers, {tensors})
        else:
            result = in_full({parameters})
        found = find_twin()
        if found is not None:
            twin = found.for_integers(integers)
            if twin is not None:
                twins[integers] = twin
        return result

    def call({parameters}):
        if is_compiling():
            return in_full({parameters})
{prepare}
        if ({plain}
            not transforms() and not modes() and not function_modes()
            and forward_ad._current_level < 0
        ):
            twin = twins.get(({integers}))
            if twin is None:
                return first(({integers}), ({numbers}), {parameters})
            if is_grad_enabled() and {wanted} and not infers():  # as `compat.are_recorded`
                if autocast() or tracing():
                    return aside(({numbers}), {parameters})
                return record(twin, ({numbers}), {tensors})
            result = twin({fewer})
            if {first} is not answer:
                return result
            if autocast() or tracing():
                return aside(({numbers}), {parameters}){library}
        return in_full({parameters})

    cpu_cast, cuda_cast = cast(call)
    return call
"""

_LIBRARY_CALL = """
            if not suspended():
                result = library(({listed}), ({numbers}))
                if result is not None:
                    return result"""


def _caller_source(operation: Operation) -> str:
    """The text of a function that checks types and calls the twin of an op."""
    tensors = [f"t{at}" for at in range(len(operation.inputs))]
    values = [f"a{at}" for at in range(len(operation.attributes))]
    plain: list[str] = []
    prepare: list[str] = []
    numbers: list[str] = []
    floats: list[str] = []
    integers: list[str] = []
    for name, declared in zip(tensors, operation.inputs, strict=True):
        absent = "" if declared.default is None else f"{name} is None or "
        plain.append(f"({absent}type({name}) is Tensor or type({name}) is Parameter) and")
    for at, (name, attribute) in enumerate(zip(values, operation.attributes, strict=True)):
        if attribute.length is not None:
            alike = ", ".join([name] * attribute.length)
            one = f"({alike},) if type({name}) is int else {name}"
            whole = f"tuple({name}) if type({name}) is list else {one}"
            prepare.append(f"        n{at} = {name} if type({name}) is tuple else {whole}")
            name = f"n{at}"
            items = [f"{name}[{k}]" for k in range(attribute.length)]
            plain.append(f"type({name}) is tuple and len({name}) == {attribute.length} and")
            plain += [f"type({item}) is int and" for item in items]
            integers += items
            numbers += items
        elif attribute.type == "choice":
            plain.append(f"type({name}) is str and {name} in choices[{at}] and")
            integers.append(f"choices[{at}][{name}]")
            numbers.append(integers[-1])
        else:
            # A float that equals an integer, or the other way round, is checked in full.
            kind = "int" if attribute.type == "size" else attribute.type
            plain.append(f"type({name}) is {kind} and")
            (floats if kind == "float" else integers).append(name)
            numbers.append(name)
    few = [f"{name}.requires_grad" for name in tensors]
    is_short = 0 < len(few) <= 2 and all(each.default is None for each in operation.inputs)
    all_tensors, all_numbers = ", ".join(tensors), "".join(f"{each}, " for each in numbers)
    listed = "".join(f"{each}, " for each in tensors)
    library = _LIBRARY_CALL.format(listed=listed, numbers=all_numbers)
    return _CALLER.format(
        parameters=", ".join((*tensors, *values)),
        prepare="\n".join(prepare),
        plain="\n            ".join(plain),
        wanted=f"({' or '.join(few)})" if few and is_short else f"any_requires_grad({all_tensors})",
        tensors=all_tensors,
        listed=listed,
        numbers=all_numbers,
        library=library if operation.may_be_asked_of_library or operation.apart else "",
        fewer=", ".join((*tensors, *floats)),
        integers="".join(f"{each}, " for each in integers),
        first="result" if len(operation.outputs) == 1 else "result[0]",
    )
