"""Calls that PyTorch's library computes, worked out once for each shape.

What the checks of a call and the rule of `opgen.runtime.library` look at is the shape, strides and
type of every tensor, and the attributes. Calls that agree in these differ only in the numbers, so a
plan is kept for them, and a call like an earlier one looks it up and asks the library.

A library multiplies the zeros of padding with whatever stands beside them, where an op of opgen has
no term: 0*inf would be NaN. So what is multiplied with zeros must be finite, or the library's
result is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opgen.runtime import library
from opgen.runtime.arrangement import Arrangement
from opgen.runtime.layout import memory_format
from opgen.runtime.library import Case, Sizes
from opgen.runtime.schema import Number, Numbers, flatten

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call
    from opgen.runtime.operation import Operation

Tensors = Sequence[torch.Tensor | None]
Key = tuple[Hashable, ...]

MOST_KNOWN = 256
"""How many plans of an op are kept."""

_KNOWN: dict[str, dict[Key, Plan]] = {}


@dataclass(frozen=True, slots=True)
class Operand:
    """An input in its role: its position, and how it becomes a tensor of a convolution."""

    at: int
    arrangement: Arrangement | None
    format: torch.memory_format

    def of(self, tensors: Tensors) -> torch.Tensor | None:
        """The tensor of a call in this role."""
        tensor = tensors[self.at]
        if tensor is None or self.arrangement is None:
            return tensor
        return self.arrangement.arranged(tensor, self.format)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the library computes a call, but for the numbers in its tensors.

    Two of result, image and weight are inputs, the third one is computed; `strides` are those that
    the op promises for its output, which becomes a tensor of the op by `restored`.
    """

    case: Case
    result: Operand | None
    image: Operand | None
    weight: Operand | None
    bias: Operand | None
    is_forward: bool
    restored: Arrangement | None
    strides: Sizes

    @staticmethod
    def of(case: Case, call: Call) -> Plan:
        """The plan for calls like this one."""
        names = call.operation.convolution
        assert names is not None
        arranged = library.arrangements(call)
        places = {each.name: at for at, each in enumerate(call.operation.inputs)}

        def operand(name: str | None) -> Operand | None:
            if name is None or name not in places:
                return None
            arrangement = arranged.get(name)
            rank = 0 if arrangement is None else len(arrangement.order)
            return Operand(places[name], arrangement, call.format_of(rank))

        (shape,) = call.shapes.outputs
        return Plan(
            case,
            *map(operand, (names.result, names.image, names.weight, names.bias)),
            call.operation.is_public,
            arranged.get(names.target),
            torch.empty(shape, device="meta", memory_format=case.format).stride(),
        )


# ---------------------------------------------------------------------------- calls that are known
def caller(
    operation: Operation,
) -> Callable[[Tensors, tuple[Number, ...]], torch.Tensor | None] | None:
    """A function that computes calls of an op like earlier ones; None where no library is asked.

    It gives None for other calls, and where the library may not be right.
    """
    if operation.convolution is None:
        return None
    plans = _KNOWN.setdefault(operation.registered_name, {})

    def call(tensors: Tensors, numbers: tuple[Number, ...]) -> torch.Tensor | None:
        if not plans:
            return None
        try:
            plan = plans.get(key_of(tensors, numbers))
        except RuntimeError:
            return None  # a tensor without strides, which is to be refused
        return None if plan is None else convolve(plan, tensors)

    return call


def known(operation: Operation, tensors: Tensors, values: Sequence[Numbers]) -> Plan | None:
    """The plan of a checked call like this one, if there was one that the library computes."""
    plans = _KNOWN.get(operation.registered_name)
    return plans.get(key_of(tensors, flatten(values))) if plans else None


