"""Ops with products beside other statements in 16 bits: what is rounded between stages, and not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opgen import on_demand
from opgen.ir.notation import DType, Op
from opgen.passes.stages import products_of, stages
from opgen.runtime import library_call, lookup_series
from opgen.runtime import stages as calls
from test_stages import (
    ATTENTION,
    CASES,
    CONVOLUTION,
    PIXELS,
    TWO_LAYERS,
    Case,
    checked,
    gradient,
    made,
    plans,
)

DISTANCES = """op f(x[N,D], y[M,D]) -> z[N,M]
  tmp xx[N], yy[M], xy[N,M]
  xx[n] = sum(d) x[n,d]**2
  yy[m] = sum(d) y[m,d]**2
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] = max(xx[n] - 2*xy[n,m] + yy[m], 0)
"""
TWO_STEPS = """op f(x[N,D], y[M,D]) -> z[N,M]
  tmp xx[N], xy[N,M], less[N,M]
  xx[n] = sum(d) x[n,d]**2
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  less[n,m] = 2*xy[n,m]
  z[n,m] = xx[n] - less[n,m]
"""
IN_TURN = """op f(x[N,D], y[M,D]) -> z[N,M]
  tmp xx[N], xy[N,M]
  xx[n] = sum(d) x[n,d]**2
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] += xx[n]
  z[n,m] += -xy[n,m]
"""
SCALED = """op f(x[N,D], y[M,D]) -> z[N,M]
  tmp xx[N], xy[N,M]
  xx[n] = sum(d) x[n,d]**2
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] = -xy[n,m] / xx[n]
"""
NEAREST = """op f(x[N,D], y[M,D]) -> j: int[N]
  tmp xy[N,M]
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  j[n] = argmax(m) xy[n,m]
"""
LESS_ITSELF = """op f(x[N,D], y[M,D]) -> z[N,M]
  tmp xy[N,M]
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] = xy[n,m] - xy[n,0]
"""
LESS_A_SUM = """op f(x[N,D], y[M,D]) -> z[N,M]
  z[n,m] += sum(d) x[n,d] * y[m,d]
  z[n,m] += -(sum(d) x[n,d]**2)
"""
LESS_A_PRODUCT = """op f(x[N,D], y[M,D], a[N], b[M]) -> z[N,M]
  tmp xy[N,M]
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] = xy[n,m] - a[n]*b[m]
"""
OF_32_BITS = """op f(x[N,D], y[M,D], b[M]) -> z: f32[N,M]
  tmp xy[N,M]
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] = xy[n,m] + b[m]
"""
BESIDE_32_BITS = """op f(x[N,D], y[M,D], b: f32[M]) -> z[N,M]
  tmp xy[N,M]
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] = xy[n,m] + b[m]
"""
BESIDE_A_RESULT = """op f(x[N,D], y[M,D]) -> z[N,M], xx: f32[N]
  tmp xy[N,M]
  xx[n] = sum(d) x[n,d]**2
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] = xx[n] - xy[n,m]
"""
FACTOR_READ_AGAIN = """op f(x[N,D], b[D], k[E,D]) -> z[N,D], y[N,E]
  tmp h[N,D], mean[N]
  h[n,d] = x[n,d] + b[d]
  mean[n] = (sum(d) h[n,d]) / D
  y[n,e] = sum(d) h[n,d] * k[e,d]
  z[n,d] = h[n,d] - mean[n]
"""
FACTOR_SUMMED_UP = """op f(x[N,D], b[D], k[E,D]) -> s[N], y[N,E]
  tmp h[N,D]
  h[n,d] = x[n,d] + b[d]
  s[n] = sum(d) h[n,d]
  y[n,e] = sum(d) h[n,d] * k[e,d]
"""
FACTOR_OF_A_SUM = """op f(x[N,D], b[D], k[E,D]) -> s[N], y[N,E]
  tmp h[N,D]
  h[n,d] = x[n,d] + b[d]
  s[n] = sum(d) (-h[n,d] * x[n,d] / (1 + b[d]**2))
  y[n,e] = sum(d) h[n,d] * k[e,d]
