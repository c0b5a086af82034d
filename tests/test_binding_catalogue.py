"""Every op of specs/ through PyTorch's own harnesses: opcheck, gradcheck, gradgradcheck."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import opgen
from catalogue import CATALOGUE, SPECS, Case, Entry
from opgen import compiler
from opgen.passes.derive import differentiable
from opgen.runtime import checks
from opgen.runtime.schema import flatten

each = pytest.mark.parametrize("subject", CATALOGUE, ids=repr)
each_kind = pytest.mark.parametrize(
    "subject",
    [
        entry
        for entry in CATALOGUE
        if entry.op in ("shift_sum_masked", "conv2d", "max_pool2d", "upsample_nearest_size", "fold")
        or entry.op in ("pad_reflect", "embedding", "softmax", "haar")
    ],
    ids=repr,
)
"""Products, greatest values, sizes given, overlaps, borders, indices, temporaries, two outputs."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Torch warns about what it calls itself in forward mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def module(path: str) -> ModuleType:
    return opgen.load(path)


def test_nothing_differentiable_is_left_out() -> None:
    tried = {(subject.spec, subject.op): set(subject.differentiable) for subject in CATALOGUE}
    found = {
        (path.stem, op.name): {tensor.name for tensor in differentiable(op)}
        for path in SPECS.glob("*.op")
        for op in compiler.check_source(compiler.read_source(path))
    }
    assert tried == found
    assert sum(map(bool, found.values())) > 30


def drawn(subject: Entry, data: st.DataObject, largest: int) -> dict[str, Tensor]:
    """Inputs of a small case that is not empty, and its attributes."""
    case: Case = data.draw(subject.cases)
    total = sum(math.prod(shape) for shape in case.shapes.values())
    assume(total <= largest and all(math.prod(shape) > 0 for shape in case.shapes.values()))
    inputs = subject.make_inputs(case, data.draw(st.integers(0, 2**16)))
    found: dict[str, Any] = {name: torch.from_numpy(np.array(x)) for name, x in inputs.items()}
    return found | case.attributes


def function_of(subject: Entry, call: dict[str, Any]) -> tuple[Callable[..., Any], list[Tensor]]:
    """A function of the differentiable inputs that gives floating outputs, and such inputs."""
    names = [name for name in subject.differentiable if name in call]
    op = getattr(module(str(subject.spec_path)), subject.op)

    def function(*tensors: Tensor) -> Any:
        result = op(**(call | dict(zip(names, tensors, strict=True))))
        if isinstance(result, Tensor):
            return result
        return tuple(output for output in result if output.is_floating_point())

    return function, [call[name].clone().requires_grad_() for name in names]


def check_dispatch(subject: Entry, call: dict[str, Any]) -> None:
    """Registration, fake tensors and autograd under tracing, as `opcheck` sees them."""
    operation = getattr(module(str(subject.spec_path)), f"_{subject.op}")
    tensors = [call.get(declared.name) for declared in operation.inputs]
    for tensor, declared in zip(tensors, operation.inputs, strict=True):
        if tensor is not None and declared.name in subject.differentiable:
            tensor.requires_grad_()
    values = [
        checks.attribute_value(subject.op, attribute, call.get(attribute.name, attribute.default))
        for attribute in operation.attributes
    ]
    torch.library.opcheck(operation.overload, (*tensors, *flatten(values)))


@each_kind
@settings(max_examples=1)
@given(data=st.data())
def test_a_small_case(subject: Entry, data: st.DataObject) -> None:
    call = drawn(subject, data, 60)
    function, leaves = function_of(subject, call)
    assert gradcheck(function, leaves, check_forward_ad=True)
    check_dispatch(subject, call)


@pytest.mark.slow
@each
@settings(max_examples=1)
@given(data=st.data())
def test_everything(subject: Entry, data: st.DataObject) -> None:
    call = drawn(subject, data, 120)
    function, leaves = function_of(subject, call)
    assert gradcheck(
        function,
        leaves,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert gradgradcheck(function, leaves, check_fwd_over_rev=True)
    check_dispatch(subject, call)
