"""Kernels that read the same large tensor part by part, one within the other.

Before: the gradients of an op for several of its inputs are kernels of their own, each of which
reads the gradient of the result from memory. After: a kernel with a long outer loop, say over
images, is the host of another kernel, whose points run image by image, each time right before the
host reads the same part of that tensor. The second one finds it in the caches.

Both stay what they were: the guest only runs its points at other times, so all numbers are the
same. Its points at one value of the loop, and at one point of the host, must follow each other in
its own order. A call with too few points of the host for its threads runs one after the other.

What both read between two values of the loop must stay in the caches, so groups of rows are small:
with groups of 16 rows and 512 channels of 256 by 256, a pair takes no less time than both alone,
with 4 three quarters of it.

A guest that takes whole planes, one for each cell of a group, need not be called: at each cell of
the host its plane is written out between the host's own loops, with the host's indices. With 2048
channels of 8 by 8 both gradients of a transposed convolution of 2x2 then take two thirds of the
time, as long as copying as many bytes. Planes are short, so that 16 may be in a group: those of a
group are one piece of memory, and the next image's lie far away. Beside groups of 8, in processes
by turns on two threads, 32 images of 8 by 8 went from 81 to 88 % of the speed of copying, and 8 of
16 by 16 from 85 to 99. Groups of 32 and 64 gained a few hundredths more, but calls of few channels
then have too few points to run so.

It is done where more than a tenth of what both move is read by both. Sizes are not known here: all
of them count as the same, so tensors compare by their number of dims.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import ZERO, Poly, poly, symbol
from opgen.ir.loop_parts import loads_of, read_by, uses
from opgen.ir.loops import For, Guest, Kernel, Load, Program, walk
from opgen.passes.group_sums import grouped_sums

ROWS: Final = 4
"""The most rows of a group in a pair,"""

PLANES: Final = 16
"""or the most planes, if the guest has one for each of them: these are short."""

_USUAL_SIZE: Final = 64
_LEAST_SPARED: Final = 10
"""One part in so many of what two kernels move must be spared."""


def with_guests(program: Program) -> Program:
    """The program with hosts right behind their guests, which know when these run."""
    kernels = program.kernels
    taken: set[str] = set()
    for name, other in itertools.permutations([kernel.name for kernel in kernels], 2):
        host, guest = program.kernel(name), program.kernel(other)
        if taken.isdisjoint({name, other}) and _may_swap(program, host, guest):
            pair = _pair(program, host, guest)
            if pair is not None:
                taken |= {name, other}
                last = max(map(program.kernels.index, (host, guest)))
                before = [k for k in program.kernels[:last] if k not in (host, guest)]
                kernels = (*before, *pair, *program.kernels[last + 1 :])
                program = replace(program, kernels=kernels)
    return program


def _pair(program: Program, host: Kernel, guest: Kernel) -> tuple[Kernel, Kernel] | None:
    """A guest and its host, with few rows in a group; None where one cannot run in the other."""
    if guest.plane is not None:
        both = grouped_sums(host, PLANES, program.integers)
        found = _guest(program, both, guest)
        if found is not None and found.point:
            return guest, replace(both, also=(*both.also, *guest.all_written), guest=found)
    host, guest = grouped_sums(_small(host), ROWS, program.integers), _small(guest)
    found = _guest(program, host, guest)
    return None if found is None else (guest, replace(host, guest=found))


def _small(kernel: Kernel) -> Kernel:
    """The kernel with few rows in a group."""
    if kernel.group is None:
        return kernel
    return replace(kernel, group=replace(kernel.group, width=min(kernel.group.width, ROWS)))


# ---------------------------------------------------------------------------- order
def _may_swap(program: Program, host: Kernel, guest: Kernel) -> bool:
    """Whether a host and its guest may run at once, where the later one is."""
    both = host, guest
    own = {tensor for kernel in both for tensor in kernel.all_written}
    wide = {name for each in program.workspaces for name in (each.name, each.output)}
    first, last = sorted(map(program.kernels.index, both))
    between = [
        kernel
        for kernel in program.kernels[first + 1 : last]
        if kernel.unless is None or kernel.unless != guest.only  # does what the guest would do
    ]
    moved = program.kernels[first]
    return (
        all(map(_is_plain, both))
        and host.only is None
        and wide.isdisjoint(own)
        and all(own.isdisjoint(read_by(kernel)) for kernel in both)
        and len(own) == sum(len(kernel.all_written) for kernel in both)
        and all(own.isdisjoint(uses(kernel).tensors) for kernel in between)
        and all(read_by(moved).isdisjoint(kernel.all_written) for kernel in between)
    )


def _is_plain(kernel: Kernel) -> bool:
    """Whether a kernel runs in one way, and the same in any order of its points.

    One for planes may run in some calls only.
    """
    return (
        kernel.is_deterministic
        and (kernel.only is None or kernel.plane is not None)
        and kernel.unless is None
        and not kernel.moves
        and kernel.framed is None
        and kernel.contraction is None
        and not uses(kernel).faults
    )


# ---------------------------------------------------------------------------- points
@dataclass(frozen=True, slots=True)
class _Digit:
    """One of the counters of a kernel's points: of an axis, or of stretches of one.

    `index` is what counts, `value` what the counter is then. The members of a stretch lie between
    `ends`, both included.
    """

    index: str
    extent: Poly
    count: Poly
    width: int
    value: Poly
    ends: tuple[Poly, Poly] | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """What a counter of the guest is at a point of the host: so many values from the first on.

    At a cell of the host's group it is `there`.
    """

    first: Poly
    count: Poly
    there: Poly


def _digits(kernel: Kernel) -> list[_Digit]:
    """The counters of a kernel's points without those of its row."""
    found = [
        _Digit(axis.name, axis.extent, axis.extent, 1, symbol(axis.name)) for axis in kernel.axes
    ]
    group = kernel.group
    if group is not None:
        value = symbol(group.first) // group.width
        axis = group.axis
        ends = symbol(group.first), symbol(group.last)
        found.append(_Digit(axis.name, axis.extent, group.stretches, group.width, value, ends))
    return found


