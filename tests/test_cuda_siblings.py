"""Gradients that one CUDA kernel computes together: which are, that they are right, what moves."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import ModuleType
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen import compiler, on_demand
from opgen.algebra.condition import Condition
from opgen.algebra.poly import symbol
from opgen.emit.cuda import cuda_source
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import If, Kernel, Node, Program
from opgen.lang.read import read
from opgen.passes import cuda_siblings
from opgen.passes.cuda_product import with_contractions
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.derive import differentiable
from opgen.passes.differentiate import joint_adjoint
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.passes.specialise import attributes_of, default_values, specialise
from opgen.passes.unclamp import unclamped
from opgen.runtime import Operation, cuda, cuda_grid, lookup_autograd, prelude
from opgen.runtime.family import Family
from opgen.testing import nvrtc, sass
from opgen.testing.cuda_on_cpu import KernelError
from opgen.testing.cuda_on_cpu.emulated import Emulation, emulated
from opgen.testing.cuda_on_cpu.launch import Order
from opgen.testing.cuda_on_cpu.traffic import movement
from seed_kernels import WORKLOADS, launched

DEPTHWISE = {"K": 3, "L": 3, "padding[0]": 1, "padding[1]": 1, "Ci": 1, "Co": 1}
TRANSPOSED = {"K": 2, "L": 2, "stride[0]": 2, "stride[1]": 2, "Ci": 1, "Co": 1}
module = functools.cache(lambda stem: opgen.load(SPECS / f"{stem}.op"))


# ---------------------------------------------------------------------------- which
def threads(stem: str, name: str, values: dict[str, int]) -> Program:
    """The kernels of all gradients of an op in one, for these values."""
    ops = {op.name: op for op in compiler.check_source(compiler.read_source(SPECS / f"{stem}.op"))}
    op = joint_adjoint(ops[name], [tensor.name for tensor in differentiable(ops[name])]).op
    known = {*op.sizes, *attributes_of(op)}
    values = {**(default_values(op) or {}), **values}
    special = unclamped(specialise(op, {n: v for n, v in values.items() if n in known}))
    program = schedule(special, gather(special))
    found = with_contractions(cuda_rows(program, facts_of(special)), program, special)
    return cuda_siblings.with_siblings(found)


def together(program: Program) -> set[frozenset[str]]:
    return {frozenset(kernel.all_written) for kernel in program.kernels if kernel.also}


@pytest.mark.parametrize(
    ("stem", "name", "values", "expected"),
    [
        ("conv", "conv2d", DEPTHWISE, {"grad_x", "grad_weight", "grad_bias"}),
        # Every other pixel of the image has no pixel of the result: these are other cells.
        (
            "conv",
            "conv2d",
            {**DEPTHWISE, "stride[0]": 2, "stride[1]": 2},
            {"grad_weight", "grad_bias"},
        ),
        # Two windows of 5 by 5, and 25 sums, are more than registers hold.
        (
            "conv",
            "conv2d",
            {**DEPTHWISE, "K": 5, "L": 5, "padding[0]": 2, "padding[1]": 2},
            {"grad_weight", "grad_bias"},
        ),
        ("conv_transpose", "conv_transpose2d", TRANSPOSED, {"grad_x", "grad_weight"}),
    ],
)
def test_kernels_over_the_same_points_are_one(
    stem: str, name: str, values: dict[str, int], expected: set[str]
) -> None:
    assert together(threads(stem, name, values)) == {frozenset(expected)}


def test_products_of_matrices_stay_alone() -> None:
    values = {name: value for name, value in DEPTHWISE.items() if name not in ("Ci", "Co")}
    assert together(threads("conv", "conv2d", values)) == set()


def test_little_is_not_worth_it() -> None:
    """What `shift_sum_masked` reads twice is as small as one of many channels."""
    assert together(threads("shift_sum", "shift_sum_masked", {"step": 2})) == set()


@pytest.mark.parametrize(
    ("text", "written"),
    [
        # The second sum reads what the first gives.
        (
            "op f(x[N,M], g[N,M]) -> y[N], z[N]\n"
            "  y[n] = sum(m) x[n,m]\n"
            "  z[n] = sum(m) x[n,m] * y[n]",
            set(),
        ),
        ("op f(x[N,M]) -> y[N], z[N]\n  y[n] = sum(m) x[n,m]\n  z[n] = sum(m) x[n,m] ** 2", "yz"),
        # Other cells, of the same number.
        ("op f(x[N,N]) -> y[N], z[N]\n  y[n] = sum(m) x[n,m]\n  z[m] = sum(n) x[n,m] ** 2", set()),
        # Parts of integers and of other numbers do not fit into one array.
        (
            "op f(x[N,M], k: i64[N,M]) -> y[N], z: i64[N]\n"
            "  y[n] = sum(m) x[n,m] * k[n,m]\n"
            "  z[n] = sum(m) k[n,m]",
            set(),
        ),
        # Nothing that both read.
        (
            "op f(x[N,M], g[N,M]) -> y[N], z[N]\n  y[n] = sum(m) x[n,m]\n  z[n] = sum(m) g[n,m]",
            set(),
        ),
    ],
)
def test_sums_of_one_op(text: str, written: set[str] | str) -> None:
    (op,) = read(Source(text))
    program = cuda_rows(schedule(op, gather(op)), facts_of(op))
    found = together(cuda_siblings.with_siblings(program))
    assert found == ({frozenset(written)} if written else set())


# ---------------------------------------------------------------------------- what they give
def integers(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Small integers: sums of products of them are exact, in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def gradients(
    own: Callable[..., Tensor], usual: Callable[..., Tensor], *tensors: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Emulation]:
    """The gradients in the emulator and its launches; between them those of PyTorch in float64."""
    wanted = [tensor.double().requires_grad_() for tensor in tensors]
    result = usual(*wanted)
    cotangent = integers(*result.shape, seed=9, dtype=tensors[0].dtype)
    expected = torch.autograd.grad(result, wanted, cotangent.double())
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    with emulated():
        y = own(*leaves)
    with emulated(trace=True) as launches:
        got = torch.autograd.grad(y, leaves, cotangent)
    return got, expected, launches


def depthwise(given: ModuleType | None, padding: int = 1) -> Callable[..., Tensor]:
    function = F.conv2d if given is None else given.conv2d
    return lambda x, w, *bias: function(x, w, *bias, padding=padding, groups=x.shape[1])


def transposed(given: ModuleType | None) -> Callable[..., Tensor]:
    function = F.conv_transpose2d if given is None else given.conv_transpose2d
    return lambda x, w, *bias: function(x, w, *bias, stride=2, groups=x.shape[1])


def check(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """Sums are exact where they are computed, and rounded once where they are stored."""
    for mine, other in zip(got, expected, strict=True):
        assert torch.equal(mine, other.to(dtype))


SHAPES = [
    (2, 3, 7, 12),
    pytest.param((1, 2, 1, 5), marks=pytest.mark.slow),
    pytest.param((3, 1, 6, 16), marks=pytest.mark.slow),
    pytest.param((2, 2, 9, 33), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_depthwise_convolution(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    channels = shape[1]
    tensors = (
        integers(*shape, seed=0, dtype=dtype),
        integers(channels, 1, 3, 3, seed=1, dtype=dtype),
        integers(channels, seed=2, dtype=dtype),
    )
    with mock.patch.object(cuda_grid, "_FEWEST_ROUNDS", 1):
        found = gradients(depthwise(module("conv")), depthwise(None), *tensors)
    got, expected, launches = found
    check(got, expected, dtype)
    (name,) = launches.kernels
    assert "grad_x" in name and "grad_weight" in name and "grad_bias" in name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transposed_convolution(dtype: torch.dtype) -> None:
    tensors = (
        integers(2, 3, 5, 12, seed=0, dtype=dtype),
        integers(3, 1, 2, 2, seed=1, dtype=dtype),
        integers(3, seed=2, dtype=dtype),
    )
    own = transposed(module("conv_transpose"))
    got, expected, launches = gradients(own, transposed(None), *tensors)
    check(got, expected, dtype)
    assert len(launches.kernels) == 2  # sums for the bias go over the pixels of the result


@pytest.mark.slow
def test_inputs_that_want_none() -> None:
    """The gradient of a filter alone is that of its own op; of two inputs one kernel's."""
    x, w, b = (
        integers(2, 3, 6, 8, seed=0, dtype=torch.float32),
        integers(3, 1, 3, 3, seed=1, dtype=torch.float32),
        integers(3, seed=2, dtype=torch.float32),
    )
    own, usual = depthwise(module("conv")), depthwise(None)
    for tensors in ((x, w), (x, w, b)):
        got, expected, launches = gradients(own, usual, *tensors)
        check(got, expected, torch.float32)
        assert len(launches.kernels) == 1
    w.requires_grad_()
    with emulated() as launches:
        y = own(x, w)
        (got,) = torch.autograd.grad(y, w, torch.ones_like(y))
    assert torch.equal(got, torch.autograd.grad(usual(x, w).sum(), w)[0])
    assert "conv2d_grad_weight_grad_weight" in launches.kernels


