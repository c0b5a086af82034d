"""Convolutions of the library in strips: numbers, formats and borders, and when there are any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import compat, kept_memory, library_call, library_strips, lookup_library
from opgen.runtime.library import Case

LAST = torch.channels_last
PLAIN = torch.contiguous_format
CONV = opgen.load(SPECS / "conv.op")
SUBPIXEL = opgen.load(SPECS / "conv_depth_to_space.op")


@pytest.fixture
def strips(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many strips each call has had, negative for gradients; small results have some, too."""
    found: list[int] = []
    convolve = library_strips.convolve

    def counted(plan: library_strips.Strips, *arguments: Any) -> Tensor:
        found.append(len(list(plan.parts())))
        return convolve(plan, *arguments)

    both = library_strips.gradients

    def counted_both(plan: library_strips.Strips, *arguments: Any) -> tuple[Tensor, Tensor]:
        found.append(-len(list(plan.parts())))
        return both(plan, *arguments)

    monkeypatch.setattr(library_strips, "convolve", counted)
    monkeypatch.setattr(library_strips, "gradients", counted_both)
    monkeypatch.setattr(library_strips, "_LARGE", 2**10)
    monkeypatch.setattr(library_strips, "_AT_ONCE", 2**8)
    monkeypatch.setattr(library_strips, "_OUTWEIGHS", 0)
    forget_plans()
    yield found
    forget_plans()


def forget_plans() -> None:
    for plans in library_call._KNOWN.values():
        plans.clear()


def check(found: Tensor, wanted: Tensor, terms: int) -> None:
    """Whether numbers are those of a sum of so many terms in the type of `found`."""
    unit = torch.finfo(found.dtype).eps
    inner = torch.finfo(torch.float32).eps
    assert found.shape == wanted.shape
    scale = wanted.abs().max().item()
    torch.testing.assert_close(
        found.double(), wanted, rtol=unit, atol=(unit + 4 * terms**0.5 * inner) * scale
    )


CASES = {
    "plain": ((2, 64, 9, 7), (64, 64, 3, 3), {"padding": 1}),
    "rows that are left over": ((1, 64, 23, 5), (64, 64, 3, 3), {"padding": 1}),
    "no padding": ((1, 64, 11, 6), (64, 64, 3, 3), {}),
    "padding of all that a window is": ((1, 64, 9, 8), (64, 64, 5, 3), {"padding": (4, 2)}),
    "steps": ((1, 64, 17, 9), (64, 64, 3, 3), {"stride": 2, "padding": 1}),
    "steps beyond the window": ((1, 64, 23, 9), (64, 64, 2, 2), {"stride": 3, "padding": 1}),
    "dilation": ((1, 64, 19, 9), (64, 64, 3, 3), {"dilation": (3, 2), "padding": (3, 2)}),
    "groups": ((2, 128, 13, 5), (128, 64, 3, 3), {"groups": 2, "padding": 1}),
    "one tap": ((2, 64, 13, 5), (96, 64, 1, 1), {}),
    "many small images": ((37, 64, 2, 2), (64, 64, 3, 3), {"padding": 1}),
    "large windows": ((1, 64, 11, 9), (64, 64, 5, 5), {"padding": 4}),
    "taps apart": ((2, 64, 19, 9), (64, 64, 3, 3), {"dilation": 3, "padding": 3}),
    "one row": ((1, 64, 1, 50), (64, 64, 1, 3), {"padding": (0, 1)}),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("format_", [PLAIN, LAST])
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, format_: Any, bias: bool, strips: list[int]) -> None:
    shape, filters, options = CASES[name]
    x = torch.randn(shape).contiguous(memory_format=format_)
    weight = torch.randn(filters).contiguous(memory_format=format_)
    more = torch.randn(filters[0]) if bias else None
    found = CONV.conv2d(x, weight, more, **options)
    wanted = F.conv2d(
        x.double(), weight.double(), None if more is None else more.double(), **options
    )
    check(found, wanted, weight[0].numel())
    assert found.is_contiguous(memory_format=format_)
    assert len(strips) == 1
    assert strips[0] > 1 or name == "one row"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format_", [PLAIN, LAST])
