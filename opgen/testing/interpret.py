"""Ops through the interpreter in double precision, with batch dims handled as the runtime does."""

from __future__ import annotations

from collections.abc import Mapping

from opgen.ir.binding import Array, AttributeValue
from opgen.ir.notation import BATCH, Op
from opgen.ir.reference import evaluate
from opgen.testing.magnitude import magnitude
from opgen.testing.sizes import flattened


def interpret(
    op: Op,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    attributes: Mapping[str, AttributeValue],
    batch: tuple[int, ...] = (),
    *,
    measure: bool = False,
) -> dict[str, Array]:
    """Outputs of an op by name, or with `measure` their magnitudes (see `testing.magnitude`).

    `sizes`, `inputs` and `attributes` may hold more than the op takes, so that one call serves an
    op and what was derived from it. Inputs come and outputs go with the leading dims `batch`.
    """
    names = {tensor.name for tensor in op.inputs}
    arrays = {
        name: array.reshape(flattened(op, name, array.shape))
        for name, array in inputs.items()
        if name in names
    }
    known = set(op.sizes) | {let.name for let in op.lets} | {BATCH}
    known |= {symbol for attribute in op.attributes for symbol in attribute.symbols}
    mine = {name: value for name, value in sizes.items() if name in known}
    values = {a.name: attributes[a.name] for a in op.attributes if a.name in attributes}
    outputs = (magnitude if measure else evaluate)(op, mine, arrays, values)
    return {
        tensor.name: outputs[tensor.name].reshape((*batch, *outputs[tensor.name].shape[1:]))
        if tensor.batched
        else outputs[tensor.name]
        for tensor in op.outputs
    }
