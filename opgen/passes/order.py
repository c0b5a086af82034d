"""The order of a statement's iterators: as a spec declares them, left-hand side first."""

from __future__ import annotations

from opgen.ir.indices import extents_of
from opgen.ir.notation import BATCH_ITERATOR, Access, Dim, Iterator
from opgen.ir.show_expression import names_shown


def target_first(
    target: Access, dims: tuple[Dim, ...], iterators: tuple[Iterator, ...]
) -> tuple[Iterator, ...]:
    """Those of the target in the order in which its text shows them, then the rest, batch last.

    A sum over the points of a box does not depend on their order. Neither do max and argmax, as
    long as the iterators that move forward are the same for all points of one cell.
    """
    by_name = {iterator.name: iterator for iterator in iterators}
    shown = names_shown(target, dims, extents_of(iterators))
    rest = sorted(
        (name for name in by_name if name not in shown), key=lambda n: n == BATCH_ITERATOR
    )
    return tuple(by_name[name] for name in (*shown, *rest))