@pytest.mark.parametrize("r", [1, 2, 3, 4, 5])
def test_a_shuffle_behind(r: int, format_: Any, dtype: torch.dtype, strips: list[int]) -> None:
    x = torch.randn(2, 64, 11, 18, dtype=dtype).contiguous(memory_format=format_)
    weight, bias = torch.randn(2 * r * r, 64, 3, 3, dtype=dtype), torch.randn(2 * r * r).to(dtype)
    found = SUBPIXEL.conv_depth_to_space(x, weight, bias, r=r, padding=1)
    wanted = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    check(found, F.pixel_shuffle(wanted, r), 64 * 9)
    assert found.is_contiguous(memory_format=format_)
    is_taken = dtype != torch.float16 or compat.library_has_float16()
    assert [count > 1 for count in strips] == [True] * is_taken


def gradients_of(function: Any, x: Tensor, weight: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
    """Of the last call: those of the first ones are new, and go gradient by gradient."""
    for _ in range(3):
        leaves = [each.detach().requires_grad_() for each in (x, weight)]
        found = torch.autograd.grad(function(*leaves), leaves, seed)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format_", [PLAIN, LAST])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, format_: Any, strips: list[int]) -> None:
    shape, filters, options = CASES[name]
    x = torch.randn(shape).contiguous(memory_format=format_)
    weight = torch.randn(filters).contiguous(memory_format=format_)

    def exact(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x.double(), weight.double(), **options)

    seed = torch.randn(exact(x, weight).shape).contiguous(memory_format=format_)
    found = gradients_of(lambda *both: CONV.conv2d(*both, **options), x, weight, seed)
    wanted = gradients_of(exact, x.double(), weight.double(), seed.double())
    for one, other, terms in zip(
        found, wanted, (weight[0].numel(), seed[:, 0].numel()), strict=True
    ):
        check(one, other, terms)
        assert one.is_contiguous(memory_format=format_)
    assert min(strips) < -1 or name == "one row"


@pytest.mark.parametrize("format_", [PLAIN, LAST])
def test_gradients_of_images_lie_in_memory_that_is_kept(
    format_: Any, strips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Tensor] = []
    make = kept_memory.empty_strided

    def listening(*arguments: Any) -> Tensor:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(kept_memory, "empty_strided", listening)
    x = torch.randn(1, 64, 96, 48).contiguous(memory_format=format_)
    weight = torch.randn(64, 64, 3, 3).contiguous(memory_format=format_)
    seed = torch.randn(1, 64, 96, 48).contiguous(memory_format=format_)
    found = gradients_of(lambda *both: CONV.conv2d(*both, padding=1), x, weight, seed)
    assert min(strips) < -1
    assert found[0].data_ptr() == made[-1].data_ptr()
    assert made[-1].stride() == found[0].stride() == x.stride()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["plain", "last", "neither"])
@pytest.mark.parametrize("r", [2, 3, 5])
def test_gradients_with_a_shuffle_behind(r: int, kind: str, strips: list[int]) -> None:
    format_ = LAST if kind == "last" else PLAIN
    x = torch.randn(2, 64, 11, 18).contiguous(memory_format=format_)
    weight = torch.randn(2 * r * r, 64, 3, 3)

    def exact(x: Tensor, weight: Tensor) -> Tensor:
        return F.pixel_shuffle(F.conv2d(x, weight, padding=1), r)

    seed = torch.randn(2, 2, 11 * r, 18 * r).contiguous(memory_format=format_)
    if kind == "neither":
        seed = seed.transpose(2, 3).contiguous().transpose(2, 3)
    found = gradients_of(
        lambda *both: SUBPIXEL.conv_depth_to_space(*both, r=r, padding=1), x, weight, seed
    )
    wanted = gradients_of(exact, x.double(), weight.double(), seed.double())
    for one, other, terms in zip(found, wanted, (18 * r * r, 2 * 11 * 18), strict=True):
        check(one, other, terms)
    assert x.dim() == 4 and found[0].is_contiguous(memory_format=format_)
    assert min(strips) < -1


