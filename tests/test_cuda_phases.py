"""Strided products of matrices, split by remainders: the same terms, and few others multiplied."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen import compiler
from opgen.algebra.condition import Condition
from opgen.emit.cuda import cuda_text
from opgen.ir.contraction import Contraction
from opgen.ir.loops import Axis, Kernel, Program, Store, walk
from opgen.passes import cuda_phases
from opgen.passes.cuda_phases import by_phase
from opgen.passes.cuda_product import transposed, with_contractions
from opgen.passes.derive import derive
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.passes.specialise import attributes_of, default_values, specialise
from opgen.runtime import cuda_tiles, prelude
from opgen.testing import nvrtc
from opgen.testing.cuda_on_cpu.emulated import Products, emulated

OPS = {"conv_transpose2d": "conv_transpose", "conv2d_grad_x": "conv"}
SMALL = {"N": 1, "Co": 2, "Ci": 3, "C": 3, "groups": 1}


def special(name: str, values: Mapping[str, int]) -> tuple[Program, Kernel, Contraction]:
    """The kernel of an op for these values, and the strided product of matrices that it is."""
    ops = compiler.check_source(compiler.read_source(SPECS / f"{OPS[name]}.op"))
    (op,) = (member.op for member in derive(ops, 1) if member.op.name == name)
    known = {*op.sizes, *attributes_of(op)}
    given = {**(default_values(op) or {}), **values}
    op = specialise(op, {n: value for n, value in given.items() if n in known})
    program = schedule(op, gather(op))
    (kernel,) = program.kernels
    found = transposed(kernel, program, op)
    assert found is not None
    assert with_contractions(program, program, op).kernels[0].contraction == by_phase(found)
    return program, kernel, found


def attributes(stride: int, padding: int, dilation: int, window: int) -> dict[str, int]:
    """Those of both axes of an image."""
    found = {"K": window, "L": window, "groups": 1}
    for at in (0, 1):
        found |= {f"stride[{at}]": stride, f"padding[{at}]": padding, f"dilation[{at}]": dilation}
    return found


# ---------------------------------------------------------------------------- the same terms
Point = tuple[int, ...]


def points(axes: tuple[Axis, ...], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    extents = [range(axis.extent.evaluate(sizes)) for axis in axes]
    for values in itertools.product(*extents):
        yield {**sizes, **{axis.name: at for axis, at in zip(axes, values, strict=True)}}


def hold(conditions: tuple[Condition, ...], values: Mapping[str, int]) -> bool:
    return all(condition.holds(values) for condition in conditions)


def terms(found: Contraction, sizes: Mapping[str, int]) -> Counter[tuple[Point, Point, Point]]:
    """The elements that are multiplied for each element that is stored, with how often they are."""
    (store,) = (node for node in walk(found.tail) if isinstance(node, Store))
    axes = (*found.batch, *found.rows, *found.columns, *found.terms)
    counted: Counter[tuple[Point, Point, Point]] = Counter()
    for at in points(axes, sizes):
        if hold((*found.cells, *found.left.conditions, *found.right.conditions), at):
            stored, left, right = (
                tuple(index.evaluate(at) for index in indices)
                for indices in (store.indices, found.left.load.indices, found.right.load.indices)
            )
            counted[stored, left, right] += 1
    return counted


def cells(found: Contraction, sizes: Mapping[str, int]) -> Counter[Point]:
    """The elements that are stored, with how often they are."""
    (store,) = (node for node in walk(found.tail) if isinstance(node, Store))
    axes = (*found.batch, *found.rows, *found.columns)
    return Counter(
        tuple(index.evaluate(at) for index in store.indices)
        for at in points(axes, sizes)
        if hold(found.cells, at)
    )


def multiplied(found: Contraction, sizes: Mapping[str, int]) -> int:
    axes = (*found.batch, *found.rows, *found.columns, *found.terms)
    return math.prod(axis.extent.evaluate(sizes) for axis in axes)


def sizes_of(program: Program, height: int, width: int) -> dict[str, int]:
    """Sizes of a small call whose kernels go over cells of this height and width."""
    found = {name: SMALL.get(name, 3) for name in program.integers}
    (kernel,) = program.kernels
    *_, down, across = kernel.axes
    for axis, size in ((down, height), (across, width)):
        assert axis.extent.symbol is not None
        found[axis.extent.symbol] = size
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "window"),
    [(2, 0, 1, 2), (2, 1, 1, 3), (2, 1, 3, 3), (3, 2, 2, 4), (3, 0, 1, 2), (4, 1, 3, 2)],
)
def test_terms_stay_the_same(
    name: str, stride: int, padding: int, dilation: int, window: int
) -> None:
    program, _, found = special(name, attributes(stride, padding, dilation, window))
    split = by_phase(found)
    assert split.steps == ()
    for height, width in ((1, 4), (5, 7)):
        sizes = sizes_of(program, height, width)
        wanted = terms(found, sizes)
        assert terms(split, sizes) == wanted
        assert cells(split, sizes) == cells(found, sizes)
        assert max(wanted.values(), default=1) == 1
    sizes = sizes_of(program, 4 * stride, 4 * stride)
    taps = (-(-window // stride) / window) ** 2
    assert multiplied(split, sizes) == taps * multiplied(found, sizes)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "window"),
    [(1, 1, 1, 3), (2, 1, 2, 3), (6, 0, 4, 3), (2, 0, 1, 1)],
)
def test_products_that_are_not_split(stride: int, padding: int, dilation: int, window: int) -> None:
    """No stride, dilations that have a factor in common with it, and no other tap."""
    _, _, found = special("conv_transpose2d", attributes(stride, padding, dilation, window))
    assert by_phase(found) is found


def test_strides_that_are_not_known_stay() -> None:
    (op,) = (
        op
        for op in compiler.check_source(compiler.read_source(SPECS / "conv_transpose.op"))
        if op.name == "conv_transpose2d"
    )
    program = schedule(op, gather(op))
    found = transposed(program.kernels[0], program, op)
    assert found is not None and by_phase(found) is found


def test_names_that_are_taken() -> None:
    """An index for the remainder has another name than all that there is."""
    _, _, found = special("conv_transpose2d", attributes(2, 0, 1, 2))
    (phase, *_) = (axis.name for axis in by_phase(found).batch)
    taken = replace(found, batch=(Axis(phase, found.terms[-1].extent),))
    names = [axis.name for axis in by_phase(taken).batch]
    assert names[0] == phase
    assert len(set(names)) == len(names) == 3


# ---------------------------------------------------------------------------- what they give
@pytest.fixture(scope="module")
def convolutions() -> ModuleType:
    return opgen.load(SPECS / "conv.op")


@pytest.fixture(scope="module")
def transposed_ones() -> ModuleType:
    return opgen.load(SPECS / "conv_transpose.op")


def integers(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Small ones, so that sums of their products are exact in every order, and in 16 bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).to(dtype)


FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CALLS = [
    pytest.param(torch.bfloat16, "contiguous", 1, id="bf16"),
    pytest.param(torch.float32, "contiguous", 1, id="f32", marks=pytest.mark.slow),
    pytest.param(torch.float64, "channels_last", 2, id="f64 groups", marks=pytest.mark.slow),
    pytest.param(torch.bfloat16, "channels_last", 2, id="bf16 groups", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dtype", "layout", "groups"), CALLS)
def test_transposed_convolutions(
    transposed_ones: ModuleType, dtype: torch.dtype, layout: str, groups: int
) -> None:
    """Cells that a stride does not divide, a window it does not either, and a bias."""
    x = integers(2, 6, 5, 3, seed=0, dtype=dtype).to(memory_format=FORMATS[layout])
    w, b = integers(6, 5, 3, 3, seed=1, dtype=dtype), integers(5 * groups, seed=2, dtype=dtype)
    options = {"stride": 2, "padding": 1, "groups": groups}
    with emulated(products=Products.ALWAYS) as launches:
        got = transposed_ones.conv_transpose2d(x, w, b, **options)
    assert launches.kernels == {"conv_transpose2d_y_product"}
    assert got.shape[-2:] == (9, 5)
    assert torch.equal(got, F.conv_transpose2d(x.double(), w.double(), b.double(), **options))


@pytest.mark.slow
@pytest.mark.parametrize("stride", [2, (3, 2)])
@pytest.mark.parametrize(("dtype", "layout", "groups"), CALLS)
def test_gradients_of_images(
    convolutions: ModuleType,
    dtype: torch.dtype,
    layout: str,
    groups: int,
    stride: int | tuple[int, int],
) -> None:
    x = integers(2, 6, 7, 9, seed=0, dtype=dtype).to(memory_format=FORMATS[layout])
    w = integers(10, 6 // groups, 3, 3, seed=1, dtype=dtype)
    options = {"stride": stride, "padding": (1, 2), "groups": groups}
    with emulated(products=Products.ALWAYS) as launches:
        y = convolutions.conv2d(x.requires_grad_(), w, **options)
        flowing = integers(*y.shape, seed=2, dtype=dtype)
        (got,) = torch.autograd.grad(y, x, flowing)
    assert "conv2d_grad_x_grad_x_product" in launches.kernels
    exact = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(F.conv2d(exact, w.double(), **options), exact, flowing.double())
    assert torch.equal(got, wanted.to(dtype))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_stay_where_they_are(
    transposed_ones: ModuleType, value: float
) -> None:
    """Taps that are left over beside them are absent, and make no NaN."""
    x = integers(2, 6, 5, 3, seed=0, dtype=torch.bfloat16)
    w = integers(6, 5, 3, 3, seed=1, dtype=torch.bfloat16).abs() + 1
    x[0, 1, 2, 1] = value
    options = {"stride": 2, "padding": 1}
    with emulated(products=Products.ALWAYS):
        got = transposed_ones.conv_transpose2d(x, w, **options)
    wanted = F.conv_transpose2d(x.double(), w.double(), **options).to(x)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_a_wrong_tap_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the taps of another remainder."""
    program, _, found = special("conv_transpose2d", attributes(2, 1, 1, 3))
    step = cuda_phases._first_step
    moved = lambda given: (at := step(given)) and replace(at, rest=at.rest + 1)  # noqa: E731
    monkeypatch.setattr(cuda_phases, "_first_step", moved)
    sizes = sizes_of(program, 5, 7)
    assert terms(by_phase(found), sizes) != terms(found, sizes)


# ---------------------------------------------------------------------------- machine code
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", OPS)
def test_registers(name: str, architecture: str) -> None:
    """Threads multiply numbers of 32 and 64 bits, tensor cores those of 16."""
    program, kernel, found = special(name, attributes(2, 1, 1, 3))
    program = replace(program, kernels=(replace(kernel, contraction=by_phase(found)),))
    for shared, kind, tile in (("f32", 0, 128), ("f64", 0, 64), ("bf16", 1, 128)):
        if kind and architecture == "sm_75":
            continue
        real = "f64" if shared == "f64" else "f32"
        plan = f"{kind}, {tile}, 2, 1, 0, 0, 0, 0, 1, 0"
        text = prelude.cuda(True) + prelude.bindings(shared, real, {}) + cuda_tiles.SOURCE
        text += f"#define product_of_{kernel.name} {plan}\n" + cuda_text(program)
        compiled = nvrtc.compile_cuda(text, architecture)
        (use,) = (k for k in compiled.kernels if k.name == f"{kernel.name}_product")
        assert not use.spills, (shared, use)
