"""Images in channels-last format: kernels of their own, what they move, and which copies help."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen import compiler, programs
from opgen.errors import Source
from opgen.lang.read import read
from opgen.runtime import cuda_grid, cuda_operands, special
from opgen.testing.cuda_on_cpu import Report
from opgen.testing.cuda_on_cpu.emulated import emulated
from opgen.testing.cuda_on_cpu.traffic import movement, widths

PLAIN, HALO = 1.15, 1.35
SHARED = Path(__file__).parent.parent / "benchmarks" / "specs" / "shared_filter.op"


@cache
def module(stem: str) -> ModuleType:
    return opgen.load(SPECS / f"{stem}.op")


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)))
    return made.to(dtype)


def image(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return random(*shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def shifted_sum(x: torch.Tensor) -> torch.Tensor:
    """`shift_sum` with steps of 2, by hand."""
    channels, width = x.shape[1], x.shape[-1]
    y = x.new_zeros(x.shape[0], 1, x.shape[2], width + 2 * (channels - 1))
    for c in range(channels):
        y[:, 0, :, 2 * c : 2 * c + width] += x[:, c]
    return y


@dataclass(frozen=True)
class Workload:
    """An op on images, PyTorch's, the shapes of its tensors, and bounds of what moves.

    Bounds are those of the call and its gradient for the image, of what the second cache moves for
    a byte that must be.
    """

    own: Callable[..., torch.Tensor]
    other: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    forward: float
    backward: float


WORKLOADS = {
    "depthwise": Workload(
        lambda x, w: module("conv").conv2d(x, w, padding=1, groups=32),
        lambda x, w: F.conv2d(x, w, padding=1, groups=32),
        ((1, 32, 32, 32), (32, 1, 3, 3)),
        HALO,
        HALO,
    ),
    "bilinear": Workload(
        lambda x: module("upsample_bilinear").upsample_bilinear(x),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        ((1, 32, 32, 16),),
        HALO,
        HALO,
    ),
    "shift_sum": Workload(
        lambda x: module("shift_sum").shift_sum(x, step=2),
        shifted_sum,
        ((1, 8, 32, 128),),
        HALO,
        PLAIN,
    ),
    "depth_to_space": Workload(
        lambda x: module("depth_to_space").depth_to_space(x, r=2),
        lambda x: F.pixel_shuffle(x, 2),
        ((1, 64, 16, 32),),
        PLAIN,
        PLAIN,
    ),
}


def traced(workload: Workload, dtype: torch.dtype) -> tuple[list[Report], list[Report]]:
    """The launches of a call and of its gradient for the image, compared with PyTorch."""
    x, *others = (
        (image if number == 0 else random)(*shape, dtype=dtype)
        for number, shape in enumerate(workload.shapes)
    )
    x.requires_grad_()
    tolerances = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {}
    with emulated(trace=True) as launches:
        y = workload.own(x, *others)
        forward = len(launches.reports)
        grad_y = torch.empty_like(y).copy_(random(*y.shape, dtype=dtype))
        (grad_x,) = torch.autograd.grad(y, x, grad_y)
    wanted = workload.other(x, *others)
    torch.testing.assert_close(y, wanted, **tolerances)
    torch.testing.assert_close(grad_x, torch.autograd.grad(wanted, x, grad_y)[0], **tolerances)
    if y.shape[1] > 1:  # else it has no format
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert grad_x.stride() == x.stride()
    return launches.reports[:forward], launches.reports[forward:]


def second_cache(reports: list[Report]) -> float:
    (report,) = reports
    moved = movement(report)
    return moved.second_cache / moved.device


@pytest.mark.parametrize(
    "name",
    [
        "depthwise",
        "depth_to_space",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("bilinear", "shift_sum")),
    ],
)
def test_little_more_than_needed_is_moved(name: str) -> None:
    workload = WORKLOADS[name]
    forward, backward = traced(workload, torch.float32)
    assert second_cache(forward) <= workload.forward
    assert second_cache(backward) <= workload.backward
    if name != "shift_sum":  # whose channels lie in different columns
        for (report,) in (forward, backward):
            assert any(16 in found for found in widths(report).values())
    if name == "depthwise":
        assert set().union(*widths(forward[0]).values()) == {16}


@pytest.mark.parametrize(
    "name", [pytest.param("depthwise", marks=pytest.mark.slow), "depth_to_space"]
)
def test_16_bits(name: str) -> None:
    workload = WORKLOADS[name]
    forward, _ = traced(workload, torch.bfloat16)
    assert second_cache(forward) <= workload.forward
    assert 16 in widths(forward[0])["y", True]


def test_kernels_for_the_contiguous_format_are_others() -> None:
    """Negative control: those move elements that lie far apart one by one."""
    with mock.patch.object(special, "LARGE", 2**40), emulated(trace=True) as launches:
        module("depth_to_space").depth_to_space(image(1, 64, 16, 32), r=2)
    assert set().union(*widths(launches.reports[0]).values()) == {4}
    operation = module("depth_to_space").FAMILY.operations["depth_to_space"]
    layouts = {values[-1] for values in operation.special_cuda}
    assert None in layouts


def blocks_of_pixels(x: torch.Tensor, r: int, mode: str) -> torch.Tensor:
    """`depth_to_space` by PyTorch."""
    if mode == "CRD":
        return F.pixel_shuffle(x, r)
    n, channels, height, width = x.shape
    blocks = x.reshape(n, r, r, channels // r**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, channels // r**2, r * height, r * width)


def shuffled(
    shape: tuple[int, ...], r: int, mode: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> list[Report]:
    """The launches of `depth_to_space`, its gradient and `space_to_depth`, which must be right.

    A thread has as many rows as divide them.
    """
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setattr(cuda_grid, "LEAST_THREADS", 1)
    x = image(*shape, dtype=dtype).requires_grad_()
    wanted = blocks_of_pixels(x, r, mode)
    grad_y = image(*wanted.shape, dtype=dtype)
    (wanted_grad,) = torch.autograd.grad(wanted, x, grad_y)
    with emulated(trace=True) as launches:
        y = module("depth_to_space").depth_to_space(x, r=r, mode=mode)
        (grad_x,) = torch.autograd.grad(y, x, grad_y)
        back = module("depth_to_space").space_to_depth(grad_y, r=r, mode=mode)
    assert torch.equal(y, wanted)
    assert torch.equal(grad_x, wanted_grad)
    assert torch.equal(back, wanted_grad)
    return launches.reports


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", ["CRD", "DCR"])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)],
    ids=str,
)
def test_blocks_of_few_channels(
    dtype: torch.dtype, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring threads use whole sectors where a pixel has 4 channels, a block 16 pixels."""
    for shape in ((1, 64, 64, 8), (1, 64, 5, 16)):
        for report in shuffled(shape, 4, mode, dtype, monkeypatch):
            moved = movement(report)
            assert moved.first_cache == moved.device
            assert max(set().union(*widths(report).values())) == 4 * dtype.itemsize


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shape", "r"),
    [
        ((2, 64, 3, 5), 4),
        ((1, 80, 4, 6), 4),
        ((2, 36, 3, 8), 3),
        ((1, 320, 3, 4), 8),
        ((1, 16, 6, 8), 2),
    ],
)
@pytest.mark.parametrize("mode", ["CRD", "DCR"])
def test_blocks_of_other_sizes(
    mode: str, shape: tuple[int, ...], r: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shuffled(shape, r, mode, torch.bfloat16, monkeypatch)


def test_filters_that_lie_apart_would_narrow_all_accesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: they are copied for this alone."""
    monkeypatch.setattr(cuda_operands, "SMALL", 0)
    workload = WORKLOADS["depthwise"]
    with emulated(trace=True) as launches:
        workload.own(image(*workload.shapes[0]), random(*workload.shapes[1]))
    assert set().union(*widths(launches.reports[0]).values()) == {4}


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", torch.float32),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("cpu", torch.bfloat16),
                ("emulator", torch.float32),
                ("emulator", torch.bfloat16),
            )
        ),
    ],
    ids=str,
)
def test_kernels_that_share_a_sum(
    device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several kernels add to the gradient, in a tensor between them that has its dims."""
    monkeypatch.setattr(special, "LARGE", 0)
    x = image(2, 4, 3, 5, dtype=dtype).requires_grad_()
    grad_y = image(2, 4, 3, 5, dtype=dtype) - 0.5
    with emulated() if device == "emulator" else contextlib.nullcontext():
        y = module("norm").group_norm(x, num_groups=2)
        (got,) = torch.autograd.grad(y, x, grad_y)
    (wanted,) = torch.autograd.grad(F.group_norm(x, 2), x, grad_y)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


def pooled(pool: ModuleType, x: torch.Tensor) -> tuple[torch.Tensor, list[Report]]:
    """The gradient of a maximum in windows for an image, and the launches that gave it."""
    x = x.detach().requires_grad_()
    y, _ = pool.max_pool2d(x, kernel_size=2, stride=2)
    with emulated(trace=True) as launches:
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return grad, launches.reports


def test_temporaries_lie_as_images_do() -> None:
    """What a gradient keeps of the windows of an image has its channels side by side as well."""
    x = image(1, 32, 32, 32)
    got, reports = pooled(module("pool"), x)
    (wanted,) = torch.autograd.grad(
        F.max_pool2d(x.requires_grad_(), 2), x, torch.ones(1, 32, 16, 16)
    )
    assert torch.equal(got, wanted)
    assert len(reports) > 1
    for report in reports:
        assert second_cache([report]) <= HALO, report.kernel


@pytest.mark.slow
def test_temporaries_in_declared_order_are_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Negative control."""
    monkeypatch.setattr(programs, "with_temporaries", lambda op, orders, program: orders)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # which has kernels already
    _, reports = pooled(opgen.load(SPECS / "pool.op"), image(1, 32, 32, 32))
    assert max(second_cache([report]) for report in reports) > 2 * HALO


# ---------------------------------------------------------------------------- filters
FILTERS = {
    "depthwise": ("conv", F.conv2d, (2, 64, 12, 10), (64, 1, 3, 3), {"padding": 1, "groups": 64}),
    "strided": (
        "conv",
        F.conv2d,
        (2, 33, 13, 12),
        (33, 1, 3, 3),
        {"padding": 1, "stride": 2, "groups": 33},
    ),
    "7 by 7": ("conv", F.conv2d, (1, 32, 16, 16), (32, 1, 7, 7), {"padding": 3, "groups": 32}),
    "multiplied": ("conv", F.conv2d, (2, 32, 12, 12), (64, 1, 3, 3), {"padding": 1, "groups": 32}),
    "grouped": ("conv", F.conv2d, (2, 32, 8, 10), (32, 8, 3, 3), {"padding": 1, "groups": 4}),
    "transposed": (
        "conv_transpose",
        F.conv_transpose2d,
        (2, 64, 8, 8),
        (64, 1, 2, 2),
        {"stride": 2, "groups": 64},
    ),
}


def of_filter(
    name: str, threads: int = 256, rounds: int = 1
) -> tuple[torch.Tensor, torch.Tensor, list[Report]]:
    """The gradient of a filter, PyTorch's, and its launches; integers are exact in any order."""
    stem, other, *shapes, options = FILTERS[name]
    x, weight = (
        torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(at)).float()
        for at, shape in enumerate(shapes)
    )
    x, weight = x.contiguous(memory_format=torch.channels_last), weight.requires_grad_()
    wanted = other(x, weight, **options)
    grad = torch.randint(-4, 5, wanted.shape, generator=torch.Generator().manual_seed(2))
    grad = grad.float().contiguous(memory_format=torch.channels_last)
    op = getattr(module(stem), other.__name__)
    few = mock.patch.object(cuda_grid, "_FEWEST_ROUNDS", rounds)
    is_large = mock.patch.object(special, "LARGE", 1)
    with few, is_large, emulated(trace=True, threads=threads) as launches:
        y = op(x, weight, **options)
        done = len(launches.reports)
        (got,) = torch.autograd.grad(y, weight, grad)
    return got, torch.autograd.grad(wanted, weight, grad)[0], launches.reports[done:]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("rounds", [1, 8])
