"""Every op of specs/ against the loops written by hand and PyTorch: forward and derivatives.

Everything here goes through the interpreter, so it tests specs, checker and differentiation, and no
kernel. Tolerances are 1e-12 of the magnitude of each cell, a sum of absolute terms; identities of
linear ops are exact, in rational arithmetic.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogue import CATALOGUE, SPECS, Case, Entry, each_but_long, entry
from opgen.ir.binding import Array
from opgen.ir.notation import Op
from spec_calls import (
    checked,
    close,
    complete,
    directional,
    gradient,
    leading,
    ops_of,
    run,
    sizes_of,
)

FEW = settings(max_examples=3)
SOME = settings(max_examples=5)
SEEDS = st.integers(0, 2**16)
DIFFERENTIABLE = [e for e in CATALOGUE if e.differentiable]
WITH_TORCH = [e for e in DIFFERENTIABLE if e.torch_equivalent is not None]

each = pytest.mark.parametrize("subject", CATALOGUE, ids=repr)
each_differentiable = pytest.mark.parametrize("subject", WITH_TORCH, ids=repr)


def draw_call(
    data: st.DataObject, subject: Entry, kind: str = "float"
) -> tuple[Case, dict[str, Array]]:
    case = data.draw(subject.cases)
    return case, subject.make_inputs(case, data.draw(SEEDS), kind)


def as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_catalogue_has_every_op() -> None:
    names = {op.name for path in SPECS.glob("*.op") for op in ops_of(path)}
    assert names == {subject.op for subject in CATALOGUE}


# ---------------------------------------------------------------------------- forward
@pytest.mark.sampled(2)
@each
@SOME
@given(data=st.data())
def test_forward_is_the_plain_loops(subject: Entry, data: st.DataObject) -> None:
    op = checked(subject)
    case, inputs = draw_call(data, subject)
    batch = leading(op, case)
    sizes = sizes_of(op, case)
    got = run(op, sizes, inputs, case.attributes, batch)
    scale = run(op, sizes, inputs, case.attributes, batch, measure=True)
    wanted = as_tuple(subject.reference(**inputs, **case.attributes))
    for output, expected in zip(op.outputs, wanted, strict=True):
        close(got[output.name], np.asarray(expected), scale[output.name])


@pytest.mark.parametrize("subject", [e for e in CATALOGUE if e.rational], ids=repr)
@FEW
@given(data=st.data())
def test_forward_is_exact_on_rationals(subject: Entry, data: st.DataObject) -> None:
    op = checked(subject)
    case, inputs = draw_call(data, subject, "fraction")
    got = run(op, sizes_of(op, case), inputs, case.attributes, leading(op, case))
    wanted = as_tuple(subject.reference(**inputs, **case.attributes))
    for output, expected in zip(op.outputs, wanted, strict=True):
        assert (got[output.name] == np.asarray(expected)).all()


# ---------------------------------------------------------------------------- derivatives
def torch_inputs(subject: Entry, inputs: dict[str, Array]) -> dict[str, torch.Tensor]:
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in inputs.items()}
    for name in subject.differentiable:
        if name in tensors:
            tensors[name].requires_grad_()
    return tensors


def torch_outputs(
    subject: Entry, op: Op, case: Case, tensors: dict[str, torch.Tensor]
) -> list[tuple[str, torch.Tensor]]:
    """The differentiable outputs by name."""
    assert subject.torch_equivalent is not None
    values = as_tuple(subject.torch_equivalent(**tensors, **case.attributes))
    return [
        (output.name, value)
        for output, value in zip(op.outputs, values, strict=True)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]


def random_like(value: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(value.shape, generator=generator, dtype=torch.float64)


@pytest.mark.sampled(4)
@each_but_long(WITH_TORCH)
@SOME
@given(data=st.data())
def test_adjoints_are_those_of_torch(subject: Entry, data: st.DataObject) -> None:
    op = checked(subject)
    case, inputs = draw_call(data, subject)
    tensors = torch_inputs(subject, inputs)
    outputs = torch_outputs(subject, op, case, tensors)
    cotangents = {name: random_like(value, i) for i, (name, value) in enumerate(outputs)}
    names = [name for name in subject.differentiable if name in tensors]
    wanted = torch.autograd.grad(
        [value for _, value in outputs],
        [tensors[name] for name in names],
        list(cotangents.values()),
        allow_unused=True,
        materialize_grads=True,
    )
    batch, sizes = leading(op, case), sizes_of(op, case)
    known = complete(subject, op, case, inputs)
    for name, expected in zip(names, wanted, strict=True):
        derived = gradient(op, name)
        call = known | {given: cotangents[of].numpy() for of, given in derived.cotangents}
        (output,) = derived.op.outputs
        got = run(derived.op, sizes, call, case.attributes, batch)[output.name]
        scale = run(derived.op, sizes, call, case.attributes, batch, measure=True)[output.name]
        close(got, expected.numpy(), scale)


@pytest.mark.sampled(4, 1)
@each_but_long(WITH_TORCH)
@FEW
@given(data=st.data())
def test_second_derivatives_are_those_of_torch(subject: Entry, data: st.DataObject) -> None:
    """The gradient of <grad_x, v>, with respect to everything grad_x depends on."""
    op = checked(subject)
    case, inputs = draw_call(data, subject)
    tensors = torch_inputs(subject, inputs)
    outputs = torch_outputs(subject, op, case, tensors)
    cotangents = {
        name: random_like(value, i).requires_grad_() for i, (name, value) in enumerate(outputs)
    }
    names = [name for name in subject.differentiable if name in tensors]
    name = data.draw(st.sampled_from(names))
    (first,) = torch.autograd.grad(
        [value for _, value in outputs],
        [tensors[name]],
        list(cotangents.values()),
        create_graph=True,
        materialize_grads=True,
        allow_unused=True,
    )
    direction = random_like(first, 17)
    derived = gradient(op, name)
    sources = {given: cotangents[of] for of, given in derived.cotangents}
    sources |= {n: tensors[n] for n in names}
    wanted = dict(
        zip(
            sources,
            torch.autograd.grad(
                [first],
                list(sources.values()),
                [direction],
                allow_unused=True,
                materialize_grads=True,
            )
            if first.requires_grad
            else [torch.zeros_like(source) for source in sources.values()],
            strict=True,
        )
    )
    batch, sizes = leading(op, case), sizes_of(op, case)
    known = complete(subject, op, case, inputs)
    call = known | {given: cotangents[of].detach().numpy() for of, given in derived.cotangents}
    inner = {tensor.name for tensor in derived.op.inputs}
    for source, expected in wanted.items():
        if source not in inner:
            assert not expected.any(), f"grad_{name} does not read {source}, but depends on it"
            continue
        second = gradient(derived.op, source)
        # None where the first gradient does not depend on it smoothly, as on the x of max pooling.
        values = call | {given: direction.numpy() for _, given in second.cotangents}
        (output,) = second.op.outputs
        got = run(second.op, sizes, values, case.attributes, batch)[output.name]
        scale = run(second.op, sizes, values, case.attributes, batch, measure=True)[output.name]
        close(got, expected.numpy(), scale)


@pytest.mark.sampled(2, 1)
@each_differentiable
@FEW
@given(data=st.data())
def test_tangents_are_those_of_torch(subject: Entry, data: st.DataObject) -> None:
    op = checked(subject)
    case, inputs = draw_call(data, subject)
    tensors = torch_inputs(subject, inputs)
    names = tuple(name for name in subject.differentiable if name in tensors)
    directions = {name: random_like(tensors[name], i) for i, name in enumerate(names)}
    outputs = torch_outputs(subject, op, case, tensors)
    derived = directional(op, names)
    known = complete(subject, op, case, inputs)
    call = known | {f"tangent_{name}": value.numpy() for name, value in directions.items()}
    batch, sizes = leading(op, case), sizes_of(op, case)
    got = run(derived.op, sizes, call, case.attributes, batch)
    scale = run(derived.op, sizes, call, case.attributes, batch, measure=True)
    for name, value in outputs:
        # The tangent is the derivative of the vector-Jacobian product in its linear argument.
        dummy = torch.zeros_like(value, requires_grad=True)
        products = torch.autograd.grad(
            value,
            [tensors[n] for n in names],
            dummy,
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        used = [p for p in products if p.requires_grad]
        along = [directions[n] for n, p in zip(names, products, strict=True) if p.requires_grad]
        expected = torch.zeros_like(value)
        if used:
            (expected,) = torch.autograd.grad(
                used, dummy, along, allow_unused=True, materialize_grads=True
            )
        close(got[f"tangent_{name}"], expected.numpy(), scale[f"tangent_{name}"])


LINEAR = [(e, group) for e in CATALOGUE for group in e.linear_in if e.rational]


def inner_product(a: Array, b: Array) -> Fraction:
    total = Fraction(0)
    for x, y in zip(a.flat, b.flat, strict=True):
        total += Fraction(x) * Fraction(y)
    return total


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("subject", "group"), LINEAR, ids=str)
@FEW
@given(data=st.data())
def test_dot_product_identity_is_exact(
    subject: Entry, group: tuple[str, ...], data: st.DataObject
) -> None:
    """<A x, y> == <x, A' y> in rational arithmetic, all other inputs held fixed."""
    op = checked(subject)
    case, inputs = draw_call(data, subject, "fraction")
    batch, sizes = leading(op, case), sizes_of(op, case)
    known = complete(subject, op, case, inputs)
    moving = [name for name in group if name in inputs]
    if not moving:
        return  # all inputs of the group are optional and absent in this case
    # An affine op is linear in a group once what does not depend on the group is taken off.
    still = known | {name: np.zeros_like(known[name]) + Fraction(0) for name in moving}
    forward = run(op, sizes, known, case.attributes, batch)
    offset = run(op, sizes, still, case.attributes, batch)
    generator = np.random.default_rng(data.draw(SEEDS))
    left, cotangents = Fraction(0), {}
    for output in op.outputs:
        if output.dtype.is_integer:
            continue
        value = forward[output.name] - offset[output.name]
        weights = generator.integers(-5, 6, value.shape).astype(object) + Fraction(0)
        cotangents[output.name] = weights
        left += inner_product(value, weights)
    right = Fraction(0)
    for name in moving:
        derived = gradient(op, name)
        call = known | {given: cotangents[of] for of, given in derived.cotangents}
        (output,) = derived.op.outputs
        result = run(derived.op, sizes, call, case.attributes, batch)[output.name]
        right += inner_product(result, known[name])
    assert left == right


