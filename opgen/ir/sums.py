"""Sums that several blocks can share: which kernels are such sums, and what they are made of.

    total = 0, for every cell
    for n < N, i < H, j < W in any order
        total += term, where some conditions hold
    cell = total

Terms of a box can be shared out in any way, stretches of neighbouring ones among them; so can those
of a maximum or a minimum. Where a
thread has a row of cells, of which each has a serial sum, turns of the loop can be shared out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opgen.algebra.poly import ZERO, Poly, poly
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, Axis, Define, For, Kernel, Lanes, Node, Start, Store, walk
from opgen.ir.notation import Reducer

SHARED = (Reducer.ADD, Reducer.MAX, Reducer.MIN)
"""What several threads can have parts of."""


@dataclass(frozen=True, slots=True)
class BoxSum:
    """A kernel that starts accumulators, adds up terms at every point of a box, stores them.

    All of them are sums, or all maxima, or all minima: of one `reducer`.

    Terms may store cells of tensors that the kernel writes beside its sums, one for every point.
    It is `across` where what terms load at neighbouring points lies apart, at neighbouring cells
    side by side.
    """

    starts: tuple[Start, ...]
    box: tuple[Axis, ...]
    terms: tuple[Node, ...]
    stores: tuple[Store, ...]
    across: bool = False

    @property
    def reducer(self) -> Reducer:
        """What joins two terms."""
        return self.starts[0].reducer


def box_sum(kernel: Kernel, integers: Iterable[str]) -> BoxSum | None:
    """The sum that a kernel is, None if it is none; `integers` are known at a launch."""
    starts = tuple(node for node in kernel.body if isinstance(node, Start))
    stores = tuple(node for node in kernel.body if isinstance(node, Store))
    inner = kernel.body[len(starts) : len(kernel.body) - len(stores)]
    if kernel.row is not None or any(start.value is not None for start in starts):
        return None
    known = frozenset(integers)
    box: list[Axis] = []
    while True:
        match inner:
            case (For(name=name, body=body, any_order=True) as loop,):
                extent = _length(loop, known)
                if extent is None:
                    return None
                box.append(Axis(name, extent))
                inner = body
            case _:
                break
    if not box or not stores or any(isinstance(node, For) for node in walk(inner)):
        return None
    if not _are_of_one_kind(starts, inner):
        return None
    own = (node.tensor for node in walk(inner) if isinstance(node, Start | Store))
    if any(tensor not in kernel.also for tensor in own):
        return None
    return BoxSum(starts, tuple(box), inner, stores, _is_across(kernel, box, inner))


def phase_of(kernel: Kernel, cells: tuple[Axis, ...], integers: Iterable[str]) -> BoxSum:
    """What a phase of a `Chain` does for each of the cells: sums over a box, or stores at its
    points."""
    found = box_sum(kernel, integers)
    return found or BoxSum((), kernel.axes[len(cells) :], kernel.body, ())


def is_along(found: BoxSum) -> bool:
    """Whether all that terms load at neighbouring points of a box lies side by side."""
    points = {axis.name for axis in found.box}
    loads = (load.indices for load in loads_of(walk(found.terms)) if load.indices)
    moving = [each for each in loads if any(not points.isdisjoint(i.symbols) for i in each)]
    nearest = found.box[-1].name
    is_plain = not found.across and bool(moving)
    return is_plain and all(each[-1].step_in(nearest) == 1 for each in moving)


def _are_of_one_kind(starts: tuple[Start, ...], terms: tuple[Node, ...]) -> bool:
    """Whether parts of all accumulators can be put together in one way."""
    own = {start.accumulator for start in starts}
    joined = (node for node in walk(terms) if isinstance(node, Accumulate))
    reducers = {start.reducer for start in starts}
    reducers |= {node.reducer for node in joined if node.accumulator in own}
    return len(reducers) == 1 and reducers <= {*SHARED}


def _is_across(kernel: Kernel, box: Iterable[Axis], terms: tuple[Node, ...]) -> bool:
    """Whether loads move along their last index with cells, and none with points of the box.

    What is the same for all cells may lie in any way: they load it once.
    """
    last: set[str] = set()
    cells = {axis.name for axis in kernel.axes}
    defined = {node.name for node in walk(terms) if isinstance(node, Define)}
    for load in loads_of(walk(terms)):
        moving = {name for index in load.indices for name in index.symbols}
        if not moving.isdisjoint(cells | defined):
            last.update(load.indices[-1].symbols)
    is_along_cells = not cells.isdisjoint(last)
    return is_along_cells and last.isdisjoint({*defined, *(axis.name for axis in box)})


@dataclass(frozen=True, slots=True)
class SerialSum:
    """A kernel whose points add up their cells in a loop: `head` starts them, `tail` stores them.

    `length` is how many turns the loop has, `turn` how many terms a turn, about.
    """

    head: tuple[Node, ...]
    loop: For
    tail: tuple[Node, ...]
    starts: tuple[Start, ...]
    length: Poly
    turn: Poly


def serial_sum(kernel: Kernel, integers: Iterable[str]) -> SerialSum | None:
    """The sums along a row that a kernel is, None if it is none."""
    known = frozenset(integers)
    loops = [at for at, node in enumerate(kernel.body) if _is_loop(node, kernel)]
    if kernel.row is None or len(loops) != 1:
        return None
    (at,) = loops
    head, loop, tail = kernel.body[:at], kernel.body[at], kernel.body[at + 1 :]
    assert isinstance(loop, For)
    length = _length(loop, known)
    starts = tuple(node for node in walk(head) if isinstance(node, Start))
    inside = tuple(walk(loop.body))
    if (
        length is None
        or not _consist_of(head, Start)
        or not _consist_of(tail, Store)
        or any(each.value is not None or each.reducer is not Reducer.ADD for each in starts)
        or any(isinstance(each, Start | Store) for each in inside)
        or any(isinstance(e, Accumulate) and e.reducer is not Reducer.ADD for e in inside)
    ):
        return None
    turn = poly(1)
    for each in inside:
        if isinstance(each, For) and _is_loop(each, kernel):
            turn *= _length(each, known) or poly(1)
    return SerialSum(head, loop, tail, starts, length, turn)


def _is_loop(node: Node, kernel: Kernel) -> bool:
    """Whether a node is a loop, not one over the rows of a group."""
    group = kernel.group
    return isinstance(node, For) and (group is None or node.name != group.axis.name)


def _length(loop: For, known: frozenset[str]) -> Poly | None:
    """How often a loop runs; None where a launch does not know."""
    if loop.lower != (ZERO,) or len(loop.upper) != 1:
        return None
    extent = loop.upper[0] + 1
    return None if extent.is_data_dependent or not extent.symbols <= known else extent


def _consist_of(nodes: tuple[Node, ...], kind: type[Start] | type[Store]) -> bool:
    """Whether there is nothing of that kind but in passes over all cells, and nothing else."""
    return bool(nodes) and all(isinstance(each, Lanes | For | kind) for each in walk(nodes))
