"""Elements that blocks of lanes load across the rows of a tensor, some columns of them at once.

Where lanes are planes, `x[c, h, 3]` are elements far apart. With `x[c, h, 0]` to `x[c, h, 15]` at
hand every lane's row is loaded as a vector, and the vectors are transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Poly, poly
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, Load, Node, Program, Store

COUNT: Final = 16
"""How many columns are transposed at once, whatever the element type."""

LEAST: Final = 8
"""How many of them must be asked for."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns from `first` on of the row of a tensor at `place`; those asked for."""

    tensor: str
    place: tuple[Poly, ...]
    first: int
    asked: tuple[Poly, ...]

    @property
    def cell(self) -> tuple[Poly, ...]:
        """The indices of the first column."""
        return (*self.place, poly(self.first))


def across(load: Load, lane: str) -> bool:
    """Whether lanes are rows, not columns."""
    return any(lane in index.symbols for index in load.indices[:-1])


def columns_of(nodes: Sequence[Node], lane: str, program: Program) -> Iterator[Columns]:
    """The columns that nodes of one scope ask for themselves."""
    rows: dict[tuple[str, tuple[Poly, ...]], dict[Poly, None]] = {}
    for load in loads_of(node for node in nodes if isinstance(node, Accumulate | Store)):
        if across(load, lane) and load.indices[-1].is_constant:
            rows.setdefault((load.tensor, load.indices[:-1]), {})[load.indices[-1]] = None
    for (tensor, place), found in rows.items():
        extent = program.operand(tensor).extents[-1]
        count = extent.constant if extent.is_constant else 0
        for begin in range(0, count if count >= COUNT else 0, COUNT):
            asked = tuple(last for last in found if last.constant // COUNT == begin // COUNT)
            if len(asked) >= LEAST:
                # The last ones of a row begin earlier where they would not fit.
                yield Columns(tensor, place, min(begin, count - COUNT), asked)


def stored_rows(nodes: Sequence[Node], lane: str) -> list[tuple[Store, ...]]:
    """Stores of `COUNT` neighbouring columns, where nodes copy a row for each lane; else none.

    The last ones of a row begin earlier where they would not fit.
    """
    stores = [node for node in nodes if isinstance(node, Store) and isinstance(node.value, Load)]
    if len(stores) < max(len(nodes), COUNT):
        return []
    rows = {(store.tensor, store.indices[:-1]) for store in stores}
    columns = [store.indices[-1] for store in stores]
    if len(rows) > 1 or columns != list(map(poly, range(len(stores)))):
        return []
    if not any(lane in index.symbols for index in stores[0].indices[:-1]):
        return []
    firsts = (min(begin, len(stores) - COUNT) for begin in range(0, len(stores), COUNT))
    return [tuple(stores[first : first + COUNT]) for first in firsts]
