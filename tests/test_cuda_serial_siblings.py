"""Sums of columns that one CUDA kernel computes together: which are, that they are right."""

from __future__ import annotations

import functools
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen import compiler, on_demand
from opgen.algebra.poly import poly
from opgen.emit.cuda import cuda_source
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Program
from opgen.lang.read import read
from opgen.passes import cuda_serial_siblings as serial
from opgen.passes import cuda_siblings
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.derive import differentiable
from opgen.passes.differentiate import joint_adjoint
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.runtime import Operation, cuda_grid, prelude
from opgen.testing import nvrtc
from opgen.testing.cuda_on_cpu import KernelError
from opgen.testing.cuda_on_cpu.emulated import Emulation, emulated
from opgen.testing.cuda_on_cpu.launch import Order
from opgen.testing.cuda_on_cpu.traffic import movement


def threads(text: str) -> Program:
    """The kernels of the only op of a spec, with siblings."""
    (op,) = read(Source(text))
    return cuda_siblings.with_siblings(cuda_rows(schedule(op, gather(op)), facts_of(op)))


def together(program: Program) -> list[set[str]]:
    return [set(kernel.all_written) for kernel in program.kernels if kernel.also]


# ---------------------------------------------------------------------------- which
HEAD = "op f(x[N,M], g[N,M], a[N,N]) -> y[M], z[M]\n  y[m] = sum(n) x[n,m] * g[n,m]\n"


@pytest.mark.parametrize(
    ("other", "is_one"),
    [
        ("z[m] = sum(n) g[n,m]", True),
        ("z[m] = sum(n) (g[n,m] + x[n,m]**2)", True),
        ("z[m] = sum(n) x[n,m] * a[n,n]", True),
        ("z[m] = max(n) g[n,m]", False),  # no sum
        ("z[m] = sum(n in N if n < M) g[n,m]", False),  # another loop
        ("z[m] = sum(n) g[n,m] * y[m]", False),  # it needs the first
        ("z[m] = sum(n) a[n,n]", False),  # nothing that both read
        ("z[m] = 2 * sum(n) g[n,m]", True),  # what is done to every term
    ],
)
def test_sums_in_the_same_loops_are_one(other: str, is_one: bool) -> None:
    found = together(threads(f"{HEAD}  {other}\n"))
    assert found == ([{"y", "z"}] if is_one else [])


def test_three_sums() -> None:
    text = "op f(x[N,M], g[N,M]) -> y[M], z[M], w[M]\n"
    text += "  y[m] = sum(n) x[n,m] * g[n,m]\n  z[m] = sum(n) g[n,m]\n  w[m] = sum(n) x[n,m]\n"
    assert together(threads(text)) == [{"y", "z", "w"}]


def norm() -> Program:
    """All gradients of a layer norm."""
    ops = compiler.check_source(compiler.read_source(SPECS / "norm.op"))
    (op,) = (op for op in ops if op.name == "layer_norm")
    joint = joint_adjoint(op, [tensor.name for tensor in differentiable(op)]).op
    return cuda_siblings.with_siblings(cuda_rows(schedule(joint, gather(joint)), facts_of(joint)))


def test_a_layer_norm() -> None:
    assert together(norm()) == [{"grad_weight", "grad_bias"}]


def test_other_rows_are_other_cells() -> None:
    (op,) = read(Source(f"{HEAD}  z[m] = sum(n) g[n,m]\n"))
    program = cuda_rows(schedule(op, gather(op)), facts_of(op))
    one, two = program.kernels
    assert serial.together(one, two, program.integers) is not None
    assert two.row is not None
    longer = replace(two.row, axis=replace(two.row.axis, extent=poly(7)))
    assert serial.together(one, replace(two, row=longer), program.integers) is None


# ---------------------------------------------------------------------------- what they give
COLUMNS = """
op columns(x[B,N,K,M], g[B,N,K,M]) -> y[K,M], z[K,M]
  y[k,m] = sum(b,n) x[b,n,k,m] * g[b,n,k,m]
  z[k,m] = sum(b,n) g[b,n,k,m]
"""


@functools.cache
def columns() -> Operation:
    """Made without what is kept on disk."""
    (op,) = read(Source(COLUMNS))
    return on_demand.operation(op)