"""
FACTOR_SQUARED = """op f(x[N,D], b[D], k[E,D]) -> s[N], y[N,E]
  tmp h[N,D]
  h[n,d] = x[n,d] + b[d]
  s[n] = sum(d) (h[n,d] - 1)**2
  y[n,e] = sum(d) h[n,d] * k[e,d]
"""
FUNCTION = """op f(x: float[N,D], y[M,D]) -> z[N,M]
  tmp xx[N], xy[N,M]
  xx[n] = sum(d) x[n,d]**2
  xy[n,m] = sum(d) x[n,d] * y[m,d]
  z[n,m] = exp(xy[n,m] * xx[n])
"""

WIDE = {
    "beside an input": (CONVOLUTION, set()),
    "by a function of itself": (PIXELS, set()),
    "a factor of the next one": (TWO_LAYERS, set()),
    "less its own maximum": (ATTENTION, {"_t1", "s"}),
    "beside other sums": (DISTANCES, {"xy"}),
    "beside them later": (TWO_STEPS, {"xy"}),
    "beside them in turn": (IN_TURN, {"xy"}),
    "divided by them": (SCALED, set()),
    "in a function of both": (FUNCTION, {"xy"}),
    "the place of the greatest": (NEAREST, {"xy"}),
    "less another element": (LESS_ITSELF, {"xy"}),
    "beside a sum in place": (LESS_A_SUM, {"z_term", "_t1"}),
    "beside a product of inputs": (LESS_A_PRODUCT, {"xy"}),
    "for an output of 32 bits": (OF_32_BITS, {"xy"}),
    "beside an input of 32 bits": (BESIDE_32_BITS, {"xy"}),
    "beside an output of 32 bits": (BESIDE_A_RESULT, {"xy"}),
    "a factor that is read again": (FACTOR_READ_AGAIN, {"h"}),
    "a factor that is summed up": (FACTOR_SUMMED_UP, set()),
    "a factor of another sum": (FACTOR_OF_A_SUM, set()),
    "a factor that is squared": (FACTOR_SQUARED, {"h"}),
}


def handed_on_wide(op: Op) -> set[str]:
    """The tensors that stages of an op give in 32 bits."""
    return {
        each.name
        for stage in stages(op, products_of(op), are_halves=True)
        for each in stage.op.outputs
        if stage.is_wide or each.dtype is DType.F32
    }


@pytest.mark.parametrize(("text", "expected"), WIDE.values(), ids=WIDE)
def test_what_keeps_its_bits(text: str, expected: set[str]) -> None:
    """Sums that are read within their stage are handed on to nobody."""
    declared = {each.name for each in checked(text).outputs if each.dtype is DType.F32}
    assert handed_on_wide(checked(text)) - declared == expected


def test_what_flows_back_through_a_softmax_keeps_its_bits() -> None:
    """It is less its own mean; what flows on to the products is rounded as factors are."""
    _, derived = gradient(ATTENTION, ("f", "q"))
    assert derived.temporaries, "it has what flows back to the softmax"
    found = handed_on_wide(derived)
    assert "grad_e_term" in found
    assert "grad__t1" not in found


# ---------------------------------------------------------------------------- numbers
@pytest.fixture(autouse=True)
def _for_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of any size go in stages."""
    monkeypatch.setattr(calls, "LEAST_WORK", 0)


def rounded(x: Tensor) -> Tensor:
    """Numbers in float64 as bfloat16 has them; gradients pass."""
    return x + (x.detach().bfloat16().to(x.dtype) - x.detach())


ROUNDED = CASES | {
    # Where a result is negative depends on how it was rounded.
    "convolution": replace(
        CASES["convolution"],
        theirs=lambda x, k, b: F.relu(rounded(F.conv2d(x, k, padding=1)) + b[:, None, None]),
    ),
    "linear": replace(
        CASES["linear"],
        theirs=lambda x, k, b: F.leaky_relu(rounded(F.linear(x, k)) + b, 0.1),
    ),
}
STEPS = {name: 3 if name == "attention" else 2 for name in CASES}
"""How many roundings stand one behind the other, of what flows forth or back; by how much numbers
may differ from those that are rounded once."""


