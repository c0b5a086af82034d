"""Convolutions of PyTorch's library as the table of `lookup_table` takes them: lists of integers.

What these are stands in `lookup_convolution_source.Convolved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from opgen.runtime import (
    convolution_witness,
    library_call,
    library_gradients,
    library_plan,
    lookup_library,
    lookup_moves,
)
from opgen.runtime.convolution_tiles_source import Tiled
from opgen.runtime.lookup_convolution_source import OF_IMAGE, OF_WEIGHT, Convolved

if TYPE_CHECKING:
    from opgen.runtime.convolution_tiles import Tiles
    from opgen.runtime.library import Case
    from opgen.runtime.library_plan import Operand, Plan

_EXPONENTS = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
"""The bits that are all set in infinity and NaN, and in no other number."""

_ABSENT = -1

_IN_A_ROW = 64
"""So many numbers side by side are looked at about as fast as one among others. Where groups have
few channels, the whole gradient takes less time than those numbers of it that a tap would have."""


class _Checks(NamedTuple):
    """What must be finite: so many numbers of the source, the weight, and its gradient."""

    source: int
    weight: bool
    gradient: bool


def forward(plan: Plan, tensors: Sequence[torch.Tensor | None]) -> list[int] | None:
    """A convolution, a transposed one, or the gradient of the image or the weight alone.

    Of tensors as they are; None for what Python prepares.
    """
    if plan.case.sides:
        return None
    source = plan.image or plan.result
    if plan.weight is None or (plan.image is None and not plan.is_forward):
        return _gradient(plan, tensors)
    if source is None or plan.strips is not None:
        return None
    if plan.on_gpu:
        return _on_gpu(plan, source, plan.weight, tensors)
    moves = [] if _is_direct(plan) else _moves(plan, tensors)
    if moves is None:
        return None
    is_transposed = plan.image is None
    weight = tensors[plan.weight.at]
    is_checked = is_transposed or plan.checks_source or any(plan.case.padding)
    if weight is None or not _can_be_checked(weight, is_checked):
        return None
    bias = None if plan.bias is None or tensors[plan.bias.at] is None else plan.bias.at
    places = (source.at, _ABSENT, plan.weight.at, _ABSENT if bias is None else bias)
    at_once = 0
    pixels = tensors[source.at]
    if pixels is None or not _are_taken_so(pixels, weight):
        return None
    if plan.is_copied and not library_gradients.is_channels_last(pixels):
        at_once = plan.case.images_at_once
        if not _can_be_copied(plan, pixels):
            return None
    if plan.repeats > 1 and not library_gradients.is_channels_last(pixels):
        return None
    own = [] if plan.tiles is None else [plan.tiles]
    checked = (_held(pixels) or _ABSENT) if plan.checks_source else 0
    if checked == _ABSENT:
        return None
    checks = _Checks(checked, weight=is_checked, gradient=False)
    return _described(places, plan, is_transposed, weight, checks, at_once, own) + moves


def gradients(
    for_image: Plan, for_weight: Plan, given: Sequence[torch.Tensor | None]
) -> list[int] | None:
    """The gradients of image and weight, from the cotangent, the image and the weight."""
    cotangent, image, weight = given
    plans = (for_image, for_weight)
    if cotangent is None or image is None or weight is None:
        return None
    if for_image.case.sides or for_weight.case.sides:
        return None
    views = [] if all(map(_is_direct, plans)) else _views(for_image, for_weight, weight)
    if views is None or for_image.is_forward:
        return None
    if for_image.strips is not None and for_weight.strips is not None:
        return None
    if for_image.on_gpu:
        return _gradients_on_gpu(for_image, for_weight, given)
    if for_image.geometry != for_weight.geometry or for_image.bias is not None:
        return None
    if not _can_be_checked(weight, True) or not _are_taken_so(cotangent, image, weight):
        return None
    case, at_once = for_weight.case, 0
    if any(plan.is_copied for plan in plans):
        return None
    pixels = (cotangent, image)
    if for_weight.is_uneven and not all(map(library_gradients.is_channels_last, pixels)):
        at_once = library_gradients.pieces(case, weight.dtype)
        if not all(_can_be_copied(for_image, each) for each in pixels):
            return None
    is_checked = library_call.meets_zeros(for_weight, weight.dtype)
    if for_weight.repeats > 1 and not library_gradients.is_channels_last(image):
        return None
    checked = (_held(cotangent) or _ABSENT) if for_image.checks_source else 0
    if checked == _ABSENT:
        return None
    own = library_plan.own_tiles(for_image, for_weight)
    places = 0, 1, 2, _ABSENT
    checks = _Checks(checked, weight=True, gradient=is_checked)
    return _described(places, for_weight, False, weight, checks, at_once, own or ()) + views


def _gradient(plan: Plan, tensors: Sequence[torch.Tensor | None]) -> list[int] | None:
    """The gradient of the image or the weight alone: the other one may be no leaf, or frozen."""
    other = plan.image or plan.weight
    if plan.result is None or other is None or plan.on_gpu or not _is_direct(plan):
        return None
    if plan.repeats > 1 or plan.is_copied:
        return None
    cotangent, given = tensors[plan.result.at], tensors[other.at]
    if cotangent is None or given is None or not _are_taken_so(cotangent, given):
        return None
    own = [] if plan.tiles is None else [plan.tiles]
    if plan.weight is None:
        shape = tuple(plan.case.weight)
        weight = torch.empty(shape, dtype=cotangent.dtype, device="meta")
        is_checked = library_call.meets_zeros(plan, weight.dtype)
        checks = _Checks(0, weight=False, gradient=is_checked)
        places = (plan.result.at, other.at, _ABSENT, _ABSENT)
        if own:  # tiles take an image and the cotangent, as if that were the weight
            places = (other.at, _ABSENT, plan.result.at, _ABSENT)
    else:
        weight = given
        checked = (_held(cotangent) or _ABSENT) if plan.checks_source else 0
        if checked == _ABSENT:
            return None
        checks = _Checks(checked, weight=True, gradient=False)
        places = (plan.result.at, _ABSENT, other.at, _ABSENT)
    if not _can_be_checked(weight, checks.weight):
        return None
    which = OF_WEIGHT if plan.weight is None else OF_IMAGE
    return _described(places, plan, False, weight, checks, 0, own, which)


def _on_gpu(
    plan: Plan, source: Operand, weight: Operand, tensors: Sequence[torch.Tensor | None]
) -> list[int] | None:
    """A convolution by a GPU's library, of which nothing is looked at and nothing is copied."""
    bias = None if plan.bias is None or tensors[plan.bias.at] is None else plan.bias.at
    places = source.at, _ABSENT, weight.at, _ABSENT if bias is None else bias
    is_transposed = plan.image is None
    filters = tensors[weight.at]
    if filters is None or (is_transposed and not plan.is_forward):
        return None
    if not lookup_library.convolves_on_gpu():
        return None
    if not _is_asked_so(plan, tensors[source.at], filters):
        return None
    return _described(places, plan, is_transposed, filters, _Checks(0, False, False), 0, ())


