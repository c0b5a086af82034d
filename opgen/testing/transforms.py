"""Transforms of `torch.func` as functions of a function, to be applied to ops and to others.

Each takes a function of tensors that gives one tensor, and gives a function of the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

Function = Callable[..., Tensor]
Transform = Callable[[Function], Callable[..., Any]]

_func: Any = torch.func


def loss(function: Function) -> Function:
    """A number that is nonlinear in the result of a function."""
    return lambda *tensors: function(*tensors).pow(3).sum()


def directions(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Along which tangents are taken."""
    return tuple(tensor.cos() for tensor in tensors)


def of_all(transform: Callable[..., Any]) -> Transform:
    """The transform with respect to every tensor."""

    def apply(function: Function) -> Callable[..., Any]:
        def call(*tensors: Tensor) -> Any:
            return transform(function, argnums=tuple(range(len(tensors))))(*tensors)

        return call

    return apply


def vjp(function: Function) -> Callable[..., Any]:
    """The value, and the gradients for a cotangent that depends on it."""

    def call(*tensors: Tensor) -> Any:
        value, pull = _func.vjp(function, *tensors)
        return value, pull(value.sin())

    return call


def jvp(function: Function) -> Callable[..., Any]:
    """The value, and its tangent along `directions`."""
    return lambda *tensors: _func.jvp(function, tensors, directions(tensors))


def _jvp_of_one(function: Function) -> Callable[..., Any]:
    return lambda x, *rest: _func.jvp(lambda z: function(z, *rest), (x,), (x.cos(),))


def _energy(function: Function) -> Callable[..., Any]:
    """The gradient of a loss made of a value and of its gradient."""

    def energy(first: Tensor, *rest: Tensor) -> Tensor:
        value, pull = _func.vjp(lambda x: function(x, *rest).pow(3), first)
        (force,) = pull(torch.ones_like(value))
        result: Tensor = value.sin().sum() + force.pow(2).sum()
        return result

    return grad(energy)


grad: Final = of_all(_func.grad)
jacrev: Final = of_all(_func.jacrev)
jacfwd: Final = of_all(_func.jacfwd)
hessian: Final = of_all(_func.hessian)

TRANSFORMS: Final[dict[str, Transform]] = {
    "grad": lambda f: grad(loss(f)),
    "vjp": vjp,
    "jvp": jvp,
    "jvp of one": _jvp_of_one,
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(loss(f)),
    "jacrev of jacrev": lambda f: jacrev(jacrev(loss(f))),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(loss(f))),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(loss(f))),
    "grad over vjp": _energy,
    "jvp over grad": lambda f: jvp(grad(loss(f))),
    "grad over jvp": lambda f: grad(lambda *t: jvp(f)(*t)[1].pow(2).sum()),
    "linearize": lambda f: lambda *t: _func.linearize(f, *t)[1](*directions(t)),
    "functionalize": _func.functionalize,
}
"""Every transform by name."""
