"""Convolutions of PyTorch's library that are looked up: no Python runs between call and library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import library_call, lookup_library, registration
from opgen.runtime.library_plan import Plan, Tensors

conv = opgen.load(SPECS / "conv.op")
transpose = opgen.load(SPECS / "conv_transpose.op")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2.0**-6}


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    """Calls that Python knows from other tests would not be entered again."""
    for plans in library_call._KNOWN.values():
        plans.clear()


def silent(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that Python carries out from now on."""
    heard: list[Plan] = []
    convolve = library_call.computed

    def listening(plan: Plan, tensors: Tensors) -> Tensor | None:
        heard.append(plan)
        return convolve(plan, tensors)

    monkeypatch.setattr(library_call, "computed", listening)
    return heard


CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("conv1d", (2, 24, 9), (24, 24, 3), {"padding": 2, "stride": 2}),
    ("conv2d", (2, 24, 9, 8), (24, 24, 3, 2), {}),
    ("conv2d", (2, 24, 9, 8), (36, 12, 3, 2), {"groups": 2, "padding": (1, 0), "dilation": 2}),
    ("conv3d", (2, 24, 4, 5, 6), (24, 24, 2, 2, 2), {"padding": 1}),
    ("conv_transpose1d", (2, 24, 9), (24, 24, 3), {"stride": 3, "output_padding": 2}),
    ("conv_transpose2d", (2, 24, 5, 4), (24, 12, 3, 2), {"groups": 2, "stride": (2, 1)}),
    ("conv_transpose2d", (2, 24, 5, 4), (24, 24, 3, 3), {"padding": 1, "dilation": 2}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("name", "shape", "weight", "attributes"), CASES)
