"""Autograd for eager calls on plain tensors: the same derivatives, found once for each shape.

What `autograd` works out in every backward pass (which derived op computes a gradient, from which
tensors, with which sizes) depends on shapes and attributes only. Here it is kept. What does not
fit the quick way, such as an output without a cotangent, goes through `autograd`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import autograd, checks, compat
from opgen.runtime.autograd import Kind, Point
from opgen.runtime.schema import Number, flatten

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

_MOST = 1024


@dataclass(frozen=True, slots=True)
class _Step:
    """One gradient: where it goes, the op, its numbers, and where its tensors come from.

    A source is the position of an input, or -1 - the position of an output's cotangent.
    """

    at: int
    derived: Callable[[Sequence[Any], Sequence[Number]], Any]
    numbers: tuple[Number, ...]
    sources: tuple[int, ...]


def recorded(operation: Operation, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `run` and records how to differentiate it."""
    count = len(operation.inputs)
    rest = (None,) * sum(attribute.length or 1 for attribute in operation.attributes)
    is_single = len(operation.outputs) == 1
    fixed = [
        at
        for at, output in enumerate(operation.outputs)
        if output.dtype not in ("same", "float", *checks.FLOATING)
    ]
    plans: dict[Any, tuple[_Step, ...]] = {}

    def forward(ctx: Any, *arguments: Any) -> Any:
        result = run(*arguments)
        tensors = arguments[:count]
        wanted = ctx.needs_input_grad
        kept = autograd.needed(operation, wanted, forward_mode=False)
        shapes = tuple([None if tensor is None else tensor.shape for tensor in tensors])
        ctx.call = shapes, arguments[count:], kept
        if kept:
            ctx.save_for_backward(*[tensors[at] for at in kept])
        if not is_single:
            ctx.kinds = tuple(map(Kind.of, result))
            ctx.set_materialize_grads(False)
            if fixed:
                ctx.mark_non_differentiable(*[result[at] for at in fixed])
        return result

    def backward(ctx: Any, *cotangents: Any) -> Any:
        shapes, numbers, kept = ctx.call
        saved = ctx.saved_tensors if kept else ()
        wanted = ctx.needs_input_grad
        if not is_single or any(shape is None for shape in shapes):
            tensors = dict(zip((operation.inputs[at].name for at in kept), saved, strict=True))
            kinds = ctx.kinds if not is_single else (Kind.of(cotangents[0]),)
            point = Point(operation, numbers, shapes, tensors, kinds)
            return (*autograd.gradients(point, wanted, cotangents), *rest)
        key = wanted, shapes, numbers
        steps = plans.get(key)
        if steps is None:
            if len(plans) >= _MOST:
                plans.clear()
            steps = plans[key] = _plan(operation, wanted, shapes, numbers)
        found: list[Any] = [None] * count
        for step in steps:
            given = [
                cotangents[-1 - source] if source < 0 else saved[kept.index(source)]
                for source in step.sources
            ]
            found[step.at] = step.derived(given, step.numbers)
        return (*found, *rest)

    function = type(
        operation.name,
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )
    return compat.fast_apply(function)


def _plan(
    operation: Operation,
    wanted: Sequence[bool],
    shapes: Sequence[Any],
    numbers: Sequence[Number],
) -> tuple[_Step, ...]:
    """How to compute the gradients of a call; sizes are integers here."""
    known, _ = operation.symbols(shapes, numbers)
    places = {declared.name: at for at, declared in enumerate(operation.inputs)}
    places |= {
        autograd.COTANGENT + output.name: -1 - at for at, output in enumerate(operation.outputs)
    }
    steps = []
    for at, declared in enumerate(operation.inputs):
        if wanted[at] and operation.is_differentiable(declared):
            derived, link = operation.gradient(declared.name)
            steps.append(
                _Step(
                    at,
                    derived.derived_call,
                    flatten(known[attribute.name] for attribute in derived.attributes),
                    tuple(places[source] for source in link.tensors),
                )
            )
    return tuple(steps)
