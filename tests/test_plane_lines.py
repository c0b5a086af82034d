"""Vectors that are stored past the caches, as they are where these do not hold a call."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import build, prelude, special

DECISION = "return is_there && (bytes >= largest_cache || rest >= largest_cache / 4);"
SIZES = [(8, 8), (6, 8), (16, 16), (2, 8), (5, 7)]
"""Of four, three, sixteen, one and no whole vectors of lanes."""


@pytest.fixture(autouse=True)
def every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls have kernels for their sizes."""
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setattr(special, "MOST", 1000)
    monkeypatch.setattr(special, "MOST_SIZES", 1000)


def past_caches(monkeypatch: pytest.MonkeyPatch, *, are_stored: bool) -> None:
    """Vectors that may go past the caches do, or get lost on the way."""
    text = prelude.C
    assert DECISION in text
    text = text.replace(DECISION, "(void)is_there, (void)rest; return all_bytes > 0;")
    if not are_stored:
        text += "\n#undef STORE_LINE\n#define STORE_LINE(place, values) ((void)(place))\n"
    monkeypatch.setattr(prelude, "C", text)


def ops(test: str) -> tuple[object, object]:
    """Upsampling and transposed convolution, with kernels that no other test has made."""
    found = []
    for file, name in (("upsample_nearest", "upsample_nearest"), ("conv_transpose", None)):
        text, name = (SPECS / f"{file}.op").read_text(), name or "conv_transpose2d"
        module = opgen.compile(text.replace(f"op {name}(", f"op {name}_{test}("), f"{test}.op")
        found.append(getattr(module, f"{name}_{test}"))
    return found[0], found[1]


def results(up: object, spread: object, x: Tensor, weight: Tensor) -> list[Tensor]:
    """The gradients of both, and the result of the second one."""
    assert callable(up) and callable(spread)
    x = x.detach().requires_grad_()
    large = up(x, scale_factor=2)
    (first,) = torch.autograd.grad(large, x, cotangent_like(large))
    channels = {"stride": 2, "groups": x.shape[1]}
    spreaded = spread(x, weight, **channels)
    (second,) = torch.autograd.grad(spreaded, x, cotangent_like(spreaded))
    return [first, spreaded.detach(), second]


