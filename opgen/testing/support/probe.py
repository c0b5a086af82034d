"""The call of an op that every feature of PyTorch is tried with, and what it gives in eager mode.

Eager results are what features are compared with. They are compared themselves, with the plain
loops and the interpreter, by the features of `eager`.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

from opgen.ir.binding import AttributeValue
from opgen.runtime import Operation, checks
from opgen.runtime.schema import Number, flatten
from opgen.testing.calls import Call
from opgen.testing.cases import Case, cases, work
from opgen.testing.subject import Subject
from opgen.testing.transforms import Function, loss

_MOST_NUMBERS: Final = 64  # in all tensors: a matrix of derivatives has the square of it
_LOOKED_AT: Final = 40  # calls
_MOST_POINTS: Final = 4_000  # of a call on other sizes


class NotTried(Exception):  # noqa: N818  # no error: the text says why
    """A feature cannot be tried with this op, or on this machine."""


def agree(what: str, got: object, wanted: object) -> None:
    """Raise AssertionError, in one line, unless tensors are alike up to rounding."""

    def said(text: str) -> str:
        return f"{what}: {' '.join(text.split())}"

    torch.testing.assert_close(got, wanted, equal_nan=True, msg=said)


@dataclass(frozen=True)
class Probe:
    """An op and one call of it, on small tensors without zeros and ties.

    `variables` are the inputs that have a gradient; without one, all inputs.
    """

    subject: Subject
    call: Call
    path: Path

    # ------------------------------------------------------------ the call
    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """All tensors of the call by name."""
        return self.call.inputs(self.subject.op)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the variables."""
        found = tuple(each.name for each in self.subject.numeric if each.name in self.inputs)
        return found if self.has_derivative else tuple(self.inputs)

    @cached_property
    def has_derivative(self) -> bool:
        """Whether a floating output depends on a floating input of the call."""
        given = any(each.name in self.inputs for each in self.subject.numeric)
        return given and self.subject.tangent_exists

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The values of the variables."""
        return tuple(self.inputs[name] for name in self.names)

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """New tensors with these values that ask for a gradient."""
        return tuple(tensor.clone().requires_grad_() for tensor in self.tensors)

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes of the call by the names that the function gives them."""
        at = len(self.subject.op.inputs)
        declared = self.subject.op.attributes
        return {
            name: self.call.case.attributes[attribute.name]
            for name, attribute in zip(self._parameters[at:], declared, strict=True)
        }

    @cached_property
    def arguments(self) -> tuple[Tensor | None, ...]:
        """All inputs in declared order, None for one that is left out."""
        return tuple(self.inputs.get(tensor.name) for tensor in self.subject.op.inputs)

    @cached_property
    def _parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.subject.function).parameters)

    # ------------------------------------------------------------ functions of the variables
    @cached_property
    def program(self) -> Callable[..., tuple[Tensor, ...]]:
        """All outputs as a function of all inputs that are there, in declared order."""
        op, attributes = self.subject.function, self.attributes
        declared = self.subject.op.inputs
        own = {each.name: name for each, name in zip(declared, self._parameters, strict=False)}
        names = tuple(own[name] for name in self.inputs)

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            given: dict[str, Any] = dict(zip(names, tensors, strict=True))
            result = op(**given, **attributes)
            return result if isinstance(result, tuple) else (result,)

        return function

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where the variables are among the inputs."""
        return tuple(at for at, name in enumerate(self.inputs) if name in self.names)

    @cached_property
    def outputs(self) -> Callable[..., tuple[Tensor, ...]]:
        """All outputs as a function of the variables."""
        program, places, fixed = self.program, self.places, tuple(self.inputs.values())

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            given = list(fixed)
            for at, tensor in zip(places, tensors, strict=True):
                given[at] = tensor
            return program(*given)

        return function

    @cached_property
    def function(self) -> Function:
        """One output as a function of the variables: all numbers where there are several.

        Only floating outputs where the op has a derivative.
        """
        outputs, derivative = self.outputs, self.has_derivative
        count = sum(1 for each in outputs(*self.tensors) if self._is_part(each))

        def function(*tensors: Tensor) -> Tensor:
            found = outputs(*tensors)
            parts = [x for x in found if x.is_floating_point()] if derivative else [*found]
            if count == 1:
                return parts[0]
            return torch.cat([x.reshape(-1) for x in parts])

        return function

    def _is_part(self, output: Tensor) -> bool:
        return output.is_floating_point() or not self.has_derivative

    @property
    def loss(self) -> Function:
        """A number that is nonlinear in the floating outputs."""
        return loss(self.function)

    # ------------------------------------------------------------ what it gives in eager mode
    @cached_property
    def value(self) -> Tensor:
        """The result of the function."""
        return self.function(*self.tensors)

    @cached_property
    def values(self) -> tuple[Tensor, ...]:
        """All outputs."""
        return self.outputs(*self.tensors)

    @cached_property
    def gradients(self) -> tuple[Tensor, ...]:
        """The gradients of the loss."""
        leaves = self.leaves
        return _gradients(self.loss(*leaves), leaves)

    @cached_property
    def jacobian(self) -> Tensor:
        """Derivatives of the function: a row for each number of the result."""
        leaves = self.leaves
        return _rows(self.function(*leaves), leaves)

    @cached_property
    def hessian(self) -> Tensor:
        """Second derivatives of the loss, as a matrix."""
        leaves = self.leaves
        value = self.loss(*leaves)
        first = torch.autograd.grad(
            value, leaves, create_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([_rows(gradient, leaves) for gradient in first])

    # ------------------------------------------------------------ the module
    @property
    def module(self) -> ModuleType:
        """The module that the op is in."""
        return sys.modules[self.subject.function.__module__]

    @property
    def operation(self) -> Operation:
        """The op as the runtime knows it."""
        found: Operation = self.module.FAMILY.operations[self.subject.op.name]
        return found

    @property
    def layer(self) -> nn.Module:
        """The op with the attributes of the call as a module."""
        kinds = [
            each
            for each in vars(self.module).values()
            if isinstance(each, type) and issubclass(each, nn.Module)
        ]
        made: nn.Module = kinds[list(self.subject.ops).index(self.subject.op.name)](
            **self.attributes
        )
        return made

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The attributes as the dispatcher takes them."""
        name, given = self.subject.op.name, self.call.case.attributes
        return flatten(
            checks.attribute_value(name, attribute, given[attribute.name])
            for attribute in self.operation.attributes
        )

    @property
    def text(self) -> str:
        """The call in one line."""
        shapes = [f"{name}{list(tensor.shape)}" for name, tensor in self.inputs.items()]
        return ", ".join((*shapes, *(f"{k}={v!r}" for k, v in self.attributes.items())))


