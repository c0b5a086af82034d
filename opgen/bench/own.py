"""A row made from the user's own op: its shapes and attributes, and what it is measured against."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from opgen import compiler, loading
from opgen.bench import agreement
from opgen.bench.faults import BenchError
from opgen.bench.row import Contender, Direction, Row, Shape, Workload, text
from opgen.ir.notation import Op
from opgen.passes.derive import differentiable

Value = int | float | bool | str | tuple[int, ...]


@dataclass(frozen=True)
class Own:
    """What the command line says of an op: shapes by input, values by attribute."""

    spec: Path
    shapes: Mapping[str, Shape]
    against: tuple[str, ...]
    """Each `module:function` or `file.py:function`; called as the op is."""
    op: str | None = None
    attributes: Mapping[str, Value] | None = None
    dtype: torch.dtype = torch.float32
    channels_last: bool = False


def row(own: Own) -> Row:
    """The op as a row; BenchError where something named does not exist."""
    op = _op(own)
    unknown = [name for name in own.shapes if name not in [t.name for t in op.inputs]]
    if unknown or not own.shapes:
        wanted = ", ".join(f"--shape {tensor.name}=..." for tensor in op.inputs)
        found = f"no input '{unknown[0]}'" if unknown else "inputs that need shapes"
        raise BenchError(f"{op.name} has {found}: write {wanted}")
    missing = [t.name for t in op.inputs if t.default is None and t.name not in own.shapes]
    if missing:
        raise BenchError(
            f"{op.name} needs its input '{missing[0]}': write --shape {missing[0]}=..."
        )
    integers = [t.name for t in op.inputs if t.dtype.is_integer and t.name in own.shapes]
    if integers:
        raise BenchError(
            f"{op.name} reads '{integers[0]}' as integers, and random ones would not fit; bench it "
            "from Python with opgen.bench.measure"
        )
    if len(op.outputs) != 1:
        raise BenchError(f"{op.name} has {len(op.outputs)} outputs; only ops with one are measured")
    contenders = tuple(Contender(name, _with(function(name), own)) for name in own.against)
    first = next(iter(own.shapes.values()))
    shapes = " ".join(f"{name}={text(shape)}" for name, shape in own.shapes.items())

    def make(_: Shape, device: torch.device) -> Workload:
        return _workload(own, op, contenders, device)

    gradients = any(tensor.name in own.shapes for tensor in differentiable(op))
    return Row(
        f"{op.name} {shapes}",
        first,
        first,
        make,
        "own",
        directions=tuple(Direction) if gradients else (Direction.FORWARD,),
    )


def _op(own: Own) -> Op:
    ops = compiler.check_source(compiler.read_source(own.spec))
    named = {op.name: op for op in ops}
    if own.op is None and len(ops) == 1:
        return ops[0]
    if own.op in named:
        return named[own.op]
    said = f"no op '{own.op}'" if own.op else "several ops"
    raise BenchError(f"{own.spec} has {said}; choose one with --op: {', '.join(named)}")


def function(name: str) -> Callable[..., Tensor]:
    """What `module:function` names; a module may be a file. BenchError if there is none."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise BenchError(f"--against {name!r} must be module:function, or file.py:function")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, OSError) as error:
        raise BenchError(f"--against {name!r}: {place} cannot be imported: {error}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise BenchError(f"--against {name!r}: {place} has no function '{attribute}'")
    made: Callable[..., Tensor] = found
    return made


def _file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"opgen_against_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _with(called: Callable[..., Tensor], own: Own) -> Callable[..., Tensor]:
    """The function with the attributes of the op, by name."""
    attributes = dict(own.attributes or {})
    return lambda *tensors: called(*tensors, **attributes)


def _workload(own: Own, op: Op, contenders: Sequence[Contender], device: torch.device) -> Workload:
    given = [tensor for tensor in op.inputs if tensor.name in own.shapes]
    names = [tensor.name for tensor in given]
    attributes = dict(own.attributes or {})
    compiled = getattr(loading.load(own.spec), op.name)

    def opgen(*tensors: Tensor) -> Tensor:
        result: Tensor = compiled(**dict(zip(names, tensors, strict=True)), **attributes)
        return result

    inputs = tuple(_drawn(own, own.shapes[tensor.name], device) for tensor in given)
    free = {tensor.name for tensor in given if tensor.dtype.is_generic}
    wide = [x.double() if n in free else x for n, x in zip(names, inputs, strict=True)]
    # How many terms a cell sums is not known here: at most so many as there are inputs. In double
    # precision that is a strict bound all the same.
    terms = max(x.numel() for x in inputs)
    with torch.no_grad():
        expected = opgen(*wide)
        points = max(1, expected.numel()) * terms
        for contender in contenders:
            agreement.check(contender.name, [contender.function(*wide)], [expected], points)
    wanted = {tensor.name for tensor in differentiable(op)}
    return Workload(
        inputs,
        opgen,
        tuple(contenders),
        points=points,
        differentiable=tuple(at for at, name in enumerate(names) if name in wanted),
        compiled=contenders[0].function if contenders else None,
    )


def _drawn(own: Own, shape: Shape, device: torch.device) -> Tensor:
    x = torch.randn(shape, device=device).to(own.dtype)
    if own.channels_last and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x
