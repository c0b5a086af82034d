"""Kernels that add up planes mean what those along rows mean, and are what calls run."""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.cells import to_array
from opgen.ir.context import facts_of
from opgen.ir.loops import Planes, Program, Store
from opgen.ir.notation import Op
from opgen.ir.plane import Joined, Picked, Vector
from opgen.on_demand import special_source, unrounded_source
from opgen.passes import plane_cells
from opgen.passes.gather import gather
from opgen.passes.guests import PLANES
from opgen.passes.plane_sums import with_plane_sums
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise
from opgen.runtime import build, special
from opgen.testing.run_loops import run
from test_planes import (
    FEW_DTYPES,
    Arrays,
    images,
    lanes,
    processor,
    slow,
    spec_op,
    tensors_of,
)

__all__ = ["processor"]  # a fixture

PATH = ("conv2d", "weight")

# Tensors below have 2**15 elements or more: smaller ones have no kernels for their sizes.


def geometry(height: int, width: int, window: int, stride: int, padding: int) -> dict[str, int]:
    values = {"K": window, "L": window, "Ci": 1, "Co": 1, "H": height, "W": width}
    for at, (size, name) in enumerate(((height, "OH"), (width, "OW"))):
        values |= {f"stride[{at}]": stride, f"padding[{at}]": padding, f"dilation[{at}]": 1}
        values[name] = (size + 2 * padding - window) // stride + 1
    return values


def program_of(op: Op, values: dict[str, int]) -> Program:
    known = specialise(op, values)
    return rows(schedule(known, gather(known)), facts_of(known))


def has_sums(program: Program) -> bool:
    first, *others = with_plane_sums(program).kernels
    if first.sums is None:
        return False
    assert isinstance(first.only, Planes) and others[0].unless == first.only
    return True


# ---------------------------------------------------------------------------- arranged
GEOMETRIES = {
    "rows of half a vector": geometry(8, 8, 3, 1, 1),
    "no whole vectors": geometry(7, 7, 3, 1, 1),
    "odd rows": geometry(5, 9, 3, 1, 1),
    "every second": geometry(12, 10, 3, 2, 1),
    "smaller results": geometry(8, 8, 3, 1, 0),
    "larger results": geometry(6, 7, 3, 1, 2),
    "rows of one vector": geometry(6, 16, 3, 1, 1),
    "a few taps side by side": geometry(16, 16, 2, 2, 0),
    "taps of one row side by side": {**geometry(8, 16, 2, 2, 0), "K": 1, "stride[0]": 1, "OH": 8},
}


def sums_of(program: Program, tensors: Arrays, known: dict[str, int]) -> np.ndarray:
    """What the vectors of the first kernel add up, by the definition of their parts."""
    kernel = program.kernels[0]
    assert kernel.sums is not None
    stores = {str(node.value): node.indices for node in kernel.body if isinstance(node, Store)}
    assert len(stores) == sum(isinstance(node, Store) for node in kernel.body)
    found = np.zeros([e.evaluate(known) for e in program.operand(kernel.written).extents])
    axes = [range(axis.extent.evaluate(known)) for axis in kernel.axes]
    for *point, number in itertools.product(*axes, range(known["N"])):
        at = known | dict(zip((axis.name for axis in kernel.axes), point, strict=True))
        at[kernel.sums.loop] = number
        for round_, (accumulator, term) in itertools.product(
            range(kernel.sums.count), kernel.sums.terms
        ):
            value = further(term.value, dict(kernel.sums.steps), round_)
            values = lanes(value, tensors, at, np.zeros(0))
            (cell,) = (place for value, place in stores.items() if f"'{accumulator}'" in value)
            found[tuple(i.evaluate(at) for i in cell)] += values[np.array(term.present)].sum()
    return found


