"""Eager calls, which all other features are compared with: against plain loops and interpreter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opgen.testing.calls import Call
from opgen.testing.cases import Case, cases
from opgen.testing.properties import PROPERTIES, Inconclusive, offers_forward_mode
from opgen.testing.support.probe import NotTried, Probe

_CALLS: Final = 6


def forward(probe: Probe) -> None:
    """Values, in every element type."""
    dtypes = probe.subject.dtypes
    calls = [
        Call(case, dtype, seed=at)
        for at, case in enumerate(_spread(probe))
        for dtype in dtypes[at % len(dtypes) :][:1]
    ]
    _hold(probe, "forward", (probe.call, *calls, *(Call(probe.call.case, each) for each in dtypes)))


def backward(probe: Probe) -> None:
    """Gradients of all inputs."""
    _hold(probe, "gradients", _calls(probe))


def double_backward(probe: Probe) -> None:
    """Gradients of gradients."""
    _hold(probe, "second", _calls(probe))


def forward_mode(probe: Probe) -> None:
    """Tangents of dual numbers."""
    needs_derivative(probe)
    if not offers_forward_mode(probe.subject, probe.call):
        raise NotTried("a gradient that is written in the spec is not seen to be linear")
    if probe.subject.stated_gradients:
        raise NotTried("forward mode follows a gradient that is written in the spec")
    _hold(probe, "tangents", _calls(probe))


def strided(probe: Probe) -> None:
    """Transposed, sliced and expanded inputs."""
    _in_layouts(probe, ("transposed", "sliced", "expanded"))


def channels_last(probe: Probe) -> None:
    """Inputs and gradients in PyTorch's channels-last memory format."""
    if not any(tensor.dim() == 4 for tensor in probe.inputs.values()):
        raise NotTried("no input has four dims")
    _in_layouts(probe, ("channels_last",))


def _in_layouts(probe: Probe, layouts: Iterable[str]) -> None:
    count = len(probe.subject.op.inputs) + len(probe.subject.op.outputs)
    calls = [
        Call(probe.call.case, layouts=(layout,) * count, seed=1, positive=True)
        for layout in layouts
    ]
    _hold(probe, "forward", calls)
    if probe.has_derivative:
        _hold(probe, "gradients", calls)


def needs_derivative(probe: Probe) -> None:
    """Raise NotTried for an op without one."""
    if not probe.has_derivative:
        raise NotTried("the op has no derivative")


def _calls(probe: Probe) -> tuple[Call, ...]:
    needs_derivative(probe)
    return (probe.call, *(Call(case, seed=at) for at, case in enumerate(_spread(probe))))


def _spread(probe: Probe) -> list[Case]:
    """Cases of all kinds, small ones, large ones and those with an empty tensor."""
    found = cases(probe.subject.op)
    step = max(1, (len(found) - 1) // (_CALLS - 1))
    return [*found[::step]][:_CALLS]


def _hold(probe: Probe, name: str, calls: Iterable[Call]) -> None:
    """Raise what a property raises for one of the calls, NotTried if it said nothing of any."""
    said = 0
    for call in calls:
        try:
            PROPERTIES[name](probe.subject, call)
        except Inconclusive:
            continue
        said += 1
    if not said:
        raise NotTried("no call was found that shows it")
