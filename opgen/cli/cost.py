"""`opgen cost SPEC`: what an op and its gradients cost on a GPU, before there is one."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch

from opgen import compiler, loading, programs
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

_DTYPES: Final = {each.value: each for each in (DType.F16, DType.BF16, DType.F32, DType.F64)}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "cost", help="predict what kernels cost on a GPU", description=DESCRIPTION
    )
    parser.add_argument("spec", type=Path, metavar="SPEC")
    parser.add_argument("--op", help="the op, if the spec has several")
    parser.add_argument(
        "--shape", nargs="+", required=True, metavar="NAME=SIZES", help="x=2,3,8,8 w=4,3,3,3"
    )
    parser.add_argument("--attribute", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="f32")
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
        sizes = _sizes(operation, options.shape, options.attribute)
    except (ValueError, TypeError, RuntimeError) as error:
        errors().print(f"opgen cost: {error}")
        return 2
    machine, dtype = MACHINES[options.arch], _DTYPES[options.dtype]
    output().print(f"{name}, {options.dtype}, predicted for {machine.name}")
    derived = derive(tuple(ops.values()), 1)
    for member in derived:
        if member.path[0] == name:
            _report(member.op, ops[name], sizes, dtype, machine)
    wanted = [tensor.name for tensor in differentiable(ops[name])]
    if len(wanted) > 1 and not ops[name].gradients:
        _report(joint_adjoint(ops[name], wanted).op, ops[name], sizes, dtype, machine, True)
    return 0


def _sizes(operation: Operation, shapes: list[str], given: list[str]) -> Mapping[str, int]:
    """The integers of a call; ValueError or TypeError for a call that would be refused."""
    found = dict(_pairs(shapes))
    known = [each.name for each in operation.inputs]
    for name in found:
        if name not in known:
            raise ValueError(f"{operation.name} has no input '{name}', only {', '.join(known)}")
    tensors: list[tuple[int, ...] | None] = []
    for each in operation.inputs:
        text = found.get(each.name)
        if text is None and each.default is None:
            raise ValueError(f"give the shape of {each.name}: --shape {each.name}=...")
        tensors.append(
            None if text is None else _shape(each.name, text, len(each.dims), each.batched)
        )
    texts = dict(_pairs(given))
    attributes = {each.name: each for each in operation.attributes}
    for name in texts:
        if name not in attributes:
            known = list(attributes) or ["none"]
            raise ValueError(f"{operation.name} has no attribute '{name}', only {', '.join(known)}")
    values = [
        checks.attribute_value(
            operation.name, each, _literal(texts[each.name]) if each.name in texts else each.default
        )
        for each in operation.attributes
    ]
    return dict(operation.shapes(*tensors, *values).integers)


def _pairs(texts: list[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"expected NAME=VALUE, got '{text}'")
        yield name, value


def _shape(name: str, text: str, rank: int, batched: bool) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise ValueError(f"the shape of {name} must be integers, got '{text}'") from None
    if len(sizes) != rank:
        dims = f"{rank} dims" + (", batch dims as one" if batched else "")
        raise ValueError(f"{name} has {dims}; got {len(sizes)} in '{text}'")
    return sizes


def _literal(text: str) -> object:
    """A number, a tuple or a flag as in Python, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


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
