"""Two kernels as one, where the first only computes what the second reads at the same point.

`y = bias + sum(...)` is two statements with a temporary between them: the sum of a cell, and the
cell. When both run over the same points, the sum stays in its accumulator, and the temporary is
neither allocated nor written and read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly, symbol
from opgen.ir.loops import (
    Define,
    For,
    If,
    Kernel,
    Load,
    Program,
    Result,
    Start,
    Store,
    accumulators_of,
    node_tests,
    uses,
    walk,
)
from opgen.ir.map_loops import map_loads, map_nodes, renamed
from opgen.passes.gather import fresh_name


def fuse(program: Program) -> Program:
    """The program with as few temporaries as can be seen to be needed."""
    kernels: list[Kernel] = []
    removed: set[str] = set()
    for kernel in program.kernels:
        while kernels:
            joined = _joined(program, kernels[-1], kernel)
            if joined is None:
                break
            removed.add(kernels.pop().written)
            kernel = joined
        kernels.append(kernel)
    operands = tuple(each for each in program.operands if each.name not in removed)
    unstored = tuple(each for each in program.operands if each.name in removed)
    return replace(program, operands=operands, kernels=tuple(kernels), unstored=unstored)


def _joined(program: Program, first: Kernel, second: Kernel) -> Kernel | None:
    """Both as one kernel; None where the second needs other cells, or someone else needs them."""
    tensor = first.written
    users = [each for each in program.kernels if tensor in uses(each).tensors]
    shared = {workspace.name for workspace in program.workspaces}
    if len(users) != 2 or not program.operand(tensor).widened or tensor in shared:
        return None
    cell, place = _only_cell(first), _only_place(second, tensor)
    if cell is None or place is None:
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
        body=(*before, *map_loads(second.body, value_of)),
        spec=(*first.spec, *second.spec),
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """How a kernel ends: its accumulator is stored."""

    store: Store
    total: str


def _only_cell(kernel: Kernel) -> _Cell | None:
    """The end of a kernel that stores one accumulator, which begins anew, and nothing else."""
    stores = [node for node in walk(kernel.body) if isinstance(node, Store)]
    starts = [node for node in walk(kernel.body) if isinstance(node, Start)]
    match kernel.body:
        case (*_, Store(value=Result(accumulator=total)) as store) if (
            stores == [store]
            and kernel.is_deterministic
            and [start.value for start in starts] == [None]
            and not starts[0].reducer.is_argument
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
    taken = _names(second) | uses(first).symbols | uses(second).symbols
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
