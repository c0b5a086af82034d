"""Kernels for whole planes mean what those for cells mean, and are what calls with planes run."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.algebra.poly import Poly, poly, symbol
from opgen.compiler import check_source, read_source
from opgen.emit.plane_vectors import AHEAD
from opgen.errors import Source
from opgen.ir.cells import to_array
from opgen.ir.loops import Call, Integer, Load, Number, Planes, Program, Scalar
from opgen.ir.notation import Op
from opgen.ir.plane import LANES, Each, Joined, Picked, Plane, Same, Term, Total, Vector, sources
from opgen.on_demand import special_source
from opgen.passes.differentiate import derivative
from opgen.passes.gather import gather
from opgen.passes.plane_cells import place_of
from opgen.passes.planes import with_plane_kernels
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise
from opgen.runtime import build, special
from opgen.testing.run_loops import run

Arrays = dict[str, np.ndarray]


# ---------------------------------------------------------------------------- arranged
def spec_op(file: str, name: str, *path: str) -> Op:
    ops = {op.name: op for op in check_source(read_source(SPECS / f"{file}.op"))}
    found = ops[name]
    for step in path:
        found = derivative(found, step, ops).op
    return found


def cells_of(op: Op, values: dict[str, int]) -> Program:
    known = specialise(op, values)
    return schedule(known, gather(known))


def plane_of(program: Program) -> Plane | None:
    """The plane of a program's first kernel, if it has a kernel for planes."""
    found = with_plane_kernels(program, program).kernels
    assert all((kernel.plane is not None) == (at == 0) for at, kernel in enumerate(found[:1])) or (
        len(found) == 1
    )
    if len(found) == 1:
        return None
    assert found[1].unless == found[0].only and isinstance(found[0].only, Planes)
    return found[0].plane


def conv_values(height: int, width: int, window: int, padding: int) -> dict[str, int]:
    values = {"K": window, "L": window, "Ci": 1, "Co": 1, "H": height, "W": width}
    for at, size in enumerate((height, width)):
        values |= {f"stride[{at}]": 1, f"padding[{at}]": padding, f"dilation[{at}]": 1}
        values["OH" if at == 0 else "OW"] = size + 2 * padding - window + 1
    return values


def transposed_values(height: int, width: int, window: int = 2) -> dict[str, int]:
    values = {"K": window, "L": window, "Ci": 1, "Co": 1, "H": height, "W": width}
    for at, size in enumerate((height, width)):
        values |= {f"stride[{at}]": window, f"padding[{at}]": 0, f"dilation[{at}]": 1}
        values |= {f"output_padding[{at}]": 0, "OH" if at == 0 else "OW": window * size}
    return values


def up_values(height: int, width: int) -> dict[str, int]:
    return {"scale_factor": 2, "H": height, "W": width}


CASES: dict[str, tuple[Op, Callable[[int, int], dict[str, int]]]] = {
    "nearest": (spec_op("upsample_nearest", "upsample_nearest"), up_values),
    "nearest, gradient": (spec_op("upsample_nearest", "upsample_nearest", "x"), up_values),
    "bilinear": (spec_op("upsample_bilinear", "upsample_bilinear"), up_values),
    "bilinear, gradient": (spec_op("upsample_bilinear", "upsample_bilinear", "x"), up_values),
    "transposed": (spec_op("conv_transpose", "conv_transpose2d"), transposed_values),
    "transposed, gradient": (spec_op("conv_transpose", "conv_transpose2d", "x"), transposed_values),
    "3x3": (spec_op("conv", "conv2d"), lambda h, w: conv_values(h, w, 3, 1)),
    "3x3, gradient": (spec_op("conv", "conv2d", "x"), lambda h, w: conv_values(h, w, 3, 1)),
    "2x2, unpadded": (spec_op("conv", "conv2d"), lambda h, w: conv_values(h, w, 2, 0)),
}
"""Ops, and what is known of them for an image of that size."""


