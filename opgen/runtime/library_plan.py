"""How PyTorch's library computes a call, worked out from all but the numbers in its tensors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import (
    convolution_tiles,
    cuda,
    layout,
    library,
    library_cuda,
    library_repeats,
    library_sides,
    library_strips,
)
from opgen.runtime.arrangement import Arrangement
from opgen.runtime.convolution_tiles import Tiles
from opgen.runtime.layout import FORMATS
from opgen.runtime.library import Case, Sizes
from opgen.runtime.library_strips import Strips
from opgen.runtime.record import record, replaced

if TYPE_CHECKING:
    from opgen.runtime.description import Convolution
    from opgen.runtime.evaluation import Call

Tensors = Sequence[torch.Tensor | None]
Key = tuple[Hashable, ...]


@record
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

    def is_like(self, other: Operand, tensors: Tensors, others: Tensors) -> bool:
        """Whether it is the same as another one of another call: copies may differ in address."""
        one, another = tensors[self.at], others[other.at]
        is_so = (self.arrangement, self.format) == (other.arrangement, other.format)
        return is_so and one is not None and another is not None and are_same(one, another)


@record
class Direct:
    """The positions of image, weight and bias, of which a GPU's library convolves all that there
    is, and what `torch.convolution` takes after these."""

    image: int
    weight: int
    bias: int | None
    geometry: tuple[Any, ...]

    def given(self, tensors: Tensors) -> tuple[Any, ...]:
        """All that it takes, images and weight in contiguous format."""
        image, weight = tensors[self.image], tensors[self.weight]
        assert image is not None and weight is not None
        bias = None if self.bias is None else tensors[self.bias]
        return image.contiguous(), weight.contiguous(), bias, *self.geometry


@record
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
    geometry: Key
    """Alike for ops of one convolution, whatever their formats."""
    format: torch.memory_format
    """In which images go through the library."""
    is_copied: bool
    """Whether they do so whatever their own format is; on a GPU that is always contiguous."""
    is_uneven: bool
    repeats: int
    """How many times each channel of the image is there in `case`, see `library_repeats`."""
    strips: Strips | None
    """How a large result, or its cotangent, is cut."""
    tiles: Tiles | None
    """How opgen computes it in place of the library."""
    checks_source: bool
    """Whether what is convolved, and the weight, must be finite, see `library.meets_neighbours`."""
    shape: Sizes
    """That of the output."""
    on_gpu: bool
    """Whether it is the library of a GPU. Of one no numbers are looked at, see `library_cuda`."""
    direct: Direct | None
    """How it is asked, where that is all there is to do for a call."""

    @staticmethod
    def of(case: Case, call: Call) -> Plan:
        """The plan for calls like this one."""
        names = call.operation.convolution
        assert names is not None
        own, format_ = library.arrangements(call), case.format
        on_gpu = cuda.computes(call.device)
        if on_gpu:
            dtype = next(tensor.dtype for tensor in call.tensors if tensor is not None)
            format_ = library_cuda.format_of(case, dtype, library_cuda.settings())
        arranged = _as_stored(case, names, own) if format_ == case.format else own
        plain = Plan._plain(case, call, own, arranged, format_)
        return plain if on_gpu else plain._on_cpu(call, arranged)

    @staticmethod
    def _plain(
        case: Case,
        call: Call,
        own: dict[str, Arrangement],
        arranged: dict[str, Arrangement],
        format_: torch.memory_format,
    ) -> Plan:
        """The plan of which nothing is the CPU's alone, for these arrangements."""
        names = call.operation.convolution
        assert names is not None
        places = {each.name: at for at, each in enumerate(call.operation.inputs)}

        def operand(name: str | None) -> Operand | None:
            if name is None or name not in places:
                return None
            arrangement = arranged.get(name)
            rank = 0 if arrangement is None else len(arrangement.order)
            copy_format = call.format_of(rank) if format_ == case.format else format_
            # A filter that was moved for its channels alone keeps its format.
            is_moved = arrangement is not None and name not in own
            if is_moved and not _is_only(call.tensors[places[name]], copy_format):
                copy_format = torch.contiguous_format
            return Operand(places[name], arrangement, copy_format)

        (shape,) = call.shapes.outputs
        on_gpu = cuda.computes(call.device)
        image, weight, bias = map(operand, (names.image, names.weight, names.bias))
        direct = None
        if on_gpu and format_ == torch.contiguous_format and not arranged:
            direct = _direct(case, image, weight, bias)
        return Plan(
            case=case,
            result=operand(names.result),
            image=image,
            weight=weight,
            bias=bias,
            is_forward=call.operation.is_public,
            restored=arranged.get(names.target),
            strides=torch.empty(shape, device="meta", memory_format=case.format).stride(),
            geometry=case.geometry,
            format=format_,
            # With one tensor in channels-last format PyTorch would bring the others into it.
            is_copied=on_gpu and format_ == torch.contiguous_format,
            is_uneven=False,
            repeats=1,
            strips=None,
            tiles=None,
            checks_source=False,
            shape=shape,
            on_gpu=on_gpu,
            direct=direct,
        )

    def _on_cpu(self, call: Call, arranged: dict[str, Arrangement]) -> Plan:
        """The same with what is faster on a CPU."""
        case, names, is_public = self.case, call.operation.convolution, self.is_forward
        assert names is not None
        dtype = next(tensor.dtype for tensor in call.tensors if tensor is not None)
        if case.sides:
            return replaced(self, checks_source=library.meets_neighbours(case, dtype, names))
        tiles = None if arranged else convolution_tiles.tiles_of(case, call)
        repeats = 1
        if tiles is None:
            repeats = library_repeats.repeats(case, dtype, names, is_public=is_public)
        is_result = names.target == names.result
        is_copied = case.is_wide or (is_result and case.is_many and tiles is None)
        strips = None
        # Sums of several calls are those of float32.
        is_sum = not is_public and dtype == torch.float32 and not case.is_uneven
        is_whole = is_copied or tiles is not None or names.image in arranged
        if repeats == 1 and not is_whole and (is_result or is_sum):
            strips = library_strips.strips(case, arranged.get(names.result), dtype)
        return replaced(
            self,
            case=case.repeated(repeats),
            geometry=case.repeated(repeats).geometry,
            format=torch.channels_last if is_copied else case.format,
            is_copied=is_copied,
            is_uneven=case.is_uneven,
            repeats=repeats,
            strips=strips,
            tiles=tiles,
            checks_source=tiles is None
            and repeats == 1
            and library.meets_neighbours(case, dtype, names),
        )

    def operands(self, tensors: Tensors) -> list[torch.Tensor | None]:
        """Result, image, weight and bias as the library takes them."""
        bias = None if self.bias is None else self.bias.of(tensors)
        result, image = self.pixels(self.result, tensors), self.images(tensors)
        return [result, image, self.filters(tensors), bias]

    def filters(self, tensors: Tensors) -> torch.Tensor | None:
        """The weight as the library takes it."""
        found = None if self.weight is None else self.weight.of(tensors)
        if found is None:
            return None
        if self.on_gpu and self.is_copied:
            return found.contiguous()  # images would be copied to a filter in channels-last format
        return with_own_strides(found)

    def images(self, tensors: Tensors) -> torch.Tensor | None:
        """The image as the library takes it."""
        found = self.pixels(self.image, tensors)
        if found is not None and self.case.sides:
            return library_sides.with_sides(found, self.case.sides)
        if found is None or self.repeats == 1:
            return found
        return library_repeats.repeated(found, self.repeats)

    def pixels(self, operand: Operand | None, tensors: Tensors) -> torch.Tensor | None:
        """Result or image as the library takes it."""
        found = None if operand is None else operand.of(tensors)
        if found is None:
            return None
        if self.is_copied:
            found = found.contiguous(memory_format=self.format)
            if self.on_gpu:
                return found
        return with_own_strides(found)

    def output(self, found: torch.Tensor) -> torch.Tensor:
        """The output of the op from that of the library."""
        if self.repeats > 1 and self.image is None:
            found = library_repeats.summed(found, self.repeats)
        if self.case.sides and self.image is None:
            found = library_sides.without_sides(found, self.case.sides)
        if self.restored is not None:
            found = self.restored.restored(found, self.case.format)
        return _in_format(found, self.case.format, self.strides)


