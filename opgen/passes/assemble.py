"""A derived op from its statements: only what they need of the original's signature.

* What no output depends on is dropped, and inputs that are not read.
* Sizes that the remaining inputs do not determine become SIZE attributes: extents of a gradient
  are given, never guessed back from those of another tensor.
* A `let` stays where its formula can be evaluated or a proof may rest on it. Otherwise it is just
  a size: the gradient of a bias needs the extents of the cotangent, not the formula behind them.
* Conditions stay where all their symbols are left or a proof may rest on them. They are then stated
  conditions of the derived op, whether the original's author stated or the checker found them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly, symbol
from opgen.ir.notation import (
    BATCH,
    Attribute,
    AttributeType,
    Constraint,
    DType,
    Let,
    Op,
    Parameter,
    Statement,
    Tensor,
)
from opgen.ir.realness import is_real
from opgen.ir.shapes import solve_order
from opgen.ir.walk import all_reads, nodes, polynomials
from opgen.passes.coverage import supporting_symbols, tensors_of
from opgen.passes.known_values import with_known_values
from opgen.passes.simplify import simplify


@dataclass(frozen=True, slots=True)
class Parts:
    """What differentiation made of an op.

    `inputs` and `temporaries` are candidates. If no input that is read shows the type or the batch
    dims of the outputs, then `main` stays although it is not read.
    """

    name: str
    doc: str
    main: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temporaries: tuple[Tensor, ...] = ()
    statements: tuple[Statement, ...] = ()


def assemble(op: Op, parts: Parts) -> Op:
    """The derived op of `op` with exactly these outputs."""
    derived = Op(
        parts.name,
        parts.inputs,
        (),
        parts.outputs,
        (),
        (),
        (),
        op.tables,
        parts.temporaries,
        parts.statements,
        (),
        parts.doc,
    )
    derived = with_known_values(simplify(derived))
    read = {access.tensor for statement in derived.statements for access in all_reads(statement)}
    derived = replace(
        derived,
        inputs=_inputs(parts, read),
        tables=tuple(table for table in op.tables if table.name in read),
    )
    return _with_types(_with_symbols(op, derived))


def _inputs(parts: Parts, read: set[str]) -> tuple[Tensor, ...]:
    """The inputs that are read, and one more where only it shows the type or the batch dims."""
    kept = [tensor for tensor in parts.inputs if tensor.name in read]
    typed = any(tensor.dtype.is_generic for tensor in kept)
    batched = any(tensor.batched for tensor in kept)
    needs_type = not typed and any(tensor.dtype.is_generic for tensor in parts.outputs)
    needs_batch = not batched and any(tensor.batched for tensor in parts.outputs)
    candidates = sorted(parts.inputs, key=lambda tensor: tensor.name != parts.main)
    for tensor in candidates:
        helps_type = needs_type and tensor.dtype.is_generic
        helps_batch = needs_batch and tensor.batched
        if tensor not in kept and (helps_type or helps_batch):
            kept.append(tensor)
            needs_type, needs_batch = needs_type and not helps_type, needs_batch and not helps_batch
    return tuple(replace(tensor, default=None) for tensor in parts.inputs if tensor in kept)


# ---------------------------------------------------------------------------- sizes and attributes
def _with_symbols(op: Op, derived: Op) -> Op:
    """The derived op with the sizes, attributes, lets and constraints it needs."""
    used = _symbols(derived)
    vital = _vital(op, derived)
    for constraint in op.constraints:
        names = constraint.condition.value.symbols
        if not names.isdisjoint(vital):
            used |= names
    lets: list[Let] = []
    for let in reversed(op.lets):
        if let.name in used and (let.value.symbols <= used or let.name in vital):
            lets.insert(0, let)
            used |= let.value.symbols
    defined = {let.name for let in lets}
    attributes = [a for a in op.attributes if not used.isdisjoint({a.name, *a.symbols})]
    given = {name for attribute in attributes for name in attribute.symbols}
    constraints = tuple(
        Constraint(constraint.condition, constraint.text)
        for constraint in op.constraints
        if constraint.condition.value.symbols <= used
    )
    known = [*op.sizes, *(let.name for let in op.lets), BATCH]
    shown = _in_order_of_appearance(derived.inputs, set(known) - given - defined)
    sizes = list(dict.fromkeys((*shown, *(n for n in known if n in used - given - defined))))
    plan = solve_order(derived.inputs, attributes, sizes, lets, constraints, derived.outputs)
    missing = {name for name, _ in plan.undetermined}
    attributes += [Attribute(name, AttributeType.SIZE) for name in sizes if name in missing]
    return replace(
        derived,
        attributes=tuple(attributes),
        sizes=tuple(name for name in sizes if name not in missing),
        lets=tuple(lets),
        constraints=constraints,
    )


def _symbols(op: Op) -> set[str]:
    """Every size, let and attribute that dims and statements mention."""
    extents = [
        extent
        for tensor in (*op.inputs, *op.outputs, *op.temporaries)
        for dim in tensor.dims
        for extent in (dim.extent, *dim.parts)
    ]
    used: set[str] = set().union(*(extent.symbols for extent in extents))
    for statement in op.statements:
        box = {iterator.name for iterator in statement.iterators}
        inside: set[str] = set().union(*(value.symbols for value in polynomials(statement)))
        used |= inside - box
        used.update(*(iterator.extent.symbols for iterator in statement.iterators))
        used |= {node.name for node in nodes(statement.body) if isinstance(node, Parameter)}
    return used


def _vital(op: Op, derived: Op) -> set[str]:
    """Symbols on which a proof about some access may rest, directly or through other facts."""
    tensors = tensors_of(derived)
    vital: set[str] = set()
    for statement in derived.statements:
        vital |= supporting_symbols(statement, tensors)
    facts = [constraint.condition.value.symbols for constraint in op.constraints]
    facts += [let.value.symbols | {let.name} for let in op.lets]
    while True:
        wider = vital.union(*(names for names in facts if not names.isdisjoint(vital)))
        if wider == vital:
            return vital
        vital = wider


def _in_order_of_appearance(inputs: Iterable[Tensor], names: set[str]) -> Iterable[str]:
    """Names in the order in which the text of the signature mentions them first."""
    for tensor in inputs:
        for dim in tensor.dims:
            for extent in dim.parts or (dim.extent,):
                yield from _names_in_text(extent, names)


def _names_in_text(value: Poly, names: Iterable[str]) -> list[str]:
    """The symbols among `names` in the order in which the canonical text shows them."""
    wanted = set(names)
    if value == symbol(BATCH):
        return [BATCH] if BATCH in wanted else []
    return [name for name in re.findall(r"[A-Za-z_]\w*", str(value)) if name in wanted]


# ---------------------------------------------------------------------------- element types
def _with_types(op: Op) -> Op:
    """Undeclared tensors of a floating type where some value is real, as in a spec."""
    if not any(is_real(statement.body, op.tensor) for statement in op.statements):
        return op

    def floating(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            replace(tensor, dtype=DType.FLOAT) if tensor.dtype is DType.SAME else tensor
            for tensor in tensors
        )

    return replace(
        op,
        inputs=floating(op.inputs),
        outputs=floating(op.outputs),
        temporaries=floating(op.temporaries),
    )