# ---------------------------------------------------------------------------- named promises
def test_toy_of_the_shift_sum_thread() -> None:
    x = np.array([[1, 1, 1], [2, 2, 2], [3, 3, 3]], np.int64).reshape(1, 3, 1, 3)
    subject = entry("shift_sum")
    op, case = checked(subject), Case({"x": x.shape}, {"step": 1})
    (y,) = run(op, sizes_of(op, case), {"x": x}, case.attributes).values()
    assert y.tolist() == [[[[1, 3, 6, 5, 3]]]]


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_shift_sum_of_its_pseudo_inverse_is_the_identity(step: int) -> None:
    pinv, forward = checked(entry("shift_sum_pinv")), checked(entry("shift_sum_masked"))
    B, C, H, W = 2, 4, 3, 5
    V = W + (C - 1) * step
    generator = np.random.default_rng(step)
    y = generator.integers(-9, 9, (B, 1, H, V)).astype(object) + Fraction(0)
    mask = generator.integers(1, 9, (1, 1, H, W)).astype(object) + Fraction(0)
    case = Case({"y": y.shape, "mask": mask.shape}, {"C": C, "step": step})
    (x,) = run(pinv, sizes_of(pinv, case), {"y": y, "mask": mask}, case.attributes).values()
    case = Case({"x": x.shape, "mask": mask.shape}, {"step": step})
    (again,) = run(
        forward, sizes_of(forward, case), {"x": x, "mask": mask}, case.attributes
    ).values()
    assert (again == y).all()


def test_harness_reports_a_wrong_gradient() -> None:
    """Negative control: the gradient of another op must not pass."""
    subject = entry("shift_sum")
    op, case = checked(subject), Case({"x": (1, 3, 2, 4)}, {"step": 1})
    inputs = subject.make_inputs(case, 0)
    derived = gradient(op, "x")
    cotangent = np.random.default_rng(1).standard_normal((1, 1, 2, 6))
    call = inputs | {given: cotangent for _, given in derived.cotangents}
    sizes = sizes_of(op, case)
    (right,) = run(derived.op, sizes, call, case.attributes).values()
    wrong = right.copy()
    wrong[0, 1, 0, 2] += 1e-9
    with pytest.raises(AssertionError):
        close(wrong, right, np.abs(right))
