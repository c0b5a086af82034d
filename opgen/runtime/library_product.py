"""Products of matrices that PyTorch's own library computes faster than generated kernels.

An op is known to be one by its index maps (`opgen.passes.matrix_product`). Generated kernels take
columns that lie side by side for their vectors, and keep several rows of sums; or they take the
terms, where these lie side by side in both factors. What the library does better are short sums of
the latter kind, rows of columns that fill no vectors, factors that no near cache holds, and 16-bit
numbers, which it multiplies in pairs. For GPUs there is a rule of their own (`library_cuda`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from opgen.runtime import compat, cuda, layout, library, library_cuda
from opgen.runtime.arrangement import Arrangement
from opgen.runtime.description import Shape
from opgen.runtime.record import record

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call

Tensors = Sequence[torch.Tensor | None]

_VECTOR = 32
"""Columns in float32 that generated kernels take at once; rows of as many fill their vectors."""

_NEAR, _FEW_TERMS = 2**12, 8
"""Up to how many elements of the right factor of each member of a batch, and up to how many terms,
generated kernels take such columns in 0.4 to 0.75 of the time."""

_FEWEST_ROWS, _ROWS, _FEWEST_COLUMNS = 16, 24, 12
"""From how many rows and columns on the library is faster, for columns that lie side by side: of 16
rows 16 columns take 2.3 times as long in generated kernels, but 256 columns 0.6; 8 columns 0.4."""

_LEAST_OF_EACH = 2**12
"""How many products each member of a batch is to have: for 512 of 16 by 16 and 2 terms the library
takes six times as long."""

_LONG_SUM = 128
_FEWEST_CELLS = 9
"""Up to how many terms side by side the library is faster, and from how many rows and columns on:
16 terms take 1.8 to 3.8 times as long in generated kernels, 64 terms 1.2 to 1.5, 256 terms 0.8."""

_LONG_SUM_OF_SMALL_CACHE, _FEWEST_CELLS_OF_LONG_SUM = 512, 64
"""The same on processors whose first cache has 32 KB: 160 terms take 1.25 to 1.8 times as long, 256
terms 1.2 to 1.5 and 512 terms 1.1 to 1.5, of 64 rows and columns and more."""

_FEWEST_CELLS_OF_LONGER_SUM, _FEWEST_CELLS_OF_BATCH = 128, 64
"""From how many rows and columns on longer sums take longer there too, and of how many where there
are several products: 1.15 to 1.8 times as long, 64 by 64 by themselves 0.9 to 1.1."""

_SMALL_CACHE = 2**15
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index0/size")

_SHORT_SUM_OF_DOUBLES = 32
_FEWEST_CELLS_OF_DOUBLES = 64
"""The same in float64, where 64 terms take 0.9."""

_LEAST_WORK, _LEAST_WORK_OF_TERMS = 2**21, 2**18
_SHORT_SUM_OF_HALVES = 64
_FEWEST_CELLS_OF_HALVES = 4
"""From how many products on the library is faster in 16 bits; it takes 13 microseconds for any, and
then 2 to 17 times less than generated kernels. Short sums of terms side by side, in which these are
slow, are worth it earlier."""

_WORTH_COPIES = 64
"""How many products there are to be for each element of a factor, or of the result, that is copied
because no view of it is a matrix."""


_FEWEST_CHANNELS, _FEW_CHANNELS, _MOST_WORK = 4, 8, 6 * 2**20
"""Of sums over the channels of each pixel in float32: up to how many channels, of the image or the
result, generated kernels are fastest, and up to how many channels or products a product is. On two
threads a convolution takes 40 microseconds for any; with more it takes 0.4 to 1 of the time."""

_SMALL_WEIGHT, _MANY_PIXELS = 2**17, 2**9
"""On processors whose first cache has 32 KB products are faster than convolutions for more of them:
up to how many elements of the weight, and from how many pixels. Images of 12 to 100 channels take
0.3 to 0.9 of the time, of 256 channels 0.7 to 1.1; where results are new memory half of it and
less. For 512 channels and 7 by 7 pixels a product takes 1.1 to 1.3 times as long."""

_LEAST_WORK_OF_PIXELS, _LEAST_PIXELS, _MOST_WORK_OF_HALVES = 2**19, 128, 2**27
"""From how many products on they are the library's in 16 bits, and from how many pixels, or up to
how many products, a product is faster than a convolution, which takes 1.1 to 6.9 times as long. For
7 by 7 pixels and 512 channels it takes 0.8."""

_MOST_OF_WEIGHT, _FEW_OF_WEIGHT = 2**24, 16
"""Up to how many products, or channels, generated kernels are fastest for the gradient of a weight,
a sum of rows: they take 0.3 to 0.7 of the time, and with more 1 to 3 times as long. Then products
with copies of the images are faster than a convolution in 16 bits, 0.6 to 0.9, but 1.6 to 2 times
as long in float32."""


class Ways(Enum):
    """Who computes a call beside the library."""

    KERNELS = "generated kernels"


@record
class Factor:
    """An input: its position, and how it becomes matrices, turned ones if `is_turned`."""

    at: int
    arrangement: Arrangement
    is_turned: bool = False

    def of(self, tensors: Tensors) -> torch.Tensor | None:
        """The matrices; None where the tensor is absent, as a bias may be."""
        tensor = tensors[self.at]
        if tensor is None:
            return None
        found = self.arrangement.arranged(tensor, torch.contiguous_format)
        return found.mT if self.is_turned else found

    def for_all(self, tensors: Tensors, batch: int) -> torch.Tensor:
        """The matrices of a factor for each member of the batch, if it has one."""
        found = self.of(tensors)
        assert found is not None
        return found if found.dim() == 2 else found.expand(batch, *found.shape[1:])

    def viewed(self, tensors: Tensors) -> torch.Tensor | None:
        """The matrices without their numbers, if they are a view."""
        tensor = tensors[self.at]
        assert tensor is not None
        like = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
        found = self.arrangement.viewed(like)
        return found.mT if found is not None and self.is_turned else found

    def transposed(self) -> Factor:
        """The transposed matrices."""
        return Factor(self.at, self.arrangement, not self.is_turned)

    def turned(self) -> Factor:
        """The same matrices, which if they are copied have what now are columns for rows."""
        *batch, rows, columns = self.arrangement.order
        turned = Arrangement(self.arrangement.parts, (*batch, columns, rows))
        return Factor(self.at, turned, not self.is_turned)

    def as_stored(self) -> Factor:
        """The same matrices, with what the tensor has side by side in rows."""
        last = max(itertools.chain(*self.arrangement.order))
        return self if last in self.arrangement.order[-1] else self.turned()


@record
class Multiplication:
    """How the library computes a call, but for the numbers in its tensors."""

    left: Factor
    right: Factor
    bias: Factor | None
    restored: Arrangement
    found: Shape
    """The shape of what the library gives,"""
    shape: Shape
    """and that of the output."""
    dtype: torch.dtype
    is_direct: bool = False
    """Whether tensors are matrices as they are, or turned, and what the library gives the output.
    """
    format: torch.memory_format = torch.contiguous_format
    """That of the output. In channels-last format it is a view of what the library gives."""

    @property
    def terms(self) -> int:
        """How many products are summed."""
        return self.left.arrangement.shape[-2 if self.left.is_turned else -1]

    @property
    def work(self) -> int:
        """How many products there are."""
        return math.prod(self.found) * self.terms

    def copied(self, tensors: Tensors) -> int:
        """How many elements are copied, of factors and the result that are no matrices."""
        factors = [each for each in (self.left, self.right) if each.viewed(tensors) is None]
        count = sum(math.prod(each.arrangement.shape) for each in factors)
        is_plain, restored = self.format == torch.contiguous_format, self.restored
        is_view = restored.keeps_order if is_plain else restored.keeps_order_of_pixels
        return count if is_view else count + math.prod(self.found)


def planned(call: Call) -> Multiplication | None:
    """How the library computes calls like this one; None where generated kernels are faster."""
    plan = _plan(call)
    if plan is None:
        return None
    if cuda.computes(call.device):
        about = library_cuda.settings(), plan.copied(call.tensors)
        return plan if library_cuda.takes_product(plan, *about) else None
    return plan if _is_worth(plan, call.tensors) else None


def instead_of_convolution(call: Call) -> Multiplication | Ways | None:
    """What is faster than the convolution that a call is as well: sums over the channels of each
    pixel, or the gradient of their weight. None where the convolution is.
    """
    plan, names = _plan(call), call.operation.convolution
    if plan is None or names is None or plan.work == 0:
        return None
    ranks = [0 if tensor is None else tensor.dim() for tensor in call.tensors]
    if any(call.format_of(rank) != torch.contiguous_format for rank in ranks):
        return None  # there convolutions are as fast, and both gradients are one call
    copied = plan.copied(call.tensors)
    if copied < library.copied(call, names):
        return plan if _is_worth(plan, call.tensors) else Ways.KERNELS
    is_half = plan.dtype != torch.float32
    rows, columns = plan.found[-2:]
    if names.target == names.weight:
        if plan.work <= _MOST_OF_WEIGHT or min(rows, columns) <= _FEW_OF_WEIGHT:
            return Ways.KERNELS
        return plan if is_half else None
    if copied > 0:
        return None
    channels = min(rows, plan.terms)
    if plan.work < _LEAST_WORK_OF_PIXELS if is_half else channels <= _FEWEST_CHANNELS:
        return Ways.KERNELS
    if is_half:
        is_faster = columns >= _LEAST_PIXELS or plan.work <= _MOST_WORK_OF_HALVES
    else:
        is_faster = channels <= _FEW_CHANNELS or plan.work <= _MOST_WORK
        is_wide = rows * plan.terms <= _SMALL_WEIGHT or columns >= _MANY_PIXELS
        is_faster = is_faster or (is_wide and _has_small_cache())
    return plan if is_faster else None


def work(call: Call) -> int:
    """How many products there are in a call, if it is one of matrices that the library could
    compute; else 0."""
    plan = _plan(call)
    return 0 if plan is None else plan.work


def _plan(call: Call) -> Multiplication | None:
    """How the library would compute a call; None where it cannot."""
    names, (shape,) = call.operation.product, call.shapes.outputs[:1]
    on_gpu = cuda.computes(call.device)
    if names is None or not (on_gpu or call.device.type == "cpu"):
        return None
    places = {each.name: at for at, each in enumerate(call.operation.inputs)}
    factors = [call.tensors[places[name]] for name in (names.left, names.right)]
    if any(each is None for each in factors):
        return None  # one number for all elements
    if names.bias is not None and library.has_other_default(call, names.bias):
        return None
    dtype = next(each.dtype for each in factors if each is not None)
    if dtype == torch.float16 and not on_gpu and not compat.library_has_float16():
        return None
    of_target, of_left, of_right, *of_bias = (
        Arrangement(parts, order)
        for parts, order in zip(call.shapes.matrices, names.orders, strict=True)
    )
    left = Factor(places[names.left], of_left).as_stored()
    right = Factor(places[names.right], of_right).as_stored()
    bias = None if names.bias is None else Factor(places[names.bias], of_bias[0])
    if call.operation.outputs[0].batched:
        shape = (*call.leading, *shape[1:])
    format_ = call.format_of(len(shape))
    if format_ != torch.contiguous_format:
        if on_gpu or bias is not None or call.operation.outputs[0].batched:
            return None
        # Pixels are what comes first in memory, and channels are side by side.
        turned = Arrangement(of_target.parts, _last_two_swapped(of_target.order))
        if turned.keeps_order_of_pixels:
            left, right, of_target = right.transposed(), left.transposed(), turned
    is_direct = (
        bias is None
        and format_ == torch.contiguous_format
        and 1 not in shape
        and of_target.is_of(shape)
        and all(
            each.arrangement.is_of(tensor.shape) and tensor.dim() == len(shape)
            for each in (left, right)
            if (tensor := call.tensors[each.at]) is not None
        )
    )
    about = left, right, bias, of_target, of_target.shape, shape, dtype, is_direct, format_
    return Multiplication(*about)


def _last_two_swapped(order: Sequence[Sequence[int]]) -> tuple[Sequence[int], ...]:
    *batch, rows, columns = order
    return (*batch, columns, rows)


def multiply(
    plan: Multiplication, tensors: Tensors, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The output of a call, of another type than the factors if that is given and on a GPU."""
    if plan.is_direct and not compat.autocast_is_active():
        left, right = tensors[plan.left.at], tensors[plan.right.at]
        assert left is not None and right is not None
        turned = left.mT if plan.left.is_turned else left
        return _product(turned, right.mT if plan.right.is_turned else right, None, dtype)
    left, right = (each.for_all(tensors, plan.found[0]) for each in (plan.left, plan.right))
    bias = None if plan.bias is None else plan.bias.of(tensors)
    if compat.autocast_is_active():  # what is to be cast was, on the way to this op
        with compat.without_autocast(left.device.type):
            found = _product(left, right, bias, dtype)
    else:
        found = _product(left, right, bias, dtype)
    found = plan.restored.restored(found, plan.format).contiguous(memory_format=plan.format)
    strides = torch.empty(plan.shape, device="meta", memory_format=plan.format).stride()
    return layout.in_its_own_tensor(found, plan.shape, strides)  # also in dims of one element


