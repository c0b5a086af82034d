"""Accumulators as variables: how they begin, what joins them, and what is read of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from opgen.algebra.poly import Poly
from opgen.emit.emitter import Argument, ScopeEmitter
from opgen.emit.expression import type_name
from opgen.emit.lane_pairs import hold_pairs, second_of
from opgen.emit.long_sums import is_beside_vectors, is_long_sum
from opgen.emit.types import Type
from opgen.emit.vectors import vector_pairs, vector_sum
from opgen.ir.chosen import EXTREMES, has_choices
from opgen.ir.loop_parts import accumulators_of, results_of
from opgen.ir.loops import (
    Accumulate,
    Always,
    Blocks,
    Choose,
    For,
    Lanes,
    Node,
    Number,
    Scalar,
    Short,
    Start,
    walk,
)
from opgen.ir.notation import Reducer
from opgen.ir.plane import LANES
from opgen.ir.primitives import Level


@dataclass(frozen=True, slots=True)
class _Names:
    """The variables of an accumulator."""

    kind: Type
    total: str
    state: Argument | None = None
    is_long: bool = False

    @property
    def declared(self) -> tuple[tuple[str, str], ...]:
        """Types and names, the total first."""
        if self.state is None:
            return ((self.kind.of_long_sums if self.is_long else self.kind.value, self.total),)
        integers = (self.state.found, *self.state.first)
        return (
            ("int64_t", self.total),
            (self.kind.value, self.state.best),
            *(("int64_t", name) for name in integers),
        )

    def at(self, place: str) -> _Names:
        """Elements of arrays of these names."""
        state = self.state
        if state is not None:
            first = tuple(name + place for name in state.first)
            state = Argument(state.best + place, state.found + place, first)
        return _Names(self.kind, self.total + place, state, self.is_long)


class AccumulatorEmitter(ScopeEmitter):
    """Prints what is done with accumulators."""

    def add_up_vectors(self, node: Node) -> None:
        """Before a node reads totals, add their vectors of partial sums to them.

        In a loop over cells that take turns each has its own.
        """
        if isinstance(node, For) and node.name in self.members:
            return
        joined = {n.accumulator for n in walk((node,)) if isinstance(n, Accumulate)}
        own = {node.accumulator} if isinstance(node, Accumulate) else set()
        for name in results_of((node,)):
            if name in self.vectors and name not in joined - own:
                total, vector = self.printer.names.accumulators[name], self.vectors[name]
                if name not in self.pairs:
                    self.write(f"{total} += sum_of_lanes({vector});")
                    self.write(f"{vector} = (wide_lanes){{0}};")
                    continue
                first = self.pairs[name].index(name)
                self.write(f"{total} += sum_of_every_second({vector}, {first});")
                self.write(f"{vector} = only_every_second({vector}, {1 - first});")

    def declare_lane_accumulators(self) -> None:
        """Arrays for accumulators that live longer than one pass over the lanes."""
        row = self.kernel.row
        assert row is not None
        starts = {n.accumulator: n for n in walk(self.kernel.body) if isinstance(n, Start)}
        outliving = _outliving_a_pass(self.kernel.body)
        # The last block begins earlier.
        spare_vectors = 2 if outliving and hold_pairs(self.kernel) else 1
        for start in starts.values():
            if start.accumulator not in outliving:
                continue
            names = self.accumulator_names(start)
            if isinstance(self.kernel.only, Short) and self.kernel.only.holds:
                self.write(f"wide_lanes {names.total};")
                self.adopt(start.accumulator, names)
                self.arrays.add(start.accumulator)
                continue
            if isinstance(self.kernel.only, Blocks) and self.kernel.only.holds:
                most = (row.joined + 1) * row.width
                self.write(f"wide_lanes {names.total}[{most} / LANES + {spare_vectors}];")
                self.adopt(start.accumulator, names)
                self.arrays.add(start.accumulator)
                continue
            place, size = self.lane_place()
            for kind, name in names.declared:
                self.write(f"{kind} {name}{size};")
            self.adopt(start.accumulator, names.at(place))
            self.arrays.add(start.accumulator)

    def take_up(self, node: Lanes, first: str, behind: str) -> list[str]:
        """Load what a block has of accumulators that outlive the pass; how they are put back.

        A block has two vectors of each where the second one has a name, which is `behind`.
        """
        here = accumulators_of(*node.body)
        names = {name: (name, "") for name in sorted(self.arrays)}
        if behind:
            names |= {second_of(name): (name, " + 1") for name in sorted(self.arrays)}
        names = {name: place for name, place in names.items() if name in here}
        if not names:
            return []
        self.arrays = self.arrays | set(names)
        block = self.scope.fresh("block")
        size = "(2 * LANES)" if behind else "LANES"
        number = f"({self.lane} - {first} + {size} - 1) / {size}"
        self.write(f"const int64_t {block} = {number}{' * 2' if behind else ''};")
        begun = {each.accumulator for each in node.body if isinstance(each, Start)}
        joined = {each.accumulator for each in walk(node.body) if isinstance(each, Accumulate)}
        arrays = {name: self.printer.names.accumulators[name] for name, _ in names.values()}
        lines = []
        for name, (array, further) in names.items():
            place = f"{arrays[array]}[{block}{further}]"
            own = self.scope.fresh(name)
            self.write(f"wide_lanes {own};" if name in begun else f"wide_lanes {own} = {place};")
            self.printer.names.accumulators[name] = own
            if name in begun | joined:
                lines.append(f"{place} = {own};")
        return lines

    def declare_group_accumulators(self) -> None:
        """Arrays for accumulators of cells that take turns, and for their vectors."""
        place, size = self.lane_place()
        starts = {n.accumulator: n for n in walk(self.kernel.body) if isinstance(n, Start)}
        pairs = {}
        if self.kernel.sums is None:
            pairs = vector_pairs(self.kernel.body, self.printer.program)
        for start in starts.values():
            names = self.accumulator_names(start)
            for kind, name in names.declared:
                self.write(f"{kind} {name}{size};")
            self.adopt(start.accumulator, names.at(place))
            self.arrays.add(start.accumulator)
            pair = pairs.get(start.accumulator, (start.accumulator,))
            if self.adds_vectors(start.accumulator) and not set(pair) & set(self.vectors):
                vector = self.scope.fresh(f"{names.total}_lanes")
                self.write(f"wide_lanes {vector}{size};")
                self.vectors |= dict.fromkeys(pair, vector + place)
        self.pairs |= pairs

    def lane_place(self) -> tuple[str, str]:
        """Where the element of a cell is in an array over the stretch, and the array's size."""
        place = size = ""
        more = LANES if self.is_beside_vectors else 0
        for each in self.kernel.stretched:
            first = self.printer.names.symbols[each.first]
            member = self.members[each.axis.name]
            place += f"[{member}]" if first == "0" else f"[{member} - {first}]"
            size += f"[{each.width + (more if each is self.kernel.row else 0)}]"
        return place, size

    @property
    def is_beside_vectors(self) -> bool:
        """Whether vectors of arrays over lanes may be taken up, the last one with lanes behind the
        end of the row, see `emit.chosen_lanes`."""
        nodes = tuple(walk(self.kernel.body))
        reducers = {each.reducer for each in nodes if isinstance(each, Accumulate)}
        chooses = has_choices(nodes) or not reducers.isdisjoint(EXTREMES)
        return chooses and not self.printer.cuda

    def accumulator_names(self, node: Start) -> _Names:
        """Fresh names for the variables of an accumulator."""
        kind = self.printer.types.of_accumulator(node.tensor, node.accumulator, self.kernel.body)
        self.kinds[node.accumulator] = kind
        total = self.scope.fresh(node.accumulator)
        if not node.reducer.is_argument:
            return _Names(kind, total, is_long=self.is_long(node.accumulator))
        orders = [
            each.order
            for each in walk(self.kernel.body)
            if isinstance(each, Accumulate) and each.accumulator == node.accumulator
        ]
        length = max(map(len, orders), default=0)
        assert all(len(order) == length for order in orders)
        state = Argument(
            self.scope.fresh("best"),
            self.scope.fresh("found"),
            tuple(self.scope.fresh(f"first_{at}") for at in range(length)),
        )
        return _Names(kind, total, state)

    def is_long(self, accumulator: str) -> bool:
        """Whether a variable adds any number of terms one by one, and has room for that."""
        if self.printer.cuda or accumulator in self.arrays:
            return False
        if self.kernel.sums is None and self.adds_vectors(accumulator):
            return is_beside_vectors(self.kernel, accumulator, self.printer.program)
        return is_long_sum(self.kernel, accumulator)

    def adopt(self, accumulator: str, names: _Names) -> None:
        """From here on the accumulator goes by these names."""
        self.printer.names.accumulators[accumulator] = names.total
        if names.is_long:
            self.printer.names.long_sums[accumulator] = names.kind.value
        if names.state is not None:
            self.states[accumulator] = names.state

    def start(self, node: Start) -> None:
        if self.blocks and node.accumulator in self.arrays:
            total = self.printer.names.accumulators[node.accumulator]
            self.write(f"{total} = (wide_lanes){{0}};")
            return
        if self.blocks:
            names = self.accumulator_names(node)
            self.adopt(node.accumulator, names)
            self.write(f"wide_lanes {names.total} = {{0}};")
            return
        is_array = node.accumulator in self.arrays
        if is_array:
            total = self.printer.names.accumulators[node.accumulator]
            names = _Names(self.kinds[node.accumulator], total, self.states.get(node.accumulator))
        else:
            names = self.accumulator_names(node)
            self.adopt(node.accumulator, names)
        if node.value is not None:
            assert not node.reducer.is_argument, "argmax and argmin into one tensor share a kernel"
            initial = self.printer.scalar(node.value).text
        else:
            initial = self.identity(node.tensor, node.reducer)
        values = [initial, *("0" for _ in names.declared[1:])]
        for (kind, name), value in zip(names.declared, values, strict=True):
            self.write(f"{'' if is_array else f'{kind} '}{name} = {value};")
        if not self.printer.cuda and self.adds_vectors(node.accumulator):
            self.start_vector(node.accumulator, names.total)

    def start_vector(self, accumulator: str, total: str) -> None:
        """Begin the vector of partial sums of an accumulator, or that of its pair."""
        if accumulator in self.waiting:
            self.vectors[accumulator] = self.waiting.pop(accumulator)
            return
        if accumulator in self.arrays:
            if accumulator == self.pairs.get(accumulator, (accumulator,))[0]:
                self.write(f"{self.vectors[accumulator]} = (wide_lanes){{0}};")
            return
        vector = self.vectors[accumulator] = self.scope.fresh(f"{total}_lanes")
        self.write(f"wide_lanes {vector} = {{0}};")
        pair = vector_pairs(self.kernel.body, self.printer.program).get(accumulator)
        if pair is not None and self.kernel.sums is None:
            self.pairs |= dict.fromkeys(pair, pair)
            self.waiting |= {name: vector for name in pair if name != accumulator}

    def adds_vectors(self, accumulator: str) -> bool:
        """Whether some loop adds vectors of terms to the accumulator; none of them are integers."""
        if self.kinds[accumulator] is Type.INTEGER:
            return False
        if self.kernel.sums is not None:
            return True
        loops = (node for node in walk(self.kernel.body) if isinstance(node, For))
        sums = (vector_sum(node, self.printer.program) for node in loops)
        return any(
            each is not None and any(term.accumulator == accumulator for term in each.terms)
            for each in sums
        )

    def identity(self, tensor: str, reducer: Reducer) -> str:
        """The value of a cell that nothing has joined."""
        match reducer:
            case Reducer.ASSIGN | Reducer.ADD:
                return "0"
            case Reducer.MULTIPLY:
                return "1"
            case Reducer.MAX | Reducer.MIN:
                end = "least" if reducer is Reducer.MAX else "greatest"
                operand = self.printer.program.operand(tensor)
                for workspace in self.printer.program.workspaces:
                    if workspace.name == tensor:
                        operand = self.printer.program.operand(workspace.output)
                # An unrounded one is stored as float32, but its numbers are those of T.
                name = type_name(replace(operand, unrounded=False))
                return f"{'i64' if name == 'int64_t' else name}_{end}"
            case Reducer.ARGMAX | Reducer.ARGMIN:
                return "-1"
            case unexpected:
                assert_never(unexpected)

    def accumulate(self, node: Accumulate) -> None:
        total = self.printer.names.accumulators[node.accumulator]
        always = node.present == Always()
        if node.reducer in (Reducer.ASSIGN, Reducer.MULTIPLY):
            value: Scalar = node.value
            if not always:
                value = Choose(node.present, value, Number(0))
            sign = "=" if node.reducer is Reducer.ASSIGN else "*="
            self.write(f"{total} {sign} {self.printer.scalar(value).text};")
            return
        emitter = self
        if not always:
            self.write(f"if ({self.printer.test(node.present).text}) {{")
            emitter = self.inner()
        emitter.join(node, total)
        if not always:
            self.write("}")

    def join(self, node: Accumulate, total: str) -> None:
        """Join a term that is present."""
        text = self.printer.scalar(node.value).text
        if node.reducer is Reducer.ADD:
            if not self.whole:
                text = f"lanes_only({text}, {self.printer.within})"
            self.write(f"{total} += {text};")
            return
        kind = self.kinds[node.accumulator]
        term = self.scope.fresh("term")
        self.write(f"const {kind.value} {term} = {text};")
        sign = ">" if node.reducer in (Reducer.MAX, Reducer.ARGMAX) else "<"
        if not node.reducer.is_argument:
            nan = "" if kind is Type.INTEGER else f" || {term} != {term}"
            if node.accumulator in self.nans:
                self.write(f"{total} = {term} {sign} {total} ? {term} : {total};")
                self.write(f"{self.nans[node.accumulator]} |= {term} != {term};")
            elif self.is_stored(node):
                self.write(f"{total} = {term} {sign} {total}{nan} ? {term} : {total};")
            else:
                self.write(f"if ({term} {sign} {total}{nan}) {total} = {term};")
            return
        self.join_argument(node, total, term, sign)

    def is_stored(self, node: Accumulate) -> bool:
        """Whether a better term is chosen, not jumped to: loops over arrays become vectors so.

        On a GPU arrays are registers, and there are more of them alive at a time.
        """
        return node.accumulator in self.arrays and not self.printer.cuda

    def join_argument(self, node: Accumulate, total: str, term: str, sign: str) -> None:
        state = self.states[node.accumulator]
        best, found = state.best, state.found
        better = f"!{found} || {term} {sign} {best} || ({term} != {term} && {best} == {best})"
        updates = [f"{found} = 1;", f"{best} = {term};"]
        if node.order:
            same = f"{term} == {best} || ({term} != {term} && {best} != {best})"
            better += f" || (({same}) && ({self.earlier(node.order, state.first)}))"
            updates += [
                f"{first} = {self.text(value)};"
                for first, value in zip(state.first, node.order, strict=True)
            ]
        assert node.position is not None
        if self.is_stored(node) and not node.order:
            name = self.scope.fresh("is_better")
            self.write(f"const int {name} = {better};")
            self.write(f"{best} = {name} ? {term} : {best};")
            self.write(f"{total} = {name} ? {self.text(node.position)} : {total};")
            self.write(f"{found} = 1;")
            return
        updates.append(f"{total} = {self.text(node.position)};")
        self.write(f"if ({better}) {{")
        for update in updates:
            self.write(f"    {update}")
        self.write("}")

    def earlier(self, order: Sequence[Poly], first: Sequence[str]) -> str:
        """Whether `order` is lexicographically less than the values in `first`."""
        value, *rest = (self.printer.poly(each) for each in order)
        text = f"{value.at(Level.ADDITIVE)} < {first[0]}"
        if rest:
            tail = self.earlier(order[1:], first[1:])
            equal = f"{value.at(Level.ADDITIVE)} == {first[0]}"
            text += f" || ({equal} && ({tail}))" if len(rest) > 1 else f" || ({equal} && {tail})"
        return text


def _outliving_a_pass(body: Sequence[Node]) -> frozenset[str]:
    """The accumulators with which some pass over the lanes goes on after another one began them."""
    found: set[str] = set()
    for nodes in (node.body for node in walk(tuple(body)) if isinstance(node, Lanes)):
        begun = {each.accumulator for each in walk(nodes) if isinstance(each, Start)}
        found |= accumulators_of(*nodes) - begun
    return frozenset(found)
