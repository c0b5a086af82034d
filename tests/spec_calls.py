"""Calls of catalogue ops through the interpreter, with batch dims handled as the runtime does."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np

from catalogue import Case, Entry
from opgen.errors import Source
from opgen.ir.binding import Array
from opgen.ir.notation import Op
from opgen.lang.check import check
from opgen.lang.parse import parse
from opgen.passes.differentiate import Derivative, adjoint, tangent
from opgen.testing.interpret import interpret as run
from opgen.testing.sizes import flattened, solve_sizes

__all__ = [
    "checked",
    "close",
    "complete",
    "directional",
    "gradient",
    "leading",
    "ops_of",
    "run",
    "sizes_of",
]


def checked(entry: Entry) -> Op:
    """The op of an entry."""
    return next(op for op in ops_of(entry.spec_path) if op.name == entry.op)


@cache
def ops_of(path: Path) -> tuple[Op, ...]:
    """The ops of a spec file."""
    source = Source(path.read_text(encoding="utf-8"), path.name)
    return check(parse(source), source)


@cache
def gradient(op: Op, name: str) -> Derivative:
    """The derived gradient of one input."""
    return adjoint(op, name)


@cache
def directional(op: Op, names: tuple[str, ...]) -> Derivative:
    """The derived tangent along some inputs."""
    return tangent(op, names)


def sizes_of(op: Op, case: Case) -> dict[str, int]:
    """Every size of a call of a catalogue case."""
    shapes = {name: flattened(op, name, shape) for name, shape in case.shapes.items()}
    return solve_sizes(op, shapes, case.attributes)


def leading(op: Op, case: Case) -> tuple[int, ...]:
    """The batch dims of a case, before they are flattened."""
    for tensor in op.inputs:
        if tensor.batched and tensor.name in case.shapes:
            shape = case.shapes[tensor.name]
            return shape[: len(shape) - len(tensor.dims) + 1]
    return ()


def complete(entry: Entry, op: Op, case: Case, inputs: dict[str, Array]) -> dict[str, Array]:
    """The inputs with absent optional ones filled in, as a derived op needs them."""
    sizes = sizes_of(op, case)
    exact = any(array.dtype == object for array in inputs.values())
    missing = {
        tensor.name: np.full(
            tuple(dim.extent.evaluate(sizes) for dim in tensor.dims),
            Fraction(tensor.default or 0) if exact else tensor.default,
        )
        for tensor in op.inputs
        if tensor.name not in inputs
    }
    return inputs | missing


def close(got: Array, wanted: Array, scale: Array, unit: float = 1e-12) -> None:
    """Assert agreement to `unit` times the magnitude of the result."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    if math.prod(got.shape) == 0:
        return
    same = np.isnan(got) & np.isnan(wanted) | (got == wanted)
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(got.astype(float) - wanted.astype(float)))
    worst = np.unravel_index(np.argmax(error - unit * scale), got.shape)
    assert (error <= unit * scale).all(), (worst, got[worst], wanted[worst], scale[worst])
