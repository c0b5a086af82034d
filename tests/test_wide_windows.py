"""Windows of many taps with planes for lanes mean what cells one by one mean."""

from __future__ import annotations

import os
import subprocess
import sys
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
from opgen.ir.loops import Blocks, Kernel, Load, Program
from opgen.ir.map_loops import map_loads
from opgen.ir.notation import Op
from opgen.ir.show_loops import show_program
from opgen.passes import wide_windows
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import gather
from opgen.passes.relayout import channels_last, of_images, relayout
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise
from opgen.passes.wide_windows import with_wide_windows
from opgen.runtime import description, library, special
from opgen.testing.run_loops import run

CONV = {op.name: op for op in check_source(read_source(SPECS / "conv.op"))}
LAYOUTS = {"result": 9, "x": 6, "weight": 3}


def programs(which: str, values: dict[str, int], layout: int) -> tuple[Program, Program]:
    """The program of cells, and the one with planes for lanes."""
    public = CONV["conv2d"]
    op: Op = public if which == "result" else adjoint(public, which).op
    special_ = specialise(relayout(op, of_images(channels_last(op, layout))), values)
    plain = schedule(special_, gather(special_))
    return plain, with_wide_windows(plain, rows(plain, facts_of(special_)))


Pair = tuple[int, int]


def geometry(window: Pair, size: Pair, padding: Pair, **more: int) -> dict[str, int]:
    values = {"Ci": 1, "Co": 1}
    names = {"stride": 1, "dilation": 1, **more}
    for at, (taps, extent, outer) in enumerate(zip("KL", "HW", ("OH", "OW"), strict=True)):
        values |= {f"{name}[{at}]": value for name, value in names.items()}
        values |= {f"padding[{at}]": padding[at], taps: window[at], extent: size[at]}
        reach = size[at] + 2 * padding[at] - names["dilation"] * (window[at] - 1) - 1
        values[outer] = reach // names["stride"] + 1
    return values


GEOMETRIES = {
    "mostly borders": geometry((5, 7), (4, 5), (2, 3)),
    "rows of a vector": geometry((3, 9), (3, 16), (1, 4)),
    "rows in blocks": geometry((3, 7), (3, 21), (1, 3)),
    "cells without conditions": geometry((3, 5), (4, 33), (1, 2)),
    "no padding": geometry((3, 6), (5, 23), (0, 0)),
    "even windows": geometry((4, 6), (3, 17), (2, 3)),
}


