"""Passes over the lanes of a row as loops: one by one, in blocks, or past the caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Self

from opgen.algebra.poly import Poly, poly, symbol
from opgen.emit.accumulators import AccumulatorEmitter
from opgen.emit.coarse import Coarse, are_coarse
from opgen.emit.columns import COUNT, columns_of, stored_rows
from opgen.emit.emitter import extreme
from opgen.emit.expression import type_name
from opgen.emit.lane_pairs import (
    Pass,
    held_pair,
    hold_pairs,
    in_pairs,
    one_by_one,
)
from opgen.emit.planes import FEW_TERMS
from opgen.emit.polynomial import Text
from opgen.emit.streams import Line, lines
from opgen.emit.vectors import is_next, row_loads
from opgen.ir.loop_parts import accumulators_of, loads_of
from opgen.ir.loops import (
    Accumulate,
    Blocks,
    For,
    Lanes,
    Load,
    Node,
    Row,
    Short,
    Start,
    Store,
    walk,
)

FEW: Final = 8
"""How many lanes are not worth a vector, nor the time that the compiler takes to make one."""


MOST_ROWS: Final = 12
"""How many rows of tensors have addresses of their own: as many as fit into registers."""

_VECTOR: Final = 16
"""How many lanes a vector has: those of float32 in registers of 64 bytes."""

_MANY_TERMS: Final = 9
"""From how many terms of a cell on it pays that all lanes are in vectors."""


class LaneEmitter(AccumulatorEmitter):
    """Prints passes over the lanes."""

    def lanes(self, node: Lanes) -> None:
        """A loop over the lanes between the bounds."""
        row = self.kernel.row
        assert row is not None
        if isinstance(self.kernel.only, Blocks) and self.kernel.only.holds:
            self.block_of_lanes(node, row)
            return
        symbols = self.printer.names.symbols
        begin = extreme("greatest", [symbols[row.first], *map(self.text, node.lower)])
        upper = [symbols[row.last], *map(self.text, node.upper)]
        inner = self.inner()
        inner.printer.names.symbols[row.axis.name] = self.lane
        inner.printer.bounded.add((symbol(row.axis.name), row.axis.extent))
        first = symbols[row.first]
        if node.lower:
            first = self.scope.fresh(f"{row.axis.name}_begin")
            self.write(f"const int64_t {first} = {begin};")
        last = symbols[row.last]
        if node.upper:
            last = self.scope.fresh(f"{row.axis.name}_end")
            self.write(f"const int64_t {last} = {extreme('least', upper)};")
        if isinstance(self.kernel.only, Short) and self.kernel.only.holds:
            self.masked_lanes(node, row, first, last)
            return
        few = not self.printer.cuda and _are_few(node, row)
        ends = []
        if not few:
            self.fetch_ahead(node, inner, first, last)
            if self.streams:
                whole = lines(node, self.kernel, self.printer.program)
                inner.places = dict(self.places)
                ends = [self.begin_line(each, inner, first, last) for each in whole]
        if not few and not self.printer.cuda and _goes_by_vectors(node, row):
            self.whole_vectors(node, row, inner)
        else:
            if not few:
                self.write("INDEPENDENT")
            head = f"int64_t {self.lane} = {first}; {self.lane} <= {last}; {self.lane}++"
            self.write(f"for ({head}) {{")
            if few:
                inner.write("NOT_A_VECTOR;")
            inner.nodes(node.body)
            self.write("}")
        for end in ends:
            self.write(end)

    def whole_vectors(self, node: Lanes, row: Row, inner: Self) -> None:
        """A loop over as many lanes as a vector has, again and again; the last ones begin earlier.

        What is left behind whole vectors would be computed one by one.
        """
        lane, extent = self.lane, row.axis.extent.constant
        begin = self.scope.fresh(f"{row.axis.name}_begin")
        self.write(f"for (int64_t {begin} = 0; {begin} < {extent}; {begin} += {_VECTOR}) {{")
        middle = self.inner()
        middle.write("NOT_A_VECTOR;")
        middle.write(f"if ({begin} > {extent - _VECTOR}) {begin} = {extent - _VECTOR};")
        middle.write("INDEPENDENT")
        end = f"{begin} + {_VECTOR}"
        middle.write(f"for (int64_t {lane} = {begin}; {lane} < {end}; {lane}++) {{")
        inner.depth += 1
        inner.nodes(node.body)
        middle.write("}")
        self.write("}")

    def begin_line(self, line: Line, inner: Self, first: str, last: str) -> str:
        """Choose where a line is written; what is to be done after it."""
        row, program, tensor = self.kernel.row, self.printer.program, line.tensor
        assert row is not None
        operand = program.operand(tensor)
        kind, stride = type_name(operand), self.printer.names.strides[tensor, operand.rank - 1]
        outer = self.printer.names
        at_first = replace(outer, symbols={**outer.symbols, row.axis.name: first})
        cell = replace(self.printer, names=at_first).cell(tensor, line.start)
        name, buffer, goes = (
            self.scope.fresh(f"{tensor}_{suffix}") for suffix in ("line", "buffer", "streams")
        )
        count = f"({last} - {first} + 1)" + (f" * {line.step}" if line.step > 1 else "")
        bytes_ = f"{count} * (int64_t)sizeof({kind})"
        self.write(f"{kind} {buffer}[{row.width * line.step}];")
        worth = f"is_of_lines(&{cell}, {bytes_})"
        self.write(f"const int {goes} = {self.streams} && {stride} == 1 && {worth};")
        self.write(f"{kind} *const {name} = {goes} ? {buffer} : &{cell};")
        lane = self.lane if first == "0" else f"({self.lane} - {first})"
        for indices, offset in line.offsets.items():
            place = f"{line.step} * {lane}" if line.step > 1 else lane
            if offset:
                place = f"({place} + {offset})"
            elif line.step > 1:
                place = f"({place})"
            inner.places[tensor, indices] = f"{name}[{place} * {stride}]"
        return f"if ({goes}) stream(&{cell}, {buffer}, {bytes_});"

    def masked_lanes(self, node: Lanes, row: Row, first: str, last: str) -> None:
        """A vector of all lanes of a stretch; those outside of the bounds do nothing."""
        begin = self.printer.names.symbols[row.first]
        low, high = (self.scope.fresh(f"{row.axis.name}_{end}") for end in ("low", "high"))
        inner = replace(self.inner(), blocks=True)
        inner.printer.names.symbols[row.axis.name] = begin
        inner.printer = replace(inner.printer, walking=row.axis.name, within=f"{low}, {high}")
        # Lanes behind the end of the row may hold anything: they are never written.
        inner.whole = not node.lower and not node.upper
        self.write("{" if inner.whole else f"if ({first} <= {last}) {{")
        inner.write(f"const int {low} = {first} - {begin}, {high} = {last} - {begin};")
        inner.nodes(node.body)
        self.write("}")

    def block_of_lanes(self, node: Lanes, row: Row) -> None:
        """A loop over blocks of lanes; the last one begins earlier where it would not fit."""
        assert not node.lower and not node.upper
        behind = self.scope.fresh("behind")
        number = self.scope.fresh("number")
        if accumulators_of(*node.body) & self.arrays:
            self.held_block(node, row, behind)
            return
        pairs = in_pairs(node, self.kernel, behind, number)
        if not pairs:
            self.loop_over_blocks(node, row)
            return
        first, last = (self.printer.names.symbols[end] for end in (row.first, row.last))
        self.write("#if PAIRED_LANES")
        self.write(f"if ({last} - {first} >= 2 * LANES - 1) {{")
        inner = self.inner()
        for each in pairs:
            inner.repeated(each, row, number, behind)
        self.write("} else {")
        for each in one_by_one(node, number):
            inner.repeated(each, row, number)
        self.write("}")
        self.write("#else")
        self.loop_over_blocks(node, row)
        self.write("#endif")

    def held_block(self, node: Lanes, row: Row, behind: str) -> None:
        """The same where sums outlive the pass; rows have numbers enough for what it is."""
        if not hold_pairs(self.kernel):
            self.loop_over_blocks(node, row)
            return
        self.write("#if PAIRED_LANES")
        pair = held_pair(node, row.axis.name, behind)
        self.loop_over_blocks(Lanes((), (), pair), row, behind)
        self.write("#else")
        self.loop_over_blocks(node, row)
        self.write("#endif")

    def repeated(self, each: Pass, row: Row, number: str, behind: str = "") -> None:
        """A pass with pairs of vectors, as often as it is to be made."""
        outer = self
        if each.count > 1:
            outer = self.inner()
            outer.printer.names.symbols[number] = number
            head = f"int64_t {number} = 0; {number} < {each.count}; {number}++"
            self.write(f"for ({head}) {{")
            outer.write("NOT_A_VECTOR;")
        outer.loop_over_blocks(Lanes((), (), each.body), row, behind)
        if each.count > 1:
            self.write("}")

    def loop_over_blocks(self, node: Lanes, row: Row, behind: str = "") -> None:
        """The loop, with two vectors of lanes in a block where the second one has a name."""
        first, last = (self.printer.names.symbols[end] for end in (row.first, row.last))
        inner = replace(self.inner(), blocks=True)
        inner.printer.names.symbols[row.axis.name] = self.lane
        alone = "_alone" if _is_little(node.body) else ""
        inner.printer = replace(inner.printer, walking=row.axis.name, alone=alone, behind=behind)
        step = "2 * LANES" if behind else "LANES"
        if behind and inner.coarse is not None:
            self.begin_rows(node, inner, row, first)
        self.write(
            f"for (int64_t {self.lane} = {first}; {self.lane} <= {last}; {self.lane} += {step}) {{"
        )
        inner.write(f"if ({self.lane} + {step} > {last} + 1) {self.lane} = {last} + 1 - {step};")
        if behind:
            inner.named = True
        if behind and inner.coarse is not None:
            inner.look_at_loads(node, inner.coarse)
        else:
            inner.is_coarse = ""
        held = inner.take_up(node, first, behind)
        inner.nodes(node.body)
        for line in held:
            inner.write(line)
        self.write("}")

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
        assert self.kernel.row is not None
        lane = self.kernel.row.axis.name
        for load in loads_of((node,)):
            if any(lane in index.symbols for index in load.indices):
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

    def load_columns(self, nodes: Sequence[Node]) -> None:
        """Load what nodes of this scope need of rows that lanes go across."""
        assert self.kernel.row is not None
        lane, program = self.kernel.row.axis.name, self.printer.program
        for found in columns_of(nodes, lane, program):
            name = self.scope.fresh(f"{found.tensor}_columns")
            axis = next(at for at, index in enumerate(found.place) if lane in index.symbols)
            step = self.printer.names.strides[found.tensor, axis]
            cell = self.printer.cell(found.tensor, found.cell)
            kind = "_unrounded" if program.operand(found.tensor).unrounded else ""
            self.write(f"wide_lanes {name}[{COUNT}];")
            self.write(f"load_columns{kind}(&{cell}, {step}, {name});")
            for last in found.asked:
                key = found.tensor, (*found.place, last)
                self.printer.columns[key] = f"{name}[{last.constant - found.first}]"

    def store_columns(self, nodes: Sequence[Node]) -> bool:
        """Write rows that lanes go across, if that is all there is to do in this scope."""
        only, row = self.kernel.only, self.kernel.row
        if row is None or not isinstance(only, Blocks):
            return False
        lane = row.axis.name
        found = stored_rows(nodes, lane)
        if not found or found[0][0].tensor not in only.tensors:
            return False
        for stores in found:
            first = stores[0]
            name = self.scope.fresh(f"{first.tensor}_columns")
            axis = next(at for at, index in enumerate(first.indices) if lane in index.symbols)
            step = self.printer.names.strides[first.tensor, axis]
            self.write(f"wide_lanes {name}[{COUNT}];")
            for at, store in enumerate(stores):
                self.write(f"{name}[{at}] = {self.printer.scalar(store.value).text};")
            cell = self.printer.cell(first.tensor, first.indices)
            unrounded = self.printer.program.operand(first.tensor).unrounded
            kind = "_unrounded" if unrounded else ""
            self.write(f"store_columns{kind}(&{cell}, {step}, {name});")
        return True

    def store_lanes(self, node: Store) -> None:
        """Write the cells of a block: all at once where they are consecutive, else one by one."""
        assert self.kernel.row is not None
        if self.copy_rounded(node):
            return
        values, lane = self.printer.scalar(node.value).text, self.kernel.row.axis.name
        if self.printer.behind:
            self.store_pair(node, values)
            return
        if _are_consecutive(node.indices, lane):
            operand = self.printer.program.operand(node.tensor)
            kind = type_name(operand) if operand.widened or operand.unrounded else "T"
            if self.printer.within:
                cell = self.printer.cell(node.tensor, node.indices)
                self.write(f"lanes_to_{kind}_within(&{cell}, {values}, {self.printer.within});")
                return
            cell = self.printer.cell(node.tensor, node.indices)
            alone = "" if operand.widened else self.printer.alone
            self.write(f"lanes_to_{kind}{alone}(&{cell}, {values});")
            return
        inner = self.inner()
        number, cells = inner.scope.fresh("lane"), inner.scope.fresh("cells")
        inner.printer.names.symbols[number] = number
        here = {lane: symbol(lane) + symbol(number)}
        cell = inner.printer.cell(node.tensor, [each.substitute(here) for each in node.indices])
        operand = self.printer.program.operand(node.tensor)
        stored = inner.printer.stored(operand, Text(f"{cells}[{number}]"))
        self.write("{")
        inner.write(f"const wide_lanes {cells} = {values};")
        inner.write(f"for (int64_t {number} = 0; {number} < LANES; {number}++) {cell} = {stored};")
        self.write("}")

    def copy_rounded(self, node: Store) -> bool:
        """Copy a block to consecutive cells, rounded once for all of its copies in this scope."""
        load, program, row = node.value, self.printer.program, self.kernel.row
        if self.printer.behind or self.printer.within or row is None or not isinstance(load, Load):
            return False
        source, target = program.operand(load.tensor), program.operand(node.tensor)
        if (type_name(source), type_name(target)) != ("unrounded", "T"):
            return False
        if not all(_are_consecutive(each.indices, row.axis.name) for each in (load, node)):
            return False
        if load not in self.copied:
            name = self.scope.fresh(f"{load.tensor}_lanes")
            cell = self.printer.cell(load.tensor, load.indices)
            self.write(f"const stored_lanes {name} = stored_from_unrounded(&{cell});")
            self.copied[load] = name
        cell = self.printer.cell(node.tensor, node.indices)
        self.write(f"*(stored_lanes *)&{cell} = {self.copied[load]};")
        return True

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
        assert self.kernel.row is not None
        if not _are_consecutive(indices, self.kernel.row.axis.name):
            inner = self.inner()
            number, cells = inner.scope.fresh("lane"), inner.scope.fresh("cells")
            inner.printer.names.symbols[number] = number
            here = {self.kernel.row.axis.name: symbol(self.kernel.row.axis.name) + symbol(number)}
            cell = inner.printer.cell(node.tensor, [each.substitute(here) for each in indices])
            self.write("{")
            inner.write(f"{kind} {cells}[2 * LANES];")
            inner.write(f"{function}({cells}, {self.halves.pop(key)}, {values}{more});")
            inner.write(f"for (int64_t {number} = 0; {number} < 2 * LANES; {number}++)")
            inner.write(f"    {cell} = {cells}[{number}];")
            self.write("}")
            return
        cell = self.printer.cell(node.tensor, indices)
        self.write(f"{function}(&{cell}, {self.halves.pop(key)}, {values}{more});")

    def fetch_ahead(self, node: Lanes, inside: Self, first: str, last: str) -> None:
        """Ask for the rows of the next round of the loop around: they begin elsewhere in memory.

        Where a round is a group of short rows, they go into the first cache, if it holds them:
        sums over 512 channels of 256 by 256 then take a seventh less. Groups of rows of 1024
        numbers, of which it does not, take up to a fifth longer there.
        """
        if self.around is None or self.kernel.row is None:
            return
        lane, program, group = self.kernel.row.axis.name, self.printer.program, self.kernel.group
        upcoming = {self.around: symbol(self.around) + 1}
        loads = tuple(row_loads(node.body, lane, self.around))
        for load in loads:
            indices = [index.substitute(upcoming) for index in load.indices]
            operand = program.operand(load.tensor)
            step = self.printer.names.strides[load.tensor, operand.rank - 1]
            name, element = self.lane, f"(int64_t)sizeof({type_name(operand)})"
            place = f"&{inside.printer.cell(load.tensor, indices)}"
            self.write(f"if ({step} == 1)")
            self.write(
                f"    for (int64_t {name} = {first}; {name} <= {last}; {name} += 64 / {element})"
            )
            if group is None:
                self.write(f"        FETCH({place});")
                continue
            size = f"({last} - {first} + 1) * {len(loads) * group.width} * {element}"
            self.write(f"        FETCH_ROUND({size}, {place});")


def _are_consecutive(indices: Sequence[Poly], lane: str) -> bool:
    """Whether the elements of a block lie one behind the other in a tensor."""
    *rows, last = indices
    return is_next(last, lane) and not any(lane in index.symbols for index in rows)


def _is_little(body: tuple[Node, ...]) -> bool:
    """Whether cells of a pass have few terms, all written out: little is done but to round."""
    nodes = tuple(walk(body))
    begun = {node.accumulator for node in nodes if isinstance(node, Start)}
    joined = (node.accumulator for node in nodes if isinstance(node, Accumulate))
    terms = Counter(name for name in joined if name in begun)
    if any(isinstance(node, For) for node in nodes) or not terms:
        return False
    return max(terms.values()) <= FEW_TERMS


def _goes_by_vectors(node: Lanes, row: Row) -> bool:
    """Whether a pass over a whole row of known length may compute some of its cells twice.

    It may if cells are sums of its own, of what it does not write.
    """
    extent = row.axis.extent
    if node.lower or node.upper or not extent.is_constant:
        return False
    if not _VECTOR < extent.constant <= row.width or extent.constant % _VECTOR == 0:
        return False
    nodes = tuple(walk(node.body))
    if not all(isinstance(each, Start | Accumulate | Store) for each in nodes):
        return False
    begun = {each.accumulator for each in nodes if isinstance(each, Start)}
    joined = [each.accumulator for each in nodes if isinstance(each, Accumulate)]
    written = {each.tensor for each in nodes if isinstance(each, Store)}
    return (
        begun.issuperset(joined)
        and len(joined) >= _MANY_TERMS * len(begun) > 0
        and written.isdisjoint(load.tensor for load in loads_of(nodes))
    )


def _are_few(node: Lanes, row: Row) -> bool:
    """Whether the lanes are known to be few, as those at the ends of a longer row are."""
    if row.axis.extent.is_constant and row.axis.extent.constant <= 2 * FEW:
        return False
    lower, upper = (poly(0), *node.lower), (row.axis.extent - 1, *node.upper)
    counts = (last - first for last in upper for first in lower)
    return any(count.is_constant and count.constant < FEW for count in counts)
