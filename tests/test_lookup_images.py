"""Images between one plane for each channel and channels-last format, and convolutions of these."""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from guarded_memory import before_a_page
from opgen.runtime import (
    build,
    convolution_tiles,
    library,
    library_call,
    lookup_convolution,
    lookup_images,
)

INSTRUCTIONS = {16: "", 8: "#undef __AVX512F__\n", 4: "#undef __AVX512F__\n#undef __AVX__\n"}
HEAD = "#define _GNU_SOURCE\n#include <stdint.h>\n#include <string.h>\n#include <pthread.h>\n"


@functools.cache
def transpose(lanes: int) -> Any:
    """The function for vectors of so many lanes, whatever this processor has."""
    text = HEAD + INSTRUCTIONS[lanes] + lookup_images.source()
    function = build.library(text).opgen_transpose
    function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 4
    function.restype = None
    return function


every_vector = pytest.mark.parametrize("lanes", list(INSTRUCTIONS))
every_type = pytest.mark.parametrize("dtype", [torch.int16, torch.int32])


@every_vector
@every_type
def test_sizes_around_those_of_tiles(lanes: int, dtype: torch.dtype) -> None:
    sizes = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65, 130)
    for rows, columns, matrices in itertools.product(sizes, sizes, (0, 1, 3)):
        given = torch.arange(matrices * rows * columns, dtype=torch.int32).to(dtype)
        edge = 40
        memory = torch.full((given.numel() + 2 * edge,), -1, dtype=dtype)
        target = memory[edge:-edge]
        size = given.element_size()
        transpose(lanes)(given.data_ptr(), target.data_ptr(), matrices, rows, columns, size)
        wanted = given.view(matrices, rows, columns).transpose(1, 2).reshape(-1)
        assert torch.equal(target, wanted), (matrices, rows, columns)
        assert memory[:edge].eq(-1).all() and memory[-edge:].eq(-1).all(), "nothing else is written"


@every_vector
@every_type
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_work(lanes: int, dtype: torch.dtype, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for matrices, rows, columns in ((5, 10, 2500), (5, 2500, 10), (1, 1100, 150), (3, 70, 700)):
            given = torch.randint(-999, 999, (matrices, rows, columns), dtype=dtype)
            got = torch.zeros(matrices, columns, rows, dtype=dtype)
            words = (matrices, rows, columns, given.element_size())
            transpose(lanes)(given.data_ptr(), got.data_ptr(), *words)
            assert torch.equal(got, given.transpose(1, 2))
    finally:
        torch.set_num_threads(before)


@every_vector
@every_type
def test_nothing_behind_the_last_cell_is_read(lanes: int, dtype: torch.dtype) -> None:
    """It ends where memory does: what reads on ends the process."""
    for rows, columns in itertools.product((1, 3, 10, 16, 17, 33), repeat=2):
        given, _keep = before_a_page(torch.randint(-999, 999, (2, rows, columns), dtype=dtype))
        got = torch.zeros(2, columns, rows, dtype=dtype)
        words = (2, rows, columns, given.element_size())
        transpose(lanes)(given.data_ptr(), got.data_ptr(), *words)
        assert torch.equal(got, given.transpose(1, 2))


# ---------------------------------------------------------------------------- convolutions
@pytest.fixture
def python_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The convolutions that went through Python: others were looked up."""
    heard: list[str] = []
    for name in ("convolve", "_both"):

        def listening(*arguments: Any, name: str, function: Any) -> Any:
            heard.append(name)
            return function(*arguments)

        function = getattr(library_call, name)
        monkeypatch.setattr(
            library_call, name, functools.partial(listening, name=name, function=function)
        )
    return heard


def gradients(y: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Those for a cotangent that is the same for all tensors alike, in the format of this one."""
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(y.shape, generator=generator).to(y.dtype)
    return torch.autograd.grad(y, leaves, torch.empty_like(y).copy_(cotangent))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("images", [1, 4, 5, 13])
def test_few_channels_go_through_channels_last_some_images_at_a_time(
    images: int, dtype: torch.dtype, python_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_CACHED", 0)
    monkeypatch.setattr(library, "_NEW_PAGES", 0)
    monkeypatch.setattr(convolution_tiles, "tiles_of", lambda case, call: None)
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(images, 10, 7, 9, dtype=dtype).requires_grad_()
    weight = torch.randn(15, 10, 3, 3, dtype=dtype).requires_grad_()
    wide = [each.detach().double().requires_grad_() for each in (x, weight)]
    exact = F.conv2d(*wide, padding=1)
    wanted = (exact, *gradients(exact, *wide))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    found = []
    for _ in range(4):
        python_calls.clear()
        y = conv(x, weight, padding=1)
        assert not (python_calls and found)
        found.append((y, *gradients(y, x, weight)))
        for got, expected in zip(found[-1], wanted, strict=True):
            scale = expected.abs().max().item()
            torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance * scale)
            assert got.is_contiguous() and got.dtype == dtype
    assert not python_calls, "the last call was looked up"
    for once, again in zip(found[1], found[3], strict=True):
        assert torch.equal(once, again), "in Python and from the table alike"


def test_images_in_channels_last_format_are_not_copied(python_calls: list[str]) -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(5, 10, 7, 9).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(15, 10, 3, 3, requires_grad=True)
    for _ in range(3):
        python_calls.clear()
        y = conv(x, weight, padding=1)
        for got, wanted in zip(
            (y, *gradients(y, x, weight)),
            (F.conv2d(x, weight, padding=1), *gradients(F.conv2d(x, weight, padding=1), x, weight)),
            strict=True,
        ):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert not python_calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("expanded", [(0,), (0, 1), (2,)])
def test_expanded_filters_are_looked_up(
    expanded: tuple[int, ...], dtype: torch.dtype, python_calls: list[str]
) -> None:
    """Memory has fewer numbers than the filter, behind which others lie that are not finite."""
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(3, 16, 7, 9, dtype=dtype).contiguous(memory_format=torch.channels_last)
    sizes = [1 if dim in expanded else size for dim, size in enumerate((32, 8, 3, 3))]
    count = torch.tensor(sizes).prod().item()
    memory = torch.full((int(count) + 64,), float("nan"), dtype=dtype)
    memory[: int(count)] = torch.randn(int(count))
    weight = memory[: int(count)].view(sizes).expand(32, 8, 3, 3)
    leaves = [each.detach().requires_grad_() for each in (x, weight)]
    wide = [each.detach().double().requires_grad_() for each in (x, weight)]
    exact = F.conv2d(*wide, padding=1, groups=2)
    wanted = (exact, *gradients(exact, *wide))
    for _ in range(3):
        python_calls.clear()
        y = conv(*leaves, padding=1, groups=2)
        for got, expected in zip((y, *gradients(y, *leaves)), wanted, strict=True):
            scale = expected.abs().max().item()
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance * scale)
    assert not python_calls
    for place in (0, int(count) - 1):
        spoiled = memory.clone()
        spoiled[place] = float("inf")
        filters = spoiled[: int(count)].view(sizes).expand(32, 8, 3, 3)
        ones = torch.ones_like(x)
        assert not conv(ones, filters, padding=1, groups=2).isnan().any(), "no term of the padding"
        assert python_calls, "not from the table"


