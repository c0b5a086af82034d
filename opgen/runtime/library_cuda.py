"""What PyTorch's libraries for GPUs compute faster than opgen's own tiles: cuDNN and cuBLAS.

An op is known to be a convolution or a product by its index maps, as on the CPU (`library`,
`library_product`). Of these the large ones go there: tiles of opgen compute any product of an op,
but those of the libraries are made for one device after another. Whether a call goes depends on
sizes, types and settings of PyTorch, never on numbers: to look at one, the processor would have to
wait for the GPU, and a CUDA graph that is captured could not. So what the libraries do with numbers
that are not finite shows: they multiply the zeros of padding, where an op has no term, and cuDNN
adds and subtracts pixels before it multiplies (Winograd's algorithm, or Fourier's). Both make NaN
of cells that an op would not: as in `F.conv2d`, what is not finite spreads, and never becomes a
finite number. `$OPGEN_CUDA_LIBRARY=0` keeps all calls with opgen's kernels.

All figures are those of one H100 with PyTorch 2.11, cuDNN 9.19 and CUDA 13.0, 2026-11-26, in
microseconds of the device, as replays of a graph take them.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from opgen.runtime import compat

if TYPE_CHECKING:
    from opgen.runtime.description import Convolution
    from opgen.runtime.library import Case
    from opgen.runtime.library_product import Multiplication

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Types of which some calls go there. float64 was not measured."""

_MOST_DIMS = 2
"""Dims of images that were measured. PyTorch gives cuDNN rows as images of one row."""

_LEAST_SIDE = 10
"""The fewest channels and results of a convolution in one group. From 10 to 10, 3x3, contiguous,
cuDNN takes 329 microseconds for 512 images of 50 by 50 where opgen's tiles take 1841, and 682 for
both gradients where they take 2687: tiles of 64 results are mostly empty. From 256 to 256 ten
layers on 8 images of 28 by 28 take 2450 (428 in TF32) and 4273, their gradients 3190 and 8775."""

_LEAST_TERMS = 72
"""The fewest terms of a sum: those of 8 channels and 3x3 taps are the fewest measured,"""

_LEAST_TERMS_ON_TENSOR_CORES = 27
"""or in TF32 and 16 bits those of 3 channels. Of single taps none were."""

_LEAST_SIDE_ON_TENSOR_CORES = 3
"""The same as `_LEAST_SIDE` in TF32 and in 16 bits, on an H200 with the same versions: from 3 to 64
on 8 images of 224 by 224 cuDNN takes 84 in TF32 and tiles of opgen 200, for the gradients 263 and
301; in channels-last format 63 and 195, 290 and 676. In 16 bits these are 113 and 163, 255 and 321;
57 and 165, 147 and 796."""

_LEAST_SIDE_OF_GROUPS = 64
"""The same of each of several groups. With 64 ten layers as above take 945 and 1849, their
gradients 1612 and 3392; with 16, on 8 images of 56 by 56, one layer takes 179 and 177, its
gradients 418 and 308; with 8 these are 189 and 94, 485 and 164."""

_LEAST_SIDE_OF_GROUPS_IN_TF32 = 16
"""The same in TF32, which tiles of opgen take for other settings than cuDNN does: with 16 the layer
takes 83, its gradients 283; with 8 these are 81 and 206. In channels-last format, for which it is
half of this, cuDNN takes 37 and 167 with 8, opgen's kernels 460 and 296."""

_LEAST_SIDE_OF_COPIED_GROUPS = 8
"""The same where images in channels-last format are copied to contiguous format (`format_of`), on
the way forward: with 16 that takes 273 on an H200, with 8 about as long, and opgen's kernels 458
and 460. Gradients stay with these: with 16 they take 418, the copies and cuDNN 561; with 8 296."""

_LEAST_SIDE_OF_GROUPS_OF_HALVES = 8
"""The same of numbers of 16 bits, on an H200. With 64 in a group a layer of 256 channels on 8
images of 28 by 28 takes 20 and tiles of opgen 77, with 8 these are 23 and 109, their gradients 43
and 237, 42 and 361; with 4 they are 17 and 15, 40 and 29. In channels-last format, for which it is
half of this, cuDNN takes 8.6 and 32 with 4, opgen's kernels 132 and 44."""

