"""Convolutions of PyTorch's library whose results are large: some rows of them at a time.

The library brings an image into an order of its own, computes, and brings the result back, from
tensor to tensor. Where these are larger than what the C library keeps, all of them are new pages in
every call, and none is in a cache when it is read. That takes longer than the products: of 64
channels to 256, 3x3, on 720 by 1280, 5.6 s on one thread where strips of the result take 1.4, and
2.4 s beside 1.1 in channels-last format; 135 ms beside 82 on 180 by 320.

A strip reads the rows that its windows reach, with rows of zeros where these are outside of the
image. It goes to its place in the result while it is in a cache, which is where the dims of a
result that is seen with others (`arrangement`) are brought into their order, too.

Both gradients likewise come from strips of the cotangent, in float32: that of the weight is the sum
of theirs, and rows of the image that two strips read have the sum of both. On 180 by 320 that takes
0.75 to 0.85 of the time.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from opgen.runtime import compat, kept_memory, lookup_library, lookup_moves
from opgen.runtime.arrangement import Arrangement, copy
from opgen.runtime.layout import FORMATS
from opgen.runtime.record import record

if TYPE_CHECKING:
    from opgen.runtime.library import Case, Sizes

_LARGE = 2**25
"""Bytes of a result from which on it is computed so: the C library keeps no more of them. With
fewer it depends on what a program did before whether there are new pages: 64 channels on 180 by 320
took half the time in strips in one process, and 1.1 times as long in another."""

_AT_ONCE = 2**22
"""Bytes of a strip and of what it reads, about. Of four times as many some allocations are new
pages again; of fewer the calls show, and threads wait for each other more often, which takes long
on busy processors."""

_OUTWEIGHS = 4
"""How many times the bytes of the weight those of a strip are at least: the library brings the
weight into an order of its own for every call, which must not show."""

_FEWEST = 4
"""How many strips a result must have."""


@record
class Strips:
    """How the result of a convolution is cut: some images at a time, or some rows of each."""

    case: Case
    arrangement: Arrangement | None
    images: int
    rows: int

    def parts(self) -> Iterator[tuple[range, range]]:
        """The images and rows of every strip."""
        images, rows = self.case.result[0], self.case.result[2]
        for first in range(0, images, self.images):
            for top in range(0, rows, self.rows):
                yield (
                    range(first, min(first + self.images, images)),
                    range(top, min(top + self.rows, rows)),
                )

    def place(self, whole: torch.Tensor, images: range, rows: range) -> torch.Tensor:
        """Where a strip is in the op's tensor; its dims are parts of those of the strip."""
        at_rows = 2
        if self.arrangement is not None:
            order = self.arrangement.order
            whole = whole.view(self.arrangement.split).permute(self.arrangement.moved)
            at_rows = len(order[0]) + len(order[1])
        return whole.narrow(0, images.start, len(images)).narrow(at_rows, rows.start, len(rows))


