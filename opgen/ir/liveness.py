"""Whether lanes still need what an accumulator holds behind a pass over them.

Accumulators live in the lanes of a stretch. A pass that begins one may hold it in registers if no
pass behind it goes on with what it left.
"""

from __future__ import annotations

from collections.abc import Sequence

from opgen.ir.loop_parts import accumulators_of
from opgen.ir.loops import For, If, Kernel, Lanes, Node, Start, walk


def is_read_behind(kernel: Kernel, node: Lanes, accumulator: str) -> bool:
    """Whether some pass may go on with an accumulator that a pass over the lanes began.

    The pass is told from others, which may be equal, by being that object: of one that stands in
    several places, or in none, nothing is known.
    """
    places = sum(each is node for each in walk(kernel.body))
    return places != 1 or _behind(kernel.body, node, accumulator) is not False


def _behind(nodes: Sequence[Node], node: Lanes, name: str) -> bool | None:
    """Whether it is read behind a pass within nodes; None where the pass is not in them.

    Where it is neither read nor begun anew by nodes, whoever asks goes on with what follows.
    """
    for at, each in enumerate(nodes):
        if each is node:
            return _first_use(nodes[at + 1 :], name)
        if isinstance(each, For | If):
            found = _behind(each.body, node, name)
            if found is None:
                continue
            if found or (isinstance(each, For) and _first_use(each.body, name)):
                return True
            return _first_use(nodes[at + 1 :], name)
    return None


def _first_use(nodes: Sequence[Node], name: str) -> bool:
    """Whether nodes may read what an accumulator held before them."""
    for node in nodes:
        match node:
            case For(body=body) | If(body=body):
                if _first_use(body, name):
                    return True
            case Lanes(lower=lower, upper=upper, body=body):
                if name not in accumulators_of(*body):
                    continue
                if not _begins(body, name):
                    return True
                if not lower and not upper:
                    return False  # all lanes begin anew
            case _:
                if name in accumulators_of(node):
                    return not isinstance(node, Start)
    return False


def _begins(body: Sequence[Node], name: str) -> bool:
    """Whether the first thing that a pass does with an accumulator is to begin it."""
    for node in body:
        if name in accumulators_of(node):
            return isinstance(node, Start) and node.value is None
    return False
