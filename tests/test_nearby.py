"""Blocks that copy what their windows reach mean what those that do not mean, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.ir.cells import to_array
from opgen.ir.context import facts_of
from opgen.ir.loops import Blocks, For, Kernel, Lanes, Load, Program, Store, walk
from opgen.ir.map_loops import map_loads
from opgen.ir.notation import Op
from opgen.ir.show_loops import show_program
from opgen.passes import nearby
from opgen.passes.blocks import with_blocks
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import gather
from opgen.passes.relayout import channels_last, relayout
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise
from opgen.testing.run_loops import run

CONV = {op.name: op for op in check_source(read_source(SPECS / "conv.op"))}
LAYOUTS = {"result": 9, "x": 6}


def programs(which: str, values: dict[str, int]) -> tuple[Program, Program]:
    """The program of cells for images in channels-last format, and the one with blocks."""
    public = CONV["conv2d"]
    op: Op = public if which == "result" else adjoint(public, which).op
    special = specialise(relayout(op, channels_last(op, LAYOUTS[which])), values)
    plain = schedule(special, gather(special))
    return plain, with_blocks(plain, rows(plain, facts_of(special)))


def geometry(window: int, height: int, width: int, padding: int, stride: int = 1) -> dict[str, int]:
    names = {"stride": stride, "padding": padding, "dilation": 1}
    values = {f"{name}[{at}]": value for name, value in names.items() for at in (0, 1)}
    return values | {"Ci": 1, "Co": 1, "K": window, "L": window, "H": height, "W": width}


def copying(program: Program) -> Kernel | None:
    """The kernel with copies of its own."""
    return next((each for each in program.kernels if each.local), None)


GEOMETRIES = {
    "two parts": geometry(5, 8, 6, 2),
    "parts of unequal height": geometry(5, 11, 6, 2),
    "one part, since windows are high": geometry(7, 6, 5, 3),
    "mostly borders": geometry(5, 6, 5, 4),
    "a row in blocks": geometry(5, 8, 15, 2),
    "no padding": geometry(5, 13, 9, 0),
    "all cells in one body": geometry(5, 5, 5, 2),
}


def compared(
    which: str, values: dict[str, int], change: Callable[[Program], Program], groups: int = 17
) -> tuple[np.ndarray, np.ndarray]:
    """What cells give, and what blocks give after a change."""
    plain, blocks = programs(which, values)
    assert copying(blocks) is not None, show_program(blocks)
    known = {**dict.fromkeys(plain.integers, 1), **values, "groups": groups, "N": 2}
    for inner, outer in (("OH", "H"), ("OW", "W")):
        reach = values[outer] + 2 * values["padding[0]"] - values["K"]
        known[inner] = reach // values["stride[0]"] + 1
    inputs = {"result": ("x", "weight", "bias"), "x": ("grad_y", "weight")}[which]
    random = np.random.default_rng(0)
    tensors = {
        each.name: random.normal(size=[extent.evaluate(known) for extent in each.extents])
        for each in plain.operands
        if each.name in inputs
    }
    integers = {name: known[name] for name in plain.integers}
    written = blocks.kernels[-1].written
    found = [run(each, tensors, integers)[0][written] for each in (plain, change(blocks))]
    one, other = (to_array(each, np.dtype(np.float64)) for each in found)
    return one, other


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("which", LAYOUTS)
def test_copies_give_what_cells_give(which: str, name: str) -> None:
    wanted, found = compared(which, GEOMETRIES[name], lambda program: program)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_strided_windows_reach_further() -> None:
    wanted, found = compared("result", geometry(5, 15, 7, 2, 2), lambda program: program)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.slow  # calls of more channels are compiled
def test_a_row_of_several_stretches() -> None:
    """The last one takes what is left of a vector."""
    wanted, found = compared("result", GEOMETRIES["two parts"], lambda program: program, 139)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tensor", ["x", "weight"])
def test_a_copy_of_something_else_is_seen(tensor: str) -> None:
    def spoiled(program: Program) -> Program:
        kernel = copying(program)
        assert kernel is not None

        def change(load: Load) -> Load:
            if load.tensor != tensor:
                return load
            *others, column, lane = load.indices
            return Load(tensor, (*others, column * 0, lane))

        changed = replace(kernel, body=map_loads(kernel.body, change))
        kernels = (changed if each is kernel else each for each in program.kernels)
        return replace(program, kernels=tuple(kernels))

    wanted, found = compared("result", GEOMETRIES["two parts"], spoiled)
    assert not np.allclose(found, wanted)


def test_what_is_copied() -> None:
    """A half of an image's rows with those that windows reach over, and all taps of its filters."""
    _, program = programs("result", geometry(7, 20, 20, 3))
    kernel = copying(program)
    assert kernel is not None and isinstance(kernel.only, Blocks) and kernel.row is not None
    extents = {
        name: [extent.constant for extent in program.operand(name).extents] for name in kernel.local
    }
    assert extents == {"x_near": [16, 20, 80], "weight_near": [7, 7, 80]}
    assert kernel.row.width + kernel.row.least == 80
    stored = [n for n in walk(kernel.body) if isinstance(n, Store) and n.tensor in kernel.local]
    assert len(stored) == 2
    lanes = [node for node in walk(kernel.body) if isinstance(node, Lanes)]
    assert all(not each.lower and not each.upper for each in lanes)
    assert [node.name for node in kernel.body if isinstance(node, For)][-1] == "i"


