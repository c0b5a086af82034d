"""Convolutions of tensors with other dims, looked up: what is copied, and where it goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import library_call, lookup_moves
from opgen.runtime.arrangement import Arrangement

LAST = torch.channels_last
PLAIN = torch.contiguous_format


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[Tensor | None]:
    """What Python was asked for; other calls were looked up."""
    heard: list[Tensor | None] = []
    convolve = library_call.computed

    def listening(*arguments: Any) -> Tensor | None:
        heard.append(convolve(*arguments))
        return heard[-1]

    monkeypatch.setattr(library_call, "computed", listening)
    return heard


def moved(tensor: Tensor, words: list[int]) -> Tensor:
    """What a list of integers says, cell by cell."""
    rank, *rest = words
    dims = [tuple(rest[3 * at : 3 * at + 3]) for at in range(rank)]
    count, *shape = rest[3 * rank :]
    sizes, strides = shape[:count], shape[count:]
    places = [(0, 0)]
    for size, source, target in dims:
        places = [(a + i * source, b + i * target) for a, b in places for i in range(size)]
    memory = torch.empty(len(places), dtype=tensor.dtype)
    origin = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,))
    for source, target in places:
        memory[target] = origin[tensor.storage_offset() + source]
    assert sorted(target for _, target in places) == list(range(len(places)))
    return memory.as_strided(sizes, strides)


@pytest.mark.parametrize("format_", [PLAIN, LAST])
@pytest.mark.parametrize("sizes", [(1, 16, 3, 2), (2, 18, 2, 5), (3, 16, 1, 1)])
def test_moves_say_what_arrangements_do(
    sizes: tuple[int, ...], format_: torch.memory_format
) -> None:
    images, channels, rows, columns = sizes
    arrangement = Arrangement(
        ((images,), (channels,), (rows, 2), (columns, 2)), ((0,), (3, 5, 1), (2,), (4,))
    )
    whole = torch.randn(images, channels, 2 * rows, 2 * columns).contiguous(memory_format=format_)
    apart = torch.randn(images, 4 * channels, rows, columns).contiguous(memory_format=format_)
    for tensor, words, function in (
        (whole, lookup_moves.arranging(whole, arrangement, format_), arrangement.arranged),
        (apart, lookup_moves.restoring(apart, arrangement, format_), arrangement.restored),
    ):
        wanted = function(tensor, format_)
        assert words is not None
        if words[0] == lookup_moves.VIEW:
            assert wanted.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            assert words == (lookup_moves.VIEW, wanted.dim(), *wanted.shape, *wanted.stride())
            continue
        found = moved(tensor, list(words))
        assert torch.equal(found, wanted)
        assert found.is_contiguous(memory_format=format_)


def test_what_is_no_move() -> None:
    tensor = torch.randn(2, 3, 64, 64)
    blocks = Arrangement(((2,), (3,), (32, 2), (32, 2)), ((0,), (1, 3, 5), (2,), (4,)))
    assert lookup_moves.arranging(tensor, None, PLAIN) == lookup_moves.NONE
    assert lookup_moves.restoring(tensor, None, PLAIN) == lookup_moves.NONE
    alone = lookup_moves.arranging(tensor, blocks, PLAIN)
    assert alone is None, "single cells are for PyTorch"
    turned = Arrangement(((2,), (3,), (64,), (64,)), ((0,), (3,), (1,), (2,)))
    view = tensor.permute(0, 3, 1, 2)
    words = (lookup_moves.VIEW, 4, *view.shape, *view.stride())
    assert lookup_moves.arranging(tensor, turned, PLAIN) == words, "a view is enough"
    assert lookup_moves.arranging(tensor.mT, blocks, LAST) is None


def stage(group: str) -> str:
    """A convolution whose channels are written as blocks of pixels."""
    groups, inside, out, given = (
        ("(g C)", "(f c)", "(f d a b)", "; g = 1") if group else ("C", "c", "(d a b)", "")
    )
    sizes = "(g D 2 3)" if group else "(D 2 3)"
    y, of = ("(g D)", "(f d)") if group else ("D", "d")
    return (
        f"op stage(x[N,{groups},H,W], w[{sizes},C,K,L], bias[{sizes}] = 0{given})"
        f" -> y[N,{y},(OH 2),(OW 3)]\n"
        + ("  where g >= 1\n" if group else "")
        + "  let OH = H - K + 3, OW = W - L + 3\n"
        f"  y[n,{of},(i a),(j b)] = bias[{out}]"
        f" + sum(c,k,l) x[n,{inside}, i + k - 1 ?0, j + l - 1 ?0] * w[{out},c,k,l]\n"
    )


def reference(x: Tensor, w: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """The same by PyTorch's ops and slices."""
    full = F.conv2d(x, w, bias, padding=1, groups=groups)
    images, channels, rows, columns = full.shape
    y = full.new_zeros(images, channels // 6, 2 * rows, 3 * columns)
    for a in range(2):
        for b in range(3):
            y[:, :, a::2, b::3] = full[:, 3 * a + b :: 6]
    return y


@pytest.mark.sampled(4)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("format_", [PLAIN, LAST])
@pytest.mark.parametrize(
    ("out", "rows", "columns"), [(16, 5, 7), (17, 4, 3), (3, 1, 2), (16, 2, 1), (32, 40, 33)]
)
def test_a_known_call_is_computed_without_python(
    groups: int,
    dtype: torch.dtype,
    format_: torch.memory_format,
    out: int,
    rows: int,
    columns: int,
    threads: int,
    in_python: list[Tensor | None],
) -> None:
    function = opgen.compile(stage("g" if groups > 1 else "")).stage
    torch.manual_seed(out)
    x = torch.randint(-2, 3, (3, 8 * groups, rows, columns)).to(dtype)
    x = x.contiguous(memory_format=format_)
    w = torch.randint(-1, 2, (6 * out * groups, 8, 3, 3)).to(dtype)
    bias = torch.randint(-3, 4, (6 * out * groups,)).to(dtype)
    attributes = {"g": groups} if groups > 1 else {}
    for given in ((x, w), (x, w, bias)):
        exact = reference(*(each.double() for each in given), *[None] * (3 - len(given)), groups)
        for _ in range(3):
            in_python.clear()
            found = function(*given, **attributes)
            assert torch.equal(found, exact.to(dtype)), "small integers have no rounding"
            assert found.dtype == dtype and found.is_contiguous(memory_format=format_)
        if (out >= 16 and columns > 1) if format_ == LAST else columns >= 16:
            assert not in_python, "the last call was looked up"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("r", "columns"), [(2, 16), (2, 33), (3, 16), (4, 17), (4, 50), (5, 16)])
