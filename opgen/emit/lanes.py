"""Passes over the lanes of a row as loops: one by one, in blocks, or past the caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, Self

from opgen.algebra.poly import Atom, Kind, of_atom, poly, symbol
from opgen.emit.block_cells import BlockCellEmitter
from opgen.emit.chosen_cells import chosen_cells
from opgen.emit.chosen_lanes import choosing, print_choosing
from opgen.emit.emitter import extreme
from opgen.emit.expression import type_name
from opgen.emit.held_indices import held_atoms, held_tests
from opgen.emit.lane_pairs import Pass, held_pair, hold_pairs, in_pairs, one_by_one
from opgen.emit.lanes_ahead import fetch_lanes
from opgen.emit.planes import FEW_TERMS
from opgen.emit.streams import Line, lines
from opgen.emit.types import Type
from opgen.ir.loop_parts import accumulators_of, loads_of
from opgen.ir.loops import (
    Accumulate,
    AtomicAdd,
    Blocks,
    For,
    Lanes,
    Node,
    Row,
    Short,
    Start,
    Store,
    Test,
    walk,
)
from opgen.ir.primitives import Level

FEW: Final = 8
"""How many lanes are not worth a vector, nor the time that the compiler takes to make one."""

_VECTOR: Final = 16
"""How many lanes a vector has: those of float32 in registers of 64 bytes."""

_MANY_TERMS: Final = 9
"""From how many terms of a cell on it pays that all lanes are in vectors."""


class LaneEmitter(BlockCellEmitter):
    """Prints passes over the lanes."""

    def lanes(self, node: Lanes) -> None:
        """A loop over the lanes between the bounds."""
        row = self.kernel.row
        assert row is not None
        if isinstance(self.kernel.only, Blocks) and self.kernel.only.holds:
            self.block_of_lanes(node, row)
            return
        if self.held is not None:
            self.held.join(self, node)
            return
        symbols = self.printer.names.symbols
        begin = extreme("greatest", [symbols[row.first], *map(self.bound, node.lower)])
        upper = [symbols[row.last], *map(self.bound, node.upper)]
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
        few = not self.printer.cuda and (_are_few(node, row) or _go_anywhere(node, row))
        ends = []
        if not few:
            fetch_lanes(self, node, inner.printer, first, last)
            if self.streams:
                whole = lines(node, self.kernel, self.printer.program)
                inner.places = dict(self.places)
                ends = [self.begin_line(each, inner, first, last) for each in whole]
        by_vectors = not few and not self.printer.cuda and _goes_by_vectors(node, row)
        if not few and not by_vectors:
            self.load_ahead(node, inner)
            self.hold_indices(node, inner, first, last)
        if not few and not self.printer.cuda and not self.beside_held:
            choices = choosing(node, self.kernel, self.printer.program, self.arrays)
            if choices is not None and self.are_wide(_joined(choices.body)):
                print_choosing(inner, choices, first, last)
        if by_vectors:
            self.whole_vectors(node, row, inner)
        else:
            if not few:
                self.write("INDEPENDENT_FEW" if _adds_to_short(node, row) else "INDEPENDENT")
            head = f"int64_t {self.lane} = {first}; {self.lane} <= {last}; {self.lane}++"
            self.write(f"for ({head}) {{")
            if few:
                inner.write("NOT_A_VECTOR;")
            inner.nodes(node.body)
            self.write("}")
        for end in ends:
            self.write(end)

    def are_wide(self, names: AbstractSet[str]) -> bool:
        """Whether accumulators are computed in the type that vectors have."""
        types, body = self.printer.types, self.kernel.body
        starts = {n.accumulator: n.tensor for n in walk(body) if isinstance(n, Start)}
        kinds = {types.of_accumulator(starts[name], name, body) for name in names}
        return kinds <= ({Type.WIDE, Type.REAL} if types.is_floating else {Type.WIDE})

    def load_ahead(self, node: Lanes, inner: Self) -> None:
        """Load what lanes may choose before the loop, where it is one cell for all of them.

        A compiler must not load what a lane may not choose, and makes no vectors of the loop then.
        """
        if self.printer.cuda:
            return
        for load in dict.fromkeys(chosen_cells(node, self.kernel, self.printer.program)):
            name = self.scope.fresh(f"{load.tensor}_cell")
            kind = self.printer.types.of(load).value
            self.write(f"const {kind} {name} = {self.printer.scalar(load).text};")
            inner.printer.columns[load.tensor, load.indices] = name

    def hold_indices(self, node: Lanes, inner: Self, first: str, last: str) -> None:
        """Read indices before the loop that are the same for all lanes, see `held_indices`."""
        if self.printer.cuda:
            return
        held: dict[Atom | Test, str] = dict(self.printer.held)
        for atom in held_atoms(node, self.kernel):
            value = of_atom(atom)
            wanted = f"{value.loads[0].name}_at" if value.loads else "quotient"
            held[atom] = self.scope.fresh(wanted)
            self.write(f"const int64_t {held[atom]} = {self.text(value)};")
        inner.printer = replace(inner.printer, held=held)
        for test in held_tests(node, self.kernel):
            asked = inner.printer.test(test).at(Level.EQUALITY)
            held[test] = self.scope.fresh("is_inside")
            self.write(f"const int {held[test]} = {first} <= {last} && {asked};")

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
        asking = self.share.begin(self, first, last, step) if self.share is not None else ""
        self.write(
            f"for (int64_t {self.lane} = {first}; {self.lane} <= {last}; {self.lane} += {step}) {{"
        )
        inner.write(f"if ({self.lane} + {step} > {last} + 1) {self.lane} = {last} + 1 - {step};")
        if asking:
            inner.write(asking)
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


def _joined(body: Sequence[Node]) -> set[str]:
    return {each.accumulator for each in body if isinstance(each, Accumulate)}


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


def _adds_to_short(node: Lanes, row: Row) -> bool:
    """Whether a pass over a row of known length adds to cells in memory."""
    are_added = any(isinstance(each, AtomicAdd) for each in node.body)
    return are_added and row.axis.extent.is_constant


def _go_anywhere(node: Lanes, row: Row) -> bool:
    """Whether each lane adds to a cell that it reads the place of: vectors would do it cell by
    cell, which takes longer than without them."""
    return any(
        atom.kind is Kind.LOAD and row.axis.name in atom.symbols
        for each in walk(node.body)
        if isinstance(each, AtomicAdd)
        for index in each.indices
        for atom in index.all_atoms()
    )


def _are_few(node: Lanes, row: Row) -> bool:
    """Whether the lanes are known to be few, as those at the ends of a longer row are."""
    if row.axis.extent.is_constant and row.axis.extent.constant <= 2 * FEW:
        return False
    lower, upper = (poly(0), *node.lower), (row.axis.extent - 1, *node.upper)
    counts = (last - first for last in upper for first in lower)
    return any(count.is_constant and count.constant < FEW for count in counts)