def further(value: Vector, steps: dict[str, int], rounds: int) -> Vector:
    """A vector as many rounds later."""
    match value:
        case Picked(first=first, places=places) if rounds:
            step = rounds * steps[first.tensor]
            return replace(value, places=tuple(place + step for place in places))
        case Joined(arguments=arguments):
            moved = tuple(further(each, steps, rounds) for each in arguments)
            return replace(value, arguments=moved)
        case _:
            return value


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.sampled(3)
def test_vectors_are_made_of_the_terms_of_their_sums(name: str) -> None:
    values = GEOMETRIES[name]
    plain = program_of(spec_op("conv", *PATH), values)
    assert has_sums(plain)
    program = with_plane_sums(plain)
    known = dict.fromkeys(program.integers, 1) | values | {"N": 2, "groups": 3}
    tensors = tensors_of(program, known)
    cells, _ = run(plain, tensors, {each: known[each] for each in plain.integers})
    wanted = to_array(cells[program.kernels[0].written], np.dtype(np.float64))
    np.testing.assert_allclose(sums_of(program, tensors, known), wanted, rtol=1e-9, atol=1e-9)
    spoilt = sums_of(with_other_lanes(program), tensors, known)
    assert not np.allclose(spoilt, wanted)


def with_other_lanes(program: Program) -> Program:
    """The same with one element in place of others in one term: a comparison sees that."""
    kernel, *others = program.kernels
    assert kernel.sums is not None

    def change(value: Vector) -> Vector:
        match value:
            case Picked(places=places):
                return replace(value, places=tuple(max(places) for _ in places))
            case Joined(arguments=(first, *rest)):
                return replace(value, arguments=(change(first), *rest))
            case _:
                raise AssertionError(value)

    (name, term), *terms = kernel.sums.terms
    changed = (name, replace(term, value=change(term.value)))
    sums = replace(kernel.sums, terms=(changed, *terms))
    return replace(program, kernels=(replace(kernel, sums=sums), *others))