def _gradients(value: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)


def _rows(result: Tensor, leaves: Sequence[Tensor]) -> Tensor:
    """The derivative of every number of a result, one backward pass for each."""
    width = sum(leaf.numel() for leaf in leaves)
    if not result.requires_grad:
        return torch.zeros(result.numel(), width, dtype=leaves[0].dtype)
    rows = [
        torch.cat(
            [
                each.reshape(-1)
                for each in torch.autograd.grad(
                    number, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
                )
            ]
        )
        for number in result.reshape(-1)
    ]
    return torch.stack(rows)


# ---------------------------------------------------------------------------- choosing a call
def probe(subject: Subject, path: Path) -> Probe:
    """The call with the most dims of several elements among those with few numbers.

    One that can be made on other sizes too, where there is one. Raises NoCaseError where no call
    meets the constraints of the op.
    """
    found = sorted(cases(subject.op), key=lambda case: _worth(subject, case), reverse=True)
    probes = [
        Probe(subject, Call(case, positive=True, seed=1), path) for case in found[:_LOOKED_AT]
    ]
    return next((each for each in probes if others(each)), probes[0])


def others(probe: Probe) -> tuple[Probe, ...]:
    """The same attributes and inputs with other sizes, none of them 0, nor 1 in one alone."""
    case, op = probe.call.case, probe.subject.op
    shapes = _shapes(op, case)
    found = []
    for sizes in cases(op):
        other = replace(sizes, attributes=case.attributes, absent=case.absent)
        points = work(op, other)
        if points is None or points[0] > _MOST_POINTS:
            continue
        own = _shapes(op, other)
        if own != shapes and _are_like(own, shapes):
            found.append(Probe(probe.subject, Call(other, positive=True, seed=2), probe.path))
    return tuple(found)


def _are_like(first: Mapping[str, tuple[int, ...]], second: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether ranks are the same, and where one tensor has one element along a dim the other too.

    A compiled program is one for sizes from 2 on.
    """
    return all(
        len(first[name]) == len(second[name])
        and all(min(pair) > 1 or pair == (1, 1) for pair in zip(first[name], sizes, strict=True))
        for name, sizes in second.items()
    )


def _shapes(op: Any, case: Case) -> dict[str, tuple[int, ...]]:
    return {
        tensor.name: case.shape(op, tensor)
        for tensor in (*op.inputs, *op.outputs)
        if tensor.name not in case.absent
    }


def _worth(subject: Subject, case: Case) -> tuple[bool, int, int, int]:
    """How much a call can show, as something to compare."""
    op = subject.op
    shapes = _shapes(op, case).values()
    counts = [math.prod(shape) for shape in shapes]
    several = sum(n > 1 for shape in shapes for n in shape)
    different = len({n for shape in shapes for n in shape})
    too_many = max(0, sum(counts) - _MOST_NUMBERS)
    return all(counts), -too_many, several - 2 * len(case.absent), different