@pytest.mark.parametrize("threads", [1, 16, 256])
@pytest.mark.parametrize("name", FILTERS)
def test_gradients_of_filters(name: str, threads: int, rounds: int) -> None:
    """However few the threads of a block are, and however many blocks share a sum."""
    got, wanted, _ = of_filter(name, threads, rounds)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ["depthwise", "multiplied", "transposed"])
def test_pixels_are_shared_out_and_channels_are_side_by_side(name: str) -> None:
    """Blocks have few pixels each here, and what lies around these is read by several."""
    _, _, reports = of_filter(name)
    terms, parts = reports[-2:]
    assert terms.kernel == parts.kernel
    assert second_cache([terms]) <= HALO
    for tensor in ("x", "grad_y"):
        found = terms.traffic[tensor]
        assert found.read_sectors * 32 <= found.read_lane_bytes, "every byte of a sector is used"


def test_cells_of_a_group_read_neighbours_of_its_filters() -> None:
    """In the gradient for the image, too, which goes along the second dim of filters."""
    x = image(2, 32, 16, 16).requires_grad_()
    weight = random(32, 8, 3, 3) - 0.5
    wanted = F.conv2d(x, weight, padding=1, groups=4)
    grad = image(*wanted.shape)
    with mock.patch.object(special, "LARGE", 1), emulated(trace=True) as launches:
        y = module("conv").conv2d(x, weight, padding=1, groups=4)
        done = len(launches.reports)
        (got,) = torch.autograd.grad(y, x, grad)
    torch.testing.assert_close(got, torch.autograd.grad(wanted, x, grad)[0], atol=1e-4, rtol=1e-4)
    (report,) = launches.reports[done:]
    found = {name.split(",")[0]: width for (name, _), width in widths(report).items()}
    assert found["copy of weight"] == found["grad_x"] == {16}


