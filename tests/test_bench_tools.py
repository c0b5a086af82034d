"""The programs in benchmarks/: bounds written by hand, figures of first calls, layers of nets."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bench_rows import double, small
from opgen.bench import beside, tables
from opgen.bench.calls import OPGEN
from opgen.bench.faults import DisagreementError
from opgen.bench.measure import COPY
from opgen.bench.row import Direction
from opgen.bench.rows import every_row
from opgen.compiler import check_source
from opgen.errors import Source

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def program(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


bounds = program("bounds")
first_call = program("first_call")
nets = program("nets")
sys.path.insert(0, str(BENCHMARKS))  # programs read each other
everyday = program("everyday")
small_ops = program("small")


# ---------------------------------------------------------------------------- bounds
@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


Loops = Callable[[str], Callable[..., object]]


@pytest.fixture(scope="module")
def loop_of(tmp_path_factory: pytest.TempPathFactory) -> Loops:
    """The loop of a name, compiled once."""
    folder = tmp_path_factory.mktemp("loops")
    return functools.cache(lambda name: bounds.compiled(name, folder))


@pytest.mark.usefixtures("threads")
def test_loops_compute_what_pytorch_does(loop_of: Loops) -> None:
    unfold, fold = (loop_of(name) for name in ("unfold", "fold"))
    sizes = ((6, 5, 7), (1, 1, 1), (3, 1, 8), (2, 9, 1), (2, 2, 2), (4, 3, 35))
    for planes, height, width in sizes:
        x = torch.randn(1, planes, height, width)
        columns = torch.randn(1, 9 * planes, height * width)
        wide, image = torch.full_like(columns, 7), torch.full_like(x, 7)
        bounds.loop_call(unfold, [x], [wide], (planes, height, width))()
        bounds.loop_call(fold, [columns], [image], (planes, height, width))()
        torch.testing.assert_close(wide, F.unfold(x, 3, padding=1), rtol=0, atol=0)
        torch.testing.assert_close(image, F.fold(columns, (height, width), 3, padding=1))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(2, 35, 8, 8), (1, 8, 8, 8), (3, 9, 5, 7), (1, 1, 1, 1)])
def test_loops_of_gradients(shape: tuple[int, ...], loop_of: Loops) -> None:
    batch, channels, height, width = shape
    x, weight = torch.randn(shape), torch.randn(channels, 1, 2, 2)
    cotangent = torch.randn(batch, channels, 2 * height, 2 * width)
    leaves = [x.double().requires_grad_(), weight.double().requires_grad_()]
    y = F.conv_transpose2d(*leaves, stride=2, groups=channels)
    found = [torch.full_like(each, 7) for each in (x, weight)]
    wanted = torch.autograd.grad(y, leaves, cotangent.double())
    result = torch.full_like(cotangent, 7)
    for past in (0, 1):
        loop = loop_of("transposed_gradients")
        bounds.loop_call(loop, [cotangent, x, weight], found, (*shape, past))()
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)
        bounds.loop_call(loop_of("transposed"), [x, weight], [result], (*shape, past))()
        torch.testing.assert_close(result.double(), y.detach(), rtol=1e-5, atol=1e-4)
    image = torch.full((batch, height, width, channels), 7.0)
    pixels = cotangent.permute(0, 2, 3, 1).contiguous()
    loop = loop_of("nearest_gradient")
    bounds.loop_call(loop, [pixels], [image], image.shape)()
    wanted = F.avg_pool2d(cotangent.double(), 2, divisor_override=1)
    torch.testing.assert_close(image.permute(0, 3, 1, 2).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("threads")
def test_loops_round_as_pytorch_does(loop_of: Loops) -> None:
    """Ties, subnormal numbers, and those that are not finite, in whole vectors and beyond."""
    loop = loop_of("nearest_autocast")
    gradient = loop_of("nearest_autocast_gradient")
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, -3e-39, 3.4e38, -inf, nan])
    for batch, channels, height, width in (
        (2, 35, 3, 4),
        (1, 16, 1, 1),
        (1, 1, 2, 5),
        (1, 48, 2, 1),
    ):
        sizes = (batch, height, width, channels)
        numbers = torch.randn(sizes)
        numbers.view(-1)[: special.numel()] = special[: numbers.numel()]
        x = numbers.permute(0, 3, 1, 2)
        large = F.interpolate(x.bfloat16(), scale_factor=2)
        written = torch.empty(sizes[0], 2 * height, 2 * width, channels, dtype=torch.bfloat16)
        bounds.loop_call(loop, [x], [written], sizes)()
        assert same(written.permute(0, 3, 1, 2), large)
        image = torch.full(sizes, 7.0)
        cotangent = torch.randn(written.shape).bfloat16()
        cotangent.view(-1)[: special.numel()] = special[: cotangent.numel()]
        a, b, c, d = (cotangent.float()[:, i::2, j::2] for i in range(2) for j in range(2))
        for past in (0, 1):
            bounds.loop_call(gradient, [cotangent], [image], (*sizes, past))()
            assert same(image, (a + b + c + d).bfloat16().float())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    "shape", [(70, 8, 8), (3, 5, 8), (1, 1, 8), (5, 3, 7), (2, 4, 1), (0, 8, 8)]
)
def test_loops_of_planes(shape: tuple[int, ...], loop_of: Loops) -> None:
    """Rows of eight are vectors, two at a time; others, and a last one, go pixel by pixel."""
    planes, height, width = shape
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, -3e-39, 3.4e38, -inf, nan])
    x, cotangent = torch.randn(shape), torch.randn(planes, 2 * height, 2 * width)
    large = torch.full_like(cotangent, 7)
    bounds.loop_call(loop_of("nearest_planes"), [x], [large], shape)()
    assert torch.equal(large, x.repeat_interleave(2, 1).repeat_interleave(2, 2))
    image = torch.full_like(x, 7)
    gradient = loop_of("nearest_planes_gradient")
    bounds.loop_call(gradient, [cotangent], [image], shape)()
    a, b, c, d = (cotangent[:, i::2, j::2] for i in range(2) for j in range(2))
    torch.testing.assert_close(image.double(), a.double() + b + c + d, rtol=1e-5, atol=1e-5)
    for numbers in (x, cotangent):
        numbers.view(-1)[: special.numel()] = special[: numbers.numel()]
    narrow, cells = large.bfloat16(), cotangent.bfloat16()
    rounded = loop_of("nearest_planes_autocast")
    bounds.loop_call(rounded, [x], [narrow], shape)()
    assert same(narrow, x.bfloat16().repeat_interleave(2, 1).repeat_interleave(2, 2))
    gradient = loop_of("nearest_planes_autocast_gradient")
    a, b, c, d = (cells.float()[:, i::2, j::2] for i in range(2) for j in range(2))
    for past in (0, 1):
        bounds.loop_call(gradient, [cells], [image], (*shape, past))()
        assert same(image, (a + b + c + d).bfloat16().float())


def test_a_loop_is_called_with_all_that_it_takes(loop_of: Loops) -> None:
    x, weight, y = torch.randn(1, 1, 8, 8), torch.randn(1, 1, 2, 2), torch.empty(1, 1, 16, 16)
    with pytest.raises(TypeError, match="at least 8 arguments"):
        bounds.loop_call(loop_of("transposed"), [x, weight], [y], x.shape)()


@pytest.mark.parametrize("shape", [(2, 8, 8, 2048), (1, 3, 5, 1100), (3, 1, 1, 7), (0, 2, 2, 4)])
def test_loops_of_pixels(shape: tuple[int, ...], loop_of: Loops) -> None:
    """Two pixels at a time and a last one; parts of the channels, the last one shorter."""
    batch, height, width, channels = shape
    x, weight = torch.randn(batch, channels, height, width), torch.randn(channels, 1, 2, 2)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    weight.requires_grad_()
    y = torch.full((batch, 2 * height, 2 * width, channels), 7.0)
    forward = loop_of("transposed_pixels")
    bounds.loop_call(forward, [x, weight], [y], shape)()
    expected = torch.nn.functional.conv_transpose2d(x, weight, stride=2, groups=channels)
    torch.testing.assert_close(y.permute(0, 3, 1, 2), expected)
    cotangent = torch.randn_like(y)
    written = [torch.full((batch, height, width, channels), 7.0), torch.full_like(weight, 7)]
    both = loop_of("transposed_pixels_gradients")
    bounds.loop_call(both, [cotangent, x, weight], written, shape)()
    found = torch.autograd.grad(expected, [x, weight], cotangent.permute(0, 3, 1, 2))
    torch.testing.assert_close(written[0].permute(0, 3, 1, 2), found[0])
    torch.testing.assert_close(written[1], found[1], rtol=1e-5, atol=1e-4)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether all numbers are the same, 0 and -0 apart, and NaN where NaN is."""
    is_nan = found.isnan()
    signs = found.signbit() == expected.signbit()
    return bool((is_nan == expected.isnan()).all() and ((found == expected) & signs | is_nan).all())


