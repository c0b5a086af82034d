"""Where two vectors are rounded at once, subnormal numbers come out as they do one by one."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from opgen.compiler import check_source
from opgen.emit.c import c_source
from opgen.emit.coarse import coarse
from opgen.errors import Source
from opgen.ir.loops import Program
from opgen.passes.planes import with_plane_kernels
from opgen.runtime import build, special
from test_blocks import programs
from test_planes import CASES, cells_of
from test_same_loads import TRANSPOSED, geometry, paired
from test_unrounded import FORMATS, SPECIAL, module, same

FLAGS = {
    "own": "-O1",
    "no rounding of two": "-O1 -mno-avx512bf16",
    "avx2": "-O1 -march=x86-64-v3",
}
PROCESSORS = ["own", "no rounding of two", pytest.param("avx2", marks=pytest.mark.slow)]
ROUNDS_AT_ONCE = "avx512_bf16" in Path("/proc/cpuinfo").read_text()


# ---------------------------------------------------------------------------- which kernels
def test_products_of_pixels_and_filters_are_looked_at() -> None:
    _, program = programs(TRANSPOSED["conv_transpose2d"], geometry(2, 2, 8, 8), 9)
    kernel = paired(program)
    assert kernel is not None
    found = coarse(kernel, program)
    assert found is not None
    assert (set(found.before), set(found.moving)) == ({"weight", "bias"}, {"x"})


@pytest.mark.parametrize("name", CASES)
def test_planes_that_are_mostly_written_are_looked_at(name: str) -> None:
    op, values = CASES[name]
    program = with_plane_kernels(*[cells_of(op, values(8, 8))] * 2)
    (kernel,) = (each for each in program.kernels if each.plane is not None)
    found = coarse(kernel, program)
    assert (found is not None) == (name == "transposed")
    if found is not None:
        assert (set(found.before), set(found.moving)) == ({"weight", "bias"}, {"x"})
        assert sorted(begin for _, begin in found.begins) == [0, 16, 32, 48]


NEAR_MISSES = {
    "none": "x[n // 2,c] * w[c]",
    "a product of three": "x[n // 2,c] * w[c] * w[c]",
    "a number": "x[n // 2,c] * 0.5",
    "a quotient": "x[n // 2,c] / w[c]",
    "an attribute": "x[n // 2,c] * a",
    "a root": "sqrt(x[n // 2,c])",
    "an integer": "x[n // 2,c] * k[c]",
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_other_values_are_not(name: str) -> None:
    attribute = "; a = 1.0" if name == "an attribute" else ""
    text = f"""op other(x[N,C], w[C], k: i32[C]{attribute}) -> y[2*N,C]
  y[n,c] += {NEAR_MISSES[name]}
  y[n,c] += w[c]
"""
    (op,) = check_source(Source(text, "coarse.op"))
    _, program = programs(op, {}, 0)
    assert looked_at(program) == (name == "none")


def looked_at(program: Program) -> bool:
    return any(coarse(kernel, program) is not None for kernel in program.kernels)


def test_the_same_program_gives_the_same_text() -> None:
    _, program = programs(TRANSPOSED["conv_transpose2d"], geometry(2, 2, 8, 8), 9)
    text = c_source(program)
    assert text == c_source(program)
    assert "pair_to_or_past_T(&y_row[" in text


# ---------------------------------------------------------------------------- compiled
Op = Callable[..., Tensor]
SHAPES = [(2, 75, 8, 8), (1, 290, 8, 8), (2, 16, 5, 7), (2, 1, 8, 8)]


def transposed(name: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> Op:
    for limit, value in (("LARGE", 1000), ("MOST", 1000), ("MOST_SIZES", 1000)):
        monkeypatch.setattr(special, limit, value)
    monkeypatch.setenv("OPGEN_CFLAGS", FLAGS[flags])
    name = f"coarse_{name}_{flags.replace(' ', '_')}"
    found: Op = getattr(shared("conv_transpose", "conv_transpose2d", name), name)
    return found


shared = functools.cache(module)
"""Types and layouts have kernels of their own; what these are derived from is derived once."""


def image(shape: tuple[int, ...], kind: str) -> Tensor:
    """Numbers some of which are so small that products with the filter are subnormal, or near."""
    x = torch.randn(shape)
    n, channels, *_ = shape
    if kind == "small planes":
        x[:, ::2] *= 2.0**-118
    if kind == "small pixels":
        x[:, :, 1::3, ::2] *= 2.0**-121
    if kind == "at the limit":
        exponents = torch.randint(-53, -47, shape)
        x = torch.ldexp(torch.sign(x), exponents)
        x[:, ::5] = 0
    if kind == "special":
        bits = x.view(torch.int32).flatten()
        at = torch.randperm(x.numel())[: len(SPECIAL)]
        bits[at] = SPECIAL[: len(at)].to(torch.int32)
    if kind == "zeros":
        x = x.relu() * (torch.rand(n, channels, 1, 1) < 0.7)
        x[:, 1::2] *= -1
    return x


def filters(channels: int, kind: str) -> Tensor:
    weight = torch.randn(channels, 1, 2, 2)
    if kind == "small":
        weight[channels // 2, 0, 1, 0] = 2.0**-127
    if kind == "at the limit":
        weight = torch.ldexp(torch.sign(weight), torch.randint(-52, -48, weight.shape))
    if kind == "zeros":
        weight[::3] = 0
        weight[1::3] = -0.0
    return weight


def wanted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A product and a sum in float32, rounded to bfloat16, of what is bfloat16."""
    n, channels, height, width = x.shape
    pixels, taps = x.bfloat16().float(), weight.bfloat16().float()
    y = pixels[:, :, :, None, :, None] * taps[:, 0][None, :, None, :, None, :]
    y = y.reshape(n, channels, 2 * height, 2 * width) + 0
    if bias is not None:
        y += bias.bfloat16().float()[:, None, None]
    return y.bfloat16()