def _guest(program: Program, host: Kernel, other: Kernel) -> Guest | None:
    """How the points of another kernel run within the host; None where that is not possible."""
    if not _is_worth_it(program, host, other):
        return None
    if host.row is not None and host.row.stretches.is_constant and host.row.stretches != 1:
        return None  # points of each stretch would run all of them again
    own = _digits(host)
    rows = () if other.row is None else (other.row.stretches,)
    digits = _digits(other)
    outer, inner = digits[: len(own) + 1], digits[len(own) + 1 :]
    if len(outer) != len(own) + 1:
        return None
    for loop in _whole_loops(host):
        counted = _Digit(loop.name, loop.upper[0] + 1, loop.upper[0] + 1, 1, symbol(loop.name))
        for mine, theirs in _shared_loads(host, other):
            places = _same_places(mine, theirs, (*own, counted), outer)
            if places is not None:
                first = ZERO
                for digit in outer:
                    first = first * digit.count + places[digit.index].first
                each_has = math.prod((*(each.count for each in inner), *rows), start=poly(1))
                count = places[outer[-1].index].count * each_has
                point: tuple[tuple[str, Poly], ...] = ()
                if each_has == 1 and other.plane is not None and _is_for_each(host, loop):
                    point = tuple((digit.index, places[digit.index].there) for digit in outer)
                return Guest(other.name, loop.name, first * each_has, count, point)
    return None


def _is_for_each(host: Kernel, loop: For) -> bool:
    """Whether a loop goes through the cells of a group, one after the other."""
    if host.group is None or host.row is not None or len(loop.body) != 1:
        return False
    (inner,) = loop.body
    return isinstance(inner, For) and inner.name == host.group.axis.name


def _whole_loops(host: Kernel) -> Iterator[For]:
    """The loops around everything that the host adds up, from 0 up to an extent."""
    names = {name for row in host.stretched for name in (row.axis.name, row.first, row.last)}
    names |= {axis.name for axis in host.axes}
    for node in host.body:
        if isinstance(node, For) and node.lower == (ZERO,) and len(node.upper) == 1:
            is_outermost = any(isinstance(each, For) for each in walk(node.body))
            if is_outermost and names.isdisjoint((node.name, *node.upper[0].symbols)):
                yield node


def _shared_loads(host: Kernel, other: Kernel) -> Iterator[tuple[Load, Load]]:
    for mine in dict.fromkeys(loads_of(walk(host.body))):
        for theirs in dict.fromkeys(loads_of(walk(other.body))):
            if mine.tensor == theirs.tensor:
                yield mine, theirs


def _same_places(
    mine: Load, theirs: Load, own: Sequence[_Digit], others: Sequence[_Digit]
) -> Mapping[str, _Place] | None:
    """What the other's counters are in the host, if they choose the same part of the tensor.

    The fastest one may count what the host takes several of at a time.
    """
    by_index = {digit.index: digit for digit in own}
    found: dict[str, _Place] = {}
    for digit in others:
        at = [place for place, index in enumerate(theirs.indices) if index == symbol(digit.index)]
        pair = by_index.pop(mine.indices[at[0]].symbol or "", None) if len(at) == 1 else None
        if pair is None or pair.extent != digit.extent:
            return None
        if pair.width == digit.width:
            found[digit.index] = _Place(pair.value, poly(1), symbol(pair.index))
        elif digit.width == 1 and pair.ends is not None and digit is others[-1]:
            first, last = pair.ends
            found[digit.index] = _Place(first, last - first + 1, symbol(pair.index))
        else:
            return None
    return found


# ---------------------------------------------------------------------------- worth
def _is_worth_it(program: Program, host: Kernel, other: Kernel) -> bool:
    """Whether more than a tenth is spared of what both kernels move."""
    read = [read_by(kernel) for kernel in (host, other)]
    shared = read[0] & read[1]
    moved = [*read[0], *read[1], *host.all_written, *other.all_written]
    spared = sum(_elements(program, name) for name in sorted(shared))
    return spared * _LEAST_SPARED > sum(_elements(program, name) for name in moved)


def _elements(program: Program, name: str) -> int:
    """How many elements a tensor has, all sizes taken for the same; none for a table."""
    operands = {each.name: each for each in (*program.operands, *program.unstored)}
    if name not in operands:
        return 0
    return math.prod(
        extent.constant if extent.is_constant else _USUAL_SIZE for extent in operands[name].extents
    )
