"""A sum's loops in another order, where none of its terms lie side by side as they stand.

`sum(n,c,i,j) x[n,i+k,j+l,c] * y[n,i,j,2*c]` has its loops in the order of the spec: with j
innermost every term is a row of channels further on, and each waits for the one before. With c
innermost the terms are vectors. A sum may be added in any order.

That is for few cells with long sums, such as the gradient of a filter that all channels share:
where cells are many, the loops of a sum may as well be short. For any number of cells a loop goes
inside that is not known to be short, if all that terms read lies side by side along it.

Several sums of a cell may have their first loops in common, as differences along rows and along
columns do. Each of them has loops of its own then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from opgen.ir.loop_parts import goes_along, loads_of
from opgen.ir.loops import Accumulate, Always, For, Kernel, Node
from opgen.ir.notation import Reducer
from opgen.ir.plane import LANES


@dataclass(frozen=True, slots=True)
class _Nest:
    """Loops that have nothing but the next one in them, and what is in the last one."""

    loops: tuple[For, ...]
    terms: tuple[Node, ...]

    def with_innermost(self, name: str) -> For | None:
        """The same with the loop of that name innermost; None where it may not be."""
        if not self.terms or not all(_may_move(node) for node in self.terms):
            return None
        inner = next((each for each in self.loops if each.name == name), None)
        if inner is None or any(name in _symbols(each) for each in self.loops):
            return None
        if any(each.name in _symbols(inner) for each in self.loops):
            return None
        body = self.terms
        for loop in (inner, *(each for each in reversed(self.loops) if each is not inner)):
            body = (replace(loop, body=body),)
        (whole,) = body
        assert isinstance(whole, For)
        return whole


def with_sum_innermost(kernel: Kernel, score: Callable[[For], int]) -> Kernel:
    """The kernel with that loop of its sums innermost that scores best; itself if none may be.

    No other loop may depend on it, and it must not be the innermost one already.
    """
    are_few = all(axis.extent.is_constant for axis in kernel.axes)
    places = [at for at, node in enumerate(kernel.body) if isinstance(node, For)]
    if len(places) != 1:
        return kernel
    nests = _nests(kernel.body[places[0]], ())
    if nests is None:
        return kernel
    free = [
        each
        for each in nests[0].loops[:-1]
        if (are_few or _is_worth_it(each, nests))
        and all(nest.with_innermost(each.name) for nest in nests)
    ]
    if not free:
        return kernel
    inner = max(free, key=score)
    moved = [found for nest in nests if (found := nest.with_innermost(inner.name)) is not None]
    begin, end = kernel.body[: places[0]], kernel.body[places[0] + 1 :]
    return replace(kernel, body=(*begin, *moved, *end))


def _nests(node: Node, around: tuple[For, ...]) -> list[_Nest] | None:
    """The nests of loops that a loop and those `around` it are; None where one is something else.

    The first loops of several nests are the same.
    """
    assert isinstance(node, For)
    loops = (*around, node)
    inner = [each for each in node.body if isinstance(each, For)]
    if not inner:
        return [_Nest(loops, node.body)]
    if len(inner) < len(node.body):
        return None
    found: list[_Nest] = []
    for each in inner:
        nests = _nests(each, loops)
        if nests is None:
            return None
        found += nests
    return found


def _symbols(loop: For) -> frozenset[str]:
    return frozenset[str]().union(*(bound.symbols for bound in (*loop.lower, *loop.upper)))


def _is_worth_it(loop: For, nests: Sequence[_Nest]) -> bool:
    """Whether a loop is not known to be short, and goes along what lies side by side alone."""
    bounds = [each.constant + 1 for each in loop.upper if each.is_constant]
    loads = [load.indices for nest in nests for load in loads_of(nest.terms)]
    are_neighbours = bool(loads) and all(goes_along(indices, loop.name) for indices in loads)
    return are_neighbours and not any(bound < LANES for bound in bounds)


def _may_move(node: Node) -> bool:
    return (
        isinstance(node, Accumulate)
        and node.reducer is Reducer.ADD
        and node.present == Always()
        and node.position is None
    )
