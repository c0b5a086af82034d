"""Two sums that read the same rows as one pass over them, each with rows of its own to add to.

Before: a sum over planes is the host of another one (`passes.guests`), whose cells lie a step
further for every plane: what flows back to a mask, and to an image that the planes are shifted
copies of. Both read every element of the same tensor, once each, and the second one finds it in
the caches. After: a third kernel loads it once. Its lanes are the host's; the other sum is in
memory of the point's own, in which the cells of a plane begin where its shift says. It runs where
these rows fit there and there are points enough for all threads, else the other two do.

Cells have the same terms in the same order in both ways, so that the bits are the same. Two planes
take turns row by row, as a processor waits for the rows of both at a time: one after the other they
took half as long again. What is left to do at the ends of rows, where the cells of two planes do
not overlap, takes longer than to load and store the cells of each by itself.

On two threads 28 channels of 256 by 256 take 7.0 ms in place of 8.6, and 64 by 64 ones 0.48 in
place of 0.75, though the guest would find all of it in the second cache. Groups of 8 rows would
take 5 to 7 % less than those of 4 that a host has, but a call then has half as many points, too few
for many threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly, poly, symbol
from opgen.algebra.prove import is_nonnegative
from opgen.ir.loop_parts import integer_names, loads_of, uses
from opgen.ir.loops import (
    Accumulate,
    Always,
    Call,
    Fitting,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Number,
    Operand,
    Program,
    Result,
    Row,
    Scalar,
    Start,
    Store,
    walk,
)
from opgen.ir.map_loops import map_nodes, map_read
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.ir.work import points
from opgen.passes.rows import direct

LONGEST: Final = 2048
"""The most cells of a row that is kept in memory of a point's own."""

APART: Final = 16
"""How many cells more rows are apart, so that they do not share few places of the first cache."""


def with_shared_rows(plain: Program, program: Program, facts: Facts) -> Program:
    """The program with a kernel that does the work of a host and its guest, where there is one.

    `plain` are the same kernels with a parallel point for each cell; `facts` hold for every call.
    """
    if program.faults or program.workspaces:
        return program
    by_name = {kernel.name: kernel for kernel in plain.kernels}
    for host in program.kernels:
        if host.guest is None or host.guest.point or host.only is not None:
            continue
        (guest,) = (each for each in program.kernels if each.name == host.guest.kernel)
        cells = [by_name.get(each.name) for each in (host, guest)]
        sums = [None if each is None else _sum(each) for each in cells]
        if guest.only is not None or sums[0] is None or sums[1] is None:
            continue
        found = _joined(program, host, guest, sums[0], sums[1], facts)
        if found is not None:
            kernel, rows = found
            assert isinstance(kernel.only, Fitting)
            kernels: list[Kernel] = []
            for each in program.kernels:
                kernels.append(replace(each, unless=kernel.only) if each in (host, guest) else each)
                kernels += [kernel] if each is host else []
            return replace(program, kernels=tuple(kernels), unstored=(*program.unstored, rows))
    return program


# ---------------------------------------------------------------------------- what is a sum
@dataclass(frozen=True, slots=True)
class _Sum:
    """A kernel with a parallel point for each cell, which adds up one term in loops."""

    kernel: Kernel
    start: Start
    conditions: tuple[Condition, ...]
    loops: tuple[For, ...]
    term: Accumulate
    store: Store

    @property
    def extents(self) -> dict[str, Poly]:
        """How many values each axis has."""
        return {axis.name: axis.extent for axis in self.kernel.axes}


def _sum(kernel: Kernel) -> _Sum | None:
    """The parts of such a kernel; None for another one."""
    if kernel.prologue or kernel.local or kernel.row is not None or uses(kernel).loaded:
        return None
    match direct(kernel.body):
        case (Start(reducer=Reducer.ADD, value=None) as start, node, Store() as store):
            pass
        case _:
            return None
    conditions: list[Condition] = []
    loops: list[For] = []
    while isinstance(node, For | If) and len(node.body) == 1:
        if isinstance(node, For):
            loops.append(node)
        elif node.test == Always():
            conditions += node.conditions
        else:
            return None
        (node,) = node.body
    match node:
        case Accumulate(reducer=Reducer.ADD, present=Always()) as term if loops:
            return _Sum(kernel, start, tuple(conditions), tuple(loops), term, store)
        case _:
            return None


# ---------------------------------------------------------------------------- where both read
@dataclass(frozen=True, slots=True)
class _Places:
    """What the names of the guest's sum are in the host's loops: `lane` is that of its row.

    At a plane of the host, named `plane`, the guest's cells begin at `shift` in its row.
    """

    names: Mapping[str, str]
    lane: str
    plane: str
    shift: Poly

    def at(self, plane: Poly, lane: Poly) -> dict[str, Poly]:
        """The guest's names at a plane, and as many cells from the first one of it on."""
        values = {mine: symbol(theirs) for mine, theirs in self.names.items()}
        (own,) = (mine for mine, theirs in self.names.items() if theirs == self.plane)
        return {**values, own: plane, self.lane: lane + self.shift.substitute({self.plane: plane})}