NEAR_MISSES = {
    "planes of many vectors": geometry(20, 20, 3, 1, 1),
    "windows side by side": geometry(16, 16, 3, 3, 0),
    "few taps": geometry(8, 8, 2, 1, 0),
    "few side by side, not in whole vectors": geometry(14, 14, 2, 2, 0),
    "few side by side, one vector": geometry(8, 8, 2, 2, 0),
    "one tap": geometry(8, 8, 1, 1, 0),
    "every second, one tap": geometry(15, 15, 1, 2, 0),
    "planes of a few elements": geometry(3, 3, 3, 1, 1),
    "a size of a call": {k: v for k, v in geometry(8, 8, 3, 1, 1).items() if k not in ("H", "OH")},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_have_no_sums(name: str) -> None:
    assert not has_sums(program_of(spec_op("conv", *PATH), NEAR_MISSES[name]))


def test_large_planes_are_not_looked_at_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element would take microseconds, minutes for images of a million."""
    read, scalar = [], plane_cells._Reader.scalar

    def listening(*arguments: Any) -> Any:
        read.append(arguments)
        return scalar(*arguments)

    monkeypatch.setattr(plane_cells._Reader, "scalar", listening)
    for values, most in ((geometry(8, 8, 3, 1, 1), 10_000), (geometry(56, 56, 3, 1, 1), 10_000)):
        program = program_of(spec_op("conv", *PATH), values)
        read.clear()
        with_plane_sums(program)
        assert 0 < len(read) <= most


STATEMENTS = {
    "+= x[n,h + k, w + l] * y[n,h,w]": True,
    "max= x[n,h + k, w + l] * y[n,h,w]": False,
    "+= exp(x[n,h + k, w + l]) * y[n,h,w]": False,
    "+= x[n,h + k, w + l] * y[h,w,n]": False,
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_sums_are_of_products_of_elements(statement: str) -> None:
    extents = "8,8,N" if "y[h,w,n]" in statement else "N,8,8"
    text = (
        f"op near(x: float[N,9,10], y: float[{extents}]) -> z: float[2,3]\n  z[k,l] {statement}\n"
    )
    (op,) = check_source(Source(text, "near.op"))
    assert has_sums(program_of(op, {})) == STATEMENTS[statement]


def test_the_same_input_gives_the_same_bytes() -> None:
    text = (SPECS / "conv.op").read_text()
    values = geometry(8, 8, 3, 1, 1)
    first, second = (special_source(text, "conv.op", PATH, values) for _ in range(2))
    assert "are_planes" in first and first == second


# ---------------------------------------------------------------------------- compiled
@pytest.mark.sampled(8)
@pytest.mark.parametrize("window", [(2, 2), (1, 3), (3, 3)])
@pytest.mark.usefixtures("threads")
def test_gradients_alone_have_the_bits_of_those_together(window: tuple[int, int]) -> None:
    """A graph of the backward pass asks for each gradient by itself."""
    torch.manual_seed(0)
    own = opgen.load(SPECS / "conv.op").conv2d
    x = torch.randn(32, 64, 8, 8, requires_grad=True)
    weight = torch.randn(64, 1, *window, requires_grad=True)
    result = own(x, weight, groups=64)
    cotangent = torch.randn_like(result)
    alone = torch.autograd.grad(result, (x, weight), cotangent, create_graph=True)
    together = torch.autograd.grad(result, (x, weight), cotangent)
    assert all(map(torch.equal, alone, together))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", FEW_DTYPES)
@pytest.mark.parametrize("shape", [(33, 61, 8, 8), (300, 1, 8, 8), slow((5, 9, 16, 16))])
@pytest.mark.usefixtures("processor", "threads")
def test_gradients_of_windows_side_by_side(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    """Both together where planes of image, cotangent, both or neither are dense; and each alone."""
    torch.manual_seed(0)
    own, (batch, channels, height, width) = opgen.load(SPECS / "conv_transpose.op"), shape
    settings: dict[str, Any] = {"stride": 2, "groups": channels}
    weight = torch.randn(channels, 1, 2, 2, dtype=dtype, requires_grad=True)
    cotangents = images((batch, channels, 2 * height, 2 * width), dtype)
    for x, cotangent in itertools.product(images(shape, dtype)[:3], cotangents[:3]):
        inputs = x.requires_grad_(), weight
        found = own.conv_transpose2d(*inputs, **settings)
        together = torch.autograd.grad(found, inputs, cotangent, retain_graph=True)
        alone = [
            torch.autograd.grad(found, each, cotangent, retain_graph=True)[0] for each in inputs
        ]
        assert all(map(torch.equal, together, alone))
        wide = [each.detach().double().requires_grad_() for each in inputs]
        exact = F.conv_transpose2d(*wide, **settings)
        wanted = torch.autograd.grad(exact, wide, cotangent.double())
        counts = 4, batch * height * width
        for gradient, other, terms in zip(together, wanted, counts, strict=True):
            assert gradient.dtype == dtype
            bound = 2 * torch.finfo(torch.float32).eps * terms
            bound += torch.finfo(dtype).eps * float(other.abs().max())
            assert float((gradient.double() - other).abs().max()) <= bound


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dtype", FEW_DTYPES)
@pytest.mark.parametrize(
    "size", [(8, 8, 3, 1, 1), (7, 5, 3, 1, 1), slow((9, 12, 3, 2, 1)), slow((16, 16, 3, 1, 1))]
)
@pytest.mark.usefixtures("processor", "threads")
def test_gradients_of_filters_are_those_of_pytorch(
    size: tuple[int, int, int, int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    height, width, window, stride, padding = size
    own, channels = opgen.load(SPECS / "conv.op").conv2d, 128
    weight = torch.randn(channels, 1, window, window, dtype=dtype, requires_grad=True)
    wide = weight.detach().double().requires_grad_()
    settings = {"stride": stride, "padding": padding, "groups": channels}
    for x in images((9, channels, height, width), dtype):
        for given in (x, x[:0]):
            found, wanted = (
                own(given, weight, **settings),
                F.conv2d(given.double(), wide, **settings),
            )
            for cotangent in images(tuple(found.shape), dtype) if len(given) else [found.detach()]:
                (gradient,) = torch.autograd.grad(found, weight, cotangent, retain_graph=True)
                (other,) = torch.autograd.grad(wanted, wide, cotangent.double(), retain_graph=True)
                assert gradient.dtype == dtype
                # Sums of that many products of numbers about 1, each rounded once.
                terms = cotangent.numel() / channels
                bound = 2 * torch.finfo(torch.float32).eps * max(terms, 1)
                bound += torch.finfo(dtype).eps * float(other.abs().max())
                assert float((gradient.double() - other).abs().max()) <= bound


@pytest.mark.parametrize("dtype", FEW_DTYPES)
@pytest.mark.usefixtures("processor")
def test_taps_outside_have_no_term_beside_infinity(dtype: torch.dtype) -> None:
    """A product with what another lane has, or with a zero, would be no number."""
    own, channels = opgen.load(SPECS / "conv.op").conv2d, 256
    weight = torch.ones(channels, 1, 3, 3, dtype=dtype, requires_grad=True)
    for place, value in itertools.product(((0, 0), (3, 7), (7, 2)), (float("inf"), float("nan"))):
        x, cotangent = (torch.zeros(2, channels, 8, 8, dtype=dtype) for _ in range(2))
        x += 1
        cotangent[1, :, place[0], place[1]] = value
        (found,) = torch.autograd.grad(
            own(x, weight, padding=1, groups=channels), weight, cotangent
        )
        other = torch.zeros(3, 3, dtype=torch.float64)
        for k, l in itertools.product(range(3), repeat=2):
            if 0 <= place[0] + k - 1 < 8 and 0 <= place[1] + l - 1 < 8:
                other[k, l] = value
        assert torch.equal(
            found.double().nan_to_num(5, 6, 7), other.nan_to_num(5, 6, 7).expand(channels, 1, 3, 3)
        )


def test_calls_with_dense_planes_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that adds up nothing is noticed where planes are dense, and only there."""
    monkeypatch.setattr(special, "MOST_SIZES", 10)
    library, changes = build.library, []

    def without_terms(source: str) -> ctypes.CDLL:
        lines = source.split("\n")
        kept = [line for line in lines if not line.lstrip().startswith("total_1_1_lanes += x_")]
        changes.append(len(lines) - len(kept))
        return library("\n".join(kept))

    monkeypatch.setattr(build, "library", without_terms)
    own = opgen.load(SPECS / "conv.op").conv2d
    weight = torch.randn(256, 1, 3, 3, requires_grad=True)
    has_planes = "avx512bw" in Path("/proc/cpuinfo").read_text()
    for x in images((4, 256, 8, 8), torch.float32)[:3]:
        is_dense = x.stride()[2:] == (8, 1)
        for cotangent in images((4, 256, 8, 8), torch.float32)[:3]:
            gradients = [
                torch.autograd.grad(conv(x, weight, padding=1, groups=256), weight, cotangent)[0]
                for conv in (own, F.conv2d)
            ]
            is_right = torch.allclose(*gradients, rtol=1e-4, atol=1e-3)
            runs = is_dense and cotangent.stride()[2:] == (8, 1) and has_planes
            assert is_right == (not runs)
    assert max(changes) > 0


def test_gradients_of_windows_side_by_side_share_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its last term in rounds with the image's gradient, one sum of dense planes is zero.

    Those of other calls, and the image's gradient, are as they were.
    """
    monkeypatch.setattr(special, "MOST_SIZES", 10)
    library, changes = build.library, []

    def without_terms(source: str) -> ctypes.CDLL:
        kept, count = re.subn(r"\n *sums_4 \+= .*;", "", source, count=1)
        changes.append(count)
        return library(kept)

    monkeypatch.setattr(build, "library", without_terms)
    own = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    weight = torch.randn(256, 1, 2, 2, dtype=torch.bfloat16, requires_grad=True)
    has_planes = "avx512bw" in Path("/proc/cpuinfo").read_text()
    pairs = itertools.product(
        images((4, 256, 8, 8), torch.bfloat16)[:3], images((4, 256, 16, 16), torch.bfloat16)[:3]
    )
    for x, cotangent in pairs:
        inputs = x.requires_grad_(), weight
        (image, found), (other, wanted) = (
            torch.autograd.grad(conv(*inputs, stride=2, groups=256), inputs, cotangent)
            for conv in (own, F.conv_transpose2d)
        )
        torch.testing.assert_close(image, other, rtol=2e-2, atol=2e-2)
        is_dense = x.stride()[2:] == (8, 1) and cotangent.stride()[2:] == (16, 1)
        if is_dense and has_planes:
            assert (found[..., 1, 1] == 0).all()
            found, wanted = found.flatten(1)[:, :3], wanted.flatten(1)[:, :3]
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-1)
    assert any(changes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_planes_of_the_next_round_are_asked_for(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the next image, and behind the last one those that the next group begins with."""
    monkeypatch.setattr(special, "MOST_SIZES", 10)
    library, made = build.library, []
    asked = "#define FETCH(place) __builtin_prefetch(place, 0, 2)"
    noted = "#define FETCH(place) (fetched[fetches++ & 0xffff] = (place))"

    def noting(source: str) -> ctypes.CDLL:
        if asked not in source:
            return library(source)  # of calls that are looked up, not of kernels
        changed = f"const void *fetched[1 << 16];\nint64_t fetches;\n{noted}"
        found = library(source.replace(asked, changed))
        made.append(found)
        return found

    monkeypatch.setattr(build, "library", noting)
    images_, channels, group = 3, 60, PLANES
    own = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    x = torch.randn(images_, channels, 8, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(channels, 1, 2, 2, dtype=dtype, requires_grad=True)
    result = own(x, weight, stride=2, groups=channels)
    cotangent = torch.randn_like(result)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made.clear()
        torch.autograd.grad(result, (x, weight), cotangent)
    finally:
        torch.set_num_threads(before)
    (both,) = made
    count = ctypes.c_int64.in_dll(both, "fetches").value
    fetched = list((ctypes.c_void_p * (1 << 16)).in_dll(both, "fetched"))[:count]
    wanted = []
    for first in range(0, channels, group):
        cells = range(first, min(first + group, channels))
        for image, channel in itertools.product(range(images_), cells):
            later = (image + 1, channel) if image + 1 < images_ else (0, channel + group)
            for each in (x, cotangent):
                plane = (later[0] * channels + later[1]) * each[0, 0].numel()
                bytes_ = each[0, 0].numel() * each.element_size()
                begin = each.data_ptr() + plane * each.element_size()
                wanted += range(begin, begin + bytes_, 64)
    assert sorted(fetched) == sorted(wanted)


def test_planes_that_end_where_memory_does_are_not_left() -> None:
    own = opgen.load(SPECS / "conv.op").conv2d
    whole = torch.full((6, 256, 7, 7), float("nan"))
    whole[1:-1] = 1.0
    weight = torch.ones(256, 1, 3, 3, requires_grad=True)
    x = whole[1:-1]
    (found,) = torch.autograd.grad(own(x, weight, padding=1, groups=256), weight, x)
    rows_ = torch.tensor([6.0, 7.0, 6.0])
    assert torch.equal(found, (4 * rows_[:, None] * rows_).expand(256, 1, 3, 3))


@pytest.mark.usefixtures("processor")
def test_gradients_under_autocast_are_those_of_what_is_cast() -> None:
    """Their kernels round float32 themselves, to the same numbers, which they add up alike."""
    text = (SPECS / "conv.op").read_text()
    values = geometry(8, 8, 3, 1, 1)
    rounding = unrounded_source(text, "conv.op", PATH, values, 0, ("x", "grad_weight"))
    assert "are_planes" in rounding and "lanes_from_unrounded(&x[" in rounding
    own, settings = opgen.load(SPECS / "conv.op").conv2d, {"padding": 1, "groups": 256}
    torch.manual_seed(0)
    weight = torch.randn(256, 1, 3, 3, requires_grad=True)
    small = weight.detach().bfloat16().requires_grad_()
    for x in images((4, 256, 8, 8), torch.float32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = own(x, weight, **settings)
        wanted = own(x.bfloat16(), small, **settings)
        cotangent = torch.randn(found.shape).to(found.dtype)
        (gradient,) = torch.autograd.grad(found, weight, cotangent)
        (other,) = torch.autograd.grad(wanted, small, cotangent)
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, other.float())