def test_rows_of_pixels_that_become_one(
    r: int, columns: int, dtype: torch.dtype, threads: int, in_python: list[Tensor | None]
) -> None:
    function = opgen.load(SPECS / "conv_depth_to_space.op").conv_depth_to_space
    torch.manual_seed(r)
    x = torch.randint(-2, 3, (2, 16, 70, columns)).to(dtype)
    w = torch.randint(-1, 2, (8 * r * r, 16, 3, 3)).to(dtype)
    exact = F.pixel_shuffle(F.conv2d(x.double(), w.double(), padding=1), r)
    for _ in range(3):
        in_python.clear()
        found = function(x, w, r=r, padding=1)
        assert torch.equal(found, exact.to(dtype)) and found.is_contiguous()
    assert bool(in_python) == (r > lookup_moves.MOST_IN_TURN)


def test_a_filter_that_is_not_finite(in_python: list[Tensor | None]) -> None:
    function = opgen.compile(stage("")).stage
    x = torch.ones(2, 8, 6, 5).contiguous(memory_format=LAST)
    w = torch.ones(96, 8, 3, 3)
    for _ in range(2):
        known = function(x, w)
    w[0, 0, 0, 0] = torch.nan
    found = function(x, w)
    # Channel 0 with a = b = 0: a zero of the padding is no term, whatever it stands beside.
    block = found[:, 0, ::2, ::3]
    assert block[:, 1:, 1:].isnan().all() and not block[:, 0].isnan().any()
    assert torch.equal(found[:, 1:], known[:, 1:])
    w[0, 0, 0, 0] = 1
    in_python.clear()
    assert torch.equal(function(x, w), known)
    assert not in_python


def test_filters_of_other_strides(in_python: list[Tensor | None]) -> None:
    function = opgen.compile(stage("")).stage
    torch.manual_seed(5)
    x = torch.randn(2, 8, 6, 5).contiguous(memory_format=LAST)
    plain = torch.randn(96, 8, 3, 3)
    every = torch.randn(192, 8, 3, 3)[::2]
    for w in (plain.contiguous(memory_format=LAST), plain.mT, every, every.flip(0)):
        exact = reference(x.double(), w.double(), None, 1)
        for _ in range(3):
            torch.testing.assert_close(function(x, w).double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last_3d])
def test_results_with_more_dims_than_those_of_the_library(format_: torch.memory_format) -> None:
    """Groups in a dim of their own: the format of five dims is none of the convolution's four."""
    function = opgen.compile(
        "op grouped(x[N,G,C,H,W], w[(G D),C,K,L]) -> y[N,G,D,P,Q]\n"
        "  let P = H - K + 1, Q = W - L + 1\n"
        "  y[n,g,d,i,j] = sum(c,k,l) x[n,g,c,i+k,j+l] * w[(g d),c,k,l]\n"
    ).grouped
    torch.manual_seed(6)
    x = torch.randint(-2, 3, (2, 2, 16, 6, 5)).float().contiguous(memory_format=format_)
    w = torch.randint(-2, 3, (8, 16, 3, 3)).float()
    wanted = F.conv2d(x.reshape(2, 32, 6, 5), w, groups=2).view(2, 2, 4, 4, 3)
    for _ in range(3):
        found = function(x, w)
        assert torch.equal(found, wanted) and found.is_contiguous(memory_format=format_)


