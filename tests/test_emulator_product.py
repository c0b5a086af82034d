"""Sums of products as products of matrices: which are, when they run so, and that they are right.

Kernels run in the emulator with every check, and are compared with PyTorch's own ops in double
precision; the bound follows from the number of terms and the type. NVIDIA's compiler is asked for
tensor cores, and for no spilled register.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.errors import Source
from opgen.ir.contraction import Contraction
from opgen.lang.read import read
from opgen.passes.cuda_product import contraction, transposed
from opgen.passes.derive import derive
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.programs import special_threads
from opgen.runtime import cuda, cuda_product, cuda_tiles, evaluation, library, lookup_library
from opgen.testing import nvrtc, sass
from opgen.testing.cuda_on_cpu import Report
from opgen.testing.cuda_on_cpu.emulated import Products, emulated
from opgen.testing.cuda_on_cpu.launch import Order
from opgen.testing.cuda_on_cpu.traffic import bank_conflicts

MATRICES = """
op product(a: float[B,M,K], b[B,K,N], scale[M] = 1) -> c[B,M,N]
  c[i,m,n] = scale[m] * sum(k) a[i,m,k] * b[i,k,n]
"""


@cache
def module(stem: str) -> ModuleType:
    return opgen.load(SPECS / f"{stem}.op")


@cache
def matrices() -> ModuleType:
    return opgen.compile(MATRICES)


# ---------------------------------------------------------------------------- which kernels are
def found_in(text: str) -> list[Contraction | None]:
    """For each kernel of the only op of a spec, the product of matrices that it is."""
    (op,) = read(Source(text))
    program = schedule(op, gather(op))
    return [contraction(kernel, program) for kernel in program.kernels]


def names(found: Contraction | None) -> tuple[str, ...]:
    assert found is not None
    groups = (found.batch, found.rows, found.columns, found.terms)
    return tuple(" ".join(axis.name for axis in axes) for axes in groups)


def test_a_product_of_matrices() -> None:
    (found,) = found_in(
        "op f(a: float[B,M,K], b[B,K,N]) -> c[B,M,N]\n  c[i,m,n] = sum(k) a[i,m,k] * b[i,k,n]\n"
    )
    assert names(found) == ("i", "m", "n", "k")
    assert found is not None and not found.is_conditional


def test_a_window_with_zeros_around_it() -> None:
    (found,) = found_in(
        "op f(x: float[N,C,W], w[O,C,L]; padding = 1) -> y[N,O,V]\n"
        "  where padding >= 0\n  let V = W + 2*padding - L + 1\n"
        "  y[n,o,v] = sum(c,l) x[n,c, v + l - padding ?0] * w[o,c,l]\n"
    )
    assert names(found) == ("", "o", "n v", "c l")
    assert found is not None
    assert found.right.load.tensor == "x" and not found.left.conditions
    assert sorted(map(str, found.right.conditions)) == [
        "W + padding - l - v - 1 >= 0",
        "l + v - padding >= 0",
    ]


def test_what_stands_around_a_term() -> None:
    """Taps of one term each, and of a stride, which leaves out terms."""
    (found,) = found_in(
        "op f(x: float[N,C,W], w[O,C,2]) -> y[N,O,V]\n  let V = W//2\n"
        "  y[n,o,v] = sum(c,l) x[n,c, 2*v + l] * w[o,c,l]\n"
    )
    assert names(found) == ("", "o", "n v", "c l")
    grad = "op g(y: float[N,O,V], w[O,C,3]; W: size) -> x[N,C,W]\n"
    grad += "  x[n,c, 2*v + l ?drop] += y[n,o,v] * w[o,c,l]\n"
    (op,) = read(Source(grad))
    program = schedule(op, gather(op))
    (kernel,) = program.kernels
    found = transposed(kernel, program, op)
    assert names(found) == ("", "c", "n w", "l o") and found is not None
    assert [str(step) for step in found.steps] == ["2"]


@pytest.mark.parametrize("layout", [0b000, 0b110, 0b111])
def test_which_of_two_factors_has_the_taps(layout: int) -> None:
    """Either may be the filter by its indices; the one whose taps are known numbers is, in any
    order of dims: of all pixels only few have a term for a cell."""
    ops = check_source(read_source(SPECS / "conv.op"))
    (op,) = (each.op for each in derive(ops, 1) if each.op.name == "conv2d_grad_x")
    geometry = {f"{name}[{at}]": 1 for name in ("stride", "padding", "dilation") for at in (0, 1)}
    program, _, _ = special_threads(op, {"K": 3, "L": 3, **geometry}, layout)
    (kernel,) = program.kernels
    found = kernel.contraction
    assert found is not None
    assert sorted(axis.name for axis in found.terms) == ["k", "l", "o"]
    pixels = found.rows if layout else found.columns
    assert pixels[0].name == "n" and len(pixels) == 3


def test_an_iterator_that_has_the_name_of_an_axis() -> None:
    """The tap w is not the column that the kernel calls w, though there are as many of both."""
    text = "op g(y: float[N,O,W], k[O,C,W]) -> x[N,C,W]\n"
    text += "  x[n,c, 2*v + w ?drop] += y[n,o,v] * k[o,c,w]\n"
    settings = Settings(torch.float64)
    y, k = (each.detach() for each in tensors(settings, (2, 3, 6), (3, 5, 6)))
    with emulated() as launches, forced(settings):
        got = opgen.compile(text).g(y, k)
    wanted = F.conv_transpose1d(y, k, stride=2)[..., :6]
    torch.testing.assert_close(got, wanted)
    assert launches.reports


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shape", "window", "how"),
    [
        ((2, 2, 2, 5), (1, 1), {"stride": (3, 1), "padding": (0, 2)}),
        ((2, 2, 4, 5), (1, 3), {"padding": (1, 1)}),
        ((1, 6, 5, 10), (2, 3), {"stride": (2, 3), "padding": (1, 0), "dilation": (2, 2)}),
    ],
)
def test_each_factor_is_loaded_where_it_is(
    shape: tuple[int, ...], window: tuple[int, int], how: dict[str, Any]
) -> None:
    """A condition on terms alone is one of both factors: either would be read outside of itself.

    The emulator stops at a read that is outside of a tensor.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randint(-3, 4, sizes, generator=generator).double().requires_grad_()

    x, w = drawn(*shape), drawn(4, shape[1], *window)
    theirs = F.conv2d(x, w, **how)
    flowing = drawn(*theirs.shape).detach()
    with lookup_library.suspended(), emulated(products=Products.ALWAYS) as launches:
        ours = opgen.load(SPECS / "conv.op").conv2d(x, w, **how)
        found = torch.autograd.grad(ours, (x, w), flowing)
    assert all("_product" in report.kernel for report in launches.reports)
    for one, other in zip(
        (ours, *found), (theirs, *torch.autograd.grad(theirs, (x, w), flowing)), strict=True
    ):
        assert one.equal(other)


