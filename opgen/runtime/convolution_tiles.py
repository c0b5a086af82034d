"""Convolutions of few channels that opgen computes itself, in place of PyTorch's library.

The library multiplies blocks of 16 channels whether so many are there or not. Tiles take as many
channels as there are: tiles of results, or of gradients of images (`convolution_planes_result`),
and of gradients of weights (`convolution_planes_weight`). What they compute for nothing is the
padding at the ends of rows. Where that is less, they are faster: 1.3 to 3.5 times for fewer than 16
channels, or numbers of them between multiples of 16, on the machine of benchmarks/README.md.

Images in channels-last format have tiles of their own (`convolution_last_source`): those of groups
of 8 and of 16 channels (`convolution_pixels_source`), and others for 1, 2 or 4 channels and
results, whose vectors have several groups (`convolution_lanes_source`).
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, assert_never

import torch

from opgen.runtime import build, convolution_tiles_source, kept_memory
from opgen.runtime.convolution_tiles_source import RESULTS, STRIP_NUMBERS, Tiled
from opgen.runtime.library_strips import as_memory
from opgen.runtime.record import record

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call
    from opgen.runtime.library import Case, Sizes

BLOCK = 16
"""Channels of a block of the library."""

FEW = 64
"""From how many products of channels in a group on the library is faster than generated kernels."""

_LONG = 40
"""The pixels of a row in channels-last format for which the library has no good blocks."""

_FULL = 0.85
"""The rate of tiles beside that of full blocks: they order the weight, and copy rows."""

_IN_GROUPS = 0.8
"""The rate of blocks whose channels are one group of several."""

_MOST_NUMBERS = 8 * STRIP_NUMBERS
"""The most that is read for one row of a result, or of a cotangent."""

_FEWEST = 9
_LEAST_WORK = 2**20
"""How many products of channels, and how many in all, tiles are worth where there are too few for
the library: otherwise generated kernels are faster, which copy no rows."""

_LONGEST_IN_REGISTERS = 32
"""Longer rows of several results from one channel are loops for the compiler, and gcc 12 makes no
vectors of them: it carries what pixels share from pass to pass. Tiles take a tenth to a quarter of
the time for rows of up to 64 pixels, and 0.6 to 1 of it for longer ones."""

_SHORT = 8
"""Shorter rows fill no vector. Generated kernels take planes of such rows as a whole, but not where
they are sums over channels: these go cell by cell, which takes 3 to 7 times as long as tiles."""

_LITTLE_WORK = 2**16
"""How many products tiles are worth there, and where vectors have several groups."""

_FEWEST_PIXELS = 4
"""Images of fewer have little but padding."""

_FEW_IN_GROUP = frozenset({1, 2, 4})
"""Channels and results of a group of which a vector has several."""


class Target(Enum):
    """What is computed."""

    RESULT = "result"
    IMAGE = "the gradient of the image"
    WEIGHT = "that of the weight"


class VectorLayout(Enum):
    """What the neighbours of a number are in memory, and lanes of a vector: pixels of a plane,
    results of a group, or those of several groups.
    """

    PLANES = "planes"
    PIXELS = "pixels"
    LANES = "lanes"


_TAPS = {
    VectorLayout.PLANES: range(4, 17),
    VectorLayout.PIXELS: range(6, 10),
    VectorLayout.LANES: range(1, 122),
}
"""Through windows of fewer taps, rows are copied for too few products; through more, what the
library needs to bring tensors into its order shows less. It has no good kernels for groups of which
vectors have several, whatever the window."""


@record
class Tiles:
    """How a result of a convolution is computed, or the gradient of its image or weight."""

    target: Target
    about: Tiled
    layout: VectorLayout
    shape: Sizes
    strides: Sizes

    @property
    def address(self) -> int:
        """That of the function, which `lookup_convolution_source` calls."""
        return ctypes.cast(function(self.target, self.layout), ctypes.c_void_p).value or 0


def tiles_of(case: Case, call: Call) -> Tiles | None:
    """The tiles of a call with the tensors of a convolution, if they are the fastest way.

    All are float32, and all but the weight contiguous, or the images in channels-last format.
    """
    names = call.operation.convolution
    if names is None or names.orders or len(case.stride) != 2 or max(case.stride) > 1:
        return None
    declared = zip(call.operation.inputs, call.tensors, strict=True)
    given = {each.name: tensor for each, tensor in declared}
    roles = {names.result: Target.RESULT, names.image: Target.IMAGE, names.weight: Target.WEIGHT}
    target = roles.pop(names.target)
    tensors = {name: given[name] for name in roles}
    if names.bias is not None and given[names.bias] is not None:
        tensors[names.bias] = given[names.bias]
    for name, tensor in tensors.items():
        if tensor is None or tensor.dtype != torch.float32:
            return None
        format_ = case.format if tensor.dim() == 4 else torch.contiguous_format
        if name != names.weight and not tensor.is_contiguous(memory_format=format_):
            return None
    return _tiles(case, target, given.get(names.weight))


def _tiles(case: Case, target: Target, weight: torch.Tensor | None) -> Tiles | None:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    own = torch.empty(case.weight, device="meta", memory_format=case.format)
    steps = own.stride() if weight is None else weight.stride()
    about = _gradient(case, steps) if target is Target.IMAGE else _result(case, steps)
    layout = _layout(about, case.format)
    if not _is_worth(about, target, layout) or function(target, layout) is None:
        return None
    shape = {Target.IMAGE: case.image, Target.WEIGHT: case.weight}.get(target, case.result)
    strides = torch.empty(shape, device="meta", memory_format=case.format).stride()
    return Tiles(target, about, layout, shape, strides)


def _result(case: Case, steps: Sequence[int]) -> Tiled:
    images, channels, height, width = case.image
    results = case.weight[0] // case.groups
    return Tiled(
        images=images,
        groups=case.groups,
        channels=channels // case.groups,
        results=results,
        height=height,
        width=width,
        tap_rows=case.weight[2],
        tap_columns=case.weight[3],
        padding_rows=case.padding[0],
        padding_columns=case.padding[1],
        dilation_rows=case.dilation[0],
        dilation_columns=case.dilation[1],
        weight_at=0,
        group_step=results * steps[0],
        result_step=steps[0],
        channel_step=steps[1],
        row_step=steps[2],
        column_step=steps[3],
    )


def _gradient(case: Case, steps: Sequence[int]) -> Tiled:
    """A convolution of the cotangent with the window turned round, and channels for results."""
    images, results, height, width = case.result
    rows, columns = case.weight[2:]
    each = results // case.groups
    return Tiled(
        images=images,
        groups=case.groups,
        channels=each,
        results=case.image[1] // case.groups,
        height=height,
        width=width,
        tap_rows=rows,
        tap_columns=columns,
        padding_rows=case.dilation[0] * (rows - 1) - case.padding[0],
        padding_columns=case.dilation[1] * (columns - 1) - case.padding[1],
        dilation_rows=case.dilation[0],
        dilation_columns=case.dilation[1],
        weight_at=(rows - 1) * steps[2] + (columns - 1) * steps[3],
        group_step=each * steps[0],
        result_step=steps[1],
        channel_step=steps[0],
        row_step=-steps[2],
        column_step=-steps[3],
    )


def _layout(about: Tiled, format_: torch.memory_format) -> VectorLayout:
    """The tiles that there are for such a call."""
    if format_ == torch.contiguous_format:
        return VectorLayout.PLANES
    fewer, more = sorted((about.channels, about.results))
    is_few = {fewer, more} <= _FEW_IN_GROUP and more <= 2 * fewer
    return VectorLayout.LANES if is_few else VectorLayout.PIXELS


def _is_worth(about: Tiled, target: Target, layout: VectorLayout) -> bool:
    """Whether tiles take less time than the library does, or generated kernels."""
    pitch = about.width + 2 * about.padding_columns
    columns = pitch - about.dilation_columns * (about.tap_columns - 1)
    held = 1 + about.dilation_rows * (about.tap_rows - 1)
    rows = about.height + 2 * about.padding_rows - held + 1
    match layout:
        case VectorLayout.PLANES:
            planes = about.channels + (about.results if target is Target.WEIGHT else 0)
        case VectorLayout.PIXELS:
            results = about.results if target is Target.WEIGHT else 0
            planes = sum(-(-each // BLOCK) * BLOCK for each in (about.channels, results))
        case VectorLayout.LANES:
            planes = BLOCK * about.channels
        case _:
            assert_never(layout)
    if planes * held * pitch > _MOST_NUMBERS or 4 * columns < pitch:
        return False
    if rows * columns < _FEWEST_PIXELS or about.taps not in _TAPS[layout]:
        return False
    if layout is VectorLayout.PIXELS:
        return _is_half_empty_or_long(about, columns)
    if layout is VectorLayout.LANES:
        return _is_of_several_groups(about)
    products = about.channels * about.results
    if products < FEW:
        if target is not Target.WEIGHT:
            if columns < _SHORT and about.channels > 1:
                return about.work >= _LITTLE_WORK
            if columns > _LONGEST_IN_REGISTERS and about.channels == 1 < about.results:
                return about.work >= _LEAST_WORK
        if products < _FEWEST or about.work < _LEAST_WORK:
            return False
    own = _FULL * columns / pitch * _part(about.results, _tile(about.results))
    blocks = _part(about.channels, BLOCK) * _part(about.results, BLOCK)
    return own > blocks * (1 if about.groups == 1 else _IN_GROUPS)


def _is_of_several_groups(about: Tiled) -> bool:
    """Whether there are more than single channels, and work for tiles: blocks of 16 products are
    the library's for single taps.
    """
    is_many = about.groups * about.results >= BLOCK and about.work >= _LITTLE_WORK
    products = about.channels * about.results
    return is_many and products in range(2, BLOCK if about.taps == 1 else BLOCK + 1)


def _is_half_empty_or_long(about: Tiled, columns: int) -> bool:
    """Whether images in channels-last format are such that the library takes 1.1 to 2 times as long
    as tiles of full vectors: its blocks are half empty, or its groups have long rows.

    Beside that it takes 0.7 to 1.1 of the time: with few pixels, one image, more channels, or such
    as leave lanes of a vector empty.
    """
    if not {about.channels, about.results} <= {BLOCK // 2, BLOCK}:
        return False
    if about.groups == 1:
        is_half_empty = about.channels + about.results < 2 * BLOCK
        return is_half_empty and columns >= _SHORT and about.work >= _LEAST_WORK
    return about.images > 1 and columns >= _LONG


def _tile(results: int) -> int:
    """Of what number a multiple of results is computed: the last ones may be a smaller tile."""
    left = results % RESULTS
    return RESULTS if left > RESULTS // 2 or left == 0 else RESULTS // 2 if left > 2 else 2


def _part(size: int, block: int) -> float:
    """How much of the blocks is wanted."""
    return size / (math.ceil(size / block) * block)


def computed(
    plan: Tiles, one: torch.Tensor, other: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The result of image and weight, or the gradient of the image of cotangent and weight, or that
    of the weight of image and cotangent; None where it cannot be: for want of memory, or of strides
    that the plan is for.
    """
    given = [None if each is None else as_memory(each) for each in (one, other, bias)]
    for before, after in zip((one, other, bias), given, strict=True):
        if before is not None and after is not None and before.stride() != after.stride():
            return None  # a copy of a view that negates: it lies otherwise than the plan says
    target = kept_memory.empty_strided(plan.shape, plan.strides, one.dtype)
    words = (ctypes.c_int64 * len(plan.about))(*plan.about)
    addresses = [None if each is None else each.data_ptr() for each in given]
    is_done = function(plan.target, plan.layout)(*addresses, target.data_ptr(), words)
    return target if is_done else None


