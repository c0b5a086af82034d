"""Autograd for every op: derivatives are ops again, so they are recorded like any other.

The backward pass calls the gradient of each input. Forward mode needs no ops of its own: the
gradient is linear in the cotangents, and its gradient with respect to one is the derivative of that
output along a direction of the input. Both modes agree therefore by construction, also where the
author of a spec wrote a gradient by hand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import checks, compat, cuda, partners, sharding, special
from opgen.runtime.description import Gradient, Shape
from opgen.runtime.evaluation import default_tensor
from opgen.runtime.layout import memory_format
from opgen.runtime.schema import Number, Numbers, flatten

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
        _save(ctx, current(), arguments, result)
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


# ---------------------------------------------------------------------------- what is kept
@dataclass(frozen=True, slots=True)
class Kind:
    """What a tensor looks like."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> Kind:
        """What this one looks like."""
        return Kind(tensor.shape, tensor.dtype, tensor.device)


def _save(ctx: Any, operation: Operation, arguments: Sequence[Any], result: Any) -> None:
    outputs = (result,) if isinstance(result, torch.Tensor) else result
    count = len(operation.inputs)
    tensors = arguments[:count]
    ctx.operation, ctx.numbers = operation, arguments[count:]
    ctx.shapes = tuple(None if tensor is None else tensor.shape for tensor in tensors)
    ctx.outputs = tuple(map(Kind.of, outputs))
    ctx.set_materialize_grads(False)
    forward_mode = (
        compat.transforms_are_active()
        or compat.dual_level_is_active()
        or bool(compat.dispatch_modes())
    )
    ctx.kept = needed(operation, ctx.needs_input_grad, forward_mode=forward_mode)
    kept = [tensors[at] for at in ctx.kept]
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)
    ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))


def needed(
    operation: Operation, needs_input_grad: Sequence[bool], *, forward_mode: bool
) -> tuple[int, ...]:
    """The inputs that derivatives read; all of them where a derivative is not known yet.

    Where somebody looks at what is kept, derivatives are found first: checkpointing runs a call
    again, after backward passes of other calls, and wants to see as many tensors as before.
    """
    key = _key(operation, needs_input_grad, forward_mode)
    found = _KEPT.get(key)
    if found is None:
        names = _names_needed(operation, needs_input_grad, forward_mode)
        if names is None and compat.saved_tensors_are_hooked():
            with contextlib.suppress(RuntimeError):  # nothing can be derived, now or later
                _derive(operation, needs_input_grad)
            names = _names_needed(operation, needs_input_grad, forward_mode)
        every = range(len(operation.inputs))
        if names is None:
            return tuple(every)
        found = tuple(at for at in every if operation.inputs[at].name in names)
        _KEPT[key] = found
    return found


def _derive(operation: Operation, needs_input_grad: Sequence[bool]) -> None:
    for declared, wanted in zip(operation.inputs, needs_input_grad, strict=False):
        if wanted and operation.is_differentiable(declared):
            operation.gradient(declared.name)


def is_known(operation: Operation, needs_input_grad: Sequence[bool]) -> bool:
    """Whether what `needed` says of backward passes is final."""
    return _key(operation, needs_input_grad, forward_mode=False) in _KEPT


_Key = tuple[str, tuple[bool, ...], bool]


def _key(operation: Operation, needs_input_grad: Sequence[bool], forward_mode: bool) -> _Key:
    """Which derivatives of which op; attributes, which may follow the inputs, have none."""
    wanted = tuple(needs_input_grad[: len(operation.inputs)])
    return operation.registered_name, wanted, forward_mode


_KEPT: dict[_Key, tuple[int, ...]] = {}
"""Inputs that are kept, by op. Modules may share an op of which they know different derivatives;
checkpointing wants the same tensors kept however the op is reached."""


def _names_needed(
    operation: Operation, needs_input_grad: Sequence[bool], forward_mode: bool
) -> set[str] | None:
    """The inputs that derivatives read; None where a derivative is not known yet."""
    needed: set[str] = set()
    for declared, wanted in zip(operation.inputs, needs_input_grad, strict=False):
        if operation.is_differentiable(declared) and (wanted or forward_mode):
            link = operation.family.known_gradient(operation, declared.name)
            if link is None:
                return None
            needed.update(link.tensors)
    return needed


