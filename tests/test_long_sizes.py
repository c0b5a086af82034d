"""Every op with each of its sizes several vectors long, and no multiple of one, against PyTorch.

The small cases of the catalogue reach every branch of an op, but no whole vector of a row or a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import opgen
from catalogue import Case, Entry, each_but_long
from opgen.emit.statements import Emitter
from opgen.ir.notation import BATCH
from opgen.runtime import special
from opgen.testing.cases import LONG, long_cases
from spec_calls import checked
from test_spec_kernels import WITH_TORCH, as_tuple, leaves, module, tensors_of

WINDOWS = {
    ("conv2d", "K"),
    ("conv2d", "L"),
    ("conv3d", "M"),
    ("conv3d", "K"),
    ("conv3d", "L"),
    ("unfold_conv", "K"),
    ("conv_depth_to_space", "K"),
    ("conv_depth_to_space", "L"),
    ("involution", "G"),
    ("involution", "K"),
    ("involution", "L"),
}
"""Sizes that are long only beside several others, for which loops in Python take too long."""


def sizes_tried(subject: Entry) -> set[str]:
    return {
        name
        for case in long_cases(checked(subject))
        for name, size in case.sizes.items()
        if size >= LONG
    }


def test_every_size_is_long_once() -> None:
    missing = {
        (subject.op, name)
        for subject in WITH_TORCH
        for name in checked(subject).sizes
        if name not in sizes_tried(subject) | {BATCH}
    }
    assert missing <= WINDOWS


def cases_of(subject: Entry) -> tuple[Case, ...]:
    op = checked(subject)
    return tuple(
        Case(
            {each.name: case.shape(op, each) for each in op.inputs if each.name not in case.absent},
            dict(case.attributes),
        )
        for case in long_cases(op)
    )


@each_but_long(WITH_TORCH)
@pytest.mark.sampled(6)
def test_long_sizes(subject: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and gradients, of the kernels that take all attributes."""
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "0")
    compare(subject, torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("subject", WITH_TORCH, ids=repr)
def test_long_sizes_of_special_kernels(subject: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setattr(special, "MOST_SIZES", 1000)
    compare(subject, torch.float32)


def compare(subject: Entry, dtype: torch.dtype) -> None:
    assert subject.torch_equivalent is not None
    compared = 0
    for case in cases_of(subject):
        tensors = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in tensors_of(subject, case, 1).items()
        }
        inputs = leaves(subject, tensors) if dtype is torch.float64 else []
        equivalent = subject.torch_equivalent
        if subject.op == "pad_circular":  # PyTorch's means something else where padding is negative
            equivalent = loops_of(subject)
            inputs = []
        try:
            wanted = as_tuple(equivalent(**tensors, **case.attributes))
        except (RuntimeError, ValueError):
            continue  # a call that PyTorch does not take
        op = getattr(module(str(subject.spec_path)), subject.op)
        got = as_tuple(op(**tensors, **case.attributes))
        torch.testing.assert_close(got, wanted)
        compared += 1
        if inputs:
            compare_gradients(got, wanted, inputs)
    assert compared, "PyTorch took none of the calls"


def loops_of(subject: Entry) -> Callable[..., torch.Tensor]:
    """The plain loops of an op with one output, for tensors."""

    def loops(**given: Any) -> torch.Tensor:
        values = {
            name: each.detach().numpy() if isinstance(each, torch.Tensor) else each
            for name, each in given.items()
        }
        return torch.from_numpy(np.asarray(subject.reference(**values)))

    return loops


def compare_gradients(
    got: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...], inputs: list[torch.Tensor]
) -> None:
    torch.manual_seed(0)
    real = [at for at, value in enumerate(wanted) if value.requires_grad]
    cotangents = [torch.randn_like(wanted[at]) for at in real]
    mine, theirs = (
        torch.autograd.grad(
            [values[at] for at in real],
            inputs,
            cotangents,
            allow_unused=True,
            materialize_grads=True,
        )
        for values in (got, wanted)
    )
    torch.testing.assert_close(mine, theirs)


def test_a_forgotten_vector_of_partial_sums_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a mean of 16 numbers was that of none: short sums never have a whole vector."""
    monkeypatch.setattr(Emitter, "add_up_vectors", lambda self, node: None)
    text = "op forgotten_mean(x: float[N,D]) -> y[N]\n  y[n] = mean(d) x[n,d]"
    mean = opgen.compile(text, "forgotten.op").forgotten_mean
    assert mean(torch.ones(2, 7, dtype=torch.float64)).tolist() == [1, 1]
    assert mean(torch.ones(2, LONG, dtype=torch.float64)).tolist() != [1, 1]
