"""Which elements the cells of a stretch read and write side by side.

A stretch is `LANES` cells, a number that the launch chooses. Where each of them reads `x[r, a*j+c]`
for some constants c, all of them together read the elements from `a*first + c` on, a *run*, which
is loaded once, several elements at a time, into registers. What they write likewise.

    a*first + o     is element o of a run, from `begin` up to `a*LANES + end`, which is none
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from opgen.algebra.poly import ZERO, Kind, Poly, poly, symbol_atom
from opgen.ir.loops import (
    Accumulate,
    All,
    Always,
    Any,
    Call,
    Choose,
    Define,
    Either,
    If,
    Lanes,
    Load,
    Node,
    Nonzero,
    Program,
    Scalar,
    Store,
    Test,
    node_scalars,
)

LARGEST_STEP: Final = 4
"""The most elements from one cell to the next."""

Access = tuple[str, tuple[Poly, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """An index as `step*lane + rest + offset`, clamped to the dim or not."""

    step: int
    rest: Poly
    offset: int
    clamped: bool = False


@dataclass
class Run:
    """Elements of one tensor with the same indices but the last."""

    tensor: str
    rows: tuple[Poly, ...]
    step: int
    rest: Poly
    clamped: bool
    begin: int
    end: int  # what is added to step*LANES
    certain: bool  # whether every cell reads its elements
    accesses: dict[Access, int] = field(default_factory=dict)  # their offsets


def place(index: Poly, lane: str, extent: Poly) -> Place | None:
    """Where an index lies from the lane on; None if that is not a constant step."""
    atoms = index.atoms()
    if len(atoms) == 1 and atoms[0].kind in (Kind.MIN, Kind.MAX):
        (atom,) = atoms
        ends = ZERO if atom.kind is Kind.MAX else extent - 1
        inner = [arg for arg in atom.args if arg != ends]
        if index.linear_in(atom) != (poly(1), ZERO) or len(inner) != 1 or len(atom.args) != 2:
            return None
        found = place(inner[0], lane, extent)
        return None if found is None else Place(found.step, found.rest, found.offset, True)
    linear = index.linear_in(symbol_atom(lane))
    if linear is None or not linear[0].is_constant or lane in linear[1].symbols:
        return None
    step, rest = linear[0].constant, linear[1]
    if not 1 <= step <= LARGEST_STEP or any(a.kind is Kind.LOAD for a in rest.all_atoms()):
        return None
    return Place(step, rest - rest.constant, rest.constant)


def load_runs(node: Lanes, lane: str, program: Program) -> tuple[Run, ...]:
    """The runs that the lanes read."""
    local = {each.name for each in _walk(node.body) if isinstance(each, Define)}
    written = {each.tensor for each in _walk(node.body) if isinstance(each, Store)}
    runs: dict[tuple[object, ...], Run] = {}
    operands = {operand.name: operand for operand in program.operands}
    for load, certain in _loads(node.body, True):
        operand = operands.get(load.tensor)
        if operand is None or not load.indices or load.tensor in written:
            continue
        *rows, last = load.indices
        found = place(last, lane, operand.extents[-1])
        varying = frozenset[str]().union(*(index.symbols for index in rows))
        if found is None or lane in varying or not local.isdisjoint((*varying, *last.symbols)):
            continue
        _join(runs, load.tensor, tuple(rows), found, certain, load.indices)
    return tuple(runs.values())


def store_runs(node: Lanes, lane: str, program: Program) -> tuple[Run, ...]:
    """The runs that the lanes write, where no cell between those written is left out."""
    local = {each.name for each in _walk(node.body) if isinstance(each, Define)}
    runs: dict[tuple[object, ...], Run] = {}
    for store, certain in _stores(node.body, True):
        *rows, last = store.indices or (ZERO,)
        found = place(last, lane, ZERO) if store.indices else None
        varying = frozenset[str]().union(*(index.symbols for index in rows))
        if found is None or lane in varying or not local.isdisjoint((*varying, *last.symbols)):
            return ()
        _join(runs, store.tensor, tuple(rows), found, certain, store.indices)
    full = all(
        sorted(run.accesses.values()) == list(range(run.begin, run.begin + run.step))
        for run in runs.values()
    )
    return tuple(runs.values()) if full else ()


def _join(
    runs: dict[tuple[object, ...], Run],
    tensor: str,
    rows: tuple[Poly, ...],
    found: Place,
    certain: bool,
    indices: tuple[Poly, ...],
) -> None:
    key = (tensor, rows, found.step, found.rest, found.clamped)
    offset, past = found.offset, found.offset + 1 - found.step
    run = runs.get(key)
    if run is None:
        run = runs[key] = Run(
            tensor, rows, found.step, found.rest, found.clamped, offset, past, True
        )
    run.begin, run.end = min(run.begin, offset), max(run.end, past)
    run.certain = run.certain and certain
    run.accesses[tensor, indices] = offset


# ---------------------------------------------------------------------------- traversal
def _walk(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        if isinstance(node, If):
            yield from _walk(node.body)


def _loads(nodes: Iterable[Node], certain: bool) -> Iterator[tuple[Load, bool]]:
    """Every load, and whether it is made for every cell."""
    for node in nodes:
        match node:
            case If(test=test, body=body):
                yield from _in_test(test, certain and not node.conditions)
                yield from _loads(body, False)
            case Accumulate(present=present, value=value):
                yield from _in_test(present, certain)
                yield from _in_scalar(value, certain and present == Always())
            case _:
                for value in node_scalars(node):
                    yield from _in_scalar(value, certain)


def _stores(nodes: Iterable[Node], certain: bool) -> Iterator[tuple[Store, bool]]:
    for node in nodes:
        if isinstance(node, Store):
            yield node, certain
        elif isinstance(node, If):
            yield from _stores(node.body, False)


def _in_scalar(value: Scalar, certain: bool) -> Iterator[tuple[Load, bool]]:
    match value:
        case Load():
            yield value, certain
        case Call(arguments=arguments):
            for argument in arguments:
                yield from _in_scalar(argument, certain)
        case Choose(test=test, then=then, otherwise=otherwise):
            yield from _in_test(test, certain)
            yield from _in_scalar(then, False)
            yield from _in_scalar(otherwise, False)
        case _:
            return


def _in_test(test: Test, certain: bool) -> Iterator[tuple[Load, bool]]:
    match test:
        case Nonzero(value=value):
            yield from _in_scalar(value, certain)
        case All(tests=tests) | Any(tests=tests):
            for at, each in enumerate(tests):
                yield from _in_test(each, certain and at == 0)
        case Either(condition=condition, then=then, otherwise=otherwise):
            yield from _in_test(condition, certain)
            yield from _in_test(then, False)
            yield from _in_test(otherwise, False)
        case _:
            return
