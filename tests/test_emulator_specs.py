"""Every CUDA kernel of every spec, forward and all gradients of two orders, checked while it runs.

An op runs its kernels in the emulator the way it would on a GPU, on a few shapes and layouts; there
is no finding, and every cell of its outputs is what the interpreter says, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch

from catalogue import CATALOGUE, SPECS
from opgen import compiler
from opgen.emit.names import function_name
from opgen.errors import Source
from opgen.ir.family import Member
from opgen.ir.notation import Op
from opgen.lang.read import read
from opgen.passes.derive import derive
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.runtime import cuda_grid
from opgen.testing.calls import Call, arrays
from opgen.testing.cases import Case, cases
from opgen.testing.compare import Mismatch, compare
from opgen.testing.cuda_on_cpu import KernelError, Module
from opgen.testing.cuda_on_cpu import emulated as emulation
from opgen.testing.cuda_on_cpu.emulated import emulated
from opgen.testing.cuda_on_cpu.launch import Order
from opgen.testing.interpret import interpret
from opgen.testing.magnitude import widened

ORDERS = 2
SUBJECTS = [(entry.spec, entry.op) for entry in CATALOGUE]


@cache
def members(spec: str) -> tuple[Member, ...]:
    """The ops of a spec and their gradients."""
    text = (SPECS / f"{spec}.op").read_text(encoding="utf-8")
    return derive(read(Source(text, f"{spec}.op")), ORDERS)


def kernels_of(op: Op) -> set[str]:
    """The names of the kernels of an op."""
    return {function_name(kernel.name) for kernel in schedule(op, gather(op)).kernels}


# ---------------------------------------------------------------------------- calls
@dataclass(frozen=True)
class Setting:
    """How one of the calls of an op is made. `place` in its valid calls, smallest first."""

    place: float
    dtype: str
    layout: str
    order: Order
    threads: int = cuda_grid.THREADS
    most_blocks: tuple[int, int, int] = cuda_grid.MOST_BLOCKS


SETTINGS = (
    Setting(1, "float32", "contiguous", "forward"),
    Setting(0.8, "float32", "channels_last", "random", threads=32),
    # A narrow type has kernels of its own, which round the sums of scattered terms.
    Setting(0.5, "bfloat16", "sliced", "reverse", 4, (3, 2, 2)),
)


def chosen(op: Op, place: float) -> Case:
    """One of the calls in which no tensor is empty; the last is the largest that is done soon."""
    full = [
        case
        for case in cases(op)
        if all(min(case.shape(op, t), default=1) > 0 for t in (*op.inputs, *op.outputs))
    ]
    return full[round(place * (len(full) - 1))]


def check(op: Op, call: Call) -> None:
    """Raise Mismatch unless a call gives what the interpreter says."""
    inputs, case = call.inputs(op), call.case
    tensors = [inputs.get(tensor.name) for tensor in op.inputs]
    attributes = [case.attributes[each.name] for each in op.attributes]
    result = compiled(op).call(*tensors, *attributes)
    given = arrays(inputs)
    for tensor in op.inputs:
        if tensor.name not in given:
            kind = np.int64 if tensor.dtype.is_integer else np.float64
            given[tensor.name] = np.full(case.shape(op, tensor), tensor.default, kind)
    symbols, wide = case.symbols(op), widened(op)
    wanted = interpret(wide, symbols, given, case.attributes, case.batch)
    scale = interpret(wide, symbols, given, case.attributes, case.batch, measure=True)
    types = {value.dtype for value in inputs.values()}
    computed = torch.float64 if torch.float64 in types else torch.float32
    got = result if isinstance(result, tuple) else (result,)
    for tensor, value in zip(op.outputs, got, strict=True):
        compare(tensor.name, value, wanted[tensor.name], scale[tensor.name], computed)


compiled = cache(compiler.operation)


def run(op: Op, setting: Setting, seed: int = 0) -> set[str]:
    """One call in the emulator; the names of the kernels that ran."""
    layouts = (setting.layout,) * len(op.inputs)
    call = Call(chosen(op, setting.place), setting.dtype, layouts, seed)
    with emulated(
        setting.order, threads=setting.threads, most_blocks=setting.most_blocks
    ) as launches:
        check(op, call)
    return launches.kernels


# ---------------------------------------------------------------------------- every spec
@pytest.mark.slow
@pytest.mark.parametrize(("spec", "name"), SUBJECTS)
def test_every_kernel(spec: str, name: str) -> None:
    own = [member.op for member in members(spec) if member.path[0] == name]
    assert own
    for op in own:
        ran = set[str]()
        for seed, setting in enumerate(SETTINGS):
            ran |= run(op, setting, seed)
        assert ran == kernels_of(op)


@pytest.mark.parametrize(
    ("spec", "name"),
    [("shift_sum", "shift_sum"), ("embedding", "embedding"), ("norm", "layer_norm")],
)
def test_some_kernels(spec: str, name: str) -> None:
    op = next(member.op for member in members(spec) if member.path == (name,))
    for setting in SETTINGS:
        run(op, setting)


def test_threads_that_find_bad_indices_at_the_same_time() -> None:
    """One of them is reported, with its own index; there is no race about it."""
    (op,) = read(Source("op f(x[N], id: int[K]) -> y[K]\n  y[k] = x[id[k]]"))
    index = torch.tensor([7, 8, 9, 1, 10])
    for order in ("forward", "reverse", "random"):
        with emulated(order), pytest.raises(IndexError, match=r"index (7|8|9|10)\b"):
            compiled(op).call(torch.ones(4), index)


# ---------------------------------------------------------------------------- the harness
TEXT = """
op f(x[A,B], w[B]) -> y[A]
  y[a] = sum(b) x[a,b] * w[b]
"""


def with_a_bug(monkeypatch: pytest.MonkeyPatch, macro: str, meaning: str) -> None:
    """From here on a macro of the kernels means something else."""

    def planted(code: str, **rest: object) -> Module:
        start = code.index('extern "C"')
        name = macro.split("(")[0]
        bug = f"#undef {name}\n#define {macro} {meaning}\n"
        return Module(code[:start] + bug + code[start:], **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(emulation, "Module", planted)


def small_op() -> Op:
    (op,) = read(Source(TEXT))
    return op


def test_the_small_op_is_right() -> None:
    for setting in SETTINGS:
        assert run(small_op(), setting) == {"f_y"}


def test_a_wrong_number_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_bug(monkeypatch, "from_T(cell)", "(from_f32(cell) + 0.001f)")
    with pytest.raises(Mismatch):
        run(small_op(), SETTINGS[0])


@pytest.mark.parametrize(
    ("macro", "meaning", "said"),
    [
        ("from_T(cell)", "from_f32((&(cell))[1000000])", "out-of-bounds access"),
        ("to_T(value)", "(y[0] = 1, to_f32(value))", "race in global memory"),
        ("to_T(value)", "to_f32(y[1] + (value))", "uninitialised read"),
        ("to_T(value)", "to_f32(((T *)x)[0] = (value))", "write to const"),
    ],
)
def test_a_finding_is_an_error(
    monkeypatch: pytest.MonkeyPatch, macro: str, meaning: str, said: str
) -> None:
    with_a_bug(monkeypatch, macro, meaning)
    with pytest.raises(KernelError, match=said):
        run(small_op(), SETTINGS[0])


def test_an_output_that_is_not_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation._Function, "__call__", lambda *rest, **more: None)
    with pytest.raises(KernelError, match=r"f: (\d+) of \1 elements of y are written by no kernel"):
        run(small_op(), SETTINGS[0])
