"""Loops for a processor with vectors: the innermost loop runs along a row.

Before: one parallel point for every cell, a loop over its terms. After, for kernels that gain by
it, one of

    row      a point is a stretch of cells along one axis. Loops over terms go outside of the cells,
             each cell keeps its accumulator, and the innermost loop runs over the cells for which
             the term exists: bounds of a loop that differ from cell to cell, and conditions, become
             bounds of that innermost loop. No condition is left in it where they are linear.
    sum      a point stays a cell, and the innermost loop over its terms may add in any order.

The cell's terms stay the same; in a row their order does as well, but for sums over planes of a
tensor (`passes.pairs`). Which of the two, and along which axis: where most tensors are read and
written at consecutive addresses.

The last dim of a tensor is taken to be the one with consecutive addresses.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.algebra.prove import is_nonnegative
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import (
    Accumulate,
    All,
    Always,
    AtomicAdd,
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
    Row,
    Start,
    Store,
    Test,
    walk,
)
from opgen.ir.map_loops import symbols_of, test_symbols
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.passes.carried_totals import carried_totals, without_carried
from opgen.passes.checks_apart import with_checks_apart
from opgen.passes.frames import frames_of
from opgen.passes.groups import grouped
from opgen.passes.innermost import with_sum_innermost
from opgen.passes.interior import with_interior
from opgen.passes.jam import copies_along, jammed
from opgen.passes.lane_bounds import LaneBounds, greatest_over, least_over, solve
from opgen.passes.lane_choice import Choice, Way, choose, short_sum, stored_row, sums_of_rows, walks
from opgen.passes.lane_passes import fused
from opgen.passes.moves import moves_of
from opgen.passes.moving_loops import from_begin
from opgen.passes.pairs import paired
from opgen.passes.peel import Peeling
from opgen.passes.point_ranges import with_point_ranges
from opgen.passes.products_apart import products_apart
from opgen.passes.running_totals import in_pairs, running_totals
from opgen.passes.scattered_rows import WIDTH as SCATTERED_WIDTH
from opgen.passes.scattered_rows import scattered_rows
from opgen.passes.short_rows import with_planes
from opgen.passes.tile import Tile, sharing_more, tiled, tiles_along, window_tiles
from opgen.passes.turns import in_turns
from opgen.passes.unroll import MOST, unrolled
from opgen.passes.walk_order import in_walk_order

Leaf = Accumulate | Start | Store | AtomicAdd

_MOST_TILES: Final = 2  # sixteen vectors of partial sums

WIDTH: Final = 1024
"""The most accumulators of a row: they stay in the first-level cache, and on the stack."""

LEAST_WIDTH: Final = 128
"""The fewest cells of a stretch, several accumulators for each or not."""

_ABSENT_IS_ZERO: Final = (Reducer.ASSIGN, Reducer.MULTIPLY)
_FREE: Final = LaneBounds()


def rows(program: Program, facts: Facts) -> Program:
    """The same program with innermost loops along rows; `facts` hold for every call."""
    kernels = (_kernel(kernel, program, facts) for kernel in program.kernels)
    return without_carried(replace(program, kernels=tuple(kernels)))


def _kernel(kernel: Kernel, program: Program, facts: Facts) -> Kernel:
    if not kernel.is_deterministic:
        kernel = with_point_ranges(kernel)
    if not kernel.is_deterministic and (found := scattered_rows(kernel)) is not None:
        kernel, name = found
        if name is None:
            return replace(kernel, body=unrolled(kernel.body))
        return _narrow(along_row(kernel, name, facts))
    if not kernel.is_deterministic or not kernel.axes:
        return kernel
    kernel = replace(kernel, body=direct(kernel.body))
    totals = carried_totals(kernel, program, facts) or running_totals(kernel, facts)
    if totals is not None:
        # Totals come one after the other: there is no sum whose terms have any order.
        choice = choose(totals, ())
        if choice.way is Way.ROW:
            return along_row(totals, choice.name, facts)
        return in_pairs(totals, facts.symbols)
    framed = frames_of(kernel, program)
    kernel = replace(kernel, moves=moves_of(kernel, program), framed=framed)
    choice = choose(kernel)
    if choice.way is not Way.ROW:
        kernel = with_checks_apart(kernel)
    if choice.way is Way.POINTS:
        moved = with_sum_innermost(kernel, functools.partial(walks, kernel))
        choice = choose(moved)
        kernel = moved if choice.way is Way.SUM else kernel
        choice = short_sum(kernel) if choice.way is Way.POINTS else choice
        choice = stored_row(kernel) if choice.way is Way.POINTS else choice
    match choice:
        case Choice(way=Way.ROW, name=name):
            along = with_planes(along_row(kernel, name, facts))
            return _narrow(along) if _has_few_points(along) else along
        case Choice(way=Way.SUM, name=name):
            return _in_any_order(kernel, name, program)
        case Choice(way=Way.POINTS):
            return products_apart(kernel, facts.symbols)
        case unexpected:
            raise AssertionError(unexpected)


def _has_few_points(kernel: Kernel) -> bool:
    """Whether a single row is all there is, and passes over it are as many as a size says."""
    if kernel.axes or kernel.group is not None:
        return False
    loops = (node for node in kernel.body if isinstance(node, For))
    return any(not bound.is_constant for loop in loops for bound in loop.upper)


def _narrow(kernel: Kernel) -> Kernel:
    """The kernel with stretches for more threads, of a single row of sums or of terms."""
    row = kernel.row
    assert row is not None
    return replace(kernel, row=replace(row, width=min(row.width, SCATTERED_WIDTH)))


def direct(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """Without an accumulator where a cell has exactly one term, or nothing."""
    begin = max((at for at, node in enumerate(body) if isinstance(node, Start)), default=0)
    match body[begin:]:
        case (
            Start(value=None, reducer=Reducer.ASSIGN | Reducer.ADD),
            *defines,
            Accumulate(reducer=Reducer.ASSIGN | Reducer.ADD, value=value, present=present),
            Store() as store,
        ) if all(isinstance(node, Define) for node in defines):
            if present != Always():
                value = Choose(present, value, Number(0))
            return (*body[:begin], *defines, replace(store, value=value))
        case _:
            return body


def _reordered(body: tuple[Node, ...], names: Set[str]) -> tuple[Node, ...]:
    """The loops with these names in any order."""

    def change(node: Node) -> Node:
        if isinstance(node, For):
            inner = _reordered(node.body, names)
            return replace(node, body=inner, any_order=node.any_order or node.name in names)
        if isinstance(node, If):
            return replace(node, body=_reordered(node.body, names))
        return node

    return tuple(map(change, body))


def _has_companion(kernel: Kernel, program: Program) -> bool:
    """Whether another kernel with the same axes reads one of the tensors that this one goes along.

    The two may become one (`passes.sums_together`), which needs accumulators for both.
    """
    extents = [axis.extent for axis in kernel.axes]
    tensors = {load.tensor for load in loads_of(walk(kernel.body)) if len(load.indices) > 1}
    return any(
        other.name != kernel.name
        and [axis.extent for axis in other.axes] == extents
        and any(isinstance(node, For) for node in walk(other.body))
        and not tensors.isdisjoint(load.tensor for load in loads_of(walk(other.body)))
        for other in program.kernels
    )


def _in_any_order(kernel: Kernel, name: str, program: Program) -> Kernel:
    """The kernel with sums over the loop of that name in any order, several cells at a time."""
    body = _reordered(kernel.body, {name, *sums_of_rows(kernel)})
    tiles = tiles_along(kernel, (body,), name, all_shared=False)
    if _has_companion(kernel, program):
        tiles = sharing_more(tiles, (body,), name)
    tiles = tiles[-_MOST_TILES:]
    tiles = tiles or window_tiles(kernel, (body,), name)
    return tiled(kernel, tiles, (body,), jammed, program.integers)


# ---------------------------------------------------------------------------- rows
def along_row(
    kernel: Kernel, name: str, facts: Facts, most: int = MOST, jammed_too: Sequence[Tile] = ()
) -> Kernel:
    """The kernel with the axis of that name as its row.

    Loops with up to `most` terms in all are written out. The tiles in `jammed_too` are jammed
    beside those that share what they load with each other.
    """
    copies = copies_along(kernel, name, of_loops=True)
    kernel, bodies = copies.kernel, copies.bodies
    (axis,) = (axis for axis in kernel.axes if axis.name == name)
    taken = integer_names(kernel, *itertools.chain(*bodies), known=facts.symbols)
    inside = facts.with_conditions(*(Condition(each.extent - 1) for each in kernel.axes))
    for each in kernel.axes:
        inside = inside.with_bounds(each.name, ZERO, each.extent - 1)
    # Cells of one row share what they load already where the copies are those of a stride.
    tiles = [] if copies.counted else tiles_along(kernel, bodies, name, all_shared=True)[-1:]
    if not copies.counted:
        tiles = tiles or window_tiles(kernel, bodies, name)
    tiles = [*jammed_too, *tiles]
    copies_of_a_cell = len(bodies) * math.prod(tile.size for tile in tiles)
    width = max(WIDTH // copies_of_a_cell, LEAST_WIDTH)
    if axis.extent.is_constant:
        width = min(width, max(axis.extent.constant, 1))
    row = Row(axis, fresh_name(f"{name}_first", taken), fresh_name(f"{name}_last", taken), width)
    passes = functools.partial(_passes, row, inside, most, frozenset(taken))
    kernel = tiled(kernel, tiles, bodies, passes, facts.symbols)
    axes = tuple(each for each in kernel.axes if each is not axis)
    along = grouped(replace(kernel, axes=axes, row=row), facts.symbols)
    return in_walk_order(paired(along, facts.symbols))


def _passes(
    row: Row,
    inside: Facts,
    most: int,
    used: frozenset[str],
    copies: Sequence[tuple[Node, ...]],
) -> tuple[Node, ...]:
    """Bodies that do not depend on each other as passes over the row."""
    name = row.axis.name
    bodies = tuple(unrolled(body, most) for body in copies)
    middle = Peeling(name, row.axis.extent, inside).peeled(bodies)
    rewriter = Rewriter(row, inside, used)
    scope = Scope(bounds=middle.bounds.needed(row.axis.extent, inside))
    rewritten = [tuple(rewriter.nodes(unrolled(body, most), scope)) for body in middle.bodies]
    whole = tuple(node for body in bodies for node in body)
    return (
        *(in_turns(whole, bounds, row, inside, used) for bounds in middle.before),
        *fused(with_interior(jammed(rewritten)), scope.bounds, name),
        *(in_turns(whole, bounds, row, inside, used) for bounds in middle.after),
    )


@dataclass(frozen=True, slots=True)
class Scope:
    """What the nodes around a node leave to the lanes: definitions, bounds and other conditions."""

    defines: tuple[Define, ...] = ()
    values: dict[str, Poly] = field(default_factory=dict)
    bounds: LaneBounds = _FREE
    guards: tuple[If, ...] = ()


@dataclass(frozen=True)
class Rewriter:
    """Moves the lanes of a row inside of everything that is the same for all of them."""

    row: Row
    facts: Facts
    used: frozenset[str] | None = None
    """The names around the row where its lanes go around turn by turn; threads do not."""

    @property
    def lane(self) -> str:
        """The symbol that differs from lane to lane."""
        return self.row.axis.name

    def depends(self, symbols: frozenset[str], scope: Scope) -> bool:
        """Whether something with these symbols differs from lane to lane."""
        return self.lane in symbols or not symbols.isdisjoint(scope.values)

    def nodes(self, nodes: Sequence[Node], scope: Scope) -> list[Node]:
        """Nodes with the lanes innermost."""
        out: list[Node] = []
        for node in nodes:
            match node:
                case Define(name=name, value=value):
                    if self.depends(value.symbols, scope):
                        full = value.substitute(scope.values)
                        scope = replace(
                            scope,
                            defines=(*scope.defines, node),
                            values={**scope.values, name: full},
                        )
                    else:
                        out.append(node)
                case If():
                    out += self.condition(node, scope)
                case For():
                    out += self.loop(node, scope)
                case Start() | Accumulate() | Store() | AtomicAdd():
                    out += self.leaf(node, scope)
                case Lanes():
                    raise AssertionError("a kernel has one row")
                case unexpected:
                    assert_never(unexpected)
        return out

    def condition(self, node: If, scope: Scope) -> list[Node]:
        """Conditions on the row go outside, those on a lane become bounds where they can."""
        outside: list[Condition] = []
        guards: list[Condition] = []
        for condition in node.conditions:
            if not self.depends(condition.value.symbols, scope):
                if not self.holds(condition):
                    outside.append(condition)
                continue
            bounds = self.bounds(condition, scope)
            if bounds is None:
                guards.append(condition)
            else:
                scope = replace(scope, bounds=scope.bounds.joined(bounds))
        test, bounds = self.test(node.test, scope)
        scope = replace(scope, bounds=scope.bounds.joined(bounds))
        around: tuple[Test, tuple[Condition, ...]] = (Always(), tuple(outside))
        if test != Always() and not guards and not self.depends(test_symbols(test), scope):
            around, test = (test, tuple(outside)), Always()
        if guards or test != Always():
            scope = replace(scope, guards=(*scope.guards, If(tuple(guards), (), test)))
        body = self.nodes(node.body, scope) if node.body else self.leaf(None, scope)
        if not around[1] and around[0] == Always():
            return body
        return [If(around[1], tuple(body), around[0])]

    def holds(self, condition: Condition) -> bool:
        """Whether a condition is met by every point."""
        return condition.relation is Relation.GE and is_nonnegative(condition.value, self.facts)

    def bounds(self, condition: Condition, scope: Scope) -> LaneBounds | None:
        """The lanes of which a condition holds, if they lie side by side."""
        match condition.relation:
            case Relation.GE:
                return self.solved(condition.value, scope)
            case Relation.EQ:
                value = condition.value.substitute(scope.values)
                # A step of one, of which no tensor says where: a short row is quicker asked. So are
                # threads, which are all asked anyway.
                is_lane = value.step_in(self.lane) in (1, -1) and not value.is_data_dependent
                if self.used is None or not is_lane:
                    return None
                return self.between(value, -value, scope)
            case Relation.NE:
                return None
            case unexpected:
                assert_never(unexpected)

    def between(self, first: Poly, second: Poly, scope: Scope) -> LaneBounds | None:
        """`first >= 0` and `second >= 0` as bounds of the lane."""
        lower, upper = self.solved(first, scope), self.solved(second, scope)
        return None if lower is None or upper is None else lower.joined(upper)

    def solved(self, value: Poly, scope: Scope) -> LaneBounds | None:
        """`value >= 0` as bounds of the lane."""
        return solve(value.substitute(scope.values), self.lane, self.facts)

    def test(self, test: Test, scope: Scope) -> tuple[Test, LaneBounds]:
        """What is left of a test, and what of it became bounds."""
        parts = test.tests if isinstance(test, All) else (test,)
        left: list[Test] = []
        bounds = LaneBounds()
        for part in parts:
            found = None
            if isinstance(part, Inside) and part.fault is None:
                found = self.inside(part, scope)
            if found is None:
                left.append(part)
            else:
                bounds = bounds.joined(found)
        match left:
            case []:
                return Always(), bounds
            case [single]:
                return single, bounds
            case _:
                return All(tuple(left)), bounds

    def inside(self, test: Inside, scope: Scope) -> LaneBounds | None:
        return self.between(test.index, test.extent - 1 - test.index, scope)

    def loop(self, node: For, scope: Scope) -> list[Node]:
        """The loop outside of the lanes, over all values that some lane needs.

        Where its range moves with the lane, it is counted from where that begins: over all lanes
        together its values may be many, though every lane needs but few.
        """
        moved = from_begin(node, lambda each: self.depends(each.symbols, scope), scope.values)
        if moved is not None:
            return self.loop(moved, scope)
        lower, upper = list[Poly](), list[Poly]()
        bounds = LaneBounds()
        for kind, out, values in (("lower", lower, node.lower), ("upper", upper, node.upper)):
            for bound in values:
                if not self.depends(bound.symbols, scope):
                    out.append(bound)
                    continue
                value = bound.substitute(scope.values)
                extreme = least_over if kind == "lower" else greatest_over
                hull = extreme(value, self.lane, self.row.first, self.row.last, self.facts)
                gap = symbol(node.name) - value if kind == "lower" else value - symbol(node.name)
                own = solve(gap, self.lane, self.facts)
                if hull is None or own is None:
                    return self.inner_loop(node, scope)
                out.append(hull)
                bounds = bounds.joined(own)
        body = self.nodes(node.body, replace(scope, bounds=scope.bounds.joined(bounds)))
        return [replace(node, lower=tuple(lower), upper=tuple(upper), body=tuple(body))]

    def inner_loop(self, node: For, scope: Scope) -> list[Node]:
        """The loop as it is, in every lane by itself."""
        return [self.lanes(scope.bounds, scope, (node,))]

    def leaf(self, node: Leaf | None, scope: Scope) -> list[Node]:
        """One node for all lanes."""
        bounds = scope.bounds
        if isinstance(node, Accumulate) and node.reducer not in _ABSENT_IS_ZERO:
            present, own = self.test(node.present, scope)
            node, bounds = replace(node, present=present), bounds.joined(own)
        lanes = self.lanes(bounds, scope, () if node is None else (node,))
        if self.used is None:
            return [lanes]
        found = LaneBounds(lanes.lower, lanes.upper)
        return [in_turns(lanes.body, found, self.row, self.facts, self.used)]

    def lanes(self, bounds: LaneBounds, scope: Scope, body: tuple[Node, ...]) -> Lanes:
        """The body in every lane, behind what it needs of the scope."""
        for guard in reversed(scope.guards):
            match body:
                case (If(test=Always()) as inner,) if guard.test == Always():
                    # Compilers make vectors of one condition, but not of one within another.
                    body = (replace(inner, conditions=(*guard.conditions, *inner.conditions)),)
                case _:
                    body = (replace(guard, body=body),)
        needed = set(symbols_of(*body))
        defines: list[Define] = []
        for define in reversed(scope.defines):
            if define.name in needed:
                defines.insert(0, define)
                needed |= define.value.symbols
        bounds = bounds.needed(self.row.axis.extent, self.facts)
        return Lanes(bounds.lower, bounds.upper, (*defines, *body))
