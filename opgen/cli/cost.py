"""`opgen cost SPEC`: what an op and its gradients cost on a GPU, before there is one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from opgen import compiler, loading, programs
from opgen.cli import arguments
from opgen.cli.console import diagnostics, errors, output
from opgen.cost.kernels import Tiles, cost, joint_cost, tensor_bytes, tiled_cost
from opgen.cost.machines import MACHINES, Machine
from opgen.errors import OpgenError
from opgen.ir.loops import Kernel, Program
from opgen.ir.notation import DType, Op
from opgen.passes.derive import derive, differentiable
from opgen.passes.differentiate import joint_adjoint
from opgen.passes.specialise import attributes_of, factors_of, specialise, windows_of
from opgen.runtime import Operation, checks, cuda_product
from opgen.runtime.description import LARGEST_WINDOW

if TYPE_CHECKING:
    from opgen.bench.own import Value

DESCRIPTION = """\
Predicts from the loops, without running anything, what each kernel of an op and of its gradients
does at the given shapes: operations, bytes that must be moved, time, what limits it, and how it is
laid out. It is a model, good to a factor of about 1.5; measure where it matters.
"""

_TORCH_DTYPES: Final = {
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
}
_NEWEST: Final = (9, 0)
"""A compute capability with all tensor cores that kernels use."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "cost", help="predict what kernels cost on a GPU", description=DESCRIPTION
    )
    parser.add_argument("spec", type=Path, metavar="SPEC")
    parser.add_argument("--op", help="the op, if the spec has several")
    arguments.add_to(parser)
    parser.add_argument("--arch", choices=sorted(MACHINES), default="h200")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0 if the report was printed, 1 for a spec at fault, 2 for arguments that do not fit."""
    try:
        source = compiler.read_source(options.spec)
        ops = {op.name: op for op in compiler.check_source(source)}
    except OpgenError as error:
        errors().print(diagnostics(error))
        return 1
    name = options.op or next(iter(ops))
    try:
        if name not in ops:
            raise ValueError(f"{source.name} defines no op '{name}', only {', '.join(ops)}")
        module = loading.compile(source.text, source.name)
        operation: Operation = module.FAMILY.operations[name]
        shapes, attributes = arguments.shapes_of(options), arguments.attributes_of(options)
        sizes = _sizes(operation, shapes, attributes)
    except (ValueError, TypeError, RuntimeError) as error:
        errors().print(f"opgen cost: {error}")
        return 2
    machine, dtype = MACHINES[options.arch], DType(arguments.short_dtype(options.dtype))
    output().print(f"{name}, {dtype.value}, predicted for {machine.name}")
    derived = derive(tuple(ops.values()), 1)
    for member in derived:
        if member.path[0] == name:
            _report(member.op, ops[name], sizes, dtype, machine)
    wanted = [tensor.name for tensor in differentiable(ops[name])]
    if len(wanted) > 1 and not ops[name].gradients:
        _report(joint_adjoint(ops[name], wanted).op, ops[name], sizes, dtype, machine, True)
    return 0


def _sizes(
    operation: Operation,
    shapes: Mapping[str, tuple[int, ...]],
    given: Mapping[str, Value],
) -> Mapping[str, int]:
    """The integers of a call; ValueError or TypeError for a call that would be refused."""
    known = [each.name for each in operation.inputs]
    for name in shapes:
        if name not in known:
            raise ValueError(f"{operation.name} has no input '{name}', only {', '.join(known)}")
    tensors: list[tuple[int, ...] | None] = []
    for each in operation.inputs:
        shape, rank = shapes.get(each.name), len(each.dims)
        if shape is None and each.default is None:
            raise ValueError(f"give the shape of {each.name}: --shape {each.name}=...")
        if shape is not None and len(shape) != rank:
            listed = ",".join(map(str, shape))
            dims = f"{rank} dims" + (", batch dims as one" if each.batched else "")
            raise ValueError(f"{each.name} has {dims}; got {len(shape)} in '{listed}'")
        tensors.append(shape)
    attributes = {each.name: each for each in operation.attributes}
    for name in given:
        if name not in attributes:
            known = list(attributes) or ["none"]
            raise ValueError(f"{operation.name} has no attribute '{name}', only {', '.join(known)}")
    values = [
        checks.attribute_value(operation.name, each, given.get(each.name, each.default))
        for each in operation.attributes
    ]
    return dict(operation.shapes(*tensors, *values).integers)


# ---------------------------------------------------------------------------- the report
def _report(
    op: Op,
    public: Op,
    sizes: Mapping[str, int],
    dtype: DType,
    machine: Machine,
    only_siblings: bool = False,
) -> None:
    """The kernels of one op as they are made for the attributes and windows of a call.

    With `only_siblings` nothing is told unless one of them computes several outputs.
    """
    fixed = {name: sizes[name] for name in attributes_of(op) if name in sizes}
    fixed |= {name: sizes[name] for name in windows_of(public) if _is_window(sizes.get(name))}
    fixed |= {name: 1 for name in factors_of(public) if sizes.get(name) == 1}
    special = specialise(op, fixed)
    program = programs.scheduled(special)
    threads = programs.threads(special, program)
    if only_siblings and not any(kernel.also for kernel in threads.kernels):
        return
    costs = []
    for launched in threads.kernels:
        if launched.also:
            parts = [each for each in program.kernels if each.written in launched.all_written]
            costs.append(joint_cost(parts, launched, program, sizes, dtype, machine))
            continue
        kernel = program.kernel(launched.name)
        tiles = _tiles(launched, program, sizes, dtype)
        if tiles is None:
            costs.append(cost(kernel, launched, program, sizes, dtype, machine))
        else:
            costs.append(tiled_cost(kernel, tiles, program, sizes, dtype, machine))
    ideal = sum(
        tensor_bytes(op.extents(tensor.name), tensor.dtype, False, sizes, dtype)
        for tensor in (*op.inputs, *op.outputs)
    )
    total = sum(each.seconds for each in costs)
    screen = output()
    screen.print(
        f"\n{op.name}: {total * 1e6:.1f} us; moving {_amount(ideal)}B once takes "
        f"{ideal / machine.bandwidth * 1e6:.1f} us"
    )
    for each in costs:
        screen.print(
            f"  {each.kernel}: {each.seconds * 1e6:.1f} us, limited by {each.limit}; "
            f"{_amount(each.flops)}flop, {_amount(each.bytes)}B, "
            f"{_amount(each.instructions)} instructions"
        )
        screen.print(f"    {each.template.name}: {each.template.reason}")


def _tiles(
    kernel: Kernel, program: Program, sizes: Mapping[str, int], dtype: DType
) -> Tiles | None:
    """The tiles by which a launch would compute a kernel; None if it would go cell by cell."""
    found = kernel.contraction
    if found is None:
        return None
    wide = {each.name for each in program.operands if each.widened}
    own = _TORCH_DTYPES[dtype]
    computed = torch.float64 if own is torch.float64 else torch.float32
    loads = (found.left.load.tensor, found.right.load.tensor)
    real = "f64" if own is torch.float64 else "f32"
    dtypes = [computed if name in wide else own for name in loads]
    kind = cuda_product.kind_of(dtypes, real, _NEWEST)
    groups = (found.batch, found.rows, found.columns, found.terms)
    batch, rows, columns, terms = (
        [axis.extent.evaluate(sizes) for axis in axes] for axes in groups
    )
    steps = [step.evaluate(sizes) for step in found.steps]
    if min((*batch, *rows, *columns, *terms, *steps)) <= 0:
        return None
    shape = cuda_product.Shape.of(batch, rows, columns, terms, steps)
    side = None if kind is None else cuda_product.tile_of(kind, shape, real)
    if kind is None or side is None:
        return None
    bits = 0 if kind is cuda_product.Kind.THREADS else 8 * own.itemsize
    return Tiles(side, shape.matrices, shape.rows, shape.columns, shape.terms, bits)


def _is_window(size: int | None) -> bool:
    return size is not None and 1 <= size <= LARGEST_WINDOW


def _amount(value: float) -> str:
    """A number with a unit prefix."""
    for prefix in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.4g} {prefix}"
        value /= 1000
    return f"{value:.4g} T"
