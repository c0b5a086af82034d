"""Compilers, exported programs and tracers, compared with eager results."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from opgen.testing.support.probe import NotTried, Probe, agree, others

_torch: Any = torch
_func: Any = torch.func


def compiled(backend: str, *, dynamic: bool) -> Callable[[Probe], None]:
    """A feature: the op between others in one graph, forward and backward.

    With `dynamic` also on tensors of other sizes, where there are any with these attributes.
    """

    def attempt(probe: Probe) -> None:
        probes = [probe, *others(probe)[:2]] if dynamic else [probe]
        with _fresh():
            function = _torch.compile(
                between(probe), fullgraph=True, backend=backend, dynamic=dynamic
            )
            for each in probes:
                _same_numbers(each, function)

    return attempt


def between(probe: Probe) -> Callable[..., tuple[Tensor, ...]]:
    """The op between ops of PyTorch, which a compiler may fuse; a function of all inputs."""
    program = probe.program

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(each + 1 for each in program(*(x * 1 for x in tensors)))

    return function


def _given(probe: Probe) -> tuple[Tensor, ...]:
    """All inputs, new ones that ask for a gradient where there is one."""
    if not probe.has_derivative:
        return tuple(probe.inputs.values())
    return tuple(
        tensor.clone().requires_grad_(at in probe.places)
        for at, tensor in enumerate(probe.inputs.values())
    )


def _same_numbers(probe: Probe, function: Callable[..., tuple[Tensor, ...]]) -> None:
    """Compare outputs, and gradients of a loss made of the floating ones."""
    theirs, ours = _given(probe), _given(probe)
    wanted, found = between(probe)(*theirs), function(*ours)
    agree("the result", [x.detach() for x in found], [x.detach() for x in wanted])
    if probe.has_derivative:
        agree("the gradient", _gradient(probe, found, ours), _gradient(probe, wanted, theirs))


def _gradient(
    probe: Probe, outputs: tuple[Tensor, ...], given: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    losses = [each.pow(3).sum() for each in outputs if each.is_floating_point()]
    leaves = [given[at] for at in probe.places]
    return torch.autograd.grad(
        sum(losses[1:], losses[0]), leaves, allow_unused=True, materialize_grads=True
    )


@contextmanager
def _fresh() -> Iterator[None]:
    """No graph of an earlier attempt, and none is left."""
    _torch._dynamo.reset()
    try:
        yield
    finally:
        _torch._dynamo.reset()


# ---------------------------------------------------------------------------- exported programs
class _Net(nn.Module):
    """The op between ops of PyTorch, as a model to export."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.function = between(probe)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.function(*tensors)


def export(probe: Probe) -> None:
    """`torch.export`, saved to a file and loaded again."""
    given = tuple(probe.inputs.values())
    program = _torch.export.export(_Net(probe), given)
    file = io.BytesIO()
    _torch.export.save(program, file)
    file.seek(0)
    wanted = between(probe)(*given)
    agree("the exported program", program.module()(*given), wanted)
    agree("the loaded program", _torch.export.load(file).module()(*given), wanted)
    _holds_the_op(program.graph, probe)


def export_dynamic(probe: Probe) -> None:
    """`torch.export` with sizes left open, run on tensors of other sizes."""
    found = others(probe)[:3]
    if not found:
        raise NotTried("no other sizes were found with these attributes")
    given = tuple(probe.inputs.values())
    dims = tuple(dict.fromkeys(range(x.dim()), _torch.export.Dim.AUTO) for x in given)
    program = _torch.export.export(_Net(probe), given, dynamic_shapes=(dims,))
    _holds_the_op(program.graph, probe)
    for each in (probe, *found):
        tensors = tuple(each.inputs.values())
        agree("the exported program", program.module()(*tensors), between(each)(*tensors))


def package(probe: Probe) -> None:
    """A package compiled ahead of time, run in this process."""
    with tempfile.TemporaryDirectory() as directory:
        loaded = _torch._inductor.aoti_load_package(packaged(probe, Path(directory)))
        given = tuple(probe.inputs.values())
        agree("the package", tuple(loaded(*given)), between(probe)(*given))


def packaged(probe: Probe, directory: Path) -> str:
    """Where the package of a net with the op is, which is compiled ahead of time."""
    program = _torch.export.export(_Net(probe), tuple(probe.inputs.values()))
    path = str(directory / "net.pt2")
    return str(_torch._inductor.aoti_compile_and_package(program, package_path=path))


# ---------------------------------------------------------------------------- tracers
def functionalize(probe: Probe) -> None:
    """`torch.func.functionalize`."""
    found = _func.functionalize(probe.function)(*probe.tensors)
    agree("the functionalized op", found, probe.value)


def traced(probe: Probe) -> None:
    """`make_fx` of values, or of gradients where there are any."""
    given = tuple(probe.inputs.values())

    def loss(*tensors: Tensor) -> Tensor:
        outputs = [x for x in probe.program(*tensors) if x.is_floating_point()]
        return torch.cat([x.reshape(-1) for x in outputs]).pow(3).sum()

    function = _func.grad(loss, argnums=probe.places) if probe.has_derivative else probe.program
    wanted = probe.gradients if probe.has_derivative else probe.values
    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(function, tracing_mode=mode)(*given)
        agree(f"the graph of {mode} tensors", graph(*given), wanted)
        _holds_the_op(graph.graph, probe)


def _holds_the_op(graph: torch.fx.Graph, probe: Probe) -> None:
    wanted = probe.operation.overload
    if not any(node.target is wanted for node in graph.nodes):
        raise AssertionError(f"the graph does not hold {wanted}")
