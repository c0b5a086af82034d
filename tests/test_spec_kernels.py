"""Compiled CPU kernels of every spec against PyTorch: forward, backward, double backward, strides.

The way a user goes: `opgen.load`, a call, `backward`. What the numbers should be to the last bit is
tested through the interpreter in test_specs.py; here a kernel that indexes wrongly must show.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import opgen
from catalogue import CATALOGUE, LONG, Case, Entry, each_but
from opgen.runtime import special
from opgen.testing.layouts import spread, transposed

WITH_TORCH = [e for e in CATALOGUE if e.torch_equivalent is not None]
each = pytest.mark.parametrize("subject", WITH_TORCH, ids=repr)
LIKE_OTHERS = ("upsample_bilinear_size", "upsample_nearest_exact", "shift_sum_masked")
LIKE_OTHERS += ("space_to_depth", "pad_replicate", "pad_circular")
LIKE_OTHERS += ("unfold_conv", "conv_depth_to_space")
"""Others of their specs, or `conv2d`, go the same ways; the results are compared of all."""


@cache
def module(path: str) -> ModuleType:
    return opgen.load(path)


def tensors_of(subject: Entry, case: Case, seed: int) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(np.array(value))
        for name, value in subject.make_inputs(case, seed).items()
    }


def as_tuple(value: object) -> tuple[torch.Tensor, ...]:
    values = value if isinstance(value, tuple) else (value,)
    assert all(isinstance(v, torch.Tensor) for v in values)
    return values


def leaves(subject: Entry, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    found = [tensors[name] for name in subject.differentiable if name in tensors]
    for tensor in found:
        tensor.requires_grad_()
    return found


@each_but(LONG + LIKE_OTHERS, WITH_TORCH)
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.sampled(12)
def test_forward_and_two_backwards(
    subject: Entry, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """With the kernels that take all attributes: they are compiled once for all examples."""
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "0")
    check_two_backwards(subject, data)


@pytest.mark.slow
@each
@settings(max_examples=1, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_special_kernels(
    subject: Entry, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """For attributes, windows and rows, with all optimisations: the compiler does the most."""
    monkeypatch.delenv("OPGEN_CFLAGS", raising=False)
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setattr(special, "MOST_SIZES", 1000)
    check_two_backwards(subject, data)


def check_two_backwards(subject: Entry, data: st.DataObject) -> None:
    assert subject.torch_equivalent is not None
    case = data.draw(subject.cases)
    tensors = tensors_of(subject, case, data.draw(st.integers(0, 2**16)))
    inputs = leaves(subject, tensors)
    got = as_tuple(
        getattr(module(str(subject.spec_path)), subject.op)(**tensors, **case.attributes)
    )
    wanted = as_tuple(subject.torch_equivalent(**tensors, **case.attributes))
    torch.testing.assert_close(got, wanted)
    # torch's own double backward fails on some empty tensors.
    assume(all(value.numel() for value in (*got, *inputs)))
    chain(got, wanted, inputs)


def chain(
    got: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...], inputs: list[torch.Tensor]
) -> None:
    """Compare first gradients, then gradients of a function of the first gradients."""
    torch.manual_seed(0)
    weights = [torch.randn_like(value) for value in wanted if value.is_floating_point()]
    firsts = []
    for outputs in (got, wanted):
        real = [value for value in outputs if value.is_floating_point()]
        total = sum(
            ((v * v * w).sum() for v, w in zip(real, weights, strict=True)), torch.zeros(())
        )
        firsts.append(
            torch.autograd.grad(
                total, inputs, create_graph=True, allow_unused=True, materialize_grads=True
            )
        )
    torch.testing.assert_close(firsts[0], firsts[1])
    seconds = []
    for first in firsts:
        total = sum(((g * g).sum() for g in first if g.requires_grad), torch.zeros(()))
        seconds.append(
            torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        )
    torch.testing.assert_close(seconds[0], seconds[1])


@each
@settings(max_examples=1)
@given(data=st.data())
@pytest.mark.sampled(6)
def test_any_strides(subject: Entry, data: st.DataObject) -> None:
    """Transposed memory, every second element and expanded dims give the same result.

    Up to rounding: loops over consecutive memory may add in another order, and fuse more.
    """
    case = data.draw(subject.cases)
    tensors = tensors_of(subject, case, data.draw(st.integers(0, 2**16)))
    function = getattr(module(str(subject.spec_path)), subject.op)
    wanted = function(**tensors, **case.attributes)
    for restride in (transposed, spread):
        moved = {name: restride(tensor) for name, tensor in tensors.items()}
        torch.testing.assert_close(function(**moved, **case.attributes), wanted)


def test_harness_reports_a_wrong_kernel() -> None:
    """Negative control: max pooling instead of average pooling must not pass."""
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    got = module(str(WITH_TORCH[0].spec_path.parent / "pool.op")).max_pool2d(
        x, kernel_size=2, stride=2
    )[0]
    with pytest.raises(AssertionError):
        torch.testing.assert_close(got, torch.nn.functional.avg_pool2d(x, 2))
