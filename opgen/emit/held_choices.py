"""Extremes over windows of many terms, vector by vector: the loops over terms within the lanes.

Windows of few terms are written out, so that a pass over a row joins all of them, see
`chosen_lanes`. Of others each term is a pass of its own, which goes on in arrays over the lanes:

    for (int64_t k = 0; k < 5; k++)
        for (int64_t l = 0; l < 5; l++)
            for (int64_t j = greatest(0, 2 - l); j <= least(27, 29 - l); j++)
                total[j] = ...

Most of the time is then what is loaded from arrays and stored again, for an argmax four of them. So
the vectors of a row are the outer loop, in which accumulators are registers, and lanes outside of
the bounds of a term do nothing:

    for (int64_t j = 0; j <= 27; j += LANES) {
        wide_lanes total = same_lanes(T_least);
        for (int64_t k = 0; k < 5; k++)
            for (int64_t l = 0; l < 5; l++)
                total = greatest_lanes_within(lanes_within(&x[...], low, high), total, &known, ...);
        lanes_to_T_within(&y[...], total, 0, high);
    }

With an argmax, 5 by 5 of 256 images of 28 by 28 take 0.33 ms so on two threads, and took 2.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.poly import Poly, poly, symbol_atom
from opgen.emit.chosen_lanes import FITTING, begin_extreme, beside, choosing, is_stored
from opgen.emit.emitter import ScopeEmitter, extreme
from opgen.emit.expression import type_name
from opgen.ir.chosen import EXTREMES, GREATEST
from opgen.ir.lane_terms import terms_by_lanes
from opgen.ir.liveness import is_read_behind
from opgen.ir.loops import (
    Accumulate,
    Define,
    For,
    If,
    Kernel,
    Lanes,
    Node,
    Program,
    Result,
    Start,
    Store,
    walk,
)

MOST_TERMS: Final = 16
"""The most terms that are written out: a compiler takes its time for each. Where there are more a
row has pieces that are not one, which are those of the few rows whose windows are not whole."""


@dataclass(frozen=True, slots=True)
class HeldChoices:
    """Accumulators that begin in one pass over the lanes, are joined in loops, and end in another.

    `tensors` are consecutive in memory. `origins` are what the positions of each argmax or argmin
    count from, and `numbers` what they count. An extreme may be what belongs to a
    position that is found as well, which `beside` names.
    """

    starts: tuple[Start, ...]
    loops: tuple[Node, ...]
    stores: tuple[Store, ...]
    tensors: tuple[str, ...]
    origins: tuple[tuple[str, Poly], ...]
    numbers: tuple[_Numbers, ...]
    beside: tuple[tuple[str, str], ...]


def held_choices(
    nodes: Sequence[Node], kernel: Kernel, program: Program, arrays: AbstractSet[str]
) -> HeldChoices | None:
    """What the nodes of a scope are of this kind; None where they are not."""
    if kernel.row is None or len(nodes) < 3:
        return None
    first, *others = nodes
    if not isinstance(first, Lanes) or first.lower or first.upper:
        return None
    lane = kernel.row.axis.name
    starts = {each.accumulator: each for each in first.body if isinstance(each, Start)}
    loops, stores = _without_stores(others)
    if len(starts) != len(first.body) or not stores:
        return None
    if any(each.value is not None or each.reducer not in EXTREMES for each in starts.values()):
        return None
    if not all(is_stored(each, starts, lane, program) for each in stores):
        return None
    last = nodes[-1]
    if not isinstance(last, Lanes) or any(is_read_behind(kernel, last, name) for name in starts):
        return None
    flat = terms_by_lanes(loops, lane)
    if flat is None:
        return None
    passes = list(_passes(flat, ()))
    inside = {node.name for node in walk(flat) if isinstance(node, Define)}
    written = dict.fromkeys(each.tensor for each in stores)
    tensors = dict(written)
    origins: dict[str, Poly] = {}
    numbers: dict[_Numbers, None] = {}
    joined: dict[str, list[tuple[object, ...]]] = {}
    for each, around, path in passes:
        found = choosing(each, kernel, program, arrays)
        if found is None or not found.goes_on or not written.keys().isdisjoint(found.tensors):
            return None
        tensors |= dict.fromkeys(found.tensors)
        for term in found.body:
            if not isinstance(term, Accumulate) or term.reducer not in EXTREMES:
                return None
            of_lanes = path, each.lower, each.upper, term.value
            joined.setdefault(term.accumulator, []).append(of_lanes)
            if term.position is not None:
                least = term.position.substitute({loop.name: poly(0) for loop in around})
                origin = origins.setdefault(term.accumulator, least)
                counted = _numbers(term.position - origin, around)
                if not inside.isdisjoint(origin.symbols):
                    return None  # who stores a position would not know it
                if counted is None or lane in counted.symbols or not counted.may_fit:
                    return None
                numbers[counted] = None
    if joined.keys() != starts.keys():
        return None
    told = tuple(beside(starts, joined))
    if sum(len(terms) for name, terms in joined.items() if name not in dict(told)) > MOST_TERMS:
        return None
    return HeldChoices(
        tuple(starts.values()),
        flat,
        stores,
        tuple(tensors),
        tuple(origins.items()),
        tuple(numbers),
        told,
    )


def _without_stores(nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Store, ...]]:
    """The nodes without what the last ones of them store, and that; none where that is not the same
    in all of these.

    They are passes over lanes of their own: a kernel stores each cell once.
    """
    count = len(list(itertools.takewhile(_stores, reversed(nodes))))
    before, last = tuple(nodes[: len(nodes) - count]), nodes[len(nodes) - count :]
    passes: list[Node] = []
    found: list[tuple[Store, ...]] = []
    for each in last:
        assert isinstance(each, Lanes)
        found.append(tuple(node for node in each.body if isinstance(node, Store)))
        body = tuple(node for node in each.body if not isinstance(node, Store))
        passes += (replace(each, body=body),) if body else ()
    if not found or any(each != found[0] for each in found) or any(map(_stores, walk(before))):
        return tuple(nodes), ()
    return (*before, *passes), found[0]


def _stores(node: Node) -> bool:
    """Whether a node is a pass that stores something."""
    return isinstance(node, Lanes) and any(isinstance(each, Store) for each in walk(node.body))


def _passes(
    nodes: tuple[Node, ...], around: tuple[For, ...], path: tuple[int, ...] = ()
) -> Iterator[tuple[Lanes, tuple[For, ...], tuple[int, ...]]]:
    """The passes over lanes with the loops around them, and in which loops and conditions they are:
    the places of these among their neighbours, outermost first."""
    for at, node in enumerate(nodes):
        match node:
            case For(body=body):
                yield from _passes(body, (*around, node), (*path, at))
            case If(body=body):
                yield from _passes(body, around, (*path, at))
            case Lanes():
                yield node, around, path
            case _:
                pass


# ---------------------------------------------------------------------------- numbers in lanes
@dataclass(frozen=True, slots=True)
class _Numbers:
    """What positions are behind an origin: `first`, and for each loop a step times its values,
    which are those up to a last one."""

    first: Poly
    loops: tuple[tuple[Poly, Poly], ...]

    @property
    def symbols(self) -> frozenset[str]:
        """What they depend on."""
        return frozenset[str]().union(*(each.symbols for each in self.parts))

    @property
    def parts(self) -> tuple[Poly, ...]:
        """All that they are made of."""
        return (self.first, *(each for pair in self.loops for each in pair))

    @property
    def may_fit(self) -> bool:
        """Whether they fit into a lane where what depends on the call is none."""
        known = (self.first, *(step * last for step, last in self.loops))
        known_size = sum(abs(each.constant) for each in known if each.is_constant)
        sizes = (abs(each.constant) for each in self.parts if each.is_constant)
        return max(known_size, *sizes, 0) < FITTING

    def tests(self, emitter: ScopeEmitter) -> Iterator[str]:
        """Conditions under which they fit. Nothing overflows where those before hold."""
        if all(each.is_constant for each in self.parts):
            return
        for part in self.parts:
            if not part.is_constant:
                yield f"IS_LANE_NUMBER({emitter.text(part)})"
        products = [self.first, *(step * last for step, last in self.loops)]
        texts = (emitter.text(each) for each in products if each != poly(0))
        yield f"IS_LANE_NUMBER({' + '.join(f'greatest({text}, -({text}))' for text in texts)})"


def _numbers(number: Poly, around: Sequence[For]) -> _Numbers | None:
    """What a number is in loops that begin at 0; None where it is of another form."""
    loops: list[tuple[Poly, Poly]] = []
    for loop in around:
        if loop.name not in number.symbols:
            continue
        linear = number.linear_in(symbol_atom(loop.name))
        last = [bound for bound in loop.upper if bound.is_constant] or list(loop.upper)
        if linear is None or poly(0) not in loop.lower:
            return None
        loops.append((linear[0], last[0]))
        number = linear[1]
    found = _Numbers(number, tuple(loops))
    names = {loop.name for loop in around}
    return found if names.isdisjoint(found.symbols) else None


# ---------------------------------------------------------------------------- how they are printed
def print_held(emitter: ScopeEmitter, found: HeldChoices) -> None:
    """Loops over vectors where they may be ones; an `else` and a block with the nodes follow.

    Two vectors are one turn: what one term waits for of the one before takes longer than to join
    it.
    """
    row = emitter.kernel.row
    assert row is not None
    symbols, lane = emitter.printer.names.symbols, emitter.lane
    first, last = symbols[row.first], symbols[row.last]
    emitter.write(f"if ({' && '.join(_tests(emitter, found))}) {{")
    middle = emitter.inner()
    middle.write(f"int64_t {lane} = {first};")
    middle.write(f"for (; {lane} + LANES <= {last}; {lane} += 2 * LANES) {{")
    inner = middle.inner()
    behind = inner.scope.fresh(f"{lane}_behind")
    inner.write(f"const int64_t {behind} = {lane} + LANES;")
    _print_vectors(
        inner, found, {lane: "LANES - 1", behind: f"least({last} - {behind}, LANES - 1)"}
    )
    middle.write("}")
    middle.write(f"if ({lane} <= {last}) {{")
    _print_vectors(middle.inner(), found, {lane: f"{last} - {lane}"})
    middle.write("}")
    emitter.write("} else")


def _print_vectors(inner: ScopeEmitter, found: HeldChoices, lanes: Mapping[str, str]) -> None:
    """What is done for vectors that begin at these lanes, by what their last ones are."""
    vectors = []
    for lane, last in lanes.items():
        high = inner.scope.fresh("high")
        inner.write(f"const int {high} = {last};")
        vectors.append(_Vector(found, lane, high))
    for vector in vectors:
        for start in found.starts:
            vector.start(inner, start)
    inner.held = HeldPass(tuple(vectors))
    inner.nodes(found.loops)
    inner.held = None
    for vector in vectors:
        for store in found.stores:
            vector.store(inner, store)


def _tests(emitter: ScopeEmitter, found: HeldChoices) -> list[str]:
    """What must hold of the tensors, and of the numbers in lanes."""
    printer = emitter.printer
    operands = map(printer.program.operand, found.tensors)
    steps = (printer.names.strides[each.name, each.rank - 1] for each in operands)
    tests = [f"IS_ONE({step})" for step in steps]
    tests += [test for numbers in found.numbers for test in numbers.tests(emitter)]
    return [*dict.fromkeys(tests), "HAVE_MASKS"]


@dataclass(frozen=True, slots=True)
class HeldPass:
    """The vectors that passes over the lanes join terms to."""

    vectors: tuple[_Vector, ...]

    def join(self, emitter: ScopeEmitter, node: Lanes) -> None:
        """Join the terms of a pass to each vector."""
        for vector in self.vectors:
            vector.join(emitter, node)


@dataclass
class _Vector:
    """Prints what begins, joins and ends the accumulators of a vector, which begins at `lane`;
    `high` is the last of its lanes that does something."""

    choices: HeldChoices
    lane: str
    high: str
    totals: dict[str, str] = field(default_factory=dict)
    best: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)

    def start(self, inner: ScopeEmitter, node: Start) -> None:
        """Begin an accumulator, unless another one holds the same."""
        name = node.accumulator
        if name in dict(self.choices.beside):
            return
        total = self.totals[name] = inner.scope.fresh(name)
        self.best[name], self.known[name] = begin_extreme(inner, node, total)
        if node.reducer.is_argument:
            found = self.found[name] = inner.scope.fresh("found")
            inner.write(f"lane_choice {found} = NONE_FOUND;")

    def join(self, emitter: ScopeEmitter, node: Lanes) -> None:
        """Join the terms of a pass, in the lanes between its bounds."""
        low, high = "0", self.high
        if node.lower:
            low = emitter.scope.fresh("low")
            bounds = [f"{emitter.text(each)} - {self.lane}" for each in node.lower]
            emitter.write(f"const int {low} = {extreme('greatest', ['0', *bounds])};")
        if node.upper:
            high = emitter.scope.fresh("high")
            bounds = [f"{emitter.text(each)} - {self.lane}" for each in node.upper]
            emitter.write(f"const int {high} = {extreme('least', [self.high, *bounds])};")
        inner, is_whole = self.at_lane(emitter, f"{low}, {high}"), not (node.lower or node.upper)
        if not is_whole:
            emitter.write(f"if ({low} <= {high}) {{")
            inner.depth += 1
        for each in node.body:
            assert isinstance(each, Accumulate)
            self.join_term(inner, each)
        if not is_whole:
            emitter.write("}")

    def at_lane(self, emitter: ScopeEmitter, within: str) -> ScopeEmitter:
        """The emitter for vectors of these lanes, behind the first one of this."""
        row = emitter.kernel.row
        assert row is not None
        inner = replace(emitter.inner(), depth=emitter.depth)
        inner.printer.names.symbols[row.axis.name] = self.lane
        inner.printer = replace(inner.printer, walking=row.axis.name, within=within)
        return inner

    def join_term(self, inner: ScopeEmitter, node: Accumulate) -> None:
        """Join a vector of terms."""
        name = node.accumulator
        if name in dict(self.choices.beside):
            return
        term, within = inner.printer.scalar(node.value).text, inner.printer.within
        end = "greatest" if node.reducer in GREATEST else "least"
        best = self.best[name]
        given = f"{term}, {best}, &{self.known[name]}"
        if node.position is None:
            inner.write(f"{best} = {end}_lanes_within({given}, {within});")
            return
        number = inner.text(node.position - dict(self.choices.origins)[name])
        more = f"{number}, &{self.totals[name]}, &{self.found[name]}, {within}"
        inner.write(f"{best} = {end}_lanes_at_within({given}, {more});")

    def store(self, emitter: ScopeEmitter, node: Store) -> None:
        """Write the cells of a vector."""
        within = f"0, {self.high}"
        inner = self.at_lane(emitter, within)
        operand = inner.printer.program.operand(node.tensor)
        cell = inner.printer.cell(node.tensor, node.indices)
        assert isinstance(node.value, Result)
        name = node.value.accumulator
        origin = dict(self.choices.origins).get(name)
        if origin is None:
            kind, total = type_name(operand), self.best[dict(self.choices.beside).get(name, name)]
            inner.write(f"lanes_to_{kind}_within(&{cell}, {total}, {within});")
            return
        row = inner.kernel.row
        assert row is not None
        linear = origin.linear_in(symbol_atom(row.axis.name))
        assert linear is not None
        kind = "_narrow" if operand.narrow else ""
        counted = f"{inner.text(origin)}, {inner.text(linear[0])}"
        more = f"{self.totals[name]}, {self.found[name]}, {counted}, {within}"
        inner.write(f"found_positions_to{kind}(&{cell}, {more});")