def cotangent_like(y: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(y.numel())
    return torch.randn(y.shape, generator=generator).to(y.dtype)


def interpolate(x: Tensor, scale_factor: int) -> Tensor:
    return F.interpolate(x, scale_factor=scale_factor)


def wanted(x: Tensor, weight: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The same by PyTorch, in float64 from numbers of that type on."""
    exact = [each.to(dtype).double() for each in (x, weight)]
    own = exact[0].requires_grad_()
    large = interpolate(own, 2)
    (first,) = torch.autograd.grad(large, own, cotangent_like(large).to(dtype).double())
    spreaded = F.conv_transpose2d(own, exact[1], stride=2, groups=x.shape[1])
    (second,) = torch.autograd.grad(spreaded, own, cotangent_like(spreaded).to(dtype).double())
    return [first, spreaded.detach(), second]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("dtype", "threads"),
    [
        (torch.float32, 2),
        (torch.bfloat16, 1),
        pytest.param(torch.bfloat16, 2, marks=pytest.mark.slow),
        pytest.param(torch.float16, 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_results(
    size: tuple[int, int], dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    past_caches(monkeypatch, are_stored=True)
    up, spread = ops(f"lines_{str(dtype).split('.')[1]}_{threads}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weight = torch.randn(3, 70, *size), torch.randn(70, 1, 2, 2)
        found = results(up, spread, x.to(dtype), weight.to(dtype))
        for got, exact in zip(found, wanted(x, weight, dtype), strict=True):
            bound = 6 * torch.finfo(dtype).eps * exact.abs().max()
            assert got.dtype == dtype and (got.double() - exact).abs().max() <= bound
    finally:
        torch.set_num_threads(before)


def test_gradients_that_are_rounded_where_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    past_caches(monkeypatch, are_stored=True)
    up, _ = ops("lines_rounded")
    assert callable(up)
    for size in SIZES:
        x = torch.randn(3, 70, *size, requires_grad=True)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                large = up(x, scale_factor=2)
            cotangent = cotangent_like(large)
            (got,) = torch.autograd.grad(large, x, cotangent)
        exact = F.avg_pool2d(cotangent.double(), 2, divisor_override=1)
        assert got.dtype == torch.float32
        assert torch.equal(got, exact.float().to(torch.bfloat16).float()), size


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_whole_planes_go_this_way(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that get lost are missed, where there are instructions for planes."""
    if "avx512bw" not in Path("/proc/cpuinfo").read_text():
        return
    libraries, library = [], build.library

    def noted(source: str) -> ctypes.CDLL:
        libraries.append(source)
        return library(source)

    monkeypatch.setattr(build, "library", noted)
    past_caches(monkeypatch, are_stored=False)
    up, spread = ops(f"lines_lost_{str(dtype).split('.')[1]}")
    x, weight = torch.randn(3, 70, 8, 8), torch.randn(70, 1, 2, 2)
    found = results(up, spread, x.to(dtype), weight.to(dtype))
    are_lost = [
        not torch.allclose(got.double(), exact, rtol=0.1, atol=0.1)
        for got, exact in zip(found, wanted(x, weight, dtype), strict=True)
    ]
    assert any("will_be_stored(call" in source for source in libraries)
    assert any(are_lost)
    assert are_lost[0] or dtype == torch.bfloat16  # alone a vector of those is half a line


@pytest.mark.sampled(14)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("channels", [64, 96, 70, 31])
def test_pairs_of_vectors_in_channels_last_format(
    channels: int, size: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are lines where the channels are; the others are computed row by row."""
    past_caches(monkeypatch, are_stored=True)
    _, spread = ops(f"pairs_{channels}_{str(dtype).split('.')[1]}")
    got, exact = spread_channels_last(spread, channels, size, dtype)
    bound = 6 * torch.finfo(dtype).eps * exact.abs().max()
    assert got.dtype == dtype and (got.double() - exact).abs().max() <= bound


def both_gradients(spread: object, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Those of the image and the filter in one call, and the same in float64."""
    assert callable(spread)
    # Channels enough for the image's to be computed within the sums for the filter's.
    x, weight = torch.randn(3, 520, 8, 8), torch.randn(520, 1, 2, 2)
    own = [each.to(dtype).requires_grad_() for each in (x, weight)]
    exact = [each.to(dtype).double().requires_grad_() for each in (x, weight)]
    y = spread(*own, stride=2, groups=520)
    theirs = F.conv_transpose2d(*exact, stride=2, groups=520)
    cotangent = cotangent_like(y)
    return (
        list(torch.autograd.grad(y, own, cotangent)),
        list(torch.autograd.grad(theirs, exact, cotangent.double())),
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_that_share_a_pass(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    past_caches(monkeypatch, are_stored=True)
    _, spread = ops(f"shared_{str(dtype).split('.')[1]}")
    for got, exact in zip(*both_gradients(spread, dtype), strict=True):
        bound = 6 * torch.finfo(dtype).eps * exact.abs().max()
        assert got.dtype == dtype and (got.double() - exact).abs().max() <= bound


def test_gradients_that_share_a_pass_go_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that get lost are missed, where there are instructions for planes."""
    has_planes = "avx512bw" in Path("/proc/cpuinfo").read_text()
    past_caches(monkeypatch, are_stored=False)
    _, spread = ops("shared_lost")
    images, filters = zip(*both_gradients(spread, torch.float32), strict=True)
    assert torch.allclose(images[0].double(), images[1], rtol=0.1, atol=0.1) != has_planes
    assert torch.allclose(filters[0].double(), filters[1], rtol=1e-4, atol=1e-4)


def test_pairs_go_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that get lost are missed, where there are instructions for pairs."""
    has_pairs = "avx512f" in Path("/proc/cpuinfo").read_text()
    past_caches(monkeypatch, are_stored=False)
    _, spread = ops("pairs_lost")
    got, exact = spread_channels_last(spread, 64, (8, 8), torch.bfloat16)
    assert torch.allclose(got.double(), exact, rtol=0.1, atol=0.1) != has_pairs


def spread_channels_last(
    spread: object, channels: int, size: tuple[int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A transposed convolution of 2x2 in channels-last format, and the same in float64."""
    assert callable(spread)
    x, weight = torch.randn(2, channels, *size), torch.randn(channels, 1, 2, 2)
    x, weight = x.to(dtype).to(memory_format=torch.channels_last), weight.to(dtype)
    got = spread(x, weight, stride=2, groups=channels)
    assert got.is_contiguous(memory_format=torch.channels_last)
    exact = F.conv_transpose2d(x.double(), weight.double(), stride=2, groups=channels)
    return got, exact
