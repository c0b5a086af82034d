"""Which elements the cells of a stretch read and write side by side.

A stretch is `LANES` cells, a number that the launch chooses. Where each of them reads `x[r, a*j+c]`
for some constants c, all of them together read the elements from `a*first + c` on, a *run*, which
is loaded once, several elements at a time, into registers. What they write likewise.

    a*first + o     is element o of a run, from `begin` up to `a*LANES + end`, which is none

Where a thread has `ROWS` members of a group, a run has a row for each of them. Row `x[b*i+b*d+e]`
of member i is row `x[b*i+e]` of member i+d, so rows that several members read are loaded once, too:

    first + q       is the member of row q of a run, from `top` up to `ROWS + bottom`, not included
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from opgen.algebra.poly import ZERO, Kind, Poly, poly, split_quotient, symbol, symbol_atom
from opgen.ir.loop_parts import loads_of, node_scalars
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
    Kernel,
    Lanes,
    Load,
    Node,
    Nonzero,
    Program,
    Scalar,
    Start,
    Store,
    Test,
    walk,
)

LARGEST_STEP: Final = 4
"""The most elements from one cell to the next."""

_USUAL_ROWS: Final = 4

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
    """Elements of one tensor with the same indices but the last, and but one for a group."""

    tensor: str
    rows: tuple[Poly, ...]  # those of the member itself, at offset 0
    step: int
    rest: Poly
    clamped: bool
    moves: bool  # whether members have different rows
    begin: int
    end: int  # what is added to step*LANES
    top: int
    bottom: int  # what is added to ROWS
    certain: bool  # whether every cell reads its elements
    accesses: dict[Access, tuple[int, int]] = field(
        default_factory=dict
    )  # offsets: member, element


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
    if not 1 <= step <= LARGEST_STEP or rest.is_data_dependent:
        return None
    return Place(step, rest - rest.constant, rest.constant)


def load_runs(node: Lanes, lane: str, group: str | None, program: Program) -> tuple[Run, ...]:
    """The runs that the lanes read, for all members of a group if there is one."""
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
        across = _across(tuple(rows), found, group, operand.extents)
        _join(runs, load.tensor, across, found, certain, load.indices)
    return tuple(runs.values())


def fixed_loads(node: Lanes, moving: frozenset[str]) -> tuple[Load, ...]:
    """The elements that are the same for all cells, which differ in the `moving` indices."""
    local = {each.name for each in _walk(node.body) if isinstance(each, Define)}
    written = {each.tensor for each in _walk(node.body) if isinstance(each, Store)}
    found: dict[Load, None] = {}
    for load, _ in _loads(node.body, True):
        varying = frozenset[str]().union(*(index.symbols for index in load.indices))
        if load.tensor not in written and varying.isdisjoint(local | moving):
            found[load] = None
    return tuple(found)


def store_runs(node: Lanes, lane: str, group: str | None) -> tuple[Run, ...]:
    """The runs that the lanes write, where no cell between those written is left out."""
    local = {each.name for each in _walk(node.body) if isinstance(each, Define)}
    runs: dict[tuple[object, ...], Run] = {}
    for store, certain in _stores(node.body, True):
        *rows, last = store.indices or (ZERO,)
        found = place(last, lane, ZERO) if store.indices else None
        varying = frozenset[str]().union(*(index.symbols for index in rows))
        if found is None or lane in varying or not local.isdisjoint((*varying, *last.symbols)):
            return ()
        own = tuple(rows), group is not None, 0
        _join(runs, store.tensor, own, found, certain, store.indices)
    full = all(
        sorted(offset for _, offset in run.accesses.values())
        == list(range(run.begin, run.begin + run.step))
        for run in runs.values()
    )
    return tuple(runs.values()) if full else ()


_Rows = tuple[tuple[Poly, ...], bool, int]
"""The rows of a member, whether they differ between members, and of which member further on."""


def _across(
    rows: tuple[Poly, ...], along: Place, group: str | None, extents: tuple[Poly, ...]
) -> _Rows:
    """The rows of an access for the members of a group."""
    moving = [at for at, index in enumerate(rows) if group in index.symbols]
    if group is None or (not moving and group not in along.rest.symbols):
        return rows, False, 0
    found = None
    if len(moving) == 1 and group not in along.rest.symbols:
        found = place(rows[moving[0]], group, extents[moving[0]])
    if found is None:
        return rows, True, 0
    (at,), further = moving, found.offset // found.step
    index = rows[at].substitute({group: symbol(group) - further})
    return (*rows[:at], index, *rows[at + 1 :]), True, further


def _join(
    runs: dict[tuple[object, ...], Run],
    tensor: str,
    rows: _Rows,
    found: Place,
    certain: bool,
    indices: tuple[Poly, ...],
) -> None:
    own, moves, member = rows
    key = (tensor, own, found.step, found.rest, found.clamped)
    offset, past = found.offset, found.offset + 1 - found.step
    run = runs.get(key)
    if run is None:
        run = runs[key] = Run(
            tensor,
            own,
            found.step,
            found.rest,
            found.clamped,
            moves,
            begin=offset,
            end=past,
            top=member,
            bottom=member,
            certain=True,
        )
    run.begin, run.end = min(run.begin, offset), max(run.end, past)
    run.top, run.bottom = min(run.top, member), max(run.bottom, member)
    run.certain = run.certain and certain
    run.accesses[tensor, indices] = member, offset


def values_of_cell(kernel: Kernel) -> int:
    """About how many values a thread keeps for a cell, where it has several rows of them.

    These are accumulators, and elements of rows that it reads. What several of its own rows read is
    a part of a value for each, as if there were `_USUAL_ROWS`.
    """
    assert kernel.row is not None
    name, group = kernel.row.axis.name, kernel.group
    total = 0
    seen: dict[tuple[object, ...], dict[int, int]] = {}  # steps by how far rows are from the own
    for node in walk(kernel.body):
        if isinstance(node, Start):
            total += _USUAL_ROWS * (3 if node.reducer.is_argument else 1)
        if isinstance(node, Lanes):
            for load, _ in _loads(node.body, True):
                *rows, last = load.indices or (ZERO,)
                if name not in last.symbols:
                    continue
                moving = [] if group is None else [e for e in rows if group.axis.name in e.symbols]
                further = moving[0].constant if len(moving) == 1 else 0
                own = tuple(e - further if e in moving else e for e in rows)
                # Rows of one tensor that have axes beside their cells are walked along at several
                # places, such as `C*j + c` and `4*C + C*j + c`.
                at = last - last.constant if kernel.beside else None
                steps = seen.setdefault((load.tensor, own, at, bool(moving)), {})
                steps[further] = max(_step(last, name), steps.get(further, 0))
    for (*_, is_own), steps in seen.items():
        total += max(steps.values()) * (len(steps) - 1 + (_USUAL_ROWS if is_own else 1))
    return -(-total // _USUAL_ROWS)


def _step(index: Poly, name: str) -> int:
    """How many elements of a row one cell takes, those that it skips included."""
    return max(1, min(abs(index.step_in(name) or 1), LARGEST_STEP))


def is_window(kernel: Kernel, name: str) -> bool:
    """Whether neighbours along an axis, which is not the row, read some elements both."""
    loads = list(dict.fromkeys(loads_of(walk(kernel.body))))
    return any(
        one.tensor == other.tensor
        and one.indices != other.indices
        and any(name in index.symbols for index in one.indices)
        and all(
            (a - b).is_constant and (a == b or name in a.symbols)
            for a, b in zip(one.indices, other.indices, strict=True)
        )
        for one, other in itertools.combinations(loads, 2)
    )


def aligned_text(run: Run, row: Poly) -> str:
    """How many elements every run begins at a multiple of; the row has a multiple of LANES."""
    rows, rest = split_quotient(run.rest, row)
    divisor = math.gcd(*(abs(count) for count in rest.terms.values()))
    return f"aligned(PROVED, {run.step if rows == 0 else 1}, {divisor})"


def is_whole(run: Run, extent: Poly, row: Poly) -> bool:
    """Whether a row of the tensor has a multiple of the elements that a stretch walks over."""
    return split_quotient(extent, run.step * row)[1] == 0


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


def loads_for_sure(node: Node) -> Iterator[Load]:
    """The loads of a node's values that are made for every cell for which it is executed."""
    for value in node_scalars(node):
        yield from (load for load, certain in _in_scalar(value, True) if certain)


def loads_from(run: Run, node: Lanes) -> int:
    """How many loads there are of elements of a run, whatever they are under."""
    return sum((load.tensor, load.indices) in run.accesses for load, _ in _loads(node.body, True))


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
