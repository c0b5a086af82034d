"""Terms without loads in common: sums go pixel by pixel, and one pass computes both gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.algebra.poly import poly, symbol
from opgen.compiler import check_source, read_source
from opgen.ir.cells import to_array
from opgen.ir.context import facts_of
from opgen.ir.loops import Load, Program, Store, walk
from opgen.on_demand import special_source
from opgen.passes.apart import are_apart
from opgen.passes.blocks import with_blocks
from opgen.passes.differentiate import derivative
from opgen.passes.gather import gather
from opgen.passes.one_pass import with_one_pass
from opgen.passes.relayout import channels_last, relayout
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.separate import rejoined, separated
from opgen.passes.specialise import specialise
from opgen.runtime import partners
from opgen.testing.run_loops import run

TYPES = [
    torch.float32,
    pytest.param(torch.float64, marks=pytest.mark.slow),
    pytest.param(torch.float16, marks=pytest.mark.slow),
    torch.bfloat16,
]
TEXT = (SPECS / "conv_transpose.op").read_text()


@pytest.fixture(autouse=True)
def kernels_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No case runs on general kernels because there were many before it."""
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "1000")


def loads(step: int, *offsets: tuple[int, int]) -> list[Load]:
    """Elements `x[step*h + i, step*w + j]` of a window."""
    h, w = symbol("h"), symbol("w")
    return [Load("x", (h * step + i, w * step + j)) for i, j in offsets]


WINDOW = list(itertools.product(range(2), range(2)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (loads(2, *WINDOW), True),
        (loads(3, *WINDOW), True),
        (loads(1, *WINDOW), False),
        (loads(1, (0, 0)), True),
        (loads(2, (0, 0), (0, 2)), False),
        (loads(2, (0, 0), (1, 2)), True),  # never in the same row
        (loads(2, (0, 0), (2, 1)), True),  # never in the same column
        ([Load("x", (symbol("h"), poly(0)))], False),  # the same for every column
        ([Load("x", (symbol("h") + symbol("w"), poly(0)))], False),
        ([Load("x", (symbol("h") * symbol("s"), symbol("w")))], False),
        ([*loads(2, *WINDOW), Load("y", (symbol("h"), symbol("w")))], True),
    ],
)
def test_whether_points_share_loads(given: list[Load], expected: bool) -> None:
    assert are_apart(given, ["h", "w"]) == expected
    elements = [
        (load.tensor, *(index.evaluate({"h": h, "w": w, "s": 0}) for index in load.indices))
        for h, w in itertools.product(range(5), repeat=2)
        for load in given
    ]
    # What is apart for all sizes is apart for these. Of a symbol that may be 0 nothing is known.
    assert not expected or len(set(elements)) == len(elements)


# ---------------------------------------------------------------------------- kernels
def geometry(size: tuple[int, int], window: int = 2, stride: int = 2) -> dict[str, int]:
    given = {"stride": stride, "padding": 0, "output_padding": 0, "dilation": 1}
    values = {f"{name}[{at}]": value for name, value in given.items() for at in (0, 1)}
    out = [stride * (each - 1) + window for each in size]
    sizes = {"H": size[0], "W": size[1], "OH": out[0], "OW": out[1]}
    return values | sizes | {"Ci": 1, "Co": 1, "K": window, "L": window}


LAYOUT = 13
"""Image, cotangent and the image's gradient in channels-last format."""


def source(values: dict[str, int], layout: int = LAYOUT) -> str:
    path = "conv_transpose2d", "x,weight"
    return special_source(TEXT, "conv_transpose.op", path, values, layout)


def test_where_one_kernel_does_the_work_of_two() -> None:
    assert "is_one_pass" in source(geometry((8, 8)))
    assert "is_one_pass" in source(geometry((7, 9)))
    assert "is_one_pass" not in source(geometry((8, 8), window=3))  # windows overlap
    assert "is_one_pass" not in source(geometry((8, 8)), layout=0)
    alone = ("conv_transpose2d", "weight")
    text = special_source(TEXT, "conv_transpose.op", alone, geometry((8, 8)), 3)
    assert "joined" in text
    assert "is_one_pass" not in text


def test_that_kernel_has_two_vectors_of_each_cell() -> None:
    """The sums begin, go on and end in pairs alike; without other cells they stay as they are."""
    text = source(geometry((8, 8)))
    both = text[text.index("_and_grad_x(") :]
    both = both[: both.index("\n}\n")]
    assert both.count("#if PAIRED_LANES") == both.count("g += 2 * LANES) {") == 3
    assert "is_one_pass = groups >= LANES * (1 + PAIRED_LANES)" in text
    assert "total_1_1_next += " in both
    assert "pair_to_or_past_T(&grad_x[" in both
    alone = ("conv_transpose2d", "weight")
    text = special_source(TEXT, "conv_transpose.op", alone, geometry((8, 8)), 3)
    assert "PAIRED_LANES" not in text


