"""A kernel's sums of products as products of matrices.

    total[batch, rows, columns] = sum(terms) left[batch, rows, terms] * right[batch, columns, terms]

Rows, columns and terms may each be several indices, and an index of a tensor may depend on both: a
window `x[n, c, i*stride + k]` is a matrix with rows (n, i) and terms (c, k). Where a factor is
absent, its term is.
"""

from __future__ import annotations

from dataclasses import dataclass

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, symbol
from opgen.ir.loops import Axis, Load, Node, Start


@dataclass(frozen=True, slots=True)
class Factor:
    """One of two matrices: its elements, and the conditions under which they are present."""

    load: Load
    conditions: tuple[Condition, ...] = ()

    @property
    def polys(self) -> tuple[Poly, ...]:
        """All polynomials of it."""
        return (*self.load.indices, *(condition.value for condition in self.conditions))

    def dim_along(self, axis: Axis) -> int | None:
        """The dim in which elements follow each other along an axis; None if there is none."""
        dims = [at for at, each in enumerate(self.load.indices) if axis.name in each.symbols]
        if len(dims) != 1:
            return None
        rest = self.load.indices[dims[0]] - symbol(axis.name)
        return None if axis.name in rest.symbols else dims[0]


@dataclass(frozen=True, slots=True)
class Contraction:
    """Another way to run a kernel.

    `batch`, `rows` and `columns` are the kernel's axes, of which one may be split into two. Its
    body is `start`, which begins the sum, `nest`, which adds it up for one cell, and `tail`, which
    does the rest with it. There is a cell only where the conditions `cells` hold. Of the terms at
    most one of every `steps`, for each of those, is present.
    """

    start: Start
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    terms: tuple[Axis, ...]
    left: Factor
    right: Factor
    nest: tuple[Node, ...]
    tail: tuple[Node, ...]
    steps: tuple[Poly, ...] = ()
    cells: tuple[Condition, ...] = ()

    @property
    def is_conditional(self) -> bool:
        """Whether some factors may be absent."""
        return bool(self.left.conditions or self.right.conditions)
