"""The order of a statement's iterators: as a spec declares them, left-hand side first."""

from __future__ import annotations

from collections.abc import Mapping

from opgen.algebra.fibre_ranks import Rank, rank_of
from opgen.algebra.poly import Kind, Poly
from opgen.ir.indices import extents_of
from opgen.ir.notation import BATCH_ITERATOR, Access, Dim, Iterator, Op
from opgen.ir.show_expression import Composite, form_of, names_shown


def target_first(
    op: Op, target: Access, dims: tuple[Dim, ...], iterators: tuple[Iterator, ...]
) -> tuple[Iterator, ...]:
    """Those of the target in the order in which its text shows them, then the rest, batch last.

    A sum over the points of a box does not depend on their order. Neither do max and argmax, as
    long as the iterators that move forward are the same for all points of one cell.

    Inside an index, short ranges come first and the others as they are given, never as the alphabet
    has them: what is made of the statement must not depend on how its iterators are spelled.
    """
    by_name = {iterator.name: iterator for iterator in iterators}
    shown = _shown(op, target, dims, extents_of(iterators))
    rest = sorted(
        (name for name in by_name if name not in shown), key=lambda n: n == BATCH_ITERATOR
    )
    return tuple(by_name[name] for name in (*shown, *rest))


def _shown(op: Op, target: Access, dims: tuple[Dim, ...], extents: Mapping[str, Poly]) -> list[str]:
    """The order that is wanted, if some text of the target shows it, else that of its plain text.

    Text cannot show every order: what stands inside a division has that of the alphabet.
    """
    wanted: dict[str, None] = {}
    for index, dim in zip(target.indices, dims, strict=True):
        form = form_of(index, dim, extents)
        if isinstance(form, Composite):
            wanted |= dict.fromkeys(part for part in form.parts if part in extents)
        else:
            wanted |= dict.fromkeys(_sorted(op, index.value, dim.extent, extents))
    order = list(wanted)
    if names_shown(target, dims, extents, order) == order:
        return order
    return names_shown(target, dims, extents)


def _sorted(op: Op, value: Poly, dim: Poly, extents: Mapping[str, Poly]) -> list[str]:
    """The iterators of an index: those that are added, inside divisions first, short ranges first.

    The range of what stands beside a division follows from what stands inside.
    """
    formulas = [(let.name, let.value) for let in op.lets]

    def place(name: str) -> tuple[bool, bool, Rank]:
        sign, plain = min(
            (coefficient < 0, all(atom.kind is Kind.SYMBOL for atom in monomial))
            for monomial, coefficient in value.terms.items()
            if any(name in atom.symbols for atom in monomial)
        )
        return sign, plain, rank_of(extents[name], (dim,), op.sizes, formulas)

    return sorted((name for name in extents if name in value.symbols), key=place)