def integers(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small ones: sums of products of them are exact, in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("shape", [(3, 5, 2, 16), (2, 40, 1, 7), (0, 3, 1, 4), (2, 3, 2, 0)])
def test_columns(shape: tuple[int, ...]) -> None:
    """However turns of the loop are shared out."""
    x, g = (integers(*shape, seed=seed) for seed in (0, 1))
    ways: list[tuple[int, Order]] = [(64, "forward"), (1, "reverse")]
    for fewest, order in ways:
        with mock.patch.object(cuda_grid, "_FEWEST_TERMS", fewest), emulated(order) as launches:
            y, z = columns().call(x, g)
        assert torch.equal(y, (x * g).sum((0, 1)))
        assert torch.equal(z, g.sum((0, 1)))
        assert launches.kernels <= {"columns_y_and_z"}


def gradients(dtype: torch.dtype, trace: bool = False) -> tuple[Emulation, list[torch.Tensor]]:
    """Those of a layer norm in the emulator, each with PyTorch's behind it."""
    x, w, b = (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        for seed, shape in enumerate(((40, 64), (64,), (64,)))
    )
    leaves = [each.clone().requires_grad_() for each in (x, w, b)]
    wanted = [each.double().requires_grad_() for each in (x, w, b)]
    flowing = integers(40, 64, seed=3, dtype=dtype)
    with emulated(trace=trace) as launches:
        y = opgen.load(SPECS / "norm.op").layer_norm(*leaves)
        launches.reports.clear()
        got = torch.autograd.grad(y, leaves, flowing)
    result = F.layer_norm(wanted[0], (64,), *wanted[1:])
    exact = torch.autograd.grad(result, wanted, flowing.double())
    return launches, [each for pair in zip(got, exact, strict=True) for each in pair]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 4e-2)], ids=str
)
def test_a_layer_norm_is_right(dtype: torch.dtype, tolerance: float) -> None:
    launches, found = gradients(dtype)
    assert any("grad_weight_and_grad_bias" in name for name in launches.kernels)
    for got, wanted in zip(found[::2], found[1::2], strict=True):
        scale = wanted.abs().max()
        close = {"atol": tolerance, "rtol": 0.0}
        torch.testing.assert_close(got.double() / scale, wanted / scale, **close)


def test_what_is_shared_moves_once() -> None:
    """Two images are read, where kernels for each read three."""
    x, g = (integers(4, 64, 1, 64, seed=seed) for seed in (0, 1))
    with emulated(trace=True) as launches:
        columns().call(x, g)
    moved = sum(movement(report).second_cache for report in launches.reports)
    assert moved <= 1.15 * 2 * x.nbytes
    (op,) = read(Source(COLUMNS))
    with mock.patch.object(cuda_siblings, "together", return_value=None):
        apart = on_demand.operation(op)
    with emulated(trace=True) as launches:
        apart.call(x, g)
    assert sum(movement(report).second_cache for report in launches.reports) > 1.3 * moved


def test_a_sum_that_nobody_stores_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the last stage of one of two sums is left out."""
    joined = serial._merged
    (op,) = read(Source(COLUMNS))
    x = torch.ones(1, 3, 1, 8)

    def broken(one: tuple[object, ...], two: tuple[object, ...]) -> object:
        return one if "Store" in repr(one) else joined(one, two)  # type: ignore[arg-type]

    monkeypatch.setattr(serial, "_merged", broken)
    with emulated(), pytest.raises(KernelError, match="8 of 8 elements of z are written by no"):
        on_demand.operation(op).call(x, x)


# ---------------------------------------------------------------------------- machine code
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("shared", "lanes"), [("f32", 4), ("bf16", 8), ("f64", 2)])
def test_registers(shared: str, lanes: int, architecture: str) -> None:
    program = norm()
    (kernel,) = (each for each in program.kernels if each.also)
    macros = f"#define lanes_of_{kernel.name} {lanes}\n"
    real = "f64" if shared == "f64" else "f32"
    text = prelude.cuda(True) + prelude.bindings(shared, real, {}) + macros
    found = nvrtc.compile_cuda(text + cuda_source(program), architecture)
    (use,) = (each for each in found.kernels if each.name == kernel.name)
    assert not use.spills
    assert use.registers <= 128
