"""Kernels that go through the same points as one kernel, which reads what they share once.

Before: the gradients of an op for several of its inputs are kernels of their own, each of which
reads the gradient of the result. After: a kernel of sums over a box has the sums of other kernels
over the same box as well, and at every point it stores the cell of a kernel whose cells are these
points. So a depthwise convolution reads its input and the gradient of its result once for the
gradients of its input, its filter and its bias. Sums of rows of cells that go through the same
loops are one kernel likewise.

It is done where more than a tenth of what both move is spared, and registers last. Sizes are not
known here: all of them count as the same, so tensors compare by their number of dims.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.ir.loop_parts import accumulators_of, loads_of, read_by, uses
from opgen.ir.loops import (
    Accumulate,
    Axis,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Program,
    Start,
    Store,
    walk,
)
from opgen.ir.map_loops import map_nodes, renamed
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.ir.sums import BoxSum, box_sum
from opgen.passes.cuda_serial_siblings import together

_USUAL_SIZE: Final = 64
_LEAST_SPARED: Final = 10
"""One part in so many of what two kernels move must be spared."""

_MOST_VALUES: Final = 96
"""The most values that a thread keeps: of 128 registers others hold addresses and counters."""

_FEW_VALUES: Final = 2
"""Of a few more than the larger kernel keeps alone nothing has to be feared."""

_STRETCH: Final = 4
"""The usual number of neighbours along each axis of a stretch that a thread takes at a time."""


def with_siblings(program: Program) -> Program:
    """The program with sums over boxes that compute what other kernels do, too."""
    kernels = list(program.kernels)
    at = 0
    while at < len(kernels):
        found = _first_joined(program, kernels, at)
        if found is None:
            at += 1
            continue
        other, joined = found
        # Where the later one was, everything is there that either reads.
        kernels[max(at, other)] = joined
        del kernels[min(at, other)]
        at = 0
    return replace(program, kernels=tuple(kernels))


def _first_joined(
    program: Program, kernels: Sequence[Kernel], at: int
) -> tuple[int, Kernel] | None:
    """Another kernel that the sums of this one can have beside them, and both as one.

    Other sums come first: a thread that also has cells of a tensor takes few rows of them.
    """
    are_cells = [box_sum(kernel, program.integers) is None for kernel in kernels]
    for other in sorted(range(len(kernels)), key=are_cells.__getitem__):
        if other != at and _are_independent(program, kernels, at, other):
            joined = _joined(program, kernels[at], kernels[other])
            if joined is not None:
                return other, joined
    return None


def _are_independent(program: Program, kernels: Sequence[Kernel], one: int, two: int) -> bool:
    """Whether kernels may run at once, where the later one is."""
    both = (kernels[one], kernels[two])
    own = [tensor for kernel in both for tensor in kernel.all_written]
    others = [each for each in kernels if each not in both]
    written = [tensor for kernel in others for tensor in kernel.all_written]
    wide = {name for each in program.workspaces for name in (each.name, each.output)}
    read = read_by(*kernels)
    between = kernels[min(one, two) + 1 : max(one, two)]
    changed = {tensor for kernel in between for tensor in kernel.all_written}
    return (
        all(map(_is_plain, both))
        and len(set(own)) == len(own)
        and wide.isdisjoint(own)
        and set(own).isdisjoint((*written, *read))
        and changed.isdisjoint(read_by(kernels[min(one, two)]))
    )


def _is_plain(kernel: Kernel) -> bool:
    """Whether there is nothing that the other kernel would have to have, too."""
    return (
        kernel.is_deterministic
        and kernel.contraction is None
        and kernel.only is None
        and not kernel.prologue
        and not kernel.local
        and not uses(kernel).faults
    )


def _joined(program: Program, sums: Kernel, other: Kernel) -> Kernel | None:
    """Both as one kernel; None where the first is no sum over a box, or it is not worth it."""
    found = box_sum(sums, program.integers)
    if not _have_one_type(program, sums, other):
        return None
    if found is None:
        return _of_same_loops(program, sums, other)
    if found.reducer is not Reducer.ADD:
        return None
    points = (*sums.axes, *found.box)
    for part in _parts(program, other, sums):
        for names in _pairings(part, points, len(sums.axes)):
            moved = part.moved(names, sums)
            kernel = _with_part(sums, found, moved, other)
            # A cell that begins with a total of another name is nothing that such a sum can store.
            is_sum = box_sum(kernel, program.integers) is not None
            is_worth_it = is_sum and _is_worth_it(program, sums, moved)
            if is_worth_it and _fits(kernel, sums, moved, found.box[-2:]):
                return kernel
    return None


def _of_same_loops(program: Program, sums: Kernel, other: Kernel) -> Kernel | None:
    """Both as one kernel that goes through the loops of both; None where it is not worth it."""
    found = together(sums, other, program.integers)
    if found is None:
        return None
    part = _Part((), 0, (), (), found.added)
    axes = [row.axis for row in sums.stretched]
    is_worth_it = _is_worth_it(program, sums, part)
    return found.kernel if is_worth_it and _fits(found.kernel, sums, part, axes) else None


def _have_one_type(program: Program, *kernels: Kernel) -> bool:
    """Whether all elements are of the type of the call: parts of sums lie in one array."""
    names = {name for each in kernels for name in (*each.all_written, *read_by(each))}
    operands = {each.name: each for each in (*program.operands, *program.unstored)}
    return all(name in operands and operands[name].dtype.is_generic for name in names)


# ---------------------------------------------------------------------------- what is added
@dataclass(frozen=True, slots=True)
class _Part:
    """What a kernel does: sums around its points, none where each point is a cell of its own.

    `cells` are the first of the axes of its points, which those sums have as well.
    """

    axes: tuple[Axis, ...]
    cells: int
    starts: tuple[Node, ...]
    terms: tuple[Node, ...]
    stores: tuple[Node, ...]

    def moved(self, names: Mapping[str, str], sums: Kernel) -> _Part:
        """The same at the points of the sums, with names of its own for everything else."""
        taken = set(accumulators_of(*sums.body))
        own = (*self.starts, *self.terms, *self.stores)
        accumulators = {old: fresh_name(old, taken) for old in sorted(accumulators_of(*own))}
        at = {old: symbol(new) for old, new in names.items()}

        def change(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
            here = map_nodes(nodes, lambda value: value.substitute(at))
            return renamed(here, accumulators.__getitem__)

        return replace(
            self,
            starts=change(self.starts),
            terms=change(self.terms),
            stores=change(self.stores),
        )


def _parts(program: Program, kernel: Kernel, sums: Kernel) -> Iterator[_Part]:
    """The kernel as what can be added to sums: as other sums, or as cells."""
    other = box_sum(kernel, program.integers)
    if other is not None:
        is_simple = all(isinstance(node, Accumulate | If) for node in walk(other.terms))
        is_simple = is_simple and other.reducer is Reducer.ADD
        if is_simple and not kernel.also and len(kernel.axes) == len(sums.axes):
            axes = (*kernel.axes, *other.box)
            yield _Part(axes, len(kernel.axes), other.starts, other.terms, other.stores)
        return
    own = box_sum(sums, program.integers)
    cells = None if own is not None and own.across else _cell(kernel)
    if cells is not None:
        axes = (*kernel.axes, *(row.axis for row in kernel.stretched))
        yield _Part(axes, 0, (), cells, ())


def _cell(kernel: Kernel) -> tuple[Node, ...] | None:
    """What is done for a cell, if that is the same for all and has no loops."""
    body = kernel.body
    match kernel.group, body:
        case None, _:
            pass
        case group, (For(name=name, lower=lower, upper=upper, body=inner),) if (
            group is not None
            and (name, lower, upper)
            == (group.axis.name, (symbol(group.first),), (symbol(group.last),))
        ):
            body = inner
        case _:
            return None
    if kernel.row is not None:
        match body:
            case (Lanes(lower=(), upper=(), body=inner),):
                body = inner
            case _:
                return None
    nodes = tuple(walk(body))
    stores = [node for node in nodes if isinstance(node, Store)]
    ends = {end for row in kernel.stretched for end in (row.first, row.last, *(row.around or ()))}
    is_simple = all(isinstance(node, Start | Accumulate | If | Store) for node in nodes)
    if not is_simple or len(stores) != 1 or stores[0] not in body or kernel.also:
        return None
    return body if ends.isdisjoint(_symbols(body)) else None


def _symbols(nodes: tuple[Node, ...]) -> frozenset[str]:
    found: set[str] = set()

    def note(value: Poly) -> Poly:
        found.update(value.symbols)
        return value

    map_nodes(nodes, note)
    return frozenset(found)


def _pairings(part: _Part, points: Sequence[Axis], cells: int) -> Iterator[dict[str, str]]:
    """Which axes of a kernel can be which of the sums: as long, and cells of sums are cells."""
    if len(part.axes) != len(points):
        return
    for order in itertools.permutations(points):
        pairs = list(zip(part.axes, order, strict=True))
        same_cells = not part.cells or set(order[:cells]) == set(points[:cells])
        if same_cells and all(own.extent == other.extent for own, other in pairs):
            yield {own.name: other.name for own, other in pairs}


# ---------------------------------------------------------------------------- the kernel of both
def _with_part(sums: Kernel, found: BoxSum, part: _Part, other: Kernel) -> Kernel:
    whole: tuple[Node, ...] = (*found.terms, *part.terms)
    for axis in reversed(found.box):
        whole = (For(axis.name, (ZERO,), (axis.extent - 1,), whole, True),)
    return replace(
        sums,
        name=f"{sums.name}_and_{other.written}",
        also=(*sums.also, *other.all_written),
        spec=(*sums.spec, *other.spec),
        body=(*found.starts, *part.starts, *whole, *found.stores, *part.stores),
    )


def _is_worth_it(program: Program, sums: Kernel, part: _Part) -> bool:
    """Whether more than a tenth is spared of what both kernels move."""
    own, others = (
        loads_of(walk(nodes)) for nodes in (sums.body, (*part.starts, *part.terms, *part.stores))
    )
    shared = {
        one.tensor
        for one, other in itertools.product(own, others)
        if one.tensor == other.tensor and _are_near(one, other)
    }
    stored = {
        node.tensor
        for node in (*walk(sums.body), *walk(part.terms), *walk(part.stores))
        if isinstance(node, Store)
    }
    moved = [*{load.tensor for load in own}, *{load.tensor for load in others}, *stored]
    spared = sum(_elements(program, name) for name in shared)
    return spared * _LEAST_SPARED > sum(_elements(program, name) for name in moved)


def _are_near(one: Load, other: Load) -> bool:
    """Whether elements lie a constant number of places apart in every dim."""
    return all((a - b).is_constant for a, b in zip(one.indices, other.indices, strict=True))


def _elements(program: Program, name: str) -> int:
    """How many elements a tensor has, all sizes taken for the same."""
    count = 1
    for extent in program.operand(name).extents:
        sizes = dict.fromkeys(extent.symbols, _USUAL_SIZE)
        try:
            count *= max(1, extent.evaluate(sizes))
        except (ZeroDivisionError, ValueError):
            count *= _USUAL_SIZE
    return count


def _fits(both: Kernel, sums: Kernel, part: _Part, stretched: Sequence[Axis]) -> bool:
    """Whether what a thread keeps fits into registers, or is hardly more than it was for one."""
    names = [axis.name for axis in stretched]
    own = (*part.starts, *part.terms, *part.stores)
    alone = max(_values(nodes, names) for nodes in (sums.body, own))
    return _values(both.body, names) <= max(_MOST_VALUES, alone + _FEW_VALUES)


def _values(nodes: tuple[Node, ...], names: Sequence[str]) -> int:
    """What a thread keeps of a stretch along these axes: sums, and elements around it."""
    values = sum(isinstance(node, Start) for node in walk(nodes))
    loads = [
        load
        for load in loads_of(walk(nodes))
        if any(name in index.symbols for index in load.indices for name in names)
    ]
    for tensor in sorted({load.tensor for load in loads}):
        own = [load for load in loads if load.tensor == tensor]
        count = 1
        for indices in zip(*(load.indices for load in own), strict=True):
            if any(name in index.symbols for index in indices for name in names):
                count *= _span(indices)
        values += count
    return values


def _span(indices: Sequence[Poly]) -> int:
    """How many elements of a dim all cells of a stretch read together."""
    first = indices[0]
    step = max((abs(count) for count in (first - first.constant).terms.values()), default=0)
    offsets = [index - first for index in indices]
    if not all(each.is_constant for each in offsets):
        return _MOST_VALUES
    ends = [each.constant for each in offsets]
    return (_STRETCH - 1) * step + 1 + max(ends) - min(ends)
