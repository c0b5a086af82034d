"""Convolutions that PyTorch's own library computes faster than generated kernels.

An op is known to be a convolution by its index maps (`opgen.passes.convolution`). With enough
channels in a group the sum is a product of large matrices, for which oneDNN has kernels of many
years' work; with few, the generated ones are faster. `library_plan` works out how it is asked, and
`library_call` asks it. Between these, where blocks of the library would be half empty, are opgen's
own tiles, which take part here as if they were the library's (`convolution_tiles`). For GPUs there
is a rule of their own (`library_cuda`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import torch

from opgen.runtime import (
    compat,
    convolution_tiles,
    cuda,
    library_cuda,
    library_sides,
    special,
)
from opgen.runtime.arrangement import Arrangement
from opgen.runtime.description import LONGEST_ROW
from opgen.runtime.record import record, replaced
from opgen.runtime.special import LARGE

if TYPE_CHECKING:
    from opgen.runtime.description import Convolution
    from opgen.runtime.evaluation import Call

_LEAST_CHANNELS = {torch.float32: convolution_tiles.FEW, torch.bfloat16: 4, torch.float16: 4}
"""From how many products of channels in a group on the library is faster, by element type."""

_LEAST_CHANNELS_LAST = {torch.float32: 2, torch.bfloat16: 1, torch.float16: 4}
"""The same for images in channels-last format. Generated kernels take channels for their vectors;
where those of a group are several, neighbours in one tensor are none in the other. Single channels
go through kernels for rows of known length."""

_MANY_CHANNELS = 256
_MANY_CHANNELS_OF_ROWS = 4096
"""The same where images get zeros around them first, see `library_sides`. Kernels take 1.1 to 2.6
times as long for images of 16 channels in planes, and 0.4 of the time for single rows of 32; with
64 these take up to 1.5 times as long."""

_WIDE_WINDOW = 100
"""From how many taps on the library is faster for single channels too, in channels-last format: ten
times at 15 by 15. Not for the gradient of the filter, nor where kernels have planes for lanes."""

_MOST_PIXELS = 3 * 2**10
"""The most pixels of an image, its result and its filter for which such kernels are made, see
`passes.wide_windows`: they take a quarter to two thirds of the library's time."""

_VECTOR = convolution_tiles.BLOCK
"""The fewest channels that fill a vector of the library."""