def tensors_of(program: Program, known: dict[str, int]) -> Arrays:
    random = np.random.default_rng(0)
    written = {kernel.written for kernel in program.kernels}
    return {
        each.name: random.normal(size=[extent.evaluate(known) for extent in each.extents])
        for each in program.operands
        if each.name not in written
    }


def lanes(value: Vector, tensors: Arrays, at: dict[str, int], total: np.ndarray) -> np.ndarray:
    """A vector at one point, by the definition of its parts."""
    match value:
        case Same(value=scalar):
            return np.full(LANES, number(scalar, tensors, at))
        case Each(values=values):
            return np.array([number(each, tensors, at) for each in values])
        case Picked(first=first, places=places):
            array = tensors[first.tensor]
            place = tuple(index.evaluate(at) for index in first.indices)
            start = int(np.ravel_multi_index(place, array.shape))
            return array.reshape(-1)[[start + place for place in places]]
        case Joined(primitive="neg", arguments=(one,)):
            return -lanes(one, tensors, at, total)
        case Joined(primitive=primitive, arguments=(left, right)):
            function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
            one, other = (lanes(each, tensors, at, total) for each in (left, right))
            return np.asarray(function[primitive](one, other))
        case Total():
            return total
        case _:
            raise AssertionError(value)


def number(value: Scalar, tensors: Arrays, at: dict[str, int]) -> float:
    match value:
        case Number(value=found):
            return float(found)
        case Integer(value=formula):
            return float(formula.evaluate(at))
        case Load(tensor=tensor, indices=indices):
            return float(tensors[tensor][tuple(index.evaluate(at) for index in indices)])
        case Call(primitive="abs", arguments=(one,)):
            return abs(number(one, tensors, at))
        case Call(primitive=primitive, arguments=arguments):
            one, other = (number(each, tensors, at) for each in arguments)
            results = {"add": one + other, "sub": one - other, "mul": one * other}
            return results[primitive] if primitive in results else one / other
        case _:
            raise AssertionError(value)


def plane_result(program: Program, tensors: Arrays, known: dict[str, int]) -> np.ndarray:
    """What the vectors of a program's first kernel write; NaN where they write nothing."""
    kernel = program.kernels[0]
    assert kernel.plane is not None
    extents = program.operand(kernel.written).extents
    found = np.full([extent.evaluate(known) for extent in extents], np.nan)
    for point in itertools.product(*(range(each.extent.evaluate(known)) for each in kernel.axes)):
        at = known | {axis.name: i for axis, i in zip(kernel.axes, point, strict=True)}
        place = tuple(index.evaluate(at) for index in kernel.plane.target.indices)
        start = int(np.ravel_multi_index(place, found.shape))
        rounds = [(each, number) for each in kernel.plane.runs for number in range(each.count)]
        for each, number in rounds:
            moved = {tensor: number * step for tensor, step in each.steps}
            for cells in each.cells:
                total = np.zeros(LANES)
                for term in cells.terms:
                    added = lanes(shifted(term.value, moved), tensors, at, total)
                    total = np.where(term.present, total + added, total)
                first = start + cells.first + number * each.step
                value = lanes(shifted(cells.value, moved), tensors, at, total)
                found.reshape(-1)[first : first + LANES] = value
    return found


def shifted(value: Vector, moved: dict[str, int]) -> Vector:
    """A vector of a later round."""
    match value:
        case Picked(first=first, places=places, size=size) if size >= LANES:
            step = moved.get(first.tensor, 0)
            assert all(0 <= begin + step <= size - LANES for begin in sources(value))
            return replace(value, places=tuple(place + step for place in places))
        case Joined(arguments=arguments):
            return replace(value, arguments=tuple(shifted(each, moved) for each in arguments))
        case _:
            return value


WITHOUT = {
    *(("nearest", size) for size in ((2, 16), (16, 16), (12, 9))),
    *(("2x2, unpadded", size) for size in ((4, 4), (7, 3), (2, 16))),
    ("bilinear, gradient", (12, 9)),
}
"""Copies along rows that are long, planes too small for a vector, and one with too many steps."""


