"""Cells that are made of the same numbers mean the same in one body as one by one."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.emit.c import c_source
from opgen.errors import Source
from opgen.ir.cells import to_array
from opgen.ir.loops import Blocks, Kernel, Lanes, Program, Store, walk
from opgen.ir.notation import Op
from opgen.runtime import Operation, special
from opgen.testing.run_loops import run
from test_blocks import programs, spoiled
from test_unrounded import module, operation, rounds_itself

TRANSPOSED = {op.name: op for op in check_source(read_source(SPECS / "conv_transpose.op"))}


def checked(text: str) -> Op:
    (op,) = check_source(Source(text, "same.op"))
    return op


def paired(program: Program) -> Kernel | None:
    """The kernel whose points have all cells that load the same, if there is one."""
    found = [k for k in program.kernels if isinstance(k.only, Blocks) and k.only.is_paired]
    return next((kernel for kernel in found if kernel.only is not None and kernel.only.holds), None)


def cells_of(kernel: Kernel) -> int:
    """How many cells share the one pass of a kernel."""
    (lanes,) = kernel.body
    assert isinstance(lanes, Lanes)
    return sum(isinstance(node, Store) for node in walk(lanes.body))


def geometry(window: int, stride: int, height: int, width: int) -> dict[str, int]:
    names = {"stride": stride, "padding": 0, "output_padding": 0, "dilation": 1}
    values = {f"{name}[{at}]": value for name, value in names.items() for at in (0, 1)}
    sizes = {"OH": (height - 1) * stride + window, "OW": (width - 1) * stride + window}
    return values | sizes | {"Ci": 1, "Co": 1, "K": window, "L": window, "H": height, "W": width}


@pytest.mark.parametrize(
    ("window", "cells", "size"), [(2, 4, (3, 4)), (3, 9, (2, 3)), (4, 4, (3, 2))]
)
def test_cells_of_a_body_give_what_they_give_alone(
    window: int, cells: int, size: tuple[int, int]
) -> None:
    """Sixteen cells are too many: those of a row share a body then."""
    op, values = TRANSPOSED["conv_transpose2d"], geometry(window, window, *size)
    plain, program = programs(op, values, 9)
    kernel = paired(program)
    assert kernel is not None
    assert cells_of(kernel) == cells
    known = {**dict.fromkeys(plain.integers, 1), **values, "groups": 19, "N": 2}
    random = np.random.default_rng(0)
    tensors = {
        each.name: random.normal(size=[extent.evaluate(known) for extent in each.extents])
        for each in plain.operands
        if each.name in {tensor.name for tensor in op.inputs}
    }
    integers = {name: known[name] for name in plain.integers}
    wanted, found = (run(each, tensors, integers)[0]["y"] for each in (plain, program))
    pair = [to_array(each, np.dtype(np.float64)) for each in (wanted, found)]
    np.testing.assert_array_equal(pair[1], pair[0])
    assert spoiled(program, tensors, integers, "y", pair[0])


def test_groups_of_an_axis_of_any_length_share_a_body() -> None:
    text = """op twice(x[N,C], w[C]) -> y[2*N,C]
  y[n,c] += x[n // 2,c] * w[c]
  y[n,c] += w[c]
"""
    _, program = programs(checked(text), {}, 0)
    kernel = paired(program)
    assert kernel is not None
    assert cells_of(kernel) == 2


NEAR_MISSES = {
    "none": "y[n,c] += x[n // 2,c] * w[c]",
    "cells that load neighbours": "y[n,c] += x[(n + 1) // 2,c] * w[c]",
    "a factor that goes with the cell": "y[n,c] += x[n // 2,c] * v[n,c]",
    "windows that are not known": "y[n,c] += x[n // s,c] * w[c]",
    "an odd number of cells": "y[n,c] += x[n // 2,c] * w[c]",
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_others_stay_as_they_are(name: str) -> None:
    rows = "2*M - 1" if "odd" in name else "2*M"
    text = f"""op other(x[N,C], w[C], v[{rows},C]; s = 2, M: size) -> y[{rows},C]
  where M <= N - 1, 2*M <= N*s, s >= 1
  {NEAR_MISSES[name]}
  y[n,c] += w[c]
"""
    _, program = programs(checked(text), {}, 0)
    assert (paired(program) is None) == (name != "none")


def test_what_serves_other_calls_goes_past_caches() -> None:
    """Pairs of vectors where all that they write are lines; rows else, and for other types."""
    _, program = programs(TRANSPOSED["conv_transpose2d"], geometry(2, 2, 8, 8), 9)
    text = c_source(program)
    assert "= PAIRED_LANES && groups >= LANES" in text
    places = r"\(STORES_LINES && \(\(uintptr_t\)call->tensors\[3\] \| \(uintptr_t\).* % LINE == 0"
    whole = r"groups % \(2 \* LANES\) == 0"
    assert re.search(rf"\(!y_streams \|\| {places} && {whole}\)", " ".join(text.split()))
    assert "pair_to_or_past_T(&y_row[" in text
    rows = text[text.index("KERNEL void conv_transpose2d_y(") :]
    assert "stream(&y[" in rows


# ---------------------------------------------------------------------------- compiled
FLAGS = {"own": "-O1", "avx2": "-O1 -march=x86-64-v3", "no names": "-O1 -mno-avx512vnni"}
TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
SHAPES = [
    (3, 290, 8, 8),
    (1, 16, 3, 5),
    (2, 31, 2, 1),
    (2, 33, 8, 7),
    (1, 2075, 4, 4),
    (2, 1, 2, 2),
]


def transposed(
    name: str, flags: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[..., torch.Tensor], Operation]:
    """The op with kernels of its own for all sizes that it meets."""
    for limit, value in (("LARGE", 0), ("MOST", 1000), ("MOST_SIZES", 1000)):
        monkeypatch.setattr(special, limit, value)
    monkeypatch.setenv("OPGEN_CFLAGS", FLAGS[flags])
    name = f"same_{name}_{flags.replace(' ', '_')}"
    found = shared("conv_transpose", "conv_transpose2d", name)
    return getattr(found, name), operation(found, name)


shared = functools.cache(module)
"""Types have kernels of their own, which are made of the same loops: those are derived once."""


@pytest.mark.sampled(12)
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_compiled_products_are_rounded_once(
    dtype: torch.dtype, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small integers: products are exact, and so is their sum with a bias in float32."""
    op, _ = transposed("products", flags, monkeypatch)
    torch.manual_seed(0)
    before = torch.get_num_threads()
    try:
        for (n, channels, height, width), threads in itertools.product(SHAPES, (1, 2)):
            torch.set_num_threads(threads)
            x = torch.randint(-256, 256, (n, channels, height, width)).to(dtype)
            weight = torch.randint(-16, 16, (channels, 1, 2, 2)).to(dtype)
            bias = torch.randint(-999, 999, (channels,)).to(dtype)
            for x_, own in itertools.product(views(x), (None, bias)):
                found = op(x_, weight, own, stride=2, groups=channels)
                wide = [None if each is None else each.double() for each in (x_, weight, own)]
                wanted = F.conv_transpose2d(*wide, stride=2, groups=channels)
                assert torch.equal(found, wanted.to(dtype))
    finally:
        torch.set_num_threads(before)
    empty = torch.ones(0, 40, 8, 8, dtype=dtype).to(memory_format=torch.channels_last)
    weight = torch.ones(40, 1, 2, 2, dtype=dtype)
    assert op(empty, weight, stride=2, groups=40).shape == (0, 40, 16, 16)


def views(x: torch.Tensor) -> list[torch.Tensor]:
    """The same numbers in channels-last format, and as a part of larger images."""
    n, channels, height, width = x.shape
    last = x.to(memory_format=torch.channels_last)
    large = torch.zeros(n, channels + 3, height + 1, width, dtype=x.dtype)
    large = large.to(memory_format=torch.channels_last)
    part = large[:, 1 : channels + 1, :height]
    part.copy_(x)
    return [last, part]


NUMBERS = (float("nan"), float("inf"), -float("inf"), 3.38e38, -3.38e38, 1e-40, 9e-41, -0.0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("is_cast", [False, True])
def test_every_number_is_rounded_in_its_place(
    is_cast: bool, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch rounds, subnormal numbers and ties too, from bfloat16 and from float32."""
    op, known = transposed(f"numbers_{is_cast}", flags, monkeypatch)
    monkeypatch.setattr(special, "LARGE", 1000)  # weights are cast: only then they are consecutive
    torch.manual_seed(0)
    x = torch.randn(2, 75, 8, 8)
    for at, number in enumerate(NUMBERS):
        x[at % 2, (at * 11) % 75, at % 8, 7 - at] = number
    x[1, :, 4, 4] = torch.arange(75) * 2**-9 + 1  # half of them are ties
    weight = 1 + torch.rand(75, 1, 2, 2)
    weight[::7] = 1
    weight[3] = 1e-38
    given = x.to(memory_format=torch.channels_last)
    if not is_cast:
        given, weight = given.bfloat16(), weight.bfloat16()
    for _ in range(2):  # found out, and looked up
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast), torch.no_grad():
            y = op(given, weight, stride=2, groups=75)
        pixels, taps = given.bfloat16().float(), weight.bfloat16().float()
        wide = pixels[:, :, :, None, :, None] * taps[:, 0][None, :, None, :, None, :]
        wanted = (wide.reshape(2, 75, 16, 16) + 0).bfloat16()
        assert y.dtype == torch.bfloat16
        assert torch.equal(y.isnan(), wanted.isnan())
        assert torch.equal(y.nan_to_num(1.0), wanted.nan_to_num(1.0))
    assert rounds_itself(known) == is_cast