def of_halves(case: Case, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [each.detach().to(dtype).requires_grad_() for each in case.inputs(torch.float32)]


def check(mine: Tensor, exact: Tensor, steps: int) -> None:
    """Within some roundings of the largest number."""
    assert mine.dtype == torch.bfloat16
    most = float(exact.abs().max())
    assert float((mine.double() - exact).abs().max()) <= steps * 2**-8 * most


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    case = ROUNDED[name]
    (call, found), inputs = made(case.text), of_halves(case)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    y, wanted = call(*inputs), case.theirs(*exact)
    assert any(plans(found)), "it goes in stages"
    check(y.detach(), wanted.detach(), STEPS[name])
    torch.manual_seed(1)
    flowing = torch.randn(y.shape).bfloat16()
    mine = torch.autograd.grad(y, inputs, flowing)
    theirs = torch.autograd.grad(wanted, exact, flowing.double())
    for one, other in zip(mine, theirs, strict=True):
        check(one, other, STEPS[name])


CANCEL = [DISTANCES, TWO_STEPS, IN_TURN, LESS_ITSELF, LESS_A_SUM]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", CANCEL)
@pytest.mark.parametrize("is_autocast", [False, True])
def test_sums_that_cancel(text: str, is_autocast: bool) -> None:
    """Of products that are rounded no digit would be left: they are sums of 64 squares, and what
    is left of them 64 times the square of 1/16. Under autocast nothing within an op is cast."""
    call, found = made(text)
    torch.manual_seed(0)
    x = torch.randint(8, 16, (24, 64)).bfloat16()
    y = x + torch.randint(0, 2, x.shape).bfloat16() / 16
    given = (x.float(), y.float()) if is_autocast else (x, y)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        z = call(*given)
    assert any(plans(found)), "it goes in stages"
    exact = x.double(), y.double()
    cross = exact[0] @ exact[1].T
    own, other = (each.square().sum(1) for each in exact)
    wanted = {
        DISTANCES: (own[:, None] - 2 * cross + other).clamp(min=0),
        TWO_STEPS: own[:, None] - 2 * cross,
        IN_TURN: own[:, None] - cross,
        LESS_ITSELF: cross - cross[:, :1],
        LESS_A_SUM: cross - own[:, None],
    }[text]
    assert not torch.equal(wanted.bfloat16(), (wanted + cross - cross.bfloat16()).bfloat16())
    torch.testing.assert_close(z, wanted.bfloat16(), rtol=2**-8, atol=0)


def test_the_nearest_of_many() -> None:
    call, found = made(NEAREST)
    torch.manual_seed(0)
    x, y = (torch.randn(64, 64) + 4).bfloat16(), (torch.randn(256, 64) / 16 + 4).bfloat16()
    exact = x.double() @ y.double().T
    assert not exact.bfloat16().argmax(1).equal(exact.argmax(1)), "there is something to lose"
    assert call(x, y).equal(exact.argmax(1))
    assert any(plans(found)), "it goes in stages"


def test_a_factor_that_is_read_again() -> None:
    """It is rounded for the product alone."""
    call, found = made(FACTOR_READ_AGAIN)
    torch.manual_seed(0)
    x, b = (torch.randn(40, 32) / 8).bfloat16(), torch.full((32,), 100.0).bfloat16()
    k = torch.randn(24, 32).bfloat16()
    z, y = call(x, b, k)
    assert any(plans(found)), "it goes in stages"
    h = x.double() + b.double()
    check(z, h - h.mean(1, keepdim=True), 1)
    check(y, h @ k.double().T, 2)


def test_beside_an_opgen_that_is_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no stages for bfloat16, and those for other types."""
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    monkeypatch.delattr(on_demand, "halves_source")
    case = ROUNDED["two layers"]
    (call, found), inputs = made(case.text), of_halves(case)
    check(call(*inputs).detach(), case.theirs(*(x.detach().double() for x in inputs)), 2)
    assert not any(plans(found))
    call(*case.inputs(torch.float32))
    assert any(plans(found))


def test_images_in_channels_last_format() -> None:
    case = ROUNDED["convolution"]
    (call, found), inputs = made(case.text), of_halves(case)
    last = inputs[0].detach().contiguous(memory_format=torch.channels_last)
    y = call(last, *inputs[1:])
    assert any(plans(found)), "it goes in stages"
    assert y.is_contiguous(memory_format=torch.channels_last)
    check(y.detach(), case.theirs(*(each.detach().double() for each in inputs)), 2)


def test_what_was_kept_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_series, "MOST_TRIES", -1)  # else the table asks the library
    case = CASES["convolution"]
    (call, _), inputs = made(case.text), of_halves(case)
    torch.autograd.grad(call(*inputs).sum(), inputs)  # what they read is known now
    asked: list[object] = []
    computed = library_call.computed

    def counted(*given: Any) -> Tensor | None:
        asked.append(given)
        return computed(*given)

    monkeypatch.setattr(library_call, "computed", counted)
    torch.autograd.grad(call(*inputs).sum(), inputs)
    assert len(asked) == 3, "one product forward, one for each of two gradients"


def test_gradients_of_gradients() -> None:
    case = CASES["linear"]
    (call, _), inputs = made(case.text), of_halves(case)
    exact = [each.detach().double().requires_grad_() for each in inputs]

    def second(of: Callable[..., Tensor], given: list[Tensor]) -> Tensor:
        first = torch.autograd.grad(of(*given).square().sum(), given[0], create_graph=True)[0]
        return torch.autograd.grad(first.sum(), given[1])[0]

    def theirs(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
        return F.leaky_relu(F.linear(x, k, b), 0.1)

    mine, wanted = second(call, inputs), second(theirs, exact)
    # The square of a result that was rounded is one of 16 bits, too.
    assert float((mine.double() - wanted).abs().max()) <= 2**-5 * float(wanted.abs().max())


# ---------------------------------------------------------------------------- computed again
DECIDED = """op f(x[N,D], k[E,D], b[N,E], c[E]) -> y[N,E]
  tmp z[N,E]
  z[n,e] = sum(d) x[n,d] * k[e,d]
  y[n,e] = select(z[n,e] + b[n,e] >= 1, c[e]*z[n,e], z[n,e])
"""


def on_the_edge() -> tuple[list[Tensor], Tensor]:
    """Inputs of it, of which products that are rounded make exactly 1, and by how much `z` is
    multiplied."""
    torch.manual_seed(0)
    x, k = (torch.rand(192, 64) / 4).bfloat16(), (torch.rand(200, 64) / 4).bfloat16()
    z = F.linear(x, k)
    b = 1 - z
    is_exact = (z.double() + b.double()) == 1
    assert is_exact.float().mean() > 0.9
    wide = x.double() @ k.double().T + b.double()
    assert (wide < 1)[is_exact].float().mean() > 0.3, "32 bits decide otherwise"
    factor = torch.where(z.double() + b.double() >= 1, 3.0, 1.0).double()
    c = torch.full((200,), 3.0).bfloat16()
    return [each.requires_grad_() for each in (x, k, b, c)], factor


@pytest.mark.parametrize("how", ["kept", "create_graph", "vjp"])
def test_gradients_decide_by_products_as_they_were_rounded(how: str) -> None:
    """Those that compute them again do so, too, whatever else they do with them."""
    (call, found), (inputs, factor) = made(DECIDED), on_the_edge()
    flowing = torch.ones(factor.shape).bfloat16()
    if how == "vjp":
        _, pull = torch.func.vjp(call, *inputs)
        gradient_x, gradient_k, *_ = pull(flowing)
    else:
        y = call(*inputs)
        derived = torch.autograd.grad(y, inputs[:2], flowing, create_graph=how == "create_graph")
        gradient_x, gradient_k = derived
    assert any(plans(found)), "it goes in stages"
    x, k, *_ = (each.detach().double() for each in inputs)
    check(gradient_x.detach(), factor @ k, 1)
    check(gradient_k.detach(), factor.T @ x, 1)


def test_what_a_gradient_computes_again_has_as_many_bits() -> None:
    """By itself the gradient would have `z` in 32, since it is beside two other tensors."""
    _, derived = gradient(DECIDED, ("f", "x"))
    apart = products_of(derived)
    (alone, *_), (first, *_) = (
        stages(derived, apart, are_halves=True, origin=origin)
        for origin in (None, checked(DECIDED))
    )
    assert alone.op.outputs[0].name == first.op.outputs[0].name == "z"
    assert (alone.is_wide, alone.is_rounded_again) == (True, False)
    assert (first.is_wide, first.is_rounded_again) == (False, True)


def test_gradients_of_calls_without_stages_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of so few products has them in 32 bits; its gradient has twice as many."""
    text = DECIDED.replace("D", "L")  # whose gradients no call went through before
    (call, found), (inputs, _) = made(text), on_the_edge()
    x, k, b, _ = (each.detach().double() for each in inputs)
    work = x.shape[0] * k.shape[0] * k.shape[1]
    monkeypatch.setattr(calls, "LEAST_WORK", work + 1)
    y = call(*inputs)
    assert not any(plans(found))
    flowing = torch.ones(y.shape).bfloat16()
    (gradient_k,) = torch.autograd.grad(y, inputs[1], flowing, create_graph=True)
    factor = torch.where((x.float() @ k.float().T).double() + b >= 1, 3.0, 1.0).double()
    check(gradient_k.detach(), factor.T @ x, 1)


TWO_PRODUCTS = """op f(x[N,D], k[G,D], w[E,G], t[N,E], p[N,E]) -> y[N,E]
  tmp a[N,G], h[N,G], z[N,E]
  a[n,g] = sum(d) x[n,d] * k[g,d]
  h[n,g] = MIDDLE
  z[n,e] = sum(g) h[n,g] * w[e,g]
  y[n,e] = select(z[n,e] - t[n,e] > 0, p[n,e]*z[n,e], z[n,e])
"""


@pytest.mark.sampled(8)
@pytest.mark.parametrize("how", ["kept", "create_graph", "vjp"])
@pytest.mark.parametrize(
    ("middle", "sizes"),
    [
        ("a[n,g]", (48, 64, 64, 128)),  # of the gradient only the second product is large
        ("a[n,g]", (96, 64, 64, 64)),  # gradients read the one for the other
        ("tanh(a[n,g])", (48, 128, 64, 64)),  # the second product stays in a kernel
        ("max(a[n,g], 0)", (96, 64, 64, 64)),
    ],
)
def test_gradients_of_two_products_decide_as_their_call(
    middle: str, sizes: tuple[int, ...], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LEAST_WORK", 2**18)
    call, found = made(TWO_PRODUCTS.replace("MIDDLE", middle))
    rows, terms, inner, columns = sizes
    torch.manual_seed(0)
    x, k = (torch.randn(rows, terms) / 2).bfloat16(), (torch.randn(inner, terms) / 8).bfloat16()
    w = (torch.randn(columns, inner) / 8).bfloat16()
    a = F.linear(x, k)
    t = F.linear({"a": a, "t": a.tanh(), "m": a.relu()}[middle[0]], w)
    given = [*(each.requires_grad_() for each in (x, k, w)), t]
    one, two = (torch.full_like(t, number).requires_grad_() for number in (1, 2))
    y = call(*given, two)
    is_more = y != call(*given, one)
    assert any(plans(found)), "it goes in stages"
    flowing = torch.ones_like(y)
    if how == "vjp":
        *_, gradient_p = torch.func.vjp(call, *given, two)[1](flowing)
    else:
        is_kept = how == "kept"
        derived = torch.autograd.grad(y, [x, k, w, two], flowing, create_graph=not is_kept)
        gradient_p = derived[-1]
    assert torch.equal(gradient_p != 0, is_more)


# ---------------------------------------------------------------------------- calls that go as ever
def test_float16_has_too_short_a_range() -> None:
    """A sum between statements may be larger than its largest number."""
    case = CASES["two layers"]
    call, found = made(case.text)
    x, a, b = of_halves(case, torch.float16)
    with torch.no_grad():
        y = call(x * 128, a * 128, b / 1024)
    exact = (x.double() * 128) @ (a.double() * 128).T
    assert float(exact.detach().abs().max()) > torch.finfo(torch.float16).max
    wanted = exact @ (b.double() / 1024).T
    torch.testing.assert_close(y, wanted.half(), rtol=2**-9, atol=2**-9)
    assert not any(plans(found))
