"""What every call of an op is known to satisfy, as facts for the prover."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.notation import BATCH, AttributeType, Iterator, Op
from opgen.ir.shapes import may_be_negative


def facts_of(op: Op, usable: Callable[[Poly], bool] = lambda _: True) -> Facts:
    """Facts about sizes, attributes and lets of an op: bounds, definitions and constraints.

    Extents of inputs and outputs are at least 0: the call-time shape check refuses negative ones,
    also those of an input that a call leaves out.
    Of formulas that are not `usable` nothing is known, and a let with such a formula is any number.
    """
    parameters: list[tuple[str, int | None]] = [(name, 0) for name in op.sizes]
    conditions: list[Condition] = []
    for attribute in op.attributes:
        match attribute.type:
            case AttributeType.FLOAT:
                continue
            case AttributeType.INT:
                parameters.extend((name, None) for name in attribute.symbols)
            case AttributeType.SIZE:
                parameters.extend((name, 0) for name in attribute.symbols)
            case AttributeType.BOOL:
                parameters.append((attribute.name, 0))
                conditions.append(Condition(poly(1) - symbol(attribute.name)))
            case AttributeType.CHOICE:
                parameters.append((attribute.name, 0))
                last = len(attribute.choices) - 1
                conditions.append(Condition(poly(last) - symbol(attribute.name)))
    tensors = (*op.inputs, *op.outputs, *op.temporaries)
    if any(tensor.batched for tensor in tensors) and BATCH not in op.sizes:
        parameters.append((BATCH, 0))
    lets = {let.name for let in op.lets}
    extents = dict.fromkeys(
        dim.extent for tensor in (*op.inputs, *op.outputs) for dim in tensor.dims
    )
    conditions.extend(
        Condition(e) for e in extents if not e.symbols.isdisjoint(lets) or may_be_negative(e)
    )
    conditions.extend(constraint.condition for constraint in op.constraints)
    parameters.extend((let.name, None) for let in op.lets if not usable(let.value))
    definitions = [(let.name, let.value) for let in op.lets if usable(let.value)]
    return Facts.of(parameters, definitions, [c for c in conditions if usable(c.value)])


def with_iterators(facts: Facts, iterators: Iterable[Iterator]) -> Facts:
    """The facts at one point of a box: every iterator in its range, hence no range empty."""
    for iterator in iterators:
        facts = facts.with_bounds(iterator.name, poly(0), iterator.extent - 1)
        facts = facts.with_conditions(Condition(iterator.extent - 1))
    return facts