def both_programs(values: dict[str, int]) -> tuple[Program, Program]:
    """The program of cells for the gradients of image and filter, and the one with blocks."""
    op = {each.name: each for each in check_source(read_source(SPECS / "conv_transpose.op"))}
    found = derivative(op["conv_transpose2d"], "x,weight").op
    special = specialise(relayout(found, channels_last(found, LAYOUT)), values)
    plain = schedule(special, gather(special))
    parts = []
    for part in separated(special):
        cells = schedule(part, gather(part))
        parts.append(with_blocks(cells, rows(cells, facts_of(part))))
    return plain, with_one_pass(plain, rejoined(plain, parts))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("size", "pixels"), [((2, 3), 3), ((3, 2), 2), ((1, 5), 1), ((2, 4), 2), ((1, 6), 2)]
)
def test_one_kernel_computes_what_two_do(size: tuple[int, int], pixels: int) -> None:
    values = geometry(size)
    plain, joined = both_programs(values)
    *others, last = joined.kernels
    assert sum(isinstance(n, Store) and n.tensor == "grad_x" for n in walk(last.body)) == pixels
    assert set(last.all_written) == {"grad_x", "grad_weight"}
    random = np.random.default_rng(0)
    known = {**dict.fromkeys(plain.integers, 1), **values, "groups": 19, "N": 2}
    integers = {name: known[name] for name in plain.integers}
    tensors = {
        each.name: random.normal(size=[extent.evaluate(known) for extent in each.extents])
        for each in plain.operands
        if each.name not in last.all_written
    }
    wanted, _ = run(plain, tensors, integers)
    found, _ = run(joined, tensors, integers)  # all threads have points enough
    for name in last.all_written:
        pair = [to_array(each[name], np.dtype(np.float64)) for each in (wanted, found)]
        np.testing.assert_allclose(pair[1], pair[0], rtol=1e-12, atol=1e-12)
    assert sum(kernel.unless is not None for kernel in others) == 2


# ---------------------------------------------------------------------------- numbers
@pytest.fixture(scope="module")
def transposed() -> Any:
    return opgen.load(SPECS / "conv_transpose.op").conv_transpose2d


def image(*shape: int, dtype: torch.dtype) -> Tensor:
    """A random image in channels-last format."""
    generator = torch.Generator().manual_seed(sum(shape))
    found = torch.randn(shape, generator=generator).to(dtype)
    return found.contiguous(memory_format=torch.channels_last)


def check(own: Tensor, exact: Tensor, terms: int) -> None:
    """Whether sums of that many terms agree with those in float64; they are rounded once."""
    eps = torch.finfo(own.dtype).eps
    bound = eps + 2 * terms * (2**-52 if own.dtype == torch.float64 else 2**-23)
    assert own.shape == exact.shape
    assert (own.double() - exact).abs().max() <= bound * exact.abs().max().clamp(min=1)


SHAPES = [
    (1, 2048, 8, 8),
    (1, 2300, 8, 8),
    (2, 1300, 8, 8),
    (2, 1025, 7, 9),
    (2, 255, 8, 8),
    (20, 17, 7, 9),
]
"""Many stretches of channels, more than run as one, one that is longer than others, and few."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What computes both gradients of each call, None where nothing does."""
    found: list[object] = []
    ask = partners.partners

    def listening(*given: Any) -> Any:
        found.append(ask(*given))
        return found[-1]

    monkeypatch.setattr(partners, "partners", listening)
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_of_image_and_filter(
    dtype: torch.dtype, threads: int, seen: list[object]
) -> None:
    transposed = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    for n, channels, height, width in SHAPES:
        x = image(n, channels, height, width, dtype=dtype).requires_grad_()
        weight = torch.randn(channels, 1, 2, 2).to(dtype).requires_grad_()
        cotangent = image(n, channels, 2 * height, 2 * width, dtype=dtype)
        result = transposed(x, weight, stride=2, groups=channels)
        # A graph of the backward pass asks for each gradient by itself.
        alone = torch.autograd.grad(result, (x, weight), cotangent, create_graph=True)
        together = torch.autograd.grad(result, (x, weight), cotangent, retain_graph=True)
        assert all(map(torch.equal, alone, together))
        exact = [each.detach().double().requires_grad_() for each in (x, weight)]
        wide = F.conv_transpose2d(*exact, stride=2, groups=channels)
        wanted = torch.autograd.grad(wide, exact, cotangent.double())
        for own, other, terms in zip(together, wanted, (4, n * height * width), strict=True):
            check(own, other, terms)
    assert seen
    assert None not in seen


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("flags", ["-O1 -march=x86-64", "-O1 -march=x86-64-v3"])
def test_other_instructions(
    flags: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, seen: list[object]
) -> None:
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    op = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    for n, channels, height, width in SHAPES[1:4]:
        x = image(n, channels, height, width, dtype=dtype).requires_grad_()
        weight = torch.randn(channels, 1, 2, 2).to(dtype).requires_grad_()
        cotangent = image(n, channels, 2 * height, 2 * width, dtype=dtype)
        result = op(x, weight, stride=2, groups=channels)
        found = torch.autograd.grad(result, (x, weight), cotangent)
        exact = [each.detach().double().requires_grad_() for each in (x, weight)]
        wide = F.conv_transpose2d(*exact, stride=2, groups=channels)
        wanted = torch.autograd.grad(wide, exact, cotangent.double())
        for own, other, terms in zip(found, wanted, (4, n * height * width), strict=True):
            check(own, other, terms)
    assert seen
    assert None not in seen