_UNEVEN = range(_VECTOR // 2 + 1, 3 * _VECTOR // 2 + 1)
"""Channels of an image that leave much of the library's blocks of 16 empty, where they are not 16.
With 10 of them and 64 images of 50 by 50, both gradients of a 3x3 filter take half the time in
channels-last format, copies included; with fewer channels, or many results, they take longer."""

_FEW_RESULTS = 40
_FEW_TAPS = 9

_FEW_SINGLES = 6
_MUCH = 2**18
"""From how many channels, or multiplications, such images are the library's."""

_STREAMED = 2**20
_WHOLE_ROWS = (*range(1, 12), *range(14, 17))
"""From how many cells of a result on the library is faster for single channels of bfloat16 through
windows of 3 by 3, where rows have other lengths. Such rows go a vector at a time, or their borders
do, as pairs of vectors would be too many terms: images of 24 by 24, 28 by 28 or 56 by 56 take 1.15
to 1.6 times as long as the library does, those of 12 by 12 about as long. With fewer cells what it
takes for every call is more."""

_HALF = 2
_BYTES = 4
_NEW_PAGES = 2**26
"""Bytes of all images and results from which on a result goes by pieces: the library's own memory
is then new pages. For half as many it may be as well, but only where pages are expensive do pieces
take less time (0.8 of it), elsewhere they take 1.2 times as long; and threads that wait for each
other in every piece take twice as long or more on busy processors."""

_CACHED = 2**23
_FEWEST_AT_ONCE = 4
"""Bytes of images and results that are written over and over while others pass through them; larger
images still go some at a time, as there are threads for them. A quarter of it would be a fifth
faster on idle processors; but threads wait for each other several times for every piece, and on
busy ones that costs more."""

_OUTWEIGHS = 8
"""How many times the cells of the weight those of the images are, where they go some at a time."""

Sizes = Sequence[int]


@record
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
    sides: Sizes = ()
    """What the image of the call has not of this one, see `library_sides`."""

    @property
    def is_padded(self) -> bool:
        """Whether what is convolved has zeros that are none of the image."""
        return any(self.padding) or any(number > 0 for number in self.sides)

    @property
    def is_library_form(self) -> bool:
        """Whether there is work, and the sizes are those that the library finds by itself."""
        if 0 in (*self.result, *self.image, *self.weight) or self.groups < 1:
            return False
        if min((*self.stride, *self.dilation)) < 1 or min(self.padding) < 0:
            return False
        if self.has_empty_windows:
            return False
        gaps = zip(self.output_padding, self.stride, strict=True)
        return all(0 <= gap < step for gap, step in gaps)

    @property
    def has_empty_windows(self) -> bool:
        """Whether windows may lie in the padding alone: the library ends the process for some."""
        sizes = zip(self.padding, self.dilation, self.weight[2:], strict=True)
        return any(padding > dilation * (taps - 1) for padding, dilation, taps in sizes)

    @property
    def has_idle_taps(self) -> bool:
        """Whether some tap meets no pixel in any window.

        In 16 bits the library leaves their gradients as memory was: numbers of any size, which
        `F.conv2d` has too.
        """
        spatial = (self.image[2:], self.result[2:], self.weight[2:])
        for image, result, taps, stride, padding, dilation in zip(
            *spatial, self.stride, self.padding, self.dilation, strict=True
        ):
            for tap in range(taps):
                first = tap * dilation - padding
                window = max(0, -(first // stride))
                if window >= result or window * stride + first >= image:
                    return True
        return False

    @property
    def geometry(self) -> tuple[Hashable, ...]:
        """What is alike for the ops of one convolution, whatever their formats."""
        tensors = self.result, self.image, self.weight
        sizes = (self.stride, self.padding, self.dilation, *tensors, self.sides)
        return (self.groups, *map(tuple, sizes))

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
    def output_padding(self) -> tuple[int, ...]:
        """How much larger the image is: that of a transposed convolution."""
        sizes = zip(self.image[2:], self.least, strict=True)
        return tuple(outer - least for outer, least in sizes)

    def repeated(self, count: int) -> Case:
        """The same of single channels, where each has as many copies as results."""
        batch, channels, *pixels = self.image
        image = (batch, channels * count, *pixels)
        return replaced(self, groups=self.groups * count, image=image)

    @property
    def channels(self) -> int:
        """How many products of channels there are for each tap."""
        return self.weight[1] * (self.weight[0] // self.groups)

    @property
    def work(self) -> int:
        """How many multiplications there are."""
        return math.prod(self.result) * math.prod(self.weight[1:])

    @property
    def is_wide(self) -> bool:
        """Whether single channels go through windows so large that other formats are worth a copy.

        Images of other ranks have no such format.
        """
        is_depthwise = self.channels == 1 and self.groups >= _VECTOR
        is_plain = len(self.stride) == 2 and max(self.stride) == 1
        return is_depthwise and is_plain and math.prod(self.weight[2:]) >= _WIDE_WINDOW

    @property
    def is_of_planes(self) -> bool:
        """Whether wide windows go through kernels that have planes for lanes, if these are made."""
        tensors = (self.image, self.result, self.weight)
        pixels = sum(math.prod(each[2:]) for each in tensors)
        is_large = max(map(math.prod, tensors)) >= LARGE
        sizes = zip(self.weight[2:], self.image[2:], self.result[2:], strict=True)
        terms = math.prod(map(min, sizes))  # taps that lie inside for some cell
        is_dense = max(self.dilation) == 1
        is_small = pixels <= _MOST_PIXELS
        return self.is_wide and is_dense and is_large and is_small and terms >= _WIDE_WINDOW

    @property
    def is_long(self) -> bool:
        """Whether rows are longer than those that kernels are made for."""
        return max(self.image[-1], self.result[-1]) > LONGEST_ROW

    @property
    def is_short_single(self) -> bool:
        """Whether single channels have rows that kernels are made for: their gradients are never
        the library's work.
        """
        return self.channels == 1 and not self.is_wide and not self.is_long

    @property
    def is_uneven(self) -> bool:
        """Whether channels are so few that both gradients at once are worth copies of the images.

        Images of other ranks have no such format.
        """
        is_plain = len(self.stride) == 2 and max(self.stride) == 1 and self.groups == 1
        is_few = self.weight[1] in _UNEVEN and self.weight[1] != _VECTOR
        is_window = math.prod(self.weight[2:]) >= _FEW_TAPS
        return is_plain and is_few and is_window and self.weight[0] <= _FEW_RESULTS

    @property
    def is_many(self) -> bool:
        """Whether the result too is worth copies of so few channels: beyond these sizes PyTorch's
        own memory for each call is new pages, and that of the copies is not.

        For fewer images it is a matter of sizes in no order that we see: with 10 channels copies
        take 0.95 to 2.2 of the time, with 20 and 24 0.6 to 0.9, on two threads.
        """
        return self.is_uneven and _BYTES * self.image[0] * self._cells >= _NEW_PAGES

    @property
    def images_at_once(self) -> int:
        """How many images go through the library together where they are copied.

        It brings the weight into an order of its own for every call, which must not show.
        """
        cached = _CACHED // _BYTES // self._cells
        outweighing = _OUTWEIGHS * math.prod(self.weight) // self._cells
        most = max(_FEWEST_AT_ONCE, cached, outweighing)
        pieces = -(-self.image[0] // most)
        return -(-self.image[0] // pieces)

    @property
    def _cells(self) -> int:
        """Those of one image and its result."""
        return math.prod(self.image[1:]) + math.prod(self.result[1:])

    @property
    def is_long_single(self) -> bool:
        """Whether single channels have rows that no kernels are made for.

        In rows of a known length several blocks of channels go through an image together, and cells
        share what they load. Without that the library takes 0.1 to 0.8 of the time. In bfloat16 it
        takes 0.1 to 0.7 for results where windows move by two pixels, but 4 to 17 times as long for
        the gradients of their images; and 0.05 to 0.1 for those of filters of 3 by 3.
        """
        is_plain = len(self.stride) == 2 and max(self.stride) <= 2 and max(self.dilation) == 1
        is_depthwise = self.channels == 1 and self.groups >= _VECTOR
        return is_plain and is_depthwise and self.is_long

    @property
    def is_streamed(self) -> bool:
        """Whether single channels of 16 bits go through windows of 3 by 3 one vector at a time, and
        are so many that what the library takes for every call does not show.
        """
        is_plain = len(self.stride) == 2 and max(*self.stride, *self.dilation) == 1
        is_depthwise = self.channels == 1 and self.groups >= _VECTOR
        is_uncut = self.result[-1] in _WHOLE_ROWS
        is_window = tuple(self.weight[2:]) == (3, 3)
        is_much = math.prod(self.result) >= _STREAMED
        return is_plain and is_depthwise and is_window and is_much and not is_uncut

    @property
    def is_few_singles(self) -> bool:
        """Whether single channels are too few to fill a vector, as those of a picture.

        In channels-last format neighbours in memory are then neither those of a row nor enough of
        a pixel's: generated kernels go cell by cell, and take up to 14 times as long.
        """
        is_plain = len(self.stride) == 2 and max(self.dilation) == 1
        is_few = 1 < self.groups < _VECTOR
        is_many_pixels = self.groups >= _FEW_SINGLES or self.work >= _MUCH
        return is_plain and self.channels == 1 and is_few and is_many_pixels

    @property
    def is_narrow(self) -> bool:
        """Whether these go through windows of few taps: the library has vectors for 3 by 3."""
        return self.is_long_single and max(self.weight[2:]) <= 3


def case_of(call: Call) -> Case | None:
    """The convolution that a call is, if it is one for which the library is to be asked."""
    names, geometry = call.operation.convolution, call.shapes.geometry
    dtype = next((tensor.dtype for tensor in call.tensors if tensor is not None), None)
    if names is None or geometry is None or dtype not in _LEAST_CHANNELS:
        return None
    on_gpu = cuda.computes(call.device)
    if not on_gpu and (call.device.type != "cpu" or not compat.library_has_convolutions):
        return None
    if names.bias is not None and has_other_default(call, names.bias):
        return None
    if dtype == torch.float16 and not on_gpu and not compat.library_has_float16():
        return None  # it would go cell by cell
    declared = zip(call.operation.inputs, call.tensors, strict=True)
    shapes: dict[str, Sizes] = {each.name: t.shape for each, t in declared if t is not None}
    shapes[call.operation.outputs[0].name] = call.shapes.outputs[0]
    shapes |= {name: each.shape for name, each in arrangements(call).items()}
    roles = (names.result, names.image, names.weight)
    (groups,), stride, padding, dilation = geometry
    format_ = call.format_of(len(call.shapes.outputs[0]))
    result, image, weight = (shapes[name] for name in roles)
    plain = Case(groups, stride, padding, dilation, result, image, weight, format_)
    case = plain if plain.is_library_form or on_gpu else _evened(plain)
    if case is None or not case.is_library_form:
        return None
    if on_gpu:
        found = library_cuda.settings()
        format_ = library_cuda.format_of(case, dtype, found)
        about = found, copied(call, names) if format_ == case.format else 0
        return case if library_cuda.takes_convolution(case, dtype, names, *about) else None
    # With a dilation the library reads memory that nobody wrote, of rows of more than 30 pixels.
    reads_more = max(dilation) > 1 or case.has_idle_taps
    if names.target == names.weight and dtype.itemsize == _HALF and reads_more:
        return None
    if case.channels < _least_channels(case, dtype, names):
        return case if convolution_tiles.tiles_of(case, call) is not None else None
    if case.is_of_planes and names.target != names.weight and _goes_over_planes(call):
        return None
    return case


def _evened(case: Case) -> Case | None:
    """The convolution of an image with zeros around it, where that is worth the copy."""
    least = _MANY_CHANNELS_OF_ROWS if len(case.stride) == 1 else _MANY_CHANNELS
    if 0 in (*case.result, *case.image, *case.weight) or case.groups < 1:
        return None
    if case.has_empty_windows or case.channels < least:
        return None
    return library_sides.evened(case)


def copied(call: Call, names: Convolution) -> int:
    """How many elements of image and result are copied, since they do not lie as the library takes
    them; it finds no other order for filters, which are small."""
    count, arranged = 0, arrangements(call)
    for declared, tensor in zip(call.operation.inputs, call.tensors, strict=True):
        if tensor is None or declared.name not in (names.image, names.result):
            continue
        own = arranged.get(declared.name)
        seen = tensor if own is None else own.viewed(tensor)
        format_ = call.format_of(0 if seen is None else seen.dim())
        if seen is None or not seen.is_contiguous(memory_format=format_):
            count += tensor.numel()
    target = arranged.get(names.target)
    if target is not None and names.target != names.weight and not target.keeps_order:
        count += math.prod(target.shape)
    return count


def has_other_default(call: Call, name: str) -> bool:
    """Whether an input is absent that then stands for another number than 0."""
    pairs = zip(call.operation.inputs, call.tensors, strict=True)
    return any(tensor is None and each.default != 0 for each, tensor in pairs if each.name == name)


def meets_neighbours(case: Case, dtype: torch.dtype, names: Convolution) -> bool:
    """Whether what is convolved must be finite, since zeros meet numbers that are no terms.

    The library multiplies channels of 16 bits in pairs. Of an odd number of them the last one's
    partner is a channel of another group or pixel, times zero. Single channels with one result each
    have no pairs on the way forward.
    """
    if dtype.itemsize != _HALF or names.target == names.weight:
        return False
    if names.target == names.image:
        return case.weight[0] // case.groups % 2 == 1
    is_depthwise = case.channels == 1 and case.groups >= _VECTOR
    return case.weight[1] % 2 == 1 and not is_depthwise


def _goes_over_planes(call: Call) -> bool:
    """Whether kernels with planes for lanes serve a call: rows, or channels, are side by side."""
    images = (each for each in call.tensors if each is not None and each.dim() > 1)
    is_consecutive = all(each.stride(-1) == 1 or each.stride(1) == 1 for each in images)
    return is_consecutive and special.is_made_for(call.operation, call.shapes.integers)


def _least_channels(case: Case, dtype: torch.dtype, names: Convolution) -> int:
    """From how many products of channels in a group on the library is faster."""
    if case.is_wide and names.target != names.weight:
        return 1
    if case.format == torch.contiguous_format:
        return _LEAST_CHANNELS[dtype]
    is_tried = dtype != torch.float16  # no processor that has kernels for it was at hand
    if case.is_few_singles and is_tried:
        return 1
    least = _LEAST_CHANNELS_LAST[dtype]
    if names.target == names.weight:
        # A sum over all pixels, for which one channel is a long row.
        return 1 if case.is_narrow and is_tried else max(least, 2)
    is_forward = names.target == names.result
    if case.channels == 1 and not case.is_long:
        if dtype == torch.bfloat16 and is_forward and case.is_streamed:
            return 1
        return max(least, 2)
    if case.is_long_single and (dtype == torch.float32 or (is_forward and is_tried)):
        return 1
    return least if max(case.stride) == 1 else max(least, 4)


def arrangements(call: Call) -> dict[str, Arrangement]:
    """How tensors become those of a convolution, of those that are not already."""
    names = call.operation.convolution
    orders = {} if names is None else names.orders
    return {name: Arrangement(call.shapes.parts[name], order) for name, order in orders.items()}
