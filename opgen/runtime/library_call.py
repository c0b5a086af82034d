"""Calls that PyTorch's library computes, worked out once for each shape.

What the checks of a call and the rule of `opgen.runtime.library` look at is the shape, strides and
type of every tensor, and the attributes. Calls that agree in these differ only in the numbers, so a
plan is kept for them, and a call like an earlier one looks it up and asks the library.

A library multiplies the zeros of padding with whatever stands beside them, where an op of opgen has
no term: 0*inf would be NaN. So what is multiplied with zeros must be finite, or the library's
result is not used. Besides the padding, 16-bit channels that are odd in number have such zeros
(`library.meets_neighbours`). On a GPU numbers are not looked at (`library_cuda`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import (
    compat,
    convolution_tiles,
    cuda,
    library,
    library_cuda,
    library_product,
    library_strips,
)
from opgen.runtime.library import Case
from opgen.runtime.library_gradients import by_pieces, gradients, is_channels_last, unread
from opgen.runtime.library_plan import Key, Plan, Tensors, own_tiles
from opgen.runtime.library_product import Multiplication
from opgen.runtime.schema import Number, Numbers, flatten

if TYPE_CHECKING:
    from opgen.runtime.description import Convolution
    from opgen.runtime.evaluation import Call
    from opgen.runtime.operation import Operation

Pair = tuple[torch.Tensor, torch.Tensor]

MOST_KNOWN = 256
"""How many plans of an op are kept."""

Plans = dict[Key, Plan | Multiplication]

_KNOWN: dict[str, Plans] = {}


# ---------------------------------------------------------------------------- calls that are known
def caller(
    operation: Operation,
) -> Callable[[Tensors, tuple[Number, ...]], torch.Tensor | None] | None:
    """A function that computes calls of an op like earlier ones; None where no library is asked.

    It gives None for other calls, and where the library may not be right.
    """
    if not operation.may_be_asked_of_library:
        return None
    plans = _KNOWN.setdefault(operation.registered_name, {})

    def call(tensors: Tensors, numbers: tuple[Number, ...]) -> torch.Tensor | None:
        plan = _looked_up(plans, tensors, numbers)
        return None if plan is None else computed(plan, tensors)

    return call


def both_gradients(
    first: Operation, second: Operation
) -> Callable[[Tensors, tuple[Number, ...], Tensors, tuple[Number, ...]], Pair | None] | None:
    """A function that computes the gradients of image and weight, in either order, in one call.

    It takes the tensors and numbers of both ops, and gives None where one of them is no call like
    an earlier one, where they do not belong together, or where the library may not be right. There
    is none for other ops.
    """
    targets = [
        None if each.convolution is None else _target(each.convolution) for each in (first, second)
    ]
    if set(targets) != {"image", "weight"}:
        return None
    is_first = targets[0] == "image"
    plans = [_KNOWN.setdefault(each.registered_name, {}) for each in (first, second)]

    def call(
        one: Tensors, ones: tuple[Number, ...], other: Tensors, others: tuple[Number, ...]
    ) -> Pair | None:
        found = _looked_up(plans[0], one, ones), _looked_up(plans[1], other, others)
        if not isinstance(found[0], Plan) or not isinstance(found[1], Plan):
            return None
        if is_first:
            return _both(found[0], one, found[1], other)
        pair = _both(found[1], other, found[0], one)
        return None if pair is None else pair[::-1]

    return call


def _looked_up(
    plans: Plans, tensors: Tensors, numbers: tuple[Number, ...]
) -> Plan | Multiplication | None:
    """The plan of a call like an earlier one, of tensors that have numbers in memory."""
    if not plans:
        return None
    try:
        plan = plans.get(key_of(tensors, numbers))
    except RuntimeError:
        return None  # a tensor without strides, which is to be refused
    if plan is None:
        return None
    for each in tensors:
        if each is not None and not compat.has_memory(each):
            return None
    return plan


def _target(names: Convolution) -> str | None:
    return {names.image: "image", names.weight: "weight"}.get(names.target)


def known(
    operation: Operation, tensors: Tensors, values: Sequence[Numbers]
) -> Plan | Multiplication | None:
    """The plan of a checked call like this one, if there was one that the library computes."""
    plans = _KNOWN.get(operation.registered_name)
    return plans.get(key_of(tensors, flatten(values))) if plans else None


def plan_of(operation: Operation, tensors: Tensors, numbers: tuple[Number, ...]) -> Plan | None:
    """The plan of a convolution like an earlier one, for numbers one by one."""
    plans = _KNOWN.get(operation.registered_name)
    plan = plans.get(key_of(tensors, numbers)) if plans else None
    return plan if isinstance(plan, Plan) else None


def is_asked(call: Call) -> bool:
    """Whether calls like this one are the library's."""
    return plan(call) is not None