@pytest.mark.parametrize(
    "text",
    [
        # Each pixel of y has a filter of its own: no element of w serves two cells.
        "op f(x: float[N,C,H], w[N,C,K,H]) -> y[N,C,H]\n"
        "  y[n,c,h] = sum(k) x[n,c, h + k ?0] * w[n,c,k,h]\n",
        # The maximum of products.
        "op f(a: float[M,K], b[K,N]) -> c[M,N]\n  c[m,n] = max(k) a[m,k] * b[k,n]\n",
        # A sum, and not of a product.
        "op f(a: float[M,K], b[K,N]) -> c[M,N]\n  c[m,n] = sum(k) (a[m,k] + b[k,n])\n",
        # Three factors.
        "op f(a: float[M,K], b[K,N]) -> c[M,N]\n  c[m,n] = sum(k) a[m,k] * b[k,n] * a[m,0]\n",
        # A factor that is no element.
        "op f(a: float[M,K], b[K,N]) -> c[M,N]\n  c[m,n] = sum(k) exp(a[m,k]) * b[k,n]\n",
        # An element that one of two may be absent for.
        "op f(a: float[M,K], b[K,N]) -> c[M,N]\n"
        "  c[m,n] = sum(k if m + k + n > 3) a[m,k] * b[k,n]\n",
        # Rows of integers.
        "op f(a: i32[M,K], b: i32[K,N]) -> c: i32[M,N]\n  c[m,n] = sum(k) a[m,k] * b[k,n]\n",
        # A number of terms that another tensor tells.
        "op f(a: float[M,K], b[K,N], len: int[1]) -> c[M,N]\n"
        "  c[m,n] = sum(k if k < len[0] + m - n) a[m,k] * b[k,n]\n",
    ],
    ids=["filters", "max", "sum", "three", "function", "guard", "integers", "lengths"],
)
def test_what_is_close_to_one(text: str) -> None:
    assert all(found is None for found in found_in(text))


