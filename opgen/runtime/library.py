"""Convolutions that PyTorch's own library computes faster than generated kernels.

An op is known to be a convolution by its index maps (`opgen.passes.convolution`). With enough
channels in a group the sum is a product of large matrices, for which oneDNN has kernels of many
years' work; with few, the generated ones are faster.

A library multiplies the zeros of padding with whatever stands beside them, where an op of opgen has
no term: 0*inf would be NaN. So what is multiplied with zeros must be finite, or the library's
result is not used.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from opgen.runtime import compat
from opgen.runtime.arrangement import Arrangement
from opgen.runtime.layout import memory_format

if TYPE_CHECKING:
    from opgen.runtime.description import Convolution
    from opgen.runtime.evaluation import Call
    from opgen.runtime.operation import Operation

_LEAST_CHANNELS = {torch.float32: 64, torch.bfloat16: 4, torch.float16: 4}
"""From how many products of channels in a group on the library is faster, by element type."""

_LEAST_CHANNELS_LAST = {torch.float32: 2, torch.bfloat16: 1, torch.float16: 4}
"""The same for images in channels-last format. Generated kernels take channels for their vectors;
where those of a group are several, neighbours in one tensor are none in the other."""
_WIDE_WINDOW = 100
"""From how many taps on the library is faster for single channels too, in channels-last format: ten
times at 15 by 15. Not for the gradient of the filter."""

_VECTOR = 16
"""The fewest channels that fill a vector of the library."""

_PAGE = 4096
"""Bytes: where the channels of a pixel fill a page, a sum over the pixels of a channel meets a new
page in every term. The library takes many channels at a time, for windows up to 3 by 3."""

Sizes = Sequence[int]
Tensors = Sequence[torch.Tensor | None]
Key = tuple[Hashable, ...] | None


@dataclass(frozen=True, slots=True)
class Case:
    """The geometry of one convolution, the shapes of its three tensors, and the result's format."""

    groups: int
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    result: Sizes
    image: Sizes
    weight: Sizes
    format: torch.memory_format

    @property
    def is_library_form(self) -> bool:
        """Whether there is work, and the sizes are those that the library finds by itself."""
        if 0 in (*self.result, *self.image, *self.weight) or self.groups < 1:
            return False
        if min((*self.stride, *self.dilation)) < 1 or min(self.padding) < 0:
            return False
        gaps = [outer - least for outer, least in zip(self.image[2:], self.least, strict=True)]
        return all(0 <= gap < step for gap, step in zip(gaps, self.stride, strict=True))

    @property
    def least(self) -> tuple[int, ...]:
        """The smallest image of a result of this size."""
        return tuple(
            (inner - 1) * step - 2 * padding + dilation * (taps - 1) + 1
            for inner, taps, step, padding, dilation in zip(
                *(self.result[2:], self.weight[2:], self.stride, self.padding, self.dilation),
                strict=True,
            )
        )

    @property
    def channels(self) -> int:
        """How many products of channels there are for each tap."""
        return self.weight[1] * (self.weight[0] // self.groups)

    @property
    def is_wide(self) -> bool:
        """Whether single channels go through windows so large that other formats are worth a copy.

        Images of other ranks have no such format.
        """
        is_depthwise = self.channels == 1 and self.groups >= _VECTOR
        is_plain = len(self.stride) == 2 and max(self.stride) == 1
        return is_depthwise and is_plain and math.prod(self.weight[2:]) >= _WIDE_WINDOW

    @property
    def is_narrow(self) -> bool:
        """Whether single channels, enough to fill pages, go through windows of few taps."""
        is_paged = self.channels == 1 and 4 * self.groups >= _PAGE
        return is_paged and max(self.stride) == 1 and max(self.weight[2:]) <= 3


MOST_KNOWN = 256
"""How many calls are remembered."""

_KNOWN: dict[Hashable, tuple[Case, Call]] = {}


def key_of(operation: Operation, tensors: Tensors, values: Sequence[Hashable]) -> Key:
    """All of a call that its checks and the rule look at; None where no library is asked."""
    if operation.convolution is None:
        return None
    given = tuple(
        None if each is None else (each.shape, each.stride(), each.dtype, each.device, each.layout)
        for each in tensors
    )
    return operation.registered_name, given, tuple(values)


def known(key: Key, tensors: Tensors) -> tuple[Case, Call] | None:
    """The convolution that a call like an earlier one is, and the call, checked as that one was."""
    found = None if key is None else _KNOWN.get(key)
    return None if found is None else (found[0], replace(found[1], tensors=tensors))


def remember(key: Key, case: Case, call: Call) -> None:
    """Know a call from now on, though not its tensors."""
    if key is not None:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = case, replace(call, tensors=())


def case_of(call: Call) -> Case | None:
    """The convolution that a call is, if it is one for which the library is to be asked."""
    names, geometry = call.operation.convolution, call.shapes.geometry
    dtype = next((tensor.dtype for tensor in call.tensors if tensor is not None), None)
    if names is None or geometry is None or dtype not in _LEAST_CHANNELS:
        return None
    if call.device.type != "cpu" or not torch._C._has_mkldnn:
        return None
    if dtype == torch.float16 and not compat.library_has_float16():
        return None  # it would go cell by cell
    declared = zip(call.operation.inputs, call.tensors, strict=True)
    shapes: dict[str, Sizes] = {each.name: t.shape for each, t in declared if t is not None}
    shapes[call.operation.outputs[0].name] = call.shapes.outputs[0]
    shapes |= {name: each.shape for name, each in _arrangements(call).items()}
    roles = (names.result, names.image, names.weight)
    (groups,), stride, padding, dilation = geometry
    format_ = call.format_of(len(call.shapes.outputs[0]))
    result, image, weight = (shapes[name] for name in roles)
    case = Case(groups, stride, padding, dilation, result, image, weight, format_)
    if not case.is_library_form or case.channels < _least_channels(case, dtype, names):
        return None
    return case


def _least_channels(case: Case, dtype: torch.dtype, names: Convolution) -> int:
    """From how many products of channels in a group on the library is faster."""
    if case.is_wide and names.target != names.weight:
        return 1
    if case.format == torch.contiguous_format:
        return _LEAST_CHANNELS[dtype]
    least = _LEAST_CHANNELS_LAST[dtype]
    if names.target == names.weight:
        # A sum over all pixels, for which one channel is a long row.
        return 1 if dtype == torch.float32 and case.is_narrow else max(least, 2)
    return least if max(case.stride) == 1 else max(least, 4)


def convolve(case: Case, call: Call) -> torch.Tensor | None:
    """The output of the call; None where the library may not be right."""
    names = call.operation.convolution
    assert names is not None
    arrangements = _arrangements(call)
    given = {
        each.name: _arranged(tensor, arrangements.get(each.name), call)
        for each, tensor in zip(call.operation.inputs, call.tensors, strict=True)
    }
    result, image, weight = map(given.get, (names.result, names.image, names.weight))
    bias = None if names.bias is None else given[names.bias]
    if case.is_wide:
        result, image = (
            None if each is None else each.contiguous(memory_format=torch.channels_last)
            for each in (result, image)
        )
    found = None
    if image is not None and weight is not None:
        found = _result(case, image, weight, bias)
    elif result is not None and weight is not None:
        found = _image(case, result, weight, bias, call.operation.is_public)
    elif result is not None and image is not None:
        found = _weight(case, result, image)
    if found is None:
        return None
    arrangement = arrangements.get(names.target)
    if arrangement is not None:
        found = arrangement.restored(found, case.format)
    return _in_format(found, case.format)


def _arrangements(call: Call) -> dict[str, Arrangement]:
    """How tensors become those of a convolution, of those that are not already."""
    names = call.operation.convolution
    orders = {} if names is None else names.orders
    return {name: Arrangement(call.shapes.parts[name], order) for name, order in orders.items()}


def _arranged(
    tensor: torch.Tensor | None, arrangement: Arrangement | None, call: Call
) -> torch.Tensor | None:
    if tensor is None or arrangement is None:
        return tensor
    return arrangement.arranged(tensor, call.format_of(len(arrangement.order)))


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


def _in_format(found: torch.Tensor, format_: torch.memory_format) -> torch.Tensor:
    """With the strides that the op promises."""
    if 1 not in found.shape and found.is_contiguous(memory_format=format_):
        return found
    strides = torch.empty(found.shape, device="meta", memory_format=format_).stride()
    if found.stride() == strides:
        return found
    if found.is_contiguous(memory_format=format_):
        return found.as_strided(found.shape, strides)  # they differ in dims of one element
    return found.contiguous(memory_format=format_)