@pytest.mark.parametrize("threads", [16, 256])
def test_one_filter_for_all_channels(threads: int) -> None:
    """Channels are then terms of its gradient, and threads have neighbouring ones."""
    x = torch.randint(-4, 5, (2, 32, 8, 6), generator=torch.Generator().manual_seed(0)).float()
    grad = torch.randint(-4, 5, (2, 64, 8, 6), generator=torch.Generator().manual_seed(1)).float()
    x, grad = (each.contiguous(memory_format=torch.channels_last) for each in (x, grad))
    weight = torch.ones(3, 3, requires_grad=True)
    y = F.conv2d(x, weight.expand(64, 1, 3, 3), padding=1, groups=32)
    (wanted,) = torch.autograd.grad(y, weight, grad)
    with mock.patch.object(special, "LARGE", 1), emulated(trace=True, threads=threads) as launches:
        y = opgen.load(SHARED).shared_filter(x, weight, multiplier=2, padding=1)
        done = len(launches.reports)
        (got,) = torch.autograd.grad(y, weight, grad)
    assert torch.equal(got, wanted)
    terms, *_ = launches.reports[done:]
    grad_y = terms.traffic["grad_y"]
    assert grad_y.read_block_sectors == grad_y.read_unique_sectors, "one block reads each channel"
    assert grad_y.read_sectors <= 4 * grad_y.read_unique_sectors, "8 bytes and more of each sector"


