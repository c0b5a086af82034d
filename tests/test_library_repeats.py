"""Single channels with a few results each go through the library as groups of one result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import convolution_tiles, library_call, library_gradients, library_repeats

LAST = torch.channels_last
EPSILON = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two results in float32 go by tiles on some processors, and on others as all do here."""
    monkeypatch.setattr(convolution_tiles, "tiles_of", lambda case, call: None)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Python was asked for: calls of the library, and copies of images for them."""
    heard: list[str] = []

    def listen(module: Any, name: str, word: str) -> None:
        function = getattr(module, name)

        def heard_first(*arguments: Any) -> Any:
            heard.append(word)
            return function(*arguments)

        monkeypatch.setattr(module, name, heard_first)

    listen(library_repeats, "repeated", "repeated")
    listen(library_call, "computed", "call")
    listen(library_call, "_both", "call")
    monkeypatch.setattr(library_repeats, "LARGE", 0)
    return heard


def results(function: Any, *leaves: Tensor, cotangent: Tensor, **attributes: Any) -> list[Tensor]:
    """What an op gives, and its gradients."""
    y = function(*leaves, **attributes)
    return [y.detach(), *torch.autograd.grad(y, leaves, cotangent)]


def compare(found: list[Tensor], exact: list[Tensor], dtype: torch.dtype) -> None:
    for got, wanted in zip(found, exact, strict=True):
        assert got.dtype == dtype and got.shape == wanted.shape
        scale = wanted.abs().max().item()
        # Sums of thousands of terms: the error grows with the root of their number.
        tolerance = EPSILON[dtype] * scale * 4
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=tolerance)


SHAPES = [
    # images, channels, rows, columns, results of each, taps, stride, padding
    (3, 8, 7, 7, 2, (3, 3), 1, (1, 1)),
    (2, 17, 5, 9, 3, (3, 3), 1, (0, 1)),
    (1, 5, 11, 6, 4, (3, 2), 1, (1, 0)),
    (2, 9, 6, 7, 2, (1, 1), 1, (0, 0)),  # as it is
    (2, 9, 6, 7, 2, (2, 2), 1, (0, 0)),
    (2, 16, 1, 1, 2, (3, 3), 1, (1, 1)),
    (4, 33, 28, 27, 2, (3, 3), 1, (1, 1)),  # more cells than are taken at once
    (7, 64, 49, 48, 2, (3, 3), 1, (1, 1)),  # and enough for several threads
    (4, 24, 40, 40, 4, (3, 3), 1, (1, 1)),
    (4, 24, 40, 40, 2, (3, 3), 2, (1, 1)),  # as it is
    (2, 8, 9, 9, 2, (5, 5), 1, (2, 2)),  # forward only
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_and_gradients(
    shape: tuple[Any, ...], dtype: torch.dtype, threads: int, copies: list[str]
) -> None:
    images, channels, rows, columns, count, taps, stride, padding = shape
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(sum(map(hash, shape[:5])))
    x = torch.randn(images, channels, rows, columns, dtype=dtype).contiguous(memory_format=LAST)
    weight = torch.randn(channels * count, 1, *taps, dtype=dtype)
    bias = torch.randn(channels * count, dtype=dtype)
    attributes = {"padding": padding, "stride": stride, "groups": channels}
    wide = [each.double().contiguous().requires_grad_() for each in (x, weight, bias)]
    y = F.conv2d(*wide, **attributes)
    cotangent = torch.randn(y.shape).to(dtype).contiguous(memory_format=LAST)
    exact = results(F.conv2d, *wide, cotangent=cotangent.double(), **attributes)
    without = results(F.conv2d, *wide[:2], cotangent=cotangent.double(), **attributes)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    found = []
    for _ in range(4):
        copies.clear()
        found.append(results(conv, *leaves, cotangent=cotangent, **attributes))
        compare(found[-1], exact, dtype)
    assert "repeated" not in copies, "the last call was looked up"
    plain = results(conv, *leaves[:2], cotangent=cotangent, **attributes)
    compare(plain, without, dtype)
    assert plain[0].is_contiguous(memory_format=LAST)
    for once, again in zip(found[1], found[3], strict=True):
        assert torch.equal(once, again), "in Python and from the table alike"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("expanded", [(0,), (0, 2, 3), (2,)])
def test_filters_that_are_expanded(
    expanded: tuple[int, ...], dtype: torch.dtype, copies: list[str]
) -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(1)
    sizes = [1 if at in expanded else size for at, size in enumerate((22, 1, 3, 3))]
    x = torch.randn(3, 11, 7, 7).to(dtype).contiguous(memory_format=LAST).requires_grad_()
    held = torch.randn(sizes).to(dtype).requires_grad_()
    wide = [each.detach().double().contiguous().requires_grad_() for each in (x, held)]
    cotangent = torch.randn(3, 22, 7, 7).to(dtype).contiguous(memory_format=LAST)

    def by(function: Any) -> Any:
        return lambda x, held: function(x, held.expand(22, 1, 3, 3), padding=1, groups=11)

    exact = results(by(F.conv2d), *wide, cotangent=cotangent.double())
    # A gradient that is expanded is summed in its own type, which is PyTorch's.
    tolerance = 1 if dtype == torch.float32 else 4
    for _ in range(3):
        found = results(by(conv), x, held, cotangent=cotangent)
        for got, wanted in zip(found, exact, strict=True):
            scale = wanted.abs().max().item()
            torch.testing.assert_close(
                got.double(), wanted, rtol=0, atol=4 * EPSILON[dtype] * scale * tolerance
            )


@pytest.mark.parametrize("first", [0, 1])
def test_images_that_are_no_whole_memory(first: int, copies: list[str]) -> None:
    """Every second row of larger images, and images of which some channels are left out."""
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(2)
    memory = torch.randn(2, 14, 13, 12).contiguous(memory_format=LAST)
    x = memory[:, :9, ::2] if first else memory[:, 2:, :, 3:]
    channels = x.shape[1]
    weight = torch.randn(2 * channels, 1, 3, 3)
    expected = F.conv2d(x.double().contiguous(), weight.double(), padding=1, groups=channels)
    for _ in range(3):
        got = conv(x, weight, padding=1, groups=channels)
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(memory[:, :9, ::2] if first else memory[:, 2:, :, 3:], x)


def test_a_filter_that_is_not_finite_meets_no_zeros_of_the_padding(copies: list[str]) -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    x = torch.ones(2, 8, 5, 5).contiguous(memory_format=LAST)
    weight = torch.ones(16, 1, 3, 3)
    known = conv(x, weight, padding=1, groups=8)
    conv(x, weight, padding=1, groups=8)
    weight[3, 0, 0, 0] = torch.inf
    found = conv(x, weight, padding=1, groups=8)
    assert not found.isnan().any(), "a zero of the padding has no term"
    assert torch.isinf(found[:, 3, 1:, 1:]).all() and torch.isfinite(found[:, 3, 0]).all()
    others = [at for at in range(16) if at != 3]
    assert torch.equal(found[:, others], known[:, others])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("dtype", "channels", "count", "taps", "format_", "steps", "is_repeated", "gradients"),
    [
        (torch.float32, 8, 2, 3, LAST, (1, 1), True, True),
        (torch.float32, 8, 4, 3, LAST, (1, 1), True, True),
        (torch.bfloat16, 8, 2, 3, LAST, (1, 1), True, False),
        (torch.float32, 8, 2, 5, LAST, (1, 1), True, False),
        (torch.float32, 8, 2, 9, LAST, (1, 1), False, False),
        (torch.float32, 8, 5, 3, LAST, (1, 1), False, False),
        (torch.float32, 8, 2, 3, LAST, (2, 1), False, False),
        (torch.float32, 8, 2, 1, LAST, (1, 1), False, False),
        (torch.float32, 7, 2, 3, LAST, (1, 1), False, False),
        (torch.float32, 8, 2, 3, LAST, (1, 2), False, False),
        (torch.float32, 8, 2, 3, torch.contiguous_format, (1, 1), False, False),
        (torch.float64, 8, 2, 3, LAST, (1, 1), False, False),
        (torch.float16, 8, 2, 3, LAST, (1, 1), False, False),
    ],
)
def test_which_calls_have_copies(
    dtype: torch.dtype,
    channels: int,
    count: int,
    taps: int,
    format_: torch.memory_format,
    steps: tuple[int, int],
    is_repeated: bool,
    gradients: bool,
    copies: list[str],
) -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(3)
    x = torch.randn(2, channels, 12, 11).to(dtype).contiguous(memory_format=format_)
    weight = torch.randn(channels * count, 1, taps, taps).to(dtype)
    stride, dilation = steps
    attributes = {"padding": taps // 2, "groups": channels, "dilation": dilation, "stride": stride}
    wide = [each.double().contiguous().requires_grad_() for each in (x, weight)]
    y = F.conv2d(*wide, **attributes)
    cotangent = torch.randn(y.shape).to(dtype).contiguous(memory_format=format_)
    exact = results(F.conv2d, *wide, cotangent=cotangent.double(), **attributes)
    out = conv(x.requires_grad_(), weight.requires_grad_(), **attributes)
    assert ("repeated" in copies) == is_repeated
    copies.clear()
    found = torch.autograd.grad(out, (x, weight), cotangent)
    assert ("repeated" in copies) == gradients
    compare([out.detach(), *found], exact, dtype)


def test_one_gradient_alone_and_of_few_cells(copies: list[str]) -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(4)
    x = torch.randn(2, 10, 6, 7).contiguous(memory_format=LAST)
    weight = torch.randn(30, 1, 3, 3)
    attributes = {"padding": 1, "groups": 10}
    cotangent = torch.randn(2, 30, 6, 7).contiguous(memory_format=LAST)
    wide = [each.double().contiguous().requires_grad_() for each in (x, weight)]
    exact = torch.autograd.grad(F.conv2d(*wide, **attributes), wide, cotangent.double())
    for at, leaf in enumerate((x, weight)):
        for _ in range(3):
            alone = [each.detach() for each in (x, weight)]
            alone[at] = leaf.detach().requires_grad_()
            (got,) = torch.autograd.grad(conv(*alone, **attributes), alone[at], cotangent)
            torch.testing.assert_close(got.double(), exact[at], rtol=1e-4, atol=1e-4)


def test_small_images_are_not_worth_it(copies: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_repeats, "LARGE", 2 * 16 * 10 * 10 + 1)
    conv = opgen.load(SPECS / "conv.op").conv2d
    weight = torch.randn(16, 1, 3, 3)
    for images, expected in ((2, False), (3, True)):
        copies.clear()
        x = torch.randn(images, 8, 10, 10).contiguous(memory_format=LAST)
        conv(x, weight, padding=1, groups=8)
        assert ("repeated" in copies) == expected


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_and_their_sums(count: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 3, 4).to(dtype)
    copied = library_repeats.repeated(x, count)
    assert torch.equal(copied, x.repeat_interleave(count, dim=1))
    assert copied.is_contiguous(memory_format=LAST)
    whole = torch.randn(2, 5 * count, 3, 4)
    total = library_repeats.summed(whole, count)
    torch.testing.assert_close(total, whole.view(2, 5, count, 3, 4).sum(2))
    assert total.is_contiguous(memory_format=LAST)


def test_the_table_listens_to_gradients() -> None:
    """The names that these tests replace are those that are called."""
    assert library_call.gradients is library_gradients.gradients
