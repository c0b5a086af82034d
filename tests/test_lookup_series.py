"""Calls in stages that the table of eager calls goes through by itself, without Python between."""

from __future__ import annotations

import itertools
import resource
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.runtime import Operation, lookup_series
from opgen.runtime import stages as calls
from test_stages import ATTENTION, CASES, CONVOLUTION, Case, close, gradients

SLOPE = """op f(x[N,C], a[R,C], b[O,R]; slope = 0.1, flat = 0.5) -> y[N,O]
  tmp z[N,R], t[N,R]
  z[n,r] = sum(c) x[n,c] * a[r,c]
  t[n,r] = max(z[n,r], flat * z[n,r])
  y[n,o] = slope * (sum(r) t[n,r] * b[o,r])
"""
SHIFTED = """op f(x[N,C,H,W], k[O,C]; shift: int = 1) -> y[N,O,H,W]
  tmp z[N,O,H,W]
  z[n,o,h,w] = sum(c) x[n,c,h,w] * k[o,c]
  y[n,o,h,w] = z[n,o, h-shift ?0, w] - max(z[n,o,h,w], 0)
"""
TWO_OUTPUTS = """op f(x[N,C], a[R,C], b[O,R]) -> y[N,O], z[N,R]
  z[n,r] = sum(c) x[n,c] * a[r,c]
  y[n,o] = exp(-(sum(r) z[n,r] * b[o,r]))
"""
_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _for_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of any size go in stages."""
    monkeypatch.setattr(calls, "LEAST_WORK", 0)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that Python computes from now on."""
    found, computed = [], calls.Stage.computed

    def noted(stage: calls.Stage, given: list[Tensor]) -> Any:
        found.append(stage.operation.name)
        return computed(stage, given)

    monkeypatch.setattr(calls.Stage, "computed", noted)
    return found


def made(text: str) -> tuple[Callable[..., Any], Operation]:
    """The op of a spec, of which no call was seen: under a name that no other test has."""
    name = f"f_{next(_NUMBERS)}"
    module = opgen.compile(text.replace("op f(", f"op {name}("))
    return getattr(module, name), module.FAMILY.operations[name]


def seen(call: Callable[..., Any], *given: Any, **attributes: Any) -> Any:
    """The result of a call, after a few like it."""
    with torch.no_grad():
        for _ in range(lookup_series.MOST_TRIES):
            call(*given, **attributes)
        return call(*given, **attributes)


def unasked(in_python: list[str], call: Callable[..., Any], *given: Tensor) -> Any:
    """The result of a call of which Python computes no stage."""
    in_python.clear()
    with torch.no_grad():
        found = call(*given)
    assert in_python == []
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CASES)
def test_python_is_not_asked(name: str, format_: torch.memory_format, in_python: list[str]) -> None:
    case = CASES[name]
    inputs = [each.detach() for each in case.inputs(torch.float32)]
    inputs = [x.contiguous(memory_format=format_) if x.dim() == 4 else x for x in inputs]
    call, operation = made(case.text)
    seen(call, *inputs)
    assert any(operation.staged.values()), "it goes in stages"
    close(unasked(in_python, call, *inputs), case.theirs(*inputs))
    changed = [2 * each + 0.25 for each in inputs]
    with torch.no_grad():
        close(call(*changed), case.theirs(*changed))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_nor_for_gradients(name: str, in_python: list[str]) -> None:
    case = CASES[name]
    call, inputs = made(case.text)[0], case.inputs(torch.float32)
    for _ in range(lookup_series.MOST_TRIES + 2):
        gradients(call(*inputs), inputs)
    in_python.clear()
    y, theirs = call(*inputs), case.theirs(*inputs)
    mine, others = gradients(y, inputs), gradients(theirs, inputs)
    close(y, theirs)
    for one, other in zip(mine, others, strict=True):
        close(one, other)
    assert in_python == []


def test_gradients_of_some_inputs_only(in_python: list[str]) -> None:
    """What is kept depends on which gradients are wanted; calls that differ in it take turns."""
    case = CASES["attention"]
    call, inputs = made(case.text)[0], case.inputs(torch.float32)
    choices = [(0,), (2,), (0, 1), (0, 1, 2)]
    for _ in range(8):
        for wanted in choices:
            given = [x if at in wanted else x.detach() for at, x in enumerate(inputs)]
            leaves = [inputs[at] for at in wanted]
            mine = gradients(call(*given), leaves)
            for one, other in zip(mine, gradients(case.theirs(*given), leaves), strict=True):
                close(one, other)