@pytest.fixture
def few_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few taps are as good as large ones, which take the interpreter long."""
    monkeypatch.setattr(wide_windows, "LEAST_TERMS", 12)
    monkeypatch.setattr(wide_windows, "LEAST_TAPS", 12)


def copying(program: Program) -> Kernel | None:
    """The kernel with copies of its own."""
    return next((each for each in program.kernels if each.local), None)


def compared(
    which: str,
    values: dict[str, int],
    layout: int,
    groups: int = 17,
    change: Callable[[Program], Program] = lambda program: program,
) -> tuple[np.ndarray, np.ndarray]:
    """What cells give, and what planes give after a change."""
    plain, planes = programs(which, values, layout)
    assert copying(planes) is not None, show_program(planes)
    images = 2 if which == "weight" else 1
    known = {**dict.fromkeys(plain.integers, 1), **values, "groups": groups, "N": images}
    target = copying(planes)
    assert target is not None
    random = np.random.default_rng(0)
    tensors = {
        each.name: random.normal(size=[extent.evaluate(known) for extent in each.extents])
        for each in plain.operands
        if each.name != target.written
    }
    integers = {name: known[name] for name in plain.integers}
    found = [run(each, tensors, integers)[0][target.written] for each in (plain, change(planes))]
    one, other = (to_array(each, np.dtype(np.float64)) for each in found)
    return one, other


@pytest.mark.sampled(16)
@pytest.mark.usefixtures("few_terms")
@pytest.mark.parametrize("is_last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("which", LAYOUTS)
def test_planes_give_what_cells_give(which: str, name: str, is_last: bool) -> None:
    layout = LAYOUTS[which] if is_last else 0
    if name == "mostly borders" and which == "weight" and not is_last:
        # Rows of these would not be transposed.
        assert copying(programs(which, GEOMETRIES[name], layout)[1]) is None
        return
    wanted, found = compared(which, GEOMETRIES[name], layout)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("few_terms")
@pytest.mark.parametrize("more", [{"stride": 2}, {"dilation": 2}], ids=str)
def test_strided_and_dilated_windows(more: dict[str, int]) -> None:
    values = geometry((3, 6), (5, 35), (2, 4), **more)
    wanted, found = compared("result", values, 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("few_terms")
@pytest.mark.parametrize(
    "groups", [pytest.param(each, marks=pytest.mark.slow) for each in (16, 67)] + [47]
)
def test_the_last_stretch_takes_what_is_left_of_a_vector(groups: int) -> None:
    wanted, found = compared("result", GEOMETRIES["rows of a vector"], 0, groups)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("few_terms")
@pytest.mark.parametrize("tensor", ["x", "weight", "y_near"])
def test_a_copy_of_something_else_is_seen(tensor: str) -> None:
    def spoiled(program: Program) -> Program:
        kernel = copying(program)
        assert kernel is not None

        def change(load: Load) -> Load:
            if load.tensor != tensor:
                return load
            at = -2 if tensor == "y_near" else -1
            indices = list(load.indices)
            indices[at] = indices[at] * 0
            return Load(tensor, tuple(indices))

        changed = replace(kernel, body=map_loads(kernel.body, change))
        kernels = (changed if each is kernel else each for each in program.kernels)
        return replace(program, kernels=tuple(kernels))

    wanted, found = compared("result", GEOMETRIES["rows of a vector"], 0, change=spoiled)
    assert not np.allclose(found, wanted)


def test_what_is_copied() -> None:
    """Whole planes with their filters, and their results; pixels are an odd number of lines."""
    _, program = programs("result", geometry((31, 31), (20, 20), (15, 15)), 0)
    kernel = copying(program)
    assert kernel is not None and isinstance(kernel.only, Blocks) and kernel.row is not None
    extents = {
        name: [extent.constant for extent in program.operand(name).extents] for name in kernel.local
    }
    assert extents == {"x_near": [20, 20, 48], "weight_near": [31, 31, 48], "y_near": [20, 20, 48]}
    assert set(kernel.only.tensors) >= {"x", "weight", "y"}
    assert kernel.row.width + kernel.row.least == 48
    assert [axis.name for axis in kernel.axes] == ["n"]


NEAR_MISSES = {
    "few terms": geometry((9, 10), (20, 20), (4, 5)),
    "large planes": geometry((31, 31), (40, 40), (15, 15)),
    "several channels": geometry((11, 11), (20, 20), (5, 5)) | {"Ci": 2},
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_have_no_copies(name: str) -> None:
    _, program = programs("result", NEAR_MISSES[name], 0)
    assert copying(program) is None


SIZES = [
    ((10, 10), (10, 10), (5, 5)),
    ((12, 12), (28, 28), (0, 0)),
    ((16, 16), (32, 32), (8, 8)),
    ((21, 21), (12, 64), (10, 10)),
    ((31, 31), (64, 12), (15, 15)),
    ((32, 32), (28, 28), (16, 16)),
    ((5, 31), (20, 50), (2, 15)),
    ((31, 5), (36, 36), (15, 2)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", ["result", "x"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_there_are_kernels_for_what_is_not_the_library_s(which: str, sizes: list[Pair]) -> None:
    values = geometry(*sizes)
    image, result = ((8, 64, values[f"{o}H"], values[f"{o}W"]) for o in ("", "O"))
    weight = (64, 1, *sizes[0])
    case = library.Case(64, (1, 1), sizes[2], (1, 1), result, image, weight, torch.channels_last)
    assert case.is_of_planes
    assert copying(programs(which, values, 0)[1]) is not None


@pytest.mark.parametrize("layout", [0, LAYOUTS["weight"]])
@pytest.mark.parametrize(("taps", "is_worth"), [(5, False), (7, True), (31, True)])
def test_gradients_of_small_filters_have_no_copies(taps: int, is_worth: bool, layout: int) -> None:
    values = geometry((taps, taps), (20, 20), (taps // 2, taps // 2))
    assert (copying(programs("weight", values, layout)[1]) is not None) == is_worth


def test_limits_of_the_rule_are_those_of_the_pass() -> None:
    assert library._MOST_PIXELS == wide_windows.MOST_PIXELS
    assert library._WIDE_WINDOW == wide_windows.LEAST_TERMS
    assert library._VECTOR == wide_windows.LEAST_LANES
    assert description.WIDEST_WINDOW < description.LONGEST_ROW


# ---------------------------------------------------------------------------- compiled
@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the library was asked for, and whether it was to compute it."""
    answers: list[bool] = []
    decide = library.case_of

    def listening(call: object) -> object:
        found = decide(call)  # type: ignore[arg-type]
        answers.append(found is not None)
        return found

    monkeypatch.setattr(library, "case_of", listening)
    return answers


