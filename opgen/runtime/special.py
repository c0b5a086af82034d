"""Kernels for the attributes and some sizes of a call, where they can be had, else for all.

A kernel for `stride = 1, K = 3` is several times faster than one for every stride and window; so is
one for rows of 8 cells, for a sum of one term, or for images in channels-last format. The module
holds those for default attributes; opgen, if it can be imported, makes others as they are met, up
to a number; everything else runs on the kernels that take all values.

Sizes change more freely than attributes: kernels are made for few of them, and for calls with
enough to do. Long rows, batch sizes and numbers of channels never ask for a kernel. The same call
always runs on the same kernel, so that it always gives the same bits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import checks, generated
from opgen.runtime.description import (
    LARGEST_WINDOW,
    LONGEST_ROW,
    WIDEST_WINDOW,
    Chain,
    CudaKernels,
    Launch,
    Matrix,
    Phase,
    Product,
    Special,
)
from opgen.runtime.record import record
from opgen.runtime.toolchain import NoCompilerError, find_compiler

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

MOST = 64
"""How many sets of values kernels of one op are made for in one process; `$OPGEN_SPECIAL_KERNELS`
sets another number. A net has one for each stride, window and layout of its layers, and the kernels
for all values are a hundred times slower."""

FEW = 16
"""How many of these at most are for calls with little to do; a quarter, where more than four times
as many are made."""

MOST_SIZES = 6
"""How many sets of other sizes kernels are made for beside the same attributes and windows, and
half of all kernels for all of these together. Layers of one window go through images of 56, 28, 14
and 7 pixels, of 112 or 224 before these; a depthwise filter runs at 0.4 to 0.65 of its speed on the
kernel for all sizes."""

Values = tuple[int | None, ...]


LARGE = 2**15
"""From how many elements of the largest tensor on kernels are made for sizes and layouts."""

LARGE_IMAGE = 2**12
"""From how many elements of an image on there are some for channels-last format and all sizes: for
an op with the same attributes and windows one, and another where filters lie otherwise. With 12544
elements the others take 2 to 6 times as long as in contiguous format: pixel by pixel they go
through all channels of an image."""

FEWEST_CHANNELS = 8
"""From how many channels on that is so. Of 3 and 5 those for contiguous images take 0.4 to 0.8 of
the time."""

IMAGE_RANKS = (4, 5)
"""Ranks of tensors that PyTorch has a channels-last format for."""

Chosen = dict[Values, list[Values]]
"""The other sizes that kernels are made for, by the values of attributes and windows."""


def values_of(operation: Operation, integers: Mapping[str, int], images: Images) -> Values:
    """The values that kernels for this call are made for; None for one that is left open.

    The last one is not an integer of the call: its bits say which tensors are in channels-last
    format, None if none is.
    """
    special = operation.special
    if special is None or not _most():
        return ()
    values, sizes = _split(special, integers, WIDEST_WINDOW if images.are_large else LARGEST_WINDOW)
    if not images.are_large:
        small = (*values, *(None for _ in sizes))
        layout = images.layout if images.have_rows_of_channels else None
        for found in dict.fromkeys(((*small, layout), (*small, None))):
            if _is_for_small(operation, special, found):
                return found
        return (*(None for _ in small), None)
    if any(size is not None for size in sizes):
        chosen = operation.chosen.get(values, [])
        if sizes not in chosen and _is_room_for_sizes(operation, chosen):
            chosen = operation.chosen.setdefault(values, [])
            chosen.append(sizes)
        if sizes not in chosen:
            # Of a factor only 1 is known: it adds few kernels, and without it they are slow.
            factors = len(special.factors)
            sizes = (*sizes[:factors], *(None for _ in sizes[factors:]))
    return (*values, *sizes, images.layout)


def _is_for_small(operation: Operation, special: Special, values: Values) -> bool:
    """Whether calls with little to do have a kernel for these values: the first few have."""
    admitted = operation.small
    if values in admitted or any(values == given for given, _ in special.sources):
        return True
    if len(admitted) < _few():
        admitted.add(values)
    return values in admitted


def _is_room_for_sizes(operation: Operation, chosen: Sequence[Values]) -> bool:
    """Whether kernels may be made for other sizes, beside those `chosen` for the same values."""
    made = sum(map(len, operation.chosen.values()))
    return len(chosen) < MOST_SIZES and made < max(_few(), _most() // 2)


@record
class Images:
    """The inputs and outputs of a call, None for what is absent."""

    tensors: tuple[torch.Tensor | None, ...]

    @property
    def most(self) -> int:
        """The elements of the largest one."""
        return max((each.numel() for each in self.tensors if each is not None), default=0)

    @property
    def have_rows_of_channels(self) -> bool:
        """Whether those in channels-last format are worth a kernel for all sizes."""
        channels = (
            each.size(1)
            for each in self.tensors
            if each is not None and each.numel() >= LARGE_IMAGE and _is_last(each)
        )
        return min(channels, default=0) >= FEWEST_CHANNELS

    @property
    def are_large(self) -> bool:
        """Whether a kernel of their own is worth its compilation."""
        return self.most >= LARGE

    @property
    def layout(self) -> int | None:
        """Which of them have their second dim in consecutive places, a bit for each."""
        bits = (
            1 << at for at, each in enumerate(self.tensors) if each is not None and _is_last(each)
        )
        return sum(bits) or None


def _is_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its second dim in consecutive places."""
    return (
        tensor.dim() in IMAGE_RANKS
        and tensor.stride(1) == 1 < tensor.size(1)
        and tensor.stride(-1) != 1
    )