# ---------------------------------------------------------------------------- calls
@dataclass(frozen=True)
class Settings:
    """Types and layout of a call; `tile` is how large tiles are, `share` the terms of a block."""

    dtype: torch.dtype
    tile: int = 64
    channels_last: bool = False
    tf32: bool = False
    share: int = 10**9


@contextlib.contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """Whether products of 32-bit numbers may be rounded to TF32."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


UNIT = {
    torch.float64: 2.0**-52,
    torch.float32: 2.0**-23,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
}


def tensors(settings: Settings, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Numbers around 0 that need gradients."""
    generator = torch.Generator().manual_seed(len(shapes))
    found = []
    for shape in shapes:
        made = torch.randn(shape, generator=generator).to(settings.dtype)
        if settings.channels_last and made.dim() == 4:
            made = made.to(memory_format=torch.channels_last)
        found.append(made.requires_grad_())
    return found


Op = Callable[..., torch.Tensor]


@contextlib.contextmanager
def forced(settings: Settings) -> Iterator[None]:
    """Products of matrices of any size run as such, by tiles of this one."""
    with (
        precision(settings.tf32),
        mock.patch.object(cuda_product, "LEAST_TERMS", 0),
        mock.patch.object(cuda_product, "BY_CELLS", math.inf),
        mock.patch.object(cuda_product, "LEAST_SHARE", settings.share),
        mock.patch.object(cuda_product, "ENOUGH_BLOCKS", 1 if settings.tile == 128 else 10**9),
    ):
        yield


def run(
    op: Op, settings: Settings, inputs: list[torch.Tensor], trace: bool = False
) -> tuple[list[torch.Tensor], list[Report]]:
    """The result of an op and its gradients, computed by products of matrices of one tile size."""
    with emulated(trace=trace) as launches, forced(settings):
        result = op(*inputs)
        flowing = torch.randn(result.shape, generator=torch.Generator().manual_seed(9))
        gradients = torch.autograd.grad(result, inputs, flowing.to(result.dtype))
    return [result, *gradients], launches.reports


def compare(op: Op, equivalent: Op, settings: Settings, inputs: list[torch.Tensor]) -> list[Report]:
    """Run an op and its gradients, and compare every element with PyTorch in double precision.

    A sum of n products, each rounded by a unit u and added in 32 or 64 bits, is off by no more than
    n + 2 units of what the magnitudes add up to, beside the rounding of the result.
    """
    got, reports = run(op, settings, inputs)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    result = equivalent(*exact)
    flowing = torch.randn(result.shape, generator=torch.Generator().manual_seed(9))
    flowing = flowing.to(settings.dtype).double()
    wanted = [result, *torch.autograd.grad(result, exact, flowing)]
    sizes = [each.detach().abs().requires_grad_() for each in exact]
    total = equivalent(*sizes)
    scale = [total, *torch.autograd.grad(total, sizes, flowing.abs())]
    computed = torch.float64 if settings.dtype is torch.float64 else torch.float32
    # Of any of the sums: what a cell is made of, or what is made of an element of an input.
    terms = max(math.prod(each.shape[1:]) for each in (*inputs, result))
    for mine, theirs, size in zip(got, wanted, scale, strict=True):
        rounding = (terms + 2) * UNIT[computed] + (2.0**-10 if settings.tf32 else 0)
        bound = UNIT[settings.dtype] * theirs.abs() + rounding * size
        worst = ((mine.double() - theirs).abs() - bound).max().item()
        assert worst <= 0, worst
    return reports


