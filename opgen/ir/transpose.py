"""Maps that read along one axis and write along another: which kernels these are.

    y[n, j, 9*c + 3*k + l] = x[n, c, i + k, j + l]

is read along `j`, and written along `c, k, l`, which are the digits of one index.
"""

from __future__ import annotations

from dataclasses import dataclass

from opgen.algebra.poly import Poly, poly, symbol_atom
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Axis, Define, Kernel, Store


@dataclass(frozen=True, slots=True)
class Transpose:
    """A kernel of one store. Its axes are `outer`, `across` and `along`.

    What is loaded lies side by side `along`, what is stored `across`: these are the digits of its
    last index, slowest first.
    """

    outer: tuple[Axis, ...]
    across: tuple[Axis, ...]
    along: Axis
    defines: tuple[Define, ...]
    store: Store

    @property
    def width(self) -> Poly:
        """How many cells lie side by side."""
        total = poly(1)
        for axis in self.across:
            total = total * axis.extent
        return total


def transpose(kernel: Kernel) -> Transpose | None:
    """The transposition that a kernel is, None if it is none."""
    *defines, store = kernel.body
    if kernel.row is not None or not isinstance(store, Store) or not store.indices:
        return None
    if not all(isinstance(node, Define) for node in defines):
        return None
    across = _digits(store.indices[-1], kernel.axes)
    rows = frozenset[str]().union(*(index.symbols for index in store.indices[:-1]))
    if not across or any(axis.name in rows for axis in across):
        return None
    along = [
        axis
        for axis in kernel.axes
        if axis not in across and axis.name in rows and _is_read_along(kernel, axis, across)
    ]
    if len(along) != 1 or along[0].extent.is_constant or across[0].extent.is_constant:
        return None
    outer = tuple(axis for axis in kernel.axes if axis not in (*across, *along))
    known = tuple(node for node in defines if isinstance(node, Define))
    return Transpose(outer, across, along[0], known, store)


def _digits(index: Poly, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes of which an index is the number, slowest first; none if it is no such number."""
    found: list[Axis] = []
    rest, factor = index, poly(1)
    while rest != 0:
        step = next((axis for axis in axes if _factor(rest, axis) == factor), None)
        if step is None or step in found:
            return ()
        found.insert(0, step)
        rest = rest.substitute({step.name: poly(0)})
        factor = factor * step.extent
    return tuple(found)


def _factor(value: Poly, axis: Axis) -> Poly | None:
    linear = value.linear_in(symbol_atom(axis.name))
    return None if linear is None or axis.name in linear[1].symbols else linear[0]


def _is_read_along(kernel: Kernel, axis: Axis, across: tuple[Axis, ...]) -> bool:
    """Whether what is loaded lies side by side along an axis, or does not depend on it.

    Something must be far apart `across`, too: else rows of what is stored are as good.
    """
    values = {node.name: node.value for node in kernel.body if isinstance(node, Define)}
    turned = False
    for load in loads_of(kernel.body):
        *rows, last = (index.substitute(values) for index in load.indices or (poly(0),))
        if any(axis.name in row.symbols for row in rows):
            return False
        if axis.name in last.symbols:
            if _factor(last, axis) != 1:
                return False
            turned = turned or any(e.name in row.symbols for row in rows for e in across)
    return turned