def plan(call: Call) -> Plan | Multiplication | None:
    """The plan of a call, of which nothing is remembered; None where it is not the library's."""
    case = library.case_of(call)
    if cuda.computes(call.device) and call.operation.convolution is not None:
        return None if case is None else Plan.of(case, call)
    if case is None:
        return library_product.planned(call)
    match library_product.instead_of_convolution(call):
        case library_product.Ways.KERNELS:
            return None
        case None:
            return Plan.of(case, call)
        case product:
            return product


def planned(call: Call) -> Plan | Multiplication | None:
    """The plan of a new call, which is known from now on; None where it is not the library's."""
    found = plan(call)
    if found is None:
        return None
    plans = _KNOWN.setdefault(call.operation.registered_name, {})
    if len(plans) >= MOST_KNOWN:
        plans.clear()
    plans[key_of(call.tensors, flatten(call.values))] = found
    return found


def key_of(tensors: Tensors, numbers: tuple[Number, ...]) -> Key:
    """All of a call that its checks and the rule look at, settings included."""
    given: list[Hashable] = []
    device = None
    for each in tensors:
        if each is None:
            given.append(None)
        else:
            device = each.device  # that of all, or there is no such call
            given.append((each.shape, each.stride(), each.dtype, device))
    if device is not None and cuda.computes(device):
        return numbers, library_cuda.settings(), *given
    return numbers, *given


# ---------------------------------------------------------------------------- what the library does
def computed(plan: Plan | Multiplication, tensors: Tensors) -> torch.Tensor | None:
    """The output of a call; None where the library may not be right."""
    if isinstance(plan, Multiplication):
        return library_product.multiply(plan, tensors)
    return convolve(plan, tensors)


def convolve(plan: Plan, tensors: Tensors) -> torch.Tensor | None:
    """That of a convolution."""
    if plan.direct is not None:
        return plan.output(_uncast(*plan.direct.given(tensors)))
    case = plan.case
    result, image, weight, bias = plan.operands(tensors)
    found = None
    if image is not None and weight is not None:
        if (plan.checks_source or case.is_padded) and not _is_right(plan, weight):
            return None
        if plan.checks_source and not _is_finite(image):
            return None
        if plan.tiles is not None:
            return convolution_tiles.computed(plan.tiles, image, weight, bias)
        if plan.strips is not None:
            where = plan.shape, plan.strides
            return library_strips.convolve(plan.strips, image, weight, bias, *where)
        found = _result(case, image, weight, bias)
    elif result is not None and weight is not None:
        if plan.tiles is not None:
            is_right = _is_finite(weight)
            own = plan.tiles, result, weight, bias
            return convolution_tiles.computed(*own) if is_right else None
        if plan.checks_source and not _is_finite(result):
            return None
        found = _image(plan, result, weight, bias)
    elif result is not None and image is not None:
        found = _weight(plan, result, image)
    return None if found is None else plan.output(found)


