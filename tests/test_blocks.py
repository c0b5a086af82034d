"""Kernels that compute blocks of neighbouring cells mean what those along rows mean."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.algebra.poly import poly, symbol
from opgen.compiler import check_source, read_source
from opgen.emit import lane_pairs
from opgen.emit.c import c_source
from opgen.errors import Source
from opgen.ir.cells import to_array
from opgen.ir.context import facts_of
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, Blocks, For, Lanes, Load, Program, walk
from opgen.ir.map_loops import map_loads
from opgen.ir.notation import Op
from opgen.ir.show_loops import show_program
from opgen.on_demand import special_source
from opgen.passes.blocks import with_blocks
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import gather
from opgen.passes.relayout import channels_last, relayout
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise
from opgen.runtime import special
from opgen.testing.run_loops import run

CONV = {op.name: op for op in check_source(read_source(SPECS / "conv.op"))}


def programs(op: Op, values: dict[str, int], layout: int) -> tuple[Program, Program]:
    """The program of cells for images in channels-last format, and the one with blocks."""
    special = specialise(relayout(op, channels_last(op, layout)), values)
    plain = schedule(special, gather(special))
    return plain, with_blocks(plain, rows(plain, facts_of(special)))


def has_blocks(program: Program) -> bool:
    return any(isinstance(kernel.only, Blocks) for kernel in program.kernels)


def geometry(window: int, height: int, width: int, padding: int, stride: int = 1) -> dict[str, int]:
    names = {"stride": stride, "padding": padding, "dilation": 1}
    values = {f"{name}[{at}]": value for name, value in names.items() for at in (0, 1)}
    return values | {"Ci": 1, "Co": 1, "K": window, "L": window, "H": height, "W": width}


GEOMETRIES = {
    "pairs of rows": geometry(3, 6, 3, 1),
    "an odd number of rows": geometry(3, 7, 4, 1),
    "mostly borders": geometry(5, 3, 4, 4),
    "a row in parts": geometry(3, 4, 22, 1),
    "parts of unequal length": geometry(3, 2, 17, 1),
    "a row that is just cut": geometry(3, 5, 10, 1),
    "two parts in pairs of rows": geometry(3, 6, 12, 1),
    "a stride": geometry(3, 7, 9, 1, 2),
    "no padding": geometry(2, 5, 4, 0),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("which", ["result", "x", "weight"])
def test_blocks_give_what_cells_give(name: str, which: str) -> None:
    values = GEOMETRIES[name]
    public = CONV["conv2d"]
    op = public if which == "result" else adjoint(public, which).op
    layout = {"result": 9, "x": 6, "weight": 3}[which]
    plain, blocks = programs(op, values, layout)
    assert has_blocks(blocks), show_program(blocks)
    shapes = {"groups": 17, "N": 2}
    known = {**dict.fromkeys(plain.integers, 1), **values, **shapes}
    for inner, outer in (("OH", "H"), ("OW", "W")):
        reach = values[outer] + 2 * values["padding[0]"] - values["K"]
        known[inner] = reach // values["stride[0]"] + 1
    random = np.random.default_rng(0)
    tensors = {
        each.name: random.normal(size=[extent.evaluate(known) for extent in each.extents])
        for each in plain.operands
        if each.name in {tensor.name for tensor in op.inputs}
    }
    integers = {name_: known[name_] for name_ in plain.integers}
    written = blocks.kernels[-1].written
    wanted, _ = run(plain, tensors, integers)
    found, _ = run(blocks, tensors, integers)
    pair = [to_array(each[written], np.dtype(np.float64)) for each in (wanted, found)]
    np.testing.assert_allclose(pair[1], pair[0], rtol=1e-12, atol=1e-12)
    assert spoiled(blocks, tensors, integers, written, pair[0])


def test_numbers_that_are_the_same_for_all_lanes_may_be_anything() -> None:
    """Weights with absolute values and quotients, and terms that only a border has."""
    (public, _) = check_source(read_source(SPECS / "upsample_bilinear.op"))
    op = adjoint(public, "x").op
    values = {"scale_factor": 2, "H": 4, "W": 5}
    plain, blocks = programs(op, values, 3)
    assert has_blocks(blocks), show_program(blocks)
    tensors = {"grad_y": np.random.default_rng(0).normal(size=(2, 8, 10, 16))}
    integers = {name: {"N": 2, "C": 16, **values}[name] for name in plain.integers}
    written = plain.kernels[-1].written
    wanted, found = (run(each, tensors, integers)[0][written] for each in (plain, blocks))
    pair = [to_array(each, np.dtype(np.float64)) for each in (wanted, found)]
    np.testing.assert_allclose(pair[1], pair[0], rtol=1e-12, atol=1e-12)
    assert spoiled(blocks, tensors, integers, written, pair[0])


def test_planes_of_short_rows_are_lanes() -> None:
    (public, _) = check_source(read_source(SPECS / "upsample_bilinear.op"))
    values = {"scale_factor": 2, "H": 3, "W": 8}
    op = adjoint(public, "x").op
    plain, blocks = programs(op, values, 0)
    assert has_blocks(blocks), show_program(blocks)
    assert blocks.kernels[0].row is not None and blocks.kernels[0].row.axis.name == "c"
    tensors = {"grad_y": np.random.default_rng(0).normal(size=(1, 17, 6, 16))}
    integers = {name: {"N": 1, "C": 17, **values}[name] for name in plain.integers}
    written = plain.kernels[-1].written
    wanted, found = (run(each, tensors, integers)[0][written] for each in (plain, blocks))
    pair = [to_array(each, np.dtype(np.float64)) for each in (wanted, found)]
    np.testing.assert_allclose(pair[1], pair[0], rtol=1e-12, atol=1e-12)
    assert spoiled(blocks, tensors, integers, written, pair[0])


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(torch.float64, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_compiled_weights_give_what_torch_gives(
    layout: torch.memory_format, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    upsample = opgen.load(SPECS / "upsample_bilinear.op").upsample_bilinear
    x = torch.randn(2, 130, 8, 9, dtype=dtype).to(memory_format=layout).requires_grad_()
    wide = x.detach().double().requires_grad_()
    y, z = upsample(x, scale_factor=2), F.interpolate(wide, scale_factor=2, mode="bilinear")
    seed = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, seed)
    (wanted,) = torch.autograd.grad(z, wide, seed.double())
    error = (found.double() - wanted).abs().max()
    assert error <= 8 * torch.finfo(dtype).eps * wanted.abs().max()


def spoiled(
    program: Program,
    tensors: dict[str, np.ndarray],
    integers: dict[str, int],
    written: str,
    wanted: np.ndarray,
) -> bool:
    """Whether a wrong load in the kernel of blocks is seen: else the comparison says nothing."""
    at = next(i for i, k in enumerate(program.kernels) if isinstance(k.only, Blocks))
    kernel = program.kernels[at]
    loads = loads_of(walk(kernel.body))
    first, other = next(
        (one, other)
        for one in loads
        for other in loads
        if len(one.indices) > 2 and one.tensor == other.tensor and one != other
    )

    def change(load: Load) -> Load:
        return other if load == first else load

    kernels = list(program.kernels)
    kernels[at] = replace(kernel, body=map_loads(kernel.body, change))
    found, _ = run(replace(program, kernels=tuple(kernels)), tensors, integers)
    return not np.allclose(to_array(found[written], np.dtype(np.float64)), wanted)


@pytest.mark.parametrize("which", ["result", "weight"])
def test_every_lane_of_a_block_is_in_one_pass(which: str) -> None:
    public = CONV["conv2d"]
    op, layout = (public, 9) if which == "result" else (adjoint(public, which).op, 3)
    _, program = programs(op, GEOMETRIES["pairs of rows"], layout)
    kernel = program.kernels[0]
    assert isinstance(kernel.only, Blocks) and kernel.only.holds
    for node in walk(kernel.body):
        if isinstance(node, Lanes):
            assert not node.lower and not node.upper


def test_rows_of_cells_go_through_an_image_before_other_channels_do() -> None:
    """The next row loads the same pixels; with pairs of rows it is not worth it."""
    _, single = programs(CONV["conv2d"], geometry(4, 16, 16, 1), 9)
    _, pairs = programs(CONV["conv2d"], geometry(3, 16, 16, 1), 9)
    for program, within in ((single, 2), (pairs, 0)):
        kernel = program.kernels[0]
        assert isinstance(kernel.only, Blocks) and kernel.only.holds and kernel.row is not None
        assert [axis.extent.is_constant for axis in kernel.axes] == [False, True, True]
        assert kernel.row.within == within
        lane, (n, outer, inner) = kernel.row.axis.name, (axis.name for axis in kernel.axes)
        order = [n, outer, inner]
        order.insert(3 - within, lane)
        (shown,) = re.findall(r"parallel (.*)", show_program(program).split("kernel ")[1])
        assert re.findall(r"(\w+) <", shown) == order
        parts = re.search(rf"(?s)KERNEL void {kernel.name}\(.*?\n}}", c_source(program))
        assert parts is not None
        steps = re.findall(r"if \(\+\+(\w+) <", parts.group())
        counted = [f"{name}_part" if name == lane else name for name in order]
        assert steps[-3:] == counted[:0:-1]


RESIZED = [
    (torch.float32, 2, 16, 16, 600),  # two rows of blocks, stretches of 256 and 344
    (torch.float32, 1, 5, 9, 530),
    (torch.bfloat16, 2, 9, 16, 800),
    pytest.param((torch.float16, 2, 8, 8, 530), marks=pytest.mark.slow),
    pytest.param((torch.float64, 2, 7, 16, 600), marks=pytest.mark.slow),
    (torch.float32, 0, 16, 16, 600),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("call", RESIZED, ids=str)
def test_compiled_gradients_of_resizes_give_what_torch_gives(
    call: tuple[torch.dtype, int, int, int, int],
) -> None:
    dtype, images, height, width, channels = call
    resize = opgen.load(SPECS / "upsample_bilinear.op").upsample_bilinear
    torch.manual_seed(0)
    x = torch.randn(images, channels, height, width, dtype=dtype)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    wide = x.detach().double().requires_grad_()
    seed = torch.randn(images, channels, 2 * height, 2 * width, dtype=dtype)
    seed = seed.to(memory_format=torch.channels_last)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            (found,) = torch.autograd.grad(resize(x), [x], seed)
            if images == 0:  # which F.interpolate refuses
                assert found.shape == x.shape
                continue
            y = F.interpolate(wide, scale_factor=2, mode="bilinear")
            (exact,) = torch.autograd.grad(y, [wide], seed.double())
            limit = 16 * torch.finfo(dtype).eps * exact.abs().max()
            assert (found.double() - exact).abs().max() <= limit
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("height", "passes"), [(6, 5), (7, 5), (2, 3)])
def test_blocks_go_through_an_image_together(height: int, passes: int) -> None:
    """Accumulators begin, take what each two rows add, and are stored."""
    values = geometry(3, height, 8, 1)
    _, program = programs(adjoint(CONV["conv2d"], "weight").op, values, 3)
    kernel = program.kernels[0]
    assert isinstance(kernel.body[0], Lanes) and isinstance(kernel.body[-1], Lanes)
    (images,) = (node for node in kernel.body if isinstance(node, For))
    assert images.name == "n"
    assert sum(isinstance(node, Lanes) for node in walk(kernel.body)) == passes


def test_rows_that_share_nothing_do_not_go_in_pairs() -> None:
    """Each pixel of a transposed convolution has pixels of its own."""
    (public,) = (
        op
        for op in check_source(read_source(SPECS / "conv_transpose.op"))
        if op.name == "conv_transpose2d"
    )
    values = geometry(2, 8, 8, 0, 2) | {"OH": 16, "OW": 16}
    _, program = programs(adjoint(public, "weight").op, values, 3)
    kernel = program.kernels[0]
    assert isinstance(kernel.only, Blocks) and kernel.only.holds
    (images,) = (node for node in kernel.body if isinstance(node, For))
    (rows_,) = images.body
    assert isinstance(rows_, For) and rows_.upper[0].constant == 7


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_compiled_transposed_convolutions_give_what_torch_gives(dtype: torch.dtype) -> None:
    conv = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    torch.manual_seed(0)
    x = torch.randn(3, 290, 8, 8, dtype=dtype).to(memory_format=torch.channels_last)
    given = [x.requires_grad_(), torch.randn(290, 1, 2, 2, dtype=dtype).requires_grad_()]
    wide = [each.detach().double().requires_grad_() for each in given]
    y = conv(*given, stride=2, groups=290)
    z = F.conv_transpose2d(*wide, stride=2, groups=290)
    seed = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, given, seed))
    wanted = (z, *torch.autograd.grad(z, wide, seed.double()))
    for own, exact in zip(found, wanted, strict=True):
        assert (own.double() - exact).abs().max() <= 64 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize(("factor", "passes"), [("t[n,h]", 1), ("t[n,h,w]", 3)])
def test_a_factor_that_all_lanes_share_stays_with_its_block(factor: str, passes: int) -> None:
    """Nothing is gained where terms do not meet new pages."""
    dims = factor.removeprefix("t").upper()
    term = f"x[n,h + k - 1 ?0,w] * {factor}"
    text = f"op near(x[N,H,W], t{dims}) -> y[3,W]\n  y[k,w] = sum(n,h) {term}\n"
    (op,) = check_source(Source(text, "near.op"))
    _, program = programs(op, {"H": 16}, 0)
    (kernel,) = (
        each for each in program.kernels if isinstance(each.only, Blocks) and each.only.holds
    )
    assert len(kernel.body) == passes, show_program(program)


NEAR_MISSES = {
    "a window along the row": "y[n,h,w] = sum(k) x[n,h,w + k - 1 ?0] * t[k,w]",
    "a maximum": "y[n,h,w] = max(k in 3) x[n,h + k - 1 ?0,w] + t[0,w]",
    "a function without vectors": "y[n,h,w] = sum(k) exp(x[n,h + k - 1 ?0,w]) * t[k,w]",
    "a choice": "y[n,h,w] = sum(k) select(t[k,w] > 0, x[n,h + k - 1 ?0,w], 1.0) * t[k,w]",
}


def spec(statement: str) -> Op:
    text = f"op near(x[N,H,W], t[K,W]) -> y[N,H,W]\n  {statement}\n"
    (op,) = check_source(Source(text, "near.op"))
    return op


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_have_no_blocks(name: str) -> None:
    _, program = programs(spec(NEAR_MISSES[name]), {"K": 3, "H": 8}, 0)
    assert not has_blocks(program), show_program(program)


def test_the_sum_they_nearly_are_has_blocks() -> None:
    op = spec("y[n,h,w] = sum(k) x[n,h + k - 1 ?0,w] * t[k,w]")
    _, program = programs(op, {"K": 3, "H": 8}, 0)
    assert has_blocks(program), show_program(program)


CALLS = [
    (torch.float32, 272, 8, 3),  # a last stretch that takes the rest
    pytest.param((torch.bfloat16, 530, 9, 3), marks=pytest.mark.slow),
    (torch.float16, 260, 7, 3),
    (torch.bfloat16, 272, 12, 3),  # rows in two parts
    pytest.param((torch.float32, 272, 9, 3), marks=pytest.mark.slow),
    # The same, and one by one at the border.
    pytest.param((torch.bfloat16, 260, 10, 3), marks=pytest.mark.slow),
    pytest.param((torch.float16, 300, 10, 3), marks=pytest.mark.slow),
    pytest.param((torch.float64, 264, 11, 3), marks=pytest.mark.slow),
    pytest.param((torch.bfloat16, 260, 13, 3), marks=pytest.mark.slow),
    # A row has too many terms to go in pairs.
    pytest.param((torch.float32, 300, 20, 3), marks=pytest.mark.slow),
    pytest.param((torch.float32, 600, 13, 5), marks=pytest.mark.slow),
    pytest.param((torch.float64, 300, 12, 3), marks=pytest.mark.slow),
    (torch.float32, 9, 64, 3),  # fewer channels than a block has
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_compiled_blocks_give_what_torch_gives(call: tuple[torch.dtype, int, int, int]) -> None:
    dtype, channels, size, window = call
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(2, channels, size, size, dtype=dtype).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(channels, 1, window, window, dtype=dtype), torch.randn(channels)
    for own_bias in (None, bias.to(dtype)):
        given = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
        y = conv(*given, *([] if own_bias is None else [own_bias]), padding=1, groups=channels)
        wide = [each.detach().double().requires_grad_() for each in given]
        wide_bias = None if own_bias is None else own_bias.double()
        z = F.conv2d(*wide, wide_bias, padding=1, groups=channels)
        seed = torch.randn_like(y)
        found = (y, *torch.autograd.grad(y, given, seed))
        wanted = (z, *torch.autograd.grad(z, wide, seed.double()))
        bits = torch.finfo(dtype).eps
        for own, exact in zip(found, wanted, strict=True):
            assert (own.double() - exact).abs().max() <= 64 * bits * exact.abs().max()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [*range(8, 13), 14, 16, 20])
def test_short_rows_of_16_bits_go_two_vectors_at_a_time(size: int) -> None:
    """Not in more bodies than are worth being compiled twice."""
    values = geometry(3, size, size, 1)
    _, blocks = programs(CONV["conv2d"], values, 9)
    source = c_source(blocks, blocks, channels_last(CONV["conv2d"], 9))
    assert "first_of_pair(&x[" in source
    terms = sum(isinstance(node, Accumulate) for node in walk(blocks.kernels[0].body))
    assert terms <= lane_pairs.MOST_TERMS


def test_zeros_of_padding_are_not_multiplied() -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    x = torch.ones(2, 272, 8, 8).contiguous(memory_format=torch.channels_last)
    weight = torch.ones(272, 1, 3, 3)
    weight[:, :, 0, 0] = float("inf")
    y = conv(x, weight, padding=1, groups=272)
    assert not y.isnan().any()
    assert y[:, :, 0].isfinite().all() and y[:, :, 1:, 1:].isinf().all()


@pytest.mark.parametrize("dtype", ["i32", "f64", "same"])
def test_filters_of_any_type_are_read_along_the_channels(dtype: str) -> None:
    """Only those of the call's own type are copied; the others would be of another size."""
    declared = "w[C,K]" if dtype == "same" else f"w: {dtype}[C,K]"
    module = opgen.compile(
        f"op columns(x[N,C,H,W], {declared}) -> y[N,C,H,W]\n"
        "  y[n,c,i,j] = sum(k) x[n,c, i + k ?0, j] * w[c,k]\n"
    )
    torch.manual_seed(0)
    x = torch.randn(2, 80, 16, 16).to(memory_format=torch.channels_last)
    own = {"i32": torch.int32, "f64": torch.float64, "same": torch.float32}[dtype]
    weight = torch.randint(-9, 9, (80, 3)).to(own)
    shifted = [F.pad(x, (0, 0, 0, k))[:, :, k:] for k in range(3)]
    wanted = sum(each * weight[:, k, None, None] for k, each in enumerate(shifted))
    torch.testing.assert_close(
        module.columns(x, weight).double(), wanted.double(), rtol=1e-4, atol=1e-4
    )


