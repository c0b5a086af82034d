"""Tensors as the statements of an op read and write them: cells by index, and boundary modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never

import torch

from opgen.runtime.eager.terms import Fault, Term, every, number, term
from opgen.runtime.record import record


class Mode(Enum):
    """What an index outside of its dimension means; the values are the spellings of a spec."""

    NONE = ""
    ZERO = "?0"
    FILL = "?("
    DROP = "?drop"
    CLAMP = "?clamp"
    REFLECT = "?reflect"
    SYMMETRIC = "?symmetric"
    WRAP = "?wrap"


@record
class Index:
    """An index under a boundary mode."""

    value: Term | int
    mode: Mode = Mode.NONE
    fill: float = 0


AnyIndex = Index | Term | int


def zero(value: Term | int) -> Index:
    """Outside, the read is absent."""
    return Index(value, Mode.ZERO)


def fill(value: Term | int, number: float) -> Index:
    """Outside, the read gives a number."""
    return Index(value, Mode.FILL, number)


def drop(value: Term | int) -> Index:
    """Outside, nothing is written."""
    return Index(value, Mode.DROP)


def clamp(value: Term | int) -> Index:
    """Outside, the nearest cell."""
    return Index(value, Mode.CLAMP)


def reflect(value: Term | int) -> Index:
    """Outside, mirrored at the centre of the edge cell."""
    return Index(value, Mode.REFLECT)


def symmetric(value: Term | int) -> Index:
    """Outside, mirrored at the edge."""
    return Index(value, Mode.SYMMETRIC)


def wrap(value: Term | int) -> Index:
    """Counted modulo the extent."""
    return Index(value, Mode.WRAP)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Where an access goes at every point; the indices are inside also where the access is not.

    `absent`, `dropped` and `filled` are masks, None or empty where that cannot be. Faults are left
    out where the access is not made.
    """

    indices: tuple[torch.Tensor, ...]
    absent: torch.Tensor | None
    dropped: torch.Tensor | None
    filled: tuple[tuple[torch.Tensor, float], ...]
    faults: tuple[Fault, ...]
    unknown: torch.Tensor | None  # where an index itself is a fault


@dataclass(eq=False)
class Operand:
    """A tensor of a call. `access` is how a message shows an access whose index is data."""

    name: str
    data: torch.Tensor
    real: torch.dtype
    access: str = ""
    best: dict[str, torch.Tensor] = field(default_factory=dict)  # of argmax and argmin

    def checked(self, access: str) -> Operand:
        """The operand for an access whose index is read from a tensor."""
        return replace(self, access=access)

    def __getitem__(self, indices: AnyIndex | tuple[AnyIndex, ...]) -> Term:
        """The elements of cells, one at every point, in the type in which they are computed."""
        cells = self.cells(indices if isinstance(indices, tuple) else (indices,))
        if math.prod(self.data.shape) == 0:
            value = self.data.new_zeros(())  # nothing is read, whatever the indices are
        else:
            value = self.data[cells.indices]
        value = value.to(self.real if value.is_floating_point() else torch.int64)
        for where, filling in reversed(cells.filled):
            value = self._filled(value, where, filling)
        if cells.absent is None:
            return Term(value, self.real, None, cells.faults)
        present = ~cells.absent
        if cells.unknown is not None:
            present = present | cells.unknown
        return Term(torch.where(present, value, 0), self.real, present, cells.faults)

    def _filled(self, value: torch.Tensor, where: torch.Tensor, filling: float) -> torch.Tensor:
        """Fill; what is read from integers stays integer if the number is one."""
        if not value.is_floating_point() and float(filling).is_integer():
            filling = int(filling)
        other = number(filling, self.real, value.device).value
        if other.is_floating_point():
            value = value.to(self.real)
        return torch.where(where, other.to(value.dtype), value)

    def cells(self, indices: Sequence[AnyIndex]) -> Cells:
        """The cells of an access."""
        origin = number(0, self.real, self.data.device)
        inside: list[torch.Tensor] = []
        masks: dict[Mode, list[torch.Tensor]] = {Mode.ZERO: [], Mode.DROP: []}
        filled: list[tuple[torch.Tensor, float]] = []
        unknown: list[Fault] = []
        outside: list[Fault] = []
        for axis, (index, extent) in enumerate(zip(indices, self.data.shape, strict=True)):
            index = index if isinstance(index, Index) else Index(index)
            at = term(index.value, origin)
            unknown += at.faults
            moved = _moved(index.mode, at.value, extent)
            wrong = (moved < 0) | (moved >= extent)
            inside.append(moved.clamp(0, max(extent - 1, 0)))
            match index.mode:
                case Mode.ZERO | Mode.DROP:
                    masks[index.mode].append(wrong)
                case Mode.FILL:
                    filled.append((wrong, index.fill))
                case Mode.NONE | Mode.CLAMP | Mode.REFLECT | Mode.SYMMETRIC | Mode.WRAP:
                    outside.append(Fault(wrong, at.value, self.name, axis, extent, self.access))
                case unexpected:
                    assert_never(unexpected)
        absent, dropped = _any(masks[Mode.ZERO]), _any(masks[Mode.DROP])
        unmade = [mask for mask in (absent, dropped) if mask is not None]
        unmade += [where for where, _ in filled]
        made = every(~mask for mask in unmade)
        certain = torch.ones((), dtype=torch.bool, device=self.data.device)
        found = [fault.within(certain if made is None else made) for fault in outside]
        faults = (*unknown, *(fault for fault in found if fault is not None))
        bad = _any([fault.where for fault in unknown])
        return Cells(tuple(inside), absent, dropped, tuple(filled), faults, bad)


def _any(masks: Sequence[torch.Tensor]) -> torch.Tensor | None:
    found: torch.Tensor | None = None
    for mask in masks:
        found = mask if found is None else found | mask
    return found


def _moved(mode: Mode, index: torch.Tensor, extent: int) -> torch.Tensor:
    """The index that an index stands for; it may still be outside."""
    last = extent - 1
    match mode:
        case Mode.NONE | Mode.ZERO | Mode.FILL | Mode.DROP:
            return index
        case Mode.CLAMP:
            return index.clamp(0, last) if extent else index
        case Mode.WRAP:
            return torch.remainder(index, extent) if extent else index
        case Mode.REFLECT:
            mirrored = torch.where(index > last, 2 * last - index, index)
            return torch.where(index < 0, -index, mirrored)
        case Mode.SYMMETRIC:
            mirrored = torch.where(index > last, 2 * last + 1 - index, index)
            return torch.where(index < 0, -1 - index, mirrored)
        case unexpected:
            assert_never(unexpected)
