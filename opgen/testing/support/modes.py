"""Modes, subclasses, copies and threads, compared with eager results."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint as checkpointed

from opgen.testing.calls import Call
from opgen.testing.support.eager import needs_derivative
from opgen.testing.support.probe import NotTried, Probe, agree


# ---------------------------------------------------------------------------- autograd around it
def checkpoint(probe: Probe) -> None:
    """Activation checkpointing of both kinds."""
    needs_derivative(probe)
    for reentrant in (False, True):
        leaves = probe.leaves
        value: Any = checkpointed(probe.loss, *leaves, use_reentrant=reentrant)
        found = torch.autograd.grad(value, leaves) if not reentrant else _accumulated(value, leaves)
        agree(f"gradients with use_reentrant={reentrant}", found, probe.gradients)


def _accumulated(value: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    value.backward()  # type: ignore[no-untyped-call]
    return tuple(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)


def autocast(probe: Probe) -> None:
    """Mixed precision on the CPU: single precision in, bfloat16 computed."""
    generic = [
        tensor.name
        for tensor in probe.subject.op.inputs
        if tensor.dtype.is_generic and tensor.name in probe.inputs
    ]
    if not generic:
        raise NotTried("the spec declares the types of all inputs")
    inputs = probe.inputs | {name: probe.inputs[name].float() for name in generic}
    cast = probe.inputs | {name: inputs[name].bfloat16() for name in generic}
    wanted = probe.subject.run(probe.call, cast)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = probe.subject.run(probe.call, inputs)
    agree("the result", found, wanted)


def inference_mode(probe: Probe) -> None:
    """Results are inference tensors."""
    with torch.inference_mode():
        found = probe.outputs(*probe.tensors)
    if not all(each.is_inference() for each in found):
        raise AssertionError("the result is no inference tensor")
    agree("the result", found, probe.values)


# ---------------------------------------------------------------------------- other tensors
def meta(probe: Probe) -> None:
    """Tensors without numbers: shapes, strides and types."""
    inputs = {name: tensor.to("meta") for name, tensor in probe.inputs.items()}
    _looks_alike(probe, probe.subject.run(probe.call, inputs))


def fake(probe: Probe) -> None:
    """Fake tensors, forward and backward."""
    values = probe.values
    with FakeTensorMode() as mode:
        inputs = {name: mode.from_tensor(tensor) for name, tensor in probe.inputs.items()}
        found = probe.subject.run(probe.call, inputs)
        _looks_alike(probe, found)
        if not all(isinstance(each, FakeTensor) for each in found):
            raise AssertionError("the result is no fake tensor")
        if not probe.has_derivative:
            return
        for name in probe.names:
            inputs[name].requires_grad_()
        found = probe.subject.run(probe.call, inputs)
        floating = [
            each.sum()
            for each, value in zip(found, values, strict=True)
            if value.is_floating_point()
        ]
        leaves = [inputs[name] for name in probe.names]
        gradients = torch.autograd.grad(floating, leaves, allow_unused=True, materialize_grads=True)
        for name, gradient in zip(probe.names, gradients, strict=True):
            if gradient.shape != probe.inputs[name].shape:
                raise AssertionError(f"the gradient of {name} has shape {tuple(gradient.shape)}")


def _looks_alike(probe: Probe, found: tuple[Tensor, ...]) -> None:
    for tensor, got, wanted in zip(probe.subject.op.outputs, found, probe.values, strict=True):
        for what, left, right in (
            ("shape", tuple(got.shape), tuple(wanted.shape)),
            ("strides", got.stride(), wanted.stride()),
            ("type", got.dtype, wanted.dtype),
        ):
            if left != right:
                raise AssertionError(f"{tensor.name} has {what} {left}, expected {right}")


class _Wrapped(Tensor):
    """A tensor around another one, which it hands to every op."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> _Wrapped:
        make: Any = Tensor._make_wrapper_subclass
        made: _Wrapped = make(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = tree_map(lambda x: x.held if isinstance(x, _Wrapped) else x, (args, kwargs or {}))
        result = function(*given[0], **given[1])
        return tree_map(lambda x: _Wrapped(x) if isinstance(x, Tensor) else x, result)


def subclass(probe: Probe) -> None:
    """A subclass of Tensor with `__torch_dispatch__`, forward and backward."""
    if not probe.tensors:
        raise NotTried("the op has no tensor")
    values = probe.values
    wrapped = [_Wrapped(x).requires_grad_(probe.has_derivative) for x in probe.tensors]
    found = probe.outputs(*wrapped)
    if not all(isinstance(each, _Wrapped) for each in found):
        raise AssertionError("the result is not of the subclass")
    agree("the result", tuple(_inner(each).detach() for each in found), values)
    if probe.has_derivative:
        gradients = torch.autograd.grad(
            probe.loss(*wrapped), wrapped, allow_unused=True, materialize_grads=True
        )
        agree("the gradient", tuple(map(_inner, gradients)), probe.gradients)


def _inner(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, _Wrapped) else tensor


# ---------------------------------------------------------------------------- harnesses, copies
def opcheck(probe: Probe) -> None:
    """Registration, fake tensors and autograd under tracing, by PyTorch's own harness."""
    variables = probe.names if probe.has_derivative else ()
    tensors = [
        None if tensor is None else tensor.clone().requires_grad_(name in variables)
        for name, tensor in zip(
            (each.name for each in probe.subject.op.inputs), probe.arguments, strict=True
        )
    ]
    overload: Any = probe.operation.overload
    torch.library.opcheck(overload, (*tensors, *probe.numbers))


def copies(probe: Probe) -> None:
    """The module of the op, deepcopied and pickled."""
    layer = probe.layer
    for name, other in (
        ("module", layer),
        ("deep copy", copy.deepcopy(layer)),
        ("pickled module", pickle.loads(pickle.dumps(layer))),
    ):
        result = other(*probe.arguments)
        found = result if isinstance(result, tuple) else (result,)
        agree(f"the {name}", found, probe.values)


def threads(probe: Probe) -> None:
    """Forward and backward passes on four threads at once."""
    wanted = probe.gradients if probe.has_derivative else probe.values
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(10):
                if probe.has_derivative:
                    leaves = probe.leaves
                    found = torch.autograd.grad(
                        probe.loss(*leaves), leaves, allow_unused=True, materialize_grads=True
                    )
                else:
                    found = probe.outputs(*probe.tensors)
                agree("a result", found, wanted)
        except Exception as error:  # raised below, on the thread of the caller
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]


def cuda(probe: Probe) -> None:
    """CUDA tensors, forward and backward, compared with the CPU."""
    if not torch.cuda.is_available():
        raise NotTried("no GPU here")
    call = Call(probe.call.case, seed=1, positive=True, device="cuda")
    there = Probe(probe.subject, call, probe.path)
    agree("the result", tuple(each.cpu() for each in there.values), probe.values)
    if probe.has_derivative:
        agree("the gradient", tuple(each.cpu() for each in there.gradients), probe.gradients)