def _places(host: _Sum, guest: _Sum, rows: tuple[Row, Row]) -> _Places | None:
    """Where both sums read the same element; None where they do not read all of a tensor.

    `rows` are those of the host and of the guest.
    """
    extents = _values(host)
    if len(guest.loops) != 1 or rows[0].axis.name not in extents:
        return None
    for mine in dict.fromkeys(loads_of((host.term,))):
        symbols = [index.symbol or "" for index in mine.indices]
        if sorted(symbols) != sorted(extents):
            continue  # the host does not read every element of it, once each
        for load in dict.fromkeys(loads_of((guest.term,))):
            if load.tensor == mine.tensor:
                indices = dict(zip(symbols, load.indices, strict=True))
                found = _same_element(host, guest, rows, indices)
                if found is not None:
                    return found
    return None


def _same_element(
    host: _Sum, guest: _Sum, rows: tuple[Row, Row], indices: Mapping[str, Poly]
) -> _Places | None:
    """Where the guest reads the host's element; None where it reads others, or other cells do.

    `indices` are those of a load of the guest, by the host's name at the same place.
    """
    lane, own = (row.axis.name for row in rows)
    (loop,) = guest.loops
    names = {
        index.symbol: name
        for name, index in indices.items()
        if name != lane and index.symbol is not None
    }
    if set(names) != {*guest.extents, loop.name} - {own}:
        return None  # an axis of the guest, or its loop, does not go along a dim by itself
    if len(names) < len(indices) - 1:
        return None  # a diagonal, or one value of a dim: it would be added up again and again
    plane, extents = host.loops[-1].name, _values(host)
    if names[loop.name] != plane:
        return None  # its terms are not those of the host's innermost loop
    if any(extents[names[axis]] != n for axis, n in guest.extents.items() if axis != own):
        return None  # it goes through fewer elements, or more
    start = symbol(own) - indices[lane]
    if not start.symbols <= {loop.name, *_sizes(guest)}:
        return None  # the cells of a plane do not follow each other from one place on
    return _Places(names, own, plane, start.substitute({loop.name: symbol(plane)}))


def _values(found: _Sum) -> dict[str, Poly]:
    """How many values each axis and each loop from 0 on has."""
    return found.extents | {loop.name: loop.upper[0] + 1 for loop in found.loops}


def _sizes(found: _Sum) -> frozenset[str]:
    """The symbols that are the same in a whole call."""
    inside = {loop.name for loop in found.loops} | set(found.extents)
    return uses(found.kernel).symbols - inside


def _is_the_same(
    host: _Sum, guest: _Sum, places: _Places, rows: tuple[Row, Row], facts: Facts
) -> bool:
    """Whether the points of the guest's sum are those of the host's, each once.

    Every cell of every plane of the host is a term of the guest, and every term of it is one.
    """
    lane, own = (row.axis for row in rows)
    (loop,) = guest.loops
    count = host.loops[-1].upper[0] + 1
    inside = facts
    for name, extent in ((lane.name, lane.extent), (places.plane, count)):
        inside = inside.with_bounds(name, ZERO, extent - 1)
    at = places.at(symbol(places.plane), symbol(lane.name))
    plane = at[loop.name]
    needed = [at[own.name], own.extent - 1 - at[own.name]]
    needed += [plane - bound.substitute(at) for bound in loop.lower]
    needed += [bound.substitute(at) - plane for bound in loop.upper]
    needed += [each.value.substitute(at) for each in guest.conditions]
    if not all(is_nonnegative(value, inside) for value in needed):
        return False
    own_facts = facts.with_bounds(own.name, ZERO, own.extent - 1)
    own_facts = own_facts.with_conditions(*guest.conditions)
    own_facts = own_facts.with_symbol(loop.name, loop.lower, loop.upper)
    where = symbol(own.name) - places.shift.substitute({places.plane: symbol(loop.name)})
    value = symbol(loop.name)
    needed = [value, count - 1 - value, where, lane.extent - 1 - where]
    return all(is_nonnegative(each, own_facts) for each in needed)


# ---------------------------------------------------------------------------- the kernel
def _joined(
    program: Program, host: Kernel, guest: Kernel, sums: _Sum, others: _Sum, facts: Facts
) -> tuple[Kernel, Operand] | None:
    """The third kernel, and its own rows; None where both sums do not fit together."""
    row, group, other = host.row, host.group, guest.row
    if row is None or group is None or other is None or not _fits(program, sums, others):
        return None
    places = _places(sums, others, (row, other))
    if places is None or not _is_the_same(sums, others, places, (row, other), facts):
        return None
    taken = {each.name for each in (*program.operands, *program.unstored)}
    operand = replace(
        program.operand(others.start.tensor),
        name=fresh_name(f"{guest.written}_rows", taken),
        extents=(poly(group.width), poly(LONGEST + APART)),
        widened=True,
    )
    body = _Writer(sums, others, places, row, group, operand.name, program.integers).body()
    nodes = tuple(walk(body))
    walked = [(each.tensor, each.indices) for each in nodes if isinstance(each, Store)]
    walked += [(load.tensor, load.indices) for load in loads_of(nodes)]
    moving = [name for name, indices in walked if indices and indices[-1].symbols]
    tensors = tuple(name for name in dict.fromkeys(moving) if name != operand.name)
    counts = points(host), points(guest)
    names = {each.name for each in program.kernels}
    kernel = replace(
        host,
        name=fresh_name(f"{host.name}_and_{guest.written}", names),
        body=body,
        also=(*host.also, *guest.all_written),
        local=(operand.name,),
        only=Fitting(row.stretches, other.axis.extent, LONGEST, counts, tensors),
        spec=(*guest.spec, *host.spec),
        guest=None,
    )
    return kernel, operand