def _product(
    left: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    is_single = left.dim() == 2
    if dtype is not None and dtype != left.dtype:
        assert bias is None
        return (torch.mm if is_single else torch.bmm)(left, right, out_dtype=dtype)
    if bias is None:
        return torch.mm(left, right) if is_single else torch.bmm(left, right)
    return (torch.addmm if is_single else torch.baddbmm)(bias, left, right)


def _is_worth(plan: Multiplication, tensors: Tensors) -> bool:
    """Whether the library is faster than generated kernels."""
    rows, columns = plan.found[-2:]
    terms, work = plan.terms, plan.work
    if work == 0 or work < _WORTH_COPIES * plan.copied(tensors):
        return False
    if work < _LEAST_OF_EACH * (plan.found[0] if len(plan.found) > 2 else 1):
        return False
    right = plan.right.viewed(tensors)
    terms_are_adjacent = right is not None and right.stride(-1) != 1
    match plan.dtype:
        case torch.float32 if terms_are_adjacent:
            least = min(rows, columns)
            if terms <= _LONG_SUM:
                return least >= _FEWEST_CELLS
            fewest = _FEWEST_CELLS_OF_LONG_SUM
            if terms > _LONG_SUM_OF_SMALL_CACHE:
                is_batch = len(plan.found) > 2 and plan.found[0] > 1
                fewest = _FEWEST_CELLS_OF_BATCH if is_batch else _FEWEST_CELLS_OF_LONGER_SUM
            return least >= fewest and _has_small_cache()
        case torch.float64 if terms_are_adjacent:
            is_short = terms <= _SHORT_SUM_OF_DOUBLES
            return is_short and min(rows, columns) >= _FEWEST_CELLS_OF_DOUBLES
        case torch.float32 | torch.float64:
            is_near = len(plan.found) > 2 and terms * columns <= _NEAR
            if columns % _VECTOR == 0 and (is_near or terms <= _FEW_TERMS):
                return False
            least = _FEWEST_ROWS if columns < _VECTOR else _ROWS
            return rows >= least and columns >= _FEWEST_COLUMNS
        case torch.bfloat16 | torch.float16:
            is_short = terms_are_adjacent and terms <= _SHORT_SUM_OF_HALVES
            least = _LEAST_WORK_OF_TERMS if is_short else _LEAST_WORK
            return work >= least and min(rows, columns) >= _FEWEST_CELLS_OF_HALVES
        case _:
            return False


@functools.cache
def _has_small_cache() -> bool:
    """Whether the first cache of the processor is known to have 32 KB or less."""
    try:
        text = _CACHE.read_text(encoding="ascii").strip()
    except OSError:
        return False
    size = text.removesuffix("K")
    return size.isdecimal() and int(size) * 2**10 <= _SMALL_CACHE