def test_every_loop_belongs_to_a_row_and_is_used() -> None:
    rows = {row.name: row for row in every_row()}
    for bound in bounds.BOUNDS:
        assert bound.direction in rows[bound.row].directions
    files = {path.stem for path in bounds.FOLDER.glob("*.c")}
    assert files == {bound.loop for bound in bounds.BOUNDS}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("bound", bounds.BOUNDS, ids=[each.loop for each in bounds.BOUNDS])
def test_bounds_are_measured(bound: Any, tmp_path: Path) -> None:
    (row,) = (row for row in every_row() if row.name == bound.row)
    found = bounds.measure(bound, row, row.tiny, 0.01, tmp_path)
    assert set(found) == {OPGEN, bounds.LOOP, bounds.NOTHING, bounds.BOTH, COPY}
    assert all(seconds > 0 for seconds in found.values())


def test_a_loop_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unfold.c").write_text("void unfold(const float *x, float *y) { y[0] = x[0]; }\n")
    monkeypatch.setattr(bounds, "FOLDER", tmp_path)
    bound = bounds.BOUNDS[0]
    row = next(row for row in every_row() if row.name == bound.row)
    with pytest.raises(DisagreementError):
        bounds.measure(bound, row, row.tiny, 0.01, tmp_path)


def test_what_is_reachable_is_the_loop_and_a_call() -> None:
    bound = bounds.Bound("a row", Direction.FORWARD, "unfold", "F.unfold", tuple)
    parts = {bounds.LOOP: 10e-6, bounds.NOTHING: 4e-6, bounds.BOTH: 15e-6}
    cells = bounds.cells(bound, {OPGEN: 20e-6, COPY: 8e-6, **parts})
    assert cells == ("a row", "forward", "0.008", "0.010", "0.004", "0.015", "0.020", "75 %")


