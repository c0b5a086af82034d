"""Ops with products beside other statements on a GPU: in stages, and gradients of what these kept.

Tensors of the CPU take the way of those of a GPU, up to PyTorch's own ops; the same ops on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import opgen
from library_cuda_specs import take_the_way_of_a_gpu
from opgen.runtime import Operation, library_call, lookup_kept, stages
from opgen.runtime.library_plan import Plan
from opgen.runtime.library_product import Multiplication
from test_kept import BATCH_NORM, SOFTMAX
from test_stages import CASES, Case, close, gradients, made, plans

# The smallest of these convolutions are opgen's own, and stay in their op.
LARGE = replace(CASES["convolution"], shapes=((2, 32, 24, 24), (48, 32, 3, 3), (48,)))
LARGE_LINEAR = replace(CASES["linear"], shapes=((3, 64, 256), (128, 256), (128,)))
LARGER = {**CASES, "convolution": LARGE}
EACH = pytest.mark.parametrize("case", LARGER.values(), ids=LARGER)


@pytest.fixture(autouse=True)
def _for_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of any size on a GPU go in stages and keep totals, on CPUs none does."""
    monkeypatch.setattr(stages, "LEAST_WORK_ON_GPU", 0)
    monkeypatch.setattr(stages, "LEAST_WORK", 2**60)
    monkeypatch.setattr(lookup_kept, "_LARGE_ON_GPU", 1)


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    take_the_way_of_a_gpu(monkeypatch)


@pytest.fixture
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of float32 in float32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def check(case: Case, inputs: list[Tensor]) -> Operation:
    """Numbers and gradients, of the first call and of later ones."""
    call, found = made(case.text)
    for _ in range(3):
        y, theirs = call(*inputs), case.theirs(*inputs)
        close(y, theirs)
        for mine, other in zip(gradients(y, inputs), gradients(theirs, inputs), strict=True):
            close(mine, other)
    return found


# ---------------------------------------------------------------------------- as on a GPU
@EACH
@pytest.mark.sampled(4)
def test_as_on_a_gpu(case: Case, as_on_gpu: None) -> None:
    found = check(case, case.inputs(torch.float32))
    assert plans(found) and None not in plans(found), "it did not go in stages"


@pytest.mark.parametrize("case", [LARGE, LARGE_LINEAR], ids=["convolution", "linear"])
def test_large_products_are_the_librarys(case: Case, as_on_gpu: None) -> None:
    (call, found), inputs = made(case.text), case.inputs(torch.float32)
    call(*inputs)
    (plan,) = plans(found)
    assert plan is not None
    first, _ = plan.stages
    if case is LARGE:  # it is looked up like a call of kernels
        (known,) = library_call._KNOWN[first.operation.registered_name].values()
        assert isinstance(known, Plan)
    else:
        assert isinstance(first.plan, Multiplication)


def test_a_gpu_and_a_cpu_have_limits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # An op of its own, as other tests have other limits.
    case = replace(CASES["linear"], text=CASES["linear"].text.replace("slope", "incline"))
    (call, found), inputs = made(case.text), case.inputs(torch.float32)
    call(*inputs)
    assert plans(found) == []
    take_the_way_of_a_gpu(monkeypatch)
    call(*inputs)
    assert len(plans(found)) == 1
    monkeypatch.setattr(stages, "LEAST_WORK_ON_GPU", 2**60)
    call(*case.inputs(torch.float64))
    assert len(plans(found)) == 1


def test_totals_are_kept_as_on_a_gpu(as_on_gpu: None) -> None:
    x = torch.randn(64, 100, requires_grad=True)
    case = Case(SOFTMAX, ((64, 100),), lambda x: torch.softmax(x, -1))
    found = check(case, [x])
    assert ["f_keeping" in each for each in _made_of(found)].count(True) == 1


def _made_of(found: Operation) -> Iterator[str]:
    return (each.name for each in found.family._keeping.values() if each is not None)


# ---------------------------------------------------------------------------- on a GPU
@pytest.mark.gpu
@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu(case: Case, dtype: torch.dtype, no_tf32: None) -> None:
    inputs = [each.detach().cuda().requires_grad_() for each in case.inputs(dtype)]
    found = check(case, inputs)
    # Convolutions in float64 are opgen's own.
    is_apart = dtype == torch.float32 or case is not LARGE
    assert [None] * (not is_apart) == [each for each in plans(found) if each is None]
    assert plans(found)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["convolution", "pixels"])
def test_images_in_channels_last_format(name: str, no_tf32: None) -> None:
    case = LARGER[name]
    given = case.inputs(torch.float32, is_last=True)
    inputs = [each.detach().cuda().requires_grad_() for each in given]
    check(case, inputs)
    y = opgen.compile(case.text).f(*inputs)
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@EACH
def test_a_captured_graph(case: Case, no_tf32: None) -> None:
    """Forward and backward, replayed with other numbers."""
    call, _ = made(case.text)
    inputs = [each.detach().cuda().requires_grad_() for each in case.inputs(torch.float32)]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            y = call(*inputs)
            torch.autograd.grad(y, inputs, torch.ones_like(y))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = call(*inputs)
            found = torch.autograd.grad(y, inputs, torch.ones_like(y))
    torch.cuda.synchronize()
    with torch.no_grad():
        for each in inputs:
            each.copy_(torch.randn_like(each))
    graph.replay()
    torch.cuda.synchronize()
    theirs = case.theirs(*inputs)
    close(y, theirs)
    for mine, other in zip(
        found, torch.autograd.grad(theirs, inputs, torch.ones_like(theirs)), strict=True
    ):
        close(mine, other)


@pytest.mark.gpu
def test_gradients_of_gradients(no_tf32: None) -> None:
    case = CASES["linear"]
    inputs = [each.detach().cuda().requires_grad_() for each in case.inputs(torch.float64)]
    seconds = []
    for call in (made(case.text)[0], case.theirs):
        first = gradients(call(*inputs), inputs, create_graph=True)
        total = torch.stack([(each * each).sum() for each in first]).sum()
        seconds.append(torch.autograd.grad(total, inputs))
    for mine, other in zip(*seconds, strict=True):
        close(mine, other)


@pytest.mark.gpu
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("text", [SOFTMAX, BATCH_NORM], ids=["softmax", "batch norm"])
def test_totals_are_kept(text: str, format_: torch.memory_format) -> None:
    if text == SOFTMAX:
        case = Case(text, ((64, 100),), lambda x: torch.softmax(x, -1))
    else:
        case = Case(
            text,
            ((4, 8, 20, 24), (8,), (8,)),
            lambda x, w, b: torch.batch_norm(x, w, b, None, None, True, 0.0, 1e-5, False),
        )
    inputs = [each.detach().cuda().requires_grad_() for each in case.inputs(torch.float64)]
    check(case, inputs)