def function(target: Target, layout: VectorLayout = VectorLayout.PLANES) -> Any:
    """The function of ctypes; None where it cannot be built: the library is as right.

    It takes the addresses of two tensors, of a bias or none, of what is computed, and of the
    integers.
    """
    return _function(*_source(target, layout))


def _source(target: Target, layout: VectorLayout) -> tuple[str, str]:
    """The name and the source, which all calls need, those found on disk too, but no import."""
    from opgen.runtime import (
        convolution_lanes_result,
        convolution_lanes_weight,
        convolution_pixels_result,
        convolution_pixels_weight,
        convolution_planes_result,
        convolution_planes_weight,
    )

    results = {
        VectorLayout.PLANES: ("opgen_plane_tiles", convolution_planes_result.RESULT),
        VectorLayout.PIXELS: ("opgen_pixel_tiles", convolution_pixels_result.RESULT),
        VectorLayout.LANES: ("opgen_lane_tiles", convolution_lanes_result.RESULT),
    }
    weights = {
        VectorLayout.PLANES: ("opgen_plane_weight_tiles", convolution_planes_weight.WEIGHT),
        VectorLayout.PIXELS: ("opgen_pixel_weight_tiles", convolution_pixels_weight.WEIGHT),
        VectorLayout.LANES: ("opgen_lane_weight_tiles", convolution_lanes_weight.WEIGHT),
    }
    return (weights if target is Target.WEIGHT else results)[layout]


@functools.cache
def _function(name: str, part: str) -> Any:
    try:
        library = build.library(convolution_tiles_source.source(part))
    except (OSError, build.BuildError):
        return None
    found = getattr(library, name, None)
    if found is not None:
        found.restype = ctypes.c_int64
        found.argtypes = [ctypes.c_void_p] * 5
    return found