def test_gradients_of_16_bits_are_no_sums_of_strips(strips: list[int]) -> None:
    x, weight = torch.randn(1, 64, 23, 9).bfloat16(), torch.randn(64, 64, 3, 3).bfloat16()
    seed = torch.randn(1, 64, 23, 9).bfloat16()
    gradients_of(lambda *both: CONV.conv2d(*both, padding=1), x, weight, seed)
    assert strips and min(strips) > 0


def test_gradients_where_the_cotangent_is_not_finite(strips: list[int]) -> None:
    """A zero of the padding is no term, also beside infinity."""
    x, weight = torch.randn(1, 64, 20, 9), torch.randn(64, 64, 3, 3)
    seed = torch.randn(1, 64, 20, 9)
    gradients_of(lambda *both: CONV.conv2d(*both, padding=1), x, weight, seed)
    seed[0, 7, 0, 0] = float("inf")
    found = gradients_of(lambda *both: CONV.conv2d(*both, padding=1), x, weight, seed)
    assert min(strips) < -1
    finite = found[1].isfinite()
    assert finite[:7].all() and finite[8:].all()
    # The window of that cell has its first row and its first column in the padding.
    assert finite[7, :, 0].all() and finite[7, :, :, 0].all()
    assert not finite[7, :, 1:, 1:].any()
    assert not found[0][0, :, :2, :2].isfinite().any() and found[0][0, :, 2:].isfinite().all()


def test_numbers_that_are_not_those_in_memory(strips: list[int]) -> None:
    """Views that negate, and zeros without memory, as autograd makes them."""
    x, weight = torch.randn(1, 64, 20, 16), torch.randn(64, 64, 3, 3)
    seed = torch.randn(1, 64, 20, 16)

    def call(*both: Tensor) -> Tensor:
        found: Tensor = CONV.conv2d(*both, padding=1)
        return found

    assert torch.equal(call(torch._neg_view(x), weight), call(-x, weight))
    wanted = gradients_of(call, x, weight, -seed)
    found = gradients_of(call, x, weight, torch._neg_view(seed))
    assert all(map(torch.equal, found, wanted))
    wanted = gradients_of(call, -x, -weight, seed)
    found = gradients_of(call, torch._neg_view(x), torch._neg_view(weight), seed)
    assert all(map(torch.equal, found, wanted))
    zeros = torch._efficientzerotensor(seed.shape)
    assert not any(map(torch.any, gradients_of(call, x, weight, zeros)))
    assert min(strips) < -1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("step", [1, 2])
