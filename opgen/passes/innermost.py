"""A sum's loops in another order, where none of its terms lie side by side as they stand.

`sum(n,c,i,j) x[n,i+k,j+l,c] * y[n,i,j,2*c]` has its loops in the order of the spec: with j
innermost every term is a row of channels further on, and each waits for the one before. With c
innermost the terms are vectors. A sum may be added in any order.

That is for few cells with long sums, such as the gradient of a filter that all channels share:
where cells are many, the loops of a sum may as well be short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from opgen.ir.loops import Accumulate, Always, For, Kernel, Node
from opgen.ir.notation import Reducer


def with_sum_innermost(kernel: Kernel, score: Callable[[For], int]) -> Kernel:
    """The kernel with that loop of its one sum innermost that scores best; itself if none may be.

    No other loop may depend on it, and it must not be the innermost one already.
    """
    if not all(axis.extent.is_constant for axis in kernel.axes):
        return kernel
    places = [at for at, node in enumerate(kernel.body) if isinstance(node, For)]
    if len(places) != 1:
        return kernel
    loops, terms = _nest(kernel.body[places[0]])
    if not terms or not all(_may_move(node) for node in terms):
        return kernel
    bounds = {
        each.name: frozenset[str]().union(*(b.symbols for b in (*each.lower, *each.upper)))
        for each in loops
    }
    free = [
        each for each in loops[:-1] if not any(each.name in symbols for symbols in bounds.values())
    ]
    if not free:
        return kernel
    inner = max(free, key=score)
    body = terms
    for loop in (inner, *(each for each in reversed(loops) if each is not inner)):
        body = (replace(loop, body=body),)
    begin, end = kernel.body[: places[0]], kernel.body[places[0] + 1 :]
    return replace(kernel, body=(*begin, *body, *end))


def _nest(node: Node) -> tuple[list[For], tuple[Node, ...]]:
    """Loops that have nothing but the next one in them, and what is in the last one."""
    loops: list[For] = []
    body: tuple[Node, ...] = (node,)
    while len(body) == 1 and isinstance(body[0], For):
        loops.append(body[0])
        body = body[0].body
    return loops, body


def _may_move(node: Node) -> bool:
    return (
        isinstance(node, Accumulate)
        and node.reducer is Reducer.ADD
        and node.present == Always()
        and node.position is None
    )
