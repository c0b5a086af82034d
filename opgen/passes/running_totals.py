"""Sums of all cells up to one, in one go through a row: cumulative sums, products and extremes.

Before: `y[n,i] = sum(j in I if j <= i) x[n,j]` has a point for every n and i, each with a loop over
all terms of its cell.

    parallel n < N, i < I
      total = identity of add
      for j in 0 .. i
        total add= x[n, j]
      y[n, i] = total

After: a cell has the terms of the one before it and one more, so that a point is a whole row.

    parallel n < N
      total = identity of add
      for i in 0 .. I - 1
        total add= x[n, i]
        y[n, i] = total

A sum from a cell to the end, `j >= i`, begins at the end. The terms of a cell come in their order,
or, where the row is gone through backwards, in the opposite one; among equals an argmax of these
is told which one came first. What is a sum over further indices as well, as `sum(k, j if j <= i)`,
has the terms of all k at one j one after the other. What else a cell is made of is computed where
its total is known.

Which axis: the first one along which all totals of a kernel grow, and all in one direction. A
kernel with sums in both directions is left, of which `passes.directions` lets few be; so is a
window, whose first terms go away, and one whose cells have other loops, which are worth more
threads and vectors. Terms must be the same for all cells of the row. Rows of three cells gain as
well: a loop for each is short, and costs more.

Where rows lie side by side, the cells of all of them at one place are vectors; elsewhere two rows
are gone through at a time. This is for the CPU. On a GPU cells are threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.algebra.prove import is_nonnegative
from opgen.ir.loop_parts import accumulators_of, integer_names, loads_of, results_of
from opgen.ir.loops import (
    Accumulate,
    AtomicAdd,
    Axis,
    Define,
    For,
    If,
    Kernel,
    Node,
    Result,
    Start,
    walk,
)
from opgen.ir.map_loops import map_nodes, renamed, symbols_of, with_instead
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.passes.jam import jammed
from opgen.passes.tile import Tile, tiled


def running_totals(kernel: Kernel, facts: Facts) -> Kernel | None:
    """The kernel with a loop over the cells of a row; None where it has no such totals.

    `facts` hold for every call.
    """
    for axis in kernel.axes:
        found = _nests(kernel, axis)
        if found:
            inside = facts.with_conditions(*(Condition(each.extent - 1) for each in kernel.axes))
            for each in kernel.axes:
                inside = inside.with_bounds(each.name, ZERO, each.extent - 1)
            body = _Cells(kernel, axis, inside).body(found)
            axes = tuple(each for each in kernel.axes if each is not axis)
            return replace(kernel, axes=axes, body=body)
    return None


def in_pairs(kernel: Kernel, known: Iterable[str]) -> Kernel:
    """The kernel with two rows at a time, the totals of which do not wait for each other.

    It takes half the time; more rows take little less, and would leave some threads without any.
    Several totals of a row do not wait either. `known` are the names of sizes and attributes.
    """
    if not kernel.axes or sum(isinstance(node, Start) for node in kernel.body) > 1:
        return kernel
    return tiled(kernel, [Tile(kernel.axes[-1], 2)], (kernel.body,), jammed, known)


# ---------------------------------------------------------------------------- loops over terms
@dataclass(frozen=True, slots=True)
class _Nest:
    """Loops over terms, one of which, `moving`, ends or begins where a cell says.

    That bound is `offset` from the cell. `around` are the names of the loops outside of it, which
    have nothing but it in them.
    """

    whole: Node
    moving: For
    bound: Poly
    offset: Poly
    around: tuple[str, ...]

    @property
    def is_prefix(self) -> bool:
        """Whether a cell has the terms of the one before it, and not those of the next one."""
        return self.bound in self.moving.upper

    @property
    def terms(self) -> tuple[Accumulate, ...]:
        """What its loops join."""
        return tuple(node for node in walk((self.whole,)) if isinstance(node, Accumulate))

    @property
    def joined(self) -> dict[str, Reducer]:
        """The accumulators that they join, and how."""
        return {term.accumulator: term.reducer for term in self.terms}

    def newest(self, cell: Poly, facts: Facts, inner: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nest with that term alone which a cell has and the one before it has not; `inner` is
        the body of the moving loop."""
        value = cell + self.offset
        gaps = [value - each for each in self.moving.lower if each != self.bound]
        gaps += [each - value for each in self.moving.upper if each != self.bound]
        unknown = tuple(Condition(gap) for gap in gaps if not is_nonnegative(gap, facts))
        term = map_nodes(inner, lambda each: each.substitute({self.moving.name: value}))
        return self.with_inside((If(unknown, term),) if unknown else term)

    def first(self, axis: Axis, facts: Facts, inner: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nest with the terms that the first cell has beside its newest one."""
        gap = Condition(axis.extent - 1)
        if self.is_prefix:
            last = self.offset - 1
            if any(is_nonnegative(each - self.offset, facts) for each in self.moving.lower):
                return ()
            upper = tuple(last if each == self.bound else each for each in self.moving.upper)
            loop = replace(self.moving, upper=upper, body=inner)
        else:
            begin = axis.extent + self.offset
            if any(is_nonnegative(begin - 1 - each, facts) for each in self.moving.upper):
                return ()
            lower = tuple(begin if each == self.bound else each for each in self.moving.lower)
            loop = replace(self.moving, lower=lower, body=inner)
        return (If((gap,), self.with_inside((loop,))),)

    def with_inside(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nest with other nodes in place of its moving loop."""
        return with_instead(self.whole, self.moving, nodes)


def _nests(kernel: Kernel, axis: Axis) -> dict[int, _Nest]:
    """The loops in which all totals of a kernel grow along an axis, by their places in its body;
    none where that is not so, or where cells have other loops as well."""
    body = kernel.body
    found = {at: nest for at, node in enumerate(body) if (nest := _nest(node, axis)) is not None}
    rest = tuple(node for at, node in enumerate(body) if at not in found)
    if len({nest.is_prefix for nest in found.values()}) != 1:
        return {}
    if any(isinstance(node, For | AtomicAdd) for node in walk(rest)):
        return {}
    begun = [node.accumulator for node in rest if isinstance(node, Start)]
    moving = _moving(body, axis)
    for at, nest in found.items():
        if not moving.isdisjoint(symbols_of(*nest.with_inside(nest.moving.body))):
            return {}
        # What is defined in terms of a cell may be the other end of a window.
        ends = [each for each in (*nest.moving.lower, *nest.moving.upper) if each != nest.bound]
        if any(not moving.isdisjoint(each.symbols) for each in (nest.offset, *ends)):
            return {}
        if any(load.tensor in kernel.all_written for load in loads_of(walk((nest.whole,)))):
            return {}
        for name, reducer in nest.joined.items():
            terms = [term for term in nest.terms if term.accumulator == name]
            if begun.count(name) != 1 or any(term.reducer is not reducer for term in terms):
                return {}
            if reducer is Reducer.ASSIGN or (reducer.is_argument and len(nest.terms) > 1):
                return {}
            if reducer.is_argument and not _is_whole(name, body, at):
                return {}
    return found


def _moving(body: Sequence[Node], axis: Axis) -> set[str]:
    """The axis, and what is defined in terms of it before all loops."""
    moving = {axis.name}
    for node in body:
        if isinstance(node, Define) and not moving.isdisjoint(node.value.symbols):
            moving.add(node.name)
    return moving


def _nest(node: Node, axis: Axis) -> _Nest | None:
    """The loops that a node is, if just one of their bounds depends on the axis, and moves by one
    with it."""
    nodes = tuple(walk((node,)))
    moving = [
        each
        for each in nodes
        if isinstance(each, For) and axis.name in symbols_of(replace(each, body=()))
    ]
    are_loops = all(isinstance(each, For | If | Define | Accumulate) for each in nodes)
    if len(moving) != 1 or not are_loops or results_of((node,)):
        return None
    (loop,) = moving
    bounds = [each for each in (*loop.lower, *loop.upper) if axis.name in each.symbols]
    offset = bounds[0] - symbol(axis.name)
    around = _around(node, loop)
    if len(bounds) != 1 or axis.name in offset.symbols or around is None:
        return None
    return _Nest(node, loop, bounds[0], offset, around)


def _around(node: Node, loop: For) -> tuple[str, ...] | None:
    """The names of the loops outside of one; None where something is beside it in these."""
    names: list[str] = []
    while node is not loop:
        if isinstance(node, For):
            names.append(node.name)
        if not isinstance(node, For | If) or not node.body:
            return None
        *defines, node = node.body
        if not all(isinstance(each, Define) for each in defines):
            return None
    return tuple(names)


def _is_whole(name: str, body: Sequence[Node], at: int) -> bool:
    """Whether an accumulator begins with nothing, and is joined by the node at one place alone."""
    others = tuple(node for place, node in enumerate(body) if place != at)
    return not any(
        (isinstance(node, Accumulate) and node.accumulator == name)
        or (isinstance(node, Start) and node.accumulator == name and node.value is not None)
        for node in walk(others)
    )


# ---------------------------------------------------------------------------- cells one by one
@dataclass
class _Cells:
    """The cells of a kernel along an axis."""

    kernel: Kernel
    axis: Axis
    facts: Facts
    begun: list[Node] = field(default_factory=list)
    firsts: list[Node] = field(default_factory=list)

    def body(self, found: Mapping[int, _Nest]) -> tuple[Node, ...]:
        """A loop over them behind the beginning of totals."""
        body, here = self.kernel.body, symbol(self.axis.name)
        totals = {name for at, e in found.items() for name in e.joined if _is_whole(name, body, at)}
        taken = set(accumulators_of(*body))
        defined = integer_names(self.kernel, known=self.facts.symbols)
        moving = _moving(body, self.axis)
        grown: list[Node] = []
        cell: list[Node] = []
        for at, node in enumerate(body):
            match node:
                case _ if at in found:
                    nest = found[at]
                    own = {
                        name: name if name in totals else fresh_name(f"{name}_so_far", taken)
                        for name in nest.joined
                    }
                    inner = _with_own_names(_terms(nest, own), defined)
                    self.firsts += nest.first(self.axis, self.facts, inner)
                    grown += nest.newest(here, self.facts, inner)
                    cell += [
                        Accumulate(name, nest.joined[name], Result(total))
                        for name, total in own.items()
                        if total != name
                    ]
                    self.begun += [
                        Start(total, self.starts[name].tensor, nest.joined[name])
                        for name, total in own.items()
                        if total != name
                    ]
                case Start(accumulator=name) if name in totals:
                    self.begun.append(node)
                case Define(value=value) if moving.isdisjoint(value.symbols):
                    self.begun.append(node)
                case _:
                    cell.append(node)
        # Totals grow before cells begin: there may be conditions around that.
        inner = (*grown, *cell)
        if not all(nest.is_prefix for nest in found.values()):
            opposite = {self.axis.name: self.axis.extent - 1 - here}
            inner = map_nodes(inner, lambda value: value.substitute(opposite))
        loop = For(self.axis.name, (ZERO,), (self.axis.extent - 1,), inner)
        return (*self.begun, *self.firsts, loop)

    @property
    def starts(self) -> dict[str, Start]:
        """How accumulators of cells begin."""
        return {node.accumulator: node for node in self.kernel.body if isinstance(node, Start)}


def _terms(nest: _Nest, own: Mapping[str, str]) -> tuple[Node, ...]:
    """The body of the moving loop, for totals of these names. Where terms come in another order
    than their own, each says which one it is."""
    body = renamed(nest.moving.body, lambda name: own[name])
    if nest.is_prefix and not nest.around:
        return body
    loops = (node.name for node in walk((nest.moving,)) if isinstance(node, For))
    return _ordered(body, tuple(symbol(name) for name in (*nest.around, *loops)))


def _ordered(nodes: Sequence[Node], order: tuple[Poly, ...]) -> tuple[Node, ...]:
    """The nodes with positions among equal terms, for what looks for one."""
    out: list[Node] = []
    for node in nodes:
        match node:
            case For(body=body) | If(body=body):
                node = replace(node, body=_ordered(body, order))
            case Accumulate(reducer=reducer, order=()) if reducer.is_argument:
                node = replace(node, order=order)
            case _:
                pass
        out.append(node)
    return tuple(out)


def _with_own_names(body: tuple[Node, ...], taken: set[str]) -> tuple[Node, ...]:
    """The nodes with new names for what they define beside each other: what is a loop's own is now
    in the loop over all cells."""
    names = {node.name: fresh_name(node.name, taken) for node in body if isinstance(node, Define)}
    if not names:
        return body
    values = {old: symbol(new) for old, new in names.items()}
    moved = map_nodes(body, lambda value: value.substitute(values))
    return renamed(moved, lambda accumulator: accumulator, names)
