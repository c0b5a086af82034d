"""Two kernels as one, where the first only computes what the second reads at the same point.

`y = bias + sum(...)` is two statements with a temporary between them: the sum of a cell, and the
cell. When both run over the same points, the sum stays in its accumulator, and the temporary is
neither allocated nor written and read again. Kernels between the two do not matter as long as they
have nothing to do with it: the terms of the gradient of a normalised tensor, between which sums
over whole rows are computed, become one pass over the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly, symbol
from opgen.ir.loop_parts import accumulators_of, integer_names, loads_of, node_tests, uses
from opgen.ir.loops import Define, For, If, Kernel, Load, Program, Result, Start, Store, walk
from opgen.ir.map_loops import map_loads, map_nodes, renamed
from opgen.ir.names import fresh_name
from opgen.passes.sums import joined_sums


def fuse(program: Program) -> Program:
    """The program with as few temporaries as can be seen to be needed."""
    kernels: list[Kernel] = []
    for at, kernel in enumerate(program.kernels):
        joined: Kernel | None = replace(kernel, body=joined_sums(kernel.body))
        while joined is not None:
            kernel = joined
            joined = _absorbed(program, kernels, kernel, program.kernels[at + 1 :])
        kernels.append(kernel)
    removed = {each.written for each in program.kernels} - {each.written for each in kernels}
    return replace(
        program,
        operands=tuple(each for each in program.operands if each.name not in removed),
        kernels=tuple(kernels),
        unstored=tuple(each for each in program.operands if each.name in removed),
        workspaces=tuple(each for each in program.workspaces if each.name not in removed),
    )


def _absorbed(
    program: Program, before: list[Kernel], kernel: Kernel, after: Sequence[Kernel]
) -> Kernel | None:
    """The kernel with one of those before it, which is taken out; None where none fits."""
    for position in reversed(range(len(before))):
        first, between = before[position], before[position + 1 :]
        if _can_wait(first, between) and _is_read_here_only(first.written, kernel, between, after):
            joined = _joined(program, first, kernel)
            if joined is not None:
                del before[position]
                return joined
    return None


def _can_wait(first: Kernel, between: Sequence[Kernel]) -> bool:
    """Whether a kernel may run after others as well; of two faults the first is reported."""
    read = uses(first)
    return not any(each.written in read.tensors for each in between) and not (
        read.faults and between
    )


def _is_read_here_only(
    tensor: str, kernel: Kernel, between: Sequence[Kernel], after: Sequence[Kernel]
) -> bool:
    """Whether nobody but the kernel needs what was last written to the tensor."""
    if any(tensor in uses(each).tensors for each in between):
        return False
    return kernel.written == tensor or not any(tensor in uses(each).tensors for each in after)


def _joined(program: Program, first: Kernel, second: Kernel) -> Kernel | None:
    """Both as one kernel; None where the second needs other cells, or the first goes on."""
    tensor = first.written
    operand = program.operand(tensor)
    if (
        not operand.widened
        or operand.stored
        or tensor in {load.tensor for load in loads_of(walk(first.body))}
    ):
        return None
    cell, place = _only_cell(first), _only_place(second, tensor)
    if cell is None or place is None or not _stays(second, tensor, place):
        return None
    axes = _same_point(first, second, cell.store.indices, place)
    if axes is None:
        return None
    renaming = _renaming(first, second, axes)
    at = {old: symbol(new) for old, new in renaming.names.items()}

    def value_of(load: Load) -> Result | Load:
        return Result(renaming.accumulators[cell.total], tensor) if load.tensor == tensor else load

    moved = map_nodes(first.body[:-1], lambda value: value.substitute(at))
    before = renamed(moved, lambda name: renaming.accumulators[name], renaming.names)
    return replace(
        second,
        prologue=(*(_define(each, renaming, at) for each in first.prologue), *second.prologue),
        body=joined_sums((*before, *map_loads(second.body, value_of))),
        spec=(*first.spec, *second.spec),
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """How a kernel ends: its accumulator is stored."""

    store: Store
    total: str


def _only_cell(kernel: Kernel) -> _Cell | None:
    """The end of a kernel that stores one accumulator and nothing else."""
    stores = [node for node in walk(kernel.body) if isinstance(node, Store)]
    starts = [node for node in walk(kernel.body) if isinstance(node, Start)]
    match kernel.body:
        case (*_, Store(value=Result(accumulator=total)) as store) if (
            stores == [store]
            and kernel.is_deterministic
            and not any(start.reducer.is_argument for start in starts)
        ):
            return _Cell(store, total)
        case _:
            return None


def _only_place(kernel: Kernel, tensor: str) -> tuple[Poly, ...] | None:
    """Where a kernel reads the tensor; None unless that is once, outside of loops and tests."""
    if not kernel.is_deterministic or tensor in uses(kernel).loaded:
        return None
    found: dict[tuple[Poly, ...], None] = {}

    def note(load: Load) -> Load:
        if load.tensor == tensor:
            found[load.indices] = None
        return load

    for node in walk(kernel.body):
        inside = node.body if isinstance(node, For) else ()
        tests = tuple(If((), (), test) for test in node_tests(node))
        map_loads((*inside, *tests), note)
    if found:
        return None
    map_loads(kernel.body, note)
    return next(iter(found)) if len(found) == 1 else None


def _stays(kernel: Kernel, tensor: str, place: Sequence[Poly]) -> bool:
    """Whether cells of the tensor that the kernel reads are not those it has yet to replace."""
    if kernel.written != tensor:
        return True
    stores = [node.indices for node in walk(kernel.body) if isinstance(node, Store)]
    return stores == [tuple(place)]


def _same_point(
    first: Kernel, second: Kernel, cell: Sequence[Poly], place: Sequence[Poly]
) -> dict[str, str] | None:
    """The axes of the first kernel by those of the second; None where points differ."""
    mine = {axis.name: axis.extent for axis in first.axes}
    theirs = {axis.name: axis.extent for axis in second.axes}
    names: dict[str, str] = {}
    for written, read in zip(cell, place, strict=True):
        if written.symbol in mine and read.symbol in theirs:
            if mine[written.symbol] != theirs[read.symbol]:
                return None
            names[written.symbol] = read.symbol
        elif written != read or not written.is_constant:
            return None
    is_pairing = len(names) == len(mine) and set(names.values()) == set(theirs)
    return names if is_pairing else None


# ---------------------------------------------------------------------------- names
@dataclass(frozen=True, slots=True)
class _Renaming:
    """What the first kernel's names become in the second: integers, and accumulators."""

    names: dict[str, str]
    accumulators: dict[str, str]


def _renaming(first: Kernel, second: Kernel, axes: dict[str, str]) -> _Renaming:
    taken = integer_names(second, known=uses(first).symbols)
    names = dict(axes)
    for name in sorted(_names(first) - names.keys()):
        names[name] = fresh_name(name, taken)
    known = set(accumulators_of(*second.body))
    accumulators = {old: fresh_name(old, known) for old in sorted(accumulators_of(*first.body))}
    return _Renaming(names, accumulators)


def _names(kernel: Kernel) -> set[str]:
    """The integers that a kernel defines."""
    nodes = [node for node in walk(kernel.body) if isinstance(node, Define | For)]
    return {each.name for each in (*kernel.axes, *kernel.prologue, *nodes)}


def _define(node: Define, renaming: _Renaming, at: dict[str, Poly]) -> Define:
    return Define(renaming.names[node.name], node.value.substitute(at))
