"""What holds for every op in every call. Each property raises Mismatch where it does not.

    forward      the kernels give what the plain loops give (the interpreter where there are none)
    gradients    autograd gives what the interpreter says of the derived ops
    second       the same for gradients of gradients
    slopes       gradients are limits of difference quotients of the loops
    transposes   <cotangent, tangent> == <adjoint, direction> for derived ops, in exact fractions
    tangents     forward-mode derivatives are what the interpreter says of the derived tangent

`gradients` compares kernels with derived specs; `slopes` and `transposes` compare derived specs
with the op itself. Together they leave no link to trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch.autograd import forward_ad

from opgen.ir.binding import Array
from opgen.ir.notation import Op
from opgen.passes.differentiate import Derivative
from opgen.testing.calls import Call, array, arrays, double
from opgen.testing.compare import Mismatch, compare
from opgen.testing.exact import transpose_sides
from opgen.testing.magnitude import widened
from opgen.testing.slopes import slope
from opgen.testing.subject import Subject

# Numbers for `Call.like`, beyond those of the tensors of any op.
_WEIGHT: Final = 1_000
_DIRECTION: Final = 2_000


class Inconclusive(Exception):  # noqa: N818  # no error: this call says nothing
    """The property says nothing about this call."""


# ---------------------------------------------------------------------------- forward
def forward(subject: Subject, call: Call) -> None:
    """The outputs, or an IndexError where an index read from a tensor leaves its dimension."""
    inputs = call.inputs(subject.op)
    given = arrays(inputs)
    try:
        scale = subject.interpreted(subject.op, call, given, measure=True)
    except IndexError:
        try:
            subject.run(call, inputs)
        except IndexError:
            return
        raise Mismatch(f"{subject.op.name} read outside of a tensor without an error") from None
    wanted = subject.outputs(call, given)
    got = subject.run(call, inputs)
    try:
        for tensor, value in zip(subject.op.outputs, got, strict=True):
            compare(tensor.name, value, wanted[tensor.name], scale[tensor.name], _computed(inputs))
    except Mismatch as fault:
        raise Mismatch(f"{fault}{_verdict(subject, call, given, got)}") from None


def _verdict(
    subject: Subject, call: Call, given: Mapping[str, Array], got: Iterable[torch.Tensor]
) -> str:
    """Which of kernel, loops and interpreter stands alone."""
    if subject.loops is None or subject.is_integral(call):
        return ""
    interpreted = subject.interpreted(widened(subject.op), call, given)
    scale = subject.interpreted(subject.op, call, given, measure=True)
    computed = torch.float32 if call.dtype != "float64" else torch.float64
    try:
        for tensor, value in zip(subject.op.outputs, got, strict=True):
            compare(tensor.name, value, interpreted[tensor.name], scale[tensor.name], computed)
    except Mismatch:
        return "\nkernel and interpreter differ too: this is a fault of opgen's kernels"
    return "\nkernel and interpreter agree: the spec and its plain loops say different things"


def _computed(tensors: Mapping[str, torch.Tensor]) -> torch.dtype:
    """The type a call computes in: double if one of its tensors is."""
    wide = any(tensor.dtype is torch.float64 for tensor in tensors.values())
    return torch.float64 if wide else torch.float32


# ---------------------------------------------------------------------------- reverse mode
@dataclass(frozen=True, slots=True)
class _Backward:
    """A call and its first gradients, all by name.

    `leaves` are the inputs with a gradient, `cotangents` belong to outputs, `gradients` to leaves.
    """

    inputs: dict[str, torch.Tensor]
    leaves: dict[str, torch.Tensor]
    cotangents: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]

    def arrays(self, subject: Subject, call: Call, derived: Derivative) -> dict[str, Array]:
        """What a derived op takes."""
        found = subject.completed(call, self.inputs)
        return found | {taken: array(self.cotangents[o]) for o, taken in derived.cotangents}


def _backward(subject: Subject, call: Call, *, again: bool = True) -> _Backward:
    """A call and its gradients; `again` if these are to have gradients, too."""
    inputs = call.inputs(subject.op)
    leaves = {
        tensor.name: inputs[tensor.name].requires_grad_()
        for tensor in subject.numeric
        if tensor.name in inputs
    }
    if not leaves:
        raise Inconclusive
    outputs = _run_or_reject(subject, call, inputs)
    real = {
        tensor.name: value
        for tensor, value in zip(subject.op.outputs, outputs, strict=True)
        if value.requires_grad
    }
    if not real:
        raise Inconclusive
    cotangents = {
        name: call.like(value, len(inputs) + at).requires_grad_()
        for at, (name, value) in enumerate(real.items())
    }
    gradients = torch.autograd.grad(
        list(real.values()),
        list(leaves.values()),
        list(cotangents.values()),
        create_graph=again,
        allow_unused=True,
        materialize_grads=True,
    )
    return _Backward(inputs, leaves, cotangents, dict(zip(leaves, gradients, strict=True)))


def gradients(subject: Subject, call: Call) -> None:
    """First gradients of all inputs, every cell: each by itself, and as training computes them."""
    found, trained = _backward(subject, call), _backward(subject, call, again=False)
    for name, got in found.gradients.items():
        derived = subject.adjoint(subject.op, name)
        given = found.arrays(subject, call, derived)
        _compare_derived(subject, call, derived.op, given, f"gradient of {name}", got)
        last = trained.gradients[name]
        if not torch.equal(got, last):
            what = f"gradient of {name}, computed with others"
            _compare_derived(subject, call, derived.op, given, what, last)


def second(subject: Subject, call: Call) -> None:
    """Gradients of one first gradient with respect to everything it depends on."""
    found = _backward(subject, call)
    names = [name for name, gradient in found.gradients.items() if gradient.requires_grad]
    if not names:
        raise Inconclusive
    name = names[call.seed % len(names)]
    got, first = found.gradients[name], subject.adjoint(subject.op, name)
    weight = call.like(got, _WEIGHT)
    targets = found.leaves | {taken: found.cotangents[o] for o, taken in first.cotangents}
    results = torch.autograd.grad(
        got, list(targets.values()), weight, allow_unused=True, materialize_grads=True
    )
    depends = {tensor.name for tensor in first.op.inputs}
    for target, result in zip(targets, results, strict=True):
        what = f"gradient by {target} of the gradient of {name}"
        if target not in depends:
            if bool(result.any()):
                raise Mismatch(f"{what} is not zero, but the gradient does not depend on {target}")
            continue
        again = subject.adjoint(first.op, target)
        given = found.arrays(subject, call, first)
        given |= {taken: array(weight) for _, taken in again.cotangents}
        _compare_derived(subject, call, again.op, given, what, result)


def _run_or_reject(
    subject: Subject, call: Call, inputs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    try:
        return subject.run(call, inputs)
    except IndexError:  # `forward` says whether that is right
        raise Inconclusive from None


def _compare_derived(
    subject: Subject,
    call: Call,
    derived: Op,
    given: Mapping[str, Array],
    what: str,
    got: torch.Tensor,
) -> None:
    wanted, scale = _interpreted(subject, call, derived, given)
    inputs = call.inputs(subject.op)
    for name in wanted:
        compare(what, got, wanted[name], scale[name], _computed(inputs))


def _interpreted(
    subject: Subject, call: Call, derived: Op, given: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs of a derived op and their magnitudes."""
    wide = widened(derived)
    try:
        wanted = subject.interpreted(wide, call, given)
        return wanted, subject.interpreted(wide, call, given, measure=True)
    except IndexError:  # an index read from a tensor is outside: `forward` looks at that
        raise Inconclusive from None