def slow(value: Any) -> Any:
    """A value for the longer tiers."""
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "size", [(8, 8), (4, 4), (5, 7), (7, 3), (2, 16), *(slow(each) for each in [(16, 16), (12, 9)])]
)
@pytest.mark.parametrize("name", CASES)
def test_vectors_are_made_of_the_terms_of_their_cells(name: str, size: tuple[int, int]) -> None:
    op, values = CASES[name]
    program = cells_of(op, values(*size))
    known = dict.fromkeys(program.integers, 1) | values(*size) | {"N": 2, "C": 3, "groups": 3}
    if plane_of(program) is None:
        assert (name, size) in WITHOUT
        return
    assert (name, size) not in WITHOUT
    planes = with_plane_kernels(program, program)
    tensors = tensors_of(program, known)
    integers = {each: known[each] for each in program.integers}
    cells, _ = run(program, tensors, integers)
    wanted = to_array(cells[program.kernels[0].written], np.dtype(np.float64))
    found = plane_result(planes, tensors, known)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    looped, _ = run(planes, tensors, integers)
    again = to_array(looped[program.kernels[0].written], np.dtype(np.float64))
    np.testing.assert_array_equal(again, wanted)
    spoilt = plane_result(with_other_lanes(planes), tensors, known)
    assert not np.allclose(spoilt, wanted)


def with_other_lanes(program: Program) -> Program:
    """The same with the elements of two lanes exchanged in one vector: a comparison sees that."""
    kernel, *others = program.kernels
    assert kernel.plane is not None

    def change(value: Vector) -> Vector:
        match value:
            case Picked(places=places):
                spread = (max(places, key=lambda place: place != places[at]) for at in range(LANES))
                return replace(value, places=tuple(spread))
            case Joined(arguments=arguments):
                return replace(value, arguments=tuple(map(change, arguments)))
            case _:
                return value

    cells = kernel.plane.runs[0].cells[0]
    terms = tuple(Term(change(term.value), term.present) for term in cells.terms)
    changed = replace(cells, terms=terms, value=change(cells.value))
    first = replace(kernel.plane.runs[0], cells=(changed, *kernel.plane.runs[0].cells[1:]))
    plane = replace(kernel.plane, runs=(first, *kernel.plane.runs[1:]))
    return replace(program, kernels=(replace(kernel, plane=plane), *others))


@pytest.mark.parametrize("name", CASES)
def test_square_planes_of_eight_have_kernels(name: str) -> None:
    op, values = CASES[name]
    plane = plane_of(cells_of(op, values(8, 8)))
    assert plane is not None
    assert plane.copies == (name == "nearest")


@pytest.mark.parametrize("name", ["bilinear", "bilinear, gradient", "3x3"])
def test_large_planes_are_loops(name: str) -> None:
    op, values = CASES[name]
    plane = plane_of(cells_of(op, values(16, 16)))
    assert plane is not None and max(run.count for run in plane.runs) >= 12
    assert len(list(plane.cells)) <= 16
    plane = plane_of(cells_of(op, values(8, 8)))
    assert plane is not None and all(run.count == 1 for run in plane.runs)


