"""A checked call as CUDA launches: what is compiled for it, on which grids, with what arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from opgen.runtime import checks, cuda_grid, prelude, special
from opgen.runtime.cuda import Argument, KernelLaunch
from opgen.runtime.description import CudaKernels, Launch

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call, Types


def launches(
    call: Call,
    operands: Mapping[str, torch.Tensor],
    numbers: Mapping[str, float],
    fault: torch.Tensor | None,
) -> tuple[str, torch.device, list[KernelLaunch]]:
    """The source, the device and the launches of a call, in order.

    `fault` is where kernels record an index that is checked at run time and was outside.
    """
    integers = call.shapes.integers
    kernels = special.cuda_of(call.operation, integers)
    extents, reach = _sizes(kernels, tuple(integers.values()))
    narrow = cuda_grid.is_narrow(max(reach, default=0), extents, operands.values())
    found: list[KernelLaunch] = []
    macros = []
    whole = True
    for launch, axes in zip(kernels.launches, extents, strict=True):
        if launch.converts is not None:
            workspace, output = launch.converts
            if operands[workspace] is operands[output]:
                continue
        turns: tuple[int, ...] = ()
        if launch.sums is not None and launch.sums[0] == "serial":
            axes, turns = axes[:-2], axes[-2:]
        walked = ((operands[name], step) for name, step in launch.walked.items())
        lanes, rows, grid = cuda_grid.lanes(axes, walked), 1, None
        tiles = None
        if launch.tile is not None:
            # A stretch of what is stored has as many cells as one of what is loaded.
            name, digits, *sides = launch.tile
            written, across = operands[name], axes[-1 - digits : -1]
            lanes = min(lanes, cuda_grid.lanes((math.prod(across),), [(written, 1)]))
            size = written.element_size()
            tiles = cuda_grid.Tiles.of(math.prod(across), axes[-1], size, lanes)
            lanes, grid = tiles.lanes, tiles.grid(axes[: -1 - digits], across, axes[-1])
            for side, cells in zip(sides, (tiles.across, tiles.along), strict=True):
                macros.append(f"#define {side} {cells}\n")
        if launch.lanes is not None:
            macros.append(f"#define {launch.lanes} {lanes}\n")
            axes = (*axes[:-1], axes[-1] // lanes)
        if launch.rows is not None:
            macro, values = launch.rows
            rows = cuda_grid.rows(axes, lanes * values)
            macros.append(f"#define {macro} {rows}\n")
            axes = (*axes[:-2], axes[-2] // rows, axes[-1])
        arguments: list[Argument] = []
        for name in launch.tensors:
            arguments += [operands[name].data_ptr(), *operands[name].stride()]
        arguments += [integers[name] for name in launch.integers]
        arguments += [numbers[name] for name in launch.numbers]
        last = () if fault is None or not launch.faults else (fault.data_ptr(),)
        if launch.sums is not None:
            shared = _Sums(launch, (tuple(arguments), last), call.device, call.types)
            if turns:
                cells = lanes * rows
                found += shared.serial(axes, turns, cells)
                whole = whole and all(grid.whole for grid in shared.grids)
            else:
                found += shared.box(axes)
            continue
        if launch.teams:
            grid = cuda_grid.team_grid(axes[:-2], *axes[-2:])
        elif tiles is None:
            grid = cuda_grid.grid(axes)
        if grid is None:
            continue
        whole = whole and grid.whole
        given = (*arguments, *grid.magic, *last)
        found.append(KernelLaunch(launch.kernel, grid.blocks, grid.threads, given))
    types = call.types
    head = prelude.cuda(narrow, whole) + types.bindings() + "".join(macros)
    return head + kernels.source, call.device, found


@dataclass
class _Sums:
    """The launches of sums that blocks may share: of their terms, then of the parts, if any.

    `arguments` are those before and behind its own.
    """

    launch: Launch
    arguments: tuple[tuple[Argument, ...], tuple[Argument, ...]]
    device: torch.device
    types: Types
    grids: list[cuda_grid.Grid] = field(default_factory=list)

    def box(self, axes: Sequence[int]) -> Iterator[KernelLaunch]:
        """Of the points of a box: the last axes."""
        assert self.launch.sums is not None
        kernel, cells = self.launch.kernel, self.launch.sums[1]
        found = cuda_grid.sum_grid(axes[:cells], axes[cells:])
        if found is None:
            return
        parts = self.parts(math.prod(axes[:cells]), found.splits)
        given = self.given(found.magic, found.share, found.splits, parts)
        yield KernelLaunch(kernel, found.blocks, found.threads, given, (parts,))
        if found.splits > 1:
            given = self.given(found.magic, 0, found.splits, parts)
            yield KernelLaunch(kernel, found.total_blocks, found.total_threads, given, (parts,))

    def serial(
        self, axes: Sequence[int], turns: tuple[int, ...], cells: int
    ) -> Iterator[KernelLaunch]:
        """Of the turns of a loop, where a thread has so many cells."""
        assert self.launch.sums is not None
        count, terms = turns
        splits = cuda_grid.serial_splits(axes, count, terms)
        share = max(1, -(-count // splits))
        splits = max(1, -(-count // share))
        grid, total = (cuda_grid.grid((each, *axes)) for each in (splits, 1))
        if grid is None or total is None:
            return
        self.grids += [grid, total]
        kernel, parts = self.launch.kernel, self.parts(math.prod(axes) * cells, splits)
        given = self.given(grid.magic, share, splits, parts)
        yield KernelLaunch(kernel, grid.blocks, grid.threads, given, (parts,))
        if splits > 1:
            given = self.given(total.magic, 0, splits, parts)
            yield KernelLaunch(kernel, total.blocks, total.threads, given, (parts,))

    def parts(self, cells: int, splits: int) -> torch.Tensor:
        """Memory for the parts of the sums of cells; none where there is one part."""
        assert self.launch.sums is not None
        *_, sums, kind = self.launch.sums
        dtype = {"i64": "i64", "real": self.types.real, "wide": self.types.wide}[kind]
        count = cells * sums * splits if splits > 1 else 0
        return empty_parts(count, checks.TORCH_DTYPES[dtype], self.device)

    def given(
        self, magic: tuple[int, ...], share: int, splits: int, parts: torch.Tensor
    ) -> tuple[Argument, ...]:
        """All arguments."""
        before, behind = self.arguments
        return (*before, *magic, share, splits, parts.data_ptr(), *behind)


def empty_parts(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory for the parts of sums that several blocks share."""
    return torch.empty(count, dtype=dtype, device=device)


@functools.lru_cache(maxsize=1024)
def _sizes(
    kernels: CudaKernels, integers: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The axes of every kernel, and the bound of its indices."""
    magnitudes = (max(1, abs(integer)) for integer in integers)
    return kernels.extents(*integers), kernels.reach(*magnitudes)