def planned(call: Call) -> Plan | None:
    """The plan of a new call, which is known from now on; None where it is not the library's."""
    case = library.case_of(call)
    if case is None:
        return None
    plans = _KNOWN.setdefault(call.operation.registered_name, {})
    if len(plans) >= MOST_KNOWN:
        plans.clear()
    plan = plans[key_of(call.tensors, flatten(call.values))] = Plan.of(case, call)
    return plan


def key_of(tensors: Tensors, numbers: tuple[Number, ...]) -> Key:
    """All of a call that its checks and the rule look at."""
    given = [
        None if each is None else (each.shape, each.stride(), each.dtype, each.device)
        for each in tensors
    ]
    return numbers, *given


# ---------------------------------------------------------------------------- what the library does
def convolve(plan: Plan, tensors: Tensors) -> torch.Tensor | None:
    """The output of a call; None where the library may not be right."""
    case = plan.case
    result, image, weight, bias = (
        None if each is None else each.of(tensors)
        for each in (plan.result, plan.image, plan.weight, plan.bias)
    )
    if case.is_wide:
        result, image = (
            None if each is None else each.contiguous(memory_format=torch.channels_last)
            for each in (result, image)
        )
    found = None
    if image is not None and weight is not None:
        found = _result(case, image, weight, bias)
    elif result is not None and weight is not None:
        found = _image(case, result, weight, bias, plan.is_forward)
    elif result is not None and image is not None:
        found = _weight(case, result, image)
    if found is None:
        return None
    if plan.restored is not None:
        found = plan.restored.restored(found, case.format)
    return _in_format(found, case.format, plan.strides)


def _result(
    case: Case, image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    if any(case.padding) and not _is_finite(weight):
        return None
    none = [0] * len(case.stride)
    return torch.convolution(
        image, weight, bias, case.stride, case.padding, case.dilation, False, none, case.groups
    )


def _image(
    case: Case,
    result: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    is_forward: bool,
) -> torch.Tensor | None:
    """By the library's transposed convolution, or as its gradient: it tells them apart as well."""
    if not _is_finite(weight):
        return None
    if is_forward:
        more = [outer - least for outer, least in zip(case.image[2:], case.least, strict=True)]
        geometry = (case.stride, case.padding, case.dilation, True, more, case.groups)
        return torch.convolution(result, weight, bias, *geometry)
    assert bias is None
    return _gradient(case, result, _unread(case.image, result), weight, 0)


def _weight(case: Case, result: torch.Tensor, image: torch.Tensor) -> torch.Tensor | None:
    found = _gradient(case, result, image, _unread(case.weight, result), 1)
    # A number that is not finite may come from a zero of the padding.
    return None if any(case.padding) and not _is_finite(found) else found


def _gradient(
    case: Case, result: torch.Tensor, image: torch.Tensor, weight: torch.Tensor, which: int
) -> torch.Tensor:
    """The gradient of the image (0) or of the weight (1), whose own numbers are not read."""
    none = [0] * len(case.stride)
    geometry = (case.stride, case.padding, case.dilation, False, none, case.groups)
    wanted = [which == 0, which == 1, False]
    found: torch.Tensor = torch.ops.aten.convolution_backward.default(
        result, image, weight, None, *geometry, wanted
    )[which]
    return found


def _unread(shape: Sizes, like: torch.Tensor) -> torch.Tensor:
    """Memory that nobody touches, for a tensor of which the library looks at shape and format.

    Strides of 0 would make it copy them all.
    """
    format_ = memory_format(like.dim(), (like,))
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=format_)


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are finite; False as well where their sum is not."""
    return math.isfinite(tensor.sum(dtype=torch.float32).item())


def _in_format(found: torch.Tensor, format_: torch.memory_format, strides: Sizes) -> torch.Tensor:
    """With the strides that the op promises."""
    if found.stride() == strides:
        return found
    if found.is_contiguous(memory_format=format_):
        return found.as_strided(found.shape, strides)  # they differ in dims of one element
    return found.contiguous(memory_format=format_)