def test_bounds_have_their_own_place(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("\n".join(["before", *tables.marks(tables.BOUNDS), "after"]))
    about = {"started": "now", "machine": {"cores": 2}, "command": "bounds.py"}
    tables.rewritten(path, tables.BOUNDS, {**about, tables.BOUNDS: [("a row", *"forward")]})
    lines = path.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after"
    assert "| a row | f | o | r | w | a | r | d |" in lines


# ---------------------------------------------------------------------------- first calls
def calls(forward: float, backward: float, gradients: int = 1) -> dict[str, float]:
    return {"forward": forward, "backward": backward, "gradients": gradients}


def test_a_first_call_is_the_median_of_processes() -> None:
    cold = (calls(500, 700), calls(2000, 800), calls(400, 900))
    warm = tuple(calls(milliseconds, 10) for milliseconds in (9, 90, 8, 10, 7))
    found = first_call.FirstCalls(small(double), cold, warm)
    assert found.figures == ("500 (2000)", "800 (900)", "9 (90)", "10 (10)")
    assert not found.is_slow


def test_what_is_slow() -> None:
    row = small(double)
    quick, slow = (calls(1, 1),) * 3, (calls(1, 39, gradients=2),) * 3
    assert not first_call.FirstCalls(row, quick, slow).is_slow  # 20 ms for each gradient
    assert first_call.FirstCalls(row, quick, (calls(1, 41, gradients=2),) * 3).is_slow
    assert first_call.FirstCalls(row, quick, (calls(21, 1),) * 3).is_slow
    assert first_call.FirstCalls(row, (calls(1501, 1),) * 3, quick).is_slow


# ---------------------------------------------------------------------------- layers of nets
def test_layers_have_names_of_their_own() -> None:
    labels = [layer.label for layer in nets.LAYERS]
    assert len(set(labels)) == len(labels)


def test_a_layer_is_measured_in_both_formats() -> None:
    layer = nets._convolution("tiny", (2, 4, 5, 6), (4, 1, 3, 3), padding=1, groups=4)
    line, ratios = beside.cells(layer, 0.01)
    assert line[0] == "tiny [2,4,5,6] [4,1,3,3]" and len(line) == 5
    assert len(ratios) == 4 and all(ratio.called > 0 for ratio in ratios)


def test_a_layer_that_is_no_image_leaves_cells_empty() -> None:
    layer = nets.Layer(
        "tiny", "softmax", "softmax", ((3, 5),), lambda x: torch.softmax(x, -1), is_image=False
    )
    line, ratios = beside.cells(layer, 0.01)
    assert line[2] == line[4] == "" and len(ratios) == 2


def test_a_layer_that_computes_something_else_is_refused() -> None:
    layer = nets.Layer("tiny", "softmax", "softmax", ((3, 5),), torch.exp, is_image=False)
    with pytest.raises(DisagreementError):
        beside.cells(layer, 0.01)


def test_ratios_of_layers_are_summed_up() -> None:
    found = {"ratios": [0.5, 0.97, 2.0], tables.NETS: [("a [1]", "0.50", "", "0.97", "")]}
    text = "\n".join(tables._nets(found))
    assert "2 of 3 ratios are 0.97 or more" in text and "geometric mean: 0.99" in text
    assert "| a [1] | 0.50 |  | 0.97 |  |" in text and "alone" not in text
    text = "\n".join(tables._nets({**found, "alone": [2.0, 8.0, 0.5]}))
    assert "2 of 3 ratios of what the GPU alone takes, in brackets, are 0.97 or more" in text
    assert "geometric mean: 2.00" in text


def test_ratios_of_the_gpu_alone_are_in_brackets() -> None:
    assert str(beside.Ratio(0.5)) == "0.50" and str(beside.Ratio(0.5, 1.25)) == "0.50 (1.25)"


# ---------------------------------------------------------------------------- ops that users write
def test_everyday_ops_have_names_of_their_own_and_can_be_compiled() -> None:
    labels = [each.label for each in everyday.OPS]
    assert len(set(labels)) == len(labels)
    for each in everyday.OPS:
        assert len(check_source(Source(f"op f({each.text}\n", each.name))) == 1


def test_small_ops_are_those_on_smaller_tensors() -> None:
    assert [each.name for each in small_ops.OPS] == [each.name for each in everyday.OPS]
    for each, large in zip(small_ops.OPS, everyday.OPS, strict=True):
        sizes = [tensor.numel() for tensor in each.workload(torch.contiguous_format).inputs]
        assert 256 <= max(sizes) < 2**15, each.name
        inputs = each.workload(torch.contiguous_format).inputs
        assert each.theirs(*inputs).numel() > 0 and each.text == large.text


def test_an_everyday_op_is_measured() -> None:
    op = everyday.Written(
        "tiny", "x: float[N,D]) -> y[N,D]\n  y[n,d] = exp(x[n,d])", ((3, 5),), torch.exp
    )
    line, ratios = beside.cells(op, 0.01)
    assert line[0] == "tiny [3,5]" and line[2] == line[4] == "" and len(ratios) == 2
    looked_up = next(each for each in everyday.OPS if each.name == "cells that are looked up")
    assert looked_up.workload(torch.contiguous_format).differentiable == (0,)
