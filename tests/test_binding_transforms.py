"""Ops under autograd, forward mode and torch.func, beside PyTorch's own ops."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import binding_cases as cases
import opgen
from binding_cases import OPS, Op, real
from opgen.testing.transforms import TRANSFORMS, grad, jvp, loss

close = torch.testing.assert_close
every_op = pytest.mark.parametrize("op", OPS, ids=repr)
func: Any = torch.func
ad: Any = forward_ad


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Torch warns about what it calls itself in forward mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---------------------------------------------------------------------------- harnesses of PyTorch
@pytest.mark.slow
@every_op
def test_opcheck(op: Op) -> None:
    overload, call = op.registered()
    torch.library.opcheck(overload, call)  # type: ignore[arg-type]
    floating = [
        each.clone().requires_grad_()
        if isinstance(each, Tensor) and each.is_floating_point()
        else each
        for each in call
    ]
    torch.library.opcheck(overload, tuple(floating))  # type: ignore[arg-type]


@pytest.mark.slow
@every_op
def test_gradcheck_in_both_modes(op: Op) -> None:
    assert gradcheck(
        op.ours,
        op.leaves,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@pytest.mark.slow
@every_op
def test_second_derivatives_in_both_modes(op: Op) -> None:
    assert gradgradcheck(op.ours, op.leaves, check_fwd_over_rev=True, check_rev_over_rev=True)


def test_gradcheck_notices_a_wrong_derivative() -> None:
    module = opgen.compile(
        "op double(x: float[N]) -> y[N]\n  gradient x by triple\n  y[n] = 2*x[n]\n"
        "op triple(grad_y: float[N]) -> g[N]\n  g[n] = 3*grad_y[n]\n"
    )
    leaf = real(3).requires_grad_()
    for forward in (False, True):
        with pytest.raises(RuntimeError, match=r"Jacobian .*mismatch"):
            gradcheck(
                module.double, (leaf,), check_forward_ad=forward, check_backward_ad=not forward
            )


# ---------------------------------------------------------------------------- torch.func
LONG = ("hessian", "jacfwd of jacfwd", "jacrev of jacrev")
"""They take half of the time of all; those beside them go the same ways."""


@pytest.mark.sampled(32)
@every_op
@pytest.mark.parametrize(
    "transform",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in TRANSFORMS],
)
def test_transforms(op: Op, transform: str) -> None:
    apply = TRANSFORMS[transform]
    close(apply(op.ours)(*op.tensors), apply(op.reference)(*op.tensors))


def _stacked(tensors: tuple[Tensor, ...], dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(torch.stack([x, 2 * x, x - 1], min(dim, x.dim())) for x in tensors)


MAPPED: dict[str, Callable[[Callable[..., Tensor], tuple[Tensor, ...]], Any]] = {
    "all": lambda f, t: torch.vmap(f)(*_stacked(t)),
    "last dim": lambda f, t: torch.vmap(f, in_dims=-1, out_dims=1)(*_stacked(t, 9)),
    "nested": lambda f, t: torch.vmap(torch.vmap(f), in_dims=1)(*_stacked(_stacked(t))),
    "first only": lambda f, t: torch.vmap(f, in_dims=(0, *[None] * (len(t) - 1)))(
        _stacked(t)[0], *t[1:]
    ),
    "all but first": lambda f, t: torch.vmap(f, in_dims=(None, *[0] * (len(t) - 1)))(
        t[0], *_stacked(t[1:])
    ),
    "grad of each": lambda f, t: torch.vmap(grad(loss(f)))(*_stacked(t)),
    "tangent of each": lambda f, t: torch.vmap(jvp(f))(*_stacked(t)),
    "expanded": lambda f, t: torch.vmap(f)(*(x.expand(3, *x.shape) for x in t)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("op", "how"),
    [(op, how) for op in OPS for how in MAPPED if how != "all but first" or len(op.tensors) > 1],
    ids=repr,
)
def test_vmap(op: Op, how: str) -> None:
    close(MAPPED[how](op.ours, op.tensors), MAPPED[how](op.reference, op.tensors))


@every_op
def test_vmap_over_nothing(op: Op) -> None:
    got = torch.vmap(op.ours)(*(x.new_empty(0, *x.shape) for x in op.tensors))
    assert got.shape == (0, *op.ours(*op.tensors).shape)


def test_vmap_over_integers_and_several_outputs() -> None:
    indices = torch.stack([cases.INDICES, cases.INDICES.flip(0)])
    weight = real(4, 2)
    embedding = cases.spec("embedding").embedding
    close(torch.vmap(embedding, (0, None))(indices, weight), weight[indices])
    x = real(3, 1, 2, 4, 4)
    pool = cases.spec("pool").max_pool2d

    def both(x: Tensor) -> Any:
        return torch.nn.functional.max_pool2d(x, 2, 2, return_indices=True)

    close(torch.vmap(lambda x: pool(x, kernel_size=2, stride=2))(x), torch.vmap(both)(x))


# ---------------------------------------------------------------------------- other forms
@every_op
def test_batches_of_cotangents(op: Op) -> None:
    """`is_grads_batched` is a vmap of its own, of which torch.func does not tell."""
    # No other test calls these ops with float32, so that no call is known beforehand.
    ours, theirs = ([x.detach().float().requires_grad_() for x in op.leaves] for _ in range(2))
    batch = real(3, *op.reference(*theirs).shape).float()
    for _ in range(2):
        found = torch.autograd.grad(op.ours(*ours), ours, batch, is_grads_batched=True)
        for at, cotangent in enumerate(batch):
            wanted = torch.autograd.grad(op.reference(*theirs), theirs, cotangent)
            close(tuple(each[at] for each in found), wanted)


def test_batches_of_cotangents_that_the_library_takes() -> None:
    conv2d = cases.spec("conv").conv2d
    for autocast in (False, True):
        x, w = real(2, 64, 5, 6).float(), real(64, 64, 3, 3).float() / 24
        leaves = x.requires_grad_(), w.requires_grad_()
        batch = real(2, 2, 64, 5, 6).float()
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                results = conv2d(*leaves, padding=1), F.conv2d(*leaves, padding=1)
            pair = [
                torch.autograd.grad(
                    *(each, leaves, batch.to(each.dtype)), is_grads_batched=True, retain_graph=True
                )
                for each in results
            ]
            bound = {"rtol": 2e-2, "atol": 2e-2} if autocast else {"rtol": 1e-4, "atol": 1e-4}
            close(*pair, **bound)
            torch.autograd.grad(results[0], leaves, batch[0].to(results[0].dtype))


@every_op
@pytest.mark.sampled(4)
def test_vectorized_derivatives(op: Op) -> None:
    """Those of `torch.autograd.functional`, which go the same way."""
    leaves = tuple(x.detach().float() for x in op.leaves)
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    for function in (op.ours, op.reference):
        assert function(*leaves).dtype == torch.float32
    found, wanted = (jacobian(each, leaves, vectorize=True) for each in (op.ours, op.reference))
    close(found, wanted)
    found, wanted = (
        hessian(lambda *x, f=each: (f(*x) ** 3).sum(), leaves, vectorize=True)
        for each in (op.ours, op.reference)
    )
    close(found, wanted, rtol=1e-3, atol=1e-3)


@every_op
def test_dual_numbers(op: Op) -> None:
    def tangent(function: Callable[..., Tensor]) -> Any:
        with ad.dual_level():
            duals = [ad.make_dual(x, x.cos()) for x in op.tensors]
            return ad.unpack_dual(function(*duals))

    got, wanted = tangent(op.ours), tangent(op.reference)
    close(got.primal, wanted.primal)
    close(got.tangent, wanted.tangent)


@every_op
def test_backward_through_a_transform(op: Op) -> None:
    def gradients(function: Callable[..., Tensor]) -> Any:
        leaves = op.leaves
        inner = grad(loss(function))(*leaves)
        return torch.autograd.grad(sum(each.pow(2).sum() for each in inner), leaves)

    close(gradients(op.ours), gradients(op.reference))


@every_op
def test_only_some_inputs_want_a_gradient(op: Op) -> None:
    for chosen in range(len(op.tensors)):
        results = []
        for function in (op.ours, op.reference):
            given = [x.clone().requires_grad_(at == chosen) for at, x in enumerate(op.tensors)]
            results.append(torch.autograd.grad(loss(function)(*given), given[chosen]))
        close(*results)


@pytest.mark.slow
def test_third_order() -> None:
    op = cases.op("softmax")

    def third(function: Callable[..., Tensor]) -> Tensor:
        value = loss(function)
        for _ in range(2):
            inner = func.grad(value)
            value = lambda x, inner=inner: inner(x).sin().sum()  # noqa: E731
        result: Tensor = func.grad(value)(op.tensors[0])
        return result

    close(third(op.ours), third(op.reference))


def test_a_gradient_by_hand_serves_both_modes() -> None:
    module = opgen.compile(
        "op step(x: float[N]) -> y[N]\n"
        "  gradient x by straight_through\n"
        "  y[n] = select(x[n] < 0, -1, 1)\n"
        "op straight_through(grad_y: float[N]) -> g[N]\n"
        "  g[n] = grad_y[n]\n"
    )
    x, direction = real(4), real(4, seed=1)
    close(func.jvp(module.step, (x,), (direction,))[1], direction)
    close(func.grad(lambda x: (module.step(x) * direction).sum())(x), direction)


def test_a_gradient_by_hand_that_is_not_linear_is_refused_in_forward_mode() -> None:
    module = opgen.compile(
        "op same(x: float[N]) -> y[N]\n  gradient x by clipped\n  y[n] = x[n]\n"
        "op clipped(grad_y: float[N]) -> g[N]\n  g[n] = max(min(grad_y[n], 1), -1)\n"
    )
    x = real(4)
    with pytest.raises(RuntimeError, match="clipped: forward-mode differentiation needs"):
        func.jvp(module.same, (x,), (x,))


def test_inputs_that_no_derivative_reads_are_not_kept() -> None:
    kept: list[Tensor] = []
    spec = cases.spec("shift_sum")
    x = real(1, 3, 2, 4).requires_grad_()
    spec.shift_sum(x).sum().backward()  # its gradient is known from here on
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        spec.shift_sum(x)
        assert not kept
        spec.shift_sum_masked(x, real(1, 1, 2, 4))
        assert kept


def test_a_changed_input_is_noticed() -> None:
    op = cases.op("softmax")
    x = op.tensors[0].clone().requires_grad_()
    y = x * 1
    result = op.ours(y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_result_may_be_changed_in_place() -> None:
    x = real(1, 4, 2, 2).requires_grad_()
    y = cases.op("depth_to_space").ours(x)
    y.mul_(2)
    y.sum().backward()
    assert x.grad is not None
    close(x.grad, torch.full_like(x, 2))
