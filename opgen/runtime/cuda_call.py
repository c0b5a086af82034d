"""A checked call as CUDA launches: what is compiled for it, on which grids, with what arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from opgen.runtime import (
    checks,
    cuda,
    cuda_chain,
    cuda_grid,
    cuda_operands,
    cuda_product,
    cuda_source,
    cuda_tiles,
    prelude,
    special,
)
from opgen.runtime.cuda import Argument, KernelLaunch, Launched, Memory, Number, Source
from opgen.runtime.cuda_chain import ChainLaunch
from opgen.runtime.description import Chain, CudaKernels, Launch, Product

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call, Types


def launches(
    call: Call,
    operands: Mapping[str, torch.Tensor],
    numbers: Mapping[str, float],
    fault: torch.Tensor | None,
) -> Launched:
    """The source and the launches of a call.

    `fault` is where kernels record an index that is checked at run time and was outside.
    """
    integers = call.shapes.integers
    results = (operands[output.name] for output in call.operation.outputs)
    images = special.Images((*call.tensors, *results))
    kernels = special.cuda_of(call.operation, integers, images, call.unrounded)
    own = {each.name for each in call.operation.temporaries}
    tensors = cuda_operands.laid_out(operands, kernels.orders, own)
    extents, reach = _sizes(kernels, tuple(integers.values()))
    narrow = cuda_grid.is_narrow(max(reach, default=0), extents, tensors.values())
    made = _Launches(call, tensors, numbers, fault)
    product_axes = iter(extents[len(kernels.launches) :])
    chains = cuda_chain.chosen(kernels, extents, tensors)
    chained: set[int] = set()
    for at, (launch, axes) in enumerate(zip(kernels.launches, extents, strict=False)):
        if at in chains:
            chained.update(range(at, at + chains[at].chain.count))
            made.add_chain(chains[at])
        if at in chained:
            continue
        if launch.converts is not None:
            workspace, output = launch.converts
            if tensors[workspace] is tensors[output]:
                continue
        if launch.product is not None and made.add_product(launch.product, next(product_axes)):
            continue
        made.add(launch, axes)
    types = call.types
    shared = (cuda_tiles.SOURCE,) if made.products else ()
    bindings = _bindings(types.shared, types.real, tuple(types.integers.items()))
    rounding = (cuda_source.UNROUNDED,) if call.unrounded else ()
    head = (prelude.cuda(narrow, made.whole), bindings, *rounding, *shared)
    source: Source = (*head, *made.macros, kernels.source, *made.products, *made.chains)
    return Launched(source, call.device, made.found, made.copies, made.lasting, fault)


@dataclass
class _Launches:
    """The launches of a call that were found so far, and what is compiled for them.

    `tensors` are the operands as kernels take them, `copies` those that were made for that;
    `products` and `chains` are sources. Where grids are `whole` no thread has more than one point.
    """

    call: Call
    tensors: dict[str, torch.Tensor]
    numbers: Mapping[str, float]
    fault: torch.Tensor | None
    found: list[KernelLaunch] = field(default_factory=list)
    macros: list[str] = field(default_factory=list)
    products: list[str] = field(default_factory=list)
    chains: list[str] = field(default_factory=list)
    copies: dict[str, torch.Tensor] = field(default_factory=dict)
    whole: bool = True
    lasting: bool = True

    def define(self, macro: str, value: int) -> None:
        """Let a name stand for a number in what is compiled."""
        self.macros.append(f"#define {macro} {value}\n")

    def add_product(self, product: Product, axes: tuple[int, ...]) -> bool:
        """Whether the launches of a product of matrices were added: in some calls none is made."""
        call = self.call
        capability = cuda.capability(call.device)
        plan = cuda_product.plan(product, self.tensors, axes, call.types.real, capability)
        if plan is None:
            return False
        self.lasting = self.lasting and plan.kind is not cuda_product.Kind.TENSOR_CORES_TF32
        self.products.append(product.source)
        self.macros.append(f"#define {product.macro} {plan.macro}\n")
        arguments = self.arguments(product)
        self.found += _product(product.kernel, plan, (*arguments, *plan.magic), call)
        return True

    def add_chain(self, found: ChainLaunch) -> None:
        """Add the launch of a chain of kernels."""
        chain = found.chain
        self.chains.append(chain.source)
        for macro, value in found.macros:
            self.define(macro, value)
        given = (*self.arguments(chain), *found.magic)
        blocks, threads = (found.blocks, 1, 1), (found.threads, 1, 1)
        self.found.append(KernelLaunch(chain.kernel, blocks, threads, given))

    def add(self, launch: Launch, axes: tuple[int, ...]) -> None:
        """Add the launches of a kernel with these axes, if it has points."""
        turns: tuple[int, ...] = ()
        if launch.sums is not None and launch.sums[0] == "serial":
            axes, turns = axes[:-2], axes[-2:]
        inputs = [each.name for each in self.call.operation.inputs]
        self.copies |= cuda_operands.copies(self.tensors, inputs, axes, launch.walked)
        self.tensors |= self.copies
        walked, gathered = _walked(launch, self.tensors, inputs)
        lanes = cuda_grid.lanes(axes, walked, gathered)
        if launch.slab is not None and self.add_slab(launch, axes, lanes):
            return
        tiles: cuda_grid.Tiles | None = None
        grid: cuda_grid.Grid | None = None
        if launch.tile is not None:
            tiles, grid = self.tiled(launch, axes, walked, lanes)
            lanes = tiles.lanes
        if launch.lanes is not None:
            self.define(launch.lanes, lanes)
            every = (*walked, *gathered)
            if all(cuda_grid.is_aligned(tensor, step * lanes) for tensor, step in every):
                self.define(f"proved_{launch.lanes}", 1)
            axes = (*axes[:-1], axes[-1] // lanes)
        rows = 1
        if launch.rows is not None:
            at = len(axes) - 2 - launch.beside
            rows = self.rows(launch, (*axes[:at], *axes[at + 1 : -1], axes[at], axes[-1]), lanes)
            axes = (*axes[:at], axes[at] // rows, *axes[at + 1 :])
        if launch.sums is not None:
            self.add_sums(launch, axes, turns, lanes * rows)
            return
        if launch.teams:
            grid = cuda_grid.team_grid(axes[:-2], *axes[-2:])
        elif tiles is None:
            grid = cuda_grid.grid(axes, rows if launch.window else 0)
        if grid is not None:
            self.whole = self.whole and grid.whole
            self.launch(launch, grid)

    def launch(self, launch: Launch, grid: cuda_grid.Grid) -> None:
        """Add a launch on a grid."""
        given = (*self.arguments(launch), *grid.magic, *self.last(launch))
        self.found.append(KernelLaunch(launch.kernel, grid.blocks, grid.threads, given))

    def add_slab(self, launch: Launch, axes: tuple[int, ...], lanes: int) -> bool:
        """Whether a kernel takes whole planes in this call: then its launch was added."""
        assert launch.slab is not None
        staged = [self.tensors[name] for name in launch.slab[1:]]
        slab = cuda_grid.slab(axes, staged, lanes)
        if slab is None:
            return False
        self.macros.append(_slab(launch, slab, axes, self.tensors))
        self.launch(launch, slab.grid)
        return True

    def tiled(
        self, launch: Launch, axes: tuple[int, ...], walked: list[cuda_grid.Walked], lanes: int
    ) -> tuple[cuda_grid.Tiles, cuda_grid.Grid | None]:
        """The tiles of a kernel that turns rows into columns; what it stores is `walked`, too.

        A stretch of what is stored has as many cells as one of what is loaded.
        """
        assert launch.tile is not None
        name, digits, *sides = launch.tile
        written, across = self.tensors[name], axes[-1 - digits : -1]
        lanes = min(lanes, cuda_grid.lanes((math.prod(across),), [(written, 1)]))
        walked.append((written, 1))
        tiles = cuda_grid.Tiles.of(math.prod(across), axes[-1], written.element_size(), lanes)
        for side, cells in zip(sides, (tiles.across, tiles.along), strict=True):
            self.define(side, cells)
        return tiles, tiles.grid(axes[: -1 - digits], across, axes[-1])

    def rows(self, launch: Launch, axes: tuple[int, ...], lanes: int) -> int:
        """How many rows a thread has."""
        assert launch.rows is not None
        macro, values = launch.rows
        registers = cuda_grid.registers(self.call.types.wide)
        totals = 0 if launch.sums is None else launch.sums[2] * registers
        most = cuda_grid.most_rows(registers, bool(launch.also), totals)
        if launch.sums is not None and launch.sums[0] == "across":
            most = min(most, cuda_grid.most_rows_across(totals))
        rows = cuda_grid.rows(axes, lanes * values * registers, most)
        self.define(macro, rows)
        return rows

    def add_sums(
        self, launch: Launch, axes: tuple[int, ...], turns: tuple[int, ...], cells: int
    ) -> None:
        """Add the launches of sums that blocks may share, where a thread has so many cells."""
        given = (tuple(self.arguments(launch)), self.last(launch))
        sums = _Sums(launch, given, self.call.device, self.call.types)
        if not turns:
            self.found += sums.box(axes, cells)
            return
        self.found += sums.serial(axes, turns, cells)
        self.whole = self.whole and all(grid.whole for grid in sums.grids)

    def arguments(self, launch: Launch | Product | Chain) -> list[Argument]:
        """The tensors of a kernel with their strides, its integers and its numbers."""
        found: list[Argument] = []
        for name in launch.tensors:
            tensor = self.tensors[name]
            found += [Memory(name, tensor), *tensor.stride()]
        found += [self.call.shapes.integers[name] for name in launch.integers]
        found += [Number(name, self.numbers[name]) for name in launch.numbers]
        return found

    def last(self, launch: Launch) -> tuple[Argument, ...]:
        """Where a kernel records a fault, if it may."""
        return () if self.fault is None or not launch.faults else (Memory(None, self.fault),)


def _walked(
    launch: Launch, tensors: Mapping[str, torch.Tensor], inputs: Sequence[str]
) -> tuple[list[cuda_grid.Walked], list[cuda_grid.Walked]]:
    """What cells walk along in one access and in several, see `cuda_grid.lanes`."""
    walked: list[cuda_grid.Walked] = []
    gathered: list[cuda_grid.Walked] = []
    for name, step in launch.walked.items():
        # A sum keeps all that it reads in registers, beside as many totals as it has terms.
        is_gathered = step > 1 and name in inputs and launch.sums is None
        (gathered if is_gathered else walked).append((tensors[name], step))
    return walked, gathered


def _slab(
    launch: Launch,
    slab: cuda_grid.Slab,
    axes: Sequence[int],
    tensors: Mapping[str, torch.Tensor],
) -> str:
    """The macros of a kernel that takes whole planes: a thread has a row of cells."""
    assert launch.slab is not None
    name, *staged = launch.slab
    *_, height, width = axes
    values = {
        f"planes_of_{name}": slab.planes,
        f"height_of_{name}": height,
        f"{launch.lanes}": width,
        f"proved_{launch.lanes}": 0,
    }
    for at, each in enumerate(staged):
        *_, rows, cells = tensors[each].shape
        values |= {f"plane_{at}_of_{name}": rows * cells, f"row_{at}_of_{name}": cells}
    return "".join(f"#define {macro} {value}\n" for macro, value in values.items())


def _product(
    kernel: str, plan: cuda_product.Plan, arguments: tuple[Argument, ...], call: Call
) -> list[KernelLaunch]:
    """The launches of a product of matrices: its tiles, and the sum of what blocks leave."""
    partial = cuda_product.partial_sums(plan, call.types.real, call.device)
    arguments += (0 if partial is None else Memory(None, partial), plan.splits)
    tiles = KernelLaunch(kernel, plan.blocks, (plan.threads, 1, 1), arguments)
    if partial is None:
        return [tiles]
    blocks = min(-(-plan.cells // cuda_product.SUM_THREADS), cuda_grid.MOST_BLOCKS[0])
    threads = (cuda_product.SUM_THREADS, 1, 1)
    return [tiles, KernelLaunch(f"{kernel}_sum", (blocks, 1, 1), threads, arguments)]


@functools.lru_cache(maxsize=1024)
def _bindings(shared: str, real: str, integers: tuple[tuple[str, str], ...]) -> str:
    """The types of a call as definitions; the same object for the same types."""
    return prelude.bindings(shared, real, dict(integers))


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

    def box(self, axes: Sequence[int], stretch: int) -> Iterator[KernelLaunch]:
        """Of the points of a box: the last axes, in stretches of so many."""
        assert self.launch.sums is not None
        kernel, (kind, cells, *_) = self.launch.kernel, self.launch.sums
        if kind == "across":
            found = cuda_grid.across_grid(axes[:cells], axes[cells:], stretch)
        else:
            found = cuda_grid.sum_grid(axes[:cells], axes[cells:])
        if found is None:
            return
        parts = self.parts(math.prod(axes[:cells]), found.splits)
        given = self.given(found.magic, found.share, found.splits, parts)
        yield KernelLaunch(kernel, found.blocks, found.threads, given)
        if found.splits > 1:
            given = self.given(found.magic, 0, found.splits, parts)
            yield KernelLaunch(kernel, found.total_blocks, found.total_threads, given)

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
        yield KernelLaunch(kernel, grid.blocks, grid.threads, given)
        if splits > 1:
            given = self.given(total.magic, 0, splits, parts)
            yield KernelLaunch(kernel, total.blocks, total.threads, given)

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
        return (*before, *magic, share, splits, Memory(None, parts), *behind)


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