@pytest.mark.slow
def test_gradients_of_gradients_have_ops_of_their_own() -> None:
    x = integers(1, 2, 5, 8, seed=0, dtype=torch.float64).requires_grad_()
    w = integers(2, 1, 3, 3, seed=1, dtype=torch.float64).requires_grad_()
    found = []
    for function in (depthwise(module("conv")), depthwise(None)):
        with emulated():
            y = function(x, w)
            first = torch.autograd.grad(y.square().sum(), (x, w), create_graph=True)
            found.append(torch.autograd.grad(sum(each.sum() for each in first), (x, w)))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.slow
def test_a_cpu_has_kernels_of_its_own() -> None:
    """Where no GPU computes, nothing is asked for siblings."""
    operation = module("conv").FAMILY.operations["conv2d"]
    x = integers(1, 2, 4, 8, seed=0, dtype=torch.float32).requires_grad_()
    w = integers(2, 1, 3, 3, seed=1, dtype=torch.float32).requires_grad_()
    with mock.patch.object(type(operation.family), "siblings", side_effect=AssertionError):
        y = depthwise(module("conv"))(x, w)
        torch.autograd.grad(y.sum(), (x, w))


SEVERAL = """
op several(x[C,N,W], g[C,N,W]) -> y[C], z[C], d[C,N,W]
  y[c] = sum(n,w) x[c,n,w] * g[c,n,w]
  z[c] = sum(n,w) g[c,n,w]
  d[c,n,w] = 2 * g[c,n,w]
"""


