"""Which convolutions go by tiles, and which do not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.runtime import build, convolution_tiles
from opgen.runtime.convolution_tiles import Target, VectorLayout
from tile_calls import (
    EVERY,
    HAS_VECTORS,
    LAST,
    check,
    check_calls,
    exact,
    forgotten_plans,
    leaf,
    listening,
)

CONV = opgen.load(SPECS / "conv.op")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    with forgotten_plans():
        yield


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    return listening(monkeypatch)


@pytest.mark.parametrize(
    ("shape", "filters", "groups", "is_tiled"),
    [
        ((2, 10, 50, 50), (15, 10, 3, 3), 1, True),
        ((8, 256, 56, 56), (256, 8, 3, 3), 32, True),
        ((8, 256, 56, 56), (256, 16, 3, 3), 16, True),
        ((2, 20, 9, 9), (20, 20, 1, 1), 1, False),
        ((2, 3, 64, 64), (8, 3, 3, 3), 1, True),
        ((2, 3, 8, 8), (8, 3, 3, 3), 1, False),  # little work for generated kernels
        ((2, 3, 64, 64), (8, 3, 1, 1), 1, False),  # these copy no rows
        ((2, 2, 64, 64), (4, 2, 3, 3), 1, False),
        ((2, 16, 56, 56), (32, 16, 3, 3), 1, False),  # blocks of the library are full
        ((2, 48, 28, 28), (48, 48, 3, 3), 1, False),
        ((2, 100, 7, 7), (100, 100, 3, 3), 1, False),  # much of the rows would be padding
        ((2, 10, 50, 50), (15, 10, 7, 7), 1, False),
        ((1, 20, 3, 20000), (20, 20, 3, 3), 1, False),  # rows that no cache holds
        ((8, 128, 7, 7), (64, 2, 3, 3), 64, True),  # sums over channels of short rows
        ((8, 128, 8, 8), (64, 2, 3, 3), 64, False),
        ((256, 128, 1, 1), (128, 2, 3, 3), 64, False),  # little but padding
        ((8, 64, 7, 7), (64, 1, 3, 3), 64, False),
        ((2, 64, 20, 33), (128, 1, 3, 3), 64, True),  # rows of several results
        ((2, 64, 20, 33), (64, 1, 3, 3), 64, False),
        ((2, 64, 20, 32), (128, 1, 3, 3), 64, False),
    ],
)
@pytest.mark.sampled(6)
def test_which_convolutions_go_by_tiles(
    shape: tuple[int, ...],
    filters: tuple[int, ...],
    groups: int,
    is_tiled: bool,
    heard: list[Target],
) -> None:
    x, weight = torch.randn(shape), torch.randn(filters)
    padding = filters[2] // 2
    y = CONV.conv2d(x, weight, padding=padding, groups=groups)
    check(y, F.conv2d(*exact(x, weight), padding=padding, groups=groups))
    assert bool(heard) == (is_tiled and HAS_VECTORS)


@pytest.mark.parametrize(
    ("shape", "filters", "groups", "is_tiled"),
    [
        ((8, 256, 56, 56), (256, 8, 3, 3), 32, True),
        ((8, 256, 56, 56), (256, 16, 3, 3), 16, True),
        ((2, 32, 40, 40), (16, 16, 3, 3), 2, True),
        ((2, 32, 20, 20), (64, 1, 3, 3), 32, True),
        ((2, 32, 20, 20), (64, 2, 1, 1), 16, True),
        ((2, 32, 20, 20), (32, 4, 1, 1), 8, False),
        ((2, 32, 20, 20), (32, 4, 3, 3), 8, True),
        ((2, 32, 20, 20), (128, 1, 3, 3), 32, False),  # the gradient has 64 channels for a vector
        ((2, 6, 20, 20), (6, 2, 3, 3), 3, False),  # half a vector
        ((2, 8, 30, 30), (16, 8, 3, 3), 1, True),
        ((2, 8, 6, 6), (8, 8, 3, 3), 1, False),  # little work
        ((256, 16, 3, 3), (8, 16, 3, 3), 1, False),  # short rows
        ((2, 32, 30, 30), (32, 16, 3, 3), 2, False),  # short rows
        ((1, 32, 56, 56), (32, 16, 3, 3), 2, False),
        ((2, 16, 56, 56), (16, 16, 3, 3), 1, False),  # blocks of the library are full
        ((2, 20, 56, 56), (20, 10, 3, 3), 2, False),  # vectors are not
        ((2, 32, 56, 56), (32, 16, 5, 5), 2, False),
        ((2, 64, 56, 56), (64, 32, 3, 3), 2, False),
        ((2, 16, 3, 20000), (16, 8, 3, 3), 2, False),  # rows that no cache holds
    ],
)
@pytest.mark.sampled(12)
def test_which_go_by_tiles_in_channels_last_format(
    shape: tuple[int, ...],
    filters: tuple[int, ...],
    groups: int,
    is_tiled: bool,
    heard: list[Target],
) -> None:
    x, weight = leaf(*shape, format_=LAST), leaf(*filters)
    check_calls(CONV.conv2d, F.conv2d, (x, weight), LAST, padding=filters[2] // 2, groups=groups)
    assert set(heard) == (EVERY if is_tiled else set())


def test_gradients_that_go_different_ways(heard: list[Target]) -> None:
    """16 results fill a vector, and gradients of 8 channels fill none."""
    torch.manual_seed(0)
    x, weight = leaf(4, 8, 28, 28, format_=LAST), leaf(16, 1, 3, 3)
    check_calls(CONV.conv2d, F.conv2d, (x, weight), LAST, padding=1, groups=8)
    assert set(heard) == EVERY - {Target.IMAGE}


def test_gradients_of_single_channels_with_several_results(heard: list[Target]) -> None:
    """Those of the image are sums over results, of short rows; those of the filter are not."""
    torch.manual_seed(0)
    x, weight = leaf(16, 64, 7, 7), leaf(128, 1, 3, 3)
    check_calls(CONV.conv2d, F.conv2d, (x, weight), padding=1, groups=64)
    assert set(heard) == EVERY & {Target.IMAGE}


def test_without_a_compiler_the_library_computes(
    monkeypatch: pytest.MonkeyPatch, heard: list[Target]
) -> None:
    def missing(*_: Any) -> Any:
        raise build.NoCompilerError("none")

    only_here = SimpleNamespace(library=missing, BuildError=build.BuildError)
    monkeypatch.setattr(convolution_tiles, "build", only_here)
    convolution_tiles._function.cache_clear()
    try:
        x, weight = torch.randn(2, 10, 50, 50), torch.randn(15, 10, 3, 3)
        check(CONV.conv2d(x, weight, padding=1), F.conv2d(*exact(x, weight), padding=1))
        assert not heard
    finally:
        convolution_tiles._function.cache_clear()


def test_a_compiler_without_vectors_has_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is empty there: the library is asked."""
    monkeypatch.setenv("OPGEN_CFLAGS", "-O0 -mno-avx512f")
    convolution_tiles._function.cache_clear()
    try:
        for layout, target in itertools.product(VectorLayout, Target):
            assert convolution_tiles.function(target, layout) is None
    finally:
        convolution_tiles._function.cache_clear()
