"""Autograd for every op: derivatives are ops again, so they are recorded like any other.

The backward pass calls the gradient of each input. Forward mode needs no ops of its own: the
gradient is linear in the cotangents, and its gradient with respect to one is the derivative of that
output along a direction of the input. Both modes agree therefore by construction, also where the
author of a spec wrote a gradient by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import compat, cuda, partners, sharding, special
from opgen.runtime.description import Gradient
from opgen.runtime.layout import memory_format
from opgen.runtime.primals import (
    COTANGENT,
    Point,
    is_cotangent,
    save,
    shape_of,
    tensor_of,
    with_zeros,
    zeros,
)
from opgen.runtime.schema import Numbers, flatten

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation


def kernel(current: Callable[[], Operation], overload: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an op for the Autograd key."""
    record = _recorded(current, overload)

    def call(*arguments: Any) -> Any:
        sharding.register(current())
        if compat.transforms_are_active():
            with compat.single_level_autograd():
                return record(*arguments)
        wanted = torch.is_grad_enabled() and compat.any_requires_grad(*arguments)
        # Compilers do not keep the dual level up to date: within a mode, always record.
        if wanted or compat.dual_level_is_active() or compat.dispatch_modes():
            return record(*arguments)
        with compat.below_autograd():
            return overload(*arguments)

    return call


def _recorded(current: Callable[[], Operation], overload: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `overload` below autograd and records how to differentiate it."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        if compat.transforms_are_active():
            with compat.outer_levels_recorded():
                result = overload(*arguments)
        else:
            with compat.below_autograd():
                result = overload(*arguments)
        save(ctx, current(), arguments, result)
        return result

    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        point = Point.of(ctx)
        rest = (None,) * (len(ctx.needs_input_grad) - len(point.operation.inputs))
        return (*gradients(point, ctx.needs_input_grad, cotangents), *rest)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        if compat.transforms_are_active():
            with compat.outer_levels_differentiated():
                found = _tangents(Point.of(ctx, compat.primal), tangents)
        else:
            found = _tangents(Point.of(ctx), tangents)
        return found[0] if len(found) == 1 else tuple(found)

    function = type(
        current().name,
        (torch.autograd.Function,),
        {
            "forward": staticmethod(forward),
            "backward": staticmethod(backward),
            "jvp": staticmethod(jvp),
        },
    )
    return compat.fast_apply(function)


# ---------------------------------------------------------------------------- reverse mode
def gradients(
    point: Point, wanted: Sequence[bool], cotangents: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradient of every input that wants one."""
    operation = point.operation
    found: list[torch.Tensor | None] = [None] * len(operation.inputs)
    if all(cotangent is None for cotangent in cotangents):
        return found
    is_last = not torch.is_grad_enabled() and _are_plain((*point.tensors.values(), *cotangents))
    if is_last and point.outputs[0].device.type == "cpu":
        saved = tuple(point.tensors.values())
        cotangents = [None if each is None else without_repeats(each, saved) for each in cotangents]
    given = with_zeros(point, cotangents)
    known, optional = operation.symbols(point.shapes, point.numbers)
    names = [
        declared.name
        for at, declared in enumerate(operation.inputs)
        if wanted[at] and operation.is_differentiable(declared)
    ]
    places = {declared.name: at for at, declared in enumerate(operation.inputs)}

    def sizes(derived: Operation, link: Gradient) -> Mapping[str, Numbers]:
        shapes = [shape_of(point, optional, source) for source in link.tensors]
        return derived.symbols(shapes, flatten(known[each.name] for each in derived.attributes))[0]

    on_gpu = sizes if cuda.computes(point.outputs[0].device) else None

    def in_one_pass() -> tuple[Operation, Gradient] | None:
        return partners.partners(operation, names, point.shapes, point.numbers)

    on_cpu = in_one_pass if point.outputs[0].device.type == "cpu" else None
    ways = derivatives(operation, names, is_last=is_last, on_gpu=on_gpu, on_cpu=on_cpu)
    for together, derived, link in ways:
        tensors = [tensor_of(point, optional, given, source) for source in link.tensors]
        numbers = flatten(known[attribute.name] for attribute in derived.attributes)
        for name, gradient in zip(together, derived.apply(tensors, numbers), strict=True):
            found[places[name]] = gradient
    return found


def without_repeats(cotangent: torch.Tensor, saved: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """A large cotangent that has a number once for many cells, as that of `sum()`, cell by cell.

    Kernels for images, and the library, look for rows: without them a filter's gradient would take
    a hundred times as long as this copy.
    """
    if cotangent.numel() < special.LARGE or 0 not in cotangent.stride():
        return cotangent
    return cotangent.contiguous(memory_format=memory_format(cotangent.dim(), saved))


def derivatives(
    operation: Operation,
    names: Sequence[str],
    *,
    is_last: bool,
    on_gpu: Callable[[Operation, Gradient], Mapping[str, Numbers]] | None = None,
    on_cpu: Callable[[], tuple[Operation, Gradient] | None] | None = None,
) -> list[tuple[Sequence[str], Operation, Gradient]]:
    """The ops that compute the gradients of some inputs, with the inputs of each.

    If they are the last ones, one op may compute them together: it is not differentiated again.
    It does so if they share temporaries, and `on_gpu` if one of its kernels computes several;
    that gives the sizes and attributes of a derived op in this call. On CPUs they may share a pass:
    `on_cpu` finds that op.
    """
    joint = operation.joint_gradient(names) if is_last else None
    if joint is None and is_last and on_gpu is not None:
        joint = operation.siblings(names)
        if joint is not None and not _are_one_kernel(joint[0], on_gpu(*joint)):
            joint = None
    if joint is None and is_last and on_cpu is not None:
        joint = on_cpu()
    if joint is not None:
        return [(names, *joint)]
    return [((name,), *operation.gradient(name)) for name in names]


def _are_one_kernel(derived: Operation, known: Mapping[str, Numbers]) -> bool:
    """Whether a CUDA kernel for these sizes and attributes computes several outputs."""
    integers = {name: value for name, value in known.items() if isinstance(value, int)}
    kernels = special.cuda_of(derived, integers, special.Images(()))
    return any(launch.also for launch in kernels.launches)


def _are_plain(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether none is of a subclass, such as one spread over machines, and nothing else listens."""
    listening = compat.transforms_are_active() or bool(compat.dispatch_modes())
    return not listening and all(type(each) in _PLAIN for each in tensors)


_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))


