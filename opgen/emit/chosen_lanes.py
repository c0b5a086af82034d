"""Passes over the lanes of a row that choose, as loops over vectors: extremes, and what is added
where an integer is a number.

    for (int64_t j = j_begin; j <= j_end; j += LANES) {
        if (j + LANES > j_end + 1) j = j_end + 1 - LANES;
        wide_lanes total = same_lanes(T_least);
        lane_choice known = ALL_KNOWN;
        total = greatest_lanes(lanes_from_T(&x[n * x_s0 + (j - 1) * x_s1]), total, &known);
        ...
        lanes_to_T(&y[n * y_s0 + j * y_s1], total);
    }

Of loops with such choices compilers make vectors of many instructions, if they make any: maxima of
3 by 3 of 256 images of 56 by 56 took 1.3 ms, where sums took 0.16, and take 0.28.

An argmax holds numbers in its lanes: by how much a position differs from that of the first term.
They have the width of the elements, and fit, or the pass is as it was; so it is where positions in
neighbouring lanes are not as far from each other everywhere.

Where all accumulators begin and end in a pass, its last vector begins earlier where it would not
fit, and some cells are computed twice. Rows of less than a vector have lanes that do nothing.

A pass may go on with what others began, in arrays over the lanes. All such vectors begin at the
same places, and lanes outside of the bounds of a pass do nothing: what was stored in one vector and
is loaded in another one takes long to arrive.

Tensors must be consecutive, or every second element of one is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import Poly, symbol_atom
from opgen.emit.emitter import ScopeEmitter
from opgen.emit.expression import type_name
from opgen.emit.vectors import EVERY_SECOND
from opgen.ir.chosen import EXTREMES, GREATEST, where_equal
from opgen.ir.lane_terms import without_definitions
from opgen.ir.liveness import is_read_behind
from opgen.ir.loop_parts import goes_along, loads_of, moving
from opgen.ir.loops import (
    Accumulate,
    Always,
    Call,
    Choose,
    Kernel,
    Lanes,
    Load,
    Node,
    Program,
    Result,
    Scalar,
    Start,
    Store,
)
from opgen.ir.notation import DType, Reducer
from opgen.ir.primitives import VECTOR_OPERATORS

FITTING: Final = 2**31
"""What is less fits into a lane of any type."""

Body = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choosing:
    """What a pass needs to be a loop over vectors.

    `tensors` are consecutive in memory, `numbers` fit into a lane, and `origins` are the positions
    that the lanes of each argmax or argmin count from. Where a pass `goes_on`, its accumulators are
    elements of arrays. What an extreme is may be told by a position that is `beside` it.
    """

    body: Body
    tensors: tuple[str, ...]
    numbers: tuple[Poly, ...] = ()
    origins: tuple[tuple[str, Poly], ...] = ()
    goes_on: bool = False
    beside: tuple[tuple[str, str], ...] = ()


# ---------------------------------------------------------------------------- which passes
def choosing(
    node: Lanes, kernel: Kernel, program: Program, arrays: AbstractSet[str]
) -> Choosing | None:
    """What the pass needs; None where it is no such pass.

    `arrays` are the accumulators with an element for each lane.
    """
    assert kernel.row is not None
    lane, body = kernel.row.axis.name, without_definitions(node.body)
    terms = tuple(each for each in body if isinstance(each, Accumulate))
    starts = {each.accumulator: each for each in body if isinstance(each, Start)}
    stores = [each for each in body if isinstance(each, Store)]
    if len(terms) + len(starts) + len(stores) < len(body):
        return None
    if not terms:
        return _storing(body, stores, lane, program) if not starts else None
    if not any(term.reducer in EXTREMES or isinstance(term.value, Choose) for term in terms):
        return None
    if not all(_is_joined(term, lane, program) for term in terms):
        return None
    positions = (term.position for term in terms if term.position is not None)
    if not all(_is_even(position, lane) for position in positions):
        return None
    loaded = tuple(load.tensor for load in loads_of(body) if _moves(load, lane))
    if not starts and not stores:
        if not all(term.accumulator in arrays for term in terms):
            return None
        return Choosing(body, tuple(dict.fromkeys(loaded)), goes_on=True)
    if {term.accumulator for term in terms} != starts.keys() or not stores:
        return None
    if any(each.value is not None for each in starts.values()):
        return None
    if not all(is_stored(each, starts, lane, program) for each in stores):
        return None
    if any(is_read_behind(kernel, node, name) for name in starts):
        return None
    written = dict.fromkeys(each.tensor for each in stores)
    if not written.keys().isdisjoint(load.tensor for load in loads_of(body)):
        return None
    origins: dict[str, Poly] = {}
    numbers: dict[Poly, None] = {}
    for term in terms:
        if term.position is not None:
            number = term.position - origins.setdefault(term.accumulator, term.position)
            if lane in number.symbols:
                return None
            if not number.is_constant or abs(number.constant) >= FITTING:
                numbers[number] = None
    tensors = tuple(dict.fromkeys((*loaded, *written)))
    joined: dict[str, list[Scalar]] = {}
    for term in terms:
        joined.setdefault(term.accumulator, []).append(term.value)
    told = tuple(beside(starts, joined))
    return Choosing(body, tensors, tuple(numbers), tuple(origins.items()), beside=told)


def beside(
    starts: Mapping[str, Start], joined: Mapping[str, Sequence[object]]
) -> Iterator[tuple[str, str]]:
    """The extremes with the positions that are looked for among the same terms, which are `joined`
    by name: what a position belongs to is the extreme."""
    for name, start in starts.items():
        for other, found in starts.items():
            is_same_end = (start.reducer in GREATEST) == (found.reducer in GREATEST)
            are_ends = start.reducer in EXTREMES and found.reducer in EXTREMES
            of_position = found.reducer.is_argument and not start.reducer.is_argument
            if are_ends and of_position and is_same_end and joined[name] == joined[other]:
                yield name, other
                break


def _storing(body: Body, stores: Sequence[Store], lane: str, program: Program) -> Choosing | None:
    """What a pass needs that stores where an integer is a number, and zero elsewhere.

    Lanes store neighbours, or pairs of these.
    """
    if not stores or not all(where_equal(each.value, lane, program) for each in stores):
        return None
    operands = [program.operand(each.tensor) for each in stores]
    if not all(program.is_plain(each.name) and not each.unrounded for each in operands):
        return None
    pairs = _pairs(stores, lane)
    alone = [each for each in stores if each not in pairs and each not in pairs.values()]
    if not all(goes_along(each.indices, lane) for each in alone):
        return None
    loaded = dict.fromkeys(load.tensor for load in loads_of(body))
    written = dict.fromkeys(each.tensor for each in stores)
    if not written.keys().isdisjoint(loaded):
        return None
    return Choosing(body, tuple({**loaded, **written}), goes_on=True)


def _pairs(stores: Sequence[Store], lane: str) -> dict[Store, Store]:
    """What is stored at even places, with what is stored right behind it."""
    found: dict[Store, Store] = {}
    for store in stores:
        if not store.indices or not _is_every_second(store.indices, lane):
            continue
        *outer, last = store.indices
        behind = (*outer, last + 1)
        partners = [
            each for each in stores if (each.tensor, each.indices) == (store.tensor, behind)
        ]
        if len(partners) == 1 and store not in found.values():
            found[store] = partners[0]
    return found


def _is_joined(term: Accumulate, lane: str, program: Program) -> bool:
    """Whether vectors of a term can be joined."""
    if term.present != Always() or term.order or not any(moving(term.value, lane)):
        return False
    if term.reducer is not Reducer.ADD and term.reducer not in EXTREMES:
        return False
    if where_equal(term.value, lane, program) is not None:
        return term.reducer is Reducer.ADD
    if not _is_of_vectors(term.value, lane, program):
        return False
    # Whether a number that was computed is the least that there is, only elements tell.
    return not term.reducer.is_argument or isinstance(term.value, Load)


def _is_of_vectors(value: Scalar, lane: str, program: Program) -> bool:
    """Whether a value is made of vectors by arithmetic; what is the same for all lanes is not."""
    match value:
        case Load() if not _moves(value, lane):
            return program.is_plain(value.tensor)
        case Load(tensor=tensor, indices=indices):
            return program.is_plain(tensor) and (
                goes_along(indices, lane) or _is_every_second(indices, lane)
            )
        case Call(primitive=primitive, arguments=arguments):
            are_vectors = all(_is_of_vectors(each, lane, program) for each in arguments)
            return primitive in VECTOR_OPERATORS and are_vectors
        case _:
            return False


def _moves(load: Load, lane: str) -> bool:
    return any(lane in index.symbols for index in load.indices)


def _is_every_second(indices: Sequence[Poly], lane: str) -> bool:
    *outer, last = indices
    is_alone = not any(lane in index.symbols for index in outer)
    return is_alone and last.step_in(lane) == EVERY_SECOND


def _is_even(position: Poly, lane: str) -> bool:
    """Whether a position in the next lane is as far away for all lanes."""
    linear = position.linear_in(symbol_atom(lane))
    return linear is not None and not any(lane in part.symbols for part in linear)


def is_stored(store: Store, starts: dict[str, Start], lane: str, program: Program) -> bool:
    """Whether what is stored is an accumulator of the pass, at neighbouring places."""
    if not isinstance(store.value, Result) or not goes_along(store.indices, lane):
        return False
    start, operand = starts.get(store.value.accumulator), program.stored(store.tensor)
    if start is None or operand is None:
        return False
    if start.reducer.is_argument:
        return operand.dtype is DType.I64
    return operand.is_generic and not operand.optional


# ---------------------------------------------------------------------------- how they are printed
def print_choosing(emitter: ScopeEmitter, found: Choosing, first: str, last: str) -> None:
    """The loops over vectors where the pass may be one; an `else` that another loop follows.

    `emitter` is that of the lanes' scope, in which a lane has a name.
    """
    if not found.goes_on:
        _Pass(emitter, found, first, last).whole()
    _Pass(emitter, found, first, last).masked()


def begin_extreme(emitter: ScopeEmitter, node: Start, total: str) -> tuple[str, str]:
    """Begin the vector `total`, of extremes or of where they are; the names of that of the extremes
    and of the lanes that had no NaN yet."""
    fresh, write = emitter.scope.fresh, emitter.write
    best = fresh("best") if node.reducer.is_argument else total
    end = "least" if node.reducer in GREATEST else "greatest"
    write(f"wide_lanes {best} = same_lanes(T_{end});")
    known = fresh("known")
    write(f"lane_choice {known} = ALL_KNOWN;")
    if node.reducer.is_argument:
        write(f"lane_numbers {total} = {{0}};")
    return best, known


class _Pass:
    """Prints one pass: its tests and its loop in `outer`, and within the loop in `inner`."""

    def __init__(self, emitter: ScopeEmitter, found: Choosing, first: str, last: str) -> None:
        inner = emitter.inner()
        assert emitter.kernel.row is not None
        self.axis = emitter.kernel.row.axis.name
        inner.printer = replace(inner.printer, walking=self.axis)
        self.outer, self.middle = replace(emitter, depth=emitter.depth - 1), emitter
        self.inner, self.found = inner, found
        self.first, self.last = first, last
        self.origins = dict(found.origins)
        self.best: dict[str, str] = {}
        self.known: dict[str, str] = {}

    def whole(self) -> None:
        """A loop over whole vectors, of which there must be one; the last one begins earlier."""
        lane, last = self.inner.lane, self.last
        self.begin(f"{last} - {self.first} >= LANES - 1", self.first)
        self.inner.write(f"if ({lane} + LANES > {last} + 1) {lane} = {last} + 1 - LANES;")
        self.nodes()
        self.end()

    def masked(self) -> None:
        """A loop over vectors of which the last one has lanes that do nothing.

        Arrays are taken up by vectors that begin where those of other passes do.
        """
        inner, lane, begin, low = self.inner, self.inner.lane, self.first, "0"
        row = inner.kernel.row
        assert row is not None
        start = inner.printer.names.symbols[row.first]
        if self.found.goes_on and begin != start:
            begin = f"{start} + ({self.first} - {start}) / LANES * LANES"
            low = inner.scope.fresh("low")
        self.begin("HAVE_MASKS", begin)
        if low != "0":
            inner.write(f"const int {low} = greatest({self.first} - {lane}, 0);")
        high = inner.scope.fresh("high")
        inner.write(f"const int {high} = least({self.last} - {lane}, LANES - 1);")
        if low != "0":
            inner.write(f"if ({high} < {low}) continue;")
        inner.printer = replace(inner.printer, within=f"{low}, {high}")
        held = self.taken_up(f"{low}, {high}") if self.found.goes_on else {}
        self.nodes()
        for total, element in held.items():
            inner.write(f"lanes_to_wide(&{element}, {total});")
        self.end()

    def begin(self, test: str, first: str) -> None:
        """The tests of the pass, and the head of its loop."""
        lane = self.inner.lane
        self.outer.write(f"if ({' && '.join((*self.tests(), test))}) {{")
        head = f"int64_t {lane} = {first}; {lane} <= {self.last}; {lane} += LANES"
        self.middle.write(f"for ({head}) {{")

    def end(self) -> None:
        """What follows is for calls where a test fails."""
        self.middle.write("}")
        self.outer.write("} else")

    def tests(self) -> list[str]:
        """What must hold of the tensors, and of the numbers in lanes."""
        printer = self.inner.printer
        operands = map(printer.program.operand, self.found.tensors)
        steps = [printer.names.strides[each.name, each.rank - 1] for each in operands]
        numbers = map(self.outer.text, self.found.numbers)
        return [
            *(f"IS_ONE({step})" for step in steps),
            *(f"IS_LANE_NUMBER({number})" for number in numbers),
        ]

    def nodes(self) -> None:
        """The body of the loop."""
        stores = [each for each in self.found.body if isinstance(each, Store)]
        pairs = _pairs(stores, self.axis)
        told = dict(self.found.beside)
        body = self.found.body
        if told:
            body = (*(each for each in body if not isinstance(each, Store)), *stores)
        for each in body:
            match each:
                case Start(accumulator=name) | Accumulate(accumulator=name) if name in told:
                    continue
                case Store() if each in pairs:
                    self.store_pair(each, pairs[each])
                case Store() if each in pairs.values():
                    continue  # beside the other one of its pair
                case Start():
                    self.start(each)
                case Accumulate():
                    self.join(each)
                case Store():
                    self.store(each)
                case unexpected:
                    raise AssertionError(f"{unexpected} is in no such pass")

    def taken_up(self, lanes: str) -> dict[str, str]:
        """Load vectors of the arrays of accumulators; their names, and where they lie.

        What belongs to a position stays in its arrays.
        """
        inner, held = self.inner, {}
        names = inner.printer.names.accumulators
        for each in self.found.body:
            if not isinstance(each, Accumulate) or each.reducer.is_argument:
                continue
            name, element = each.accumulator, names[each.accumulator]
            if element in held:
                continue
            total = names[name] = inner.scope.fresh(name)
            inner.write(f"wide_lanes {total} = lanes_from_wide(&{element});")
            held[total] = element
            if each.reducer in EXTREMES:
                self.best[name] = total
                known = self.known[name] = inner.scope.fresh("known")
                inner.write(f"lane_choice {known} = known_within({total}, {lanes});")
        return held

    def start(self, node: Start) -> None:
        """Begin an accumulator: that of an argmax with the first of its terms."""
        fresh, write, name = self.inner.scope.fresh, self.inner.write, node.accumulator
        total = self.inner.printer.names.accumulators[name] = fresh(name)
        if node.reducer not in EXTREMES:
            write(f"wide_lanes {total} = {{0}};")
            return
        self.best[name], self.known[name] = begin_extreme(self.inner, node, total)

    def join(self, node: Accumulate) -> None:
        """Join a vector of terms."""
        inner, name = self.inner, node.accumulator
        total = inner.printer.names.accumulators[name]
        term = inner.printer.scalar(node.value).text
        if node.reducer not in EXTREMES:
            if self.found.goes_on and not isinstance(node.value, Choose):
                term = f"lanes_only({term}, {inner.printer.within})"
            inner.write(f"{total} += {term};")
            return
        end = "greatest" if node.reducer in GREATEST else "least"
        if self.found.goes_on and node.position is not None:
            self.join_in_arrays(node, term, end)
            return
        best, known = self.best[name], self.known[name]
        if node.position is None:
            inner.write(f"{best} = {end}_lanes({term}, {best}, &{known});")
            return
        number = inner.text(node.position - self.origins[name])
        inner.write(f"{best} = {end}_lanes_at({term}, {best}, &{known}, {number}, &{total});")

    def cell(self, node: Store) -> str:
        """The cell that the first lane stores."""
        place = self.inner.places.get((node.tensor, node.indices))
        return place or self.inner.printer.cell(node.tensor, node.indices)

    def store_pair(self, even: Store, odd: Store) -> None:
        """Write the cells of two vectors, by turns."""
        inner = self.inner
        values = ", ".join(inner.printer.scalar(each.value).text for each in (even, odd))
        within = inner.printer.within
        inner.write(f"turns_to_T(&{self.cell(even)}, {values}, {within});")

    def join_in_arrays(self, node: Accumulate, term: str, end: str) -> None:
        """Join a vector of terms to arrays of positions, and of what belongs to these."""
        inner, name = self.inner, node.accumulator
        total, state = inner.printer.names.accumulators[name], inner.states[name]
        arrays = f"&{total}, &{state.best}, &{state.found}"
        counted = f"{self.counted(node.position)}, {inner.printer.within}"
        inner.write(f"{end}_in_arrays({term}, {arrays}, {counted});")

    def counted(self, position: Poly | None) -> str:
        """A position in the first lane, and how far it is to that in the next one."""
        assert position is not None
        linear = position.linear_in(symbol_atom(self.axis))
        assert linear is not None
        return f"{self.inner.text(position)}, {self.inner.text(linear[0])}"

    def store(self, node: Store) -> None:
        """Write the cells of a vector."""
        inner, value = self.inner, node.value
        operand, cell = inner.printer.program.operand(node.tensor), self.cell(node)
        told = dict(self.found.beside)
        if isinstance(value, Result) and value.accumulator in told:
            total = self.best[told[value.accumulator]]
        else:
            total = inner.printer.scalar(value).text
        origin = self.origins.get(value.accumulator) if isinstance(value, Result) else None
        within = inner.printer.within
        ending = "_within" if within else ""
        more = f", {within}" if within else ""
        if origin is None:
            inner.write(f"lanes_to_{type_name(operand)}{ending}(&{cell}, {total}{more});")
            return
        kind = "_narrow" if operand.narrow else ""
        inner.write(f"positions_to{kind}{ending}(&{cell}, {total}, {self.counted(origin)}{more});")
