"""Derived gradients as spec text, with the derivation in comments: what `opgen grad` prints.

The ops parse back to the same ops. A comment above each says, for every statement, how the points
that reach a cell were found: in closed form, by loops with exact bounds, by trying, or, where the
cell is read from a tensor, not before the point is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opgen.ir.notation import Op
from opgen.ir.show import show
from opgen.passes.derive import differentiable
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import GatheredStatement, Kind, gather
from opgen.passes.gathered_form import gathered_form

_KINDS: Final = {
    Kind.BIJECTIVE: "every cell receives exactly one term",
    Kind.INJECTIVE: "every cell receives at most one term",
    Kind.GATHER: "every cell gathers its terms by loops with exact bounds",
    Kind.ENUMERATED: "every cell tries all candidates, the index could not be inverted",
    Kind.SCATTER: "the cell is read from a tensor: terms are scattered (atomics or a sort)",
}


def gradient_text(chosen: Sequence[Op], ops: Sequence[Op], order: int = 1) -> str:
    """Spec text of the gradients of `chosen`, up to `order`; `ops` are all ops of the file."""
    by_name = {op.name: op for op in ops}
    blocks = [block for op in chosen for block in _blocks(op, by_name, order)]
    return "\n\n".join(blocks) + "\n" if blocks else "# nothing here has a gradient\n"


def _blocks(op: Op, by_name: Mapping[str, Op], order: int) -> Iterator[str]:
    for tensor in differentiable(op):
        derived = adjoint(op, tensor.name, by_name).op
        comments = [f"# d {op.name} / d {tensor.name}"]
        for gathered in gather(derived):
            comments.extend(_explain(gathered))
        yield "\n".join([*comments, show(gathered_form(derived)).rstrip("\n")])
        if order > 1:
            yield from _blocks(derived, by_name, order - 1)


def _explain(gathered: GatheredStatement) -> Iterator[str]:
    cell = f"{gathered.statement.target.tensor}[{','.join(gathered.coordinates)}]"
    yield f"# {cell}: {_KINDS[gathered.kind]}"
    for piece in gathered.pieces:
        if piece.fallback is not None:
            yield f"#   enumerated: {piece.fallback}"
        # `c_ = c` only says that a cell's own index is what it is.
        trivial = {f"unit: {name} = {value}" for name, value in piece.solution if value.symbol}
        yield from (f"#   {rule}" for rule in piece.rules if rule not in trivial)