def _split(special: Special, integers: Mapping[str, int], largest: int) -> tuple[Values, Values]:
    """The values of attributes and windows, and of other sizes; None for what is left open.

    `largest` is the largest window that is not.
    """
    values = [
        _up_to(1, integers[name]) if name in special.counts else integers[name]
        for name in special.names
    ]
    windows = (_up_to(largest, integers[name]) for name in special.windows)
    factors = (_up_to(1, integers[name]) for name in special.factors)
    lengths = (_up_to(LONGEST_ROW, integers[name]) for name in special.lengths)
    return (*values, *windows), (*factors, *lengths)


def _up_to(most: int, size: int) -> int | None:
    """The size; None for one that is large, and for 0, where formulas divide by it."""
    return size if 1 <= size <= most else None


def _most() -> int:
    """How many kernels may be made; RuntimeError if the variable is no number."""
    chosen = os.environ.get("OPGEN_SPECIAL_KERNELS")
    if not chosen:
        return MOST
    if not chosen.isdecimal():
        raise RuntimeError(f"$OPGEN_SPECIAL_KERNELS must be a number from 0 on, got {chosen!r}")
    return int(chosen)


def _few() -> int:
    """How many kernels may be made for small calls."""
    return max(min(_most(), FEW), _most() // 4)


def is_made_for(operation: Operation, integers: Mapping[str, int]) -> bool:
    """Whether large calls of these sizes have a kernel with windows and rows of their own, or will.

    That takes opgen and a C compiler, and there must be room for it.
    """
    special = operation.special
    if special is None or not generated.is_installed():
        return False
    try:
        find_compiler()
    except NoCompilerError:
        return False
    values, sizes = _split(special, integers, WIDEST_WINDOW)
    if None in values[len(special.names) :] or None in sizes:
        return False
    chosen = operation.chosen.get(values, [])
    has_room = len(operation.admitted) < _most()
    return sizes in chosen or (has_room and _is_room_for_sizes(operation, chosen))


def _is_admitted(operation: Operation, values: Values) -> bool:
    """Whether kernels are made for these values, of whatever element types: the first are."""
    admitted = operation.admitted
    if values not in admitted and len(admitted) < _most():
        admitted.add(values)
    return values in admitted


class NotMadeError(Exception):
    """There are no kernels that round some tensors of a call themselves."""


def source_of(operation: Operation, values: Values, unrounded: tuple[str, ...] = ()) -> str:
    """The C source for these values; NotMadeError if there is none that rounds these tensors."""
    if unrounded:
        return _unrounded(operation, values, unrounded)
    special = operation.special
    if special is None or not values:
        return operation.sources.c
    sources = dict(special.sources)
    known = sources.get(values)
    is_open = all(value is None for value in values)
    if known is None and not is_open and _is_admitted(operation, values):
        known = _made(operation, special, values, "special_source")
    if known is None:
        known = sources.get(_attributes_alone(special, values))
    return operation.sources.c if known is None else known


def is_one_pass(operation: Operation, values: Values) -> bool:
    """Whether one of the C kernels that are made for these values runs within another one.

    Those that take all sizes are not asked: they have none that does.
    """
    special = operation.special
    if special is None or all(value is None for value in values):
        return False
    if values not in dict(special.sources) and not _is_admitted(operation, values):
        return False
    return bool(_made(operation, special, values, "one_pass"))


def _unrounded(operation: Operation, values: Values, tensors: tuple[str, ...]) -> str:
    """The C source where these tensors are float32 and are rounded by the kernels."""
    special = operation.special
    if special is None or not values or not _is_admitted(operation, values):
        raise NotMadeError
    made = _made(operation, special, values, "unrounded_source", tensors)
    if not made:
        raise NotMadeError
    return made


def cuda_of(
    operation: Operation,
    integers: Mapping[str, int],
    images: Images,
    unrounded: tuple[str, ...] = (),
) -> CudaKernels:
    """The CUDA kernels for a call; none are made for lengths of rows.

    NotMadeError if there are none that round these inputs.
    """
    special = operation.special
    if special is None or not _most():
        if unrounded:
            raise NotMadeError
        return operation.cuda
    are_large = images.are_large
    values, sizes = _split(special, integers, WIDEST_WINDOW if are_large else LARGEST_WINDOW)
    factors = sizes[: len(special.factors)]
    layout = images.layout if are_large else None
    values = (*values, *factors, *(None for _ in special.lengths), layout)
    if unrounded:
        return _rounding(operation, special, values, unrounded)
    found = operation.special_cuda.get(values)
    if found is None:
        found = operation.special_cuda[values] = _cuda_of(operation, special, values)
    return found


def _rounding(
    operation: Operation, special: Special, values: Values, tensors: tuple[str, ...]
) -> CudaKernels:
    """The CUDA kernels that round these inputs; NotMadeError if there are none."""
    known = operation.unrounded_cuda
    if (values, tensors) not in known:
        if len(known) >= _most():
            raise NotMadeError
        text = _made(operation, special, values, "unrounded_cuda", tensors)
        known[values, tensors] = _defined(text) if text else None
    found = known[values, tensors]
    if found is None:
        raise NotMadeError
    return found


def _cuda_of(operation: Operation, special: Special, values: Values) -> CudaKernels:
    given = dict(special.cuda)
    if all(value is None for value in values):
        return operation.cuda
    if values in given:
        return given[values]
    if len(operation.special_cuda) < _most():
        text = _made(operation, special, values, "special_cuda")
        if text is not None:
            return _defined(text)
    return given.get(_attributes_alone(special, values), operation.cuda)


def _defined(text: str) -> CudaKernels:
    """The kernels that a Python source of `opgen.on_demand.special_cuda` defines."""
    names: dict[str, Any] = {
        "Chain": Chain,
        "CudaKernels": CudaKernels,
        "Launch": Launch,
        "Matrix": Matrix,
        "Phase": Phase,
        "Product": Product,
        "checks": checks,
        "math": math,
    }
    exec(compile(text, "<opgen CUDA kernels>", "exec"), names)
    found: CudaKernels = names["kernels"]
    return found


def _attributes_alone(special: Special, values: Values) -> Values:
    """The values with all sizes left open."""
    attributes = len(special.names)
    return (*values[:attributes], *(None for _ in values[attributes:]))


def _made(
    operation: Operation, special: Special, values: Values, maker: str, *more: object
) -> str | None:
    """A source made now by that function of `opgen.on_demand`; None where opgen is not installed.

    Where it is given `more`, a layout stands before that.
    """
    *integers, layout = values
    pairs = zip(special.integers, integers, strict=True)
    given = {name: value for name, value in pairs if value is not None}
    family, path = operation.family, operation.path
    layouts = () if layout is None and not more else (layout or 0,)
    try:
        return generated.source(maker, family.spec, family.spec_name, path, given, *layouts, *more)
    except ImportError:
        return None