# ---------------------------------------------------------------------------- independent checks
def slopes(subject: Subject, call: Call) -> None:
    """Gradients against difference quotients of the references along a random direction."""
    found = _backward(subject, call)
    inputs, cotangents = found.inputs, found.cotangents
    names = [name for name in found.leaves if name not in subject.stated_gradients]
    if not names:
        raise Inconclusive
    name = names[call.seed % len(names)]
    given = arrays(inputs)
    direction = double(call.like(inputs[name], _DIRECTION))
    weights = {output: double(cotangent) for output, cotangent in cotangents.items()}

    def value(step: float) -> tuple[float, float]:
        moved = {**given, name: double(inputs[name]) + step * direction}
        outputs = subject.outputs(call, moved)
        terms = [weights[o] * np.asarray(outputs[o], np.float64) for o in weights]
        return sum(float(t.sum()) for t in terms), sum(float(np.abs(t).sum()) for t in terms)

    estimate = slope(value)
    if estimate is None:
        raise Inconclusive
    quotient, allowed = estimate
    terms = double(found.gradients[name]) * direction
    got = float(terms.sum())
    allowed += 1e-10 * float(np.abs(terms).sum())
    if not abs(got - quotient) <= allowed:
        raise Mismatch(
            f"the gradient of {name} along a direction is {got:.9g}, but the difference quotient "
            f"of the reference is {quotient:.9g} (rounding explains {allowed:.2g})"
        )