def _direct(
    case: Case, image: Operand | None, weight: Operand | None, bias: Operand | None
) -> Direct | None:
    """How a convolution is asked for; None for gradients and for transposed ones."""
    if image is None or weight is None:
        return None
    none = [0] * len(case.stride)
    geometry = (case.stride, case.padding, case.dilation, False, none, case.groups)
    return Direct(image.at, weight.at, None if bias is None else bias.at, geometry)


def own_tiles(for_image: Plan, for_weight: Plan) -> tuple[Tiles, Tiles] | None:
    """Those of both gradients, where both have some."""
    pair = for_image.tiles, for_weight.tiles
    return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


def _is_only(tensor: torch.Tensor | None, format_: torch.memory_format) -> bool:
    """Whether a tensor is in that format, and in no other."""
    if tensor is None or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=format_)


def _as_stored(
    case: Case, names: Convolution, arranged: dict[str, Arrangement]
) -> dict[str, Arrangement]:
    """The arrangements for images in channels-last format: their channels as memory has them."""
    result = arranged.get(names.result)
    if result is None or case.format != torch.channels_last:
        return arranged
    if names.weight in arranged or names.bias in arranged:
        return arranged
    found = result.with_channels_as_stored(case.groups)
    if found is None:
        return arranged
    changed, channels = found
    more = {names.result: changed, names.weight: channels.of(case.weight)}
    if names.bias is not None:
        more[names.bias] = channels.of(case.weight[:1])
    return {**arranged, **more}


def with_own_strides(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in channels-last format with the strides of that format in dims of one element too.

    With others PyTorch reads wrong numbers of it: groups of several channels out of a filter of one
    row of taps, and an image for the gradient of a filter of one tap.
    """
    format_ = FORMATS.get(tensor.dim())
    if format_ is None or 1 not in tensor.shape or tensor.is_contiguous():
        return tensor
    if not tensor.is_contiguous(memory_format=format_):
        return tensor
    strides = torch.empty(tensor.shape, device="meta", memory_format=format_).stride()
    return tensor if tensor.stride() == strides else tensor.as_strided(tensor.shape, strides)


def _in_format(found: torch.Tensor, format_: torch.memory_format, strides: Sizes) -> torch.Tensor:
    """With the strides that the op promises."""
    if found.stride() != strides and not found.is_contiguous(memory_format=format_):
        return found.contiguous(memory_format=format_)
    return layout.in_its_own_tensor(found, found.shape, strides)  # also in dims of one element


def are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same numbers in memory."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )
