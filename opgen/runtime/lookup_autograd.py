"""Autograd for eager calls on plain tensors: the same derivatives, found once for each shape.

What `autograd` works out in every backward pass (which derived op computes a gradient, from which
tensors, with which sizes) depends on shapes and attributes only. Here it is kept. What does not
fit the quick way, such as an output without a cotangent, goes through `autograd`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from opgen.runtime import (
    autograd,
    checks,
    compat,
    lookup_caller,
    lookup_library,
    lookup_pair,
    partners,
    primals,
    registration,
)
from opgen.runtime.description import GENERIC, Gradient, Shape
from opgen.runtime.lookup_table import MAX_ENTRIES
from opgen.runtime.primals import Kind, Point
from opgen.runtime.record import record, replaced
from opgen.runtime.schema import Number, Numbers, flatten, told_apart

if TYPE_CHECKING:
    from opgen.runtime.lookup_kept import Keeps, Way
    from opgen.runtime.operation import Operation

_MOST = MAX_ENTRIES
"""For how many kinds of calls it is kept what their gradients are: for those that are looked up."""


def has_float_attributes(operation: Operation) -> bool:
    """Whether some of its numbers are floats."""
    return any(attribute.type == "float" for attribute in operation.attributes)


_TRIED = 3
"""How often a pair is asked for in vain: after two calls its ops are known, in the third it is."""


class Pair:
    """What may compute a later step as well: both gradients, or None.

    It is asked before the ops of the two, unless it had no answer in the first calls. Later it may
    have none for numbers that are not finite, which says nothing of the next call.
    """

    __slots__ = ("both", "misses", "other")

    def __init__(self, other: Step, both: lookup_pair.Both) -> None:
        self.other, self.both, self.misses = other, both, 0

    @property
    def is_likely(self) -> bool:
        """Whether it had an answer once, or was not asked often."""
        return self.misses < _TRIED

    def answer(self, given: list[Any], numbers: tuple[Number, ...], other: list[Any]) -> Any:
        """Both gradients, or None."""
        found = self.both(given, numbers, other, self.other.numbers)
        self.misses = self.misses + 1 if found is None else -sys.maxsize
        return found


@record
class Step:
    """Gradients that one op computes: where they go, the op, its numbers, its tensors' sources.

    A source is the position of an input, or -1 - the position of an output's cotangent.
    """

    at: int  # of a single gradient
    together: tuple[int, ...]  # of several; else empty
    derived: Operation
    numbers: tuple[Number, ...]
    sources: tuple[int, ...]
    twin: Callable[..., Any] | None
    floats: tuple[float, ...]
    beside: Pair | None = None


class Left(NamedTuple):
    """What a call leaves for its gradients beside inputs: the way it went, the names of tensors
    that are saved for it, and its outputs that gradients may read, by name, with their versions."""

    way: Way
    names: tuple[str, ...]
    outputs: tuple[tuple[str, torch.Tensor, int], ...] = ()


class Plans(dict[Any, tuple[Step, ...]]):
    """The steps of backward passes, by what they depend on; of a limited number of these."""

    def add(self, key: Any, steps: tuple[Step, ...]) -> None:
        """Remember the steps for a key."""
        if len(self) >= _MOST:
            self.clear()
        self[key] = steps


def recorded(
    operation: Operation,
    run: Callable[..., Any],
    library: Callable[[Sequence[Any], tuple[Number, ...]], Any] | None,
    keeps: Keeps | None = None,
) -> Callable[..., Any]:
    """A function of a twin, numbers and tensors that calls the op and records the call.

    The twin is one for these integers, or None; `run` takes tensors and all numbers; `library` is
    that of `lookup_caller.Ways`; calls that keep something go by `keeps`.
    """
    backward = _backward(operation, keeps)
    if len(operation.inputs) == 1 and len(operation.outputs) == 1 and keeps is None:
        backward = _backward_by_twin(operation, backward)
    return function_of(operation, _forward(operation, run, library, keeps), backward)


def _forward(
    operation: Operation,
    run: Callable[..., Any],
    library: Callable[[Sequence[Any], tuple[Number, ...]], Any] | None,
    keeps: Keeps | None,
) -> Callable[..., Any]:
    """The call of an op, which keeps what gradients take."""
    has_floats = has_float_attributes(operation)
    kept_of: dict[Any, tuple[int, ...]] = {}
    is_single = len(operation.outputs) == 1
    fixed = [
        at
        for at, output in enumerate(operation.outputs)
        if output.dtype not in (*GENERIC, *checks.FLOATING)
    ]
    answer, is_suspended = lookup_library.ask_python(), lookup_library.is_suspended

    def forward(ctx: Any, twin: Any, numbers: tuple[Number, ...], *tensors: Any) -> Any:
        result: Any = answer if is_single else (answer,)
        more: tuple[torch.Tensor, ...] = ()
        if keeps is not None:
            found = keeps.forward(ctx.needs_input_grad[2:], tensors, numbers)
            ctx.left = None
            if found is not None:
                result, more, ctx.left = found
                result = result[0] if is_single else result
        if twin is not None and (result if is_single else result[0]) is answer:
            floats = [each for each in numbers if type(each) is float] if has_floats else ()
            result = twin(*tensors, *floats)
        if (result if is_single else result[0]) is answer:
            result = None
            if library is not None and not is_suspended():
                result = library(tensors, numbers)
            if result is None:
                result = run(*tensors, *numbers)
        wanted = ctx.needs_input_grad
        kept = kept_of.get(wanted)
        if kept is None:
            kept = primals.needed(operation, wanted[2:], forward_mode=False)
            if primals.is_known(operation, wanted[2:]):
                kept_of[wanted] = kept
        shapes = tuple([None if tensor is None else tensor.shape for tensor in tensors])
        ctx.call = shapes, numbers, kept
        if kept or more:
            ctx.save_for_backward(*[tensors[at] for at in kept], *more)
        if not is_single:
            ctx.kinds = tuple(map(Kind.of, result))
            ctx.set_materialize_grads(False)
            if fixed:
                ctx.mark_non_differentiable(*[result[at] for at in fixed])
        return result

    return forward


def _backward(operation: Operation, keeps: Keeps | None) -> Callable[..., Any]:
    """The gradients of a call, by steps that are known where nothing but plain tensors is in play.

    A compiler that traces a backward pass must meet ops, not their twins.
    """
    count, is_single, plans = len(operation.inputs), len(operation.outputs) == 1, Plans()
    has_floats = has_float_attributes(operation)
    is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
    is_plain, is_suspended = lookup_caller.is_plain, lookup_library.is_suspended

    def backward(ctx: Any, *cotangents: Any) -> Any:
        shapes, numbers, kept = ctx.call
        wanted = ctx.needs_input_grad[2:]
        if keeps is not None and ctx.left is not None:
            saved = ctx.saved_tensors
            found = keeps.backward(ctx.left, ctx.call, saved, wanted, cotangents)
            if not compat.graph_is_kept():
                ctx.left = None
            if found is not None:
                return (None, None, *found)
            saved = saved[: len(kept)]
        else:
            saved = ctx.saved_tensors if kept else ()
        is_looked_up = is_single and not is_compiling() and not is_suspended()
        steps: tuple[Step, ...] | None = ()
        if is_looked_up:
            is_quick = not is_grad_enabled() and is_plain() and type(cotangents[0]) is torch.Tensor
            on_gpu = is_quick and cotangents[0].is_cuda
            on_cpu = is_quick and cotangents[0].is_cpu
            given = told_apart(numbers) if has_floats else numbers
            key = wanted, shapes, given, is_quick, on_gpu, on_cpu
            steps = plans.get(key)
            if steps is None:
                given_shape = cotangents[0].shape if on_gpu else None
                steps = plan(
                    *(operation, wanted, shapes, numbers),
                    is_last=is_quick,
                    on_gpu=given_shape,
                    on_cpu=on_cpu,
                )
                plans.add(key, steps)
        if is_looked_up and on_cpu:
            cotangents = (autograd.without_repeats(cotangents[0], saved),)
        if not steps:
            kinds = ctx.kinds if not is_single else (Kind.of(cotangents[0]),)
            point = point_of(operation, numbers, shapes, kept, saved, kinds)
            return (None, None, *autograd.gradients(point, wanted, cotangents))
        found = computed(steps, cotangents, kept, saved, count, is_quick=is_quick)
        return (None, None, *found)

    return backward


def _backward_by_twin(operation: Operation, in_general: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a linear op of one tensor: often it takes less time than to find the way.

    It is what the twin of one op makes of the cotangent. What is not comes from `in_general`.
    """
    twins: dict[Any, Callable[..., Any]] = {}
    is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
    is_plain, answer = lookup_caller.is_plain, lookup_library.ask_python()

    def find(
        shapes: tuple[Shape, ...], numbers: tuple[Number, ...], on_gpu: Shape | None
    ) -> Callable[..., Any]:
        on_cpu = on_gpu is None
        steps = plan(
            operation, (True,), shapes, numbers, is_last=True, on_gpu=on_gpu, on_cpu=on_cpu
        )
        is_direct = len(steps) == 1 and steps[0].sources == (-1,) and not steps[0].floats
        twin = steps[0].twin if is_direct else None
        return _asks_python if twin is None else twin

    def backward(ctx: Any, cotangent: Any) -> Any:
        shapes, numbers, kept = ctx.call
        is_quick = not kept and not is_grad_enabled() and not is_compiling() and is_plain()
        if is_quick and type(cotangent) is torch.Tensor:
            on_cpu = cotangent.is_cpu
            key = shapes, numbers, on_cpu
            twin = twins.get(key) if on_cpu or cotangent.is_cuda else _asks_python
            if twin is None:
                if len(twins) >= _MOST:
                    twins.clear()
                on_gpu = None if on_cpu else cotangent.shape
                twin = twins[key] = find(shapes, numbers, on_gpu)
            result = twin(autograd.without_repeats(cotangent, ()) if on_cpu else cotangent)
            if result is not answer:
                return None, None, result
        return in_general(ctx, cotangent)

    return backward


def _asks_python(_cotangent: torch.Tensor) -> torch.Tensor:
    return lookup_library.ask_python()


def function_of(
    operation: Operation, forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """What calls an op by `forward`, and has its gradients by `backward`."""
    function = type(
        operation.name,
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )
    return compat.fast_apply(function)


def point_of(
    operation: Operation,
    numbers: Sequence[Number],
    shapes: Sequence[Shape | None],
    kept: Sequence[int],
    saved: Sequence[torch.Tensor | None],
    outputs: Sequence[Kind],
) -> Point:
    """Where an op is differentiated; `kept` are the positions of the `saved` inputs."""
    names = (operation.inputs[at].name for at in kept)
    return Point(operation, numbers, shapes, dict(zip(names, saved, strict=True)), outputs)


def computed(
    steps: Sequence[Step],
    cotangents: Sequence[torch.Tensor],
    kept: Sequence[int],
    saved: Sequence[torch.Tensor | None],
    count: int,
    *,
    is_quick: bool,
    instead: Callable[[Step, list[Any]], Sequence[torch.Tensor] | None] | None = None,
) -> list[Any]:
    """The gradients of the inputs of an op, as many as it has; None for those that no step gives.

    `kept` are the positions of the `saved` inputs. `instead` gives what a step computes of the
    tensors that it reads, or None, if its op is not to be run. Where nothing is recorded it
    `is_quick`.
    """
    answer = lookup_library.ask_python()
    found: list[Any] = [None] * count
    for step in steps:
        if found[step.at] is not None:
            continue
        given = _given(step, cotangents, kept, saved)
        if instead is not None:
            gradients = instead(step, given)
            if gradients is not None:
                _place(found, step, gradients)
                continue
        if is_quick and step.beside is not None and step.beside.is_likely:
            other = step.beside.other
            pair = step.beside.answer(given, step.numbers, _given(other, cotangents, kept, saved))
            if pair is not None:
                found[step.at], found[other.at] = pair
                continue
        if is_quick and step.twin is not None:
            result = step.twin(*given, *step.floats)
            if step.together:
                if result[0] is not answer:
                    _place(found, step, result)
                    continue
            elif result is not answer:
                found[step.at] = result
                continue
        _place(found, step, step.derived.apply(given, step.numbers))
    return found


def _given(
    step: Step,
    cotangents: Sequence[torch.Tensor],
    kept: Sequence[int],
    saved: Sequence[torch.Tensor | None],
) -> list[Any]:
    """The tensors that a step reads."""
    return [
        cotangents[-1 - source] if source < 0 else saved[kept.index(source)]
        for source in step.sources
    ]


def _place(found: list[Any], step: Step, gradients: Sequence[torch.Tensor]) -> None:
    """Put gradients where they go."""
    for at, gradient in zip(step.together or (step.at,), gradients, strict=True):
        found[at] = gradient


def plan(
    operation: Operation,
    wanted: Sequence[bool],
    shapes: Sequence[Any],
    numbers: Sequence[Number],
    *,
    is_last: bool,
    on_gpu: Shape | None = None,
    on_cpu: bool = False,
) -> tuple[Step, ...]:
    """How to compute the gradients of a call; sizes are integers here.

    No steps at all where one reads an input that was left out, for which `autograd` makes a tensor.
    If they are the last ones, one op may compute several: it is not differentiated again. `on_gpu`
    is the shape of the output where CUDA kernels compute them, `on_cpu` tells that C kernels do.
    """
    known, optional = operation.symbols(shapes, numbers)
    inputs = [
        optional.get(declared.name) if shape is None else shape
        for declared, shape in zip(operation.inputs, shapes, strict=True)
    ]
    places = {declared.name: at for at, declared in enumerate(operation.inputs)}
    places |= {
        primals.COTANGENT + output.name: -1 - at for at, output in enumerate(operation.outputs)
    }
    names = [
        declared.name
        for at, declared in enumerate(operation.inputs)
        if wanted[at] and operation.is_differentiable(declared)
    ]
    steps = []

    def sizes(derived: Operation, link: Gradient) -> Mapping[str, Numbers]:
        sources = (places[source] for source in link.tensors)
        found = [inputs[at] if at >= 0 else on_gpu for at in sources]
        return derived.symbols(found, flatten(known[each.name] for each in derived.attributes))[0]

    def in_one_pass() -> tuple[Operation, Gradient] | None:
        return partners.partners(operation, names, shapes, numbers)

    ways = autograd.derivatives(
        *(operation, names),
        is_last=is_last,
        on_gpu=None if on_gpu is None else sizes,
        on_cpu=in_one_pass if on_cpu else None,
    )
    for together, derived, link in ways:
        if any(places[source] >= 0 and shapes[places[source]] is None for source in link.tensors):
            return ()
        given = flatten(known[attribute.name] for attribute in derived.attributes)
        sources = tuple(places[source] for source in link.tensors)
        goes = tuple(places[each] for each in together)
        several = goes if len(goes) > 1 else ()
        steps.append(step_of(goes[0], several, derived, given, sources))
    return _paired(steps)


def step_of(
    at: int,
    together: tuple[int, ...],
    derived: Operation,
    numbers: tuple[Number, ...],
    sources: tuple[int, ...],
) -> Step:
    """A step with the twin of its op; see `Step`."""
    twin = registration.twin(derived.registered_name)
    integers = tuple(number for number in numbers if not isinstance(number, float))
    fixed = None if twin is None else twin.for_integers(integers)
    floats = tuple(number for number in numbers if isinstance(number, float))
    return Step(at, together, derived, numbers, sources, fixed, floats)


def _paired(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps, where two of them may be one call of a library the first of these knows the other.

    An op has one such pair at most: the gradients of the two factors of a convolution.
    """
    for one, other in itertools.combinations(steps, 2):
        both = lookup_pair.both_gradients(one.derived, other.derived)
        if both is not None:
            return tuple(
                replaced(each, beside=Pair(other, both)) if each is one else each for each in steps
            )
    return tuple(steps)