def test_results_that_others_read_are_there_in_time() -> None:
    text = """op windows_read_by_others(x[N,C,H,W], g[N,C,2*H,2*W], w[C,K,L])
    -> y[N,C,H,W], z[C,K,L], more[N,C,H,W]
  y[n,c,i,j] = sum(k,l) g[n,c, 2*i+k ?0, 2*j+l ?0] * w[c,k,l]
  z[c,k,l] = sum(n,i,j) x[n,c,i,j] * g[n,c, 2*i+k ?0, 2*j+l ?0]
  more[n,c,i,j] = y[n,c,i,j] + 1
"""
    op = opgen.compile(text).windows_read_by_others
    x, g = (image(4, 256, size, size, dtype=torch.float32) for size in (8, 16))
    weight = torch.randn(256, 2, 2)
    y, z, more = op(x, g, weight)
    wide = g.double(), weight[:, None].double()
    wanted = F.conv2d(*wide, stride=2, groups=256)
    check(y, wanted, 4)
    check(more, wanted + 1, 4)
    filters = F.unfold(wide[0], 2, stride=2).reshape(4, 256, 2, 2, 8, 8)
    check(z, torch.einsum("nchw,ncklhw->ckl", x.double(), filters), 256)


def test_channels_of_a_larger_image(transposed: Any) -> None:
    """Pixels lie further apart than they have channels."""
    x = image(2, 1400, 8, 8, dtype=torch.float32)[:, 50:1350].requires_grad_()
    cotangent = image(2, 1310, 16, 16, dtype=torch.float32)[:, :1300]
    weight = torch.randn(1300, 1, 2, 2, requires_grad=True)
    result = transposed(x, weight, stride=2, groups=1300)
    found = torch.autograd.grad(result, (x, weight), cotangent)
    exact = [each.detach().double().requires_grad_() for each in (x, weight)]
    wide = F.conv_transpose2d(*exact, stride=2, groups=1300)
    wanted = torch.autograd.grad(wide, exact, cotangent.double())
    for own, other, terms in zip(found, wanted, (4, 128), strict=True):
        check(own, other, terms)


def test_numbers_that_are_not_finite(transposed: Any) -> None:
    """They stay with their pixels and channels."""
    x, cotangent = (image(3, 1100, size, size, dtype=torch.float32) for size in (8, 16))
    weight = torch.randn(1100, 1, 2, 2)
    x[1, 3, 7, 3], weight[1099, 0, 1, 0], cotangent[2, 1031, 7, 15] = np.inf, np.nan, -np.inf
    inputs = [x.requires_grad_(), weight.requires_grad_()]
    result = transposed(*inputs, stride=2, groups=1100)
    found = torch.autograd.grad(result, inputs, cotangent)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    wide = F.conv_transpose2d(*exact, stride=2, groups=1100)
    wanted = torch.autograd.grad(wide, exact, cotangent.double())
    for own, other in zip(found, wanted, strict=True):
        assert torch.equal(own.isfinite(), other.isfinite())


def test_nothing(transposed: Any) -> None:
    x, cotangent = (image(0, 1300, size, size, dtype=torch.float32) for size in (8, 16))
    weight = torch.ones(1300, 1, 2, 2, requires_grad=True)
    result = transposed(x.requires_grad_(), weight, stride=2, groups=1300)
    found = torch.autograd.grad(result, (x, weight), cotangent)
    assert found[0].shape == x.shape
    assert torch.equal(found[1], torch.zeros_like(weight))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_filters_of_windows_side_by_side(dtype: torch.dtype, threads: int) -> None:
    """The result, and its gradients, of a filter of 2x2 in steps of 2."""
    op = opgen.load(SPECS / "conv.op").conv2d
    for n, channels, height, width in [(2, 1300, 4, 6), (9, 131, 8, 14)]:
        x = image(n, channels, height, width, dtype=dtype).requires_grad_()
        weight = torch.randn(channels, 1, 2, 2).to(dtype).requires_grad_()
        result = op(x, weight, stride=2, groups=channels)
        cotangent = image(*result.shape, dtype=dtype)
        found = result, *torch.autograd.grad(result, (x, weight), cotangent)
        exact = [each.detach().double().requires_grad_() for each in (x, weight)]
        wide = F.conv2d(*exact, stride=2, groups=channels)
        wanted = wide, *torch.autograd.grad(wide, exact, cotangent.double())
        for own, other, terms in zip(found, wanted, (4, 1, n * height * width), strict=True):
            check(own.detach(), other.detach(), terms)
