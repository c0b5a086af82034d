"""What is timed of a contender: its forward pass, or its gradients alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from opgen.bench.row import Contender, Direction, Workload, autocast

OPGEN = "opgen"
"""The name of opgen among the contenders."""


def result_like(workload: Workload) -> Tensor:
    """What opgen computes: a gradient reads a tensor like it."""
    with torch.no_grad():
        return _run(Contender(OPGEN, workload.opgen), workload, workload.inputs)


def calls_of(
    workload: Workload, contenders: Sequence[Contender], direction: Direction
) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """What is timed, by name; the results are what contenders must agree on.

    Backward, the forward pass has run outside the timing, and what it kept is used again. It has
    run twice: what an op keeps in its first call is not what it keeps in every other one.
    """
    if direction is Direction.FORWARD:
        return {
            c.name: functools.partial(_forward, c, workload, workload.inputs) for c in contenders
        }
    cotangent: Tensor | None = None
    calls: dict[str, Callable[[], tuple[Tensor, ...]]] = {}
    for contender in contenders:
        if contender.gradients is not None:
            assert cotangent is not None, "opgen is the first, and has gradients"
            calls[contender.name] = functools.partial(_written, contender, workload, cotangent)
            continue
        leaves = list(workload.inputs)
        for at in workload.differentiable:
            leaves[at] = leaves[at].detach().requires_grad_()
        with torch.enable_grad():
            _run(contender, workload, leaves)
            y = _run(contender, workload, leaves)
        if cotangent is None:
            cotangent = drawn_like(y.detach())
        wanted = [leaves[at] for at in workload.differentiable]
        calls[contender.name] = functools.partial(
            _backward, contender, y, wanted, cotangent.to(y.dtype)
        )
    return calls


@contextlib.contextmanager
def surroundings(workload: Workload, direction: Direction) -> Iterator[None]:
    """What all calls in a direction run in: entered once around many, they are what is timed.

    To enter them for each takes as long as a small op, and `copy_` beside it does not need them.
    No contender gains by what autocast keeps: that is casts of parameters, which no input is.
    """
    if direction is Direction.BACKWARD:
        yield
        return
    with torch.no_grad(), autocast(workload.device, workload.autocast):
        yield


def _run(contender: Contender, workload: Workload, inputs: Sequence[Tensor]) -> Tensor:
    with contender.settings(), autocast(workload.device, workload.autocast):
        return contender.function(*inputs)


def _forward(
    contender: Contender, workload: Workload, inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    casts = workload.autocast is not None
    is_within = not casts or torch.is_autocast_enabled(workload.device.type)
    if torch.is_grad_enabled() or not is_within:
        with surroundings(workload, Direction.FORWARD):
            return _forward(contender, workload, inputs)
    with contender.settings():
        return (contender.function(*inputs),)


def _backward(
    contender: Contender, y: Tensor, wanted: Sequence[Tensor], cotangent: Tensor
) -> tuple[Tensor, ...]:
    with contender.settings():
        return torch.autograd.grad(y, wanted, cotangent, retain_graph=True)


def _written(contender: Contender, workload: Workload, cotangent: Tensor) -> tuple[Tensor, ...]:
    assert contender.gradients is not None
    with torch.no_grad(), contender.settings():
        found = contender.gradients(cotangent, *workload.inputs)
        # As autograd gives them: of the type of the input, whatever autocast made of it.
        wanted = (workload.inputs[at].dtype for at in workload.differentiable)
        return tuple(map(torch.Tensor.to, found, wanted))


def drawn_like(y: Tensor) -> Tensor:
    """Numbers in the layout of a tensor, the same ones whenever they are drawn."""
    return torch.empty_like(y).normal_(generator=torch.Generator(y.device).manual_seed(1))