def test_a_known_convolution_is_the_library_s(
    name: str,
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    attributes: dict[str, Any],
    channels_last: bool,
    with_bias: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if channels_last and len(shape) != 4:
        return  # only images of two dims have the format
    own = getattr(transpose if "transpose" in name else conv, name)
    torch.manual_seed(0)
    x, w = torch.randn(shape).to(dtype), torch.randn(weight).to(dtype)
    if channels_last:
        x, w = (each.contiguous(memory_format=torch.channels_last) for each in (x, w))
    out = weight[1] * attributes.get("groups", 1) if "transpose" in name else weight[0]
    bias = torch.randn(out).to(dtype) if with_bias else None
    first = own(x, w, bias, **attributes)
    heard = silent(monkeypatch)
    for _ in range(2):
        x, w = x.flip(0), w.neg()
        got = own(x, w, bias, **attributes)
        given = (x.double(), w.double(), None if bias is None else bias.double())
        expected = getattr(F, name)(*given, **attributes)
        tolerance = TOLERANCE[dtype] * float(expected.abs().max())
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance)
        assert got.stride() == first.stride() and got.dtype == dtype
    assert not heard


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("at", [0, -1])
def test_a_weight_that_is_not_finite_meets_no_padding(
    at: int, number: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = torch.ones(1, 16, 4, 4).to(dtype), torch.ones(16, 16, 3, 3).to(dtype)
    spoiled = w.clone()
    spoiled.view(-1)[at] = number
    for _ in range(2):
        conv.conv2d(x, w, padding=1)
    heard = silent(monkeypatch)
    got = conv.conv2d(x, spoiled, padding=1)
    assert heard, "Python is asked"
    row = 0 if at == 0 else 15
    corner = got[0, row, 0, 0] if at == 0 else got[0, row, -1, -1]
    assert corner.isfinite(), "this tap meets nothing but padding there"
    assert not got[0, row, 1:-1, 1:-1].isfinite().any()
    assert got[0, 1:15].isfinite().all()
    heard.clear()
    conv.conv2d(x, w * torch.finfo(dtype).max, padding=1)
    assert not heard, "the largest number is finite"


def test_a_weight_that_meets_no_padding_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.ones(1, 16, 4, 4), torch.ones(16, 16, 3, 3)
    conv.conv2d(x, w)
    heard = silent(monkeypatch)
    w[0, 0, 0, 0] = float("inf")
    assert conv.conv2d(x, w)[0, 0].isinf().all() and not heard


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [(136, 80), (256, 128)], ids=str)
def test_every_number_of_a_large_weight_is_looked_at(
    channels: tuple[int, int],
    dtype: torch.dtype,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads look at 64 KB at once, and at 1 KB in a step: before, at, and behind each border."""
    x, w = torch.ones(1, channels[1], 3, 3).to(dtype), torch.ones(*channels, 3, 3).to(dtype)
    for _ in range(2):
        expected = conv.conv2d(x, w, padding=1)
    asked: list[Plan] = []

    def answer(plan: Plan, tensors: Tensors) -> Tensor:
        asked.append(plan)
        return expected

    monkeypatch.setattr(library_call, "computed", answer)
    torch.testing.assert_close(conv.conv2d(x, w, padding=1), expected, rtol=0, atol=0)
    assert not asked, "all are finite, and no Python runs"
    flat, size = w.view(-1), w.element_size()
    borders = [*range(0, flat.numel(), 65536 // size), 1024 // size, flat.numel()]
    for at in {each + more for each in borders for more in (-1, 0, 1)} & {*range(flat.numel())}:
        before, flat[at] = flat[at].clone(), float("inf")
        asked.clear()
        conv.conv2d(x, w, padding=1)
        assert asked, f"the number {at} is not finite"
        flat[at] = before


def test_weights_that_python_looks_through(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(32, 32, 3, 4)[..., :3]
    x = torch.randn(1, w.shape[1], 5, 5)
    conv.conv2d(x, w, padding=1)
    heard = silent(monkeypatch)
    got = conv.conv2d(x, w, padding=1)
    torch.testing.assert_close(got, F.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-3)
    assert len(heard) == 1


def test_gradients_of_a_known_call(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 20, 6, 7, requires_grad=True)
    w = torch.randn(20, 20, 3, 3, requires_grad=True)
    b = torch.randn(20, requires_grad=True)
    expected = torch.autograd.grad(F.conv2d(x, w, b, padding=1).square().sum(), (x, w, b))
    for _ in range(3):
        y = conv.conv2d(x, w, b, padding=1)
        got = torch.autograd.grad(y.square().sum(), (x, w, b))
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-2)
    heard = silent(monkeypatch)
    assert conv.conv2d(x, w, b, padding=1).requires_grad and not heard
    with torch.no_grad():
        assert not conv.conv2d(x, w, b, padding=1).requires_grad
    with torch.inference_mode():
        assert conv.conv2d(x, w, b, padding=1).is_inference()
    assert not heard
    with lookup_library.suspended():
        conv.conv2d(x, w, b, padding=1)
    assert heard


def asked_for_both(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every pair of gradients that Python asks the library for: whether it got them."""
    heard: list[bool] = []
    both = library_call._both

    def listening(*arguments: Any) -> library_call.Pair | None:
        out = both(*arguments)
        heard.append(out is not None)
        return out

    monkeypatch.setattr(library_call, "_both", listening)
    return heard


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weight_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("attributes", [{}, {"padding": (2, 1), "stride": 2}, {"groups": 2}])
def test_both_gradients_of_a_known_call(
    attributes: dict[str, Any],
    format_: torch.memory_format,
    weight_format: torch.memory_format,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    groups = attributes.get("groups", 1)
    x = torch.randn(2, 32, 7, 8).to(dtype).contiguous(memory_format=format_)
    w = torch.randn(32, 32 // groups, 3, 3).to(dtype).contiguous(memory_format=weight_format)
    heard = asked_for_both(monkeypatch)
    strides = set()
    for at in range(5):
        x, w = x.flip(0).detach().requires_grad_(), w.neg().detach().requires_grad_()
        y = conv.conv2d(x, w, **attributes)
        cotangent = torch.randn_like(y)
        heard.clear()
        got = torch.autograd.grad(y, (x, w), cotangent)
        wide = [each.detach().double().requires_grad_() for each in (x, w)]
        expected = torch.autograd.grad(
            F.conv2d(wide[0], wide[1], **attributes), wide, cotangent.double()
        )
        for mine, theirs in zip(got, expected, strict=True):
            tolerance = TOLERANCE[dtype] * float(theirs.abs().max())
            torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=tolerance)
        strides.add(tuple(each.stride() for each in got))
        # In two calls the ops of the gradients become known, in the third the two together.
        assert at < 3 or not heard or (format_, weight_format) != (torch.contiguous_format,) * 2
    assert len(strides) == 1, "whoever computes them"


@pytest.mark.parametrize("where", ["weight", "cotangent"])
@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_both_gradients_beside_what_is_not_finite(
    where: str, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(1, 32, 4, 4, requires_grad=True)
    w, cotangent = torch.ones(32, 32, 3, 3), torch.ones(1, 32, 4, 4)
    heard = asked_for_both(monkeypatch)
    for _ in range(4):
        heard.clear()
        leaf = w.clone().requires_grad_()
        torch.autograd.grad(conv.conv2d(x, leaf, padding=1), (x, leaf), cotangent)
    assert not heard
    spoiled = w if where == "weight" else cotangent
    spoiled[0, 0, 0, 0] = number
    leaf = w.clone().requires_grad_()
    for_x, for_w = torch.autograd.grad(conv.conv2d(x, leaf, padding=1), (x, leaf), cotangent)
    assert True not in heard, "what the library gives is not used"
    if where == "weight":  # the first tap takes cell i to cell i + 1: it never meets the last one
        assert for_x[0, :, -1, :].isfinite().all() and not for_x[0, 0, :3, :3].isfinite().any()
        assert for_w.isfinite().all()
    else:
        assert for_w[0, :, 0, :].isfinite().all() and not for_w[0, :, 1:, 1:].isfinite().any()


def test_the_weight_may_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = opgen.compile(
        "op mix(w[O,C,K], x[N,C,L]) -> y[N,O,L - K + 1]\n"
        "  y[n,o,i] = sum(c,k) w[o,c,k] * x[n,c,i + k]\n"
    )
    torch.manual_seed(0)
    heard = asked_for_both(monkeypatch)
    for _ in range(4):
        x = torch.randn(2, 24, 9, requires_grad=True)
        w = torch.randn(24, 24, 3, requires_grad=True)
        cotangent = torch.randn(2, 24, 7)
        got = torch.autograd.grad(ops.mix(w, x), (w, x), cotangent)
        expected = torch.autograd.grad(F.conv1d(x, w), (w, x), cotangent)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert heard == [True], "asked together once"


def test_a_libtorch_without_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = registration.twin(conv._conv2d.registered_name)
    if twin is None:
        conv.conv2d(torch.randn(1, 1, 3, 3), torch.randn(1, 1, 3, 3))
        twin = registration.twin(conv._conv2d.registered_name)
    assert twin is not None
    monkeypatch.setattr(type(twin.table.library), "has_convolutions", False)
    x, w = torch.randn(1, 17, 5, 5), torch.randn(17, 17, 3, 3)
    conv.conv2d(x, w, padding=1)
    heard = silent(monkeypatch)
    conv.conv2d(x, w, padding=1)
    assert len(heard) == 1