# ---------------------------------------------------------------------------- operands
def test_own_tensors_stay_contiguous() -> None:
    """Unless one is the place of a result."""
    x, y, own = torch.empty(2, 3, 4), torch.empty(2, 3, 4), torch.empty(2, 3, 4)
    orders = dict.fromkeys(("x", "y", "copy", "own"), (0, 2, 1))
    operands = {"x": x, "y": y, "copy": y, "own": own}
    found = cuda_operands.laid_out(operands, orders, ("copy", "own"))
    assert {each.shape for each in found.values()} == {(2, 4, 3)}
    assert found["copy"] is found["y"]
    assert not found["y"].is_contiguous() and not found["x"].is_contiguous()
    assert found["own"].is_contiguous() and found["own"].data_ptr() == own.data_ptr()


def test_operands_that_are_one_tensor_stay_one() -> None:
    x, y = torch.empty(2, 3, 4), torch.empty(3)
    found = cuda_operands.laid_out({"a": x, "b": x, "c": y}, {"a": (0, 2, 1), "b": (0, 2, 1)})
    assert found["a"] is found["b"]
    assert found["a"].shape == (2, 4, 3)
    assert found["c"] is y


@pytest.mark.parametrize(
    ("small", "large", "step", "copied"),
    [
        (torch.ones(8, 8).T, torch.ones(64, 64), 1, True),
        (torch.ones(()).expand(8, 8), torch.ones(64, 64), 1, True),
        (torch.ones(8, 8), torch.ones(64, 64), 1, False),  # side by side
        (torch.ones(32, 32).T, torch.ones(64, 64), 1, False),  # not small
        (torch.ones(8, 8).T, torch.ones(64, 64).T, 1, False),  # others are apart as well
    ],
)
def test_what_is_copied(small: torch.Tensor, large: torch.Tensor, step: int, copied: bool) -> None:
    operands, walked = {"w": small, "x": large}, {"w": 1, "x": step}
    found = cuda_operands.copies(operands, ["w", "x"], (64, 64), walked)
    assert set(found) == ({"w"} if copied else set())
    for name, tensor in found.items():
        assert torch.equal(tensor, operands[name])
        assert tensor.is_contiguous()
    assert cuda_operands.copies(operands, ["x"], (64, 64), walked) == {}, "w is no input"