def test_names_of_temporaries_mean_nothing() -> None:
    """To the dispatcher ops that differ in these are the same, and share tables."""
    text = """op f(x[N,C], a[R,C], b[R,C]) -> y[N,R]
  tmp z[N,R], u[N,R]
  z[n,r] = sum(c) x[n,c] * a[r,c]
  u[n,r] = sum(c) x[n,c] * b[r,c]
  y[n,r] = z[n,r] * u[n,r]
"""
    name = f"f_{next(_NUMBERS)}"
    text = text.replace("op f(", f"op {name}(")
    swapped = text.translate(str.maketrans("zu", "uz")).replace("szm", "sum")
    x = torch.randn(20, 33, requires_grad=True)
    a, b = (torch.randn(24, 33, requires_grad=True) for _ in range(2))
    for module in (opgen.compile(text), opgen.compile(swapped)):
        call = getattr(module, name)
        for wanted in (a, b):
            given = [each if each is wanted else each.detach() for each in (x, a, b)]
            theirs = gradients((given[0] @ given[1].T) * (given[0] @ given[2].T), [wanted])
            for _ in range(6):
                close(gradients(call(*given), [wanted])[0], theirs[0])


def test_batches_in_channels_last_format() -> None:
    """Leading dims are no images, but may lie like some."""
    call, _ = made(CASES["linear"].text)
    x = torch.randn(2, 8, 8, 48).contiguous(memory_format=torch.channels_last)
    k, b = torch.randn(64, 48, requires_grad=True), torch.randn(64)
    for _ in range(4):
        y, theirs = call(x, k, b), F.leaky_relu(F.linear(x, k, b), 0.1)
        close(y, theirs)
        for flows_back in (torch.randn_like(y), torch.randn_like(theirs)):
            (mine,) = torch.autograd.grad(y, k, flows_back, retain_graph=True)
            close(mine, torch.autograd.grad(theirs, k, flows_back, retain_graph=True)[0])


def test_what_is_spent_is_gone_also_in_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """op f(x[N,C], a[C,C], b[C,C], d[C,C]) -> y[N,C]
  z[n,c] = sum(k) x[n,k] * a[c,k]
  u[n,c] = sum(k) z[n,k] * b[c,k]
  y[n,c] = sum(k) u[n,k] * d[c,k]
"""
    alive: list[int] = []
    seen: list[weakref.ref[Tensor]] = []
    computed = calls.Stage.computed

    def watched(stage: calls.Stage, given: list[Tensor]) -> Any:
        alive.append(sum(each() is not None for each in seen))
        found = computed(stage, given)
        seen.extend(map(weakref.ref, found or ()))
        return found

    monkeypatch.setattr(calls.Stage, "computed", watched)
    call, _ = made(text)
    with torch.no_grad():
        call(torch.randn(20, 33), *(torch.randn(33, 33) for _ in range(3)))
    assert alive == [0, 1, 1], "what the stage reads"


def test_formats_and_types_in_turn() -> None:
    """Calls of the same shapes, which the table tells apart."""
    case = CASES["convolution"]
    call = opgen.compile(case.text).f
    for _ in range(6):
        for dtype in (torch.float32, torch.float64):
            for format_ in (torch.contiguous_format, torch.channels_last):
                inputs = case.inputs(dtype)
                x = inputs[0].detach().contiguous(memory_format=format_).requires_grad_()
                mine, theirs = call(x, *inputs[1:]), case.theirs(x, *inputs[1:])
                close(mine, theirs)
                leaves = [x, *inputs[1:]]
                pairs = zip(gradients(mine, leaves), gradients(theirs, leaves), strict=True)
                for one, other in pairs:
                    close(one, other)


def test_attributes(in_python: list[str]) -> None:
    """Floats are those of the call, integers tell calls apart."""
    call, _ = made(SLOPE)
    x, a, b = torch.randn(20, 33), torch.randn(24, 33), torch.randn(18, 24)
    seen(call, x, a, b)
    in_python.clear()
    for slope, flat in ((0.1, 0.5), (2.0, 0.0), (-1.0, -0.0), (0.5, 2.0), (float("inf"), 0.25)):
        z = x @ a.T
        with torch.no_grad():
            got = call(x, a, b, slope=slope, flat=flat)
        close(got, slope * (torch.maximum(z, flat * z) @ b.T))
    assert in_python == []
    call, _ = made(SHIFTED)
    x, k = torch.randn(2, 24, 6, 9), torch.randn(20, 24)
    for shift in (1, 2, 0, 1):
        z = torch.einsum("nchw,oc->nohw", x, k)
        moved = F.pad(z, (0, 0, shift, 0))[:, :, :6]
        close(seen(call, x, k, shift=shift), moved - z.clamp_min(0))


