"""What blocks of lanes load and store: vectors, where memory has their elements side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Self

from opgen.algebra.poly import Poly, symbol
from opgen.emit.accumulators import AccumulatorEmitter
from opgen.emit.coarse import Coarse, are_coarse
from opgen.emit.columns import COUNT, columns_of, stored_rows
from opgen.emit.expression import type_name
from opgen.emit.polynomial import Text
from opgen.emit.streams import stored_beside
from opgen.ir.loop_parts import goes_along, loads_of
from opgen.ir.loops import Accumulate, Blocks, Lanes, Load, Node, Row, Store, walk

MOST_ROWS: Final = 12
"""How many rows of tensors have addresses of their own: as many as fit into registers."""


class BlockCellEmitter(AccumulatorEmitter):
    """Prints loads and stores of blocks of lanes."""

    @property
    def row_axis(self) -> str:
        """The name of the axis that lanes go along."""
        assert self.kernel.row is not None
        return self.kernel.row.axis.name

    # ------------------------------------------------------------ addresses and loads
    def begin_rows(self, node: Lanes, inner: Self, row: Row, first: str) -> None:
        """Where the rows of a pass begin, if that fits into registers.

        Compilers add it up again in every block where cells are of several rows.
        """
        lane, program = row.axis.name, self.printer.program
        cells = [(each.tensor, each.indices) for each in loads_of(walk(node.body))]
        cells += [
            (each.tensor, each.indices) for each in walk(node.body) if isinstance(each, Store)
        ]
        rows: dict[tuple[str, tuple[Poly, ...]], str] = {}
        for tensor, indices in cells:
            if indices[-1].symbols >= {lane}:
                begin = inner.printer.begin_of_row(inner.printer.first_of_pair(indices))
                rows[tensor, begin] = ""
        if len(rows) > MOST_ROWS:
            return
        ones = {}
        for tensor, begin in rows:
            operand = program.operand(tensor)
            kind = type_name(operand)
            constant = "" if tensor in self.kernel.all_written else "const "
            name = rows[tensor, begin] = self.scope.fresh(f"{tensor}_row")
            cell = self.printer.cell(tensor, begin)
            self.write(f"{constant}{kind} *const {name} = &{cell};")
            if operand.optional:
                ones[tensor] = self.scope.fresh(f"{tensor}_one")
                step = self.printer.names.strides[tensor, operand.rank - 1]
                number = f"from_{kind}({name}[{first} * {step}])"
                self.write(f"const wide_lanes {ones[tensor]} = same_lanes({number});")
        inner.printer = replace(inner.printer, rows=rows, ones=ones)

    def name_loads(self, node: Accumulate) -> None:
        """Load what a term reads of rows, once for all terms of the scope.

        Where each term says it again the compiler finds out, but takes half as long again.
        """
        for load in loads_of((node,)):
            if any(self.row_axis in index.symbols for index in load.indices):
                self.loaded_as(load)

    def loaded_as(self, load: Load) -> str:
        """The name of a vector of the scope, which is loaded now if it was not before."""
        key = load.tensor, load.indices
        if key not in self.printer.columns:
            name = self.scope.fresh(f"{load.tensor}_lanes")
            self.write(f"const wide_lanes {name} = {self.printer.scalar(load).text};")
            self.printer.columns[key] = name
        return self.printer.columns[key]

    def look_at_loads(self, node: Lanes, coarse: Coarse) -> None:
        """Find out whether all that a block loads is coarse."""
        pairs: dict[tuple[str, tuple[Poly, ...]], list[Load]] = {}
        for load in dict.fromkeys(loads_of(walk(node.body))):
            if load.tensor in coarse.moving:
                first = load.tensor, self.printer.first_of_pair(load.indices)
                pairs.setdefault(first, []).append(load)
        before, self.is_coarse = self.is_coarse, self.scope.fresh("is_coarse")
        tests, vectors = [], []
        for (tensor, place), loads in pairs.items():
            if self.printer.program.operand(tensor).unrounded:
                tests.append(self.pair_if_coarse(tensor, place, loads))
            else:
                vectors += [self.loaded_as(load) for load in loads]
        text = " && ".join([*tests, are_coarse(before, vectors)])
        self.write(f"const int {self.is_coarse} = {text};")

    def pair_if_coarse(self, tensor: str, place: tuple[Poly, ...], loads: Sequence[Load]) -> str:
        """Load two vectors, quickly if they are coarse; the variable that says whether they are."""
        names = [self.scope.fresh(f"{tensor}_lanes") for _ in loads]
        for load, name in zip(loads, names, strict=True):
            self.printer.columns[tensor, load.indices] = name
        found = self.scope.fresh(f"{tensor}_is_coarse")
        self.write(f"wide_lanes {', '.join(names)};")
        arguments = ", ".join(f"&{name}" for name in names)
        cell = self.printer.cell(tensor, place)
        self.write(f"const int {found} = pair_if_coarse(&{cell}, {arguments});")
        return found

    # ------------------------------------------------------------ rows that lanes go across
    def load_columns(self, nodes: Sequence[Node]) -> None:
        """Load what nodes of this scope need of rows that lanes go across."""
        for found in columns_of(nodes, self.row_axis, self.printer.program):
            name = self.scope.fresh(f"{found.tensor}_columns")
            arguments = self.columns_at(found.tensor, found.cell, name)
            self.write(f"wide_lanes {name}[{COUNT}];")
            self.write(f"load_columns{arguments};")
            for last in found.asked:
                key = found.tensor, (*found.place, last)
                self.printer.columns[key] = f"{name}[{last.constant - found.first}]"

    def store_columns(self, nodes: Sequence[Node]) -> bool:
        """Write rows that lanes go across, if that is all there is to do in this scope."""
        only = self.kernel.only
        if self.kernel.row is None or not isinstance(only, Blocks):
            return False
        found = stored_rows(nodes, self.row_axis)
        if not found or found[0][0].tensor not in only.tensors:
            return False
        for stores in found:
            first = stores[0]
            name = self.scope.fresh(f"{first.tensor}_columns")
            self.write(f"wide_lanes {name}[{COUNT}];")
            for at, store in enumerate(stores):
                self.write(f"{name}[{at}] = {self.printer.scalar(store.value).text};")
            self.write(f"store_columns{self.columns_at(first.tensor, first.indices, name)};")
        return True

    def columns_at(self, tensor: str, first: Sequence[Poly], columns: str) -> str:
        """How the name of a function ends that moves columns, `first` on, and its arguments."""
        axis = next(at for at, index in enumerate(first) if self.row_axis in index.symbols)
        step = self.printer.names.strides[tensor, axis]
        kind = "_unrounded" if self.printer.program.operand(tensor).unrounded else ""
        return f"{kind}(&{self.printer.cell(tensor, first)}, {step}, {columns})"

    # ------------------------------------------------------------ stores
    def store_lanes(self, node: Store) -> None:
        """Write the cells of a block: all at once where they are consecutive, else one by one."""
        if self.copy_rounded(node):
            return
        values = self.printer.scalar(node.value).text
        if self.printer.behind:
            self.store_pair(node, values)
            return
        operand = self.printer.program.operand(node.tensor)
        if goes_along(node.indices, self.row_axis):
            kind = type_name(operand) if operand.widened or operand.unrounded else "T"
            function, more = f"lanes_to_{kind}", ""
            if self.printer.within:
                function, more = f"{function}_within", f", {self.printer.within}"
            elif not operand.widened:
                function += self.printer.alone
            cell = self.printer.cell(node.tensor, node.indices)
            if self.goes_past(node.tensor) and (operand.unrounded or self.beside):
                self.write(f"if ({self.streams}) lanes_past_{kind}(&{cell}, {values});")
                self.write("else")
            self.write(f"{function}(&{cell}, {values}{more});")
            return
        inner, number, cells, cell = self.one_by_one(node.tensor, node.indices)
        stored = inner.printer.stored(operand, Text(f"{cells}[{number}]"))
        self.write("{")
        inner.write(f"const wide_lanes {cells} = {values};")
        inner.write(f"for (int64_t {number} = 0; {number} < LANES; {number}++) {cell} = {stored};")
        self.write("}")

    def store_pair(self, node: Store, values: str) -> None:
        """Write the cells of two vectors, after the second one has been computed."""
        indices = self.printer.first_of_pair(node.indices)
        key = node.tensor, indices
        if indices == node.indices:
            self.halves[key] = values
            return
        kind = "unrounded" if self.printer.program.operand(node.tensor).unrounded else "T"
        function, more = f"pair_to_{kind}{self.printer.alone}", ""
        if self.is_coarse:
            function, more = "pair_to_T_at_once", f", {self.is_coarse}"
        arguments = f"{self.halves.pop(key)}, {values}"
        if self.goes_past(node.tensor) and kind == "unrounded":
            cell = self.printer.cell(node.tensor, indices)
            self.write(f"if ({self.streams}) pair_past_unrounded(&{cell}, {arguments});")
            self.write("else")
        elif self.goes_past(node.tensor):
            function, more = "pair_to_or_past_T", f", {self.is_coarse or 0}, {self.streams}"
        arguments += more
        if goes_along(indices, self.row_axis):
            self.write(f"{function}(&{self.printer.cell(node.tensor, indices)}, {arguments});")
            return
        inner, number, cells, cell = self.one_by_one(node.tensor, indices)
        self.write("{")
        inner.write(f"{kind} {cells}[2 * LANES];")
        inner.write(f"{function}({cells}, {arguments});")
        inner.write(f"for (int64_t {number} = 0; {number} < 2 * LANES; {number}++)")
        inner.write(f"    {cell} = {cells}[{number}];")
        self.write("}")

    @property
    def beside(self) -> str | None:
        """The tensor whose cells are stored beside sums."""
        return stored_beside(self.kernel, self.printer.program)

    def goes_past(self, tensor: str) -> bool:
        """Whether vectors of a tensor are stored past the caches in some calls."""
        return bool(self.streams) and self.beside in (None, tensor)

    def one_by_one(self, tensor: str, indices: Sequence[Poly]) -> tuple[Self, str, str, str]:
        """A scope to store an array from; the names of its index and of itself; the cell to write.

        That is the one as many lanes behind the first of the block as the index says.
        """
        inner, lane = self.inner(), self.row_axis
        number, cells = inner.scope.fresh("lane"), inner.scope.fresh("cells")
        inner.printer.names.symbols[number] = number
        here = {lane: symbol(lane) + symbol(number)}
        cell = inner.printer.cell(tensor, [each.substitute(here) for each in indices])
        return inner, number, cells, cell

    def copy_rounded(self, node: Store) -> bool:
        """Copy a block to consecutive cells, rounded once for all of its copies in this scope."""
        load, program = node.value, self.printer.program
        if self.printer.behind or self.printer.within or not isinstance(load, Load):
            return False
        source, target = program.operand(load.tensor), program.operand(node.tensor)
        if (type_name(source), type_name(target)) != ("unrounded", "T"):
            return False
        if not all(goes_along(each.indices, self.row_axis) for each in (load, node)):
            return False
        if load not in self.copied:
            name = self.scope.fresh(f"{load.tensor}_lanes")
            cell = self.printer.cell(load.tensor, load.indices)
            self.write(f"const stored_lanes {name} = stored_from_unrounded(&{cell});")
            self.copied[load] = name
        cell = self.printer.cell(node.tensor, node.indices)
        self.write(f"*(stored_lanes *)&{cell} = {self.copied[load]};")
        return True