def _gradients_on_gpu(
    for_image: Plan, for_weight: Plan, given: Sequence[torch.Tensor | None]
) -> list[int] | None:
    """Both gradients by a GPU's library, likewise."""
    weight = given[2]
    if for_image.is_forward or for_image.bias is not None or weight is None:
        return None
    if not lookup_library.convolves_on_gpu():
        return None
    if for_image.geometry != for_weight.geometry or for_image.format != for_weight.format:
        return None
    if not (_is_asked_so(for_image, *given) and _is_asked_so(for_weight, *given)):
        return None
    places = 0, 1, 2, _ABSENT
    return _described(places, for_weight, False, weight, _Checks(0, False, False), 0, ())


def _is_asked_so(plan: Plan, *tensors: torch.Tensor | None) -> bool:
    """Whether a GPU's library is given these tensors as they are."""
    if not _is_direct(plan) or plan.repeats > 1 or plan.strips is not None:
        return False
    for each in tensors:
        if each is None or not _are_taken_so(each):
            return False
        if plan.is_copied and not each.is_contiguous():
            return False
    return True


def _is_direct(plan: Plan) -> bool:
    """Whether the tensors of a plan are those of the library."""
    operands = (plan.result, plan.image, plan.weight, plan.bias)
    is_arranged = any(each is not None and each.arrangement is not None for each in operands)
    return not is_arranged and plan.restored is None


def _moves(plan: Plan, tensors: Sequence[torch.Tensor | None]) -> list[int] | None:
    """The moves of a convolution of tensors with other dims; None for what Python prepares."""
    if plan.image is None or plan.repeats > 1 or plan.is_copied:
        return None
    if len(plan.case.result) != len(plan.strides):
        return None  # a format of the op's result is none of what the library gives
    found: list[int] = []
    for operand in (plan.image, plan.weight, plan.bias):
        tensor = None if operand is None else tensors[operand.at]
        if operand is None or tensor is None:
            continue
        move = lookup_moves.arranging(tensor, operand.arrangement, operand.format)
        if move is None or not _is_taken_so(move):
            return None
        found += move
    shape, format_ = tuple(plan.case.result), plan.case.format
    result = torch.empty(shape, device="meta", memory_format=format_)
    move = lookup_moves.restoring(result, plan.restored, format_)
    if move is None:
        return None
    return [*found, *move, result.dim(), *shape, *result.stride()]


