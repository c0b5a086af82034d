"""A row made from the user's own op: its shapes and attributes, and what it is measured against."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from opgen import compiler, loading
from opgen.bench import agreement
from opgen.bench.faults import BenchError
from opgen.bench.growth import grown
from opgen.bench.row import Contender, Direction, Row, Shape, Workload, text
from opgen.emit.names import python_names
from opgen.ir.notation import Op
from opgen.ir.notation import Tensor as Declared
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
    attributes: Mapping[str, Value] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    channels_last: bool = False


def row(own: Own, *, growing: bool = False) -> Row:
    """The op as a row; BenchError where something named does not exist, or does not fit the op.

    With `growing` the smaller sizes at which growth is measured must fit, too.
    """
    called = _named(own)
    _check_names(own, called.op)
    _check(called, own.shapes)
    contenders = tuple(Contender(name, _with(function(name), own)) for name in own.against)
    shapes = " ".join(f"{name}={text(shape)}" for name, shape in own.shapes.items())
    first = own.shapes[called.given[0].name]

    def make(shape: Shape, device: torch.device) -> Workload:
        return _workload(called, _resized(called, shape), contenders, device)

    found = Row(
        f"{called.op.name} {shapes}",
        first,
        first,
        make,
        "own",
        directions=tuple(Direction) if called.differentiable else (Direction.FORWARD,),
    )
    if growing:
        for shape in grown(found, first):
            _check(called, _resized(called, shape))
    return found


@dataclass(frozen=True)
class _Called:
    """An op, what was said of it, and its function in the module."""

    own: Own
    op: Op
    function: Callable[..., Tensor]
    """Takes the inputs that have shapes, in the order of the op."""

    @property
    def given(self) -> tuple[Declared, ...]:
        """The inputs that have shapes."""
        return tuple(tensor for tensor in self.op.inputs if tensor.name in self.own.shapes)

    @property
    def differentiable(self) -> tuple[int, ...]:
        """Positions of those among them that have gradients."""
        if self.op.outputs[0].dtype.is_integer:
            return ()
        wanted = {tensor.name for tensor in differentiable(self.op)}
        return tuple(at for at, tensor in enumerate(self.given) if tensor.name in wanted)


def _named(own: Own) -> _Called:
    """The op that is meant."""
    ops = compiler.check_source(compiler.read_source(own.spec))
    named = {op.name: op for op in ops}
    if own.op is not None and own.op not in named:
        said = f"no op '{own.op}'"
        raise BenchError(f"{own.spec} has {said}; choose one with --op: {', '.join(named)}")
    if own.op is None and len(ops) != 1:
        raise BenchError(f"{own.spec} has several ops; choose one with --op: {', '.join(named)}")
    op = ops[0] if own.op is None else named[own.op]
    module = loading.load(own.spec)
    public = getattr(module, python_names(named)[op.name])
    # A name of the spec may have had to change to be one of Python; the order is the same.
    declared = [*(tensor.name for tensor in op.inputs), *(each.name for each in op.attributes)]
    parameter = dict(zip(declared, inspect.signature(public).parameters, strict=True))
    names = [parameter[tensor.name] for tensor in op.inputs if tensor.name in own.shapes]
    attributes = {parameter.get(name, name): value for name, value in own.attributes.items()}

    def called(*tensors: Tensor) -> Tensor:
        result: Tensor = public(**dict(zip(names, tensors, strict=True)), **attributes)
        return result

    return _Called(own, op, called)


def _check_names(own: Own, op: Op) -> None:
    """BenchError where inputs or attributes are unknown or missing, or cannot be drawn."""
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
    known = [each.name for each in op.attributes]
    for name in own.attributes:
        if name not in known:
            others = f"only {', '.join(known)}" if known else "and none at all"
            raise BenchError(f"{op.name} has no attribute '{name}', {others}")
    for each in op.attributes:
        if each.default is None and each.name not in own.attributes:
            raise BenchError(f"{op.name} needs its attribute '{each.name}': --set {each.name}=...")
    integers = [t.name for t in op.inputs if t.dtype.is_integer and t.name in own.shapes]
    if integers:
        raise BenchError(
            f"{op.name} reads '{integers[0]}' as integers, and random ones would not fit; bench it "
            "from Python with opgen.bench.measure"
        )
    if len(op.outputs) != 1:
        raise BenchError(f"{op.name} has {len(op.outputs)} outputs; only ops with one are measured")


def _check(called: _Called, shapes: Mapping[str, Shape]) -> None:
    """BenchError where a call at these shapes would be refused, or has nothing to compute.

    Tensors without memory show it: nothing is drawn, and no kernel is compiled.
    """
    where = " ".join(f"{name}={text(shape)}" for name, shape in shapes.items())
    for name, shape in shapes.items():
        if 0 in shape:
            raise BenchError(f"{name}={text(shape)} has no elements: there is nothing to time")
    tensors = [
        torch.empty(shapes[tensor.name], dtype=called.own.dtype, device="meta")
        for tensor in called.given
    ]
    smaller = "" if shapes == called.own.shapes else f"--growth also measures {where}: "
    try:
        result = called.function(*tensors)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BenchError(f"{smaller}{error}") from error
    if not result.numel():
        raise BenchError(
            f"{smaller}{called.op.name} gives {text(tuple(result.shape))} for {where}, which has "
            "no elements: there is nothing to time"
        )


def _resized(called: _Called, first: Shape) -> Mapping[str, Shape]:
    """The shapes of a call whose first input has another shape.

    A dim of another size is that of a symbol, or one of the batch dims; where the inputs have that
    symbol as a dim again, or those batch dims, they change alike.
    """
    own = called.own
    main = called.given[0]
    before = own.shapes[main.name]
    if first == before:
        return own.shapes
    sizes = {
        key: size
        for key, size, old in zip(_keys(main, len(before)), first, before, strict=True)
        if size != old and key is not None
    }
    found: dict[str, Shape] = {}
    for tensor in called.given:
        shape = own.shapes[tensor.name]
        keys = _keys(tensor, len(shape))
        found[tensor.name] = tuple(
            size if key is None else sizes.get(key, size)
            for key, size in zip(keys, shape, strict=True)
        )
    # A dim such as `2*C` is no symbol: it changes in the first input alone.
    return {**found, main.name: tuple(map(_other, first, found[main.name], before))}


def _other(asked: int, found: int, before: int) -> int:
    """The size of a dim of the first input: as it was asked for, else as its symbol has it."""
    return asked if asked != before else found


def _keys(tensor: Declared, rank: int) -> list[str | int | None]:
    """What each axis is: the position of a batch dim, a symbol, or None for any other extent."""
    batch = rank - len(tensor.dims) + 1 if tensor.batched else 0
    dims = tensor.dims[tensor.batched :]
    return [*range(batch), *(dim.extent.symbol for dim in dims)]


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
    return lambda *tensors: called(*tensors, **own.attributes)


def _workload(
    called: _Called,
    shapes: Mapping[str, Shape],
    contenders: Sequence[Contender],
    device: torch.device,
) -> Workload:
    """The op with drawn inputs; DisagreementError where a contender computes something else."""
    inputs = tuple(_drawn(called.own, shapes[t.name], device) for t in called.given)
    free = [tensor.dtype.is_generic for tensor in called.given]
    wide = [x.double() if is_free else x for is_free, x in zip(free, inputs, strict=True)]
    # How many terms a cell sums is not known here: at most so many as there are inputs. In double
    # precision that is a strict bound all the same.
    terms = max(x.numel() for x in inputs)
    with torch.no_grad():
        expected = called.function(*wide)
        points = max(1, expected.numel()) * terms
        for contender in contenders:
            agreement.check(contender.name, [contender.function(*wide)], [expected], points)
    return Workload(
        inputs,
        called.function,
        tuple(contenders),
        points=points,
        differentiable=called.differentiable,
        compiled=contenders[0].function if contenders else None,
    )


def _drawn(own: Own, shape: Shape, device: torch.device) -> Tensor:
    x = torch.randn(shape, device=device).to(own.dtype)
    if own.channels_last and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x