_MANY, _FEW_TERMS, _MANY_TERMS = 32, 256, 1024
"""How many results, and terms, are many for channels or results that are fewer than `_LEAST_SIDE`,
in one group in float32 without TF32. Microseconds on an H200, 2026-11-27, of opgen's kernels and
cuDNN, in contiguous and then in channels-last format; `7x7/2` has a stride of 2.

| channels | results | window | forward | | of images | | of weights | |
|---|---|---|---|---|---|---|---|---|
| 3 | 64 | 7x7/2 | 80, 52 | 80, 55 | 226, 75 | 495, 90 | 116, 63 | 116, 65 |
| 3 | 96 | 4x4/4 | 16, 15 | 18, 15 | 32, 18 | 117, 31 | 31, 28 | 28, 28 |
| 3 | 384 | 16x16/16 | 44, 54 | 65, 68 | 161, 32 | 83, 48 | 61, 47 | 59, 37 |
| 3 | 64 | 3x3 | 199, 85 | 195, 118 | 209, 138 | 534, 211 | 90, 126 | 144, 125 |
| 3 | 32 | 3x3/2 | 19, 18 | 22, 22 | 46, 42 | 117, 67 | 45, 35 | 48, 36 |
| 2 | 64 | 5x5 | 94, 58 | 93, 88 | 111, 73 | 1207, 105 | 100, 69 | 97, 73 |
| 4 | 320 | 3x3 | 52, 30 | 44, 34 | 51, 31 | 698, 49 | 31, 50 | 42, 46 |
| 1 | 32 | 3x3 | 10, 24 | 9, 25 | 20, 31 | 20, 32 | 14, 41 | 14, 41 |
| 8 | 8 | 3x3 | 13, 32 | 47, 39 | 13, 43 | 44, 59 | 17, 55 | 42, 50 |
| 32 | 3 | 9x9 | 343, 502 | 1094, 1058 | 96, 1847 | 81, 1830 | -, 473 | 232, 447 |
| 64 | 3 | 3x3 | 51, 171 | 185, 468 | 65, 56 | 66, 87 | 36, 276 | 58, 210 |
| 320 | 4 | 3x3 | 52, 122 | 726, 138 | 45, 40 | 40, 55 | 31, 96 | 42, 111 |
| 64 | 1 | 3x3 | 37, 171 | 331, 465 | 16, 46 | 15, 69 | 16, 273 | 30, 209 |
| 1 | 1 | 11x11 | 33, 201 | 33, 200 | 30, 636 | 29, 634 | 31, 189 | 31, 189 |

Transposed ones from 64 to 3 channels and from 128, 4x4/2, take 77 and 11, 220 and 37, in
channels-last format 22 and 18, 179 and 55; from 64 to 1 86 and 19, 79 and 25."""

_LEAST_WORK_OF_SINGLES, _MOST_WORK_OF_SINGLES = 2**20, {9: 2**25, 25: 2**27}
"""From how many multiplications on, and up to how many for windows of so many taps, single channels
in channels-last format are cuDNN's in float32, which has a kernel for them that takes filters as
they are, where opgen copies them first. Microseconds of opgen's kernels and of cuDNN's, of the
whole call and on an H200, 2026-11-27, by millions of multiplications:

3x3: 1.7 take 3.3 and 2.1, 14 8.6 and 7.0, 29 9.7 and 9.6, 38 11.2 and 12.4, 75 24 and 25, 302 81
and 92; with a stride of 2 1.7 take 3.8 and 2.4, 11 7.5 and 5.2. 5x5: 19 take 9.1 and 8.1, 82 27 and
26; with a stride of 2 3.3 take 6.1 and 4.2, 11 8.7 and 7.1. 7x7: 161 take 51 and 70.

Gradients stay with opgen's kernels, which take a fifth to nine tenths of the time."""

_LARGE_WINDOW = 9
"""Beyond how many taps sums over pixels for the weights of many results are too many for what
threads have registers for, as the table shows."""

_FEW_CELLS = 2**17
"""How many results are few, of sums of `_MANY_TERMS`: too few for threads with one or four each."""

_LEAST_WORK, _LEAST_WORK_OF_GRADIENTS = 2**22, 2**23
"""From how many multiplications on a convolution, and its gradients, are the library's. With 10
channels and two images of 50 by 50, 4.5 million, it takes 6.8 microseconds and opgen's tiles 20.1,
but 31.6 for the gradients where they take 27.1."""

