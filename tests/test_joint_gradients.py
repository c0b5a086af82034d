"""Gradients of several inputs that one op computes, where they share temporaries."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import profile

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.ir import family
from opgen.passes.derive import all_inputs, derive
from opgen.runtime import description


def real(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64).add(0.5).requires_grad_()


CASES: dict[str, tuple[str, Callable[..., Any], list[Tensor]]] = {
    "layer_norm": ("norm", lambda op: op.layer_norm, [real(3, 5, 37), real(37), real(37)]),
    "group_norm": (
        "norm",
        lambda op: lambda *tensors: op.group_norm(*tensors, num_groups=2),
        [real(2, 6, 5, 7), real(6), real(6)],
    ),
    "local_attention": (
        "local_attention",
        lambda op: lambda *tensors: op.local_attention(*tensors, radius=2),
        [real(2, 3, 19, 4), real(2, 3, 19, 4), real(2, 3, 19, 5)],
    ),
    "shift_sum_pinv": (
        "shift_sum",
        lambda op: lambda y, mask: op.shift_sum_pinv(y, mask, C=3, step=2),
        [real(2, 1, 5, 11), real(1, 1, 5, 7)],
    ),
}
each = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "local_attention" else name
        for name in CASES
    ],
)


@pytest.fixture(scope="module", params=["written", "loaded"])
def modules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Modules with their gradients written down, and modules that derive them when needed."""

    def written(spec: str) -> ModuleType:
        folder = tmp_path_factory.mktemp(spec)
        path = Path(opgen.build(SPECS / f"{spec}.op", folder))
        found = importlib.util.spec_from_file_location(f"joint_{spec}", path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[module.__name__] = module
        found.loader.exec_module(module)
        return module

    make = written if request.param == "written" else lambda spec: opgen.load(SPECS / f"{spec}.op")
    made: dict[str, ModuleType] = {}
    return lambda spec: made.setdefault(spec, made.get(spec) or make(spec))


def ran(function: Callable[[], Any]) -> set[str]:
    """The derived ops that a call runs, the first call aside."""
    function()
    with profile() as seen:
        function()
    names = {event.key for event in seen.key_averages() if "opgen" in event.key}
    return {name.split("::")[1] for name in names if "_grad_" in name}


@pytest.mark.sampled(12)
@each
def test_final_gradients_are_computed_together(name: str, modules: Any) -> None:
    spec, op, tensors = CASES[name]
    call = op(modules(spec))
    result = call(*tensors)
    cotangent = torch.rand_like(result)

    def together() -> Any:
        return torch.autograd.grad(result, tensors, cotangent, retain_graph=True)

    def again() -> Any:
        return torch.autograd.grad(result, tensors, cotangent, create_graph=True)

    torch.testing.assert_close(together(), tuple(each.detach() for each in again()))
    assert len(ran(together)) == 1
    assert len(ran(again)) == len(tensors)


@pytest.mark.slow
@each
def test_they_are_slopes(name: str, modules: Any) -> None:
    spec, op, tensors = CASES[name]
    assert torch.autograd.gradcheck(op(modules(spec)), tensors, fast_mode=True)


def test_some_inputs_alone_have_their_own_ops(modules: Any) -> None:
    layer_norm = modules("norm").layer_norm
    x, weight, bias = (tensor.detach() for tensor in CASES["layer_norm"][2])
    for some in ((x, weight), (weight, bias), (x,)):
        for tensor in (x, weight, bias):
            tensor.requires_grad_(any(tensor is each for each in some))
        result = layer_norm(x, weight, bias)
        found = ran(
            lambda result=result, some=some: torch.autograd.grad(
                result.sum(), some, retain_graph=True
            )
        )
        assert len(found) == len(some)
    result = layer_norm(x.requires_grad_(), weight.requires_grad_())  # a bias that is absent
    found = ran(lambda: torch.autograd.grad(result.sum(), (x, weight), retain_graph=True))
    assert len(found) == 2


def test_only_where_something_is_shared() -> None:
    with_joint = {
        member.path[0]
        for spec in sorted(SPECS.glob("*.op"))
        for ops in [check_source(read_source(spec))]
        for member in derive(ops, 1)
        if any(member.path == (op.name, all_inputs(op)) and "," in member.path[1] for op in ops)
    }
    assert with_joint >= {"layer_norm", "group_norm", "local_attention", "shift_sum_pinv"}
    assert with_joint.isdisjoint({"conv2d", "shift_sum_masked", "unfold_conv"})


def test_a_compiled_model_has_the_same_gradients() -> None:
    spec, op, tensors = CASES["layer_norm"]
    call = op(opgen.load(SPECS / f"{spec}.op"))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(call(*tensors).sin().sum(), tensors)
    found = torch.autograd.grad(compiled(*tensors).sin().sum(), tensors)
    torch.testing.assert_close(found, wanted)


def test_the_runtime_reads_what_is_written() -> None:
    assert description.JOINT == family.JOINT
