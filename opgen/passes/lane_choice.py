"""Along which index the innermost loop of a kernel runs.

A choice is scored by the tensors it walks through: consecutive addresses are loaded a vector at a
time, an address that stays is loaded once, and far apart ones are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from opgen.algebra.poly import Atom, Kind, Poly, of_atom, symbol, symbol_atom
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, Define, For, Kernel, Node, Store, walk
from opgen.ir.notation import Reducer
from opgen.passes.moving_loops import step


class Way(Enum):
    """What the innermost loop runs over."""

    ROW = "cells along an axis"
    SUM = "terms of one cell, in any order"
    POINTS = "whatever it runs over"


@dataclass(frozen=True, slots=True)
class Choice:
    """A way, and the axis or loop it concerns."""

    way: Way
    name: str = ""


_CONSECUTIVE: Final = 2
_SPREAD: Final = -1  # a fixed number of elements apart
_SCATTERED: Final = -4  # rows or planes apart
_SHORT: Final = -6  # fewer values than a vector holds
_SHORTEST: Final = 8
_VECTOR: Final = 16  # terms side by side, of which a sum of its own takes a third of the time
_FEWEST: Final = 4  # terms that are worth a vector with most of its lanes empty


_SUMS: Final = (Reducer.ADD,)


def choose(
    kernel: Kernel, shared: Collection[Reducer] = _SUMS, *, are_parts_long: bool = True
) -> Choice:
    """The best way; among equals the last axis.

    Terms of one cell that a `shared` reducer joins may be taken in any order. Parts of a dim of
    which no length is known, as `d` in `sum(d) x[b,(i d)]`, are taken to be rows where
    `are_parts_long`: the CPU has kernels of its own for short ones, which windows are.
    """
    loads = _loads(kernel)
    stores = [node.indices for node in walk(kernel.body) if isinstance(node, Store)]
    loops = [node for node in walk(kernel.body) if isinstance(node, For) and are_parts_long]
    best, best_score = Choice(Way.POINTS), -1
    for axis in reversed(kernel.axes):
        along = {loop.name: symbol(axis.name) for loop in _moving(kernel, axis.name)}
        score = sum(_walk_by(_substituted(access, along), axis.name, loops) for access in loads)
        for store in stores:
            filled = _is_filled(kernel, store, axis.name)
            score += _CONSECUTIVE if filled else _walk(store, axis.name)
        score += 0 if _share_lists(kernel, axis.name) else _length(axis.extent)
        if score > best_score:
            best, best_score = Choice(Way.ROW, axis.name), score
    for loop in _sums(kernel.body, shared):
        # The result of a cell is added up at the end of the loop: the row wins a draw.
        score = walks(kernel, loop) - 1
        if score > best_score:
            best, best_score = Choice(Way.SUM, loop.name), score
    sums = list(_sums(kernel.body, shared))
    are_sums = sums == [node for node in walk(kernel.body) if _is_innermost(node)]
    if best.way is Way.ROW and are_sums and _have_side_by_side(kernel, sums, best.name):
        return Choice(Way.SUM, sums[0].name)
    return best


def _share_lists(kernel: Kernel, name: str) -> bool:
    """Whether cells along an axis go through the same lists of points, or ranges that tensors hold.

    They look up each place once then, and wait for it once, however few they are.
    """
    values = _definitions(kernel)
    loops = [node for node in walk(kernel.body) if isinstance(node, For)]
    bounds = [b.substitute(values) for each in loops for b in (*each.lower, *each.upper)]
    return any(b.is_data_dependent for b in bounds) and all(name not in b.symbols for b in bounds)


def _is_innermost(node: Node) -> bool:
    return isinstance(node, For) and not any(isinstance(each, For) for each in walk(node.body))


def _have_side_by_side(kernel: Kernel, loops: Sequence[For], axis: str) -> bool:
    """Whether long loops have all in a row of which cells along an axis would load from rows apart,
    or all the same.

    What else they load is the same in every turn, however well it lies.
    """
    return bool(loops) and all(_has_side_by_side(kernel, loop, axis) for loop in loops)


def _has_side_by_side(kernel: Kernel, loop: For, axis: str) -> bool:
    if any(_length(bound + 1) for bound in loop.upper):
        return False
    values = _definitions(kernel)
    loads = [_substituted(load.indices, values) for load in loads_of(walk(loop.body))]
    moving = [each for each in loads if any(loop.name in index.symbols for index in each)]
    ways = {_walk(each, axis) for each in moving}
    are_in_row = all(_walk(each, loop.name) == _CONSECUTIVE for each in moving)
    return _SCATTERED in ways and ways <= {_SCATTERED, 0} and are_in_row


def sums_of_rows(kernel: Kernel) -> Iterator[str]:
    """The names of the sums of a cell that go through rows, one after the other."""
    values = _definitions(kernel)
    for loop in _sums(kernel.body):
        loads = [_substituted(load.indices, values) for load in loads_of(walk(loop.body))]
        ways = {_walk(each, loop.name) for each in loads}
        if loop in kernel.body and _CONSECUTIVE in ways and ways <= {_CONSECUTIVE, 0}:
            yield loop.name


def short_sum(kernel: Kernel) -> Choice:
    """The sum to run over where no row and no longer sum is worth it: over half a vector, say.

    Without one a kernel runs through its points one by one, and through each window's terms.
    """
    found = [
        loop
        for loop in _sums(kernel.body)
        if any(b.is_constant and _FEWEST <= b.constant + 1 < _SHORTEST for b in loop.upper)
        and not any(loop in _moving(kernel, axis.name) for axis in kernel.axes)
    ]
    scores = {loop.name: walks(kernel, loop) - _SHORT - 1 for loop in reversed(found)}
    best = max(scores, key=lambda name: scores[name], default="")
    return Choice(Way.SUM, best) if scores.get(best, -1) >= 0 else Choice(Way.POINTS)


def stored_row(kernel: Kernel) -> Choice:
    """A row of results side by side, where nothing that is read lies so.

    What differs from row to row, and conditions on its ends, are then not looked at for each cell:
    columns of an image in channels-last format take a fifth of the time, and an image from columns
    of windows side by side a twentieth. Not so where a loop goes through what lies side by side.
    """
    loads = _loads(kernel)
    loops = (node.name for node in walk(kernel.body) if isinstance(node, For))
    if any(_walk(each, name) == _CONSECUTIVE for name in loops for each in loads):
        return Choice(Way.POINTS)
    stores = [node.indices for node in walk(kernel.body) if isinstance(node, Store)]
    for axis in reversed(kernel.axes):
        is_short = axis.extent.is_constant and axis.extent.constant < _SHORTEST
        if not is_short and stores and all(_walk(s, axis.name) == _CONSECUTIVE for s in stores):
            return Choice(Way.ROW, axis.name)
    return Choice(Way.POINTS)


def walks(kernel: Kernel, loop: For) -> int:
    """How well a loop loads what the kernel does, wherever it stands."""
    score = sum(_walk(access, loop.name) for access in _loads(kernel))
    if any(loop in _moving(kernel, axis.name) for axis in kernel.axes):
        return score + _SHORT
    return score + min((_length(bound + 1) for bound in loop.upper), default=0)


def _moving(kernel: Kernel, name: str) -> list[For]:
    """Loops of few terms whose range moves with an axis, one step for some of its cells."""
    values = _definitions(kernel)
    loops = (node for node in walk(kernel.body) if isinstance(node, For))
    return [loop for loop in loops if step(loop, name, values) > 1]


def _loads(kernel: Kernel) -> list[tuple[Poly, ...]]:
    """The indices of all loads in terms of axes and loops."""
    values = _definitions(kernel)
    return [_substituted(load.indices, values) for load in loads_of(walk(kernel.body))]


def _substituted(indices: tuple[Poly, ...], values: Mapping[str, Poly]) -> tuple[Poly, ...]:
    return tuple(index.substitute(values) for index in indices)


def _length(extent: Poly) -> int:
    return _SHORT if extent.is_constant and extent.constant < _SHORTEST else 0


def _walk(indices: tuple[Poly, ...], name: str) -> int:
    """How the address of an access moves with one index."""
    if any(name in index.symbols for index in indices[:-1]):
        return _SCATTERED
    if not indices or name not in indices[-1].symbols:
        return 0
    return _CONSECUTIVE if _unclamped(indices[-1], name).step_in(name) in (1, -1) else _SPREAD


def _walk_by(indices: tuple[Poly, ...], name: str, loops: Sequence[For]) -> int:
    """The same; a step that is a whole loop, of no few terms, is one from row to row, in a dim that
    is several: `i` in `sum(d) x[b,(i d)]`."""
    linear = indices[-1].linear_in(symbol_atom(name)) if indices else None
    if linear is not None:
        step_, _ = linear
        is_long = not step_.is_constant or step_.constant >= _VECTOR
        if is_long and any(bound + 1 == step_ for loop in loops for bound in loop.upper):
            return _SCATTERED
    return _walk(indices, name)


def _unclamped(value: Poly, name: str) -> Poly:
    """The value away from the ends of its range."""

    def change(atom: Atom) -> Poly:
        moving = [arg for arg in atom.args if name in arg.symbols]
        if atom.kind in (Kind.MIN, Kind.MAX) and len(moving) == 1:
            return _unclamped(moving[0], name)
        return of_atom(atom)

    return value.map_atoms(change)


def _is_filled(kernel: Kernel, indices: tuple[Poly, ...], name: str) -> bool:
    """Whether another axis fills the gaps that steps along this one leave."""
    if not indices:
        return False
    step = indices[-1].step_in(name)
    return any(
        axis.extent == step and indices[-1].step_in(axis.name) == 1
        for axis in kernel.axes
        if axis.name != name
    )


def _definitions(kernel: Kernel) -> Mapping[str, Poly]:
    """The definitions in the body in terms of axes and loops, as far as a name has one meaning."""
    values: dict[str, Poly] = {}
    for node in walk(kernel.body):
        if isinstance(node, Define):
            values.setdefault(node.name, node.value.substitute(values))
    return values


def _sums(body: tuple[Node, ...], shared: Collection[Reducer] = _SUMS) -> Iterator[For]:
    """Innermost loops that only add, or only join terms in another of these ways."""
    for node in walk(body):
        if isinstance(node, For) and _is_innermost(node):
            terms = (each for each in walk(node.body) if isinstance(each, Accumulate))
            if all(term.reducer in shared for term in terms):
                yield node