@functools.cache
def several() -> Operation:
    """An op of several outputs, made without what is kept on disk."""
    (op,) = read(Source(SEVERAL))
    return on_demand.operation(op)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 17), (2, 8, 64), (70, 3, 9), (2, 0, 3), (3, 2, 0), (0, 3, 4)]
)
def test_several_outputs_of_one_kernel(shape: tuple[int, ...]) -> None:
    """However points are shared out: sums of each, and every cell once."""
    x, g = (integers(*shape, seed=seed, dtype=torch.float32) for seed in (0, 1))
    ways: list[tuple[int, Order]] = [(1, "forward"), (64, "reverse")]
    for threads_, order in ways:
        few = mock.patch.object(cuda_grid, "_FEWEST_ROUNDS", 1)
        with few, emulated(order, threads=threads_, most_blocks=(2, 3, 1)) as launches:
            y, z, d = several().call(x, g)
        assert torch.equal(y, (x * g).sum((1, 2)))
        assert torch.equal(z, g.sum((1, 2)))
        assert torch.equal(d, 2 * g)
        assert len(launches.kernels) <= 1


@pytest.mark.slow
def test_the_plan_of_plain_calls() -> None:
    """On a GPU one step for all three gradients, on a CPU one for each."""
    operation = module("conv").FAMILY.operations["conv2d"]
    shapes = [torch.Size(shape) for shape in ((1, 3, 6, 8), (3, 1, 3, 3), (3,))]
    numbers = (1, 1, 1, 1, 1, 1, 3)
    wanted = (True, True, True)
    for on_gpu, expected in ((shapes[0], [(0, 1, 2)]), (None, [(), (), ()])):
        steps = lookup_autograd.plan(
            operation, wanted, shapes, numbers, is_last=True, on_gpu=on_gpu
        )
        assert [step.together for step in steps] == expected