@pytest.mark.parametrize(
    ("extents", "cells", "threads"),
    [
        ((4, 64, 16, 8), 4, (8, 2, 16)),  # 10 x 18 elements for 8 x 16
        ((4, 64, 64, 8), 1, (8, 4, 8)),
        ((4, 2, 64, 2), 4, (2, 64, 2)),  # two lines
        ((4, 64, 3, 2), 1, (2, 3, 42)),
    ],
)
def test_blocks_of_a_window(
    extents: tuple[int, ...], cells: int, threads: tuple[int, int, int]
) -> None:
    """Of all shapes the one that reads least, by hand."""
    found = cuda_grid.grid(extents, cells)
    assert found is not None
    assert found.threads == threads


def test_one_tensor_in_two_orders() -> None:
    """As an image and as a filter of groups: each has an order of its own."""
    text = "op twice(x[N,C,H,W], w[C,M,H,W]) -> y[N,C,H,W]\n"
    text += "  y[n,c,i,j] = sum(m) x[n,c,i,j] * w[c,m,i,j]\n"
    t = torch.randint(-4, 5, (4, 4, 3, 3)).float().contiguous(memory_format=torch.channels_last)
    with mock.patch.object(special, "LARGE", 1), emulated():
        found = opgen.compile(text).twice(t, t)
    assert found.equal(t * t.sum(1))


def test_temporaries_that_only_a_gpu_has() -> None:
    """A mean for which kernels of the CPU have a row at a time, in memory of another name."""
    text = "op f(x: float[N,C,H,W], w[C]) -> y[N,C,H,W]\n  square[n,h,i] = mean(c) x[n,c,h,i]**2\n"
    text += "  y[n,c,h,i] = x[n,c,h,i] * rsqrt(square[n,h,i] + 0.00001) * w[c]\n"
    x, w = random(2, 3, 4, 5), random(3)
    wanted = x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5) * w[:, None, None]
    for format_ in (torch.contiguous_format, torch.channels_last):
        with mock.patch.object(special, "LARGE", 1), emulated():
            found = opgen.compile(text).f(x.contiguous(memory_format=format_), w)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("layout", [0b1011, 0b1001])
def test_filters_of_groups(layout: int) -> None:
    """In any format they are given with their channels last, but for gradients of images."""
    op = compiler.check_source(compiler.read_source(SPECS / "conv.op"))[1]
    values = {"K": 3, "L": 3, "groups": 4}
    geometry = {f"{n}[{at}]": 1 for n in ("stride", "padding", "dilation") for at in (0, 1)}
    for rewrite in (
        programs.special_threads,
        lambda op, values, layout: programs.special_along_rows(op, op, values, layout),
    ):
        *_, orders = rewrite(op, {**geometry, **values}, layout)
        assert orders["weight"] == (1, 2, 3, 0)
    text = (SPECS / "conv_transpose.op").read_text(encoding="utf-8")
    (other,) = (e for e in read(Source(text)) if e.name == "conv_transpose2d")
    *_, orders = programs.special_along_rows(other, other, {"groups": 4}, 0b1011)
    assert orders["weight"] == (0, 2, 3, 1)
