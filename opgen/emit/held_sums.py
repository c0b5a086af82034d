"""Sums of rows that are looked up, some vectors of a row at a time: the loops over terms within.

The rows of an embedding that a bag adds up, `y[b,d] = sum(l) w[i[b,l],d]`, are passes over the
lanes that each add to arrays:

    for (int64_t l = 0; l < L; l++)
        for (int64_t d = 0; d < D; d++)
            total[d] += w[i[b,l] * w_s0 + d];

Half of what is loaded are then the sums so far, which are all that is stored. So stretches of the
row are the outer loop, in which the sums are registers:

    for (int64_t d = 0; d + LANES <= D; d += LANES) {
        wide_lanes total = {0};
        for (int64_t l = 0; l < L; l++)
            total += lanes_from_T(&w[i[b,l] * w_s0 + d]);
        lanes_to_T(&y[b * y_s0 + d], total);
    }

Each lane adds the same terms in the same order. A stretch has four vectors, then two, then one;
what is left of a row is a vector of which some lanes do nothing, where there are such instructions,
else it is added as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.poly import Atom, of_atom
from opgen.emit.emitter import ScopeEmitter
from opgen.emit.expression import type_name
from opgen.emit.held_indices import held_atoms
from opgen.ir.loop_parts import goes_along, is_arithmetic, loads_of, moving
from opgen.ir.loops import (
    Accumulate,
    All,
    Always,
    Call,
    Choose,
    Define,
    For,
    If,
    Inside,
    Kernel,
    Lanes,
    Node,
    Number,
    Program,
    Scalar,
    Start,
    Store,
    Test,
)
from opgen.ir.map_loops import test_symbols
from opgen.ir.notation import Reducer

_VECTORS: Final = (4, 2, 1)
"""How many vectors a stretch has: what one term waits for of the one before, others need not."""

_FEWEST: Final = 8
"""The shortest row that may have a vector."""


@dataclass(frozen=True, slots=True)
class HeldSums:
    """Sums that begin in one pass over the lanes, are added to in others, and are stored in a last
    one. `tensors` are consecutive in memory."""

    nodes: tuple[Node, ...]
    sums: frozenset[str]
    tensors: tuple[str, ...]


def held_sums(nodes: Sequence[Node], kernel: Kernel, program: Program) -> HeldSums | None:
    """What the nodes of a scope are of this kind; None where they are not."""
    if kernel.row is None or kernel.only is not None or len(nodes) < 3:
        return None
    extent, lane = kernel.row.axis.extent, kernel.row.axis.name
    if kernel.stretched != (kernel.row,) or (extent.is_constant and extent.constant < _FEWEST):
        return None
    first, *_, last = nodes
    if not isinstance(first, Lanes) or not isinstance(last, Lanes):
        return None
    if not all(isinstance(each, Start) for each in first.body):
        return None
    if not all(isinstance(each, Store) for each in last.body):
        return None
    passes = list(_passes(nodes, lane))
    leaves = [leaf for each in passes for leaf in (() if each is None else each.body)]
    stores = [each for each in leaves if isinstance(each, Store)]
    starts = {each.accumulator for each in leaves if isinstance(each, Start)}
    joined = [each for each in leaves if isinstance(each, Accumulate)]
    looked_up = any(index.is_data_dependent for e in loads_of(joined) for index in e.indices[:-1])
    if None in passes or not looked_up or tuple(last.body) != tuple(stores):
        return None
    if not all(_is_possible(leaf, lane) for leaf in leaves):
        return None
    tensors: dict[str, None] = {}
    loads = [(each.tensor, each.indices) for each in loads_of(leaves)]
    for tensor, indices in (*loads, *((each.tensor, each.indices) for each in stores)):
        operand = program.stored(tensor)
        if all(lane not in index.symbols for index in indices):
            continue
        if operand is None or not operand.is_generic or operand.optional:
            return None
        if not goes_along(indices, lane):
            return None
        tensors[tensor] = None
    written = {each.tensor for each in stores}
    if not written.isdisjoint(tensor for tensor, _ in loads):
        return None
    return HeldSums(tuple(nodes), frozenset(starts), tuple(tensors))


def _passes(nodes: Sequence[Node], lane: str) -> Iterator[Lanes | None]:
    """The passes over the lanes; None for what is anything else, or differs from lane to lane."""
    for node in nodes:
        match node:
            case For(any_order=False, lower=lower, upper=upper, body=body):
                is_same = all(lane not in bound.symbols for bound in (*lower, *upper))
                yield from _passes(body, lane) if is_same else (None,)
            case If(conditions=conditions, body=body, test=test):
                symbols = frozenset().union(*(each.value.symbols for each in conditions))
                is_same = lane not in symbols | test_symbols(test)
                yield from _passes(body, lane) if is_same else (None,)
            case Define(value=value) if lane not in value.symbols:
                pass
            case Lanes(lower=(), upper=()):
                yield node
            case _:
                yield None


def _is_possible(leaf: Node, lane: str) -> bool:
    """Whether a leaf of a pass is a sum or a product of vectors, or begins a sum."""
    match leaf:
        case Start(value=None, reducer=Reducer.ADD):
            return True
        case Accumulate(reducer=Reducer.ADD):
            test, value = _term(leaf)
            is_vector = is_arithmetic(value, lane) and any(moving(value, lane))
            return is_vector and lane not in test_symbols(test)
        case Store(value=value):
            return is_arithmetic(value, lane) and any(moving(value, lane))
        case _:
            return False


def _term(node: Accumulate) -> tuple[Test, Scalar]:
    """What is added, and when: 0 is not, nor what stands for it where a call is refused."""
    tests = [node.present]
    value = node.value
    if isinstance(value, Choose) and value.otherwise == Number(0):
        tests.append(value.test)
        value = value.then
    value = _checked(value, tests)
    tests = [each for each in dict.fromkeys(tests) if each != Always()]
    return (All(tuple(tests)) if len(tests) > 1 else tests[0] if tests else Always()), value


def _checked(value: Scalar, tests: list[Test]) -> Scalar:
    """A value where all of its indices are inside that are checked, which tests are added of."""
    match value:
        case Choose(test=Inside(fault=int()) as test, then=then, otherwise=Number()):
            tests.append(test)
            return _checked(then, tests)
        case Call(arguments=arguments):
            return replace(value, arguments=tuple(_checked(each, tests) for each in arguments))
        case _:
            return value


# ---------------------------------------------------------------------------- how they are printed
def print_held_sums(emitter: ScopeEmitter, found: HeldSums) -> str:
    """Loops over stretches of a row where memory has it in one piece; the name of the first cell
    that is left."""
    row = emitter.kernel.row
    assert row is not None
    symbols, strides = emitter.printer.names.symbols, emitter.printer.names.strides
    last, lane = symbols[row.last], emitter.scope.fresh(f"{row.axis.name}_rest")
    operands = map(emitter.printer.program.operand, found.tensors)
    steps = dict.fromkeys(strides[each.name, each.rank - 1] for each in operands)
    emitter.write(f"int64_t {lane} = {symbols[row.first]};")
    emitter.write(f"if ({' && '.join(f'IS_ONE({step})' for step in steps)}) {{")
    middle = emitter.inner()
    for count in _VECTORS:
        size = f"{count} * LANES" if count > 1 else "LANES"
        middle.write(f"for (; {lane} + {size} <= {last} + 1; {lane} += {size}) {{")
        inner = middle.inner()
        inner.write("NOT_A_VECTOR;")
        lanes = [lane]
        for at in range(1, count):
            lanes.append(inner.scope.fresh(lane))
            inner.write(f"const int64_t {lanes[-1]} = {lane} + {at} * LANES;")
        inner.held = SummedPass(tuple(map(_Vector, lanes)))
        for node in found.nodes:
            inner.node(node)
        middle.write("}")
    middle.write(f"if (HAVE_MASKS && {lane} <= {last}) {{")
    inner = middle.inner()
    high = inner.scope.fresh("high")
    inner.write(f"const int {high} = {last} - {lane};")
    inner.held = SummedPass((_Vector(lane, f"0, {high}"),))
    for node in found.nodes:
        inner.node(node)
    inner.write(f"{lane} = {last} + 1;")
    middle.write("}")
    emitter.write("}")
    return lane


@dataclass(frozen=True, slots=True)
class SummedPass:
    """The vectors that passes over the lanes add terms to."""

    vectors: tuple[_Vector, ...]

    def join(self, emitter: ScopeEmitter, node: Lanes) -> None:
        """Begin the sums of each vector, add the terms of a pass to them, or store them."""
        held = dict(emitter.printer.held)
        for atom in held_atoms(node, emitter.kernel):
            held[atom] = self.hold(emitter, atom)
        emitter.printer = replace(emitter.printer, held=held)
        for leaf in node.body:
            match leaf:
                case Start(accumulator=name):
                    for each in self.vectors:
                        each.totals[name] = emitter.scope.fresh(name)
                        emitter.write(f"wide_lanes {each.totals[name]} = {{0}};")
                case Accumulate():
                    self.add(emitter, leaf)
                case Store():
                    for each in self.vectors:
                        each.store(emitter, leaf)
                case _:
                    raise AssertionError(leaf)

    def hold(self, emitter: ScopeEmitter, atom: Atom) -> str:
        """Read what is the same for all lanes."""
        value = of_atom(atom)
        name = emitter.scope.fresh(f"{value.loads[0].name}_at" if value.loads else "quotient")
        emitter.write(f"const int64_t {name} = {emitter.text(value)};")
        return name

    def add(self, emitter: ScopeEmitter, node: Accumulate) -> None:
        """Add a term to each vector."""
        test, value = _term(node)
        inner = emitter
        if test != Always():
            emitter.write(f"if ({emitter.printer.test(test).text}) {{")
            inner = emitter.inner()
        for each in self.vectors:
            text = each.at_lane(inner).printer.scalar(value).text
            inner.write(f"{each.totals[node.accumulator]} += {text};")
        if test != Always():
            emitter.write("}")


@dataclass(frozen=True, slots=True)
class _Vector:
    """A vector that begins at `lane`, and its sums; `within` are the first and last of its lanes
    that do something, if not all do."""

    lane: str
    within: str = ""
    totals: dict[str, str] = field(default_factory=dict)

    def at_lane(self, emitter: ScopeEmitter) -> ScopeEmitter:
        """The emitter for what this vector has."""
        row = emitter.kernel.row
        assert row is not None
        inner = replace(emitter.inner(), depth=emitter.depth)
        inner.printer.names.symbols[row.axis.name] = self.lane
        inner.printer.names.accumulators.update(self.totals)
        inner.printer = replace(inner.printer, walking=row.axis.name, within=self.within)
        return inner

    def store(self, emitter: ScopeEmitter, node: Store) -> None:
        """Write the cells of this vector."""
        printer = self.at_lane(emitter).printer
        operand = printer.program.operand(node.tensor)
        kind = type_name(operand) if operand.unrounded else "T"
        cell, text = printer.cell(node.tensor, node.indices), printer.scalar(node.value).text
        if self.within:
            emitter.write(f"lanes_to_{kind}_within(&{cell}, {text}, {self.within});")
        else:
            emitter.write(f"lanes_to_{kind}(&{cell}, {text});")