def transposes(subject: Subject, call: Call) -> None:
    """The derived adjoint of one input is the transposed derived tangent, in exact fractions."""
    names = [t.name for t in subject.numeric if t.name not in subject.stated_gradients]
    if not names or not subject.tangent_exists:
        raise Inconclusive
    name = names[call.seed % len(names)]
    sides = transpose_sides(subject, call, name)
    if sides is None:
        raise Inconclusive
    left, right = sides
    if left != right:
        raise Mismatch(
            f"<cotangent, tangent along {name}> is {left}, but <gradient, direction> is {right}"
        )


# ---------------------------------------------------------------------------- forward mode
def tangents(subject: Subject, call: Call) -> None:
    """Derivatives along directions of all inputs, in forward mode."""
    inputs = call.inputs(subject.op)
    given = subject.completed(call, inputs)
    names = [tensor.name for tensor in subject.numeric if tensor.name in inputs]
    if not names or not subject.tangent_exists:
        raise Inconclusive
    # PyTorch takes a tangent for an expanded tensor only if it is expanded likewise.
    places = {tensor.name: at for at, tensor in enumerate(subject.op.inputs)}
    directions = {
        name: call.like(inputs[name], _DIRECTION + places[name], places[name]) for name in names
    }
    with forward_ad.dual_level():
        duals = {
            name: forward_ad.make_dual(value, directions[name]) if name in directions else value  # type: ignore[no-untyped-call]
            for name, value in inputs.items()
        }
        outputs = _run_or_reject(subject, call, duals)
        moved = [forward_ad.unpack_dual(value).tangent for value in outputs]  # type: ignore[no-untyped-call]
    derived = subject.tangent
    values = dict(given)
    for name, taken in derived.tangents:
        values[taken] = (
            array(directions[name]) if name in directions else np.zeros_like(given[name])
        )
    wanted, scale = _interpreted(subject, call, derived.op, values)
    results = dict(derived.results)
    for tensor, primal, result in zip(subject.op.outputs, outputs, moved, strict=True):
        if tensor.name in results:
            key = results[tensor.name]
            got = torch.zeros_like(primal) if result is None else result
            what = f"tangent of {tensor.name}"
            compare(what, got, wanted[key], scale[key], _computed(inputs))


def offers_forward_mode(subject: Subject, call: Call) -> bool:
    """Whether the binding takes tensors with tangents at all."""
    try:
        tangents(subject, call)
    except RuntimeError as error:  # also NotImplementedError; anything else is a fault to report
        return "forward" not in str(error)
    except (Mismatch, Inconclusive):
        return True
    return True


Property = Callable[[Subject, Call], None]
PROPERTIES: Final[dict[str, Property]] = {
    "forward": forward,
    "gradients": gradients,
    "second": second,
    "slopes": slopes,
    "transposes": transposes,
    "tangents": tangents,
}
"""Every property by name, in the order in which they are tried."""