def _fits(program: Program, sums: _Sum, others: _Sum) -> bool:
    """Whether both are plain sums of elements of the type of a call."""
    is_whole = all(
        loop.lower == (ZERO,) and len(loop.upper) == 1 and not loop.any_order for loop in sums.loops
    )
    operands = [program.operand(each.start.tensor) for each in (sums, others)]
    return (
        is_whole
        and not sums.conditions
        and len(sums.loops) > 1
        and all(operand.dtype.is_generic for operand in operands)
    )


@dataclass(frozen=True)
class _Writer:
    """Writes the loops of the third kernel, in which `rows` are the guest's."""

    sums: _Sum
    others: _Sum
    places: _Places
    row: Row
    group: Row
    rows: str
    integers: tuple[str, ...]

    @property
    def taken(self) -> set[str]:
        """The names of integers."""
        known = (*uses(self.others.kernel).symbols, *self.integers)
        return integer_names(self.sums.kernel, known=known)

    def body(self) -> tuple[Node, ...]:
        """Begin the host's cells, go through all planes, and store them."""
        nodes = self.image()
        for loop in reversed(self.sums.loops[:-1]):
            nodes = (replace(loop, body=nodes),)
        begin = self.for_each_row((Lanes((), (), (self.sums.start,)),))
        end = self.for_each_row((Lanes((), (), (self.sums.store,)),))
        return (begin, *nodes, end)

    def for_each_row(self, nodes: Sequence[Node]) -> For:
        """Nodes for every row of the group."""
        bounds = (symbol(self.group.first),), (symbol(self.group.last),)
        return For(self.group.axis.name, *bounds, tuple(nodes))

    def image(self) -> tuple[Node, ...]:
        """Begin the guest's cells, go through the planes of an image in pairs, and store them."""
        loop = self.sums.loops[-1]
        name, extent = loop.name, loop.upper[0] + 1
        pair = fresh_name(f"{name}_pair", self.taken)
        one, other = (symbol(pair) * 2 + at for at in range(2))
        is_there = If((Condition(extent - 1 - other),), (self.plane(other),))
        both = self.for_each_row((self.plane(one), is_there))
        return (
            self.for_each_cell(Number(0), self.rows),
            For(pair, (ZERO,), ((extent + 1) // 2 - 1,), (both,)),
            self.for_each_cell(None, self.others.store.tensor),
        )

    def for_each_cell(self, value: Scalar | None, tensor: str) -> For:
        """Store a value into every cell of the rows, or what these hold into the guest's tensor."""
        (own,) = (a for a in self.others.kernel.axes if a.name == self.places.lane)
        name = fresh_name(own.name, self.taken)
        cell = self.cell(symbol(name))
        if value is not None:
            store: Node = Store(tensor, cell, value)
        else:
            at = {mine: symbol(theirs) for mine, theirs in self.places.names.items()}
            at[own.name] = symbol(name)
            (moved,) = map_nodes((self.others.store,), lambda each: each.substitute(at))
            (store,) = map_read(
                (moved,), lambda each: Load(self.rows, cell) if isinstance(each, Result) else each
            )
        return self.for_each_row((For(name, (ZERO,), (own.extent - 1,), (store,)),))

    def cell(self, place: Poly) -> tuple[Poly, Poly]:
        """A cell of the guest's rows."""
        return symbol(self.group.axis.name) - symbol(self.group.first), place

    # ------------------------------------------------------------ passes
    def plane(self, plane: Poly) -> Lanes:
        """A row of a plane."""
        return Lanes((), (), (*self.terms(plane), self.added(plane)))

    def terms(self, plane: Poly) -> tuple[Node, ...]:
        """The host's term of a plane."""
        values = {self.places.plane: plane}
        return map_nodes((self.sums.term,), lambda each: each.substitute(values))

    def added(self, plane: Poly) -> Store:
        """The guest's term of a plane joined to its cell."""
        at = self.places.at(plane, symbol(self.row.axis.name))
        cell = self.cell(at[self.places.lane])
        (term,) = map_nodes((self.others.term,), lambda each: each.substitute(at))
        assert isinstance(term, Accumulate)
        return Store(self.rows, cell, Call("add", (Load(self.rows, cell), term.value)))