_LEAST_SIDE_OF_PRODUCT = 64
"""The fewest rows, columns and terms of a product. Products alone were not measured; a convolution
of so many channels in a group is one with nine times the terms."""

_WORTH_COPIES = 256
"""How many multiplications there are to be for each element that is copied, because no view of a
tensor is an image or a matrix. Of those layers cuDNN does 15 in a picosecond, opgen's tiles 9, and
an element is copied in 2.8: that is paid for by 64 of them, or by 256 where cuDNN is ahead by less.
"""

_WORTH_COPIES_OF_FEW = 16
"""The same of images in channels-last format with fewer channels in a group, or results, than fill
tiles of opgen. For 16 groups of 16, where 72 multiplications share a copy, opgen's kernels take 458
on those 8 images; cuDNN takes 179 in contiguous format, and to copy an image takes 18."""

_LEAST_WORK_OF_COPIES = 2**27
"""From how many multiplications on images are copied to another format. What they save is 4
microseconds then, about what it takes to start two kernels more. That was not measured."""

_VARIABLE = "OPGEN_CUDA_LIBRARY"


class Settings(NamedTuple):
    """What of PyTorch's settings the choice depends on."""

    has_convolutions: bool
    """Whether cuDNN is there and on: without it PyTorch unfolds images, which takes longer."""
    tf32: bool
    """Whether cuDNN multiplies numbers of 32 bits in TF32,"""
    tf32_of_products: bool
    """and whether tiles of opgen, and cuBLAS, do."""
    deterministic: bool = False
    """Whether PyTorch refuses what may differ from call to call, as it takes products to do."""


def settings() -> Settings | None:
    """Those at hand; None where no call is to go to a library."""
    if not _is_wanted():
        return None
    return _settings(
        _has_cudnn() and _cudnn_is_enabled(),
        _precision("cuda", "conv") == "tf32",
        _precision("cuda", "matmul") == "tf32",
        torch.are_deterministic_algorithms_enabled(),
    )


# What the properties of `torch.backends` return, in a third of the time.
_cudnn_is_enabled = cast(Callable[[], bool], compat.find("torch._C", "_get_cudnn_enabled"))
_precision = cast(Callable[[str, str], str], compat.find("torch._C", "_get_fp32_precision_getter"))


_settings = functools.cache(Settings)
"""One object for the same settings: they are looked up in every call."""


@functools.cache
def _has_cudnn() -> bool:
    return bool(cast(Any, torch.backends.cudnn).is_available())


@functools.cache
def _is_wanted() -> bool:
    """Whether calls may go to a library; RuntimeError if the variable is neither 0 nor 1."""
    chosen = os.environ.get(_VARIABLE, "1")
    if chosen not in ("0", "1"):
        raise RuntimeError(f"${_VARIABLE} must be 0 or 1, got {chosen!r}")
    return chosen == "1"