def test_a_cell_that_nobody_stores_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a pass that leaves out the first cell of every row."""
    cell = cuda_siblings._cell

    def broken(kernel: Kernel) -> tuple[Node, ...] | None:
        found = cell(kernel)
        assert kernel.row is not None
        return found and (If((Condition(symbol(kernel.row.axis.name) - 1),), found),)

    monkeypatch.setattr(cuda_siblings, "_cell", broken)
    (op,) = read(Source(SEVERAL))
    ones = torch.ones(2, 3, 8)
    with emulated(), pytest.raises(KernelError, match="6 of 48 elements of d are written by no"):
        on_demand.operation(op).call(ones, ones)


# ---------------------------------------------------------------------------- what is moved
def second_cache(launches: Emulation) -> int:
    """Bytes that reach the second cache in all launches."""
    return sum(movement(report).second_cache for report in launches.reports)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_shared_moves_once(dtype: torch.dtype) -> None:
    """Images are read twice and written once, where kernels for each read four and write one."""
    x, w, b = (
        integers(1, 8, 32, 128, seed=0, dtype=dtype),
        integers(8, 1, 3, 3, seed=1, dtype=dtype),
        integers(8, seed=2, dtype=dtype),
    )
    own = depthwise(module("conv"))
    got, expected, launches = gradients(own, depthwise(None), x, w, b)
    check(got, expected, dtype)
    together_ = second_cache(launches)
    assert together_ <= 1.35 * 3 * x.nbytes
    with mock.patch.object(Family, "siblings", return_value=None):
        got, expected, launches = gradients(own, depthwise(None), x, w, b)
    check(got, expected, dtype)
    assert len(launches.kernels) == 3
    assert second_cache(launches) > 1.5 * together_


@pytest.mark.slow
def test_what_a_transposed_convolution_shares_moves_once() -> None:
    """Its image is read and its gradient written once, four times as many pixels are read twice."""
    x, w, b = (
        integers(1, 8, 16, 128, seed=0, dtype=torch.float32),
        integers(8, 1, 2, 2, seed=1, dtype=torch.float32),
        integers(8, seed=2, dtype=torch.float32),
    )
    own, usual = transposed(module("conv_transpose")), transposed(None)
    got, expected, launches = gradients(own, usual, x, w, b)
    check(got, expected, torch.float32)
    assert second_cache(launches) <= 1.15 * (1 + 1 + 4 + 4) * x.nbytes


# ---------------------------------------------------------------------------- machine code
CODE = [
    pytest.param("conv", "conv2d", DEPTHWISE, "f32", 4, id="depthwise f32"),
    pytest.param("conv", "conv2d", DEPTHWISE, "bf16", 8, id="depthwise bf16"),
    pytest.param("conv_transpose", "conv_transpose2d", TRANSPOSED, "f32", 2, id="transposed f32"),
    pytest.param("conv_transpose", "conv_transpose2d", TRANSPOSED, "bf16", 4, id="transposed bf16"),
    pytest.param("conv", "conv2d", DEPTHWISE, "f64", 2, id="depthwise f64"),
    pytest.param("conv_transpose", "conv_transpose2d", TRANSPOSED, "f64", 2, id="transposed f64"),
]


@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.float64, 1), (torch.float32, 2), (torch.bfloat16, 2)], ids=str
)
def test_rows_of_a_thread(dtype: torch.dtype, rows: int) -> None:
    """Numbers of 64 bits take two registers each."""
    with mock.patch.object(cuda, "computes", return_value=True):
        ((source, _), *_) = launched(WORKLOADS["depthwise"], dtype, backward=True)
    found = re.findall(r"^#define rows_of_\w+_and_\w+ (\d+)\n(?!#endif)", source, re.MULTILINE)
    assert found == [str(rows)]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("stem", "name", "values", "shared", "lanes"), CODE)
def test_registers(
    stem: str, name: str, values: dict[str, int], shared: str, lanes: int, architecture: str
) -> None:
    program = threads(stem, name, values)
    (kernel,) = (each for each in program.kernels if each.also)
    rows = cuda_grid.ROWS_OF_SIBLINGS // cuda_grid.registers(shared)
    macros = f"#define lanes_of_{kernel.name} {lanes}\n#define rows_of_{kernel.name} {rows}\n"
    real = "f64" if shared == "f64" else "f32"
    text = prelude.cuda(True) + prelude.bindings(shared, real, {}) + macros
    found = nvrtc.compile_cuda(text + cuda_source(program), architecture)
    (use,) = (each for each in found.kernels if each.name == kernel.name)
    assert not use.spills
    assert use.registers <= 128
    code = sass.disassemble(found.cubin)[kernel.name]
    assert not code.uses_local_memory
    assert max(code.widths("STG")) == lanes * {"f64": 8, "f32": 4, "bf16": 2}[shared]