NEAR_MISSES = {
    "a long row": ("y[n,h,w] = x[n,h,w] * x[n,h,w]", "x[N,8,32]", "y[N,8,32]"),
    "a size of a call": ("y[n,h,w] = x[n,h,w] * 2", "x[N,H,8]", "y[N,H,8]"),
    "a maximum": ("y[n,h,w] = max(k in 2) x[n,h,(w k)]", "x[N,8,(8 2)]", "y[N,8,8]"),
    "a function": ("y[n,h,w] = exp(x[n,w,h])", "x[N,8,8]", "y[N,8,8]"),
    "few cells": ("y[n,h,w] = x[n,w,h] * 2", "x[N,3,5]", "y[N,5,3]"),
    "other planes": ("y[n,h,w] = x[h,w,n] * 2", "x[8,8,N]", "y[N,8,8]"),
    "a length as an index": ("y[n,h,w] = x[n,h,N - n - 1] * 2", "x[N,8,N]", "y[N,8,8]"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_have_no_kernels_for_planes(name: str) -> None:
    statement, given, result = NEAR_MISSES[name]
    (op,) = check_source(Source(f"op near({given}) -> {result}\n  {statement}\n", "near.op"))
    assert plane_of(cells_of(op, {})) is None


def test_the_copy_they_nearly_are_has_one() -> None:
    text = "op near(x[N,8,8]) -> y[N,8,8]\n  y[n,h,w] = x[n,w,h] * 2\n"
    (op,) = check_source(Source(text, "near.op"))
    assert plane_of(cells_of(op, {})) is not None


def test_elements_outside_of_a_plane_have_no_place() -> None:
    (op,) = check_source(Source("op copy(x[N,3,5]) -> y[N,3,5]\n  y[n,h,w] = x[n,h,w]\n", "c.op"))
    program = cells_of(op, {})
    n = symbol("n")

    def place(*indices: int | Poly) -> object:
        return place_of(Load("x", (n, *map(poly, indices))), program)

    assert place(2, 4) == ((n,), 14)
    assert [place(*at) for at in ((3, 0), (0, 5), (-1, 0), (0, -1), (n, 0))] == [None] * 5


def test_the_same_input_gives_the_same_bytes() -> None:
    text = (SPECS / "upsample_bilinear.op").read_text()
    path, values = ("upsample_bilinear", "x"), up_values(8, 8)
    first, second = (special_source(text, "spec", path, values) for _ in range(2))
    assert "are_planes" in first and first == second


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("file", "path", "values", "are_fetched"),
    [
        ("upsample_nearest", ("upsample_nearest", "x"), up_values(8, 8), False),  # few terms
        ("upsample_bilinear", ("upsample_bilinear", "x"), up_values(8, 8), True),
        ("upsample_bilinear", ("upsample_bilinear", "x"), up_values(16, 16), True),  # in loops
        ("upsample_bilinear", ("upsample_bilinear",), up_values(8, 8), False),  # writes most
        ("conv", ("conv2d",), conv_values(8, 8, 3, 1), False),  # writes as much as it reads
        ("conv_transpose", ("conv_transpose2d", "x"), transposed_values(8, 8), False),
        ("conv_transpose", ("conv_transpose2d", "x"), transposed_values(8, 8, 3), True),
        # Another kernel of the same call reads the planes as well.
        ("conv_transpose", ("conv_transpose2d", "x,weight"), transposed_values(8, 8, 3), False),
    ],
)
def test_planes_are_asked_for_where_most_is_read(
    file: str, path: tuple[str, ...], values: dict[str, int], are_fetched: bool
) -> None:
    text = (SPECS / f"{file}.op").read_text()
    source = special_source(text, "spec", path, values)
    assert "_planes(" in source
    assert (f"{AHEAD} / (int64_t)sizeof(T)" in source) == are_fetched


# ---------------------------------------------------------------------------- compiled
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FEW_DTYPES = [torch.float32, slow(torch.float64), slow(torch.float16), torch.bfloat16]
"""The same with those for the longer tiers that take the ways of another one."""
POINTS = 2**16


@functools.cache
def under_other_names(text: str, suffix: str) -> SimpleNamespace:
    """The ops of a spec with kernels of their own: ops that are the same share them."""
    names = re.findall(r"^op (\w+)\(", text, re.MULTILINE)
    other = re.sub(rf"\b({'|'.join(names)})\b", rf"\1_{suffix}", text)
    module = opgen.compile(other)
    return SimpleNamespace(**{name: getattr(module, f"{name}_{suffix}") for name in names})


@pytest.fixture(params=["this processor", "without AVX-512"])
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "MOST_SIZES", 10)
    if request.param == "without AVX-512":
        monkeypatch.setenv("OPGEN_CFLAGS", f"{os.environ['OPGEN_CFLAGS']} -mno-avx512f")
        narrow = "without_avx512"
        monkeypatch.setattr(opgen, "load", lambda path: under_other_names(path.read_text(), narrow))