NEAR_MISSES = {
    "few terms": geometry(3, 8, 8, 1),
    "images that are too wide": geometry(7, 60, 60, 3),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_have_no_copies(name: str) -> None:
    _, program = programs("result", NEAR_MISSES[name])
    assert any(isinstance(kernel.only, Blocks) for kernel in program.kernels)
    assert copying(program) is None


def module(name: str, type_: str = "") -> Callable[..., Tensor]:
    """A depthwise convolution of that name, which nothing else has compiled."""
    text = f"""op {name}(x{type_}[N,C,H,W], weight{type_}[C,K,L]; padding = 0) -> y[N,C,OH,OW]
  where padding >= 0
  let OH = H + 2*padding - K + 1, OW = W + 2*padding - L + 1
  y[n,c,i,j] = sum(k,l) x[n,c, i + k - padding ?0, j + l - padding ?0] * weight[c,k,l]
"""
    found: Callable[..., Tensor] = getattr(opgen.compile(text), name)
    return found


CALLS = [
    (torch.float32, 80, 16, 7),
    (torch.float32, 143, 13, 5),
    (torch.float64, 70, 9, 5),
    (torch.bfloat16, 200, 20, 7),
    (torch.float16, 129, 15, 5),
    (torch.float32, 17, 40, 5),
    (torch.float32, 16, 41, 7),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_compiled_copies_give_what_torch_gives(call: tuple[torch.dtype, int, int, int]) -> None:
    dtype, channels, size, window = call
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(3, channels, size, size, dtype=dtype).to(memory_format=torch.channels_last)
    given = [
        x.requires_grad_(),
        torch.randn(channels, 1, window, window, dtype=dtype).requires_grad_(),
    ]
    y = conv(*given, padding=window // 2, groups=channels)
    wide = [each.detach().double().requires_grad_() for each in given]
    z = F.conv2d(*wide, padding=window // 2, groups=channels)
    seed = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, given, seed))
    wanted = (z, *torch.autograd.grad(z, wide, seed.double()))
    for own, exact in zip(found, wanted, strict=True):
        bound = 64 * torch.finfo(dtype).eps * exact.abs().max()
        assert (own.double() - exact).abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_those_without_copies(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 150, 18, 17, dtype=dtype).to(memory_format=torch.channels_last)
    weight = torch.randn(150, 5, 5, dtype=dtype)
    tag = str(dtype).removeprefix("torch.")
    copies = module(f"with_copies_{tag}")(x, weight, padding=2)
    monkeypatch.setattr(nearby, "LEAST_TERMS", 10**6)
    alone = module(f"without_copies_{tag}")(x, weight, padding=2)
    assert torch.equal(copies, alone)


def test_bits_do_not_depend_on_threads_or_strides() -> None:
    conv = module("threads_and_strides")
    torch.manual_seed(0)
    x = torch.randn(5, 96, 21, 19).to(memory_format=torch.channels_last)
    weight = torch.randn(96, 7, 7)
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            results.append(conv(x, weight, padding=3))
    finally:
        torch.set_num_threads(threads)
    wider = torch.randn(5, 130, 23, 22).to(memory_format=torch.channels_last)
    view = wider[:, 7:103, 1:22, 2:21].copy_(x)
    results.append(conv(view, weight, padding=3))
    assert all(torch.equal(each, results[0]) for each in results)
    wanted = F.conv2d(x.double(), weight[:, None].double(), padding=3, groups=96)
    assert (results[0].double() - wanted).abs().max() <= 1e-4


@pytest.mark.parametrize(
    "flags", ["-march=x86-64", pytest.param("-march=x86-64-v3", marks=pytest.mark.slow)]
)
def test_other_processors(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CFLAGS", f"-O1 {flags}")
    conv = module(f"for_other_processors_{flags.count('v3')}")
    torch.manual_seed(0)
    x = torch.randn(2, 85, 20, 20).to(memory_format=torch.channels_last)
    weight = torch.randn(85, 5, 5)
    wanted = F.conv2d(x.double(), weight[:, None].double(), padding=2, groups=85)
    assert (conv(x, weight, padding=2).double() - wanted).abs().max() <= 1e-4


def test_zeros_of_padding_are_not_multiplied() -> None:
    conv = module("infinite_taps")
    x = torch.ones(2, 80, 16, 16).to(memory_format=torch.channels_last)
    weight = torch.ones(80, 5, 5)
    weight[:, 0, 0] = float("inf")
    y = conv(x, weight, padding=2)
    assert not y.isnan().any()
    assert y[:, :, :2].isfinite().all() and y[:, :, 2:, 2:].isinf().all()


def test_no_images() -> None:
    conv = module("no_images")
    x = torch.randn(0, 80, 20, 20).to(memory_format=torch.channels_last)
    assert conv(x, torch.randn(80, 5, 5), padding=2).shape == (0, 80, 20, 20)