def test_an_output_that_a_later_stage_reads(in_python: list[str]) -> None:
    call, operation = made(TWO_OUTPUTS)
    x, a, b = torch.randn(20, 33) / 8, torch.randn(24, 33) / 8, torch.randn(18, 24) / 8
    seen(call, x, a, b)
    assert any(operation.staged.values()), "it goes in stages"
    y, z = unasked(in_python, call, x, a, b)
    close(z, x @ a.T)
    close(y, torch.exp(-(x @ a.T @ b.T)))


def test_a_temporary_that_is_added_to(in_python: list[str]) -> None:
    """The sum of two products, and the memory of what it was before."""
    text = """op f(x[N,C], a[R,C], b[R,C]) -> y[N,R]
  tmp z[N,R]
  z[n,r] += sum(c) x[n,c] * a[r,c]
  z[n,r] += sum(c) x[n,c] * b[r,c]
  y[n,r] = exp(-z[n,r])
"""
    call, operation = made(text)
    x, a, b = torch.randn(256, 64) / 8, torch.randn(256, 64) / 8, torch.randn(256, 64) / 8
    seen(call, x, a, b)
    assert any(operation.staged.values()), "it goes in stages"
    close(unasked(in_python, call, x, a, b), torch.exp(-(x @ a.T + x @ b.T)))
    with torch.no_grad():
        assert _bytes_in_use(lambda: call(x, a, b), 240) < 80 * 4 * 256 * 256


def test_an_input_that_is_absent(in_python: list[str]) -> None:
    """What stands for it is no tensor of the call: such calls go as ever."""
    call, _ = made(CONVOLUTION)
    x, k, b = (each.detach() for each in CASES["convolution"].inputs(torch.float32))
    for given in ((x, k), (x, k, b), (x, k)):
        close(seen(call, *given), F.relu(F.conv2d(*given, padding=1)))
    in_python.clear()
    with torch.no_grad():
        call(x, k, b)
        assert in_python == []
        call(x, k)
    assert in_python != []


def test_numbers_that_are_not_finite() -> None:
    """A convolution in the middle may refuse: only that call then goes another way."""
    call, _ = made(CONVOLUTION)
    x, k, b = (each.detach() for each in CASES["convolution"].inputs(torch.float32))
    seen(call, x, k, b)
    bad = k.clone()
    bad[3, 4, 0, 1] = torch.inf
    with torch.no_grad():
        y = call(x, bad, b)
        assert not torch.isnan(y[:, :3]).any()
        # Row 0 of the result has no term with the first row of the filter.
        rest = bad.clone()
        rest[:, :, 0] = 0
        close(y[:, :, 0], F.relu(F.conv2d(x, rest, b, padding=1))[:, :, 0])
        close(call(x, k, b), F.relu(F.conv2d(x, k, b, padding=1)))


def _bytes_in_use(call: Callable[[], Any], times: int) -> int:
    """By how much the memory of the process grew over some calls, at most."""
    call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(times):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_refused", [False, True])
def test_what_is_between_stages_is_released(is_refused: bool) -> None:
    call, _ = made(CONVOLUTION)
    x, k, b = torch.randn(2, 16, 64, 64), torch.randn(16, 16, 3, 3), torch.randn(16)
    seen(call, x, k, b)
    if is_refused:
        k[0, 0, 1, 1] = torch.nan
    count = 48 if is_refused else 240  # what is refused is computed by slow kernels
    with torch.no_grad():
        grown = _bytes_in_use(lambda: call(x, k, b), count)
    assert grown < count // 3 * x.nbytes, "each call makes a tensor of this size between stages"


def test_what_is_kept_is_released_with_the_graph() -> None:
    case = Case(ATTENTION, ((8, 64, 64),) * 3, CASES["attention"].theirs)
    call, inputs = made(case.text)[0], case.inputs(torch.float32)
    for _ in range(6):
        gradients(call(*inputs), inputs)
    assert _bytes_in_use(lambda: gradients(call(*inputs), inputs), 120) < 40 * inputs[0].nbytes


def test_bfloat16(in_python: list[str]) -> None:
    """Where no stage converts what it is given."""
    case = CASES["linear"]
    inputs = [each.detach().bfloat16() for each in case.inputs(torch.float32)]
    call, operation = made(case.text)
    seen(call, *inputs)
    assert any(operation.staged.values()), "it goes in stages"
    y = unasked(in_python, call, *inputs)
    exact = case.theirs(*(each.double() for each in inputs))
    assert float((y.double() - exact).abs().max()) <= 2 * 2**-8 * float(exact.abs().max())
