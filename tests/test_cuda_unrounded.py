"""CUDA kernels that round float32 inputs themselves give what they give for casts, bit by bit."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
import torch

import opgen
from catalogue import CATALOGUE, SPECS
from opgen.on_demand import unrounded_cuda
from opgen.runtime import (
    autocast,
    checks,
    cuda,
    cuda_call,
    evaluation,
    lookup_cuda_casts,
    lookup_library,
    registration,
    special,
)
from opgen.runtime.description import GENERIC
from opgen.runtime.operation import Operation
from opgen.runtime.record import replaced
from opgen.runtime.schema import flatten
from opgen.runtime.special import NotMadeError
from opgen.testing import nvrtc
from opgen.testing.calls import Call
from opgen.testing.cuda_on_cpu.emulated import emulated
from test_emulator_specs import SETTINGS, Setting, chosen, spec_named

LAYOUTS = ("contiguous", "transposed", "sliced", "channels_last")
CASTS = {
    "conv",
    "conv_depth_to_space",
    "conv_transpose",
    "correlation",
    "embedding",
    "local_attention",
    "norm",
    "shift_conv",
    "shift_sum:shift_sum",
    "softmax",
    "unfold_conv",
}
"""Specs, or ops, that load in loops, or are products of matrices, in some calls at least."""


def both(
    operation: Operation, call: Call, inputs: dict[str, torch.Tensor], dtype: torch.dtype
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]] | None:
    """Results for casts, and by kernels that round; None where there are none."""
    wide = [inputs.get(each.name) for each in operation.inputs]
    narrow = [
        x.to(dtype) if x is not None and declared.dtype in GENERIC else x
        for declared, x in zip(operation.inputs, wide, strict=True)
    ]
    attributes = call.case.attributes
    values = [
        checks.attribute_value(operation.name, each, attributes[each.name])
        for each in operation.attributes
    ]
    checked = evaluation.prepare(operation, narrow, values)
    names = tuple(
        declared.name
        for declared, x, y in zip(operation.inputs, wide, narrow, strict=True)
        if x is not y
    )
    rounding = replaced(checked, tensors=wide, unrounded=names)
    try:
        found = evaluation.computed(rounding)
    except NotMadeError:
        return None
    return evaluation.computed(checked), found


@pytest.mark.sampled(36)
@pytest.mark.parametrize("name", sorted({repr(each) for each in CATALOGUE}))
def test_as_casts(name: str) -> None:
    stem, op_name = name.split(":")
    op, operation = spec_named(stem).at((op_name,))
    is_rounding = False
    for dtype, layout in itertools.product(("bfloat16", "float16"), LAYOUTS):
        setting = Setting(1, "float32", layout, SETTINGS[0].order)
        call = Call(chosen(op, setting), "float32", (layout,) * len(op.inputs), 1)
        with emulated(), mock.patch.object(special, "LARGE", 1):
            found = both(operation, call, call.inputs(op), getattr(torch, dtype))
        if found is None:
            continue
        is_rounding = True
        for one, other in zip(*found, strict=True):
            assert one.dtype == other.dtype and one.stride() == other.stride()
            torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
    assert is_rounding or not CASTS.isdisjoint((stem, name))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("stem", "name", "shape", "how"),
    [
        ("conv", "conv2d", (2, 16, 8, 8), {"padding": 1, "groups": 16}),
        ("conv_transpose", "conv_transpose2d", (2, 16, 8, 8), {"stride": 2, "groups": 16}),
    ],
)
def test_windows_of_single_channels(
    stem: str, name: str, shape: tuple[int, ...], how: dict[str, int], layout: torch.memory_format
) -> None:
    """Kernels for one call: windows are written out, and filters are copied where that helps."""
    function = getattr(opgen.load(SPECS / f"{stem}.op"), name)
    size = 3 if stem == "conv" else 2
    x = torch.randn(shape).contiguous(memory_format=layout)
    weight = torch.randn(16, 1, size, size)
    operation = [e for e in registration._OPERATIONS.values() if e.name == name][-1]
    call = lookup_cuda_casts.caller(operation)
    operation = lookup_cuda_casts._CASTS[operation.registered_name].operation
    lookup_library.build_meanwhile()  # of the first call of all nothing is looked up
    with (
        emulated() as launches,
        mock.patch.object(special, "LARGE", 1),
        mock.patch.object(lookup_library, "_suspended", False),
        mock.patch.object(autocast, "_is_eligible", lambda tensor, _: tensor.is_floating_point()),
    ):
        numbers = tuple(
            flatten(
                checks.attribute_value(name, each, how.get(each.name, each.default))
                for each in operation.attributes
            )
        )
        found = call(numbers, (x, weight, None))
        *_, ((_, names), kernels) = operation.unrounded_cuda.items()
        wanted = function(x.half(), weight.half(), **how)
    assert names == ("x", "weight") and kernels is not None
    assert found.dtype is torch.float16 and found.stride() == wanted.stride()
    assert found.equal(wanted)
    assert launches.reports


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_cuda_compiler_accepts_them(dtype: torch.dtype, architecture: str) -> None:
    for stem, name, shape, how in (
        ("upsample_nearest", "upsample_nearest", (2, 4, 16, 16), {}),
        ("upsample_bilinear", "upsample_bilinear", (2, 4, 16, 16), {}),
        ("depth_to_space", "depth_to_space", (2, 16, 16, 16), {"r": 4}),
    ):
        op, operation = spec_named(stem).at((name,))
        values = [
            checks.attribute_value(name, each, how.get(each.name, each.default))
            for each in operation.attributes
        ]
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).contiguous(memory_format=layout)
            checked = evaluation.prepare(operation, (x.to(dtype),), values)
            rounding = replaced(checked, tensors=(x,), unrounded=(op.inputs[0].name,))
            operands = evaluation.operands_of(rounding, evaluation.empty_outputs(rounding))
            with (
                mock.patch.object(special, "LARGE", 1),
                mock.patch.object(cuda, "capability", return_value=(9, 0)),
            ):
                launched = cuda_call.launches(rounding, operands, {}, None)
            found = nvrtc.compile_cuda("".join(launched.source), architecture)
            assert found.kernels and not any(each.spills for each in found.kernels)


def test_what_is_cast() -> None:
    """Sums in loops, and products of matrices."""
    text = "op f(x[N,M]) -> y[N]\n  y[n] = sum(m) x[n,m]\n"
    text += "op g(a[M,K], b[K,N]) -> c[M,N]\n  c[m,n] = sum(k) a[m,k] * b[k,n]\n"
    text += "op h(x[N,M]) -> y[N,M]\n  y[n,m] = 2*x[n,m]\n"
    made = [
        bool(unrounded_cuda(text, "<spec>", (name,), {}, 0, (inputs,)))
        for name, inputs in (("f", "x"), ("g", "a"), ("h", "x"))
    ]
    assert made == [False, False, True]