def strips(case: Case, arrangement: Arrangement | None, dtype: torch.dtype) -> Strips | None:
    """The strips of a convolution's result; None where it is computed as a whole."""
    size = dtype.itemsize
    if len(case.result) < 3 or math.prod(case.result) * size < _LARGE:
        return None
    if case.format not in (torch.contiguous_format, FORMATS.get(len(case.result))):
        return None  # that of an output with more or fewer dims
    if arrangement is not None and {len(arrangement.order[dim]) for dim in (0, 2)} != {1}:
        return None  # images or rows of the strip are none of the op's output
    least = max(_AT_ONCE, _OUTWEIGHS * math.prod(case.weight) * size)
    one = (math.prod(case.result[1:]) + math.prod(case.image[1:])) * size
    if _FEWEST * least > one * case.result[0]:
        return None
    if one <= least:
        return Strips(case, arrangement, least // one, case.result[2])
    overlap = -(-case.dilation[0] * (case.weight[2] - 1) // case.stride[0])
    return Strips(case, arrangement, 1, max(least * case.result[2] // one, overlap, 1))


def convolve(
    plan: Strips,
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    shape: Sizes,
    strides: Sizes,
) -> torch.Tensor:
    """The output of the op, of that shape and with these strides."""
    case, image = plan.case, as_memory(image)
    target = kept_memory.empty_strided(shape, strides, image.dtype)
    _expected(target)
    weight = weight.contiguous(memory_format=case.format)  # once, not for every strip
    none = [0] * len(case.stride)
    for images, rows in plan.parts():
        read, padding = _read(case, image[images.start : images.stop], rows)
        geometry = (case.stride, [padding, *case.padding[1:]], case.dilation, False, none)
        found = torch.convolution(read, weight, bias, *geometry, case.groups)
        place = plan.place(target, images, rows)
        _moved(found.view(place.shape), place)
    return target


def gradients(
    plan: Strips, cotangent: torch.Tensor, image: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of image and weight, all of them float32; the cotangent is that of the op."""
    case, cotangent, image = plan.case, as_memory(cotangent), as_memory(image)
    if plan.arrangement is not None and not _can_be_taken_apart(cotangent, plan.arrangement):
        cotangent = cotangent.contiguous()
    like = torch.empty(image.shape, device="meta", memory_format=case.format)
    target = kept_memory.empty_strided(like.shape, like.stride(), image.dtype)
    _expected(target)
    weight = weight.contiguous(memory_format=case.format)
    sums: torch.Tensor | None = None
    none = [0] * len(case.stride)
    for images, rows in plan.parts():
        some = slice(images.start, images.stop)
        read, padding = _read(case, image[some], rows)
        given = _in_format(case, plan.place(cotangent, images, rows), images, rows)
        geometry = (case.stride, [padding, *case.padding[1:]], case.dilation, False, none)
        wanted = [True, True, False]
        found: list[torch.Tensor] = torch.ops.aten.convolution_backward.default(
            given, read, weight, None, *geometry, case.groups, wanted
        )
        sums = found[1] if sums is None else sums.add_(found[1])
        _add(case, found[0], target[some], rows)
    assert sums is not None
    return target, sums


def _can_be_taken_apart(tensor: torch.Tensor, arrangement: Arrangement) -> bool:
    try:
        tensor.view(arrangement.split)
    except RuntimeError:
        return False
    return True


def _in_format(case: Case, parts: torch.Tensor, images: range, rows: range) -> torch.Tensor:
    """A strip of the cotangent as the library takes it."""
    shape = (len(images), case.result[1], len(rows), *case.result[3:])
    if parts.shape == shape and parts.is_contiguous(memory_format=case.format):
        return parts
    found = torch.empty(shape, dtype=parts.dtype, memory_format=case.format)
    _moved(parts, found.view(parts.shape))
    return found


def _add(case: Case, found: torch.Tensor, target: torch.Tensor, rows: range) -> None:
    """Add what a strip gives for images to them; strips come from the first row to the last."""
    if len(rows) == case.result[2]:
        _moved(found, target)
        return
    size = case.image[2]
    first, last = _reach(case, rows)
    begin, end = max(first, 0), min(last + 1, size)
    done = _rows_of(case, rows.start)
    target.narrow(2, done, max(begin - done, 0)).zero_()
    both = max(min(done, end) - begin, 0)
    target.narrow(2, begin, both).add_(found.narrow(2, begin - first, both))
    _moved(
        found.narrow(2, begin + both - first, end - begin - both),
        target.narrow(2, begin + both, end - begin - both),
    )
    if rows.stop == case.result[2]:
        done = _rows_of(case, rows.stop)
        target.narrow(2, done, size - done).zero_()


def _rows_of(case: Case, count: int) -> int:
    """How many rows of an image its first strips have written, with so many rows of the result."""
    if count == 0:
        return 0
    _, last = _reach(case, range(count))
    return max(0, min(last + 1, case.image[2]))


def _reach(case: Case, rows: range) -> tuple[int, int]:
    """The first and the last row that rows of the result read, which may be in the padding."""
    step, padding = case.stride[0], case.padding[0]
    reach = case.dilation[0] * (case.weight[2] - 1)
    return rows.start * step - padding, (rows.stop - 1) * step - padding + reach


def _read(case: Case, images: torch.Tensor, rows: range) -> tuple[torch.Tensor, int]:
    """What a strip is computed from, and with how much padding."""
    if len(rows) == case.result[2]:
        return images, case.padding[0]
    first, last = _reach(case, rows)
    begin, end = max(first, 0), min(last + 1, case.image[2])
    inside = images.narrow(2, begin, end - begin)
    if (begin, end) == (first, last + 1) and inside.is_contiguous(memory_format=case.format):
        return inside, 0
    shape = (*inside.shape[:2], last + 1 - first, *inside.shape[3:])
    found = torch.empty(shape, dtype=images.dtype, memory_format=case.format)
    found.narrow(2, 0, begin - first).zero_()
    found.narrow(2, end - first, last + 1 - end).zero_()
    _moved(inside, found.narrow(2, begin - first, end - begin))
    return found, 0


def as_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose numbers are those in its memory: of views that negate they are not, and zeros
    that autograd made may have none."""
    return tensor.clone() if tensor.is_neg() or compat.is_zero_tensor(tensor) else tensor


def _expected(target: torch.Tensor) -> None:
    """Ask for large pages, where a tensor that is to be written has none yet."""
    library = lookup_library.loaded()
    if library is not None:
        library.opgen_expect(target.data_ptr(), target.numel() * target.element_size())


def _moved(source: torch.Tensor, target: torch.Tensor) -> None:
    """`target.copy_(source)`."""
    if target.numel() == 0:
        return
    library, size = lookup_library.loaded(), target.element_size()
    dims = lookup_moves.steps(source, target)
    if library is None or not lookup_moves.is_quick(dims, size):
        copy(target, source)
        return
    words = lookup_moves.listed(dims)
    about = (ctypes.c_int64 * len(words))(*words)
    library.opgen_move(source.data_ptr(), target.data_ptr(), about, size)