@dataclass(frozen=True, slots=True)
class Point:
    """Where an op is differentiated: its inputs by name, as far as they were kept."""

    operation: Operation
    numbers: Sequence[Number]
    shapes: Sequence[Shape | None]
    tensors: Mapping[str, torch.Tensor | None]
    outputs: Sequence[Kind]

    @staticmethod
    def of(ctx: Any, seen: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> Point:
        """The point that a forward call left; `seen` is applied to the tensors it kept."""
        operation: Operation = ctx.operation
        tensors = {
            operation.inputs[at].name: None if tensor is None else seen(tensor)
            for at, tensor in zip(ctx.kept, ctx.saved_tensors, strict=True)
        }
        return Point(operation, ctx.numbers, ctx.shapes, tensors, ctx.outputs)


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
    given = _with_zeros(point, cotangents)
    known, optional = operation.symbols(point.shapes, point.numbers)
    names = [
        declared.name
        for at, declared in enumerate(operation.inputs)
        if wanted[at] and operation.is_differentiable(declared)
    ]
    places = {declared.name: at for at, declared in enumerate(operation.inputs)}

    def sizes(derived: Operation, link: Gradient) -> Mapping[str, Numbers]:
        shapes = [_shape(point, optional, source) for source in link.tensors]
        return derived.symbols(shapes, flatten(known[each.name] for each in derived.attributes))[0]

    on_gpu = sizes if cuda.computes(point.outputs[0].device) else None

    def in_one_pass() -> tuple[Operation, Gradient] | None:
        return partners.partners(operation, names, point.shapes, point.numbers)

    on_cpu = in_one_pass if point.outputs[0].device.type == "cpu" else None
    ways = derivatives(operation, names, is_last=is_last, on_gpu=on_gpu, on_cpu=on_cpu)
    for together, derived, link in ways:
        tensors = [_tensor(point, optional, given, source) for source in link.tensors]
        numbers = flatten(known[attribute.name] for attribute in derived.attributes)
        for name, gradient in zip(together, derived.apply(tensors, numbers), strict=True):
            found[places[name]] = gradient
    return found


def without_repeats(cotangent: torch.Tensor, saved: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """A large cotangent that has a number once for many cells, as that of `sum()`, cell by cell.

    Kernels for images, and the library, look for rows: without them a filter's gradient would take
    a hundred times as long as this copy.
    """
    if 0 not in cotangent.stride() or cotangent.numel() < special.LARGE:
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


def _with_zeros(
    point: Point, cotangents: Sequence[torch.Tensor | None]
) -> Callable[[str], torch.Tensor]:
    """Cotangents by the name of their output; zero where the loss does not depend on it."""
    names = [output.name for output in point.operation.outputs]

    def cotangent(name: str) -> torch.Tensor:
        at = names.index(name)
        given = cotangents[at] if cotangents else None
        return _zeros(point.outputs[at]) if given is None else given

    return cotangent


def _zeros(kind: Kind) -> torch.Tensor:
    """Zeros that take no memory."""
    return torch.zeros((), dtype=kind.dtype, device=kind.device).expand(kind.shape)


COTANGENT = "grad "


def _tensor(
    point: Point,
    optional: Mapping[str, Shape],
    cotangent: Callable[[str], torch.Tensor],
    source: str,
) -> torch.Tensor:
    """What a derived op reads: a cotangent, or an input of the op that is differentiated."""
    if _is_cotangent(source):
        return cotangent(source.removeprefix(COTANGENT))
    tensor = point.tensors[source]
    return _default(point, optional, source) if tensor is None else tensor


def _default(point: Point, optional: Mapping[str, Shape], name: str) -> torch.Tensor:
    """What stands for an input that was left out."""
    operation = point.operation
    declared = next(each for each in operation.inputs if each.name == name)
    generic = ("same", "float")
    if declared.dtype in generic:
        same = zip(operation.outputs, point.outputs, strict=True)
        dtype = next(kind.dtype for output, kind in same if output.dtype in generic)
    else:
        dtype = checks.TORCH_DTYPES["i64" if declared.dtype == "int" else declared.dtype]
    return default_tensor(declared, optional[name], dtype, point.outputs[0].device)


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
    return _zeros(point.outputs[output]).clone() if total is None else total


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
    shapes = [_shape(point, optional, each) for each in link.tensors]
    symbols, _ = gradient.symbols(shapes, numbers)
    origins = dict(zip((each.name for each in gradient.inputs), link.tensors, strict=True))

    _require_linear(gradient, [name for name, each in origins.items() if _is_cotangent(each)])

    def tensor(each: str) -> torch.Tensor:
        if _is_cotangent(each):
            return tangent
        # A cotangent that is still an input shows a type or a shape; its numbers have no part.
        return _tensor(point, optional, _with_zeros(point, ()), origins[each])

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


def _is_cotangent(source: str) -> bool:
    return source.startswith(COTANGENT)


def _shape(point: Point, optional: Mapping[str, Shape], source: str) -> Shape:
    """The shape of what a gradient reads."""
    operation = point.operation
    if _is_cotangent(source):
        names = [COTANGENT + each.name for each in operation.outputs]
        return point.outputs[names.index(source)].shape
    names = [each.name for each in operation.inputs]
    shape = point.shapes[names.index(source)]
    return optional[source] if shape is None else shape
