"""Nodes of the loops as C statements, one scope of C at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from opgen.algebra.poly import Poly, poly, symbol
from opgen.emit.eager_choices import becomes_vectors
from opgen.emit.emitter import extreme
from opgen.emit.held_choices import held_choices, print_held
from opgen.emit.held_sums import held_sums, print_held_sums
from opgen.emit.lanes import LaneEmitter
from opgen.emit.names import function_name
from opgen.emit.planes import print_guest, print_sums
from opgen.emit.planes_ahead import fetch_planes
from opgen.emit.polynomial import Text
from opgen.emit.types import Type
from opgen.emit.vectors import (
    VectorSum,
    row_extreme,
    row_position,
    vector_extreme,
    vector_sum,
)
from opgen.ir.loops import (
    Accumulate,
    Always,
    AtomicAdd,
    Define,
    For,
    If,
    Lanes,
    Load,
    Node,
    Start,
    Store,
    walk,
)
from opgen.ir.notation import Reducer
from opgen.ir.plane import PlaneSums
from opgen.ir.primitives import Level

_FEW_SUMS: Final = 2
_ROW: Final = 64
"""How many sums have vectors of their own for each row, and how long it is then."""


class Emitter(LaneEmitter):
    """Prints the nodes of a kernel as statements."""

    def prologue(self) -> None:
        for define in self.kernel.prologue:
            self.define(define.name, define.value)

    def nodes(self, nodes: Sequence[Node]) -> None:
        """The nodes in this scope."""
        if self.blocks:
            self.load_columns(nodes)
            if self.store_columns(nodes):
                return
        if not self.printer.cuda and not self.blocks:
            held = held_choices(nodes, self.kernel, self.printer.program, self.arrays)
            if held is not None and self.are_wide({each.accumulator for each in held.starts}):
                print_held(self, held)
                self.write("{")
                inner = replace(self.inner(), beside_held=True)
                for node in nodes:
                    inner.node(node)
                self.write("}")
                return
            if self.held is None and not self.beside_held and self.add_up_held(nodes):
                return
        for node in nodes:
            self.node(node)

    def add_up_held(self, nodes: Sequence[Node]) -> bool:
        """Print sums of rows that are looked up, if that is what the nodes are."""
        found = held_sums(nodes, self.kernel, self.printer.program)
        if found is None or not self.printer.types.is_floating or not self.are_wide(found.sums):
            return False
        row = self.kernel.row
        assert row is not None
        rest = print_held_sums(self, found)
        self.write(f"if ({rest} <= {self.printer.names.symbols[row.last]}) {{")
        inner = replace(self.inner(), beside_held=True)
        inner.printer.names.symbols[row.first] = rest
        for node in nodes:
            inner.node(node)
        self.write("}")
        return True

    def define(self, name: str, value: Poly) -> None:
        text, kind = self.text(value), self.integer_type(value)
        self.printer.names.symbols[name] = self.scope.fresh(name)
        self.write(f"const {kind} {self.printer.names.symbols[name]} = {text};")

    def node(self, node: Node) -> None:
        self.add_up_vectors(node)
        match node:
            case Define(name=name, value=value):
                self.define(name, value)
            case For():
                self.loop(node)
            case Lanes():
                self.lanes(node)
            case If():
                self.condition(node)
            case Start():
                self.start(node)
            case Accumulate():
                if self.named:
                    self.name_loads(node)
                self.accumulate(node)
            case Store(tensor=tensor, indices=indices, value=value):
                if self.blocks:
                    self.store_lanes(node)
                    return
                operand = self.printer.program.operand(tensor)
                cell = self.places.get((tensor, indices)) or self.printer.cell(tensor, indices)
                if isinstance(value, Load) and not self.printer.cuda:
                    copy = self.printer.copy(operand, cell, value)
                    if copy:
                        self.write(copy)
                        return
                self.write(f"{cell} = {self.printer.stored(operand, self.printer.scalar(value))};")
            case AtomicAdd(reducer=Reducer.MAX | Reducer.MIN):
                self.join_in_memory(node)
            case AtomicAdd(tensor=tensor, indices=indices, value=value):
                term = self.printer.scalar(value).text
                if self.printer.cuda:
                    cell = self.printer.cell(tensor, indices)
                    self.write(f"atomic_add(&{cell}, {term});")
                else:
                    self.write(f"{self.printer.cell_at_place(tensor, indices)} += {term};")
            case unexpected:
                assert_never(unexpected)

    def join_in_memory(self, node: AtomicAdd) -> None:
        """Let a cell be the greatest or the least of what it was and a term; NaN is either."""
        assert not self.printer.cuda
        cell = self.printer.cell_at_place(node.tensor, node.indices)
        term, kind = self.scope.fresh("term"), self.printer.types.of(node.value).value
        sign = ">" if node.reducer is Reducer.MAX else "<"
        self.write(f"const {kind} {term} = {self.printer.scalar(node.value).text};")
        self.write(f"if ({term} {sign} {cell} || {term} != {term}) {cell} = {term};")

    def loop(self, node: For) -> None:
        lower = extreme("greatest", [self.bound(bound) for bound in node.lower])
        upper = [self.printer.bound(bound + 1) for bound in node.upper]
        totals = self.totals_of(node) if node.any_order else {}
        inner = self.inner()
        kind = self.integer_type(*node.lower, *node.upper)
        name = self.members.get(node.name) or inner.scope.fresh(node.name)
        inner.printer.names.symbols[node.name] = name
        if poly(0) in node.lower:
            bounded = ((symbol(node.name), bound + 1) for bound in node.upper)
            inner.printer.bounded.update(bounded)
        if len(upper) == 1 and "(" not in upper[0].text:
            end = upper[0].at(Level.ADDITIVE)
        else:
            end = self.scope.fresh(f"{node.name}_end")
            value = extreme("least", [bound.text for bound in upper])
            self.write(f"const {kind} {end} = {value};")
        vectors = None if self.printer.cuda else vector_sum(node, self.printer.program)
        position = None if self.printer.cuda else row_position(node)
        if position is not None and position.accumulator not in self.arrays:
            self.search_row(node, position, name, lower, end)
        if vectors is not None and all(each.accumulator in self.vectors for each in vectors.terms):
            if vectors.walked:
                self.vector_loop(node, vectors, name, lower, end)
            else:
                self.computed_loop(node, vectors, name, lower, end)
            return
        in_arrays = {name: total for name, total in totals.items() if name in self.arrays}
        for accumulator, total in in_arrays.items():
            element = self.printer.names.accumulators[accumulator]
            self.write(f"{self.kinds[accumulator].value} {total} = {element};")
        if node.any_order:
            inner.printer.names.accumulators.update(totals)
            self.write(f"IN_ANY_ORDER({', '.join(totals.values())})")
        elif not self.printer.cuda and (extreme_of := row_extreme(node)) is not None:
            self.in_lanes(node, extreme_of, inner, lower, end)
        self.write(f"for ({kind} {name} = {lower}; {name} < {end}; {name}++) {{")
        if node.name not in self.members:
            inner.around = None if any(each.is_constant for each in node.upper) else node.name
            inner.in_turn = False
        elif self.kernel.group is not None and node.name == self.kernel.group.axis.name:
            inner.in_turn = self.around is not None
        if not self.printer.cuda and any(isinstance(each, Lanes) for each in walk(node.body)):
            inner.write("NOT_A_VECTOR;")
        if self.kernel.sums is not None and self.is_round(node, self.kernel.sums):
            fetch_planes(inner, node)
            if self.kernel.guest is not None and not self.kernel.guest.point:
                inner.run_guest(node)
            print_sums(inner, self.kernel.sums)
        else:
            fetch_planes(inner, node)
            inner.run_guest(node)
            if not inner.add_chosen(node):
                inner.nodes(node.body)
        self.write("}")
        if inner.nans is not self.nans:
            for accumulator, nan in inner.nans.items():
                self.write(f"if ({nan}) {self.printer.names.accumulators[accumulator]} = NAN;")
        for accumulator, total in in_arrays.items():
            self.write(f"{self.printer.names.accumulators[accumulator]} = {total};")

    def add_chosen(self, node: For) -> bool:
        """Add the terms of a loop that a condition chooses, where these become vectors; whether it
        is such a loop. Terms of doubles do not, and are not computed where none is added."""
        match node:
            case For(any_order=True, body=(If() as choice,)) if not self.printer.cuda:
                pass
            case _:
                return False
        match choice.body:
            case (Accumulate(reducer=Reducer.ADD, present=Always()) as term,):
                pass
            case _:
                return False
        kind, texts = self.kinds[term.accumulator], self.tests_of(choice)
        is_safe = becomes_vectors(term.value, self.printer.is_inside)
        if kind is not Type.REAL or choice.test != Always() or not is_safe:
            return False
        self.printer.helpers["select", kind] = None
        test = self.scope.fresh("is_term")
        self.write(f"const int {test} = {_conjunction(texts)};")
        self.write(f"if (sizeof(real) == sizeof(float) || {test}) {{")
        value = f"opgen_select_{kind.tag}({test}, {self.printer.scalar(term.value).text}, 0)"
        self.write(f"    {self.printer.names.accumulators[term.accumulator]} += {value};")
        self.write("}")
        return True

    def is_round(self, node: For, sums: PlaneSums) -> bool:
        """Whether a value of a loop is a round of sums over planes, at each cell of a group."""
        group = self.kernel.group
        if group is None:
            return node.name == sums.loop
        return node.name == group.axis.name and sums.loop in self.printer.names.symbols

    def totals_of(self, node: For) -> dict[str, str]:
        """The variables that a sum in any order adds to, by accumulator.

        An element of an array has one of its own: OpenMP takes an element for part of the array,
        and gcc 12 then adds to another one.
        """
        names = self.printer.names.accumulators
        found = dict.fromkeys(n.accumulator for n in walk(node.body) if isinstance(n, Accumulate))
        return {
            name: self.scope.fresh(name) if name in self.arrays else names[name] for name in found
        }

    def run_guest(self, node: For) -> None:
        """The points of a guest at a value of its host's loop, if this is that loop."""
        guest = self.kernel.guest
        if self.printer.cuda or guest is None:
            return
        if guest.point:
            group = self.kernel.group
            is_at_cell = group is not None and node.name == group.axis.name
            if is_at_cell and guest.loop in self.printer.names.symbols:
                print_guest(self, guest)
        elif guest.loop == node.name and node in self.kernel.body:
            first, count = self.text(guest.first), self.printer.poly(guest.count)
            points = f"{first}, {first} + {count.at(Level.ADDITIVE)}"
            task = f"{function_name(guest.kernel)}_task"
            self.write(f"if ({self.guest}) {task}({points}, {self.guest});")

    def in_lanes(self, node: For, reducer: Reducer, inner: Emitter, lower: str, end: str) -> None:
        """Let the loop that follows join extremes in the lanes of a vector.

        The lanes' own maxima know no NaN: whether there is one is found beside them. Of a row that
        is consecutive in memory whole vectors are joined, and the loop is for all others.
        """
        names = {each.accumulator for each in node.body if isinstance(each, Accumulate)}
        if not self.arrays.isdisjoint(names):
            return
        totals = {name: self.printer.names.accumulators[name] for name in sorted(names)}
        reals = [name for name in totals if self.kinds[name] is not Type.INTEGER]
        inner.nans = {name: self.scope.fresh(f"{totals[name]}_is_nan") for name in reals}
        for name, nan in inner.nans.items():
            self.write(f"int {nan} = {totals[name]} != {totals[name]};")
        join = "max" if reducer is Reducer.MAX else "min"
        found = f" reduction(| : {', '.join(inner.nans.values())})" if reals else ""
        walked = vector_extreme(node, self.printer.program) if reals else None
        if walked is not None:
            self.join_vectors(node, walked, f"{join}_lanes", inner, lower, end)
        self.write(f"EXTREMES(reduction({join} : {', '.join(totals.values())}){found})")

    def join_vectors(
        self, node: For, walked: Sequence[str], join: str, inner: Emitter, lower: str, end: str
    ) -> None:
        """Join vectors of terms, where there is one at least; an `else` that others follow."""
        (term,) = node.body
        assert isinstance(term, Accumulate)
        strides, program = self.printer.names.strides, self.printer.program
        steps = (strides[tensor, program.operand(tensor).rank - 1] for tensor in walked)
        tests = ["HAVE_MASKS", *(f"{step} == 1" for step in steps), f"{end} - ({lower}) >= LANES"]
        vectors = self.inner()
        at = vectors.printer.names.symbols[node.name] = vectors.scope.fresh(node.name)
        value = replace(vectors.printer, walking=node.name).scalar(term.value).text
        total = self.printer.names.accumulators[term.accumulator]
        sign = ">" if term.reducer is Reducer.MAX else "<"
        given = f"{join}, {sign}, {at}, {lower}, {end}, {value}, {total}"
        self.write(f"if ({' && '.join(tests)}) {{")
        vectors.write(f"EXTREME_OF_VECTORS({given}, {inner.nans[term.accumulator]})")
        self.write("} else")

    def search_row(self, node: For, term: Accumulate, name: str, lower: str, end: str) -> None:
        """Where the extreme of a long row is, in lanes; an `else` that others follow."""
        inner, state = self.inner(), self.states[term.accumulator]
        at = inner.printer.names.symbols[node.name] = inner.scope.fresh(node.name)
        value = inner.printer.scalar(term.value).text
        assert term.position is not None
        total = self.printer.names.accumulators[term.accumulator]
        ways = "max, >" if term.reducer is Reducer.ARGMAX else "min, <"
        kind = self.kinds[term.accumulator].value
        length = end
        if lower != "0":
            only = len(node.lower) == 1
            begin = self.printer.poly(node.lower[0]).at(Level.MULTIPLICATIVE) if only else lower
            length = f"{end} - {begin}"
        self.write(f"if ({length} >= LONG_ROW) {{")
        row = f"{at}, {lower}, {end}, {value}, {state.found}, {state.best}"
        inner.write(f"BEST_OF_ROW({kind}, {ways}, {row}) {{")
        inner.write(f"    {state.found} = 1;")
        inner.write(f"    {state.best} = {value};")
        inner.write(f"    {total} = {inner.text(term.position)};")
        inner.write("}")
        self.write("} else")

    def vector_loop(self, node: For, vectors: VectorSum, name: str, lower: str, end: str) -> None:
        """Whole vectors of terms where memory is consecutive, then the terms that are left.

        These are one vector more, where lanes may do nothing.
        """
        strides = self.printer.names.strides
        program = self.printer.program
        steps = [strides[tensor, program.operand(tensor).rank - 1] for tensor in vectors.walked]
        condition = " && ".join(f"{step} == 1" for step in steps)
        terms, step = vectors.terms, "LANES"
        is_twice = all(term.accumulator in self.pairs for term in terms)
        if is_twice:
            terms = tuple(even for even, _ in vectors.pairs(node.name) or ())
            step = "LANES / 2"
        inner = self.inner()
        inner.printer.names.symbols[node.name] = name
        lower, end = self.begin_stretch(node, terms, lower, end)
        lanes = self.lanes_of_row(node, terms, inner)
        inner.nodes([each for each in node.body if isinstance(each, Define)])
        walking = replace(inner.printer, walking=node.name, twice=is_twice)
        inner.write(f"int64_t {name} = {lower};")
        inner.write(f"if ({condition}) {{")
        head = f"for (; {name} + {step} <= {end}; {name} += {step}) {{"
        inner.write(f"    {head}")
        for term in terms:
            value = walking.scalar(term.value).text
            inner.write(f"        {lanes[term.accumulator]} += {value};")
        inner.write("    }")
        if not any(program.operand(tensor).optional for tensor in vectors.walked):
            inner.write(f"    if (HAVE_MASKS && {name} < {end}) {{")
            high = inner.scope.fresh("high")
            last = f"2 * ({end} - {name}) - 1" if is_twice else f"{end} - {name} - 1"
            inner.write(f"        const int {high} = {last};")
            walking = replace(walking, within=f"0, {high}")
            for term in terms:
                value = f"lanes_only({walking.scalar(term.value).text}, 0, {high})"
                inner.write(f"        {lanes[term.accumulator]} += {value};")
            inner.write(f"        {name} = {end};")
            inner.write("    }")
        inner.write("}")
        head = f"for (; {name} < {end}; {name}++) {{"
        inner.add_rest(vectors.terms, head, is_long=_has_own_vectors(node, terms))
        self.join_rows(lanes, inner)
        self.write("}")

    def add_rest(self, terms: Sequence[Accumulate], head: str, *, is_long: bool) -> None:
        """Add what no vector has, one by one: all terms where they lie apart in memory, which may
        be more than a float counts."""
        rests = {}
        if is_long:
            rests = {each.accumulator: self.scope.fresh("rest") for each in terms}
        for accumulator, rest in rests.items():
            self.write(f"{self.kinds[accumulator].of_long_sums} {rest} = 0;")
        self.write(head)
        inner = self.inner()
        inner.printer.names.accumulators.update(rests)
        inner.nodes(terms)
        self.write("}")
        for accumulator, rest in rests.items():
            total = self.printer.names.accumulators[accumulator]
            self.write(f"{total} += ({self.kinds[accumulator].value}){rest};")

    def join_rows(self, lanes: Mapping[str, str], inner: Emitter) -> None:
        """Add the vectors of a row to those of its accumulators."""
        for accumulator, part in lanes.items():
            if part != self.vectors[accumulator]:
                inner.write(f"{self.vectors[accumulator]} += {part};")

    def begin_stretch(
        self, node: For, terms: Sequence[Accumulate], lower: str, end: str
    ) -> tuple[str, str]:
        """Begin what is done for the terms of a row, and tell where these begin and end: those of a
        stretch at a time, where a row may have more and its sum has vectors of its own."""
        if not _has_own_vectors(node, terms) or any(each.is_constant for each in node.upper):
            self.write("{")
            return lower, end
        first = self.scope.fresh(f"{node.name}_stretch")
        self.write(f"for (int64_t {first} = {lower}; {first} < {end}; {first} += STRETCH) {{")
        inner, last = self.inner(), self.scope.fresh(f"{node.name}_stretch_end")
        inner.write(f"const int64_t {last} = least({end}, {first} + STRETCH);")
        return first, last

    def lanes_of_row(
        self, node: For, terms: Sequence[Accumulate], inner: Emitter
    ) -> dict[str, str]:
        """The vectors that a row adds to, by accumulator: its own ones, which then join others.

        A sum over an image is one of as many parts as it has rows then, and not of as many as it
        has vectors: of a million terms of one size a float keeps a digit more. Many sums at a time,
        as those of the taps of a filter, have no time for it, nor have short rows.
        """
        lanes = {term.accumulator: self.vectors[term.accumulator] for term in terms}
        if not _has_own_vectors(node, terms):
            return lanes
        for accumulator in lanes:
            lanes[accumulator] = inner.scope.fresh("part")
            inner.write(f"wide_lanes {lanes[accumulator]} = {{0}};")
        return lanes

    def computed_loop(self, node: For, vectors: VectorSum, name: str, lower: str, end: str) -> None:
        """Some terms at a time, kept in the first cache, and then vectors of them."""
        outer = self.inner()
        lower, end = self.begin_stretch(node, vectors.terms, lower, end)
        lanes = self.lanes_of_row(node, vectors.terms, outer)
        inner = outer.inner()
        first, at, count = (inner.scope.fresh(each) for each in ("first", "at", "count"))
        totals = [self.printer.names.accumulators[each.accumulator] for each in vectors.terms]
        names = [inner.scope.fresh("terms") for _ in totals]
        inner.printer.names.symbols[node.name] = name
        inner.nodes([each for each in node.body if isinstance(each, Define)])
        outer.write(f"for (int64_t {first} = {lower}; {first} < {end}; {first} += TERMS) {{")
        inner.write(f"const int64_t {count} = least({end} - {first}, TERMS);")
        for terms, term in zip(names, vectors.terms, strict=True):
            kind = self.kinds[term.accumulator].value
            inner.write(f"_Alignas(LANE_BYTES) {kind} {terms}[TERMS];")
        inner.write("INDEPENDENT")
        inner.write(f"for (int64_t {at} = 0; {at} < {count}; {at}++) {{")
        inner.write(f"    const int64_t {name} = {first} + {at};")
        for terms, term in zip(names, vectors.terms, strict=True):
            inner.write(f"    {terms}[{at}] = {inner.printer.scalar(term.value).text};")
        inner.write("}")
        for terms, total, term in zip(names, totals, vectors.terms, strict=True):
            inner.write(f"ADD_TERMS({total}, {lanes[term.accumulator]}, {terms}, {count})")
        outer.write("}")
        self.join_rows(lanes, outer)
        self.write("}")

    def tests_of(self, node: If) -> list[Text]:
        """What an `if` asks."""
        texts = [self.printer.condition(condition) for condition in node.conditions]
        if node.test != Always():
            texts.append(self.printer.test(node.test))
        return texts

    def condition(self, node: If) -> None:
        text = _conjunction(self.tests_of(node))
        if node.body:
            self.block(f"if ({text})", node.body)
        else:
            self.write(f"(void)({text});  // only checked")


def _has_own_vectors(node: For, terms: Sequence[Accumulate]) -> bool:
    """Whether the sums of a row have vectors of their own; see `lanes_of_row`."""
    is_short = any(bound.is_constant and bound.constant < _ROW for bound in node.upper)
    return len({term.accumulator for term in terms}) <= _FEW_SUMS and not is_short


def _conjunction(texts: Sequence[Text]) -> str:
    if len(texts) == 1:
        return texts[0].text
    return " && ".join(text.at(Level.EQUALITY) for text in texts)
