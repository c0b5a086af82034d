"""How much a kernel has to do: an estimate from its loops.

It decides what is worth sharing out among threads. It need not be exact, and never changes results.
"""

from __future__ import annotations

from collections.abc import Iterable

from opgen.algebra.poly import Poly, maximum, minimum, poly
from opgen.ir.loops import (
    Accumulate,
    AtomicAdd,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Node,
    Start,
    Store,
    walk,
)
from opgen.ir.map_loops import map_nodes

_UNKNOWN = 8
"""How often a loop is taken to run whose bounds are read from a tensor."""


_UNSEEN = 32
"""How often a loop is taken to run whose bounds depend on the cell."""


def points(kernel: Kernel) -> Poly:
    """The number of parallel points."""
    count = poly(1)
    for axis in kernel.axes:
        count = count * axis.extent
    for row in kernel.stretched:
        count = count * row.stretches
    return count


def work(kernel: Kernel, known: Iterable[str]) -> Poly:
    """The number of terms and cells at one parallel point, as a formula of the known symbols."""
    lanes = poly(1)
    if kernel.row is not None:
        lanes = minimum(kernel.row.axis.extent, kernel.row.width)
    group = kernel.group
    body = kernel.body
    if group is not None:
        # Loops over the rows of a group run as often as there are rows.
        count = minimum(group.axis.extent, group.width)
        values = {group.first: poly(0), group.last: count - 1}
        body = map_nodes(body, lambda value: value.substitute(values))
    return _nodes(body, lanes, frozenset(known))


def shared_lengths(kernel: Kernel, known: Iterable[str]) -> tuple[Poly, ...]:
    """How often the outermost and the innermost loop of any order run, about; 1 for a single one.

    Nothing for a kernel without such a loop. Where it depends on the cell it is taken for 32.
    """
    loops = [each for each in walk(kernel.body) if isinstance(each, For) and each.any_order]
    if not loops or kernel.row is not None:
        return ()
    inner = loops[-1]
    outer = [each for each in loops[:-1] if inner in walk(each.body)]
    symbols = frozenset(known)

    def length(node: For) -> Poly:
        counts = (upper - lower + 1 for upper in node.upper for lower in node.lower)
        plain = [count for count in counts if count.symbols <= symbols]
        return min(plain, key=lambda count: len(str(count)), default=poly(_UNSEEN))

    return (length(outer[0]) if outer else poly(1)), length(inner)


def _nodes(nodes: Iterable[Node], lanes: Poly, known: frozenset[str]) -> Poly:
    total = poly(0)
    for node in nodes:
        match node:
            case For(lower=lower, upper=upper, body=body):
                total += _count(lower, upper, known) * _nodes(body, lanes, known)
            case Lanes(body=body):
                total += lanes * _nodes(body, lanes, known)
            case If(body=body):
                total += _nodes(body, lanes, known)
            case Accumulate() | Store() | AtomicAdd():
                total += 1
            case Define() | Start():
                pass
    return total


def _count(lower: tuple[Poly, ...], upper: tuple[Poly, ...], known: frozenset[str]) -> Poly:
    """How often a loop runs, where everything that changes inside the kernel is 1."""
    count = minimum(*upper) - maximum(*lower) + 1
    if count.is_data_dependent:
        return poly(_UNKNOWN)
    return maximum(count.substitute(dict.fromkeys(count.symbols - known, poly(1))), 1)
