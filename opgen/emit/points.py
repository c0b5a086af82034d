"""The points of a kernel in C: a loop over some of them, around the statements of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import Atom, Poly, of_atom, symbol
from opgen.emit.emitter import extreme
from opgen.emit.expression import type_name
from opgen.emit.lane_tables import lane_tables, tabled_lanes
from opgen.emit.loop_tables import LoopTables, axis_tables, loop_tables
from opgen.emit.planes import print_plane
from opgen.emit.polynomial import Text
from opgen.emit.rows_ahead import fetch_piece
from opgen.emit.statements import Emitter
from opgen.emit.types import Type
from opgen.ir.loops import For, Integer, Lanes, Row, Scalar, Short, walk
from opgen.ir.primitives import Level

MOST_ON_STACK: Final = 2**14
"""The most elements of arrays that lie on the stack: 128 KB of float64. Threads that Python starts
may have 256 KB, those of other C libraries have less."""

FEWEST_IN_A_RUN: Final = 8
"""How long an axis must be for a loop of its own, where that is known: in depth to space, rows of a
block are two or four, and took up to a tenth longer with a loop around them."""

ALIGNED: Final = 64
"""Memory from a boundary of a vector on comes in multiples of so many bytes, or elements."""


@dataclass(frozen=True, slots=True)
class _Digit:
    """A counter and its extent."""

    name: str
    extent: Text


class PointEmitter(Emitter):
    """Prints what a call of a kernel's function does."""

    def points(self, begin: str, end: str) -> None:
        """A loop over a range of the kernel's points, around the body.

        The axes are the digits of a point's number, last axis and row fastest; they are counted
        rather than divided out, since a division may cost more than a short row.
        """
        digits = self.digits()
        if not digits:
            memory = self.take_memory()
            self.begin_with_zeros()
            self.begin_tables()
            memory += self.begin_loop_tables()
            self.inner_body()
            self.give_back(memory)
            return
        self.write(f"if ({begin} >= {end}) return;")
        rest = begin
        if len(digits) > 1:
            rest = self.scope.fresh("rest")
            self.write(f"int64_t {rest} = {begin};")
        for digit in reversed(digits):
            if digit is digits[0]:
                self.write(f"int64_t {digit.name} = {rest};")
            else:
                self.write(f"int64_t {digit.name} = {rest} % {digit.extent.at(Level.UNARY)};")
                self.write(f"{rest} /= {digit.extent.at(Level.ADDITIVE)};")
        memory = self.take_memory()
        self.begin_with_zeros()
        self.begin_tables()
        memory += self.begin_loop_tables()
        memory += self.begin_axis_tables(f"{end} - {begin}")
        self.loop_over_points(begin, end, digits)
        self.give_back(memory)

    def loop_over_points(self, begin: str, end: str, digits: Sequence[_Digit]) -> None:
        """The loop itself, behind the counters of the first point."""
        point = self.scope.fresh("point")
        emitter = self.inner()
        row = self.kernel.row
        if row is not None and row.joined > 1 and len(digits) == 1:
            # Neighbouring points are stretches next to each other.
            step = emitter.joined = self.scope.fresh("joined")
            self.write(
                f"for (int64_t {point} = {begin}, {step}; {point} < {end}; {point} += {step}) {{"
            )
            emitter.write(f"{step} = least({end} - {point}, {row.joined});")
            emitter.inner_body()
            emitter.write(f"{digits[0].name} += {step};")
            self.write("}")
            return
        if self.goes_in_runs():
            self.loop_over_runs(begin, end, digits, point)
            return
        self.write(f"for (int64_t {point} = {begin}; {point} < {end}; {point}++) {{")
        if self.ahead is not None:
            own = digits[-self.ahead.inner - len(self.parts) :]
            counters = {digit.name: digit.extent.at(Level.UNARY) for digit in own}
            fetch_piece(emitter, self.ahead, self.asked, counters)
        emitter.inner_body()
        for digit in reversed(digits[1:]):
            emitter.write(f"if (++{digit.name} < {digit.extent.at(Level.ADDITIVE)}) continue;")
            emitter.write(f"{digit.name} = 0;")
        emitter.write(f"++{digits[0].name};")
        self.write("}")

    def goes_in_runs(self) -> bool:
        """Whether so little is done at a point that it pays to keep what neighbours share.

        These are the parts of places in memory: all numbers do not fit into registers where any of
        them may be the next to change. A pixel of 64 channels, each times one number, took 20 ns in
        place of 10.
        """
        kernel = self.kernel
        if kernel.row is None or kernel.group is not None or kernel.plane is not None:
            return False
        if self.ahead is not None or not kernel.axes:
            return False
        extent = kernel.axes[-1].extent
        if extent.is_constant and extent.constant < FEWEST_IN_A_RUN:
            return False
        return not any(isinstance(node, For) for node in walk(kernel.body))

    def loop_over_runs(self, begin: str, end: str, digits: Sequence[_Digit], point: str) -> None:
        """The loop, with one inside over points that differ in the last axis alone.

        Where a row has several stretches it is one point after the other.
        """
        *outer, last = digits
        part = None
        if last.name in self.parts.values():
            part = last
            *outer, last = outer
        run, first = self.scope.fresh("run"), self.scope.fresh(f"{last.name}_begin")
        self.write(f"for (int64_t {point} = {begin}, {run}; {point} < {end}; {point} += {run}) {{")
        emitter = self.inner()
        count = f"least({last.extent.at(Level.ADDITIVE)} - {last.name}, {end} - {point})"
        if part is not None:
            count = f"{part.extent.at(Level.RELATIONAL)} > 1 ? 1 : {count}"
        emitter.write(f"{run} = {count};")
        axis = last.name
        emitter.write(
            f"for (const int64_t {first} = {axis}; {axis} < {first} + {run}; {axis}++) {{"
        )
        body = emitter.inner()
        body.write("NOT_A_VECTOR;")
        body.inner_body()
        emitter.write("}")
        if part is not None:
            extent = part.extent.at(Level.ADDITIVE)
            emitter.write(f"if (++{part.name} < {extent}) {{")
            emitter.write(f"    {axis} -= {run};")
            emitter.write("    continue;")
            emitter.write("}")
            emitter.write(f"{part.name} = 0;")
        changed = axis
        for digit, next_digit in zip(reversed((*outer, last)), reversed(outer), strict=False):
            extent = digit.extent.at(Level.ADDITIVE)
            emitter.write(f"if ({changed} < {extent}) continue;")
            emitter.write(f"{digit.name} = 0;")
            changed = f"++{next_digit.name}"
        if outer:
            emitter.write(f"{changed};")
        self.write("}")

    def digits(self) -> list[_Digit]:
        """The counters of a point: one for each axis, and one for the stretches of a row."""
        digits = []
        for axis in self.kernel.axes:
            name = self.scope.fresh(axis.name)
            digits.append(_Digit(name, self.printer.poly(axis.extent)))
            self.printer.names.symbols[axis.name] = name
            self.printer.bounded.add((symbol(axis.name), axis.extent))
        for row in self.kernel.stretched:
            if self.is_whole(row):
                self.members[row.axis.name] = self.scope.fresh(row.axis.name)
                continue
            stretches = self.printer.poly(row.stretches)
            digit = _Digit(self.scope.fresh(f"{row.axis.name}_part"), stretches)
            digits.insert(len(digits) - row.within, digit)
            self.members[row.axis.name] = self.scope.fresh(row.axis.name)
            self.parts[row.axis.name] = digit.name
        return digits

    def is_whole(self, row: Row) -> bool:
        """Whether the axis is known to be one stretch."""
        return row.axis.extent.is_constant and row.axis.extent.constant <= row.width

    def inner_body(self) -> None:
        """The body at one point."""
        if self.kernel.plane is not None:
            print_plane(self, self.kernel.plane, self.streams)
            return
        if isinstance(self.kernel.only, Short) and self.kernel.only.holds:
            self.write("NOT_A_VECTOR;")
        for row in self.kernel.stretched:
            if self.is_whole(row):
                self.printer.names.symbols[row.first] = "0"
                self.printer.names.symbols[row.last] = self.text(row.axis.extent - 1)
                continue
            part = self.parts[row.axis.name]
            extent = self.printer.poly(row.axis.extent)
            width = f"{row.width}" if not self.joined else f"{row.width} * {self.joined}"
            last = f"least({{0}} + {width}, {extent.text}) - 1"
            if row.least > 1:
                most = f"{width} + {row.least}" if self.joined else f"{row.width + row.least}"
                is_last = f"{extent.text} - {{0}} < {most}"
                last = f"({is_last} ? {extent.text} : {{0}} + {width}) - 1"
            for name, value in ((row.first, f"{part} * {row.width}"), (row.last, last)):
                own = self.scope.fresh(name)
                first = self.printer.names.symbols.get(row.first, "")
                self.printer.names.symbols[name] = own
                self.write(f"const int64_t {own} = {value.format(first)};")
        self.renew_tables()
        for name in self.kernel.local:
            if not self.has_memory and name not in self.kernel.zeroed:
                self.declare_local(name)
        if self.kernel.row is not None:
            self.declare_lane_accumulators()
        elif self.kernel.group is not None:
            self.declare_group_accumulators()
        self.nodes(self.kernel.body)

    # ------------------------------------------------------------ tables of a row
    def begin_tables(self) -> None:
        """Arrays for what `lane_tables` finds, which are filled for a row that is one stretch."""
        found, row = lane_tables(self.kernel, self.printer.program), self.kernel.row
        if not found or row is None:
            return
        width = row.width + row.least - 1
        is_whole = self.is_whole(row)
        lane = symbol(row.axis.name)
        place = lane if is_whole else lane - symbol(row.first)
        tables: dict[Atom | Scalar, tuple[str, Poly]] = {}
        for each in found:
            name = self.scope.fresh(f"{row.axis.name}_table")
            kind = Type.INTEGER if isinstance(each, Atom) else self.printer.types.of(each)
            self.write(f"{kind.value} {name}[{width}];")
            tables[each] = name, place
        if is_whole:
            self.fill_tables(row.axis.name, tables, "0", self.text(row.axis.extent - 1))
        else:
            self.tabled = self.scope.fresh(f"{row.axis.name}_tabled")
            self.write(f"int64_t {self.tabled} = -1;")
        self.of_row = tables
        self.printer = replace(self.printer, tables=tables)

    def renew_tables(self) -> None:
        """Fill them where a stretch is another one than the last; of long rows, each stretch of
        which is another one, only for passes that need them."""
        row = self.kernel.row
        if row is None or not self.tabled:
            return
        first, last = (self.printer.names.symbols[end] for end in (row.first, row.last))
        self.write(f"if ({self.tabled} != {first}) {{")
        inner = self.inner()
        parts = tabled_lanes(self.kernel, self.printer.program, self.of_row.keys())
        for part in parts or (Lanes((), (), ()),):
            begin = extreme("greatest", [first, *map(self.bound, part.lower)])
            end = extreme("least", [last, *map(self.bound, part.upper)])
            inner.fill_tables(row.axis.name, self.of_row, begin, end)
        inner.write(f"{self.tabled} = {first};")
        self.write("}")

    def fill_tables(
        self, index: str, tables: Mapping[Atom | Scalar, tuple[str, Poly]], first: str, last: str
    ) -> None:
        """All of them, for the values of an index from the first to the last one."""
        inner = self.inner()
        name = inner.scope.fresh(index)
        self.write(f"for (int64_t {name} = {first}; {name} <= {last}; {name}++) {{")
        inner.fill_at(index, tables, name)
        self.write("}")

    def fill_at(
        self, index: str, tables: Mapping[Atom | Scalar, tuple[str, Poly]], name: str
    ) -> None:
        """All of them, for a value of an index."""
        self.printer.names.symbols[index] = name
        self.printer = replace(self.printer, tables={})
        for each, (table, place) in tables.items():
            value = Integer(of_atom(each)) if isinstance(each, Atom) else each
            text = self.printer.scalar(value).text
            self.write(f"{table}[{self.text(place)}] = {text};")

    def begin_loop_tables(self) -> list[str]:
        """Those of `loop_tables`, in memory that is given back behind the points; its names.

        Loops may be long, and threads have small stacks.
        """
        memory: list[str] = []
        tables = dict(self.printer.tables)
        for found in loop_tables(self.kernel, self.printer.program):
            own = self.take_table_memory(found)
            memory += (name for name, _ in own.values())
            self.fill_tables(found.loop, own, "0", self.text(found.count - 1))
            tables |= own
        if memory:
            self.printer = replace(self.printer, tables=tables)
        return memory

    def begin_axis_tables(self, points: str) -> list[str]:
        """Those of `axis_tables`, filled for as many values as there are points at most: what the
        first point has, and the next ones."""
        memory: list[str] = []
        tables = dict(self.printer.tables)
        for found in axis_tables(self.kernel, self.printer.program):
            own = self.take_table_memory(found)
            memory += (name for name, _ in own.values())
            extent = self.printer.poly(found.count)
            first = self.printer.names.symbols[found.loop]
            inner = self.inner()
            number, value = (inner.scope.fresh(name) for name in ("number", found.loop))
            last = f"least({extent.text}, {points})"
            self.write(f"for (int64_t {number} = 0; {number} < {last}; {number}++) {{")
            inner.write(f"const int64_t {value} = ({first} + {number}) % {extent.at(Level.UNARY)};")
            inner.fill_at(found.loop, own, value)
            self.write("}")
            tables |= own
        if memory:
            self.printer = replace(self.printer, tables=tables)
        return memory

    def take_table_memory(self, found: LoopTables) -> dict[Atom | Scalar, tuple[str, Poly]]:
        """Memory for the tables of a loop, and the places in these."""
        tables: dict[Atom | Scalar, tuple[str, Poly]] = {}
        count = self.printer.poly(found.count).at(Level.MULTIPLICATIVE)
        for each in found.values:
            name = self.scope.fresh(f"{found.loop}_table")
            kind = Type.INTEGER if isinstance(each, Atom) else self.printer.types.of(each)
            size = f"greatest({count}, 1) * sizeof({kind.value})"
            self.write(f"{kind.value} *const {name} = malloc({size});")
            self.write(f"if (!{name}) abort();")
            tables[each] = name, symbol(found.loop)
        return tables

    # ------------------------------------------------------------ arrays of a point's own
    def declare_local(self, name: str) -> None:
        """An array for a tensor of which every point has its own.

        It begins at a boundary, and says so: otherwise gcc 12.2 loads some rows of it as if they
        began at one as well, which ends the process (a stride of 2 over rows of 40 to 64).
        """
        own = self.name_local(name)
        kind = type_name(self.printer.program.operand(name))
        size = self.local_size(name)
        self.write(f"{kind} {own}[{size}] __attribute__((aligned(LANE_BYTES)));")

    def name_local(self, name: str) -> str:
        """What such an array is called from here on."""
        operand = self.printer.program.operand(name)
        sizes = [extent.constant for extent in operand.extents]
        own = self.scope.fresh(name)
        self.printer.names.tensors[name] = own
        for axis in range(operand.rank):
            self.printer.names.strides[name, axis] = str(math.prod(sizes[axis + 1 :]))
        return own

    def local_size(self, name: str) -> int:
        """How many elements it has."""
        operand = self.printer.program.operand(name)
        return math.prod(extent.constant for extent in operand.extents)

    def begin_with_zeros(self) -> None:
        """Those that hold zeros before the first point."""
        for name in self.kernel.zeroed:
            if not self.has_memory:
                self.declare_local(name)
            own, size = self.printer.names.tensors[name], self.local_size(name)
            self.write(f"memset({own}, 0, {size} * sizeof *{own});")

    @property
    def has_memory(self) -> bool:
        """Whether a task takes memory for such arrays: a thread may have a small stack."""
        sizes = map(self.local_size, self.kernel.local)
        return sum(sizes) > MOST_ON_STACK

    def take_memory(self) -> list[str]:
        """Memory for the arrays of all points of a task, one after the other; its names.

        Without any the process ends, as where a stack is too small.
        """
        memory = []
        for name in self.kernel.local if self.has_memory else ():
            own = self.name_local(name)
            kind = type_name(self.printer.program.operand(name))
            size = -(-self.local_size(name) // ALIGNED) * ALIGNED
            self.write(f"{kind} *const {own} = aligned_alloc(LANE_BYTES, {size} * sizeof({kind}));")
            self.write(f"if (!{own}) abort();")
            memory.append(own)
        return memory

    def give_back(self, memory: Sequence[str]) -> None:
        """Free it."""
        for own in memory:
            self.write(f"free({own});")
