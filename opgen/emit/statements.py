"""Nodes of the loops as C statements, one scope of C at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from opgen.algebra.poly import Poly, poly, symbol
from opgen.emit.c_layout import broken
from opgen.emit.expression import Printer, type_name
from opgen.emit.names import CNames
from opgen.emit.polynomial import Text
from opgen.emit.streams import Line, lines
from opgen.emit.types import Type
from opgen.emit.vectors import VectorSum, row_loads, vector_sum
from opgen.ir.loops import (
    Accumulate,
    Always,
    AtomicAdd,
    Choose,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Node,
    Number,
    Row,
    Scalar,
    Start,
    Store,
    accumulators_of,
    results_of,
    walk,
)
from opgen.ir.notation import Reducer
from opgen.ir.primitives import Level


@dataclass(frozen=True, slots=True)
class _State:
    """The variables of an accumulator of argmax or argmin beside its position."""

    best: str
    found: str
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Names:
    """The variables of an accumulator."""

    kind: Type
    total: str
    state: _State | None = None

    @property
    def declared(self) -> tuple[tuple[str, str], ...]:
        """Types and names, the total first."""
        if self.state is None:
            return ((self.kind.value, self.total),)
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
            state = _State(state.best + place, state.found + place, first)
        return _Names(self.kind, self.total + place, state)


@dataclass(frozen=True, slots=True)
class _Digit:
    """A counter and its extent."""

    name: str
    extent: Text


@dataclass
class Emitter:
    """Prints nodes as statements, one scope of C at a time."""

    printer: Printer
    scope: CNames
    kernel: Kernel
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    kinds: dict[str, Type] = field(default_factory=dict)
    states: dict[str, _State] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)  # accumulators that are arrays over the lanes
    vectors: dict[str, str] = field(default_factory=dict)  # vectors of partial sums
    around: str | None = None  # the innermost loop around, if it may be long
    members: dict[str, str] = field(default_factory=dict)  # of stretched axes: their names,
    parts: dict[str, str] = field(default_factory=dict)  # and the names of the stretches
    streams: str = ""  # the parameter that says whether results go past the caches
    places: dict[tuple[str, tuple[Poly, ...]], str] = field(default_factory=dict)  # cells of lines

    @property
    def lane(self) -> str:
        """The name of the lane."""
        assert self.kernel.row is not None
        return self.members[self.kernel.row.axis.name]

    def write(self, line: str) -> None:
        self.lines += broken("    " * self.depth + line)

    def text(self, value: Poly) -> str:
        return self.printer.poly(value).text

    def block(self, head: str, nodes: Sequence[Node]) -> None:
        """`head { nodes }`, in a scope of its own."""
        self.write(f"{head} {{")
        self.inner().nodes(nodes)
        self.write("}")

    def inner(self) -> Emitter:
        """The emitter of a nested scope; it appends to the same lines."""
        names = self.printer.names
        inner_names = replace(
            names, symbols=dict(names.symbols), accumulators=dict(names.accumulators)
        )
        printer = replace(self.printer, names=inner_names, bounded=set(self.printer.bounded))
        return replace(self, printer=printer, scope=self.scope.inner(), depth=self.depth + 1)

    def integer_type(self, *values: Poly) -> str:
        """The type of a variable for an integer that is, or lies between, these."""
        del values
        return "int64_t"

    # ------------------------------------------------------------ how a function starts
    def prologue(self) -> None:
        for define in self.kernel.prologue:
            self.define(define.name, define.value)

    def points(self, begin: str, end: str) -> None:
        """A loop over a range of the kernel's points, around the body.

        The axes are the digits of a point's number, last axis and row fastest; they are counted
        rather than divided out, since a division may cost more than a short row.
        """
        digits = self.digits()
        if not digits:
            self.inner_body()
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
        point = self.scope.fresh("point")
        self.write(f"for (int64_t {point} = {begin}; {point} < {end}; {point}++) {{")
        emitter = self.inner()
        emitter.inner_body()
        for digit in reversed(digits[1:]):
            emitter.write(f"if (++{digit.name} < {digit.extent.at(Level.ADDITIVE)}) continue;")
            emitter.write(f"{digit.name} = 0;")
        emitter.write(f"++{digits[0].name};")
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
            stretches = self.printer.poly((row.axis.extent + row.width - 1) // row.width)
            digits.append(_Digit(self.scope.fresh(f"{row.axis.name}_part"), stretches))
            self.members[row.axis.name] = self.scope.fresh(row.axis.name)
            self.parts[row.axis.name] = digits[-1].name
        return digits

    def is_whole(self, row: Row) -> bool:
        """Whether the axis is known to be one stretch."""
        return row.axis.extent.is_constant and row.axis.extent.constant <= row.width

    def inner_body(self) -> None:
        """The body at one point."""
        for row in self.kernel.stretched:
            if self.is_whole(row):
                self.printer.names.symbols[row.first] = "0"
                self.printer.names.symbols[row.last] = self.text(row.axis.extent - 1)
                continue
            part = self.parts[row.axis.name]
            for name, value in (
                (row.first, f"{part} * {row.width}"),
                (row.last, f"least({{}} + {row.width}, {self.text(row.axis.extent)}) - 1"),
            ):
                own = self.scope.fresh(name)
                first = self.printer.names.symbols.get(row.first, "")
                self.printer.names.symbols[name] = own
                self.write(f"const int64_t {own} = {value.format(first)};")
        for name in self.kernel.local:
            self.declare_local(name)
        if self.kernel.row is not None:
            self.declare_lane_accumulators()
        self.nodes(self.kernel.body)

    def declare_local(self, name: str) -> None:
        """An array for a tensor of which every point has its own."""
        operand = self.printer.program.operand(name)
        sizes = [extent.constant for extent in operand.extents]
        own = self.scope.fresh(name)
        self.printer.names.tensors[name] = own
        for axis in range(operand.rank):
            self.printer.names.strides[name, axis] = str(math.prod(sizes[axis + 1 :]))
        self.write(f"{type_name(operand)} {own}[{math.prod(sizes)}];")

    # ------------------------------------------------------------ nodes
    def nodes(self, nodes: Sequence[Node]) -> None:
        """The nodes in this scope."""
        for node in nodes:
            self.node(node)

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
                self.accumulate(node)
            case Store(tensor=tensor, indices=indices, value=value):
                operand = self.printer.program.operand(tensor)
                stored = self.printer.stored(operand, self.printer.scalar(value))
                cell = self.places.get((tensor, indices)) or self.printer.cell(tensor, indices)
                self.write(f"{cell} = {stored};")
            case AtomicAdd(tensor=tensor, indices=indices, value=value):
                cell = self.printer.cell(tensor, indices)
                term = self.printer.scalar(value).text
                if self.printer.cuda:
                    self.write(f"atomic_add(&{cell}, {term});")
                else:
                    self.write(f"{cell} += {term};")
            case unexpected:
                assert_never(unexpected)

    def add_up_vectors(self, node: Node) -> None:
        """Before a node reads totals, add their vectors of partial sums to them."""
        joined = {n.accumulator for n in walk((node,)) if isinstance(n, Accumulate)}
        own = {node.accumulator} if isinstance(node, Accumulate) else set()
        for name in results_of((node,)):
            if name in self.vectors and name not in joined - own:
                total, vector = self.printer.names.accumulators[name], self.vectors[name]
                self.write(f"{total} += sum_of_lanes({vector});")
                self.write(f"{vector} = (wide_lanes){{0}};")

    def loop(self, node: For) -> None:
        lower = extreme("greatest", [self.text(bound) for bound in node.lower])
        upper = [self.printer.poly(bound + 1) for bound in node.upper]
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
        if vectors is not None and all(each.accumulator in self.vectors for each in vectors.terms):
            self.vector_loop(node, vectors, name, lower, end)
            return
        if node.any_order:
            totals = dict.fromkeys(
                self.printer.names.accumulators[each.accumulator]
                for each in walk(node.body)
                if isinstance(each, Accumulate)
            )
            self.write(f"IN_ANY_ORDER({', '.join(totals)})")
        self.write(f"for ({kind} {name} = {lower}; {name} < {end}; {name}++) {{")
        if node.name not in self.members:
            inner.around = None if any(each.is_constant for each in node.upper) else node.name
        if not self.printer.cuda and any(isinstance(each, Lanes) for each in walk(node.body)):
            inner.write("NOT_A_VECTOR;")
        inner.nodes(node.body)
        self.write("}")

    def vector_loop(self, node: For, vectors: VectorSum, name: str, lower: str, end: str) -> None:
        """Whole vectors of terms where memory is consecutive, then the terms that are left."""
        strides = self.printer.names.strides
        program = self.printer.program
        steps = [strides[tensor, program.operand(tensor).rank - 1] for tensor in vectors.walked]
        condition = " && ".join(f"{step} == 1" for step in steps)
        inner = self.inner()
        inner.printer.names.symbols[node.name] = name
        self.write("{")
        inner.nodes([each for each in node.body if isinstance(each, Define)])
        walking = replace(inner.printer, walking=node.name)
        inner.write(f"int64_t {name} = {lower};")
        inner.write(f"if ({condition}) {{")
        head = f"for (; {name} + LANES <= {end}; {name} += LANES) {{"
        inner.write(f"    {head}")
        for term in vectors.terms:
            value = walking.scalar(term.value).text
            inner.write(f"        {self.vectors[term.accumulator]} += {value};")
        inner.write("    }")
        inner.write("}")
        inner.write(f"for (; {name} < {end}; {name}++) {{")
        inner.inner().nodes(vectors.terms)
        inner.write("}")
        self.write("}")

    def lanes(self, node: Lanes) -> None:
        """A loop over the lanes between the bounds."""
        row = self.kernel.row
        assert row is not None
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
        few = not self.printer.cuda and _are_few(node, row)
        ends = []
        if not few:
            self.fetch_ahead(node, inner, first, last)
            if self.streams:
                whole = lines(node, self.kernel, self.printer.program)
                inner.places = dict(self.places)
                ends = [self.begin_line(each, inner, first, last) for each in whole]
            self.write("INDEPENDENT")
        self.write(f"for (int64_t {self.lane} = {first}; {self.lane} <= {last}; {self.lane}++) {{")
        if few:
            inner.write("NOT_A_VECTOR;")
        inner.nodes(node.body)
        self.write("}")
        for end in ends:
            self.write(end)

    def begin_line(self, line: Line, inner: Emitter, first: str, last: str) -> str:
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

    def fetch_ahead(self, node: Lanes, inside: Emitter, first: str, last: str) -> None:
        """Ask for the rows of the next round of the loop around: they begin elsewhere in memory."""
        if self.around is None or self.kernel.row is None:
            return
        lane, program = self.kernel.row.axis.name, self.printer.program
        upcoming = {self.around: symbol(self.around) + 1}
        for load in row_loads(node.body, lane, self.around):
            indices = [index.substitute(upcoming) for index in load.indices]
            operand = program.operand(load.tensor)
            step = self.printer.names.strides[load.tensor, operand.rank - 1]
            name = self.lane
            count = f"64 / (int64_t)sizeof({type_name(operand)})"
            self.write(f"if ({step} == 1)")
            self.write(f"    for (int64_t {name} = {first}; {name} <= {last}; {name} += {count})")
            self.write(f"        FETCH(&{inside.printer.cell(load.tensor, indices)});")

    def condition(self, node: If) -> None:
        texts = [self.printer.condition(condition) for condition in node.conditions]
        if node.test != Always():
            texts.append(self.printer.test(node.test))
        text = _conjunction(texts)
        if node.body:
            self.block(f"if ({text})", node.body)
        else:
            self.write(f"(void)({text});  // only checked")

    # ------------------------------------------------------------ accumulators
    def declare_lane_accumulators(self) -> None:
        """Arrays for accumulators that live longer than one pass over the lanes."""
        row = self.kernel.row
        assert row is not None
        starts = {n.accumulator: n for n in walk(self.kernel.body) if isinstance(n, Start)}
        for start in starts.values():
            if not _outlives_a_pass(start.accumulator, self.kernel.body):
                continue
            names = self.accumulator_names(start)
            place, size = self.lane_place()
            for kind, name in names.declared:
                self.write(f"{kind} {name}{size};")
            self.adopt(start.accumulator, names.at(place))
            self.arrays.add(start.accumulator)

    def lane_place(self) -> tuple[str, str]:
        """Where the element of a cell is in an array over the stretch, and the array's size."""
        place = size = ""
        for each in self.kernel.stretched:
            first = self.printer.names.symbols[each.first]
            member = self.members[each.axis.name]
            place += f"[{member}]" if first == "0" else f"[{member} - {first}]"
            size += f"[{each.width}]"
        return place, size

    def accumulator_names(self, node: Start) -> _Names:
        """Fresh names for the variables of an accumulator."""
        kind = self.printer.types.of_accumulator(node.tensor, node.accumulator, self.kernel.body)
        self.kinds[node.accumulator] = kind
        total = self.scope.fresh(node.accumulator)
        if not node.reducer.is_argument:
            return _Names(kind, total)
        orders = [
            each.order
            for each in walk(self.kernel.body)
            if isinstance(each, Accumulate) and each.accumulator == node.accumulator
        ]
        length = max(map(len, orders), default=0)
        assert all(len(order) == length for order in orders)
        state = _State(
            self.scope.fresh("best"),
            self.scope.fresh("found"),
            tuple(self.scope.fresh(f"first_{at}") for at in range(length)),
        )
        return _Names(kind, total, state)

    def adopt(self, accumulator: str, names: _Names) -> None:
        """From here on the accumulator goes by these names."""
        self.printer.names.accumulators[accumulator] = names.total
        if names.state is not None:
            self.states[accumulator] = names.state

    def start(self, node: Start) -> None:
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
            vector = self.scope.fresh(f"{names.total}_lanes")
            self.vectors[node.accumulator] = vector
            self.write(f"wide_lanes {vector} = {{0}};")

    def adds_vectors(self, accumulator: str) -> bool:
        """Whether some loop adds vectors of terms to the accumulator."""
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
                name = type_name(operand)
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
            self.write(f"{total} += {text};")
            return
        kind = self.kinds[node.accumulator]
        term = self.scope.fresh("term")
        self.write(f"const {kind.value} {term} = {text};")
        sign = ">" if node.reducer in (Reducer.MAX, Reducer.ARGMAX) else "<"
        if not node.reducer.is_argument:
            nan = "" if kind is Type.INTEGER else f" || {term} != {term}"
            self.write(f"if ({term} {sign} {total}{nan}) {total} = {term};")
            return
        self.join_argument(node, total, term, sign)

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


