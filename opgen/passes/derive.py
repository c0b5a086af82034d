"""An op to the family of its derivatives: what a generated module holds.

Before: the ops of a spec. After: those ops and their gradients up to an order, each once, with
links from every op to the ops that compute the gradients of its inputs. Ops that differ in the
names of tensors only are one, so the family of an op like `roll` closes after two steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from opgen.algebra.poly import Atom, Kind, Poly, load, of_atom, rebuild
from opgen.ir.family import JOINT, GradientLink, Member
from opgen.ir.notation import (
    Access,
    Expr,
    Op,
    Read,
    Statement,
    Tensor,
    Value,
    map_expression,
)
from opgen.ir.verify import verify
from opgen.passes.differentiate import Derivative, adjoint, joint_adjoint


def derive(ops: Sequence[Op], orders: int) -> tuple[Member, ...]:
    """The ops and their gradients up to an order, ops of the spec first."""
    by_name = {op.name: op for op in ops}
    names = set(by_name)
    found: dict[Op, Op] = {canonical(op): op for op in reversed(ops)}
    members: list[Member] = []
    joined: list[Member] = []
    pending: list[tuple[Op, tuple[str, ...]]] = [(op, (op.name,)) for op in ops]
    for op, path in pending:
        links = []
        for tensor in differentiable(op):
            derivative = adjoint(op, tensor.name, by_name)
            form = canonical(derivative.op)
            is_hand_written = tensor.name in {gradient.input for gradient in op.gradients}
            if not is_hand_written and form not in found:
                if len(path) > orders:
                    continue
                derived = _renamed(derivative.op, names)
                verify(derived)
                found[form] = derived
                pending.append((derived, (*path, tensor.name)))
            target = derivative.op if is_hand_written else found[form]
            links.append(GradientLink(tensor.name, target.name, sources(derivative)))
        if len(path) == 1 and len(path) <= orders:
            together = joint(op, by_name)
            if together is not None:
                derived = _renamed(together.op, names)
                verify(derived)
                joined.append(Member(derived, (*path, all_inputs(op)), ()))
                links.append(GradientLink(all_inputs(op), derived.name, sources(together)))
        members.append(Member(op, path, tuple(links)))
    return (*members, *joined)


def all_inputs(op: Op) -> str:
    """The inputs of a joint gradient, as one step of a path."""
    return JOINT.join(tensor.name for tensor in differentiable(op))


def joint(op: Op, ops: Mapping[str, Op]) -> Derivative | None:
    """All gradients of an op in one, if that shares work: some of the temporaries of each."""
    names = [tensor.name for tensor in differentiable(op)]
    if len(names) < 2 or op.gradients:
        return None
    found = joint_adjoint(op, names)
    alone = sum(len(adjoint(op, name, ops).op.temporaries) for name in names)
    return found if len(found.op.temporaries) < alone else None


def differentiable(op: Op) -> tuple[Tensor, ...]:
    """The inputs that have a gradient: floating, and not marked `nograd`."""
    return tuple(t for t in op.inputs if not t.nograd and not t.dtype.is_integer)


def sources(derivative: Derivative) -> tuple[str, ...]:
    """What the inputs of a derived op are in terms of the op it was derived from."""
    outputs = {name: output for output, name in derivative.cotangents}
    return tuple(
        f"grad {outputs[tensor.name]}" if tensor.name in outputs else tensor.name
        for tensor in derivative.op.inputs
    )


def _renamed(op: Op, names: set[str]) -> Op:
    name = op.name
    while name in names:
        name += "_"
    names.add(name)
    return replace(op, name=name)


# ---------------------------------------------------------------------------- equality of ops
def canonical(op: Op) -> Op:
    """The op with its tensors numbered and everything dropped that only people read."""
    tensors = (*op.inputs, *op.outputs, *op.temporaries)
    names = {tensor.name: f"t{at}" for at, tensor in enumerate(tensors)}

    def renamed(tensor: Tensor) -> Tensor:
        return replace(tensor, name=names[tensor.name], nograd=False)

    return replace(
        op,
        name="",
        doc="",
        gradients=(),
        inputs=tuple(map(renamed, op.inputs)),
        outputs=tuple(map(renamed, op.outputs)),
        temporaries=tuple(map(renamed, op.temporaries)),
        statements=tuple(rename_tensors(statement, names) for statement in op.statements),
    )


def rename_tensors(statement: Statement, names: Mapping[str, str]) -> Statement:
    """The statement with tensors renamed, also where their elements are indices."""

    def in_poly(value: Poly) -> Poly:
        return value.map_atoms(in_atom)

    def in_atom(atom: Atom) -> Poly:
        match atom.kind:
            case Kind.SYMBOL:
                return of_atom(atom)
            case Kind.LOAD:
                return load(names.get(atom.name, atom.name), map(in_poly, atom.args))
            case _:
                return rebuild(atom, tuple(map(in_poly, atom.args)))

    def in_access(access: Access) -> Access:
        return replace(
            access,
            tensor=names.get(access.tensor, access.tensor),
            indices=tuple(replace(i, value=in_poly(i.value)) for i in access.indices),
        )

    def in_node(node: Expr) -> Expr | None:
        match node:
            case Read(access=access):
                return Read(in_access(access))
            case Value(value=value):
                return Value(in_poly(value))
            case _:
                return None

    return replace(
        statement,
        target=in_access(statement.target),
        guards=tuple(replace(g, value=in_poly(g.value)) for g in statement.guards),
        body=map_expression(statement.body, in_node),
        position=None if statement.position is None else in_poly(statement.position),
    )