def takes_convolution(
    case: Case, dtype: torch.dtype, names: Convolution, found: Settings | None, copied: int
) -> bool:
    """Whether cuDNN is faster; `copied` elements are in an order that it does not take, besides
    those that `format_of` has copied.

    Channels that meet one another in no group of several, as those of a depthwise convolution, stay
    with opgen's kernels but for some in channels-last format: these take a fifth to a half of the
    time for windows of 3 by 3.
    """
    if found is None or not found.has_convolutions or dtype not in _DTYPES:
        return False
    if len(case.stride) > _MOST_DIMS:
        return False
    is_gradient = names.target != names.result
    if case.groups > 1 and case.weight[:2] == (case.groups, 1):
        return dtype == torch.float32 and not is_gradient and copied == 0 and _takes_singles(case)
    least_work = _LEAST_WORK_OF_GRADIENTS if is_gradient else _LEAST_WORK
    if case.work < max(least_work, _WORTH_COPIES * copied):
        return False
    on_tensor_cores = dtype != torch.float32 or found.tf32
    side = _side(case)
    if case.groups == 1 and side < _LEAST_SIDE and not on_tensor_cores:
        return not found.tf32_of_products and _takes_few(case, names)
    has_window = on_tensor_cores and math.prod(case.weight[2:]) > 1
    least_terms = _LEAST_TERMS_ON_TENSOR_CORES if has_window else _LEAST_TERMS
    if math.prod(case.weight[1:]) < least_terms:
        return False
    if on_tensor_cores:
        if case.groups == 1:
            return side >= _LEAST_SIDE_ON_TENSOR_CORES
        is_half = dtype != torch.float32
        least = _LEAST_SIDE_OF_GROUPS_OF_HALVES if is_half else _LEAST_SIDE_OF_GROUPS_IN_TF32
        return side >= (least if case.format == torch.contiguous_format else least // 2)
    if found.tf32_of_products:
        return False  # opgen's tiles have tensor cores then, and cuDNN has not
    if format_of(case, dtype, found) != case.format:
        if case.groups > 1:
            return side >= _LEAST_SIDE_OF_COPIED_GROUPS and not is_gradient
        return side >= _LEAST_SIDE
    if case.format != torch.contiguous_format and not is_gradient:
        return side >= _LEAST_SIDE_OF_GROUPS
    return side >= (_LEAST_SIDE if case.groups == 1 else _LEAST_SIDE_OF_GROUPS)


def _takes_singles(case: Case) -> bool:
    """The same on the way forward, of single channels with one result each, in float32."""
    if case.format == torch.contiguous_format or case.work < _LEAST_WORK_OF_SINGLES:
        return False
    taps = math.prod(case.weight[2:])
    most = next((work for size, work in _MOST_WORK_OF_SINGLES.items() if taps <= size), 0)
    return case.work <= most


def _takes_few(case: Case, names: Convolution) -> bool:
    """The same with channels or results that fill no tile, of float32 without TF32."""
    results, channels, *window = case.weight
    is_strided, is_many = max(case.stride) > 1, results >= _MANY
    if names.target == names.weight:
        is_large = math.prod(window) > _LARGE_WINDOW
        return is_many and (is_large or (is_strided and channels > 1))
    if names.target == names.image:
        return is_many and (is_strided or channels > 1)
    terms = math.prod(case.weight[1:])
    if is_many:
        return channels > 1 and _LEAST_TERMS_ON_TENSOR_CORES <= terms <= _FEW_TERMS
    is_last = case.format != torch.contiguous_format
    return is_last and terms >= _MANY_TERMS and math.prod(case.result) <= _FEW_CELLS


def format_of(case: Case, dtype: torch.dtype, found: Settings | None) -> torch.memory_format:
    """The format in which cuDNN is to have images, and to give them.

    In float32 without TF32, with few channels in a group, it is faster in contiguous format: where
    there is enough to do, images in channels-last format are copied to that one and results back.
    With 16 in a group the layer above then takes 295 as called from Python, 300 in channels-last
    format, its gradients 626 and 643; with 8 these are 310 and 362, 711 and 1130. With 64 and more
    cuDNN is faster without the copies: ten layers take 2.81 ms with them and 2.71 without, in
    groups of 128 2.21 and 1.50, in groups of 64 1.29 and 0.95; tiles of opgen take 4.63, 2.44 and
    2.14. It is one rule for a result and its gradients, as far as these go there.
    """
    if dtype != torch.float32 or found is None or found.tf32 or found.tf32_of_products:
        return case.format
    if _side(case) >= _LEAST_SIDE_OF_GROUPS or (case.groups == 1 and _side(case) < _LEAST_SIDE):
        return case.format
    copied = math.prod(case.image) + math.prod(case.result)
    is_worth = case.work >= max(_LEAST_WORK_OF_COPIES, _WORTH_COPIES_OF_FEW * copied)
    return torch.contiguous_format if is_worth else case.format


def _side(case: Case) -> int:
    """The fewer of the channels of a group and its results."""
    return min(case.weight[1], case.weight[0] // case.groups)


def takes_product(plan: Multiplication, found: Settings | None, copied: int) -> bool:
    """Whether cuBLAS is faster; `copied` elements are in an order that it does not take."""
    if found is None or found.deterministic or plan.dtype not in _DTYPES:
        return False
    if plan.work < max(_LEAST_WORK, _WORTH_COPIES * copied):
        return False
    return min(*plan.found[-2:], plan.terms) >= _LEAST_SIDE_OF_PRODUCT