def test_cells_of_a_block_that_lie_apart_are_written_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every second cell of a row is another channel's."""
    monkeypatch.setattr(special, "LARGE", 0)
    conv_shuffle = opgen.load(SPECS / "conv_depth_to_space.op").conv_depth_to_space
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, 2, 2, 19), torch.randn(4, 2, 1, 1), torch.randn(4)
    wanted = F.pixel_shuffle(F.conv2d(x, weight, bias), 2)
    torch.testing.assert_close(conv_shuffle(x, weight, bias, r=2), wanted)


def test_sums_over_images_have_points_for_all_threads() -> None:
    """A few hundred channels are several points; of many a thread has several as one."""
    op = adjoint(CONV["conv2d"], "weight").op
    _, program = programs(op, geometry(3, 56, 56, 1), 0b11)
    (row,) = (
        each.row
        for each in program.kernels
        if isinstance(each.only, Blocks) and each.only.holds and each.row is not None
    )
    assert row.axis.extent == symbol("groups")
    for channels, points in ((16, 1), (96, 3), (144, 4), (1024, 32)):
        assert row.stretches.substitute({"groups": poly(channels)}) == points
    assert row.joined * row.width == 128


@pytest.mark.sampled(4)
@pytest.mark.parametrize("images", [1, 2, 4])
@pytest.mark.parametrize("window", [3, 7])
def test_filters_are_copied_where_they_are_used_often(images: int, window: int) -> None:
    """Neighbouring channels of a filter lie apart: of a large one in few images, too."""
    torch.manual_seed(0)
    x = torch.randn(images, 768, 7, 7).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(768, 1, window, window)
    conv = opgen.load(SPECS / "conv.op")
    wanted = F.conv2d(x, weight, groups=768, padding=window // 2)
    for _ in range(2):
        got = conv.conv2d(x, weight, groups=768, padding=window // 2)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_how_large_a_filter_is_copied() -> None:
    text = special_source(
        (SPECS / "conv.op").read_text(), "conv.op", ("conv2d",), geometry(7, 7, 7, 3), 0b1001
    )
    (limit,) = re.findall(r"consecutive\(&own_tensors\[1\],(.*?)\);", text, re.DOTALL)
    assert "greatest((49 * N * groups) / 4, (" in " ".join(limit.split())
    assert limit.rstrip(" )").endswith("/ 16")
