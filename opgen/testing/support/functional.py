"""`torch.func`, `torch.vmap` and the older `torch.autograd.functional`.

They are compared with eager backward passes, one for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opgen.testing import transforms
from opgen.testing.support.eager import needs_derivative
from opgen.testing.support.probe import NotTried, Probe, agree


def grad(probe: Probe) -> None:
    """Gradients of a loss."""
    needs_derivative(probe)
    agree("grad", transforms.grad(probe.loss)(*probe.tensors), probe.gradients)


def vjp(probe: Probe) -> None:
    """The value, and the product of a cotangent and the derivative."""
    needs_derivative(probe)
    value, found = transforms.vjp(probe.function)(*probe.tensors)
    agree("the value under vjp", value, probe.value)
    agree("vjp", _vector(found), probe.value.sin().reshape(-1) @ probe.jacobian)


def jvp(probe: Probe) -> None:
    """The value, and the product of the derivative and a tangent."""
    needs_derivative(probe)
    value, found = transforms.jvp(probe.function)(*probe.tensors)
    agree("the value under jvp", value, probe.value)
    agree("jvp", found.reshape(-1), probe.jacobian @ _direction(probe))


def jacrev(probe: Probe) -> None:
    """All derivatives in reverse mode."""
    _jacobian(probe, "jacrev", transforms.jacrev)


def jacfwd(probe: Probe) -> None:
    """All derivatives in forward mode."""
    _jacobian(probe, "jacfwd", transforms.jacfwd)


def _jacobian(probe: Probe, name: str, transform: transforms.Transform) -> None:
    needs_derivative(probe)
    found = transform(probe.function)(*probe.tensors)
    agree(name, _matrix(found, probe.value.numel()), probe.jacobian)


def hessian(probe: Probe) -> None:
    """All second derivatives of a loss, forward over reverse."""
    _hessian(probe, "hessian", transforms.hessian)


def nested(probe: Probe) -> None:
    """Second derivatives by other nestings: reverse over reverse, and with forward mode inside."""
    jacrev, jacfwd = transforms.jacrev, transforms.jacfwd
    _hessian(probe, "jacrev of jacrev", lambda f: jacrev(jacrev(f)))
    _hessian(probe, "jacrev of jacfwd", lambda f: jacrev(jacfwd(f)))
    _hessian(probe, "jacfwd of jacfwd", lambda f: jacfwd(jacfwd(f)))
    moved = transforms.TRANSFORMS["jvp over grad"](probe.function)(*probe.tensors)[1]
    agree("jvp over grad", _vector(moved), probe.hessian @ _direction(probe))


def _hessian(probe: Probe, name: str, transform: transforms.Transform) -> None:
    needs_derivative(probe)
    found = transform(probe.loss)(*probe.tensors)
    rows = [_matrix(row, tensor.numel()) for row, tensor in zip(found, probe.tensors, strict=True)]
    agree(name, torch.cat(rows), probe.hessian)


def vectorized(probe: Probe) -> None:
    """Derivatives by `torch.autograd.functional`, whose vmap is not the one of `torch.func`."""
    needs_derivative(probe)
    functional: Any = torch.autograd.functional
    for strategy in ("reverse-mode", "forward-mode"):
        found = functional.jacobian(
            probe.function, probe.tensors, vectorize=True, strategy=strategy
        )
        agree(f"jacobian in {strategy}", _matrix(found, probe.value.numel()), probe.jacobian)
    _hessian(probe, "hessian", lambda f: lambda *x: functional.hessian(f, tuple(x), vectorize=True))


def _vector(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _matrix(tensors: Sequence[Tensor], rows: int) -> Tensor:
    return torch.cat([tensor.reshape(rows, -1) for tensor in tensors], 1)


def _direction(probe: Probe) -> Tensor:
    return _vector(transforms.directions(probe.tensors))


# ---------------------------------------------------------------------------- vmap
def vmap(probe: Probe) -> None:
    """Mapped over all variables, over each alone, and along the last dim."""
    _mapped(probe, probe.function)


def vmap_of_grad(probe: Probe) -> None:
    """Gradients for each sample."""
    needs_derivative(probe)
    _mapped(probe, lambda *t: _vector(transforms.grad(probe.loss)(*t)), of_loss=True)


def _mapped(probe: Probe, function: Callable[..., Tensor], *, of_loss: bool = False) -> None:
    if not probe.tensors:
        raise NotTried("the op has no tensor to map over")
    several = [torch.stack([x, x.flip(-1) if x.dim() else x]) for x in probe.tensors]

    def eager(*tensors: Tensor) -> Tensor:
        if not of_loss:
            return function(*tensors)
        leaves = [x.clone().requires_grad_() for x in tensors]
        return _vector(torch.autograd.grad(probe.loss(*leaves), leaves))

    chosen: list[tuple[int, ...]] = [tuple(range(len(several)))]
    chosen += [(at,) for at in range(len(several)) if len(several) > 1]
    for mapped in chosen:
        first = [0 if at in mapped else None for at in range(len(several))]
        given = [each if at in mapped else each[0] for at, each in enumerate(several)]
        slices = [
            [each[k] if at in mapped else each for at, each in enumerate(given)] for k in range(2)
        ]
        wanted = torch.stack([eager(*each) for each in slices])
        what = "vmap over " + ", ".join(probe.names[at] for at in mapped)
        agree(what, torch.vmap(function, tuple(first))(*given), wanted)
        last = [x.movedim(0, -1) if at in mapped else x for at, x in enumerate(given)]
        dims = tuple(-1 if at in mapped else None for at in range(len(several)))
        agree(f"{what} along the last dim", torch.vmap(function, dims)(*last), wanted)
