"""Gradients that one pass over what flows back computes, where they share no work otherwise.

The gradients of image and filter of a convolution both read the gradient of the result, and that is
most of what they move. An op that computes both can run one kernel within the other
(`opgen.passes.guests`), so that it is read once. Whether it does is known of the kernels for the
sizes of a call, and these are looked at. It is asked for convolutions of single channels and few
taps: with more of them products take the time, and with more channels PyTorch's library may be
faster, which computes both as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from opgen.runtime import special
from opgen.runtime.description import Gradient, Shape
from opgen.runtime.library import Case
from opgen.runtime.schema import Number, flatten

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

_MOST_TAPS = 4
"""The largest filter that is worth it: 3x3 is not, see `opgen.passes.group_sums`."""

_MOST = 1024
_KNOWN: dict[tuple[str, special.Values], bool] = {}


def partners(
    operation: Operation,
    names: Sequence[str],
    shapes: Sequence[Shape | None],
    numbers: Sequence[Number],
) -> tuple[Operation, Gradient] | None:
    """The op that computes these gradients in one pass for a call; None where none does."""
    if not operation.is_public or len(names) < 2:
        return None
    if not _is_short_single(operation, shapes, numbers):
        return None
    found = operation.partners(names)
    if found is None:
        return None
    derived, link = found
    output = operation.shapes_of(shapes, numbers).outputs[0]
    known, optional = operation.symbols(shapes, numbers)
    inputs = dict(zip((each.name for each in operation.inputs), shapes, strict=True))
    given = [
        output if source not in inputs else inputs[source] or optional[source]
        for source in link.tensors
    ]
    values = flatten(known[each.name] for each in derived.attributes)
    integers = {
        name: value
        for name, value in derived.symbols(given, values)[0].items()
        if isinstance(value, int)
    }
    like = tuple(torch.empty(tuple(shape), device="meta") for shape in given)
    chosen = special.values_of(derived, integers, special.Images(like))
    return found if _is_one_pass(derived, chosen) else None


def _is_one_pass(derived: Operation, values: special.Values) -> bool:
    """Whether one of the kernels for these values runs within another one."""
    key = derived.registered_name, values
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        known = _KNOWN[key] = special.is_one_pass(derived, values)
    return known


def _is_short_single(
    operation: Operation, shapes: Sequence[Shape | None], numbers: Sequence[Number]
) -> bool:
    """Whether a call is a convolution of single channels along rows that kernels are made for."""
    names = operation.convolution
    if names is None or names.orders:
        return False
    found = operation.shapes_of(shapes, numbers)
    if found.geometry is None:
        return False
    inputs = zip((each.name for each in operation.inputs), shapes, strict=True)
    known = {name: tuple(shape) for name, shape in inputs if shape is not None}
    known[operation.outputs[0].name] = found.outputs[0]
    (groups,), stride, padding, dilation = found.geometry
    roles = (known.get(name) for name in (names.result, names.image, names.weight))
    result, image, weight = roles
    if result is None or image is None or weight is None or groups < 1:
        return False
    format_ = torch.contiguous_format
    case = Case(groups, stride, padding, dilation, result, image, weight, format_)
    return case.is_short_single and math.prod(weight[2:]) <= _MOST_TAPS