def _views(for_image: Plan, for_weight: Plan, weight: torch.Tensor) -> list[int] | None:
    """The views of a weight with other dims and of its gradient; None where they are none, or where
    another tensor has other dims too."""
    if for_image.weight is None or for_weight.restored is None:
        return None
    others = (for_image.result, for_weight.result, for_weight.image)
    if any(each is None or each.arrangement is not None for each in others):
        return None
    if for_image.restored is not None or for_image.is_copied or for_image.repeats > 1:
        return None
    if for_weight.is_uneven or for_image.tiles is not None or for_weight.tiles is not None:
        return None
    found = for_weight.case
    gradient = torch.empty(tuple(found.weight), device="meta")
    of_weight = for_image.weight
    moves = (
        lookup_moves.arranging(weight, of_weight.arrangement, of_weight.format),
        lookup_moves.restoring(gradient, for_weight.restored, found.format),
    )
    words = [[] if each is None or each[0] != lookup_moves.VIEW else each[1:] for each in moves]
    is_so = all(words) and moves[0] is not None and _is_taken_so(moves[0])
    return [*words[0], *words[1]] if is_so else None


def _is_taken_so(move: Sequence[int]) -> bool:
    """Whether what a move gives has strides that the library reads rightly, if it is a view."""
    if move[0] != lookup_moves.VIEW:
        return True
    rank, *sizes = move[1:]
    return _are_taken_so(torch.empty_strided(sizes[:rank], sizes[rank:], device="meta"))


def _are_taken_so(*tensors: torch.Tensor) -> bool:
    """Whether tensors have strides that the library reads rightly."""
    return all(library_plan.with_own_strides(each) is each for each in tensors)


def _can_be_copied(plan: Plan, images: torch.Tensor) -> bool:
    """Whether images, and what is computed from them, have one plane for each channel."""
    is_planar = plan.case.format == torch.contiguous_format
    return is_planar and images.dim() == 4 and images.is_contiguous()


def _can_be_checked(weight: torch.Tensor, is_checked: bool) -> bool:
    """Whether its numbers are those of one piece of memory, without gaps."""
    return weight.dtype in _EXPONENTS and (not is_checked or _held(weight) is not None)


def _held(tensor: torch.Tensor) -> int | None:
    """How many numbers of a tensor lie in memory, one after the other; None if there are gaps."""
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    count = 1
    for stride, size in sorted(each for each in dims if each[1] != 1):
        if stride == 0:
            continue
        if stride != count:
            return None
        count *= size
    return count


def _is_worth_a_tap(case: Case, weight: torch.Tensor) -> bool:
    """Whether the gradient of a weight is large beside what of it a tap has.

    In 16 bits the library fills up pixels with what lies behind them in memory. Zeros are
    multiplied with that, too, at other taps with other places of it, so all taps are looked at.
    """
    at_tap = case.weight[0] + case.groups * case.weight[1]
    return weight.dtype == torch.float32 and weight.numel() >= _IN_A_ROW * at_tap


def _described(
    places: tuple[int, int, int, int],
    plan: Plan,
    is_transposed: bool,
    weight: torch.Tensor,
    checks: _Checks,
    at_once: int,
    own: Sequence[Tiles],
    gradient: int = 0,
) -> list[int]:
    case = plan.case
    source, image, weight_at, bias = places
    is_of_image = is_transposed or image != _ABSENT or gradient == OF_IMAGE
    is_plain = _is_direct(plan) and plan.repeats == 1
    pixel = tap = None
    if is_plain and checks.weight:
        of_image, of_result = (
            convolution_witness.pixel_of_image,
            convolution_witness.pixel_of_result,
        )
        pixel = of_image(case) if is_of_image else of_result(case)
    if is_plain and checks.gradient and not own and _is_worth_a_tap(case, weight):
        tap = convolution_witness.tap_of_weight(case)
    convolved = Convolved(
        source=source,
        image=image,
        weight=weight_at,
        bias=bias,
        is_transposed=int(is_transposed),
        gradient=gradient,
        groups=case.groups,
        spatial=len(case.stride),
        exponent=_EXPONENTS[weight.dtype],
        bytes=weight.element_size(),
        elements=weight.numel(),
        held=_held(weight) or 0,
        source_numbers=checks.source,
        checks_weight=int(checks.weight),
        checks_gradient=int(checks.gradient),
        shows_weight=int(pixel is not None),
        shows_images=int(tap is not None),
        at_once=at_once,
        repeats=plan.repeats,
        is_moved=int(not _is_direct(plan)),
        tiles=own[0].address if own else 0,
        weight_tiles=own[1].address if len(own) > 1 else 0,
        tiled=len(Tiled._fields),
        on_gpu=int(plan.on_gpu),
    )
    more = case.output_padding if is_transposed else (0,) * len(case.stride)
    none = (_ABSENT,) * len(case.stride)
    shown = *(pixel or none), *(tap or none)
    words = [word for each in own for word in each.about]
    return [*convolved, *case.stride, *case.padding, *case.dilation, *more, *shown, *words]
