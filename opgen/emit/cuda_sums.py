"""Kernels of sums over a box: threads share its points out, then put together what each has.

A block has teams of threads, one for each of its cells. A member of a team takes every so many-th
stretch of the box, and keeps the accumulators of all its terms in registers; members are added up
in a fixed order. Where several blocks share a cell, each writes what it has as one of `splits`
parts, and another launch adds up the parts in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import symbol
from opgen.emit.cuda_points import CudaEmitter, product
from opgen.emit.cuda_printer import INDEX
from opgen.emit.cuda_statements import inside
from opgen.emit.polynomial import Text
from opgen.emit.types import Type, Types
from opgen.ir.loop_parts import integer_names
from opgen.ir.loops import Axis, Kernel, Lanes, Program, Row
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.ir.sums import BoxSum

_JOINS = {Reducer.ADD: "Added", Reducer.MAX: "Greatest", Reducer.MIN: "Least"}

WIDEST = 16
"""The most neighbouring points of a stretch, as of a row of cells."""


def stretched(kernel: Kernel, found: BoxSum, program: Program) -> Kernel:
    """What a thread does with a stretch of the box: a kernel whose cells are points of it."""
    taken = integer_names(kernel, known=program.integers)
    rows = []
    for axis in found.box[-2:]:
        first, last = (fresh_name(f"{axis.name}_{end}", taken) for end in ("first", "last"))
        rows.append(Row(axis, first, last, WIDEST))
    group = rows[0] if len(rows) == 2 else None
    return replace(kernel, row=rows[-1], group=group, body=(Lanes((), (), found.terms),))


@dataclass(frozen=True, slots=True)
class SumNames:
    """What a kernel of a sum calls its parameters beside those of every kernel."""

    cell_magic: tuple[str, ...]
    box_magic: tuple[str, ...]
    share: str
    splits: str
    partial: str


def kind_of(types: Types, kernel: Kernel, found: BoxSum) -> Type:
    """What is added up; all terms are copies of those of one cell."""
    start = found.starts[0]
    return types.of_accumulator(start.tensor, start.accumulator, kernel.body)


def print_sum(emitter: CudaEmitter, kernel: Kernel, found: BoxSum, names: SumNames) -> None:
    """The body of the kernel; the emitter's kernel is that of a stretch.

    It is launched to add up points, then, with no points for a block, to add up parts.
    """
    body = _Body.begin(emitter, kernel, found, names)
    inner = body.inner
    inner.write(f"if ({body.point} < {body.cells}) {{")
    terms = inside(inner)
    terms.write(f"if ({names.share} > 0) {{")
    _stretches(inside(terms), found, body.team, names.box_magic, names.share)
    terms.write("} else {")
    _parts(inside(terms), body, names)
    terms.write("}")
    inner.write("}")
    sums = "sums_across" if found.across else "team_sums"
    inner.write(f"{sums}<{body.count}, {body.join}>({body.totals}, {body.shared});")
    inner.write(f"if ({body.point} < {body.cells} && {body.team.member} == 0) {{")
    last = inside(inner)
    last.block(f"if ({names.splits} == 1 || {names.share} == 0)", found.stores)
    at = last.scope.fresh("at")
    last.write(f"else for (int {at} = 0; {at} < {body.count}; {at}++)")
    last.write(f"    {body.part(at, 'blockIdx.y')} = {body.totals}[{at}];")
    inner.write("}")
    emitter.write("}")


def print_phase(
    emitter: CudaEmitter,
    kernel: Kernel,
    cells: Sequence[Axis],
    found: BoxSum,
    magic: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    """What a block does for the cell that it has, as a phase of a chain.

    All of its threads are the team. `magic` is for the cells and for the box.
    """
    counters = [emitter.scope.fresh(axis.name) for axis in cells]
    extents = [emitter.printer.poly(axis.extent) for axis in cells]
    _name_outer(emitter, cells, counters)
    point = emitter.scope.fresh("point")
    emitter.write(f"const {INDEX} {point} = blockIdx.x;")
    emitter.digits_of(point, counters, extents, magic[0])
    team, totals = _Team.of(found), ""
    if found.starts:
        kind, shared = kind_of(emitter.printer.types, kernel, found), emitter.scope.fresh("shared")
        emitter.write(
            f"__shared__ {kind.value} {shared}[{len(found.starts)} * THREADS_OF_CHAIN / 32];"
        )
        totals = _begin_totals(emitter, kind, found)
    if found.box:
        _stretches(emitter, found, team, magic[1])
    else:
        emitter.block(f"if ({team.member} == 0)", found.terms)
    if found.starts:
        join = _JOINS[found.reducer]
        emitter.write(f"team_sums<{len(found.starts)}, {join}>({totals}, {shared});")
        emitter.block(f"if ({team.member} == 0)", found.stores)


def _parts(emitter: CudaEmitter, body: _Body, names: SumNames) -> None:
    """The loop of a member over its parts of a cell."""
    at, split = emitter.scope.fresh("at"), emitter.scope.fresh("split")
    member, members = body.team.member, body.team.members
    head = f"{INDEX} {split} = {member}; {split} < {names.splits}; {split} += {members}"
    emitter.write(f"for ({head}) {{")
    emitter.write("    UNROLL")
    emitter.write(f"    for (int {at} = 0; {at} < {body.count}; {at}++)")
    total = f"{body.totals}[{at}]"
    emitter.write(f"        {total} = {body.join}::of({total}, {body.part(at, split)});")
    emitter.write("}")


@dataclass(frozen=True, slots=True)
class _Team:
    """Which dim of a block its cells are, and what members of a team and their number are called.

    Where sums are `across`, the threads of a warp are neighbouring cells.
    """

    cells: str
    member: str
    members: str

    @classmethod
    def of(cls, found: BoxSum) -> _Team:
        if found.across:
            return cls("x", "threadIdx.y", "blockDim.y")
        return cls("z", "MEMBER", "MEMBERS")


@dataclass(frozen=True, slots=True)
class _Body:
    """What is around the terms: a loop over cells, and a team for each."""

    inner: CudaEmitter
    names: SumNames
    team: _Team
    is_across: bool
    count: int
    cells: str
    point: str
    totals: str
    shared: str
    join: str
    """What puts two parts together."""

    @classmethod
    def begin(cls, emitter: CudaEmitter, kernel: Kernel, found: BoxSum, names: SumNames) -> _Body:
        kind = kind_of(emitter.printer.types, kernel, found)
        axes, scope, count = kernel.axes, emitter.scope, len(found.starts)
        shared = scope.fresh("shared")
        size = f"SUMS_TOGETHER<{count}> * THREADS" if found.across else f"{count} * THREADS / 32"
        emitter.write(f"__shared__ {kind.value} {shared}[{size}];")
        counters = [scope.fresh(axis.name) for axis in axes]
        extents = [emitter.printer.poly(axis.extent) for axis in axes]
        for axis, name in zip(axes, counters, strict=True):
            emitter.printer.names.symbols[axis.name] = name
            emitter.printer.bounded.add((symbol(axis.name), axis.extent))
        cells, first, point = product(extents), scope.fresh("first"), scope.fresh("point")
        team = _Team.of(found)
        head = f"{INDEX} {first} = blockIdx.x * ({INDEX})blockDim.{team.cells}"
        step = f"gridDim.x * ({INDEX})blockDim.{team.cells}"
        emitter.write(f"for ({head}; {first} < {cells}; {first} += {step}) {{")
        inner = inside(emitter)
        inner.write(f"const {INDEX} {point} = {first} + threadIdx.{team.cells};")
        inner.digits_of(point, counters, extents, names.cell_magic)
        totals = _begin_totals(inner, kind, found)
        about = inner, names, team, found.across, count, cells, point, totals, shared
        return cls(*about, _JOINS[found.reducer])

    def part(self, at: str, split: str) -> str:
        """The part of a sum that a split has; there may be more of them than 32 bits count.

        Parts of cells lie side by side where neighbouring threads have them.
        """
        if self.is_across:
            index = f"((int64_t){at} * {self.names.splits} + {split}) * ({self.cells})"
            return f"{self.names.partial}[{index} + {self.point}]"
        index = f"(int64_t){self.point} * {self.count} + {at}"
        return f"{self.names.partial}[({index}) * {self.names.splits} + {split}]"


def _begin_totals(emitter: CudaEmitter, kind: Type, found: BoxSum) -> str:
    """Begin the totals of all sums in an array; gives what it is called."""
    totals, count = emitter.scope.fresh("totals"), len(found.starts)
    first = emitter.identity(found.starts[0].tensor, found.reducer)
    emitter.write(f"{kind.value} {totals}[{count}] = {{{', '.join([first] * count)}}};")
    for at, start in enumerate(found.starts):
        emitter.printer.names.accumulators[start.accumulator] = f"{totals}[{at}]"
        emitter.kinds[start.accumulator] = kind
    return totals


def _stretches(
    emitter: CudaEmitter, found: BoxSum, team: _Team, magic: tuple[str, ...], share: str = ""
) -> None:
    """The loop of a member over its stretches of the block's share of the box, or of all of it."""
    counters = [emitter.scope.fresh(f"{axis.name}_part") for axis in found.box[-2:]]
    counters = [*(emitter.scope.fresh(axis.name) for axis in found.box[:-2]), *counters]
    extents = [emitter.printer.poly(axis.extent) for axis in found.box]
    for at, count in ((-1, "LANES"), (-2, "ROWS"))[: len(found.box)]:
        extents[at] = Text(f"parts({extents[at].text}, {count})")
    _name_outer(emitter, found.box[:-2], counters)
    stretch, end = emitter.scope.fresh("stretch"), emitter.scope.fresh("end")
    start, last = f"({INDEX}){team.member}", product(extents)
    if share:
        start = f"blockIdx.y * {share} + {start}"
        last = f"least({last}, blockIdx.y * {share} + {share})"
    emitter.write(f"const {INDEX} {end} = {last};")
    step = f"{stretch} += {team.members}"
    emitter.write(f"for ({INDEX} {stretch} = {start}; {stretch} < {end}; {step}) {{")
    inner = inside(emitter)
    inner.digits_of(stretch, counters, extents, magic)
    inner.begin_stretches(counters[-2:])
    for node in inner.kernel.body:
        assert isinstance(node, Lanes)
        # What lies apart is loaded term by term: where no term is asked for, each once for all.
        inner.lanes(node, by_lanes=not found.across)
    emitter.write("}")


def _name_outer(emitter: CudaEmitter, axes: Sequence[Axis], counters: Sequence[str]) -> None:
    for axis, name in zip(axes, counters, strict=False):
        emitter.printer.names.symbols[axis.name] = name
        emitter.printer.bounded.add((symbol(axis.name), axis.extent))