def interpolate(mode: str) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, scale_factor=2, mode=mode)


def images(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """The same kind of image with planes that are dense and planes that are not."""
    *outer, height, width = shape
    wide = torch.randn(*outer, height + 1, width + 2, dtype=dtype)
    dense = torch.randn(shape, dtype=dtype)
    return [
        dense,
        torch.randn(shape[0], shape[1] * 2, *shape[2:], dtype=dtype)[:, ::2],
        wide[..., 1:, 1:-1],
        dense.to(memory_format=torch.channels_last),
        dense.transpose(2, 3).contiguous().transpose(2, 3),
        dense[:1, :1].expand(shape),
    ]


def agree(found: Tensor, wanted: Tensor, dtype: torch.dtype, terms: int) -> None:
    assert found.dtype == dtype and found.shape == wanted.shape
    bound = (2 + terms) * torch.finfo(dtype).eps if dtype.itemsize > 2 else torch.finfo(dtype).eps
    assert (found.double() - wanted).abs().max() <= bound * wanted.abs().max()


def test_calls_with_dense_planes_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for planes that does nothing is noticed where planes are dense, and only there."""
    monkeypatch.setattr(special, "MOST_SIZES", 10)
    library = build.library

    def without_stores(source: str) -> ctypes.CDLL:
        changed = re.sub(r"(lanes|two)_(to|past)_T(_alone)?\(&y(.*)\);", ";", source)
        assert changed != source or "are_planes" not in source
        return library(changed)

    monkeypatch.setattr(build, "library", without_stores)
    own = opgen.load(SPECS / "upsample_bilinear.op").upsample_bilinear
    dense, *_ = given = images((2, 512, 8, 8), torch.float32)
    has_planes = "avx512bw" in Path("/proc/cpuinfo").read_text()
    for x in given[:3]:
        found, wanted = own(x, scale_factor=2), interpolate("bilinear")(x)
        is_right = torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)
        is_dense = x.stride()[2:] == dense.stride()[2:]
        assert is_right == (not is_dense or not has_planes)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", FEW_DTYPES)
@pytest.mark.parametrize("size", [(8, 8), slow((5, 7)), slow((16, 16))])
@pytest.mark.usefixtures("processor", "threads")
def test_upsampling_gives_what_pytorch_gives(size: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    channels = -(-POINTS // (4 * size[0] * size[1]))
    for mode in ("nearest", "bilinear"):
        module = opgen.load(SPECS / f"upsample_{mode}.op")
        own = getattr(module, f"upsample_{mode}")
        for x in images((2, channels, *size), dtype):
            for values in (x.detach(), x.detach()[:0]):
                given = values.requires_grad_()
                wide = values.detach().double().requires_grad_()
                found, wanted = own(given, scale_factor=2), interpolate(mode)(wide)
                if not len(values):
                    assert found.shape == wanted.shape
                    continue
                agree(found.detach(), wanted.detach(), dtype, 4)
                for cotangent in images(tuple(found.shape), dtype):
                    (gradient,) = torch.autograd.grad(found, given, cotangent, retain_graph=True)
                    (other,) = torch.autograd.grad(
                        wanted, wide, cotangent.double(), retain_graph=True
                    )
                    agree(gradient, other, dtype, 16)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", FEW_DTYPES)
@pytest.mark.parametrize("size", [(8, 8), slow((7, 5))])
@pytest.mark.usefixtures("processor", "threads")
def test_convolutions_give_what_pytorch_gives(size: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    channels = -(-POINTS // (4 * size[0] * size[1]))
    conv = opgen.load(SPECS / "conv.op").conv2d
    transposed = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    for own, pytorch, window, settings in (
        (conv, F.conv2d, 3, {"padding": 1}),
        (transposed, F.conv_transpose2d, 2, {"stride": 2}),
    ):
        weight = torch.randn(channels, 1, window, window, dtype=dtype)
        bias = torch.randn(channels, dtype=dtype)
        for x in images((2, channels, *size), dtype):
            given = x.detach().requires_grad_()
            wide = x.detach().double().requires_grad_()
            for extra in ((), (bias,)):
                found = own(given, weight, *extra, **settings, groups=channels)
                others = (weight.double(), *(each.double() for each in extra))
                wanted = pytorch(wide, *others, **settings, groups=channels)
                agree(found.detach(), wanted.detach(), dtype, 10)
            cotangent = torch.randn_like(found)
            (gradient,) = torch.autograd.grad(found, given, cotangent)
            (other,) = torch.autograd.grad(wanted, wide, cotangent.double())
            agree(gradient, other, dtype, 10)


SHIFTED = """
op down(x: float[N,C,H,W], s: float[C]) -> y[N,C,H,W]
  y[n,c,h,w] = s[c] + sum(k in 2) x[n,c, h + k + 4 ?0, W-1-w] * s[c]

op up(x: float[N,C,H,W], s: float[C]) -> y[N,C,H,W]
  y[n,c,h,w] = s[c] + sum(k in 2) x[n,c, h + k - 5 ?0, W-1-w] * s[c]
"""


@pytest.mark.usefixtures("processor")
def test_vectors_of_cells_without_terms(tmp_path: Path) -> None:
    """Their sums are zero, not those of the vector before."""
    file = tmp_path / "shifted.op"
    file.write_text(SHIFTED)
    ops = opgen.load(file)
    x, s = torch.randn(2, 512, 8, 8), torch.randn(512)
    turned = x.double().flip(-1)
    factor = s.double()[:, None, None]
    for found, padding in ((ops.down(x, s), (0, 0, 0, 5)), (ops.up(x, s), (0, 0, 5, 0))):
        rows = F.pad(turned, padding)
        rows = rows[..., -9:, :] if padding[3] else rows[..., :9, :]
        wanted = factor + (rows[..., :-1, :] + rows[..., 1:, :]) * factor
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    conv = opgen.load(SPECS / "conv.op").conv2d
    weight = torch.randn(512, 1, 3, 3)
    found = conv(x, weight, s, padding=5, groups=512)
    wanted = F.conv2d(x, weight, s, padding=5, groups=512)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("processor")
def test_a_zero_of_the_padding_has_no_term_beside_infinity() -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    for dtype in DTYPES:
        weight = torch.ones(1024, 1, 3, 3, dtype=dtype)
        weight[:, :, 0, 0] = float("inf")
        y = conv(torch.ones(1, 1024, 8, 8, dtype=dtype), weight, padding=1, groups=1024)
        assert not y.isnan().any()
        assert y[:, :, 0].isfinite().all() and y[..., 0].isfinite().all()
        assert y[:, :, 1:, 1:].isinf().all()


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        (torch.bfloat16, torch.int16),
        (torch.float16, torch.int16),
        (torch.float32, torch.int32),
        (torch.int16, torch.int16),
        (torch.int32, torch.int32),
        (torch.int64, torch.int64),
        (torch.uint8, torch.uint8),
    ],
)
@pytest.mark.usefixtures("processor")
def test_copies_keep_every_bit(dtype: torch.dtype, word: torch.dtype) -> None:
    """Also those of the many values that are no number."""
    own = opgen.load(SPECS / "upsample_nearest.op").upsample_nearest
    top = torch.iinfo(word)
    bits = torch.randint(top.min, top.max, (2, 512, 8, 8), dtype=word)
    found = own(bits.view(dtype), scale_factor=2).view(word)
    wanted = bits.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(found, wanted)


def test_planes_that_end_where_memory_does_are_not_left() -> None:
    """Neighbours in memory are neither written nor of any influence."""
    own = opgen.load(SPECS / "upsample_bilinear.op").upsample_bilinear
    whole = torch.full((1026, 1, 7, 7), float("nan"))
    whole[1:-1] = 1.0
    y = own(whole[1:-1], scale_factor=2)
    assert torch.equal(y, torch.ones_like(y))