def products(reports: list[Report]) -> list[str]:
    """The kernels that ran as products of matrices."""
    return [each.kernel for each in reports if each.kernel.endswith("_product")]


CASES = {
    "float32": Settings(torch.float32),
    "large tiles": Settings(torch.float32, 128),
    "float64": Settings(torch.float64),
    "float16": Settings(torch.float16),
    "bfloat16": Settings(torch.bfloat16, 128),
    "tf32": Settings(torch.float32, tf32=True),
    "channels last": Settings(torch.bfloat16, channels_last=True),
    "shared terms": Settings(torch.float16, share=20),
    "shared terms float64": Settings(torch.float64, share=20),
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_a_convolution_with_its_gradients(settings: Settings) -> None:
    inputs = tensors(settings, (2, 8, 7, 9), (72, 8, 3, 3), (72,))
    reports = compare(
        lambda x, w, b: module("conv").conv2d(x, w, b, padding=1),
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        settings,
        inputs,
    )
    sums = [report.kernel for report in reports if report.kernel.endswith("_product_sum")]
    assert len(sums) == (3 if settings.share < 10**9 else 0)
    assert products(reports) == [
        "conv2d_y_product",
        "conv2d_grad_x_grad_x_product",
        "conv2d_grad_weight_grad_weight_product",
    ]


@pytest.mark.parametrize(
    "settings",
    [pytest.param(CASES["float32"], marks=pytest.mark.slow), CASES["bfloat16"]],
    ids=["f32", "bf16"],
)
def test_matrices(settings: Settings) -> None:
    """With an epilogue; sizes are no multiples of anything."""
    inputs = tensors(settings, (2, 67, 37), (2, 37, 71))
    reports = compare(lambda a, b: matrices().product(a, b), lambda a, b: a @ b, settings, inputs)
    assert len(products(reports)) == 3


@pytest.mark.slow
def test_groups_strides_and_dilations() -> None:
    settings = Settings(torch.float16)
    inputs = tensors(settings, (1, 12, 9, 11), (20, 6, 3, 2), (20,))
    options: dict[str, Any] = {"stride": (1, 2), "padding": (2, 1), "dilation": (2, 1), "groups": 2}
    reports = compare(
        lambda x, w, b: module("conv").conv2d(x, w, b, **options),
        lambda x, w, b: F.conv2d(x, w, b, **options),
        settings,
        inputs,
    )
    assert "conv2d_y_product" in products(reports)


@pytest.mark.slow
@pytest.mark.parametrize("special", ["0", "16"])
@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": (3, 1), "padding": (0, 2), "dilation": (2, 3)},
        {"stride": (2, 3), "padding": (2, 0), "dilation": (4, 1), "groups": 2},
    ],
)
def test_transposed_convolutions(
    options: dict[str, Any], special: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strides leave out terms; with kernels for all attributes, and for these."""
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", special)
    settings = Settings(torch.bfloat16)
    inputs = tensors(settings, (1, 16, 5, 4), (16, 10, 3, 2), (10 * options.get("groups", 1),))
    reports = compare(
        lambda x, w, b: module("conv_transpose").conv_transpose2d(x, w, b, **options),
        lambda x, w, b: F.conv_transpose2d(x, w, b, **options),
        settings,
        inputs,
    )
    assert products(reports) == [
        "conv_transpose2d_y_product",
        "conv_transpose2d_grad_x_grad_x_product",
        "conv_transpose2d_grad_weight_grad_weight_product",
    ]


@pytest.mark.slow
def test_gradients_of_convolutions_with_strides() -> None:
    settings = Settings(torch.float32)
    inputs = tensors(settings, (2, 6, 8, 7), (12, 6, 3, 3))
    reports = compare(
        lambda x, w: module("conv").conv2d(x, w, padding=1, stride=(2, 3)),
        lambda x, w: F.conv2d(x, w, padding=1, stride=(2, 3)),
        settings,
        inputs,
    )
    assert len(products(reports)) == 3


def views(settings: Settings, kind: str) -> list[torch.Tensor]:
    """Factors that lie in memory in one of several ways."""
    a, b = (each.detach() for each in tensors(settings, (2, 40, 48), (2, 48, 40)))
    match kind:
        case "transposed":
            found = [a.mT.contiguous().mT, b.mT.contiguous().mT]
        case "sliced":
            found = [a[:, ::2, 3:35], b[:, 3:35, ::3]]
        case "expanded":
            found = [a[:1].expand(2, 40, 48), b[:, :1].expand(2, 48, 40)]
        case "shifted":  # the same strides, and no address is a multiple of 16 bytes
            found = [F.pad(a, (8, 8))[..., 9:-7], F.pad(b, (8, 8))[..., 9:-7]]
        case _:
            found = [a, b]
    return [each.requires_grad_() for each in found]


STRIDES = [
    "sliced",
    *(pytest.param(k, marks=pytest.mark.slow) for k in ("contiguous", "transposed", "expanded")),
    pytest.param("shifted", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("kind", STRIDES)
def test_any_strides(kind: str) -> None:
    settings = Settings(torch.bfloat16)
    inputs = views(settings, kind)
    compare(lambda a, b: matrices().product(a, b), lambda a, b: a @ b, settings, inputs)


@pytest.mark.parametrize(
    "settings",
    [CASES["float32"], pytest.param(CASES["float16"], marks=pytest.mark.slow)],
    ids=["f32", "f16"],
)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_absent_stays_absent_beside_numbers_that_are_not_finite(
    settings: Settings, value: float
) -> None:
    """A zero of the padding is no factor: infinite weights that meet it alone leave no trace."""
    x, w = (each.detach() for each in tensors(settings, (1, 4, 5, 5), (8, 4, 3, 3)))
    w[3, :, 0, :] = value  # meets the padding alone in the first row of the result
    w[5, 2, 2, 2] = value
    with emulated() as launches, forced(settings):
        got = module("conv").conv2d(x, w, padding=1)
    assert products(launches.reports) == ["conv2d_y_product"]
    wanted = torch.zeros(1, 8, 5, 5, dtype=torch.float64)
    a, b = x.double(), w.double()
    for i, j, k, m in itertools.product(range(5), range(5), range(3), range(3)):
        if 0 <= i + k - 1 < 5 and 0 <= j + m - 1 < 5:
            wanted[0, :, i, j] += (a[0, :, i + k - 1, j + m - 1] * b[:, :, k, m]).sum(1)
    assert torch.isfinite(wanted[0, 3, 0]).all() and not torch.isfinite(wanted[0, 3, 1]).any()
    torch.testing.assert_close(got.double(), wanted, rtol=2e-3, atol=2e-2, equal_nan=True)


def test_sums_of_no_terms() -> None:
    with emulated(), forced(Settings(torch.float32)):
        found = matrices().product(torch.ones(2, 64, 0), torch.ones(2, 0, 64))
    assert torch.equal(found, torch.zeros(2, 64, 64))


@pytest.mark.slow
@pytest.mark.parametrize("share", [10**9, 10])
def test_sums_are_the_same_in_every_run(share: int) -> None:
    settings = Settings(torch.float32, share=share)
    inputs = [each.detach() for each in tensors(settings, (2, 40, 48), (2, 48, 40))]
    found = []
    orders: tuple[Order, ...] = ("forward", "reverse", "random")
    for order in orders:
        with emulated(order), forced(settings):
            found.append(matrices().product(*inputs))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_tile_that_is_read_wrongly_is_noticed() -> None:
    """Negative control."""
    settings = Settings(torch.bfloat16)
    source = cuda_tiles.SOURCE.replace("unit + matrix % 2", "unit + matrix / 2")
    assert source != cuda_tiles.SOURCE
    inputs = tensors(settings, (2, 40, 48), (2, 48, 40))
    with mock.patch.object(cuda_tiles, "SOURCE", source), pytest.raises(AssertionError):
        compare(lambda a, b: matrices().product(a, b), lambda a, b: a @ b, settings, inputs)


# ---------------------------------------------------------------------------- memory
@pytest.mark.slow
@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_shared_memory_has_no_conflicts_beyond_two_ways(settings: Settings) -> None:
    inputs = tensors(settings, (1, 16, 8, 8), (72, 16, 3, 3))
    _, reports = run(
        lambda x, w: module("conv").conv2d(x, w, padding=1), settings, inputs, trace=True
    )
    for report in reports:
        assert bank_conflicts(report) <= 2, report.kernel


# ---------------------------------------------------------------------------- machine code
def launched(op: Op, settings: Settings, inputs: list[torch.Tensor]) -> list[tuple[str, str]]:
    """The sources and kernels of an op and its gradients, of products alone; nothing is run."""
    found: list[tuple[str, str]] = []

    def noting(launched: cuda.Launched) -> None:
        found.extend(("".join(launched.source), each.kernel) for each in launched.launches)

    with (
        mock.patch.object(cuda, "launch", noting),
        mock.patch.object(cuda, "capability", return_value=(9, 0)),
        mock.patch.object(evaluation, "run_on_cpu", evaluation.run_on_cuda),
        mock.patch.object(library, "case_of", return_value=None),
        lookup_library.suspended(),
        forced(settings),
    ):
        result = op(*inputs)
        result.backward(torch.ones_like(result))
    return [(source, name) for source, name in found if name.endswith("_product")]


MULTIPLIES = {
    "large tiles": "FFMA",
    "float64": "DFMA",
    "bfloat16": "HMMA.16816.F32.BF16",
    "tf32": "HMMA.1688.F32.TF32",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large tiles", "float64", "bfloat16", "tf32"])
def test_what_multiplies(name: str) -> None:
    """As many instructions as a tile needs for each part of its terms, and no register spills."""
    settings = CASES[name]
    inputs = tensors(settings, (1, 16, 16, 16), (128, 16, 3, 3))
    kernels = launched(lambda x, w: module("conv").conv2d(x, w, padding=1), settings, inputs)
    assert len(kernels) == 3
    for source, kernel in kernels[::2]:
        compiled = nvrtc.compile_cuda(source, "sm_90")
        (use,) = (each for each in compiled.kernels if each.name == kernel)
        assert not use.spills
        code = sass.disassemble(compiled.cubin)[kernel]
        (tile,) = (int(size) for size in re.findall(r"define product_of_\w+ \d, (\d+),", source))
        opcodes = [each.opcode for each in code.instructions]
        if MULTIPLIES[name].startswith("HMMA"):
            # Each is for 16 rows and 8 columns, and half of the terms of a part.
            warps = tile // 16
            assert opcodes.count(MULTIPLIES[name]) == (tile // 16) * (tile // 8) // warps * 2
            assert code.count("LDSM") > 0
        else:
            assert opcodes.count(MULTIPLIES[name]) >= tile * tile // 256 * 8


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_100"])
def test_architectures(architecture: str) -> None:
    """Where there are no tensor cores for it a source is compiled all the same."""
    settings = Settings(torch.bfloat16)
    inputs = tensors(settings, (2, 40, 48), (2, 48, 40))
    source, kernel = launched(lambda a, b: matrices().product(a, b), settings, inputs)[0]
    found = {each.name: each for each in nvrtc.compile_cuda(source, architecture).kernels}
    assert not found[kernel].spills


# ---------------------------------------------------------------------------- the choice
F16, F32, F64 = torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("dtypes", "real", "capability", "tf32", "kind"),
    [
        ((F16, F16), "f32", (8, 0), False, 1),
        ((torch.bfloat16,) * 2, "f32", (9, 0), False, 1),
        ((F16, F16), "f32", (7, 5), False, 0),
        ((F16, F32), "f32", (9, 0), False, 0),
        ((F16, F16), "f64", (9, 0), False, 0),  # beside a tensor of 64 bits
        ((F32, F32), "f32", (9, 0), False, 0),
        ((F32, F32), "f32", (9, 0), True, 2),
        ((F32, F32), "f32", (7, 5), True, 0),
        ((F64, F64), "f64", (9, 0), True, 0),
        ((torch.int32, torch.int32), "f32", (9, 0), False, None),
    ],
)
def test_what_a_call_multiplies_with(
    dtypes: tuple[torch.dtype, ...],
    real: str,
    capability: tuple[int, int],
    tf32: bool,
    kind: int | None,
) -> None:
    with precision(tf32):
        assert cuda_product.kind_of(dtypes, real, capability) == kind


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [("highest", cuda_product.Kind.THREADS), ("high", cuda_product.Kind.TENSOR_CORES_TF32)],
)
def test_the_precision_that_pytorch_is_set_to(setting: str, wanted: cuda_product.Kind) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        assert cuda_product.kind_of((F32, F32), "f32", (9, 0)) is wanted
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("kind", "shape", "tile"),
    [
        (1, (1, 64, 64, 15), None),  # few terms
        (1, (1, 3, 4096, 64), None),  # few rows
        (1, (1, 4, 2**14, 64), None),  # each copy is for 4 cells
        (1, (1, 8, 2**14, 64), 64),
        (1, (1, 4096, 4096, 64), 128),
        (1, (1, 512, 512, 64), 64),  # 16 blocks of 128 would leave a GPU idle
        (1, (64, 512, 512, 64), 128),
        (1, (1, 64, 256, 500), None),  # 4 blocks of 64 do, for so few terms
        (1, (1, 64, 256, 2**16), 64),  # many of which several blocks share
        (1, (1, 128, 1152, 2**17), 128),
        (0, (1, 16, 2**14, 64), None),  # a quarter of tiles would be filled
        (0, (1, 48, 2**14, 64), 64),
        (0, (1, 4096, 4096, 64), 128),
        (0, (256, 65, 65, 64), None),
        (2, (256, 65, 65, 64), 128),
    ],
)
def test_tiles(kind: int, shape: tuple[int, int, int, int], tile: int | None) -> None:
    found = cuda_product.tile_of(cuda_product.Kind(kind), cuda_product.Shape(*shape), "f32")
    assert found == tile


@pytest.mark.parametrize(("step", "tiles"), [(1, (128, 128)), (4, (None, 128)), (64, (None, None))])
def test_terms_that_a_stride_leaves_out_count(step: int, tiles: tuple[int | None, ...]) -> None:
    shape = cuda_product.Shape(1, 512, 2**17, 512, step)
    kinds = (cuda_product.Kind.THREADS, cuda_product.Kind.TENSOR_CORES)
    assert tuple(cuda_product.tile_of(kind, shape, "f32") for kind in kinds) == tiles


def test_how_many_blocks_share_the_terms_of_a_tile() -> None:
    def splits(*shape: int) -> int:
        return cuda_product.Shape(*shape).splits(64)

    assert splits(1, 64, 64, 2**20) == cuda_product.ENOUGH_BLOCKS
    assert splits(1, 64, 64, 1000) == 3  # of 256 terms at least
    assert splits(1, 1024, 1024, 2**20) == 1  # there are enough tiles
    assert splits(30, 64, 64, 2**20) == 5