def module(name: str) -> Callable[..., Tensor]:
    """A depthwise convolution of that name, which nothing else has compiled."""
    text = f"""op {name}(x[N,C,H,W], weight[C,K,L]; padding = 0) -> y[N,C,OH,OW]
  where padding >= 0
  let OH = H + 2*padding - K + 1, OW = W + 2*padding - L + 1
  y[n,c,i,j] = sum(k,l) x[n,c, i + k - padding ?0, j + l - padding ?0] * weight[c,k,l]
"""
    found: Callable[..., Tensor] = getattr(opgen.compile(text), name)
    return found


def agrees(own: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    bound = 64 * torch.finfo(dtype).eps * exact.abs().max()
    assert (own.double() - exact).abs().max() <= bound


CALLS = [
    (torch.float32, 80, 20, 31),
    pytest.param((torch.float32, 67, 17, 13), marks=pytest.mark.slow),
    pytest.param((torch.float64, 49, 19, 11), marks=pytest.mark.slow),
    (torch.bfloat16, 200, 16, 12),
    pytest.param((torch.float16, 129, 25, 11), marks=pytest.mark.slow),
    pytest.param((torch.float32, 16, 33, 11), marks=pytest.mark.slow),
    pytest.param((torch.float32, 300, 14, 21), marks=pytest.mark.slow),
    (torch.float32, 83, 18, 7),
    pytest.param((torch.bfloat16, 37, 27, 7), marks=pytest.mark.slow),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_compiled_planes_give_what_torch_gives(
    call: tuple[torch.dtype, int, int, int], format_: torch.memory_format, asked: list[bool]
) -> None:
    dtype, channels, size, window = call
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(3, channels, size, size, dtype=dtype).contiguous(memory_format=format_)
    weight, bias = (torch.randn(channels, *more, dtype=dtype) for more in ((1, window, window), ()))
    given = [each.requires_grad_() for each in (x, weight, bias)]
    geometry_ = {"padding": window // 2, "groups": channels}
    y = conv(*given, **geometry_)
    wide = [each.detach().double().requires_grad_() for each in given]
    z = F.conv2d(*wide, **geometry_)
    seed = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, given, seed))
    wanted = (z, *torch.autograd.grad(z, wide, seed.double()))
    for own, exact in zip(found, wanted, strict=True):
        agrees(own, exact, dtype)
    assert not any(asked)
    assert y.is_contiguous(memory_format=format_)


def test_bits_do_not_depend_on_threads_or_strides() -> None:
    conv = module("threads_and_strides_of_planes")
    torch.manual_seed(0)
    x, weight = torch.randn(5, 96, 21, 19), torch.randn(96, 11, 11)
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            results.append(conv(x, weight, padding=5))
    finally:
        torch.set_num_threads(threads)
    wider = torch.randn(5, 130, 23, 22)
    results.append(conv(wider[:, 7:103, 1:22, 2:21].copy_(x), weight, padding=5))
    results.append(conv(x.to(memory_format=torch.channels_last), weight, padding=5))
    assert all(torch.equal(each, results[0]) for each in results)
    wanted = F.conv2d(x.double(), weight[:, None].double(), padding=5, groups=96)
    assert (results[0].double() - wanted).abs().max() <= 1e-4


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "every other column": lambda x: torch.zeros(*x.shape[:-1], 2 * x.shape[-1])[..., ::2].copy_(x),
    "transposed": lambda x: x.mT.contiguous().mT,
    "one image for all": lambda x: x[:1].expand(3, -1, -1, -1),
    "one number for all": lambda x: x[:1, :1, :1, :1].expand(x.shape),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", STRIDES)
def test_any_strides(name: str) -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = STRIDES[name](torch.randn(3, 64, 15, 18))
    weight = torch.randn(64, 1, 11, 11)
    given = [x.detach().requires_grad_(), weight.requires_grad_()]
    y = conv(*given, padding=5, groups=64)
    wide = [each.detach().double().requires_grad_() for each in given]
    z = F.conv2d(*wide, padding=5, groups=64)
    seed = STRIDES[name](torch.randn(y.shape))
    found = (y, *torch.autograd.grad(y, given, seed))
    wanted = (z, *torch.autograd.grad(z, wide, seed.double()))
    for own, exact in zip(found, wanted, strict=True):
        agrees(own, exact, torch.float32)


@pytest.mark.parametrize(
    "flags", [pytest.param("-march=x86-64", marks=pytest.mark.slow), "-march=x86-64-v3"]
)
def test_other_processors(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CFLAGS", f"-O1 {flags}")
    conv = module(f"planes_for_other_processors_{flags.count('v3')}")
    torch.manual_seed(0)
    x, weight = torch.randn(2, 85, 20, 20), torch.randn(85, 11, 11)
    wanted = F.conv2d(x.double(), weight[:, None].double(), padding=5, groups=85)
    assert (conv(x, weight, padding=5).double() - wanted).abs().max() <= 1e-4


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
def test_threads_with_small_stacks(dtype: torch.dtype) -> None:
    """Copies of a point are larger than all of these."""
    text = """
import sys, threading, torch, opgen
conv = opgen.load(sys.argv[1]).conv2d
x, weight = torch.randn(2, 80, 28, 28), torch.randn(80, 1, 27, 27)
x, weight = (each.to(getattr(torch, sys.argv[2])).requires_grad_() for each in (x, weight))
def run():
    y = conv(x, weight, padding=13, groups=80)
    torch.autograd.grad(y, (x, weight), torch.ones_like(y))
threading.stack_size(256 * 1024)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
    given = [str(SPECS / "conv.op"), str(dtype).removeprefix("torch.")]
    environment = {**os.environ, "OMP_STACKSIZE": "256k"}
    subprocess.run([sys.executable, "-c", text, *given], env=environment, check=True)


def test_zeros_of_padding_are_not_multiplied() -> None:
    conv = module("infinite_taps_of_planes")
    x, weight = torch.ones(2, 80, 16, 16), torch.ones(80, 11, 11)
    weight[:, 0, 0] = float("inf")
    y = conv(x, weight, padding=5)
    assert not y.isnan().any()
    assert y[:, :, :5].isfinite().all() and y[:, :, 5:, 5:].isinf().all()


@pytest.mark.parametrize("shape", [(0, 80, 20, 20), (2, 0, 20, 20)])
def test_no_images(shape: tuple[int, ...]) -> None:
    conv = module("no_planes")
    x = torch.randn(shape)
    assert conv(x, torch.randn(shape[1], 11, 11), padding=5).shape == shape


def test_the_library_has_what_kernels_are_not_made_for(
    asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few elements, too many pixels, no room for kernels, and no compiler."""
    conv = opgen.load(SPECS / "conv.op").conv2d

    def call(size: int, images: int = 2) -> bool:
        x, w = torch.randn(images, 64, size, size), torch.randn(64, 1, 11, 11)
        wanted = F.conv2d(x.double(), w.double(), padding=5, groups=64)
        agrees(conv(x, w, padding=5, groups=64), wanted, torch.float32)
        return asked[-1]

    assert call(12, images=1)
    assert call(41)
    assert not call(22)
    monkeypatch.setattr(special, "MOST", 0)
    assert call(23)
    monkeypatch.undo()
