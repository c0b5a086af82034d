"""Adjoint and tangent of an op, as ops of the same language.

Both follow from one fact. A statement

    T[f(t)] += body       for t in a box, where guards hold

is a relation between cells, and so are its derivatives, over the same box and guards:

    tangent_T[f(t)] += sum over reads X[g(t)] of body:  d body / d X[g(t)] * tangent_X[g(t)]
    grad_X[g(t)]    += d body / d X[g(t)] * grad_T[f(t)]        for each read, last statement first

An index that reads with a zero outside writes with DROP, and the other way round; CLAMP, REFLECT,
SYMMETRIC and WRAP are their own transposes. So derived ops are differentiated like any other, to
any order and in any mixture; nothing is special about a second derivative. See `passes.chain_rule`
for the partial derivatives of a body, `passes.reducers` for max, min and prod, `passes.coverage`
for the guards that keep derived statements in range, `passes.assemble` for the signature.

Before: a verified op. After: verified ops. Temporaries are computed again from the inputs; nothing
is saved, so nothing is detached.

No gradient passes through integer tensors and positions, conditions of `select`, `floor`, `ceil`,
`round`, `sign`, and the value of `?(value)`; and none has to pass through temporaries that outputs
do not depend on, such as the maximum that a softmax subtracts (`passes.without_effect`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opgen.ir.family import JOINT
from opgen.ir.notation import Access, Op, Read, Tensor, reads
from opgen.passes.assemble import Parts
from opgen.passes.derivation import Contribution, Derivation
from opgen.passes.reducers import read_of, write_of


class NotDifferentiableError(ValueError):
    """The author of the spec ruled a derivative out, or wrote one that does not fit."""


@dataclass(frozen=True, slots=True)
class Derivative:
    """The gradient of one input or several: an op with one output for each, of its shape.

    Its inputs are inputs of the original by name, and cotangents: `cotangents` pairs an output of
    the original with the input that takes its cotangent; outputs that do not matter have none. Its
    attributes are attributes, sizes and lets of the original by name.
    """

    op: Op
    cotangents: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tangent:
    """The derivative of all outputs along directions of some inputs.

    `tangents` pairs an input of the original with the input that takes its direction; inputs that
    do not matter have none. `results` pairs an output of the original with the output that is its
    derivative; outputs of integers have none.
    """

    op: Op
    tangents: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, str], ...]


def adjoint(op: Op, input: str, ops: Mapping[str, Op] | None = None) -> Derivative:  # noqa: A002
    """The gradient of an input: derived, or the hand-written op among `ops` if `op` names one.

    Raises NotDifferentiableError for an input declared `nograd`, and for a hand-written gradient
    whose signature does not fit.
    """
    _require_differentiable(op, input)
    for gradient in op.gradients:
        if gradient.input == input:
            other = (ops or {}).get(gradient.op)
            if other is None:
                raise NotDifferentiableError(f"'{gradient.op}' is no op of this file")
            return _hand_written(op, input, other)
    return _derived(op, (input,), f"{op.name}_grad_{input}")


def joint_adjoint(op: Op, inputs: Sequence[str]) -> Derivative:
    """The gradients of several inputs, in that order, as outputs of one op.

    It computes once what the gradients of single inputs compute again each: temporaries of the op,
    and gradients of temporaries. Raises NotDifferentiableError for an input declared `nograd` and
    for one whose gradient is written by hand.
    """
    for name in inputs:
        _require_differentiable(op, name)
        if name in {gradient.input for gradient in op.gradients}:
            raise NotDifferentiableError(f"the gradient of '{name}' is written by hand")
    return _derived(op, tuple(inputs), f"{op.name}_grad_{'_and_'.join(inputs)}")


def derivative(op: Op, step: str, ops: Mapping[str, Op] | None = None) -> Derivative:
    """The gradient of an input, or that of several, their names joined by `JOINT`."""
    names = step.split(JOINT)
    return joint_adjoint(op, names) if len(names) > 1 else adjoint(op, step, ops)


def _derived(op: Op, inputs: tuple[str, ...], name: str) -> Derivative:
    derivation = Derivation(op)
    cotangents = {o.name: derivation.twin("grad", o.name) for o in derivation.outputs}
    results = {each: derivation.twin("grad", each) for each in inputs}
    _sweep_back(derivation, results, cotangents)
    for result in results.values():
        if not derivation.writes(result.name):
            derivation.fill(result.name)
    subjects = " and ".join(f"`{each}`" for each in inputs)
    derived = derivation.assembled(
        Parts(
            name,
            f"Gradient of `{op.name}` with respect to {subjects}.",
            inputs[0],
            tuple(cotangents.values()),
            tuple(results.values()),
        )
    )
    return Derivative(derived, _still_read(derived, cotangents))


def tangent(op: Op, inputs: tuple[str, ...]) -> Tangent:
    """The derivative of the formula along directions of `inputs`.

    Hand-written gradients play no part in it; forward mode of a call, which follows them, is built
    from gradients instead (`runtime.autograd`).

    Raises NotDifferentiableError for an input declared `nograd`, and if all outputs are integers.
    """
    for name in inputs:
        _require_differentiable(op, name)
    derivation = Derivation(op)
    if not derivation.outputs:
        raise NotDifferentiableError(f"'{op.name}' computes integers only")
    directions = {name: derivation.twin("tangent", name) for name in inputs}
    results = {o.name: derivation.twin("tangent", o.name) for o in derivation.outputs}
    _sweep_forward(derivation, directions, results)
    for result in results.values():
        if not derivation.writes(result.name):
            derivation.fill(result.name)
    derived = derivation.assembled(
        Parts(
            "_".join((op.name, "tangent", *inputs)),
            f"Derivative of `{op.name}` along {', '.join(f'`{name}`' for name in inputs)}.",
            inputs[0],
            tuple(directions.values()),
            tuple(results.values()),
        )
    )
    pairs = ((name, tensor.name) for name, tensor in results.items())
    return Tangent(derived, _still_read(derived, directions), tuple(pairs))


def _require_differentiable(op: Op, name: str) -> None:
    tensor = next(tensor for tensor in op.inputs if tensor.name == name)
    assert not tensor.dtype.is_integer, f"'{name}' holds integers"
    if tensor.nograd:
        raise NotDifferentiableError(f"'{name}' of '{op.name}' is declared nograd")


def _still_read(derived: Op, given: Mapping[str, Tensor]) -> tuple[tuple[str, str], ...]:
    """The pairs of a tensor's name and its twin's that are inputs of the derived op."""
    left = {tensor.name for tensor in derived.inputs}
    return tuple((name, twin.name) for name, twin in given.items() if twin.name in left)


# ---------------------------------------------------------------------------- reverse
def _sweep_back(
    derivation: Derivation, results: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]
) -> None:
    """Add statements that accumulate the gradients of the inputs that have a result."""
    statements = derivation.op.statements
    active = _active(derivation, results)
    read = {access.tensor for statement in statements for access in reads(statement.body)}
    holders = {source: result.name for source, result in results.items()}
    for name, cotangent in cotangents.items():
        holders[name] = cotangent.name
        if name in read & active:
            # Other statements read this output; what they contribute joins a copy.
            holders[name] = derivation.temporary("grad", name)
            derivation.fill(holders[name], cotangent.name)
    for statement in reversed(statements):
        name = statement.target.tensor
        if name not in holders or name not in active:
            continue
        if name not in cotangents and not derivation.writes(holders[name]):
            continue  # all that readers added was zero
        seed = Read(read_of(statement.target, holders[name]))
        found = derivation.terms(statement, active)
        for access, _ in found:
            if access.tensor not in holders:
                holders[access.tensor] = derivation.temporary("grad", access.tensor)
        derivation.contribute(
            statement,
            [
                Contribution(write_of(access, holders[access.tensor]), term, seed, access)
                for access, term in found
            ],
        )


def _active(derivation: Derivation, sources: Iterable[str]) -> frozenset[str]:
    """Tensors of numbers that may depend on one of the sources, and on which outputs do."""
    active = set(sources)
    for statement in derivation.op.statements:
        name = statement.target.tensor
        is_active = any(access.tensor in active for access in reads(statement.body))
        if is_active and name in derivation.numeric and name not in derivation.without_effect:
            active.add(name)
    return frozenset(active)


# ---------------------------------------------------------------------------- forward
def _sweep_forward(
    derivation: Derivation, directions: Mapping[str, Tensor], results: Mapping[str, Tensor]
) -> None:
    """Add statements that compute the tangent of every tensor that has one."""
    holders = {name: tensor.name for name, tensor in directions.items()}
    for statement in derivation.op.statements:
        name = statement.target.tensor
        is_active = name in derivation.numeric and name not in derivation.without_effect
        found = derivation.terms(statement, holders) if is_active else []
        if not found:
            continue
        if name not in holders:
            result = results.get(name)
            holders[name] = result.name if result else derivation.temporary("tangent", name)
        target = Access(holders[name], statement.target.indices, statement.target.span)
        derivation.contribute(
            statement,
            [
                Contribution(target, term, Read(_direction(access, holders[access.tensor])))
                for access, term in found
            ],
        )
        if not derivation.writes(holders[name]):
            del holders[name]  # all that was to be added is zero
    derivation.assign_where_possible(holders.items())


def _direction(access: Access, tensor: str) -> Access:
    """The same cells of a direction; what was filled in from outside has none."""
    return read_of(write_of(access, tensor), tensor)


# ---------------------------------------------------------------------------- hand-written
def _hand_written(op: Op, input: str, other: Op) -> Derivative:  # noqa: A002
    """A gradient written by the author of the spec, if its signature fits."""
    expected = {tensor.name: tensor for tensor in op.inputs}
    cotangents = {f"grad_{output.name}": output for output in op.outputs}
    for tensor in other.inputs:
        wanted = cotangents.get(tensor.name) or expected.get(tensor.name)
        if wanted is None or wanted.dims != tensor.dims:
            raise NotDifferentiableError(
                f"'{other.name}' reads '{tensor.name}', which is neither an input of '{op.name}' "
                "nor a cotangent of one of its outputs, or has another shape"
            )
    if len(other.outputs) != 1 or other.outputs[0].dims != expected[input].dims:
        raise NotDifferentiableError(
            f"'{other.name}' must have one output, of the shape of '{input}'"
        )
    known = {attribute.name for attribute in op.attributes}
    known |= {*op.sizes, *(let.name for let in op.lets)}
    for attribute in other.attributes:
        if attribute.name not in known:
            raise NotDifferentiableError(
                f"'{op.name}' has no attribute or size '{attribute.name}', as '{other.name}' has"
            )
    names = {tensor.name for tensor in other.inputs}
    pairs = ((o.name, given) for given, o in cotangents.items() if given in names)
    return Derivative(other, tuple(pairs))
