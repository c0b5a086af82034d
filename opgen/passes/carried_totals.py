"""Sums up to a cell of products between a term and the cell, in one go through a row.

Before, with a kernel for the products, of which there are as many as pairs of cells:

    parallel r < R, n < N, m < N
      total = identity of multiply
      for k in m + 1 .. n
        total multiply= a[r, k]
      between[r, n, m] = total

    parallel r < R, m < N
      total = identity of add
      for n in m .. N - 1
        total add= between[r, n, m] * g[r, n]
      y[r, m] = total

After: the products of the next cell have one factor more, the same for all of them, so that it is
the sum that is multiplied, and the newest term has no factors between.

    parallel r < R
      total = identity of add
      for m in 0 .. N - 1
        if m >= 1
          total multiply= a[r, N - m]
        total add= g[r, N - m - 1]
        y[r, N - m - 1] = total

It is what `passes.running_totals` makes of the sum without the products, with a factor in front of
each term. A sum without terms is not multiplied: it is 0, whatever the factor. These are other
roundings, for products that `passes.products_between` made and marked as `carried`; where all that
read them can do without, nobody computes them. This is for the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.algebra.prove import is_nonnegative
from opgen.ir.loop_parts import loads_of, read_by
from opgen.ir.loops import (
    Accumulate,
    Always,
    Axis,
    Call,
    Define,
    For,
    If,
    Kernel,
    Load,
    Node,
    Number,
    Program,
    Result,
    Scalar,
    Start,
    Store,
    walk,
)
from opgen.ir.map_loops import map_nodes, map_scalar, with_instead
from opgen.ir.notation import Reducer
from opgen.passes.running_totals import running_totals


def carried_totals(kernel: Kernel, program: Program, facts: Facts) -> Kernel | None:
    """The kernel with a loop over the cells of a row, without the products between; None where it
    has none, or these are of another form."""
    names = {load.tensor for load in loads_of(walk(kernel.body))}
    carried = [each.name for each in program.operands if each.carried and each.name in names]
    if not carried:
        return None
    steps: list[_Step] = []
    for name in carried:
        product = _product(name, program)
        found = None if product is None else _without(kernel, product)
        if found is None:
            return None
        kernel, step = found
        steps.append(step)
    totals = running_totals(kernel, facts)
    if totals is None or not totals.body:
        return None
    *begin, row = totals.body
    if not isinstance(row, For):
        return None
    is_newest = all(isinstance(each, Start | Define) for each in begin)
    if not is_newest and not all(step.begins_without_factors(facts) for step in steps):
        return None  # the first cell has more terms, with factors
    axes = [each for each in kernel.axes if each not in totals.axes]
    if any([step.axis] != axes for step in steps):
        return None
    grown = [node for step in steps for node in step.nodes(facts, kernel.axes)]
    return replace(totals, body=(*begin, replace(row, body=(*grown, *row.body))))


def without_carried(program: Program) -> Program:
    """The program without products that nobody reads any more."""
    carried = {each.name for each in program.operands if each.carried}
    unread = carried.difference(*map(read_by, program.kernels))
    kernels = tuple(each for each in program.kernels if each.written not in unread)
    return replace(_without_memory(program, unread), kernels=kernels)


def with_memory_of(program: Program, other: Program) -> Program:
    """The program without memory for products that the other one, made of it, does without."""
    stored = {each.name for each in other.operands}
    carried = {each.name for each in program.operands if each.carried}
    return _without_memory(program, carried - stored)


def _without_memory(program: Program, names: Set[str]) -> Program:
    found = tuple(each for each in program.operands if each.name in names)
    operands = tuple(each for each in program.operands if each.name not in names)
    return replace(program, operands=operands, unstored=(*program.unstored, *found))


# ---------------------------------------------------------------------------- products between
@dataclass(frozen=True, slots=True)
class _Product:
    """Products of `value` over a loop, at the cells of a tensor that axes number."""

    tensor: str
    axes: tuple[str, ...]
    loop: For
    value: Scalar


def _product(name: str, program: Program) -> _Product | None:
    """The products in a tensor; None where its kernel is not just that."""
    writers = [each for each in program.kernels if name in each.all_written]
    if len(writers) != 1 or writers[0].prologue:
        return None
    match writers[0].body:
        case (
            Start(reducer=Reducer.MULTIPLY, value=None),
            For(
                body=(Accumulate(reducer=Reducer.MULTIPLY, value=value, present=Always()),)
            ) as loop,
            Store(indices=indices, value=Result()),
        ):
            axes = tuple(index.symbol or "" for index in indices)
            if {*axes} == {each.name for each in writers[0].axes}:
                return _Product(name, axes, loop, value)
            return None
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Step:
    """What a total is multiplied with from one cell along an axis to the next: `value`, where all
    `conditions` hold. `is_prefix` says whether cells come in their order."""

    axis: Axis
    total: str
    value: Scalar
    conditions: tuple[Condition, ...]
    left: tuple[Poly, ...]
    is_prefix: bool

    def begins_without_factors(self, facts: Facts) -> bool:
        """Whether the terms of the first cell have none."""
        first = {self.axis.name: ZERO if self.is_prefix else self.axis.extent - 1}
        return any(is_nonnegative(-each.substitute(first) - 1, facts) for each in self.left)

    def nodes(self, facts: Facts, axes: Sequence[Axis]) -> tuple[Node, ...]:
        """The same as nodes of the loop over cells."""
        inside = facts
        for each in axes:
            inside = inside.with_bounds(each.name, ZERO, each.extent - 1)
            inside = inside.with_conditions(Condition(each.extent - 1))
        needed = tuple(dict.fromkeys(self.conditions))
        for condition in needed:
            others = tuple(each for each in needed if each != condition)
            if is_nonnegative(condition.value, inside.with_conditions(*others)):
                needed = others
        grown = (Accumulate(self.total, Reducer.MULTIPLY, self.value),)
        node: tuple[Node, ...] = (If(needed, grown),) if needed else grown
        if self.is_prefix:
            return node
        opposite = {self.axis.name: self.axis.extent - 1 - symbol(self.axis.name)}
        return map_nodes(node, lambda value: value.substitute(opposite))


def _without(kernel: Kernel, product: _Product) -> tuple[Kernel, _Step] | None:
    """The kernel with sums of terms without the products, and what makes up for that."""
    nests = [node for node in kernel.body if _loads_it((node,), product)]
    found = _sum_of(nests[0]) if len(nests) == 1 else None
    if found is None:
        return None
    around, loop, term = found
    load, value = _factor(term.value, product.tensor)
    total = term.accumulator
    starts = [each for each in walk(kernel.body) if isinstance(each, Start)]
    joined = [each for each in walk(kernel.body) if isinstance(each, Accumulate)]
    if (
        load is None
        or term.reducer is not Reducer.ADD
        or term.present != Always()
        or [each.value for each in starts if each.accumulator == total] != [None]
        or [each.accumulator for each in joined].count(total) != 1
        or any(index.symbol is None for index in load.indices)
    ):
        return None
    names = dict(zip(product.axes, load.indices, strict=True))
    step = _step(kernel, loop, total, product, names)
    inner = replace(loop, body=(replace(term, value=value),))
    if step is None or _loads_it((inner,), product):
        return None
    body = tuple(each for node in kernel.body for each in with_instead(node, loop, (inner,)))
    return replace(kernel, body=body), replace(step, conditions=(*step.conditions, *around))


def _sum_of(node: Node) -> tuple[tuple[Condition, ...], For, Accumulate] | None:
    """A loop that joins one term to a total, which the node is, and the conditions around it."""
    match node:
        case For(body=(Accumulate() as term,)):
            return (), node, term
        case If(conditions=conditions, body=(inner,), test=Always()) if all(
            each.relation is Relation.GE for each in conditions
        ):
            found = _sum_of(inner)
            return None if found is None else ((*conditions, *found[0]), *found[1:])
        case _:
            return None


def _step(
    kernel: Kernel, loop: For, total: str, product: _Product, names: dict[str, Poly]
) -> _Step | None:
    """What the total of a loop over terms is multiplied with; None where the products of a cell are
    not those of the one before it with one factor more, or where its newest term has any."""
    term, factor = loop.name, product.loop.name
    moving = [
        each
        for each in kernel.axes
        if any(each.name in bound.symbols for bound in (*loop.lower, *loop.upper))
    ]
    if len(moving) != 1:
        return None
    (axis,) = moving
    lower, upper = (
        tuple(each.substitute(names) for each in bounds)
        for bounds in (product.loop.lower, product.loop.upper)
    )
    is_prefix = any(axis.name in each.symbols for each in loop.upper)
    terms = _Bounds.of(loop.lower, loop.upper, is_prefix, axis.name)
    cells = _Bounds.of(lower, upper, is_prefix, axis.name)
    ends = _Bounds.of(lower, upper, not is_prefix, term)
    if terms is None or cells is None or ends is None:
        return None
    end = ends.moving + symbol(term)
    beyond = tuple(each for each in cells.opposite if each != end)
    rest = (*terms.same, *terms.opposite, *cells.same, *beyond)
    if any(not {axis.name, term}.isdisjoint(each.symbols) for each in rest):
        return None
    step = 1 if is_prefix else -1
    if cells.moving + step != terms.moving + ends.moving:
        return None  # the newest term has factors, or there is one that it lacks
    newest = symbol(axis.name) + cells.moving
    last = symbol(axis.name) + terms.moving - step
    gaps = [one - other for one in (last, *terms.same) for other in terms.opposite]
    left = tuple((newest - each) * step for each in beyond)
    gaps += [each - newest for each in cells.same]
    conditions = (*(Condition(gap * step) for gap in gaps), *map(Condition, left))
    value = map_scalar(product.value, lambda each: each.substitute({**names, factor: newest}))
    return _Step(axis, total, value, conditions, left, is_prefix)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The bounds of a loop: one that moves by one with a symbol, without it, others on the `same`
    side, and those on the opposite one."""

    moving: Poly
    same: tuple[Poly, ...]
    opposite: tuple[Poly, ...]

    @classmethod
    def of(
        cls, lower: tuple[Poly, ...], upper: tuple[Poly, ...], is_upper: bool, name: str
    ) -> _Bounds | None:
        """Those of a loop, of which an upper one is to move, or a lower one."""
        same, opposite = (upper, lower) if is_upper else (lower, upper)
        found = [each for each in same if name in each.symbols]
        if len(found) != 1 or found[0].step_in(name) != 1:
            return None
        rest = tuple(each for each in same if each != found[0])
        return cls(found[0] - symbol(name), rest, opposite)


# ---------------------------------------------------------------------------- terms
def _loads_it(nodes: tuple[Node, ...], product: _Product) -> bool:
    return any(load.tensor == product.tensor for load in loads_of(walk(nodes)))


def _factor(value: Scalar, tensor: str) -> tuple[Load | None, Scalar]:
    """The load of a tensor that is a factor of a value, and the value without it."""
    match value:
        case Load() if value.tensor == tensor:
            return value, Number(1)
        case Call(primitive="neg", arguments=(inner,)):
            load, rest = _factor(inner, tensor)
            return load, Call("neg", (rest,))
        case Call(primitive="mul", arguments=(left, right)):
            load, rest = _factor(left, tensor)
            if load is not None:
                return load, right if rest == Number(1) else Call("mul", (rest, right))
            load, rest = _factor(right, tensor)
            return load, left if rest == Number(1) else Call("mul", (left, rest))
        case _:
            return None, value
