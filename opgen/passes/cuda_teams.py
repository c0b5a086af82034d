"""Sums whose terms are shared out among a team of threads.

Where a sum runs through consecutive memory and its cells do not, one thread for each cell would
read a line of memory for every term. A team adds up a cell instead: its threads take the terms in
turn, and add up what each of them has in a fixed order, so the result does not depend on which
thread was faster.
"""

from __future__ import annotations

from dataclasses import replace

from opgen.ir.loops import Accumulate, Define, For, If, Kernel, Node, Start, Store, walk
from opgen.ir.map_loops import symbols_of
from opgen.ir.notation import Reducer


def team_sum(kernel: Kernel) -> Kernel:
    """The kernel with loops in any order, the outermost and the innermost of a nest, if it can be.

    Every term must be in both, or in one that is alone, since each member runs what is around.
    """
    match kernel.body:
        case (Start() as start, *terms, Store() as store):
            pass
        case _:
            return kernel
    inner = tuple(walk(tuple(terms)))
    defined = {node.name for node in inner if isinstance(node, Define | For)}
    found = [node for node in inner if isinstance(node, Accumulate)]
    only_adds = all(
        node.reducer is Reducer.ADD and node.accumulator == start.accumulator for node in found
    )
    simple = all(isinstance(node, Define | For | If | Accumulate) for node in inner)
    if not simple or not only_adds or not defined.isdisjoint(symbols_of(store)):
        return kernel
    shared = _shared(tuple(terms))
    return kernel if shared is None else replace(kernel, body=(start, *shared, store))


def _shared(nodes: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """Nodes of which every term is in a shared nest; None where one is not."""
    out: list[Node] = []
    for node in nodes:
        match node:
            case Accumulate():
                return None
            case If(body=body):
                inner = _shared(body)
                if inner is None:
                    return None
                out.append(replace(node, body=inner))
            case For(body=body):
                inner = _shared_inside(body)
                out.append(replace(node, body=body if inner is None else inner, any_order=True))
            case _:
                out.append(node)
    return tuple(out)


def _shared_inside(nodes: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """The innermost loops shared as well; None where a term is in none, or loops lie side by side.

    Loops side by side may have very different lengths.
    """
    out: list[Node] = []
    for node in nodes:
        match node:
            case Accumulate():
                return None
            case If(body=body) | For(body=body):
                inner = _shared_inside(body)
                if inner is not None:
                    out.append(replace(node, body=inner))
                elif isinstance(node, For):
                    out.append(replace(node, any_order=True))
                else:
                    return None
            case _:
                out.append(node)
    loops = sum(isinstance(node, For | If) for node in nodes)
    return tuple(out) if loops == 1 else None