def test_what_a_filter_holds_in_memory() -> None:
    held = lookup_convolution._held
    weight = torch.randn(6, 4, 3, 2)
    assert held(weight) == held(weight.contiguous(memory_format=torch.channels_last)) == 144
    assert held(weight[:, :1].contiguous().expand(6, 4, 3, 2)) == 36
    assert held(weight.permute(3, 1, 0, 2)) == 144
    assert held(torch.randn(()).expand(6, 4, 3, 2)) == 1
    gaps = (weight[:, :2], weight[:, :1].expand(6, 4, 3, 2), weight[..., ::2])
    overlapping = weight.as_strided((3, 3), (1, 1))
    assert [held(each) for each in (*gaps, overlapping)] == [None] * 4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("images", [1, 3, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wide_windows_are_looked_up(
    images: int, dtype: torch.dtype, python_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_CACHED", 0)
    monkeypatch.setattr(library, "_OUTWEIGHS", 0)
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(images, 18, 12, 13, dtype=dtype)
    weight = torch.randn(18, 1, 11, 11, dtype=dtype) / 11
    bias = torch.randn(18, dtype=dtype)
    geometry = {"padding": 5, "groups": 18}
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for _ in range(3):
        python_calls.clear()
        got = conv(x, weight, bias, **geometry)
        wanted = F.conv2d(x.double(), weight.double(), bias.double(), **geometry)
        scale = wanted.abs().max().item()
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=tolerance * scale)
        assert got.is_contiguous()
    assert not python_calls
    spoiled = weight.clone()
    spoiled[0, 0, 0, 0] = float("inf")
    assert not conv(x, spoiled, bias, **geometry).isnan().any(), "a zero of padding has no term"


def test_so_many_images_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(images: int, channels: int, size: int, window: int) -> int:
        shape = (images, channels, size, size)
        weight = (channels, 1, window, window)
        pair = (1, 1)
        format_ = torch.contiguous_format
        return library.Case(1, pair, pair, pair, shape, shape, weight, format_).images_at_once

    assert at_once(256, 10, 50, 3) == 37, "of 200 kB, 8 MB: 7 pieces, the last one smaller"
    assert at_once(3, 10, 50, 3) == 3
    assert at_once(64, 1024, 20, 3) == 4, "the fewest"
    assert at_once(8, 1024, 20, 31) == 8, "the weight outweighs four images"
