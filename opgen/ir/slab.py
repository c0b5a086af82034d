"""Windows over whole planes: which kernels read and write planes that lie one behind the other.

    y[n, c, i, j] = sum(k, l) x[n, c, i + k, j + l] * w[c, k, l]

Plane number `n*C + c` of `y` needs that of `x` alone. A block can take some consecutive ones, which
are one consecutive stretch of memory, however long their rows are.
"""

from __future__ import annotations

from dataclasses import dataclass

from opgen.algebra.poly import Poly, symbol
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import For, Kernel, Lanes, Load, Node, Program, Store, walk


@dataclass(frozen=True, slots=True)
class Slab:
    """The tensors of which a kernel `reads` whole planes, and the one that it writes."""

    reads: tuple[str, ...]
    written: str


def slab(kernel: Kernel, program: Program) -> Slab | None:
    """The planes of a kernel that stores every cell of its tensor once; None if it has none."""
    row, group = kernel.row, kernel.group
    if row is None or group is None or not kernel.axes or kernel.beside:
        return None
    nodes = tuple(walk(kernel.body))
    if any(isinstance(node, For) and node.name != group.axis.name for node in nodes):
        return None
    extents = tuple(axis.extent for axis in (*kernel.axes, group.axis, row.axis))
    stores = [node for node in nodes if isinstance(node, Store)]
    if len(stores) != 1 or not _is_reached(kernel.body, stores[0]):
        return None
    (store,) = stores
    cell = tuple(symbol(axis.name) for axis in (*kernel.axes, group.axis, row.axis))
    if store.indices != cell or program.operand(store.tensor).extents != extents:
        return None
    reads = []
    loads = loads_of(nodes)
    if any(load.tensor == store.tensor for load in loads):
        return None  # it goes on with what another kernel left
    operands = {operand.name: operand for operand in program.operands}
    for name in dict.fromkeys(load.tensor for load in loads):
        own = [load for load in loads if load.tensor == name]
        if (
            name in operands
            and name != store.tensor
            and operands[name].extents[:-2] == extents[:-2]
            and len(set(own)) > 1
            and all(_is_of_plane(load, cell, group.axis.name) for load in own)
        ):
            reads.append(name)
    return Slab(tuple(reads), store.tensor) if reads else None


def _is_reached(nodes: tuple[Node, ...], store: Store) -> bool:
    """Whether a store is executed for every cell."""
    for node in nodes:
        match node:
            case For(body=body):
                if _is_reached(body, store):
                    return True
            case Lanes(lower=(), upper=(), body=body):
                if _is_reached(body, store):
                    return True
            case _ if node is store:
                return True
            case _:
                pass
    return False


def _is_of_plane(load: Load, cell: tuple[Poly, ...], rows: str) -> bool:
    """Whether a load is of the plane of the cell, a row further for every row."""
    if len(load.indices) != len(cell) or load.indices[:-2] != cell[:-2]:
        return False
    return load.indices[-2].step_in(rows) == 1
