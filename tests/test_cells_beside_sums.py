"""Cells that a kernel stores beside its sums go past the caches, where these do not hold a call."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import build, prelude, special

DECISION: Final = "return is_there && (bytes >= largest_cache || rest >= largest_cache / 4);"
LINE: Final = 64
SIZES: Final = [(8, 8), (3, 9), (5, 7)]
"""Two, three pixels in a pass, and one."""

COUNTED: Final = """
int64_t lines, has_lines = STORES_LINES;
#undef STORE_LINE
#define STORE_LINE(place, values) (__atomic_fetch_add(&lines, !((uintptr_t)(place) % LINE), 0), \\
    *(__typeof__(values) *)(place) = (values))
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Few channels are points enough for it, so that cells and sums are one kernel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls have kernels for their sizes."""
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setattr(special, "MOST", 1000)
    monkeypatch.setattr(special, "MOST_SIZES", 1000)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ctypes.CDLL]:
    """The kernels made from now on, which go past the caches and count the lines that do."""
    text = prelude.C
    assert DECISION in text
    text = text.replace(DECISION, "(void)is_there, (void)rest; return all_bytes > 0;")
    monkeypatch.setattr(prelude, "C", text + COUNTED)
    library, found = build.library, list[ctypes.CDLL]()

    def built(source: str) -> ctypes.CDLL:
        compiled = library(source)
        if COUNTED in source:
            found.append(compiled)
        return compiled

    monkeypatch.setattr(build, "library", built)
    return found


def forget(made: list[ctypes.CDLL]) -> None:
    """Count from 0 on."""
    for each in made:
        ctypes.c_int64.in_dll(each, "lines").value = 0


def lines(made: list[ctypes.CDLL]) -> int:
    """How many lines went past the caches."""
    return sum(ctypes.c_int64.in_dll(each, "lines").value for each in made)


def op_of(test: str) -> Any:
    """Transposed convolution, with kernels that no other test has made."""
    name = f"conv_transpose2d_{test}"
    text = (SPECS / "conv_transpose.op").read_text()
    text = text.replace("op conv_transpose2d(", f"op {name}(")
    return getattr(opgen.compile(text, f"{test}.op"), name)


def image(*shape: int, dtype: torch.dtype) -> Tensor:
    """A random image in channels-last format."""
    found = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return found.to(dtype).contiguous(memory_format=torch.channels_last)


def gradients(
    op: Any, x: Tensor, weight: Tensor, cotangent: Tensor, made: list[ctypes.CDLL]
) -> tuple[Tensor, ...]:
    """Those of image and filter; only lines of this call are counted, not of one before it."""
    leaves = [each.detach().requires_grad_() for each in (x, weight)]
    result = op(*leaves, stride=2, groups=x.shape[1])
    torch.autograd.grad(result, leaves, cotangent, retain_graph=True)
    forget(made)
    return torch.autograd.grad(result, leaves, cotangent)


def agree(found: Tensor, exact: Tensor, dtype: torch.dtype, terms: int) -> None:
    """Whether sums of so many terms are right, which are rounded to a type once."""
    bound = torch.finfo(dtype).eps + 2 * terms * torch.finfo(torch.float32).eps
    assert (found.double() - exact).abs().max() <= bound * exact.abs().max()


def expected_lines(gradient: Tensor, made: list[ctypes.CDLL], lanes: int) -> int:
    """All of a gradient where every vector is a line, and there is an instruction for it."""
    has_lines = any(ctypes.c_int64.in_dll(each, "has_lines").value for each in made)
    channels, size = gradient.shape[1], gradient.element_size()
    is_whole = channels * size % LINE == 0 and channels % lanes == 0
    return gradient.numel() * size // LINE if has_lines and is_whole else 0


@pytest.mark.sampled(16)
@pytest.mark.parametrize("channels", [256, 80, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients(channels: int, dtype: torch.dtype, made: list[ctypes.CDLL]) -> None:
    """80 channels of 16 bits are no whole lines, and 70 are none of float32."""
    op = op_of(f"beside_{str(dtype).split('.')[1]}_{channels}")
    for size in SIZES:
        x, weight = image(2, channels, *size, dtype=dtype), torch.randn(channels, 1, 2, 2).to(dtype)
        cotangent = image(2, channels, 2 * size[0], 2 * size[1], dtype=dtype)
        found = gradients(op, x, weight, cotangent, made)
        wide = [each.double() for each in (x, weight, cotangent)]
        exact = gradients(F.conv_transpose2d, *wide, [])
        for mine, theirs, terms in zip(found, exact, (4, 2 * math.prod(size)), strict=True):
            agree(mine, theirs, dtype, terms)
        lanes = 16 if dtype == torch.float32 else 32
        assert lines(made) == expected_lines(found[0], made, lanes), size


@pytest.mark.sampled(4)
@pytest.mark.parametrize("channels", [256, 80])
def test_gradients_that_are_rounded_where_they_are_stored(
    channels: int, made: list[ctypes.CDLL]
) -> None:
    """Two lines of float32 for every two vectors of 16 bits."""
    op = op_of(f"beside_rounded_{channels}")
    for size in SIZES:
        x, weight = image(2, channels, *size, dtype=torch.float32), torch.randn(channels, 1, 2, 2)
        cotangent = image(2, channels, 2 * size[0], 2 * size[1], dtype=torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = gradients(op, x, weight, cotangent, made)
        wide = [each.to(torch.bfloat16).double() for each in (x, weight, cotangent)]
        exact = gradients(F.conv_transpose2d, *wide, [])
        assert found[0].dtype == torch.float32
        for mine, theirs, terms in zip(found, exact, (4, 2 * math.prod(size)), strict=True):
            agree(mine, theirs, torch.bfloat16, terms)
        assert lines(made) == expected_lines(found[0], made, 32), size