PIXELS = ("large", "small planes", "small pixels", "at the limit", "special", "zeros")
TAPS = ("large", "small", "at the limit", "zeros")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("flags", PROCESSORS)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("is_cast", [False, True])
def test_every_number_is_rounded_as_pytorch_rounds(
    is_cast: bool, layout: str, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = transposed("numbers", flags, monkeypatch)
    torch.manual_seed(0)
    before = torch.get_num_threads()
    try:
        for shape, pixels, taps in itertools.product(SHAPES, PIXELS, TAPS):
            channels = shape[1]
            x, weight = image(shape, pixels), filters(channels, taps)
            biases = [None, torch.randn(channels), torch.zeros(1).expand(channels)]
            biases += [torch.full((channels,), 2.0**-130)] if pixels == "small planes" else []
            for bias, threads in zip(biases, itertools.cycle((1, 2))):
                torch.set_num_threads(threads)
                given = [x.to(memory_format=FORMATS[layout]), weight, bias]
                if not is_cast:
                    given = [None if each is None else each.bfloat16() for each in given]
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast), torch.no_grad():
                    found = op(*given, stride=2, groups=channels)
                assert same(found, wanted(x, weight, bias)), (shape, pixels, taps)
    finally:
        torch.set_num_threads(before)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("way", ["at once", "as if all were coarse"])
def test_the_instruction_is_used_where_it_may_be(
    way: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong way to round at once is noticed where numbers are coarse, and only there."""
    library = build.library

    def changed(source: str) -> ctypes.CDLL:
        if way == "at once":
            source = source.replace("v32hi(second, first)", "v32hi(first, second)")
            source = source.replace("v32bf(second, first)", "v32bf(first, second)")
        else:
            source = source.replace("__builtin_expect(is_coarse, 1)", "1")
        return library(source)

    monkeypatch.setattr(build, "library", changed)
    op = transposed(f"ways_{way.replace(' ', '_')}", "own", monkeypatch)
    torch.manual_seed(0)
    for pixels, taps in itertools.product(("large", "small planes"), ("large", "small")):
        x, weight = image((2, 66, 8, 8), pixels), filters(66, taps)
        given = x.to(memory_format=FORMATS[layout]).bfloat16(), weight.bfloat16()
        is_right = same(op(*given, stride=2, groups=66), wanted(x, weight, None))
        is_coarse = pixels == taps == "large"
        if not ROUNDS_AT_ONCE:
            assert is_right
        elif way == "at once":
            # Half of the planes are large where the others are small.
            goes_at_once = is_coarse or (pixels != "large" and taps == "large" and layout != LAST)
            assert is_right == (not goes_at_once)
        else:
            assert is_right == is_coarse


LAST = "channels_last"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", FORMATS)
def test_other_types_are_as_they_were(
    layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = transposed("types", "own", monkeypatch)
    torch.manual_seed(0)
    for shape in (*SHAPES, (0, 40, 8, 8)):
        x = torch.randint(-99, 99, shape).to(dtype).to(memory_format=FORMATS[layout])
        weight = torch.randint(-9, 9, (shape[1], 1, 2, 2)).to(dtype)
        y = op(x, weight, stride=2, groups=shape[1])
        blocks = x[:, :, :, None, :, None] * weight[:, 0][None, :, None, :, None, :]
        assert torch.equal(y, blocks.reshape(y.shape))
