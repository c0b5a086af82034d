"""Nodes of the loops as the CUDA statements of one thread."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from opgen.algebra.condition import Condition
from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.emit.cuda_interior import interior
from opgen.emit.cuda_known import Known, known_elements
from opgen.emit.cuda_printer import INDEX, CudaPrinter, Stretch, plus, times
from opgen.emit.cuda_quotients import by_inverses
from opgen.emit.cuda_runs import (
    Access,
    Run,
    aligned_text,
    fixed_loads,
    is_whole,
    load_runs,
    store_runs,
)
from opgen.emit.emitter import extreme
from opgen.emit.expression import Printer, type_name
from opgen.emit.polynomial import Text
from opgen.emit.statements import Emitter
from opgen.ir import loops
from opgen.ir.loops import WARP, Accumulate, For, Kernel, Lanes, Node, Row, Start, Store, walk
from opgen.ir.map_loops import symbols_of
from opgen.ir.notation import Reducer
from opgen.ir.primitives import Level


@dataclass
class CudaStatements(Emitter):
    """Prints nodes as statements of one thread."""

    printer: CudaPrinter
    is_shared: bool = False  # inside of a loop that the threads of a team share
    outputs: dict[Access, tuple[str, str]] = field(default_factory=dict)  # registers and flags
    walked: dict[str, int] = field(default_factory=dict)  # the largest steps of runs, by tensor

    def integer_type(self, *values: Poly) -> str:
        """The type of a variable for an integer that is, or lies between, these."""
        return "int64_t" if any(map(self.printer.is_wide, values)) else INDEX

    def define(self, name: str, value: Poly) -> None:
        super().define(name, value)
        if self.printer.is_wide(value):
            self.printer.wide.add(name)

    # ------------------------------------------------------------ stretches
    def begin_stretches(self, parts: Sequence[str]) -> None:
        """Name the cells of this thread; `parts` are the numbers of its stretches."""
        names = self.printer.names.symbols
        for row, part in zip(self.kernel.stretched, parts, strict=True):
            count = "LANES" if row is self.kernel.row else "ROWS"
            first = names[row.first] = self.scope.fresh(row.first)
            self.write(f"const {INDEX} {first} = {part} * {count};")
            names[row.last] = f"({first} + {count} - 1)"
            if row.last in symbols_of(*_without_rows(self.kernel)):
                names[row.last] = self.scope.fresh(row.last)
                self.write(f"const {INDEX} {names[row.last]} = {first} + {count} - 1;")
            if row.around is not None:
                begin, end = row.around
                names[begin], names[end] = map(self.scope.fresh, row.around)
                self.write(f"const {INDEX} {names[begin]} = ({part} & -{WARP}) * {count};")
                self.write(f"const {INDEX} {names[end]} = {names[begin]} + {WARP} * {count} - 1;")
            self.members[row.axis.name] = self.scope.fresh("lane" if count == "LANES" else "row")
            stretch = Stretch(row.axis.name, row.axis.extent, self.members[row.axis.name], count)
            self.printer = replace(self.printer, stretches=(*self.printer.stretches, stretch))
        self.declare_lane_accumulators()

    def lane_place(self) -> tuple[str, str]:
        group = self.kernel.group
        if group is None:
            return f"[{self.lane}]", "[LANES]"
        return f"[{self.members[group.axis.name]}][{self.lane}]", "[ROWS][LANES]"

    def lanes(self, node: Lanes, by_lanes: bool = True) -> None:
        """A pass over the cells, and another one where conditions hold for all of them.

        Those that lanes decide `by_lanes` stay in both.
        """
        hinted = self.printer.stretches if by_lanes else ()
        found = interior(node, hinted, self.kernel.stretched)
        if found is None:
            self.all_lanes(node)
            return
        all_hold, may_hold = (
            " && ".join(Printer.condition(self.printer, each).at(Level.EQUALITY) for each in tests)
            for tests in (found.conditions, found.possible)
        )
        self.write(f"if ({all_hold}) {{")
        inside(self).all_lanes(found.lanes)
        self.write(f"}} else if ({may_hold}) {{" if may_hold else "} else {")
        inside(self).all_lanes(node)
        self.write("}")

    def all_lanes(self, node: Lanes) -> None:
        """What is loaded for all cells, loops over them, what is stored for them."""
        row, group, program = self.kernel.row, self.kernel.group, self.printer.program
        assert row is not None and not node.lower and not node.upper
        block = inside(self)
        block.printer = replace(block.printer, registers=dict(block.printer.registers))
        across = None if group is None else group.axis.name
        loads = load_runs(node, row.axis.name, across, program)
        stores = store_runs(node, row.axis.name, across)
        self.write("{")
        for load in fixed_loads(node, frozenset(each.axis.name for each in self.kernel.stretched)):
            block.load_once(load)
        for run in loads:
            block.load(run, self.known(node, run))
        block.outputs = dict(self.outputs)
        registers = [block.begin_store(run) for run in stores]
        cells = block
        for each in self.kernel.stretched:
            cells = cells.begin_members(each)
        before = len(self.lines)
        cells.declare_guarded(node)
        cells.nodes(node.body)
        cells.name_members(before)
        for _ in self.kernel.stretched:
            cells.depth -= 1
            cells.write("}")
        for run, (name, flags) in zip(stores, registers, strict=True):
            block.store(run, name, flags)
        self.write("}")

    def declare_guarded(self, node: Lanes) -> None:
        """Declare the accumulators of a cell that are started inside of a condition.

        Others join them, or read them, inside of the same condition further on.
        """
        outside = {each.accumulator for each in node.body if isinstance(each, Start)}
        for start in walk(node.body):
            if isinstance(start, Start) and start.accumulator not in outside | self.arrays:
                names = self.accumulator_names(start)
                for kind, name in names.declared:  # a value tells compilers that there is one
                    self.write(f"{kind} {name} = {kind}();")
                self.adopt(start.accumulator, names)
                self.arrays.add(start.accumulator)

    def load_once(self, load: loops.Load) -> None:
        """Load what is the same for all cells, if its indices are inside for sure.

        Where that holds but for the last turns of a loop of constant length, it is asked once.
        """
        printer = self.printer
        operand = next((o for o in printer.program.operands if o.name == load.tensor), None)
        if operand is None:
            return
        tests: list[str] = []
        for index, extent in zip(load.indices, operand.extents, strict=True):
            if (index, extent) in printer.bounded:
                continue
            last = self.greatest(index)
            if last is None or not extent.is_constant:
                return
            if last >= extent.constant:
                tests.append(printer.condition(Condition(extent - 1 - index)).at(Level.EQUALITY))
        name, kind = self.scope.fresh(f"{load.tensor}_element"), type_name(operand)
        cell = printer.cell(load.tensor, load.indices)
        if tests:
            self.write(f"{kind} {name} = {kind}();")
            self.write(f"if ({' && '.join(tests)}) {name} = {cell};")
        else:
            self.write(f"const {kind} {name} = {cell};")
        printer.registers[load.tensor, load.indices] = name

    def greatest(self, index: Poly) -> int | None:
        """The greatest value of an index that counts a loop of constant length; None for others.

        It is never less than 0 either. A constant is one, if it is no index from the end.
        """
        if index.constant < 0 or index.is_constant:
            return index.constant if index.constant >= 0 else None
        for known, extent in self.printer.bounded:
            name = known.symbol
            step = None if name is None else index.step_in(name)
            if name is not None and step is not None and step > 0 and extent.is_constant:
                at_last = index.substitute({name: extent - 1})
                if at_last.is_constant:
                    return at_last.constant
        return None

    def begin_members(self, row: Row) -> CudaStatements:
        """A loop over the values of a stretch; gives the emitter of what is inside."""
        member = self.members[row.axis.name]
        count = "LANES" if row is self.kernel.row else "ROWS"
        self.write("UNROLL")
        self.write(f"for (int {member} = 0; {member} < {count}; {member}++) {{")
        inner = inside(self)
        inner.printer.names.symbols[row.axis.name] = inner.scope.fresh(row.axis.name)
        inner.printer.bounded.add((symbol(row.axis.name), row.axis.extent))
        return inner

    def name_members(self, before: int) -> None:
        """Define the values of stretches that the lines since then use."""
        names = self.printer.names.symbols
        for row in self.kernel.stretched:
            name = names[row.axis.name]
            if any(re.search(rf"\b{name}\b", line) for line in self.lines[before:]):
                value = f"{names[row.first]} + {self.members[row.axis.name]}"
                line = f"const {INDEX} {name} = {value};"
                self.lines.insert(before, "    " * self.depth + line)

    def declare(self, run: Run, suffix: str) -> tuple[str, dict[Access, str]]:
        """Registers for a run: their name, and where each of its elements is behind it."""
        operand = self.printer.program.operand(run.tensor)
        name = self.scope.fresh(f"{run.tensor}_{suffix}")
        self.walked[run.tensor] = max(run.step, self.walked.get(run.tensor, 1))
        self.write(f"{type_name(operand)} {name}{_size(run)};")
        places = {
            access: self.row_of(run, row) + _place(run.step, self.lane, offset - run.begin)
            for access, (row, offset) in run.accesses.items()
        }
        return name, places

    def row_of(self, run: Run, offset: int) -> str:
        """Where the row of a member is in the registers of a run."""
        group = self.kernel.group
        if group is None or not run.moves:
            return ""
        return _place(1, self.members[group.axis.name], offset - run.top)

    def known(self, node: Lanes, run: Run) -> Known | None:
        """What the lanes tell of the elements of a run."""
        row, group = self.kernel.row, self.kernel.group
        assert row is not None
        (lane,) = (each for each in self.printer.stretches if each.name == row.axis.name)
        return known_elements(node, run, lane, None if group is None else group.axis.name)

    def load(self, run: Run, known: Known | None) -> None:
        """Fill registers with a run."""
        name, places = self.declare(run, "run")
        self.printer.registers.update({access: name + at for access, at in places.items()})
        self.for_rows(run, name, lambda row, registers: row.load_row(run, registers, known))

    def for_rows(self, run: Run, name: str, write: Callable[[CudaStatements, str], None]) -> None:
        """Write something for every row of a run, given its registers."""
        group = self.kernel.group
        if group is None or not run.moves:
            write(self, name)
            return
        at = self.scope.fresh("at")
        self.write("UNROLL")
        end = plus("ROWS", run.bottom)
        self.write(f"for (int {at} = {run.top}; {at} < {end}; {at}++) {{")
        inner = inside(self)
        names, printer = inner.printer.names.symbols, inner.printer
        member = names[group.axis.name] = inner.scope.fresh(group.axis.name)
        first = names[group.first]
        inner.write(f"const {INDEX} {member} = {first} + {at};")
        others = (each for each in printer.stretches if each.name != group.axis.name)
        own = Stretch(group.axis.name, group.axis.extent, at, "ROWS")
        inner.printer = replace(printer, stretches=(*others, own))
        if run.top == run.bottom == 0:
            inner.printer.bounded.add((symbol(group.axis.name), group.axis.extent))
        write(inner, f"{name}[{plus(at, -run.top)}]")
        self.write("}")

    def load_row(self, run: Run, name: str, by_lanes: Known | None) -> None:
        """Fill the registers of one row of a run."""
        operand = self.printer.program.operand(run.tensor)
        extent = operand.extents[-1]
        row = self.kernel.row
        assert row is not None
        begin, end = f"{run.begin}", _lanes(run.step, run.end)
        tests: list[str] = []
        if run.certain and not run.clamped:
            known = (begin, end)
        elif run.rest == 0 and (extent - run.step * row.axis.extent).is_constant:
            spare = (extent - run.step * row.axis.extent).constant
            known = ("0", _lanes(run.step, spare))
            by_lanes = None
        elif by_lanes is not None:
            known = (f"{by_lanes.begin}", _lanes(run.step, by_lanes.end))
        else:
            known = ("0", "0")
        if by_lanes is not None:
            tests = [
                self.printer.condition(each).at(Level.EQUALITY) for each in by_lanes.conditions
            ]
        elif not run.certain:
            tests = [
                self.printer.inside(index, size).at(Level.EQUALITY)
                for index, size in zip(run.rows, operand.extents, strict=False)
                if (index, size) not in self.printer.bounded and index != 0
            ]
        options = (
            begin,
            end,
            *known,
            aligned_text(run, row.axis.extent),
            _true(is_whole(run, extent, row.axis.extent)),
            _true(run.clamped),
        )
        place, first, step = self.run_place(run)
        arguments = (name, place, first.text, step, self.text(extent))
        call = f"load_run<{', '.join(options)}>({', '.join(arguments)})"
        self.write(f"if ({' && '.join(tests)}) {call};" if tests else f"{call};")

    def begin_store(self, run: Run) -> tuple[str, str]:
        """Registers for what the cells write, and those that say which do; "" where all do."""
        row = self.kernel.row
        assert row is not None
        name, places = self.declare(run, "out")
        flags = ""
        if not run.certain:
            flags = self.scope.fresh(f"{run.tensor}_is_out")
            self.write(f"bool {flags}{_size(run)} = {{}};")
        for access, at in places.items():
            self.outputs[access] = name + at, flags and flags + at
        return name, flags

    def store(self, run: Run, name: str, flags: str) -> None:
        """Store what the cells have written."""
        row = self.kernel.row
        assert row is not None
        options = (f"{run.begin}", _lanes(run.step, run.end), aligned_text(run, row.axis.extent))

        def write(emitter: CudaStatements, registers: str) -> None:
            place, _, step = emitter.run_place(run)
            arguments = [registers, place, step]
            if flags:
                arguments.append(f"{flags}{registers.removeprefix(name)}")
            emitter.write(f"store_run<{', '.join(options)}>({', '.join(arguments)});")

        self.for_rows(run, name, write)

    def run_place(self, run: Run) -> tuple[str, Text, str]:
        """Where a run begins in memory, where in its row, and the step of the row."""
        operand = self.printer.program.operand(run.tensor)
        row = Printer.cell(self.printer, run.tensor, (*run.rows, ZERO)).removesuffix("]")
        assert self.kernel.row is not None
        first = self.printer.poly(symbol(self.kernel.row.first) * run.step + run.rest)
        stride = self.printer.names.strides[run.tensor, operand.rank - 1]
        step = f"(PROVED ? 1 : {stride})"
        # One index in all: each by itself would be converted to an address.
        return f"&{row} + {first.at(Level.MULTIPLICATIVE)} * {step}]", first, step

    def node(self, node: Node) -> None:
        match node:
            case Store(tensor=tensor, indices=indices, value=value):
                operand = self.printer.program.operand(tensor)
                stored = self.printer.copied(value, operand)
                if stored is None:
                    stored = self.printer.stored(operand, self.printer.scalar(value))
                default = self.printer.cell(tensor, indices), ""
                place, flag = self.outputs.get((tensor, indices), default)
                self.write(f"{place} = {stored};")
                if flag:
                    self.write(f"{flag} = true;")
            case _:
                super().node(node)

    def join(self, node: Accumulate, total: str) -> None:
        """Join a term that is present; a product is added with one rounding."""
        node = by_inverses(node, self.printer.divisors)
        match node:
            case Accumulate(
                reducer=Reducer.ADD, value=loops.Call(primitive="mul", arguments=(first, second))
            ):
                factors = f"{self.printer.scalar(first).text}, {self.printer.scalar(second).text}"
                self.write(f"{total} = multiply_add({factors}, {total});")
            case _:
                super().join(node, total)

    # ------------------------------------------------------------ teams
    def loop(self, node: For) -> None:
        if any(map(self.printer.is_wide, (*node.lower, *node.upper))):
            self.printer.wide.add(node.name)
        group = self.kernel.group
        if group is not None and node.name == group.axis.name:
            self.nodes(node.body)  # lanes are loops over the rows of the group, too
            return
        if not node.any_order:
            super().loop(node)
            return
        # The outermost and the innermost of the shared loops, or a single one.
        if self.is_shared:
            first, step = "threadIdx.x", "blockDim.x"
        elif any(isinstance(each, For) and each.any_order for each in walk(node.body)):
            first, step = "threadIdx.y", "blockDim.y"
        else:
            first, step = "MEMBER", "MEMBERS"
        kind = self.integer_type(*node.lower, *node.upper)
        lower = extreme("greatest", [self.bound(bound) for bound in node.lower])
        upper = extreme("least", [self.bound(bound + 1) for bound in node.upper])
        inner = inside(self)
        inner.is_shared = True
        end = self.scope.fresh(f"{node.name}_end")
        self.write(f"const {kind} {end} = {upper};")
        name = inner.scope.fresh(node.name)
        inner.printer.names.symbols[node.name] = name
        if ZERO in node.lower:
            inner.printer.bounded.update((symbol(node.name), bound + 1) for bound in node.upper)
        start = f"{lower} + ({kind}){first}"
        self.write(f"for ({kind} {name} = {start}; {name} < {end}; {name} += {step}) {{")
        inner.nodes(node.body)
        self.write("}")


def _lanes(step: int, more: int) -> str:
    """A multiple of the number of lanes, and a few more."""
    return times(step, "LANES", more)


def _place(step: int, member: str, shift: int) -> str:
    """The element of an array for a member."""
    return f"[{times(step, member, shift)}]"


def _size(run: Run) -> str:
    """The size of an array for a run."""
    size = f"[{_lanes(run.step, run.end - run.begin)}]"
    return f"[{plus('ROWS', run.bottom - run.top)}]{size}" if run.moves else size


def _without_rows(kernel: Kernel) -> tuple[Node, ...]:
    """The body, with what is done to the rows of a group in place of loops over them."""
    group = kernel.group
    out: list[Node] = []
    for node in kernel.body:
        is_group = isinstance(node, For) and group is not None and node.name == group.axis.name
        out += node.body if isinstance(node, For) and is_group else (node,)
    return tuple(out)


def _true(value: bool) -> str:
    return "true" if value else "false"


_E = TypeVar("_E", bound=Emitter)


def inside(emitter: _E) -> _E:
    """The emitter one level further in; names stay known."""
    inner = emitter.inner()
    assert isinstance(inner, type(emitter))
    return inner
