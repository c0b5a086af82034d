"""What is the same for neighbouring cells of a thread is added to their sums first.

A sum begins with 0, and what is added to every cell of a row in the end, such as a bias, costs an
addition for each of them. Added first, it is 0 + bias for all of them, computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opgen.ir.loop_parts import results_of
from opgen.ir.loops import (
    Accumulate,
    Always,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Start,
    Store,
    walk,
)
from opgen.ir.notation import Reducer


def added_first(kernel: Kernel) -> Kernel:
    """The kernel with such terms right behind the start of their sums."""
    if kernel.row is None:
        return kernel
    written = {node.tensor for node in walk(kernel.body) if isinstance(node, Store)}
    return replace(kernel, body=_nodes(kernel.body, kernel.row.axis.name, written))


def _nodes(nodes: Sequence[Node], row: str, written: set[str]) -> tuple[Node, ...]:
    out: list[Node] = []
    for node in nodes:
        match node:
            case Lanes(body=body):
                out.append(replace(node, body=_cell(body, row, written)))
            case For(body=body) | If(body=body):
                out.append(replace(node, body=_nodes(body, row, written)))
            case _:
                out.append(node)
    return tuple(out)


def _cell(nodes: Sequence[Node], row: str, written: set[str]) -> tuple[Node, ...]:
    """What is done for a cell; a sum that is read before the term joins it keeps its order."""
    starts: dict[str, int] = {}
    first: dict[int, list[Node]] = {}
    left: list[tuple[int, Node]] = []
    local = {row}
    for at, node in enumerate(nodes):
        match node:
            case Accumulate(accumulator=name, value=Load() as load, present=Always()) if (
                name in starts
                and load.tensor not in written
                and all(local.isdisjoint(index.symbols) for index in load.indices)
                and name not in results_of(tuple(nodes[starts[name] : at]))
            ):
                first.setdefault(starts[name], []).append(node)
                continue
            case Start(accumulator=name, reducer=Reducer.ADD, value=None):
                starts[name] = at
            case Start(accumulator=name):
                starts.pop(name, None)
            case Define(name=name):
                local.add(name)
            case _:
                pass
        left.append((at, node))
    return tuple(each for at, node in left for each in (node, *first.get(at, ())))