def test_results_of_one_dim() -> None:
    function = opgen.compile(
        "op flat(x[N,C,H,W], w[O,C,K,L]) -> y[(N O I J)]\n"
        "  let I = H - K + 1, J = W - L + 1\n"
        "  y[(n o i j)] = sum(c,k,l) x[n,c,i+k,j+l] * w[o,c,k,l]\n"
    ).flat
    torch.manual_seed(7)
    x = torch.randint(-2, 3, (2, 2, 5, 5)).float().contiguous(memory_format=LAST).requires_grad_()
    w = torch.randint(-2, 3, (16, 2, 3, 3)).float().requires_grad_()
    wanted = F.conv2d(x, w).flatten()
    seed = torch.randint(-2, 3, wanted.shape).float()
    for _ in range(3):
        found = function(x, w)
        assert torch.equal(found, wanted)
        pairs = (torch.autograd.grad(y, (x, w), seed, retain_graph=True) for y in (found, wanted))
        assert all(map(torch.equal, *pairs))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("taps", [(2, 1), (1, 2), (2, 2), (1, 1)])
@pytest.mark.parametrize("stride", [1, 2, 12, 1000])
def test_filters_with_strides_of_no_format_in_dims_of_one(
    taps: tuple[int, int], stride: int
) -> None:
    """PyTorch takes groups out of them wrongly."""
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(8)
    x = torch.randint(-2, 3, (2, 12, 5, 5)).float().contiguous(memory_format=LAST)
    plain = torch.randint(-2, 3, (8, 3, *taps)).float()
    w = plain.contiguous(memory_format=LAST)
    strides = [
        stride if size == 1 else step for size, step in zip(w.shape, w.stride(), strict=True)
    ]
    w = w.as_strided(w.shape, strides)
    exact = [each.clone().requires_grad_() for each in (x, plain)]
    wanted = F.conv2d(*exact, groups=4)
    seed = torch.randint(-2, 3, wanted.shape).float().contiguous(memory_format=LAST)
    gradients = torch.autograd.grad(wanted, exact, seed)
    for _ in range(3):
        assert torch.equal(conv(x, w, groups=4), wanted)
        leaves = [each.detach().requires_grad_() for each in (x, w)]
        found = torch.autograd.grad(conv(*leaves, groups=4), leaves, seed)
        assert all(map(torch.equal, found, gradients))


def test_filters_that_are_seen_with_such_strides() -> None:
    function = opgen.compile(
        "op grouped(x[N,H,W,(C G)], w[(G K),C,L]; G: size, K: size) -> y[N,G,I,J]\n"
        "  let I = H - K + 1, J = W - L + 1\n"
        "  y[n,g,i,j] = sum(c,k,l) x[n,i+k,j+l,(c g)] * w[(g k),c,l]\n"
    ).grouped
    torch.manual_seed(9)
    x = torch.randint(-2, 3, (2, 3, 3, 12)).float().contiguous(memory_format=LAST)
    w = torch.randint(-2, 3, (8, 3, 1)).float()
    images = x.view(2, 3, 3, 3, 4).permute(0, 4, 3, 1, 2).reshape(2, 12, 3, 3)
    wanted = F.conv2d(images, w.view(4, 2, 3, 1).transpose(1, 2).contiguous(), groups=4)
    for _ in range(3):
        assert torch.equal(function(x, w, G=4, K=2), wanted)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("are_both_wanted", [False, True])
def test_images_with_strides_of_no_format_in_dims_of_one(
    channels_last: bool, are_both_wanted: bool
) -> None:
    """PyTorch reads others for the gradient of a filter of one tap in channels-last format."""
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(10)
    plain = torch.randint(-2, 3, (1, 128, 5, 5)).float()
    w = torch.randint(-2, 3, (256, 8, 1, 1)).float()
    if channels_last:
        w = w.as_strided(w.shape, (8, 1, 8, 8))
    exact = [each.clone().requires_grad_() for each in (plain, w.contiguous())]
    y = F.conv2d(*exact, groups=16)
    seed = torch.randint(-2, 3, y.shape).float()
    wanted = torch.autograd.grad(y, exact, seed)
    last = seed.contiguous(memory_format=LAST)
    for stride in (1, 128, 4000):
        x = plain.contiguous(memory_format=LAST).as_strided(plain.shape, (stride, 1, 640, 128))
        for _ in range(3):
            leaves = [x.detach().requires_grad_(are_both_wanted), w.detach().requires_grad_()]
            found = conv(*leaves, groups=16)
            assert torch.equal(found, y)
            first = 0 if are_both_wanted else 1
            gradients = torch.autograd.grad(found, leaves[first:], last)
            assert all(map(torch.equal, gradients, wanted[first:]))
