"""Chains of kernels: which are launched in place of these, and on what grids.

One launch takes less time than several, and what a phase reads again is in a near cache. But a
block alone goes through all points of its cell, so there are to be cells for all of a GPU, and not
more points in each than its threads are soon done with.

On an H200 (2026-11-27) a batch norm of [4,64,56,56] takes 5.7 microseconds as a chain where it took
8.7, its gradients 6.8 where they took 14.0; softmax of 128 images of 64 by 64 4.1 and 8.1, its
gradient 3.5 and 5.3; the gradient of a softmax of 6272 rows of 196 7.5 and about 30.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from opgen.runtime import cuda_grid
from opgen.runtime.description import Chain, CudaKernels
from opgen.runtime.record import record

THREADS = 512
"""The most threads of a block; chains are compiled for it."""

_LEAST_CELLS, _MANY_CELLS = 64, 512
"""From how many cells on there are blocks for half of a large GPU, and for all of it several times.
"""

_MOST_TURNS, _MOST_TURNS_OF_MANY = 8, 64
"""How many stretches of points a thread of such blocks has at most."""

_WARP = 32
_FEWEST_STRETCHES = 48
"""The fewest stretches of the longest phase. With 49 a chain takes a third to a half of the time of
its kernels, but with 16 or 21, for which a warp is a block that is hardly begun when it is done,
about twice as long: these have the threads of several cells in a block."""

_Extents = tuple[int, ...]


@record
class ChainLaunch:
    """A chain that is to be launched: what its macros are, how many blocks and threads there are,
    and what `quotient` divides by."""

    chain: Chain
    macros: tuple[tuple[str, int], ...]
    blocks: int
    threads: int
    magic: tuple[int, ...]


def chosen(
    kernels: CudaKernels,
    extents: Sequence[_Extents],
    tensors: Mapping[str, torch.Tensor],
) -> dict[int, ChainLaunch]:
    """The chains to be launched, by the position of the first kernel that they stand for.

    `extents` are those of all kernels, of products, and of the phases of chains.
    """
    axes = iter(extents[len(extents) - sum(len(chain.phases) for chain in kernels.chains) :])
    found: dict[int, ChainLaunch] = {}
    for chain in kernels.chains:
        launch = _planned(chain, [next(axes) for _ in chain.phases], tensors)
        if launch is not None:
            found[chain.first] = launch
    return found


def _planned(
    chain: Chain, phases: Sequence[_Extents], tensors: Mapping[str, torch.Tensor]
) -> ChainLaunch | None:
    """The launch of a chain with these axes; None where its kernels are faster."""
    cells = phases[0][: chain.cells]
    macros: list[tuple[str, int]] = []
    magic = [cuda_grid.magic(max(1, extent)) for extent in cells[1:]]
    longest = 0
    for phase, axes in zip(chain.phases, phases, strict=True):
        box = axes[chain.cells :]
        if phase.lanes is not None:
            walked = [(tensors[name], step) for name, step in phase.walked.items()]
            lanes = cuda_grid.lanes(axes, walked)
            macros.append((phase.lanes, lanes))
            if all(cuda_grid.is_aligned(tensor, step * lanes) for tensor, step in walked):
                macros.append((f"proved_{phase.lanes}", 1))
            box = (*box[:-1], box[-1] // lanes)
        magic += [cuda_grid.magic(max(1, extent)) for extent in box[1:]]
        longest = max(longest, math.prod(box))
    count = math.prod(cells)
    most = _MOST_TURNS if count < _MANY_CELLS else _MOST_TURNS_OF_MANY
    if not _LEAST_CELLS <= count <= cuda_grid.MOST_BLOCKS[0]:
        return None
    if not _FEWEST_STRETCHES <= longest <= most * THREADS:
        return None
    threads = max(_WARP, min(THREADS, 1 << (longest.bit_length() - 1)))
    return ChainLaunch(chain, tuple(macros), count, threads, tuple(magic))