# ---------------------------------------------------------------------------- forward mode
def _tangents(point: Point, tangents: Sequence[Any]) -> list[torch.Tensor | None]:
    """The derivative of every output along the directions of the inputs; none for integers."""
    return [
        _tangent(point, at, tangents) if kind.dtype.is_floating_point else None
        for at, kind in enumerate(point.outputs)
    ]


def _tangent(point: Point, output: int, tangents: Sequence[Any]) -> torch.Tensor:
    """The derivative of an output along the directions of all inputs that have one."""
    operation = point.operation
    total: torch.Tensor | None = None
    for declared, tangent in zip(operation.inputs, tangents, strict=False):
        if tangent is not None and operation.is_differentiable(declared):
            term = _term(point, output, declared.name, tangent)
            if term is not None:
                total = term if total is None else total + term
    return zeros(point.outputs[output]).clone() if total is None else total


def _term(point: Point, output: int, name: str, tangent: torch.Tensor) -> torch.Tensor | None:
    """The derivative of an output along a direction of one input; None if there is none."""
    operation = point.operation
    gradient, link = operation.gradient(name)
    source = COTANGENT + operation.outputs[output].name
    if source not in link.tensors:
        return None
    cotangent = gradient.inputs[link.tensors.index(source)].name
    derived, inner = gradient.gradient(cotangent)
    known, optional = operation.symbols(point.shapes, point.numbers)
    numbers = flatten(known[attribute.name] for attribute in gradient.attributes)
    shapes = [shape_of(point, optional, each) for each in link.tensors]
    symbols, _ = gradient.symbols(shapes, numbers)
    origins = dict(zip((each.name for each in gradient.inputs), link.tensors, strict=True))

    _require_linear(gradient, [name for name, each in origins.items() if is_cotangent(each)])

    def tensor(each: str) -> torch.Tensor:
        if is_cotangent(each):
            return tangent
        # A cotangent that is still an input shows a type or a shape; its numbers have no part.
        return tensor_of(point, optional, with_zeros(point, ()), origins[each])

    tensors = [tensor(each) for each in inner.tensors]
    numbers = flatten(symbols[attribute.name] for attribute in derived.attributes)
    (result,) = derived.apply(tensors, numbers)
    return result


def _require_linear(gradient: Operation, cotangents: Sequence[str]) -> None:
    """Refuse a gradient that is not linear in the cotangents; only one written by hand may be."""
    if gradient.is_public and tuple(cotangents) not in gradient.linear:
        raise RuntimeError(
            f"{gradient.name}: forward-mode differentiation needs a gradient that is linear in "
            f"{', '.join(cotangents)}, which cannot be seen of this one, written by hand"
        )
