"""A checked call as CUDA launches: what is compiled for it, on which grids, with what arguments."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from opgen.runtime import cuda, cuda_grid, cuda_product, cuda_tiles, prelude, special
from opgen.runtime.cuda import Argument, KernelLaunch, Source
from opgen.runtime.description import CudaKernels, Launch, Product

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call


def launches(
    call: Call,
    operands: Mapping[str, torch.Tensor],
    numbers: Mapping[str, float],
    fault: torch.Tensor | None,
) -> tuple[Source, torch.device, list[KernelLaunch]]:
    """The source, the device and the launches of a call, in order.

    `fault` is where kernels record an index that is checked at run time and was outside.
    """
    integers = call.shapes.integers
    kernels = special.cuda_of(call.operation, integers)
    extents, reach = _sizes(kernels, tuple(integers.values()))
    narrow = cuda_grid.is_narrow(max(reach, default=0), extents, operands.values())
    found = []
    macros = []
    whole = True
    products: list[str] = []
    product_axes = iter(extents[len(kernels.launches) :])
    for launch, axes in zip(kernels.launches, extents, strict=False):
        if launch.converts is not None:
            workspace, output = launch.converts
            if operands[workspace] is operands[output]:
                continue
        if launch.product is not None:
            product = launch.product
            plan = cuda_product.plan(
                product, operands, next(product_axes), call.types.real, cuda.capability(call.device)
            )
            if plan is not None:
                products.append(product.source)
                macros.append(f"#define {product.macro} {plan.macro}\n")
                arguments = _arguments(product, operands, integers, numbers)
                found += _product(product.kernel, plan, (*arguments, *plan.magic), call)
                continue
        walked = ((operands[name], step) for name, step in launch.walked.items())
        lanes = cuda_grid.lanes(axes, walked)
        if launch.lanes is not None:
            macros.append(f"#define {launch.lanes} {lanes}\n")
            axes = (*axes[:-1], axes[-1] // lanes)
        if launch.rows is not None:
            macro, values = launch.rows
            rows = cuda_grid.rows(axes, lanes * values)
            macros.append(f"#define {macro} {rows}\n")
            axes = (*axes[:-2], axes[-2] // rows, axes[-1])
        grid = cuda_grid.team_grid(axes[:-2], *axes[-2:]) if launch.teams else cuda_grid.grid(axes)
        if grid is None:
            continue
        whole = whole and grid.whole
        arguments = _arguments(launch, operands, integers, numbers)
        arguments += grid.magic
        if launch.faults:
            assert fault is not None
            arguments.append(fault.data_ptr())
        found.append(KernelLaunch(launch.kernel, grid.blocks, grid.threads, tuple(arguments)))
    types = call.types
    tiles = (cuda_tiles.SOURCE,) if products else ()
    bindings = _bindings(types.shared, types.real, tuple(types.integers.items()))
    head = (prelude.cuda(narrow, whole), bindings, *tiles)
    return (*head, *macros, kernels.source, *products), call.device, found


def _product(
    kernel: str, plan: cuda_product.Plan, arguments: tuple[Argument, ...], call: Call
) -> list[KernelLaunch]:
    """The launches of a product of matrices: its tiles, and the sum of what blocks leave."""
    partial = cuda_product.partial_sums(plan, call.types.real, call.device)
    arguments += (0 if partial is None else partial.data_ptr(), plan.splits)
    tiles = KernelLaunch(kernel, plan.blocks, (plan.threads, 1, 1), arguments, partial)
    if partial is None:
        return [tiles]
    blocks = min(-(-plan.cells // cuda_product.SUM_THREADS), cuda_grid.MOST_BLOCKS[0])
    threads = (cuda_product.SUM_THREADS, 1, 1)
    return [tiles, KernelLaunch(f"{kernel}_sum", (blocks, 1, 1), threads, arguments, partial)]


def _arguments(
    launch: Launch | Product,
    operands: Mapping[str, torch.Tensor],
    integers: Mapping[str, int],
    numbers: Mapping[str, float],
) -> list[Argument]:
    """The tensors of a kernel with their strides, its integers and its numbers."""
    found: list[Argument] = []
    for name in launch.tensors:
        found += [operands[name].data_ptr(), *operands[name].stride()]
    found += [integers[name] for name in launch.integers]
    found += [numbers[name] for name in launch.numbers]
    return found


@functools.lru_cache(maxsize=1024)
def _bindings(shared: str, real: str, integers: tuple[tuple[str, str], ...]) -> str:
    """The types of a call as definitions; the same object for the same types."""
    return prelude.bindings(shared, real, dict(integers))


@functools.lru_cache(maxsize=1024)
def _sizes(
    kernels: CudaKernels, integers: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The axes of every kernel, and the bound of its indices."""
    magnitudes = (max(1, abs(integer)) for integer in integers)
    return kernels.extents(*integers), kernels.reach(*magnitudes)