def test_images_with_gaps(step: int, threads: int, strips: list[int]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(2, 64, 13, 9 * step)[..., ::step]
        weight = torch.randn(64, 64, 3, 3)
        check(
            CONV.conv2d(x, weight, padding=1), F.conv2d(x.double(), weight.double(), padding=1), 576
        )
    finally:
        torch.set_num_threads(before)
    assert len(strips) == 1


def test_one_and_three_dims(strips: list[int]) -> None:
    x, weight = torch.randn(3, 64, 57), torch.randn(64, 64, 3)
    check(CONV.conv1d(x, weight, padding=1), F.conv1d(x.double(), weight.double(), padding=1), 192)
    x, weight = torch.randn(1, 64, 7, 5, 4), torch.randn(64, 64, 3, 2, 3)
    for format_ in (PLAIN, torch.channels_last_3d):
        found = CONV.conv3d(x.contiguous(memory_format=format_), weight, padding=1)
        check(found, F.conv3d(x.double(), weight.double(), padding=1), 64 * 18)
        assert found.is_contiguous(memory_format=format_)
    assert [count > 1 for count in strips] == [True] * 3


@pytest.mark.parametrize("format_", [PLAIN, LAST])
def test_what_is_not_finite_stays_where_it_is(format_: Any, strips: list[int]) -> None:
    x, weight = torch.randn(1, 64, 20, 5), torch.randn(64, 64, 3, 3)
    x[0, 3, 0, 0], x[0, 5, 19, 4] = float("inf"), float("nan")
    x = x.contiguous(memory_format=format_)
    found = CONV.conv2d(x, weight, padding=1)
    assert [count > 1 for count in strips] == [True]
    assert not found[:, :, :2, :2].isfinite().any()
    assert found[:, :, 18:, 3:].isnan().all()
    assert found[:, :, 2:18].isfinite().all()
    weight[0, 0, 0, 0] = float("inf")
    found = CONV.conv2d(torch.randn(1, 64, 20, 5), weight, padding=1)
    # The first window begins in the padding: infinity meets no pixel there.
    assert found[0, 0, 0].isfinite().all()
    assert found[0, 0, 1:, 1:].isinf().all()


def test_strips_need_no_library_of_ours(strips: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_library, "loaded", lambda: None)
    x, weight = torch.randn(1, 64, 12, 18), torch.randn(8, 64, 3, 3)
    found = SUBPIXEL.conv_depth_to_space(x, weight, padding=1)
    wanted = F.pixel_shuffle(F.conv2d(x.double(), weight.double(), padding=1), 2)
    check(found, wanted, 576)
    assert len(strips) == 1


def case(result: tuple[int, ...], weight: tuple[int, ...], format_: Any = PLAIN) -> Case:
    """A convolution with a step and a dilation of 1 and no padding."""
    rank = len(result) - 2
    sizes = (a + b - 1 for a, b in zip(result[2:], weight[2:], strict=True))
    image = (result[0], weight[1], *sizes)
    ones, zeros = (1,) * rank, (0,) * rank
    return Case(1, ones, zeros, ones, result, image, weight, format_)


def test_what_has_strips() -> None:
    def rows(found: library_strips.Strips | None) -> tuple[int, int] | None:
        return None if found is None else (found.images, found.rows)

    def cut(*arguments: Any, dtype: torch.dtype = torch.float32) -> tuple[int, int] | None:
        return rows(library_strips.strips(case(*arguments), None, dtype))

    small, filters = (1, 64, 300, 400), (64, 64, 3, 3)
    assert cut(small, filters) is None
    # Rows of 329105 bytes with those that they read, and four megabytes of them.
    assert cut((1, 64, 360, 640), filters) == (1, 12)
    assert cut((1, 64, 360, 640), filters, dtype=torch.bfloat16) is None
    assert cut((1, 64, 720, 640), filters, dtype=torch.bfloat16) == (1, 25)
    assert cut((64, 64, 56, 56), filters) == (2, 56)
    # Where the weight is heavy, the library would order it for each of many strips.
    assert cut((22, 512, 28, 28), (512, 512, 3, 3)) is None
    assert cut((64, 512, 28, 28), (512, 512, 3, 3)) == (10, 28)
    # Rows of a strip are no fewer than those that it reads beside its own.
    assert cut((1, 64, 512, 8192), (64, 64, 9, 9)) == (1, 8)
    assert rows(library_strips.strips(case((1, 64, 360, 640), filters, LAST), None, torch.float32))
    three = case((1, 64, 360, 640), filters, torch.channels_last_3d)
    assert library_strips.strips(three, None, torch.float32) is None


@pytest.mark.parametrize("format_", [PLAIN, LAST])
def test_a_large_result(format_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the size that has strips; calls like an earlier one have them as well."""
    found: list[int] = []
    convolve = library_strips.convolve

    def counted(plan: library_strips.Strips, *arguments: Any) -> Tensor:
        found.append(len(list(plan.parts())))
        return convolve(plan, *arguments)

    monkeypatch.setattr(library_strips, "convolve", counted)
    x = torch.randn(1, 64, 210, 170).contiguous(memory_format=format_)
    weight = torch.randn(256, 64, 3, 3)
    wanted = F.pixel_shuffle(F.conv2d(x, weight, padding=1), 2)
    for _ in range(3):
        got = SUBPIXEL.conv_depth_to_space(x, weight, padding=1)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)
        assert got.is_contiguous(memory_format=format_)
    assert found == [12] * 3  # of 19 rows: 217600 bytes each with those that they read
