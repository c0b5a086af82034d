"""Derived gradients as spec text, with the derivation in comments: what `opgen grad` prints.

The ops parse back to the same ops. A comment above each says, for every statement, how the points
that reach a cell were found: in closed form, by loops with exact bounds, by trying, or, where the
cell is read from a tensor, not before the point is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from opgen.ir.indices import extents_of
from opgen.ir.notation import Op
from opgen.ir.show import show
from opgen.ir.show_expression import access_text, dims_of
from opgen.passes.derive import differentiable
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import GatheredStatement, Kind, gather
from opgen.passes.gathered_form import GatheredForm, gathered_forms

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
        forms = gathered_forms(derived)
        for gathered, form in zip(gather(derived), forms, strict=True):
            comments.extend(_explain_form(derived, gathered, form))
        printed = replace(derived, statements=tuple(form.statement for form in forms))
        yield "\n".join([*comments, show(printed).rstrip("\n")])
        if order > 1:
            yield from _blocks(derived, by_name, order - 1)


def _explain_form(op: Op, gathered: GatheredStatement, form: GatheredForm) -> Iterator[str]:
    """How the statement that is printed came about, by its own names."""
    if not form.solved:
        yield from _explain(gathered)
        return
    target, extents = form.statement.target, extents_of(form.statement.iterators)
    cell = access_text(target, dims_of(op.tensor(target.tensor)), extents)
    yield f"# {cell}: {_KINDS[gathered.kind]}"
    own = {name for index in target.indices for name in index.value.symbols}
    for name, value in form.solved:
        looped = value.symbols.intersection(extents) - own
        yield f"#   {'eliminate' if looped else 'unit'}: {name} = {value}"


def _explain(gathered: GatheredStatement) -> Iterator[str]:
    """How the fibre solver finds the points of a statement that is printed as it is."""
    cell = f"{gathered.statement.target.tensor}[{','.join(gathered.coordinates)}]"
    yield f"# {cell}: {_KINDS[gathered.kind]}"
    for piece in gathered.pieces:
        if piece.fallback is not None:
            yield f"#   enumerated: {piece.fallback}"
        # `c_ = c` only says that a cell's own index is what it is.
        trivial = {f"unit: {name} = {value}" for name, value in piece.solution if value.symbol}
        yield from (f"#   {rule}" for rule in piece.rules if rule not in trivial)
