"""Loops through rows of a tensor that all threads of a warp go through side by side.

Before: a thread runs a loop over the channels `c` of a cell `v = w + c*step` from the first one
that reaches its own cells. Where neighbouring threads begin at other channels they read in every
turn what lies that far apart: 32 rows, of each a few bytes (512 channels of 256 columns took 6.9 ms
on an H100 that copies them in 0.9). After: all threads of a warp begin and end where one of them
has to, so that they read one row, side by side, and in the turns at both ends each asks for its own
cells, as it did before.

In a loop within a row, such as that over the taps of a window, other turns are neighbours in memory
and threads go on to begin by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from opgen.algebra.poly import Poly, symbol
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import Define, For, If, Kernel, Node, Row, walk
from opgen.ir.names import fresh_name


def in_warps(kernel: Kernel, known: Iterable[str]) -> Kernel:
    """The kernel, which has a row, with the ends of such loops of a whole warp."""
    row = kernel.row
    if row is None:
        return kernel
    taken = integer_names(kernel, known=known)
    first, last = (fresh_name(f"{row.axis.name}_warp_{end}", taken) for end in ("first", "last"))
    ends = {row.first: symbol(first), row.last: symbol(last)}
    body = _nodes(kernel.body, row, ends)
    if body == kernel.body:
        return kernel
    return replace(kernel, row=replace(row, around=(first, last)), body=body)


def _nodes(nodes: Sequence[Node], row: Row, ends: dict[str, Poly]) -> tuple[Node, ...]:
    out: list[Node] = []
    for node in nodes:
        match node:
            case For(lower=lower, upper=upper, body=body):
                inner = _nodes(body, row, ends)
                if _leaves_rows(node, row.axis.name):
                    lower = tuple(bound.substitute(ends) for bound in lower)
                    upper = tuple(bound.substitute(ends) for bound in upper)
                out.append(replace(node, lower=lower, upper=upper, body=inner))
            case If(body=body):
                out.append(replace(node, body=_nodes(body, row, ends)))
            case _:
                out.append(node)
    return tuple(out)


def _leaves_rows(loop: For, lane: str) -> bool:
    """Whether its turns read along several rows of a tensor, each by neighbouring cells."""
    turns, lanes = (_moving(loop, name) for name in (loop.name, lane))
    return any(
        not lanes.isdisjoint(load.indices[-1].symbols)
        and any(not turns.isdisjoint(index.symbols) for index in load.indices[:-1])
        for load in loads_of(walk(loop.body))
        if load.indices
    )


def _moving(loop: For, name: str) -> Set[str]:
    """The name and what is defined by means of it."""
    found = {name}
    for node in walk(loop.body):
        if isinstance(node, Define) and not found.isdisjoint(node.value.symbols):
            found.add(node.name)
    return found