FEW: Final = 8
"""How many lanes are not worth a vector, nor the time that the compiler takes to make one."""


def _are_few(node: Lanes, row: Row) -> bool:
    """Whether the lanes are known to be few, as those at the ends of a longer row are."""
    if row.axis.extent.is_constant and row.axis.extent.constant <= 2 * FEW:
        return False
    lower, upper = (poly(0), *node.lower), (row.axis.extent - 1, *node.upper)
    counts = (last - first for last in upper for first in lower)
    return any(count.is_constant and count.constant < FEW for count in counts)


def extreme(function: str, texts: Sequence[str]) -> str:
    """The least or greatest of several integers; those that are literals are compared here."""
    known = [int(text) for text in texts if text.lstrip("-").isdigit()]
    others = [text for text in texts if not text.lstrip("-").isdigit()]
    if known:
        others.insert(0, str(max(known) if function == "greatest" else min(known)))
    out, *others = others
    for text in others:
        out = f"{function}({out}, {text})"
    return out


def _conjunction(texts: Sequence[Text]) -> str:
    if len(texts) == 1:
        return texts[0].text
    return " && ".join(text.at(Level.EQUALITY) for text in texts)


def _outlives_a_pass(accumulator: str, body: Sequence[Node]) -> bool:
    """Whether some pass over the lanes goes on with an accumulator that another one started."""
    passes = [node.body for node in walk(tuple(body)) if isinstance(node, Lanes)]
    return any(
        accumulator in accumulators_of(*nodes)
        and not any(isinstance(n, Start) and n.accumulator == accumulator for n in walk(nodes))
        for nodes in passes
    )