def _both(
    for_image: Plan, image_tensors: Tensors, for_weight: Plan, weight_tensors: Tensors
) -> Pair | None:
    """The gradients of image and weight, from the same tensors."""
    if for_image.is_forward or for_image.geometry != for_weight.geometry:
        return None
    if for_image.result is None or for_weight.result is None:
        return None
    if not for_image.result.is_like(for_weight.result, image_tensors, weight_tensors):
        return None
    weight, image = for_image.filters(image_tensors), for_weight.images(weight_tensors)
    cotangent = image_tensors[for_image.result.at]
    if cotangent is None or weight is None or image is None or for_image.bias is not None:
        return None
    if not _is_right(for_image, weight):
        return None
    if for_image.strips is not None and for_weight.strips is not None:
        found = library_strips.gradients(for_image.strips, cotangent, image, weight)
        return _finished(for_image, for_weight, found)
    result = for_image.pixels(for_image.result, image_tensors)
    assert result is not None
    if for_image.checks_source and not _is_finite(result):
        return None
    own = own_tiles(for_image, for_weight)
    if own is not None:
        of_image = convolution_tiles.computed(own[0], result, weight)
        of_weight = convolution_tiles.computed(own[1], image, result)
        if of_image is None or of_weight is None:
            return None
        return _finished(for_image, for_weight, (of_image, of_weight))
    if for_weight.is_uneven and not all(map(is_channels_last, (result, image))):
        found = by_pieces(for_weight.case, result, image, weight)
    else:
        found = gradients(for_weight.case, result, image, weight, (True, True))
    return _finished(for_image, for_weight, found)


def _finished(for_image: Plan, for_weight: Plan, found: Pair) -> Pair | None:
    """Both gradients as those of the ops; None where zeros may have met what is not finite."""
    if meets_zeros(for_weight, found[1].dtype) and not _is_right(for_weight, found[1]):
        return None
    return for_image.output(found[0]), for_weight.output(found[1])


def _result(
    case: Case, image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    none = [0] * len(case.stride)
    return _uncast(
        image, weight, bias, case.stride, case.padding, case.dilation, False, none, case.groups
    )


def _image(
    plan: Plan, result: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """By the library's transposed convolution, or as its gradient: it tells them apart as well."""
    if not _is_right(plan, weight):
        return None
    case = plan.case
    if plan.is_forward:
        more = case.output_padding
        geometry = (case.stride, case.padding, case.dilation, True, more, case.groups)
        return _uncast(result, weight, bias, *geometry)
    assert bias is None
    return gradients(case, result, unread(case.image, result), weight, (True, False))[0]


def _uncast(image: torch.Tensor, *rest: Any) -> torch.Tensor:
    """`torch.convolution` in the types of its tensors: what is to be cast was, on the way here."""
    if image.is_cuda and compat.autocast_is_active():
        with compat.without_autocast("cuda"):
            return torch.convolution(image, *rest)
    return torch.convolution(image, *rest)


def _weight(plan: Plan, result: torch.Tensor, image: torch.Tensor) -> torch.Tensor | None:
    if plan.tiles is not None:
        found = convolution_tiles.computed(plan.tiles, image, result)
    else:
        wanted = unread(plan.case.weight, result)
        found = gradients(plan.case, result, image, wanted, (False, True))[1]
    if found is None or (meets_zeros(plan, found.dtype) and not _is_right(plan, found)):
        return None
    return found


def meets_zeros(plan: Plan, dtype: torch.dtype) -> bool:
    """Whether the gradient of a filter may have products with zeros that are no terms, so that
    numbers of it that are not finite may come from these.

    They are those of the padding, those at the ends of rows in tiles, and in 16 bits those with
    which the library fills up pixels that it multiplies some at a time.
    """
    return plan.case.is_padded or plan.tiles is not None or dtype != torch.float32


def _is_right(plan: Plan, tensor: torch.Tensor) -> bool:
    """Whether zeros that met the numbers of a tensor, or made them, were right to leave out.

    A GPU is not asked: who asks waits for all that it has to do.
    """
    return plan.on_gpu or _is_finite(tensor)


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are finite; False as well where their sum is not."""
    return math.isfinite(tensor.sum(dtype=torch.float32).item())
